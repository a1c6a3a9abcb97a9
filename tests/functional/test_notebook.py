"""examples/notebook.ipynb, executed as Jupyter does it: what it says is true, and is what it shows.

    PYTHONPATH=client/python:tests python tests/functional/test_notebook.py

executes it and writes it with what came out.
"""

import json
import os
import re
import tempfile
from types import SimpleNamespace

import pytest
from conftest import PATIENCE, ROOT, Daemon

pytestmark = pytest.mark.unsanitized("of documents and scripts")

FILE = ROOT / "examples" / "notebook.ipynb"
COMPLETE = """
from IPython.core.completer import provisionalcompleter
with provisionalcompleter():
    for text in ("client.ops.wa", 'client.ops["wa'):
        print([found.text for found in get_ipython().Completer.completions(text, len(text))])
"""


def execute(socket):
    """The notebook with its outputs."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(FILE, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        env = {
            **os.environ,
            "OPD_SOCKET": socket,
            "IPYTHONDIR": folder,
            "PYTHONPATH": str(ROOT / "client" / "python"),
            "MPLCONFIGDIR": folder,
        }
        runner = NotebookClient(notebook, timeout=PATIENCE, kernel_name="python3")
        runner.create_kernel_manager()
        with runner.setup_kernel(env=env, cwd=folder):
            for index, cell in enumerate(notebook.cells):
                runner.execute_cell(cell, index)
            asked = nbformat.v4.new_code_cell(COMPLETE)
            notebook.cells.append(asked)  # where the runner keeps its output
            runner.execute_cell(asked, len(notebook.cells) - 1)
            notebook.cells.pop()
    return notebook, show(asked)


def show(cell):
    """What came out of a cell, as text without colours."""
    parts = []
    for output in cell.outputs:
        data = output.get("data", {})
        parts += [output.get("text", ""), data.get("text/plain", ""), data.get("text/html", "")]
        parts += output.get("traceback", [])
    return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(parts))


def test_the_notebook(daemon):
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook, completions = execute(daemon.socket)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    served, called, target, broken, header, mended, timed = cells[1:]
    assert "serving wave version 1: wave(Tensor x, *, float by=2.0) -> Tensor y" in show(served)
    assert "no registers or spills to tell of on the CPU" in show(served) or "registers at most" in show(served)
    assert "grad" not in show(called) and "0.9092" in show(called)
    assert re.search(r"\d+ registers at most, 0 bytes spilled", show(target)) and "<td>sm_90</td>" in show(target)
    lines = show(broken).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("CompileError: cell, line 15: error:"))
    assert lines[at + 1] == "   15 |         y[i] = scalar_t(sine(by * acc_t(x[i])));"
    assert lines[at + 2] == "      |                         ^"
    assert "Traceback" not in show(broken)
    assert "InvalidArgument: cell, line 3: unknown directive 'dtype'; did you mean 'dtypes'?" in show(header)
    assert "    3 | //! dtype   float32\n      |     ^" in show(header)
    assert re.search(r"serving wave version [23]:", show(mended))
    assert "which copies" in show(timed) and "x [1048576]" in show(timed)
    assert any("image/png" in output.get("data", {}) for output in timed.outputs)
    assert completions.split() == ["['wave']", "['wave']"]


def test_a_target_without_its_compiler(start_daemon, monkeypatch):
    """The cell serves all the same, and says what is missing."""
    pytest.importorskip("IPython")
    from opd._notebook import Magics

    monkeypatch.setenv("OPD_NVRTC", "/nonexistent/libnvrtc.so")
    shown = []
    with start_daemon(device="cpu").connect() as client:
        publisher = SimpleNamespace(publish=shown.append)
        shell = SimpleNamespace(
            register_magic_function=lambda *_: None, display_pub=publisher, user_ns={"client": client}
        )
        Magics(shell).serve(
            "--target sm_90",
            "//! op lone(Tensor x) -> Tensor y\n//! dtypes float32\n//! formula y = 2 * x\n//! example x=[3]\n",
        )
        assert client.ops.lone(client.tensor([1.0], dtype="float32")).numpy().tolist() == [2]
    (page,) = shown
    assert "serving lone version 1" in page["text/plain"] and "/nonexistent" in page["text/plain"]


def test_the_notebook_as_it_is_kept():
    text = FILE.read_text()
    assert len(text) < 100_000 and not re.search(r"/(home|root|tmp|work|Users)/", text)
    notebook = json.loads(text)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] for cell in code[1:])


def write():
    daemon = Daemon()
    try:
        notebook, _ = execute(daemon.socket)
    finally:
        daemon.stop()
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"], "language_info": {"name": "python"}}
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    FILE.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    write()
