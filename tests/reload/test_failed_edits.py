"""An edit that fails changes nothing, and is told to everyone who should know."""

import os
import re
import subprocess
import time
from pathlib import Path

import pytest

from conftest import PATIENCE
from edits import SETTLE, broken, make_site, put, scale, site, until  # noqa: F401

BOTH = "float32 float64"
FAILURES = {
    "a directive": (scale(3).replace("//! shape   x", "//! shpae   x"), ":3:", "shpae"),
    "the schema": (scale(3).replace("Tensor x)", "Tensro x)"), ":1:", "Tensro"),
    "no kernel of that name": (scale(3).replace("kernel  run", "kernel  ruin"), "", "ruin"),
    "the kernel": (broken(), ":13:", "no_such_name"),
    "no header": ("__global__ void run() {}\n", "", "op"),
    "a brace": (scale(3).rstrip().rstrip("}"), "", ""),
}


@pytest.mark.parametrize("what", FAILURES)
def test_nothing_changes(site, what):
    text, line, word = FAILURES[what]
    generation = site.call("status")["generation"]
    site.save("scale.cu", text)
    event = site.await_event("failed", "scale")
    assert event["file"].endswith("scale.cu")
    assert f"scale.cu{line}" in event["message"] and word in event["message"]
    assert event["ms"] > 0 and abs(event["time"] - time.time()) < 600
    assert "\n" not in event["message"]
    assert f"not served: {event['message']}" in site.daemon.read_log()
    result = site.run()
    assert (result.value, result.version) == (2, 1)
    (warning,) = result.warnings
    assert warning.startswith("scale: the edit of ") and event["message"] in warning
    assert site.run().warnings == []
    assert site.call("status")["generation"] == generation
    assert [(e["kind"], e["op"]) for e in site.events()] == [("failed", "scale")]


def test_who_is_told(site):
    """Every connection, once for each failure, with the next reply of that operator."""
    site.save("more.cu", scale(5, "more"))
    until(lambda: site.has("more"), bool)
    with site.caller() as another:
        another.run()
        site.save("scale.cu", broken(word="first"))
        site.await_event("failed", "scale")
        assert site.run("more").warnings == []
        for caller in (site, another):
            (warning,) = caller.run().warnings
            assert "first" in warning
            assert caller.run().warnings == []
        mark = site.mark()
        site.save("scale.cu", broken(word="second"))
        site.await_event("failed", "scale", mark)
        (warning,) = another.run().warnings
        assert "second" in warning
        with site.caller() as late:
            assert "second" in late.run().warnings[0]
        site.save("scale.cu", scale(3))
        assert site.await_value(3)
        with site.caller() as latest:
            assert latest.run().warnings == []


def test_the_list_of_versions_tells(site):
    site.save("scale.cu", broken())
    site.await_event("failed", "scale")
    failed, serving = site.call("op_info", "scale")["versions"]
    assert (failed["version"], failed["state"]) == (2, "failed")
    assert "no_such_name" in failed["message"] and "no_such_name" in failed["log"]
    assert failed["hash"] != serving["hash"] and failed["time"] > serving["time"]
    assert (serving["version"], serving["state"], serving["message"]) == (1, "serving", "")
    error = site.fail("forward", "scale", [site.one()], {}, [99], {"version": 2})
    assert error.code == "not_found"
    assert site.fail("pin", "scale", 2).code == "not_found"
    site.save("scale.cu", scale(3))
    assert site.await_value(3).version == 3
    assert site.versions() == [(3, "serving"), (2, "failed"), (1, "retired")]
    assert site.call("rollback", "scale") == {"version": 1}


def test_reload_tells(site):
    site.save("scale.cu", broken())
    (outcome,) = site.call("reload")
    assert (outcome["op"], outcome["state"], outcome["version"]) == ("scale", "failed", 2)
    assert "no_such_name" in outcome["message"] and "no_such_name" in outcome["log"]
    assert outcome["file"] == str(site.path("scale.cu")) and outcome["ms"] > 0
    assert site.call("reload") == [outcome]  # as long as it stands
    site.save("scale.cu", scale(3))
    assert site.outcomes() == [("scale", "serving", 3)]
    assert site.call("reload") == []


def test_reload_tells_of_a_new_file(site):
    """Also when its failure was noticed before anyone asked, and the file gives no operator."""
    text = scale(5, "more").replace("//! dtypes", "//! dtype")
    site.save("more.cu", text)
    site.await_event("failed")
    for caller in (site, site.caller(), site.caller()):
        (outcome,) = caller.call("reload")
        assert (outcome["op"], outcome["state"], outcome["version"]) == ("", "failed", 0)
        assert outcome["file"] == str(site.path("more.cu")) and "more.cu:2:" in outcome["message"]
    error = site.fail("forward", "more", [site.one()], {}, [99], {})
    assert "there is no operator 'more'; did you mean" not in str(error)
    assert "'more'; more.cu is not served: more.cu:2:" in str(error)
    put(site.path("more.cu"), text)  # the same once more
    assert [o["state"] for o in site.call("reload")] == ["failed"]
    site.save("more.cu", scale(5, "more"))
    assert site.outcomes() == [("more", "serving", 1)]
    assert site.call("reload") == []


