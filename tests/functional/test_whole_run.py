"""scripts/test.sh: what it says of steps that fail, with a `make` that does as it is told."""

import os
import subprocess
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.unsanitized("of documents and scripts")

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "test.sh"
MAKE = """#!/bin/sh
for target; do :; done # the last one
echo "$target" >>{folder}/made
[ "$target" != "{target}" ] || [ "$(grep -cx "$target" {folder}/made)" -gt {times} ] || {{
    seq 1000 1100
    echo "what is wrong" >&2
    exit 3
}}
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """run(target, times, again): build, unit and compile-all, of which one target fails so many times. Status, lines
    and the targets that were made."""
    monkeypatch.delenv("MAKEFLAGS", raising=False)
    made = tmp_path / "made"

    def run(target, times, again):
        fake = tmp_path / "make"
        fake.write_text(MAKE.format(folder=tmp_path, target=target, times=times))
        fake.chmod(0o755)
        made.unlink(missing_ok=True)
        env = {**os.environ, "MAKE": str(fake), "OPD_AGAIN": again, "TMPDIR": str(tmp_path)}
        done = subprocess.run([SCRIPT, "cpu", "unit", "compile-all"], env=env, stdout=subprocess.PIPE, text=True)
        assert not list(tmp_path.glob("tmp.*")), "temporary files are left"
        return done.returncode, done.stdout.splitlines(), made.read_text().split()

    return run


def test_a_step_that_fails_is_told_again_at_the_end(run):
    status, lines, made = run("unit", 1, again="")
    assert (status, made) == (1, ["programs", "unit", "compile-all"])
    assert lines[-1] == "2 passed, 1 failed"
    assert lines[-3] == "failed: unit"
    begin = lines.index("==== unit: its last lines")
    assert lines[begin + 1 : begin + 61] == [*map(str, range(1042, 1101)), "what is wrong"]
    assert lines.count("what is wrong") == 2
    assert "unsteady" not in "\n".join(lines)


def test_a_step_that_fails_once_is_unsteady(run):
    status, lines, made = run("unit", 1, again="1")
    assert (status, made) == (0, ["programs", "unit", "unit", "compile-all"])
    assert lines[-1] == "3 passed, 0 failed"
    assert lines[-3] == "unsteady (failed once, passed when run again): unit"
    begin = lines.index("==== unit: its last lines")
    assert lines[begin + 60] == "what is wrong" and "==== unit.again: its last lines" not in lines


def test_a_step_that_fails_again_has_failed(run):
    status, lines, made = run("unit", 2, again="1")
    assert (status, made) == (1, ["programs", "unit", "unit", "compile-all"])
    assert (lines[-3], lines[-1]) == ("failed: unit", "2 passed, 1 failed")
    assert lines.count("what is wrong") == 4
    assert "==== unit.again: its last lines" in lines


def test_a_build_is_tried_once(run):
    status, lines, made = run("programs", 1, again="1")
    assert (status, made) == (1, ["programs"])
    assert (lines[-3], lines[-1]) == ("failed: build", "0 passed, 1 failed")


def test_what_a_step_leaves_behind_holds_nothing_up(run, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "MAKE", MAKE.replace("exit 3", "sleep 60 &\n    exit 3"))
        began = time.monotonic()
        status, lines, _ = run("unit", 1, again="")
    assert (status, lines[-1]) == (1, "2 passed, 1 failed") and time.monotonic() - began < 50
