"""Versions that are not the newest: requests and contexts that began with them, requests that name
them, rollback and pin. And what tells of them: reload, events, check, op_code."""


import numpy as np
import pytest

from edits import broken, make_site, put, scale, site, until  # noqa: F401
from operators import ROUNDS, spin
from raw import RpcError


def slow(value):
    return spin(f"sum > 2 ? 0 : {value}")


def test_a_request_in_flight(make_site):
    """It ends with the version that it began with; those sent after the edit run on the next."""
    site = make_site({"spin.cu": slow(2)})
    assert site.run("spin", attrs={"rounds": 1}).value == 2
    ids = [site.new_id() for _ in range(3)]
    x = site.one()
    flying = [site.request("forward", "spin", [x], {"rounds": ROUNDS}, [y], {}) for y in ids]
    with site.caller() as another:
        until(lambda: another.call("status")["devices"][0]["queued"], lambda queued: queued == 3)
        site.save("spin.cu", slow(3))
        event = another_event(another, "reloaded")
    assert event["version"] == 2
    assert [site.wait(f)["version"] for f in flying] == [1, 1, 1]
    for y in ids:
        assert np.frombuffer(site.call("tensor_read", y, 0), np.float32)[0] == 2
    assert site.run("spin", attrs={"rounds": 1}).value == 3


def another_event(caller, kind):
    def find():
        return [e for e in caller.call("events")["events"] if e["kind"] == kind]

    return until(find, bool)[0]


def backward(site, context):
    out = site.new_id()
    (info,) = site.call("backward", context, [site.one()], [out], {})
    assert info
    return np.frombuffer(site.call("tensor_read", out, 0), np.float32)[0]


def forward_with_context(site, **options):
    context, y = site.new_id(), site.new_id()
    site.call("forward", "scale", [site.one()], {}, [y], {"context": context, **options})
    return context


def test_backward_runs_on_the_version_of_its_forward(make_site):
    """Also where that version's backward was never compiled, and two edits later."""
    site = make_site({"scale.cu": scale(2, backward=True)})
    first = forward_with_context(site)
    never = forward_with_context(site)
    assert backward(site, first) == 2
    for factor in (3, 4):
        site.save("scale.cu", scale(factor, backward=True))
        site.await_value(factor)
    third = forward_with_context(site)
    assert [backward(site, c) for c in (first, never, third)] == [2, 2, 4]
    site.call("free", "context", [first, never])
    assert backward(site, third) == 4
    site.path("scale.cu").unlink()
    site.await_event("withdrawn")
    assert backward(site, third) == 4


def test_a_context_outlives_its_version(make_site):
    """More edits than versions are kept: whoever has a context still has its kernels."""
    site = make_site({"scale.cu": scale(2, backward=True)})
    context = forward_with_context(site)
    for factor in range(3, 22):
        site.save("scale.cu", scale(factor))
        site.await_value(factor)
    assert len(site.versions()) == 16
    assert backward(site, context) == 2


def test_a_version_by_its_number(site):
    site.save("scale.cu", scale(3))
    site.await_value(3)
    assert [site.run(version=v).value for v in (1, 2, 1)] == [2, 3, 2]
    assert site.run(version=1).version == 1
    assert site.run().version == 2
    for bad in (0, 3, -1, 1 << 40, "1", 1.5):
        error = site.fail("forward", "scale", [site.one()], {}, [99], {"version": bad})
        assert error.code in ("not_found", "invalid_argument")


def test_old_versions_are_forgotten(site):
    for factor in range(3, 23):
        site.save("scale.cu", scale(factor))
        assert site.await_value(factor)
    kept = [v for v, _ in site.versions()]
    assert kept == list(range(21, 5, -1))
    assert site.fail("forward", "scale", [site.one()], {}, [99], {"version": 1}).code == "not_found"
    assert site.run(version=6).value == 7


