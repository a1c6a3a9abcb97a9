"""An operator that tests edit, and a daemon that serves it."""

import pytest
import torch

import opd.torch

SCALE = """\
//! op      scale({arguments}) -> Tensor y
//! dtypes  float32 float64
//! shape   x [...S]
//! shape   y [...S]
//! let     n = numel(x)
//! let     by = {by}
{saved}
//! forward
//!   kernel scale_forward
//! backward grad_x
//!   kernel scale_backward

__global__ void scale_forward(const scalar_t *x, scalar_t *y, int64_t n, double by{out})
{{
    CUDA_KERNEL_LOOP(i, n) {{
        y[i] = x[i] * scalar_t(by) * {factor};
        {keep}
    }}
}}

__global__ void scale_backward(const scalar_t *grad_y, scalar_t *grad_x, int64_t n, double by{in_})
{{
    CUDA_KERNEL_LOOP(i, n)
        grad_x[i] = grad_y[i] * scalar_t(by) * {slope};
}}
"""


def write_scale(folder, factor=1, attr=None, keeps=False, broken=False):
    """y = x * factor * its attribute; with `keeps` backward reads it from a saved tensor."""
    text = SCALE.format(
        arguments="Tensor x" + (f", *, float {attr}" if attr else ""),
        by=attr.partition("=")[0] if attr else "1.0",
        saved="//! saved   kept [...S]\n//" if keeps else "//",
        out=", scalar_t *kept" if keeps else "",
        in_=", const scalar_t *kept" if keeps else "",
        keep=f"kept[i] = {factor};" if keeps else "",
        factor="oops" if broken else factor,
        slope="kept[i]" if keeps else factor,
    )
    save(folder / "scale.cu", text)


def save(path, text):
    """As editors do: nobody sees half of it."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.rename(path)


@pytest.fixture
def scale(start_daemon, tmp_path):
    """A daemon that serves `scale`, which the test edits."""
    write_scale(tmp_path, 2)
    daemon = start_daemon("--kernels", str(tmp_path))
    opd.torch.use(daemon.socket)
    with daemon.connect() as client:
        daemon.reload = client.reload
        yield daemon
    opd.torch.use(None)


def grad_of(y, x):
    return torch.autograd.grad(y.sum(), x, retain_graph=True)[0]


X = torch.arange(1.0, 4.0)