@pytest.mark.parametrize("text", [broken("more"), "//! ops more()\n"])
def test_a_failed_file_that_is_deleted(site, text):
    """What is not there cannot fail, though nothing of it was ever served."""
    site.save("more.cu", text)
    site.await_event("failed")
    assert len(site.call("reload")) == 1
    site.path("more.cu").unlink()
    assert site.call("reload") == []
    time.sleep(SETTLE)
    assert site.call("reload") == []
    site.save("more.cu", scale(5, "more"))
    assert [o[:2] for o in site.outcomes()] == [("more", "serving")]


def test_a_failed_file_that_is_not_alone(make_site):
    """Two files of one operator: each is told of by itself."""
    site = make_site({"a/scale.cu": scale(2), "b/scale.cu": scale(3)}, folders=("a", "b"))
    assert site.run().value == 3
    site.save("a/scale.cu", scale(4).replace("//! shape", "//! shpae"))
    (outcome,) = site.call("reload")
    assert outcome["file"] == str(site.path("a/scale.cu")) and outcome["state"] == "failed"
    site.save("b/scale.cu", scale(5))
    assert [o[1:] for o in site.outcomes()] == [("failed", 0), ("serving", 2)]
    site.save("a/scale.cu", scale(4))
    assert site.outcomes() == [("scale", "shadowed", 0)]
    assert site.run().value == 5


