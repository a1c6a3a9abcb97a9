"""What the tests of upgrades share: a daemon with operators to edit, and ways to look into it."""

from pathlib import Path

import pytest

from operators import SPIN
from raw import Raw

SCALE = """
//! op      scale(Tensor x, *, float by=2.0) -> Tensor y
//! doc     Times a number, and notes its input.
//! dtypes  float32
//! shape   x [...S]
//! shape   y [...S]
//! saved   noted float32 [...S]
//! example x=[5]
//
//! forward
//!   kernel  scale_forward
//!   bind    n = numel(x)
//
//! backward grad_x
//!   kernel  scale_backward
//!   bind    n = numel(x)

extern "C" __global__ void scale_forward(const float *x, float *y, float *noted, float by,
                                         long long n)
{
    CUDA_KERNEL_LOOP(i, n) {
        y[i] = x[i] * by * FACTOR;
        if (noted)
            noted[i] = x[i];
    }
}

extern "C" __global__ void scale_backward(const float *grad_y, const float *noted, float *grad_x,
                                          float by, long long n)
{
    CUDA_KERNEL_LOOP(i, n)
        grad_x[i] = grad_y[i] * by * FACTOR + 0 * noted[i];
}
"""


def write_scale(folder, factor):
    new = folder / ".new"
    new.write_text(SCALE.replace("FACTOR", factor))
    new.rename(folder / "scale.cu")


@pytest.fixture
def own(start_daemon, tmp_path):
    """A daemon of our own, with the operators `scale` and `spin` in `daemon.kernels`."""
    folder = tmp_path / "kernels"
    folder.mkdir()
    write_scale(folder, "1.0f")
    (folder / "spin.cu").write_text(SPIN)
    daemon = start_daemon("--kernels", str(folder))
    daemon.kernels = folder
    return daemon


def upgrade(daemon, *params):
    with Raw(daemon.socket) as raw:
        return raw.call("upgrade", *params)


def device_of(daemon):
    with Raw(daemon.socket) as raw:
        return raw.call("status")["devices"][0]


def zombies(pid):
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [child for child in children if is_zombie(child)]


def is_zombie(pid):
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
