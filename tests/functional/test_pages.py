"""README.md and docs/: their programs, files, commands and paths, as they stand there. The tutorial has a
test of its own, and so has the manual in kernels_src/."""

import asyncio
import contextlib
import io
import re
import shutil
import subprocess

import numpy as np
import opd
import pytest

from conftest import DEVICE, PATIENCE, PROGRAM, ROOT
from test_opctl import run as opctl

pytestmark = pytest.mark.unsanitized("of documents and scripts")

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXT = {page.name: page.read_text() for page in PAGES}
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
MINE = """\
//! op      my_operator(Tensor x, Tensor weight, *, int stride=1) -> Tensor y
//! dtypes  float32
//! let     by = stride
//! formula y = x * weight * by
//! example x=[3] weight=[3] stride=2
"""
CORRELATION = """\
namespace corr {
__global__ void correlation_cuda_forward_kernel(const scalar_t *rInput1, const scalar_t *rInput2, scalar_t *output) {}
__global__ void correlation_cuda_backward_kernel_input1(
    const scalar_t *gradOutput, const scalar_t *input2, scalar_t *gradInput1, int64_t batch) {}
__global__ void correlation_cuda_backward_kernel_input2(
    const scalar_t *gradOutput, const scalar_t *input1, scalar_t *gradInput2, int64_t batch) {}
}
"""  # in place of the published file, which the page leaves as it is


def blocks(page, language):
    return [text for kind, text in BLOCK.findall(TEXT[page]) if kind == language]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A folder with the files that the pages speak of."""
    folder = tmp_path_factory.mktemp("pages") / "my_folder"
    folder.mkdir()
    shutil.copy(ROOT / "examples" / "softplus.cu", folder)
    (folder / "my_operator.cu").write_text(MINE)
    header = next(text for text in blocks("from-pytorch-extension.md", "") if "correlation(" in text)
    (folder / "correlation.cu").write_text(header + CORRELATION)
    return folder


@pytest.fixture
def here(served, start_daemon, monkeypatch):
    daemon = start_daemon("--kernels", served)
    monkeypatch.chdir(served.parent)
    monkeypatch.setenv("OPD_SOCKET", str(daemon.socket))
    return daemon


def execute(page, names):
    """Its programs, one after the other; what they print."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        for text in blocks(page, "python"):
            exec(compile(text, page, "exec"), names)
    return out.getvalue()


def test_readme(here):
    pytest.importorskip("torch")
    import opd.torch

    opd.torch.use(here.socket)
    names = {"array": np.arange(8, dtype=np.float32)}
    printed = execute("README.md", names)
    assert names["y"].requires_grad is False and names["layer"].weight.shape == (64, 1, 3, 3)
    expected = np.log1p(np.exp(2 * np.linspace(-4, 4, 9))) / 2
    assert np.allclose(np.array(re.search(r"\[(.*?)\]", printed, re.S)[1].split(), float), expected, atol=1e-4)
    assert "(4, 2)" in printed and "gelu(" in printed
    opd.torch.use(None)
    names["client"].close()


def test_debugging(here, served, start_daemon):
    if DEVICE != "cpu":  # a call that faults on a GPU is tried on the CPU, too: the daemon serves both
        here = start_daemon("--kernels", served, device=f"{DEVICE},cpu")
    with here.connect() as client:
        names = {"client": client, "array": np.ones(3)}
        execute("debugging.md", names)
        assert names["x"].device == "cpu"


def test_python(here, monkeypatch):
    """The program that follows events ends at the first one."""
    told = []

    class Enough(Exception):
        pass

    def print_event(*words):
        told.append(words)
        if isinstance(words[0], str):
            raise Enough

    run = asyncio.run

    def run_for_a_while(main):
        with pytest.raises(Enough):
            run(asyncio.wait_for(main, PATIENCE))

    monkeypatch.setattr(asyncio, "run", run_for_a_while)
    with opd.connect() as client:
        names = {"client": client, "print": print_event}
        execute("python.md", names)
        assert np.allclose(names["y"].numpy(), np.log1p(np.exp(2)) / 2)
        assert told[0][1] == (1, 2) and len(told) > 1
        names["client"].close()


def test_pytorch(here, monkeypatch):
    torch = pytest.importorskip("torch")
    import opd.torch

    def use(socket):
        assert socket == "/path/to/opd.sock"
        used(here.socket)

    used = opd.torch.use
    used(here.socket)
    monkeypatch.setattr(opd.torch, "use", use)
    params = [torch.ones(3, requires_grad=True)]
    params[0].sum().backward()
    x = torch.randn(4)
    traced = torch.jit.trace(lambda x: opd.torch.ops.gelu(x, approximate="tanh"), x)
    torch.jit.save(traced, "model.pt")
    names = {"torch": torch, "x": x, "params": params}
    execute("pytorch.md", names)
    assert torch.allclose(names["model"](x), torch.nn.functional.gelu(x, approximate="tanh"), atol=1e-6)
    assert torch.allclose(params[0], torch.full((3,), 0.9))
    used(None)


