"""A kernel as a PyTorch extension has it, with a header of its own, put under a header of ours."""

import struct

import numpy as np
import pytest

from raw import Raw

HEADER = """
#pragma once
#define THREADS 128
template <typename scalar_t> struct Smooth {
    static __device__ __forceinline__ scalar_t sigmoid(scalar_t z)
    {
        return 1.0 / (1.0 + exp(-z));
    }
};
"""
KERNELS = """
#include "smooth.cuh"

namespace {

template <typename scalar_t>
__global__ void swish_cuda_forward_kernel(
    const scalar_t* __restrict__ x,
    scalar_t* __restrict__ y,
    const float beta,
    int64_t n) {
  const int64_t index = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  if (index < n) {
    const scalar_t value = x[index];
    y[index] = value * scalar_t(Smooth<float>::sigmoid(float(value) * beta));
  }
}

template <typename scalar_t>
__global__ void swish_cuda_backward_kernel(
    const scalar_t* __restrict__ grad_y,
    const scalar_t* __restrict__ x,
    scalar_t* __restrict__ grad_x,
    const float beta,
    int64_t n) {
  const int64_t stride = (int64_t)blockDim.x * gridDim.x;
  for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += stride) {
    const float s = Smooth<float>::sigmoid(float(x[i]) * beta);
    grad_x[i] = scalar_t(float(grad_y[i]) * (s + float(x[i]) * beta * s * (1 - s)));
  }
}

// Row sums, by the accessors that PyTorch hands to a kernel.
template <typename scalar_t>
__global__ void row_sum_kernel(
    const torch::PackedTensorAccessor32<scalar_t, 2, torch::RestrictPtrTraits> x,
    torch::PackedTensorAccessor32<scalar_t, 1, torch::RestrictPtrTraits> y) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row < x.size(0)) {
    float sum = 0;
    for (int c = 0; c < x.size(1); c++) {
      sum += float(x[row][c]);
    }
    y[row] = scalar_t(sum);
  }
}

}  // namespace
"""
SWISH = """
//! op      swish(Tensor x, *, float beta=1.0) -> Tensor y
//! dtypes  float16 bfloat16 float32 float64
//! shape   x [...S]
//! shape   y [...S]
//! forward
//!   kernel  swish_cuda_forward_kernel<scalar_t>
//!   grid    cdiv(numel(x), 128)
//!   block   128
//!   bind    n = numel(x)
//! backward grad_x
//!   kernel  swish_cuda_backward_kernel<scalar_t>
//!   grid    4
//!   block   128
//!   bind    n = numel(x)
"""
ROW_SUM = """
//! op      row_sum(Tensor x) -> Tensor y
//! dtypes  float16 bfloat16 float32 float64
//! shape   x [R, C]
//! shape   y [R]
//! forward
//!   kernel  row_sum_kernel<scalar_t>
//!   grid    cdiv(R, 128)
//!   block   128
"""
TOLERANCE = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 2e-6, "float64": 2e-6}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("extension")
    (folder / "smooth.cuh").write_text(HEADER)
    (folder / "swish.cu").write_text(SWISH + KERNELS)
    (folder / "row_sum.cu").write_text(ROW_SUM + KERNELS)
    return folder


@pytest.fixture
def raw(start_daemon, folder):
    daemon = start_daemon("--kernels", str(folder))
    with Raw(daemon.socket) as raw:
        yield raw


def to_bytes(array, dtype):
    if dtype == "bfloat16":
        return (array.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return array.astype(dtype).tobytes()


def from_bytes(data, dtype):
    if dtype == "bfloat16":
        return (
            (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32).astype(float)
        )
    return np.frombuffer(data, dtype).astype(float)


def put(raw, id, array, dtype):
    """What the tensor then holds: rounded."""
    raw.make(id, dtype, list(array.shape), to_bytes(array, dtype))
    return from_bytes(raw.call("tensor_read", id, 0), dtype).reshape(array.shape)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_forward_and_backward(raw, dtype):
    rng = np.random.default_rng(3)
    x = put(raw, 1, rng.standard_normal((7, 143)), dtype)
    g = put(raw, 2, rng.standard_normal((7, 143)), dtype)
    raw.call("forward", "swish", [1], {"beta": 1.5}, [3], {"context": 1})
    assert raw.call("backward", 1, [2], [4])[0]["dtype"] == dtype
    s = 1 / (1 + np.exp(-1.5 * x))
    y, gx = (from_bytes(raw.call("tensor_read", id, 0), dtype).reshape(x.shape) for id in (3, 4))
    assert np.allclose(y, x * s, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    expected = g * (s + x * 1.5 * s * (1 - s))
    assert np.allclose(gx, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_accessors(raw, dtype):
    x = put(raw, 1, np.random.default_rng(4).standard_normal((150, 9)), dtype)
    raw.call("forward", "row_sum", [1], {}, [2])
    y = from_bytes(raw.call("tensor_read", 2, 0), dtype)
    assert np.allclose(y, x.sum(1), rtol=TOLERANCE[dtype], atol=8 * TOLERANCE[dtype])


def test_it_is_listed_as_any_other(raw):
    op = raw.call("op_info", "swish")
    assert op["schema"] == "swish(Tensor x, *, float beta=1.0) -> Tensor y"
    assert op["has_backward"] and op["dtypes"] == list(TOLERANCE)
    assert op["attrs"][0]["default"] == 1.0
    raw.make(1, "float32", [1], struct.pack("f", 0.5))
    raw.call("forward", "swish", [1], {}, [2])  # an integer would do for beta as well
    raw.call("forward", "swish", [1], {"beta": 1}, [3])
    assert raw.call("tensor_read", 2, 0) == raw.call("tensor_read", 3, 0)


HOST = """
void swish_cuda_forward(const float *x, float *y, int64_t n)
{
  swish_cuda_forward_kernel<float><<<(n + 127) / 128, 128>>>(x, y, 1.0f, n);
}
"""
WHOLE = '#include <torch/some/header.h>\n' + KERNELS.replace('#include "smooth.cuh"', HEADER) + HOST


def test_the_whole_file_is_pasted(start_daemon):
    """What does not belong to the kernels is passed over, by both compilers."""
    head, example = SWISH.lstrip().split("//! forward", 1), "//! example x=[8]\n//! forward"
    text = example.join(head) + WHOLE
    with Raw(start_daemon().socket) as raw:
        for target in ("cpu", "sm_90"):
            options = {"targets": [target], "dtypes": ["float32"]}
            reply = raw.call("check", "swish.cu", "", text, options)
            told = " ".join(e["message"] + e["log"] for e in reply["errors"])
            if "NVRTC" in told:
                pytest.skip(told)
            assert reply["ok"], told
