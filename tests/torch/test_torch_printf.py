"""Where it goes what a kernel prints: in the daemon, and in torch's own process."""

import sys

import pytest
import torch

import opd.torch
from opd.torch._library import DEFAULT_ISOLATED, get_library
from scale_operator import save
from torch_fixtures import DEVICE, TORCH_DEVICES, isolated  # noqa: F401

SAY = """\
//! op      say(Tensor x) -> Tensor y
//! dtypes  float32
//! shape   x [N]
//! shape   y [N]
//
//! forward
//!   kernel say
//!   grid   1
//!   block  1

__global__ void say(const float *x, float *y, int N)
{
    for (int i = 0; i < N; i++) {
        y[i] = x[i];
        printf("x[%d] is %g\\n", i, x[i]);
    }
}
"""


@pytest.fixture(params=TORCH_DEVICES)
def x(request, start_daemon, tmp_path):
    if request.param == "cpu" and DEVICE != "cpu":
        pytest.skip("the daemon has no device for tensors on the CPU")
    save(tmp_path / "say.cu", SAY)
    opd.torch.use(start_daemon("--kernels", str(tmp_path)).socket)
    yield torch.tensor([0.5, 2.0], device=request.param)
    opd.torch.use(None)


def test_in_the_daemon(x, isolated, capsys):
    isolated()
    for _ in range(3):
        opd.torch.ops.say(x)
        opd.torch.synchronize()
        assert capsys.readouterr().out == "x[0] is 0.5\nx[1] is 2\n"


@pytest.mark.skipif(DEFAULT_ISOLATED is not None, reason="OPD_ISOLATED says where calls run")
@pytest.mark.skipif(get_library() is None, reason="this torch has not the functions")
def test_in_this_process(x, capfd):
    """Once in the daemon, and from then on, of that call too, to this process's standard output."""
    text = "x[0] is 0.5\nx[1] is 2\n"
    for n in range(3):
        opd.torch.ops.say(x)
        if x.is_cuda:
            torch.cuda.synchronize()
        opd.torch.synchronize()
        sys.stdout.flush()
        assert capfd.readouterr().out == (text * 2 if n == 0 else text)
