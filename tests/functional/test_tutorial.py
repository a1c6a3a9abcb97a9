"""docs/tutorial.md, as a reader would follow it: its files saved, its programs and commands run."""

import contextlib
import io
import re
import subprocess
from pathlib import Path

import pytest
from conftest import PATIENCE, PROGRAM, ROOT

pytestmark = pytest.mark.unsanitized("of documents and scripts")

PAGE = ROOT / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(\w+)(?: (\S+))?( edit)?\n(.*?)^```$", re.M | re.S)


def edit(path, lines):
    """Puts lines of the page in the place of those that begin alike."""
    text = path.read_text()
    lines = lines.rstrip("\n")
    first = re.compile(r"^ *(?:y\[i\] = |return |g -= )", re.M)
    start = first.search(lines)[0].strip()
    old = [line for line in text.splitlines() if line.strip().startswith(start)]
    assert len(old) == 1, (start, old)
    path.write_text(text.replace(old[0], lines))


def run_command(line):
    command, *rest = line.split()
    return subprocess.run([Path(PROGRAM).parent / command, *rest], timeout=PATIENCE, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)


@pytest.mark.unsanitized("check --run has sanitizers of its own")
def test_the_tutorial(tmp_path, start_daemon, monkeypatch):
    pytest.importorskip("torch")
    import opd.torch

    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernels").mkdir()
    daemon = start_daemon("--kernels", tmp_path / "kernels")
    monkeypatch.setenv("OPD_SOCKET", str(daemon.socket))
    opd.torch.use(daemon.socket)
    names, printed = {}, ""
    ran = {"python": 0, "cuda": 0, "text": 0, "console": 0}
    for kind, path, is_edit, text in BLOCK.findall(PAGE.read_text()):
        ran[kind] += 1
        if kind == "cuda" and is_edit:
            edit(tmp_path / path, text)
        elif kind == "cuda":
            (tmp_path / path).write_text(text)
        elif kind == "python":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(text, str(PAGE), "exec"), names)
            printed = out.getvalue()
        elif kind == "text":
            assert printed == text
        else:
            command, *told = text.splitlines()
            result = run_command(command.removeprefix("$ "))
            assert result.returncode == (1 if told else 0), result.stdout
            for line in told:
                assert line in result.stdout
    assert ran["python"] > 8 and ran["text"] > 8 and ran["cuda"] > 6 and ran["console"] == 2
    names["client"].close()
    opd.torch.use(None)