def test_from_an_extension(here):
    torch = pytest.importorskip("torch")
    import opd.torch

    opd.torch.use(here.socket)

    class SpatialCorrelationSamplerFunction:
        @staticmethod
        def apply(*args):
            return None

    n, state, inputs = 2, 4, 3
    names = {
        "x": torch.randn(n, 2, 4, 4), "a": torch.randn(n, 3, 12, 12), "b": torch.randn(n, 3, 12, 12),
        "bias": torch.randn(3), "h0": torch.randn(n, state), "c0": torch.randn(n, state),
        "old_h": torch.randn(n, state), "old_cell": torch.randn(n, state), "inputs": torch.randn(5, n, inputs),
        "SpatialCorrelationSamplerFunction": SpatialCorrelationSamplerFunction,
    }  # fmt: skip
    for text in blocks("from-pytorch-extension.md", "python"):
        if "my_operator" in text:
            names["weight"] = names["x"]
        if "depthwise" in text:
            names |= {"input": torch.randn(n, 3, 8, 8), "weight": torch.randn(3, 1, 3, 3)}
        if "lltm" in text:
            names |= {"input": torch.randn(n, inputs), "weights": torch.randn(3 * state, state + inputs),
                      "bias": torch.randn(3 * state)}  # fmt: skip
        if "pcl_loss" in text:
            names |= clusters(torch)
        exec(compile(text, "from-pytorch-extension.md", "exec"), names)
        if "correlation" in text:
            assert names["y"].shape == (n, 9, 9, 12, 12)
        if "my_operator" in text:
            assert torch.allclose(names["y"], 2 * names["x"] ** 2)
    assert names["hs"].shape == (5, n, state) and names["loss"].isfinite()
    opd.torch.use(None)


def clusters(torch):
    """Of pcl_loss: four proposals, two clusters, three classes."""
    return {
        "pcl_probs": torch.full((4, 3), 1 / 3), "labels": torch.tensor([1, 0, 2, 1]),
        "cls_loss_weights": torch.ones(4), "gt_assignment": torch.tensor([0, -1, 1, 0]),
        "pc_labels": torch.tensor([1, 2]), "pc_probs": torch.tensor([0.5, 0.5]), "pc_count": torch.tensor([2.0, 1.0]),
        "img_cls_loss_weights": torch.ones(2), "im_labels": torch.ones(3),
    }  # fmt: skip


def test_files_that_are_quoted_whole():
    assert blocks("README.md", "cuda") == [(ROOT / "examples" / "softplus.cu").read_text()]
    assert (ROOT / "kernels_src" / "elu.cu").read_text() in blocks("from-pytorch-extension.md", "")


def test_commands():
    """Each command of opctl, option and target of make is one that there is."""
    listed = opctl("--help").stdout
    commands = re.findall(r"^  (\w+)", listed.split("Commands:\n")[1].split("\n\n")[0], re.M)
    helps = {command: opctl(command, "--help").stdout for command in commands}
    helps[""] = subprocess.run([PROGRAM, "--help"], stdout=subprocess.PIPE, text=True, timeout=PATIENCE).stdout
    targets = re.findall(r"^([a-z- ]+):", (ROOT / "Makefile").read_text(), re.M)
    targets = " ".join(targets).split()
    checked = 0
    for page, text in TEXT.items():
        called = r"(?:`|^    (?:\$ )?)(?:build/)?(?:opctl ([a-z]+)|opd(?= -))([^`#\n|&>]*)"
        for command, rest in re.findall(called, text, re.M):
            assert command in helps, (page, command)
            for option in re.findall(r"(?<!\S)--[a-z-]+", rest):
                assert option in helps[command], (page, command, option)
                checked += 1
        for target in re.findall(r"(?:`|^    )make ([a-z-]+)", text, re.M):
            assert target in targets, (page, target)
            checked += 1
    assert checked > 30, checked


def test_paths():
    """Each file of the repository that a page names or links to."""
    checked = 0
    for page in PAGES:
        text = BLOCK.sub("", page.read_text())
        paths = [path for path in re.findall(r"`((?:[\w.-]+/)+[\w.-]*)`", text) if (ROOT / path.split("/")[0]).is_dir()]
        paths = [ROOT / path for path in paths if not path.startswith(("build/", "dist/"))]
        paths += [page.parent / link for link in re.findall(r"\]\(([^)#:]+)\)", re.sub("`.*?`", "", text))]
        assert [path for path in paths if not path.exists()] == [], page.name
        checked += len(paths)
    assert checked > 50, checked


def test_what_is_promised_has_its_test():
    """Each that docs/reliability.md names is there, and each row of its tables names one."""
    text = TEXT["reliability.md"]
    files = {path.relative_to(ROOT / "tests").as_posix(): path.read_text() for path in (ROOT / "tests").rglob("*.py")}
    known = set(re.findall(r"^ *(?:async )?def (test_\w+)", "\n".join(files.values()), re.M))
    named = set(re.findall(r"`(test_\w+)(?:\[\w+\])?`", text))
    assert named and not named - known - {name.rsplit("/", 1)[-1][:-3] for name in files}
    assert not set(re.findall(r"`((?:functional|faults|reload|torch|fuzz)/\w+\.py)`", text)) - set(files)
    promises = [line for line in text.splitlines() if line.startswith("| ") and "shown by" not in line]
    promises = promises[: [line.startswith("| `make endurance`") for line in promises].index(True)]
    assert len(promises) > 20 and all("test_" in line or ".py`" in line for line in promises)
