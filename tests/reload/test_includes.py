"""Headers count: an edit of a .cuh makes new versions of all its users together, or of none."""

import shutil
import time
from pathlib import Path

import pytest

from conftest import PROGRAM, ROOT
from edits import SETTLE, Site, broken, make_site, put, scale, site, until  # noqa: F401


def user(name, include='#include "factor.cuh"\n', factor="FACTOR"):
    return scale(factor, name, before="\n" + include)


def define(factor, more=""):
    return f"{more}#define FACTOR {factor}\n"


@pytest.fixture
def three(make_site):
    """Two users of factor.cuh, and one that is none; all have run."""
    site = make_site({
        "factor.cuh": define(2), "one.cu": user("one"), "two.cu": user("two"),
        "other.cu": scale(7, "other"),
    })  # fmt: skip
    assert [site.run(op).value for op in ("one", "two", "other")] == [2, 2, 7]
    return site


def test_all_users_follow(three):
    three.save("factor.cuh", define(3))
    three.await_value(3, "one")
    assert three.run("two").value == 3
    assert [three.run(op).version for op in ("one", "two", "other")] == [2, 2, 1]
    told = sorted((e["kind"], e["op"], e["version"]) for e in three.events())
    assert told == [("reloaded", "one", 2), ("reloaded", "two", 2)]
    three.path("factor.cuh").write_text(define(4))
    three.await_value(4, "two")
    assert three.run("one").value == 4


def test_all_or_none(three):
    """One user does not compile with it: the other does not change either, and says why."""
    three.save("two.cu", user("two") + "static_assert(FACTOR < 5, \"too much\");\n")
    three.await_event("reloaded", "two")
    mark = three.mark()
    three.save("factor.cuh", define(6))
    failed = [three.await_event("failed", op, mark) for op in ("one", "two")]
    assert "too much" in failed[1]["message"]
    assert "two" in failed[0]["message"] and "too much" in failed[0]["message"]
    for op in ("one", "two"):
        result = three.run(op)
        assert result.value == 2 and len(result.warnings) == 1
    three.save("factor.cuh", define(4))
    three.await_value(4, "one")
    assert three.run("two").value == 4
    with three.caller() as another:
        assert another.run("one").warnings == another.run("two").warnings == []


def test_a_user_edited_beside_its_header(three):
    """A header that the old text of a user does not fit, and the new text of the user."""
    three.save("factor.cuh", "#define AMOUNT 5\n")
    three.save("one.cu", user("one", factor="AMOUNT"))
    three.save("two.cu", user("two", factor="AMOUNT"))
    three.await_value(5, "one")
    three.await_value(5, "two")
    assert [three.versions(op)[0][1] for op in ("one", "two")] == ["serving", "serving"]


def test_a_header_that_is_broken_and_mended(three):
    three.save("factor.cuh", define("no_such_name"))
    event = three.await_event("failed", "one")
    assert "no_such_name" in event["message"]
    mark = three.mark()
    three.save("factor.cuh", define(2))  # back: nothing is new
    for op in ("one", "two"):
        assert three.await_event("reloaded", op, mark)["version"] == 1


def test_where_the_error_is(three):
    """In the header's own file and line."""
    three.save("factor.cuh", "\n\nstatic __device__ int wrong = missing_thing;\n" + define(3))
    event = three.await_event("failed", "one")
    assert "factor.cuh:3" in event["message"]
    three.save("factor.cuh", "\n\n" + define(3))
    three.await_value(3, "one")
    mark = three.mark()
    three.save("one.cu", user("one", factor="wrong_thing"))
    event = three.await_event("failed", "one", mark)
    assert "one.cu:15:" in event["message"]


def test_through_another_header_and_a_folder(make_site):
    """Found beside the header that includes it, else in the operator's folder."""
    site = make_site({
        "kernels/deep/a.cuh": '#pragma once\n#include "b.cuh"\n#include "top.cuh"\n',
        "kernels/deep/b.cuh": "#pragma once\n#define B 2\n",
        "top.cuh": '#pragma once\n#include "deep/b.cuh"\n#define TOP 10\n',
        "one.cu": user("one", '#include "deep/a.cuh"\n#  include   "top.cuh" // twice\n', "(B + TOP)"),
    })  # fmt: skip
    assert site.run("one").value == 12
    site.save("kernels/deep/b.cuh", "#pragma once\n#define B 3\n")
    assert site.await_value(13, "one").version == 2
    site.path("kernels/deep/b.cuh").write_text("#pragma once\n#define B 4\n")
    assert site.await_value(14, "one").version == 3
    site.save("top.cuh", "#pragma once\n#define TOP 20\n")
    assert site.await_value(24, "one").version == 4


def test_pragma_once_and_without(make_site):
    twice = '#include "n.cuh"\n#include "n.cuh"\n'
    site = make_site({
        "n.cuh": "#pragma once\nstatic const int count = 2;\n", "one.cu": user("one", twice, "count"),
    })  # fmt: skip
    assert site.run("one").value == 2
    site.save("n.cuh", "static const int count = 3;\n")
    assert "count" in site.await_event("failed", "one")["message"]
    site.save("n.cuh", "#ifndef N_CUH\n#define N_CUH\nstatic const int count = 4;\n#endif\n")
    site.await_value(4, "one")


