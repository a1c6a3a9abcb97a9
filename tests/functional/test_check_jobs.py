"""scripts/check_gpu.py: which jobs come first, and what a run that is ended tells, with tests of its own."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import PATIENCE, ROOT, eventually

pytestmark = pytest.mark.unsanitized("of documents and scripts")

NOTES = """\
import os
from pathlib import Path

import pytest

def note(name):
    with open(Path(__file__).with_name("notes"), "a") as file:
        print(os.environ["OPD_TEST_DEVICE"], name, os.environ.get("OPD_TEST_SPARE"), file=file)
"""
BAD = """\
import time

def test_which_fails():
    assert 1 + 1 == 3

def test_which_hangs():
    time.sleep(600)
"""


@pytest.fixture
def start(tmp_path):
    """start(devices, jobs, **tests): check_gpu.py in a tree that has these files of tests."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "check_gpu.py", tmp_path / "scripts")
    folder = tmp_path / "tests" / "functional"
    folder.mkdir(parents=True)
    for name in ("test_client_prepared.py", "test_client_replays.py"):
        (folder / name).touch()
    os.symlink(ROOT / "tests" / "conftest.py", tmp_path / "tests" / "conftest.py")
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")

    def start(devices, jobs, **tests):
        for name, text in tests.items():
            (folder / f"test_{name}.py").write_text(text)
        command = [sys.executable, tmp_path / "scripts" / "check_gpu.py", "functional/test_", "own/", "cpu/functional"]
        env = {**os.environ, "DEVICES": devices, "JOBS": jobs, "PATH": "/usr/bin:/bin"}
        env.pop("OPD_TEST_SPARE", None)
        return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)

    return start


def test_the_gpus_come_first(start, tmp_path):
    """And a test that wants one for itself after those that share it."""
    one = NOTES + "def test_one(): note('one')\n@pytest.mark.own_card\ndef test_own(): note('own')\n"
    run = start("cuda:0 cpu", "1", one=one, spare=NOTES + "def test_two(): note('two')\n")
    out, _ = run.communicate(timeout=PATIENCE)
    assert run.returncode == 0 and out.splitlines()[-1] == "9 passed, 0 failed", out
    notes = Path(tmp_path / "tests" / "functional" / "notes").read_text().splitlines()
    assert sorted(notes[:2]) == ["cuda:0 one off", "cuda:0 two None"]
    assert sorted(notes[2:]) == ["cpu one None", "cpu own None", "cpu two None", "cuda:0 own off"]


def test_one_that_is_ended_tells_what_has_failed(start, tmp_path):
    run = start("cpu", "2", bad=BAD)
    log = tmp_path / "build" / "check-gpu" / "cpu" / "functional" / "test_bad.log"
    assert eventually(lambda: log.exists() and "assert (1 + 1) == 3" in log.read_text())
    run.send_signal(signal.SIGTERM)
    out, _ = run.communicate(timeout=PATIENCE)
    assert run.returncode == 130
    told = out[out.index("under way for") :]
    assert "cpu/functional/test_bad" in told and "test_which_fails" in told and "assert (1 + 1) == 3" in told
