"""scripts/rooms.py, which `make lint` runs: an include that points upwards is found, whatever writes it."""

import shutil
import subprocess
import sys

import pytest
from conftest import ROOT

pytestmark = pytest.mark.unsanitized("of documents and scripts")


def run_rooms(folder):
    return subprocess.run([sys.executable, folder / "scripts" / "rooms.py"], capture_output=True, text=True)


@pytest.fixture
def tree(tmp_path):
    """The sources alone, without a build."""
    shutil.copytree(ROOT / "server", tmp_path / "server", ignore=lambda _, names: [n for n in names if n[-2:] == ".o"])
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "rooms.py", tmp_path / "scripts")
    return tmp_path


def test_the_tree_as_it_is(tree):
    result = run_rooms(tree)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    "file, line, message",
    [
        ("base/err.c", '#include "broker.h"', "base/ may not include broker.h"),
        ("op/plan.c", "#  include   \"request/conn.h\"", "op/ may not include request/conn.h"),
        ("memory/tensor.h", '#include "device/device.h"', "memory/ may not include device/device.h"),
        ("executor/regions.c", '#include "compiler/job.h"', "executor/ may not include compiler/job.h"),
        ("request/conn.c", '#include "conn.h"', "name it by its room"),
        ("device/device.c", '#include "../request/conn.h"', "name it by its room"),
    ],
)
def test_an_include_that_points_up(tree, file, line, message):
    path = tree / "server" / file
    path.write_text(line + "\n" + path.read_text())
    result = run_rooms(tree)
    assert result.returncode == 1
    assert f"server/{file}:1: " in result.stdout and message in result.stdout


def test_a_circle_in_libopd(tree):
    (tree / "build" / "obj" / "server").mkdir(parents=True)
    sources, objects = tree / "client" / "c", tree / "build" / "obj" / "pic" / "client" / "c"
    for folder in (sources, objects):
        folder.mkdir(parents=True)
    for this, other in (("one", "two"), ("two", "one"), ("three", "one")):
        (sources / f"{this}.c").write_text(f"void {other}(void); void {this}(void) {{ {other}(); }}")
        subprocess.run(["cc", "-c", "-o", objects / f"{this}.o", sources / f"{this}.c"], check=True)
    result = run_rooms(tree)
    assert result.returncode == 1
    assert "client/c: one two call each other in a circle" in result.stdout
