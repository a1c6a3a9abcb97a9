"""Operators of lists of tensors, by formulas and by kernels, and what is given to them."""

from pathlib import Path

import numpy as np
from operators import put_kernels

# By formulas, which become few launches; by a kernel, one for each tensor.
AXPYS = """
//! op      axpys(Tensor(a!)[] ys, Tensor[] xs, Tensor? b=None, *, float a=2.0) -> ()
//! dtypes  float32 float64
//! formula ys = FACTOR * (ys + a * xs + (present(b) ? b : 0))
//! example ys=[[4],[5,6]] xs=[[4],[5,6]]
"""
SCALES = """
//! op      scales(Tensor[] xs, Tensor by) -> (Tensor[] ys, Tensor[] signs)
//! dtypes  float32
//! type    int32 : signs
//! shape   xs ys signs [...S]
//! shape   by []
//! strided xs
//! example xs=[[4],[5,6],[0]] by=[]
//! forward
//!   kernel scale threads numel(xs)
//!     bind n = numel(xs)
//!     bind step = rank(xs) == 1 ? stride(xs, 0) : 1
__global__ void scale(const float *xs, const float *by, float *ys, int *signs, int64_t n, int64_t step)
{
    CUDA_KERNEL_LOOP(i, n) {
        ys[i] = xs[i * step] * by[0];
        signs[i] = xs[i * step] < 0 ? -1 : 1;
    }
}
"""
GLUS, DOTS = ((Path(__file__).parent.parent / "torch" / "kernels" / name).read_text() for name in ("glus.cu", "dots.cu"))
FAULTS = """
//! op      faults(Tensor(a!)[] xs, Tensor bad) -> ()
//! dtypes  float32
//! type    int32 : bad
//! shape   xs [N]
//! shape   bad [1]
//! forward
//!   kernel fault grid 1 block 1
__global__ void fault(float *xs, const int *bad, int64_t N)
{
    for (int64_t i = 0; i < N; i++)
        xs[i] = bad[0] ? *(volatile const float *)(8ULL + i) : xs[i] + 1;
}
"""
SHAPES = [(4,), (5, 6), (0,), (1000, 33), (), (3, 1, 2)]


def axpys(factor=1):
    return AXPYS.replace("FACTOR", str(factor))


def put_all(folder):
    return put_kernels(folder, axpys=axpys(), scales=SCALES, faults=FAULTS, glus=GLUS, dots=DOTS)


def draw(n=None, dtype=np.float32):
    rng = np.random.default_rng(5)
    shapes = SHAPES if n is None else [SHAPES[i % len(SHAPES)] for i in range(n)]
    return [rng.integers(-9, 10, shape).astype(dtype) for shape in shapes]  # all is exact


def same(tensors, arrays):
    assert len(tensors) == len(arrays)
    for t, a in zip(tensors, arrays):
        assert t.shape == a.shape
        np.testing.assert_array_equal(t.numpy(), a)