def test_opctl_names_the_file(site):
    """Where no operator is known."""
    opctl = [str(Path(os.environ["OPD_BIN"]).resolve().parent / "opctl"), "--socket",
             str(site.daemon.socket)]
    site.save("more.cu", scale(5, "more").replace("//! dtypes", "//! dtype"))
    site.await_event("failed")
    for _ in range(2):
        done = subprocess.run([*opctl, "reload"], capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 1 and "more.cu:2:" in done.stderr
        assert re.search(r"^more\.cu +0 +failed ", done.stdout, re.M), done.stdout
    done = subprocess.run([*opctl, "events", "--no-follow"], capture_output=True, text=True,
                          timeout=PATIENCE)
    line = rf"  failed       more\.cu, [0-9.]+ ms, {site.path('more.cu')}: more\.cu:2:"
    assert re.search(line, done.stdout), done.stdout


def test_one_dtype_that_is_in_use(make_site):
    """One of two does not compile: both stay as they were."""
    site = make_site({"scale.cu": scale(2, dtypes=BOTH)})
    assert (site.run().value, site.run(dtype="float64").value) == (2, 2)
    bad = 'static_assert(sizeof(scalar_t) == 4, "no wide ones");\n'
    site.save("scale.cu", scale(3, dtypes=BOTH, before=bad))
    assert "no wide ones" in site.await_event("failed", "scale")["log"]
    for dtype in ("float32", "float64"):
        assert (site.run(dtype=dtype).version, site.run(dtype=dtype).value) == (1, 2)


def test_one_dtype_that_nobody_uses(make_site):
    """It is not compiled before it is wanted, and then only its own requests fail."""
    site = make_site({"scale.cu": scale(2, dtypes=BOTH)})
    assert site.run().value == 2
    bad = 'static_assert(sizeof(scalar_t) == 4, "no wide ones");\n'
    site.save("scale.cu", scale(3, dtypes=BOTH, before=bad))
    assert site.await_value(3).version == 2
    error = site.fail("forward", "scale", [site.one("float64")], {}, [99], {})
    assert error.code == "compile_error" and "no wide ones" in error.log
    assert site.run().value == 3


SPECIAL = """\
//! op      special(Tensor x, *, int order=1) -> Tensor y
//! dtypes  float32
//! shape   x [N]
//! shape   y [N]
//
//! forward
//!   kernel  run<order>

template <int K> __global__ void run(const float *x, float *y, int N)
{
    static_assert(K < LIMIT, "the order is too high");
    CUDA_KERNEL_LOOP(i, N)
        y[i] = x[i] * FACTOR * K;
}
"""


def special(factor, limit):
    return SPECIAL.replace("FACTOR", str(factor)).replace("LIMIT", str(limit))


def test_a_specialisation_that_is_in_use(make_site):
    site = make_site({"special.cu": special(2, 9)})
    assert site.run("special").value == 2
    assert site.run("special", attrs={"order": 5}).value == 10
    site.save("special.cu", special(3, 4))
    event = site.await_event("failed", "special")
    assert "the order is too high" in event["log"]
    assert site.run("special", attrs={"order": 5}).value == 10
    assert site.run("special").value == 2
    mark = site.mark()
    site.save("special.cu", special(3, 6))
    assert site.await_event("reloaded", "special", mark)["version"] == 3
    assert site.run("special", attrs={"order": 5}).value == 15
    assert site.fail("forward", "special", [site.one()], {"order": 7}, [99], {}).code == (
        "compile_error"
    )


def test_a_number_in_use_that_becomes_a_specialisation(make_site):
    """Plans of two numbers were one; in what is edited they are two, and both in use."""
    passed = special(2, 9).replace("run<order>", "run").replace("template <int K> ", "")
    passed = passed.replace("int N)", "int N, int order)").replace("* K", "* order")
    passed = passed.replace('    static_assert(K < 9, "the order is too high");\n', "")
    site = make_site({"special.cu": passed})
    assert site.run("special").value == 2
    assert site.run("special", attrs={"order": 5}).value == 10
    site.save("special.cu", special(3, 4))
    assert "the order is too high" in site.await_event("failed", "special")["log"]
    assert site.run("special", attrs={"order": 5}).value == 10


def test_the_next_version_is_ready(make_site):
    """All that was in use is compiled before it serves: nobody waits."""
    site = make_site({"special.cu": special(2, 9)})
    for order in range(1, 5):
        site.run("special", attrs={"order": order})
    site.save("special.cu", special(3, 9))
    site.await_event("reloaded", "special")
    before = site.call("status")["compilers"]
    for order in range(1, 5):
        assert site.run("special", attrs={"order": order}).value == 3 * order
    after = site.call("status")["compilers"]
    assert (before["compiled"], before["cache_hits"]) == (after["compiled"], after["cache_hits"])


def test_a_new_file_that_does_not_parse(site):
    site.save("more.cu", scale(5, "more").replace("//! dtypes", "//! dtype"))
    event = site.await_event("failed")
    assert "more.cu:2:" in event["message"]
    assert not site.has("more")
    site.save("more.cu", scale(5, "more"))
    until(lambda: site.has("more"), bool)
    assert (site.run("more").value, site.run("more").version) == (5, 1)


def test_a_new_file_that_does_not_compile(site):
    site.save("more.cu", broken("more"))
    assert site.await_event("failed", "more")["version"] == 1
    assert not site.has("more")
    site.save("more.cu", scale(5, "more"))
    until(lambda: site.has("more"), bool)
    result = site.run("more")
    assert (result.value, result.version, result.warnings) == (5, 2, [])


def test_a_file_that_is_broken_at_the_start(make_site):
    """The daemon starts, and serves it when it is mended."""
    site = make_site({"scale.cu": scale(2).replace("//! op", "//! pp"), "more.cu": scale(5, "more")})
    assert site.run("more").value == 5
    assert "scale.cu:1:" in site.daemon.read_log()
    (outcome,) = site.call("reload")
    assert "scale.cu:1:" in outcome["message"] and outcome["state"] == "failed"
    site.save("scale.cu", scale(3))
    until(lambda: site.has("scale"), bool)
    assert site.run().value == 3


def test_a_file_that_is_emptied(site):
    """Perhaps someone is about to write it; if not, it is told."""
    began = time.monotonic()
    site.path("scale.cu").write_text("")
    assert site.run().value == 2
    assert site.events() == [] or time.monotonic() - began > 0.2, "it is told too soon"
    assert "scale.cu" in site.await_event("failed", "scale")["message"]
    assert site.run().value == 2
    time.sleep(SETTLE)
    assert len(site.events()) == 1
    site.save("scale.cu", scale(3))
    assert site.await_value(3)


def test_a_crash_of_the_compiler(site):
    """A compile that never ends costs the edit, not the version that serves."""
    bomb = "template <int N> struct T { static const int v = T<N - 1>::v + T<N - 2>::v; };\n"
    bomb += "static const int deep = T<100000>::v;\n"
    site.save("scale.cu", scale(3, before=bomb))
    site.await_event("failed", "scale")
    assert site.run().value == 2
    site.save("scale.cu", scale(4))
    assert site.await_value(4)


def test_the_schema_changes(site):
    """An attribute comes with a default and goes again; the requests in use follow where they fit."""
    text = scale("(N + extra)").replace("Tensor x)", "Tensor x, *, int extra=1)")
    text = text.replace("int N)", "int N, int extra)")
    site.save("scale.cu", text)
    result = site.await_value(9)
    assert result.version == 2
    assert site.run(attrs={"extra": 5}).value == 13
    assert "extra=1" in site.call("op_info", "scale")["schema"]
    site.save("scale.cu", scale(4))
    assert site.await_value(4).version == 3
    error = site.fail("forward", "scale", [site.one()], {"extra": 5}, [99], {})
    assert error.code == "invalid_argument" and "extra" in str(error)


def test_the_python_client_follows(site):
    with site.daemon.connect() as client:
        x = client.tensor([1.0] * 8, dtype="float32")
        assert client.ops.scale(x).numpy()[0] == 2
        text = scale("more").replace("Tensor x)", "Tensor x, *, float more)")
        text = text.replace("x=[8]", "x=[8] more=1")
        put(site.path("scale.cu"), text.replace("int N)", "int N, double more)"))
        site.await_event("reloaded", "scale")
        assert client.ops.scale(x, more=6.0).numpy()[0] == 6
        site.save("scale.cu", broken())
        site.await_event("failed", "scale")
        with pytest.warns(match="no_such_name"):
            assert client.ops.scale(x, more=7.0).numpy()[0] == 7
        assert [v["state"] for v in client.ops.scale.versions] == ["failed", "serving", "retired"]
