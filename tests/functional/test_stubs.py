"""Operators as types: those in the package are the daemon's, and mypy tells what is misspelt."""

import os
import re
import subprocess
import sys

import pytest
from conftest import ROOT

from opd.stubs import write

pytestmark = pytest.mark.unsanitized("of the client in Python")

PACKAGE = ROOT / "client" / "python" / "opd"

PROGRAM = """
from typing import TYPE_CHECKING, Optional, cast

import numpy as np
import opd

if TYPE_CHECKING:
    from ops import Client


def gelu(client: opd.Client, x: opd.Tensor) -> opd.Tensor:
    return client.ops.gelu(x, approximate="tanh")


def hidden(client: opd.Client, x: opd.Tensor) -> tuple[opd.Tensor, Optional[opd.Tensor]]:
    y, context = client.ops.layer_norm.forward(x, np.ones(3), eps=1e-3, deadline=2.0)
    gradient, *_ = context.backward(y)
    h, c = client.ops.lltm(x, x, x, x, x)
    return h + c * 2, gradient


def parts(x: opd.Tensor) -> opd.Tensor:
    return x[1:3].reshape(-1).elu(alpha=0.5) - 1 / x.T


def own(client: opd.Client, x: opd.Tensor) -> opd.Tensor:
    return cast("Client", client).ops.softplus(x, beta=2.0)


def names(client: opd.Client) -> list[str]:
    return [name for name in client.ops if client.ops[name].schema and client.ops.gelu.version]


client = cast("Client", opd.connect())
client.ops.gellu(1.0)  # no such operator
client.ops.gelu(1.0, aproximate="tanh")  # no such attribute
client.ops.gelu(1.0, approximate="tan")  # no such word
client.ops.softplus(1.0, beta="2")  # not its type
client.ops.softplus.forward()  # too few
client.tensor([1.0]).softplus(beta=2.0)  # as a method, operators of one's own are unchecked
opd.connect().ops.softplus(1.0)  # not in the package
opd.connect().ops.upsample_bilinear2d(1.0, size=2.5)  # not its type
x: float = client.ops.adam_step(1, 1, 1, 1, step=1)  # returns None
"""


def run(*command, **environment):
    return subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("torch", [False, True])
def test_the_package_has_the_types_of_the_operators_that_come_with_it(client, torch):
    specs = [client._catalog.specs[name] for name in client.ops]
    file = PACKAGE / "torch" / "_shipped.pyi" if torch else PACKAGE / "_shipped.pyi"
    assert write(specs, torch=torch, shipped=True) == file.read_text(), "make stubs"


def test_mypy_tells_what_is_misspelt(start_daemon, tmp_path):
    pytest.importorskip("mypy")
    daemon = start_daemon("--kernels", str(ROOT / "examples"))
    stub = run("-m", "opd.stubs", "--socket", daemon.socket)
    assert stub.returncode == 0, stub.stderr
    (tmp_path / "ops.pyi").write_text(stub.stdout)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    checked = run(
        # With the options of make lint, whose cache has NumPy.
        *("-m", "mypy", "--strict", "--config-file", PACKAGE.parent / "pyproject.toml"),
        *("--cache-dir", "build/mypy", "--no-error-summary", program),
        MYPYPATH=f"{PACKAGE.parent}:{tmp_path}",
    )
    # Its cache may name the same program where another run had it.
    errors = re.findall(r"^(?:.*/program.py:(\d+): error|.*: error.*)", checked.stdout, re.M)
    wrong = re.compile(r"  # (no |not |too few|returns)")
    expected = {str(n) for n, line in enumerate(PROGRAM.splitlines(), 1) if wrong.search(line)}
    assert set(errors) == expected, checked.stdout
    assert 'maybe "gelu"?' in checked.stdout and 'did you mean "approximate"?' in checked.stdout


def test_without_a_daemon_it_says_so(tmp_path):
    told = run("-m", "opd.stubs", "--socket", tmp_path / "none.sock", OPD_BIN="/nonexistent")
    assert (told.returncode, told.stdout) == (1, "")
    assert told.stderr.startswith("opd.stubs: ") and "Traceback" not in told.stderr