def test_a_missing_header_comes(make_site):
    site = make_site({"one.cu": scale(2, "one")})
    assert site.run("one").value == 2
    site.save("one.cu", user("one"))
    assert "factor.cuh" in site.await_event("failed", "one")["log"]
    site.save("factor.cuh", define(3))
    site.await_value(3, "one")


@pytest.mark.parametrize("folder", ["there", "not there"])
def test_a_missing_header_comes_in_a_folder(make_site, folder):
    site = make_site({"one.cu": scale(2, "one")})
    if folder == "there":
        (site.folder / "deep").mkdir()
    assert site.run("one").value == 2
    site.save("one.cu", user("one", '#include "deep/factor.cuh"\n'))
    site.await_event("failed", "one")
    site.save("kernels/deep/factor.cuh", define(3))
    site.await_value(3, "one")
    site.save("kernels/deep/factor.cuh", define(4))
    site.await_value(4, "one")


def test_a_header_that_goes_and_comes(three):
    three.path("factor.cuh").unlink()
    three.await_event("failed", "one")
    assert three.run("one").value == 2
    three.save("factor.cuh", define(3))
    three.await_value(3, "one")
    three.await_value(3, "two")


def test_a_header_saved_by_vims_dance(three):
    path = three.path("factor.cuh")
    path.rename(path.with_name("factor.cuh~"))
    path.write_text(define(3))
    path.with_name("factor.cuh~").unlink()
    three.await_value(3, "one")
    three.await_value(3, "two")
    assert "failed" not in [e["kind"] for e in three.events()]


def test_headers_that_include_each_other(make_site):
    guarded = "#pragma once\n"
    site = make_site({
        "a.cuh": guarded + '#include "b.cuh"\n#define A 1\n',
        "b.cuh": guarded + '#include "a.cuh"\n#define B 1\n',
        "one.cu": user("one", '#include "a.cuh"\n', "(A + B)"),
    })  # fmt: skip
    assert site.run("one").value == 2
    site.save("b.cuh", '#include "b.cuh"\n')
    event = site.await_event("failed", "one")
    assert "nested" in event["message"] and "b.cuh" in event["message"]
    assert site.run("one").value == 2
    site.save("b.cuh", "#define B 2\n")
    site.await_value(3, "one")


def test_a_file_that_includes_itself(site):
    site.save("scale.cu", scale(3) + '#include "scale.cu"\n')
    assert "nested" in site.await_event("failed", "scale")["message"]
    assert site.run().value == 2


def test_what_only_looks_like_an_include(make_site):
    """In comments and strings, or by angle brackets: their files do not count."""
    site = make_site({
        "factor.cuh": define(9),
        "one.cu": scale(2, "one", before='\n// #include "factor.cuh"\n/*\n#include "factor.cuh"\n*/\n'),
    })  # fmt: skip
    assert site.run("one").value == 2
    site.save("factor.cuh", define(8))
    time.sleep(SETTLE)
    assert site.events() == []


def test_a_linked_header(make_site):
    site = make_site({"away/real.cuh": define(2)})
    site.path("factor.cuh").symlink_to(site.path("away/real.cuh"))
    site.save("one.cu", user("one"))
    until(lambda: site.has("one"), bool)
    site.await_value(2, "one")
    site.save("away/real.cuh", define(3))
    site.await_value(3, "one")


def test_old_versions_keep_their_headers(three):
    """A version is one text: no edit that comes later reaches into it."""
    three.save("factor.cuh", define(3))
    three.await_value(3, "one")
    three.path("factor.cuh").unlink()
    assert three.run("one", version=1, n=9).value == 2
    assert three.call("rollback", "two") == {"version": 1}
    assert three.run("two").value == 2


SHIPPED = ("relu", "softmax", "sgd_steps")  # formulas, kernels, lists; each edit of opd.cuh compiles all that there is


@pytest.fixture
def shipped(start_daemon, tmp_path):
    """A daemon with its own copy of what is shipped beside it, but of some operators: opd.cuh may be edited."""
    (tmp_path / "build").mkdir()
    program = tmp_path / "build" / "opd"
    shutil.copy2(PROGRAM, program)
    others = [path.name for path in (ROOT / "kernels_src").glob("*.cu") if path.stem not in SHIPPED]
    shutil.copytree(ROOT / "kernels_src", tmp_path / "kernels_src", ignore=shutil.ignore_patterns(*others))

    def start(*args):
        return start_daemon(*args, program=str(program))

    site = Site(start, tmp_path, {"scale.cu": scale(2)}, ["mine"], [])
    yield site
    site.close()


def test_the_common_header(shipped):
    """All operators of all folders are its users."""
    common = shipped.root / "kernels_src" / "opd.cuh"
    text = common.read_text()
    assert shipped.run().value == 2
    count = len(shipped.call("op_list"))
    assert count == len(SHIPPED) + 1
    put(common, text + "\n#define FACTOR 3\n")
    told = until(lambda: shipped.events(), lambda events: len(events) >= count)
    assert {(e["kind"], e["version"]) for e in told} == {("reloaded", 2)}
    shipped.save("scale.cu", scale("FACTOR"))
    shipped.await_value(3)
    mark = shipped.mark()
    put(common, text)  # without it one operator does not compile
    told = until(lambda: shipped.events(mark), lambda events: len(events) >= count)
    assert {e["kind"] for e in told} == {"failed"}
    assert shipped.run().value == 3
    mark = shipped.mark()
    put(common, text + "\n#define FACTOR 4\n")
    shipped.await_value(4)
    assert Path(shipped.call("status")["kernels"][0]) == common.parent