def test_rollback(site):
    site.save("scale.cu", scale(3))
    site.await_value(3)
    generation = site.call("status")["generation"]
    assert site.call("rollback", "scale") == {"version": 1}
    assert (site.run().value, site.run().version) == (2, 1)
    assert site.call("status")["generation"] > generation
    assert site.versions() == [(2, "retired"), (1, "serving")]
    assert site.fail("rollback", "scale").code == "not_found"
    assert site.events()[-1]["kind"] == "rolled back"
    site.save("scale.cu", scale(4))  # the next edit counts again
    assert site.await_value(4).version == 3
    assert site.fail("rollback", "nothing").code == "not_found"


def test_pin_and_unpin(site):
    site.save("scale.cu", scale(3))
    site.await_value(3)
    assert site.call("pin", "scale", 1) == {"version": 1, "pinned": True}
    assert site.run().value == 2
    mark = site.mark()
    site.save("scale.cu", scale(4))
    assert site.await_event("reloaded", "scale", mark)["version"] == 3
    assert (site.run().value, site.run(version=3).value) == (2, 4)
    pinned = {v["version"]: v["pinned"] for v in site.call("op_info", "scale")["versions"]}
    assert pinned == {1: True, 2: False, 3: False}
    assert site.call("pin", "scale", None) == {"version": 3, "pinned": False}
    assert site.run().value == 4
    assert [e["kind"] for e in site.events()] == [
        "reloaded", "pinned", "reloaded", "unpinned"
    ]  # fmt: skip
    assert site.fail("pin", "scale", 9).code == "not_found"


def test_a_pinned_version_is_not_forgotten(site):
    site.call("pin", "scale", 1)
    for factor in range(3, 21):
        mark = site.mark()
        site.save("scale.cu", scale(factor))
        site.await_event("reloaded", "scale", mark)
    assert site.run().version == 1
    assert site.call("pin", "scale", None)["version"] == 19
    assert site.run().value == 20


@pytest.mark.parametrize("how", ["pin", "rollback"])
def test_unpin_serves_what_the_file_says(site, how):
    """Also if it says what the pinned version does: that is newer than what came between."""
    site.save("scale.cu", scale(3))
    site.await_value(3)
    if how == "pin":
        site.call("pin", "scale", 1)
    else:
        site.call("rollback", "scale")
    site.save("scale.cu", scale(2))
    site.call("reload")
    site.call("pin", "scale", None)
    assert site.run().value == 2


def test_reload_waits_for_what_it_sets_off(make_site):
    site = make_site({"scale.cu": scale(2), "more.cu": scale(5, "more")})
    site.run()
    assert site.outcomes() == []
    site.save("scale.cu", scale(3))
    site.save("more.cu", broken("more"))
    site.save("third.cu", scale(7, "third"))
    assert sorted(site.outcomes()) == [
        ("more", "failed", 2), ("scale", "serving", 2), ("third", "serving", 1),
    ]  # fmt: skip
    assert (site.run().value, site.run("third").value) == (3, 7)
    for caller in (site, site.caller()):  # a failure that stands is told again, to all
        (again,) = caller.call("reload")
        assert (again["op"], again["state"]) == ("more", "failed")
    site.save("more.cu", scale(6, "more"))
    assert site.outcomes() == [("more", "serving", 3)]
    site.path("third.cu").unlink()
    assert until(site.outcomes, bool) == [("third", "withdrawn", 0)]


def test_events_with_follow(site):
    with site.caller() as watcher:
        assert watcher.call("events", 0, {"follow": True}) == {"events": [], "next": 0}
        site.save("scale.cu", scale(3))
        kind, method, (event,) = watcher.receive()
        assert (kind, method) == (2, "event")
        assert (event["kind"], event["op"], event["version"]) == ("reloaded", "scale", 2)
        assert event["file"] == str(site.path("scale.cu"))
        site.save("scale.cu", broken())
        _, _, (event,) = watcher.receive()
        assert event["kind"] == "failed" and "no_such_name" in event["message"] + event["log"]
        site.call("rollback", "scale")
        site.call("pin", "scale", 2)
        site.call("pin", "scale", None)
        told = [watcher.receive()[2][0] for _ in range(3)]
        assert [e["kind"] for e in told] == ["rolled back", "pinned", "unpinned"]
        assert [e["seq"] for e in told] == [3, 4, 5]
        assert watcher.call("events", 3)["events"] == told[1:]
        watcher.call("events", 5, {"follow": False})
        site.call("pin", "scale", 1)
        watcher.call("sync")
        with pytest.raises(TimeoutError):
            watcher.receive(0.2)
    for bad in ((-1,), (0, {"follow": 3})):
        assert site.fail("events", *bad).code == "invalid_argument"
    assert site.call("events", 1 << 60)["events"] == []


def test_many_events(make_site):
    """The last thousand are kept."""
    site = make_site({"scale.cu": scale(2)})
    for _ in range(600):
        site.call("pin", "scale", 1)
        site.call("pin", "scale", None)
    reply = site.call("events")
    assert (reply["next"], len(reply["events"])) == (1200, 1000)
    assert [e["seq"] for e in reply["events"]] == list(range(201, 1201))


def test_check(site):
    reply = site.call("check", "scale.cu", "", scale(3, backward=True, dtypes="float32 float64"))
    assert (reply["op"], reply["ok"], reply["errors"]) == ("scale", True, [])
    kernels = [(k["kernel"], k["dtype"]) for k in reply["kernels"]]
    assert sorted(set(kernels)) == [
        ("run", "float32"), ("run", "float64"),
        ("run_backward", "float32"), ("run_backward", "float64"),
    ]  # fmt: skip
    assert site.run().version == 1 and site.events() == []
    reply = site.call("check", "scale.cu", "", broken(), {"dtypes": ["float32"]})
    assert (reply["op"], reply["ok"]) == ("scale", False)
    assert "scale.cu:13:" in reply["errors"][0]["message"]
    assert "no_such_name" in reply["errors"][0]["log"]
    reply = site.call("check", "bad.cu", "", "//! shpae\n")
    assert (reply["op"], reply["ok"]) == ("", False)
    assert "bad.cu:1:" in reply["errors"][0]["message"]


def test_check_with_a_header(site):
    put(site.path("factor.cuh"), "#define FACTOR 3\n")
    text = scale("FACTOR", before='\n#include "factor.cuh"\n')
    assert site.call("check", "new.cu", str(site.folder), text)["ok"]
    assert not site.call("check", "new.cu", "", text)["ok"]
    for bad in (("a/b.cu", "", text), ("b.cu", "relative", text), ("", "", text), ("b.cu", "", 5)):
        assert site.fail("check", *bad).code == "invalid_argument"
    for options in ({"targets": ["sm_x"]}, {"dtypes": ["float64"]}, {"targets": [3]}):
        assert site.fail("check", "n.cu", "", scale(3), options).code == "invalid_argument"


def test_check_for_a_gpu(site):
    reply = site.call("check", "n.cu", "", scale(3), {"targets": ["sm_90", "sm_80"]})
    if any("is not installed" in error["message"] for error in reply["errors"]):
        pytest.skip("needs NVRTC")
    assert reply["ok"], reply
    assert [k["target"] for k in reply["kernels"]] == ["sm_90", "sm_80"]
    assert all(k["registers"] > 0 and k["spill_stores"] == 0 for k in reply["kernels"])


def test_op_code(site):
    for kind, word in (("sass", ""), ("ptx", ".entry run")):
        try:
            (listing,) = site.call("op_code", "scale", kind, {"dtype": "float32"})
        except RpcError as error:  # without NVRTC, or what disassembles
            assert error.code == "unavailable", error
            continue
        assert (listing["kernel"], listing["dtype"]) == ("run", "float32")
        assert word in listing["text"] and len(listing["text"].splitlines()) > 10
    assert site.fail("op_code", "scale", "llvm").code == "invalid_argument"
    assert site.fail("op_code", "nothing", "ptx").code == "not_found"
    assert site.fail("op_code", "scale", "ptx", {"dtype": "int8"}).code == "invalid_argument"
