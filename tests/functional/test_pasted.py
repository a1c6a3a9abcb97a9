"""What kernels of the field look like: their parameters' types have names of their own, kernels share a name, and
their gradients are written whether anybody wants them or not."""

import pathlib
import subprocess

import numpy as np
import pytest
from conftest import PATIENCE, PROGRAM

import opd

NAMED = """\
//! op      named(Tensor x, Tensor w, *, int how=0) -> Tensor y
//! dtypes  float32 float64
//! strided x
//! shape   x [R, C]
//! shape   w [C]
//! shape   y [R, C]
//! example x=[3,5] w=[5]
//! forward
//!   kernel  scale<scalar_t, half_of<scalar_t>> threads R * C
//! backward grad_x grad_w
//!   kernel  scale_backward threads R * C
#include <torch/extension.h>
#include <ATen/cuda/detail/TensorInfo.cuh>
#define ACC(type, rank) torch::PackedTensorAccessor32<type, rank, torch::RestrictPtrTraits>
template <typename T> using row = at::PackedTensorAccessor64<T, 1>;
typedef enum { DOUBLE = 0, HALF = 1 } how_t;
template <typename T> __device__ T half_of(T v)
{
    return v / 2;
}
template <typename T, T (*F)(T)>
__global__ void scale(at::cuda::detail::TensorInfo<const T, unsigned> x, const row<T> w, ACC(T, 2) y, how_t how)
{
    using namespace at::cuda::detail;
    CUDA_KERNEL_LOOP(i, y.size(0) * y.size(1)) {
        const int r = i / y.size(1), c = i % y.size(1);
        const T v = x.data[IndexToOffset<const T, unsigned, -1>::get(i, x)] * w[c];
        y[r][c] = how == HALF ? F(v) : v * 2;
    }
}
template <typename T>
__global__ void scale_backward(const ACC(T, 2) grad_y, const ACC(T, 2) x, const T *w, T *grad_x, T *grad_w, int C,
                               how_t how)
{
    const int n = x.size(0) * x.size(1);
    CUDA_KERNEL_LOOP(i, n) {
        const T g = grad_y[i / C][i % C] * (how == HALF ? T(0.5) : T(2));
        grad_x[i] = g * w[i % C];
        atomicAdd(grad_w + i % C, g * x[i / C][i % C]);
    }
}
"""

SHARED = """\
//! op      NAME(Tensor x) -> Tensor y
//! dtypes  DTYPE
//! shape   x [n]
//! shape   y [n]
//! example x=[9]
//! forward
//!   kernel  add_one
#include <cuda_fp16.h>
__global__ void add_one(const float *x, float *__restrict__ y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] + 1.f;
}
__global__ void add_one(const __half *x, __half *y, const int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = __hadd(x[i], __float2half(1.f));
}
"""
HELPED = """
//! op      helped(Tensor x, Tensor w) -> Tensor y
//! dtypes  float32
//! shape   x w y [N]
//! example x=[4] w=[4]
//! forward
//!   kernel multiply
//! backward grad_x grad_w
//!   kernel multiply_backward
template <typename T> __device__ void put(T *to, int64_t i, T v) { to[i] = v; }
__device__ void put_both(float *a, float *b, int64_t i, float u, float v)
{
    float *p = b;
    put<float>(a, i, u);
    put(p, i, v);
}
__global__ void multiply(const float *x, const float *w, float *y, int64_t N)
{
    CUDA_KERNEL_LOOP(i, N) y[i] = x[i] * w[i];
}
__global__ void multiply_backward(const float *x, const float *w, const float *grad_y, float *grad_x, float *grad_w,
                                  int64_t N)
{
    CUDA_KERNEL_LOOP(i, N) put_both(grad_x, grad_w, i, grad_y[i] * w[i], grad_y[i] * x[i]);
}
"""
CHOSEN = """
//! op      chosen(Tensor x, *, int by=3) -> Tensor y
//! dtypes  float16 float32
//! shape   x y [n]
//! example x=[5]
//! forward
//!   kernel STEPS
#include <cuda_fp16.h>
#include <torch/extension.h>
#include <utility>
#if CUDA_VERSION < 9000 || CUDART_VERSION < 9000 || TORCH_VERSION_MAJOR < 2
#error "too old"
#endif
__device__ float widen(at::Half v) { return __half2float(v.operator __half()); }
__device__ float widen(float v) { return v; }
template <typename T> __global__ void step(const T *x, T *y, int n)
{
    CUDA_KERNEL_LOOP(i, n) y[i] = T(widen(x[i]) + 1);
}
template <typename T> __global__ void step(const T *x, T *y, int n, int by)
{
    CUDA_KERNEL_LOOP(i, n) y[i] = T(widen(x[i]) * by);
}
template <typename T> __global__ void step(const T *x, T *y, int n, int by, std::pair<int, int> more)
{
    CUDA_KERNEL_LOOP(i, n) y[i] = T(widen(x[i]) * by + more.first + more.second);
}
"""
STORED = """
//! op      stored(Tensor x) -> Tensor y
//! dtypes  float32
//! shape   x y [n]
//! example x=[5]
//! forward
//!   kernel turn grid 1 block n shared 4 * n + 4
struct storage { int count; float kept[1]; };
WHERE
__global__ void turn(const float *x, float *y, int n)
{
    HERE
    auto &all = reinterpret_cast<storage &>(bytes);
    all.kept[threadIdx.x] = x[threadIdx.x];
    if (threadIdx.x == 0) all.count = n;
    __syncthreads();
    y[threadIdx.x] = all.kept[all.count - 1 - threadIdx.x];
}
"""

LOOPS = """
//! op      loops(Tensor x) -> Tensor y
//! dtypes  float32
//! shape   x y [n]
//! example x=[9]
//! forward
//!   zero y
//!   kernel odd
#include <ATen/cuda/CUDAContext.h>
#define CUDA_1D_KERNEL_LOOP(i, n) \\
    for (int i = 2 * threadIdx.x + 1; i < (n); i += 2 * blockDim.x)
#define CUDA_KERNEL_LOOP(i, n) for (int i = 2 * (threadIdx.x + 1); i < (n); i += 2 * blockDim.x)
#define CUDA_KERNEL_LOOP_TYPE(i, n, T) for (T i = 0; i < T(n); i = n)
#define TORCH_CHECK(c, what) do { if (!(c)) return; } while (0)
#define C10_WARP_SIZE 64
#define INFINITY 1e30f
__global__ void odd(const float *x, float *y, int n)
{
    TORCH_CHECK(C10_WARP_SIZE == 64 && INFINITY < 2e30f, "nothing is written");
    CUDA_1D_KERNEL_LOOP(i, n) y[i] = x[i];
    CUDA_KERNEL_LOOP(i, n) y[i] = -x[i];
    CUDA_KERNEL_LOOP_TYPE(i, n, short) y[i] = 7 * sizeof i;
}
"""


@pytest.fixture(scope="module")
def client(start_shared, tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "named.cu").write_text(NAMED)
    (folder / "helped.cu").write_text(HELPED)
    (folder / "loops.cu").write_text(LOOPS)
    shared = "extern __shared__ char bytes[];"
    for name, where, here in (("stored_out", shared, ""), ("stored_in", "", shared)):
        text = STORED.replace("stored", name).replace("WHERE", where).replace("HERE", here)
        (folder / f"{name}.cu").write_text(text)
    bound = "step<scalar_t>\n//!     bind more.first = 4\n//!     bind more.second = 0"
    for name, steps in (("named_so", "step<scalar_t>"), ("bound_so", bound)):
        (folder / f"{name}.cu").write_text(CHOSEN.replace("chosen", name).replace("STEPS", steps))
    for dtype in ("float32", "float16"):
        name = f"add_{dtype}"
        (folder / f"{name}.cu").write_text(SHARED.replace("NAME", name).replace("DTYPE", dtype))
    with opd.connect(start_shared("--kernels", str(folder)).socket) as client:
        yield client


@pytest.mark.parametrize("how, factor", [(0, 2), (1, 0.5)])
def test_types_with_names(client, how, factor):
    x, w = np.arange(15.0).reshape(5, 3), np.arange(1.0, 6)
    y, ctx = client.ops.named.forward(client.tensor(x).T, client.tensor(w), how=how)
    assert np.array_equal(y.numpy(), x.T * w * factor)
    grad = np.arange(15.0).reshape(3, 5) - 4
    expected = {"x": grad * w * factor, "w": (grad * x.T * factor).sum(0)}
    for wanted in ("x", "w", "xw"):  # of what is not wanted the kernel writes into memory of its own
        for name, got in zip("xw", ctx.backward(client.tensor(grad), wanted=list(wanted))):
            assert got is None if name not in wanted else np.array_equal(got.numpy(), expected[name])


def test_what_is_not_wanted_is_handed_on(client):
    """To functions that do not ask whether it is null."""
    x, w = client.tensor(np.float32([1, 2, 3])), client.tensor(np.float32([4, 5, 6]))
    _, ctx = client.ops.helped.forward(x, w)
    for wanted in (["x"], ["w"], ["x", "w"]):
        for name, got, expected in zip("xw", ctx.backward(client.tensor(np.ones(3, np.float32)), wanted=wanted), (w, x)):
            assert got is None if name not in wanted else np.array_equal(got.numpy(), expected.numpy())


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_kernels_that_share_a_name(client, dtype):
    x = np.arange(9).astype(dtype)
    assert np.array_equal(getattr(client.ops, f"add_{dtype}")(client.tensor(x)).numpy(), x + 1)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_of_one_name_what_the_header_has_is_taken(client, dtype):
    """Templates, which dtypes do not tell apart; they know versions, and convert as PyTorch's do."""
    x = np.arange(5).astype(dtype)
    assert np.array_equal(client.ops.named_so(client.tensor(x)).numpy(), x * 3)
    assert np.array_equal(client.ops.bound_so(client.tensor(x), by=2).numpy(), x * 2 + 4)


@pytest.mark.parametrize("name", ["stored_out", "stored_in"])
def test_shared_memory_is_looked_at_as_a_struct(client, name):
    x = np.arange(5, dtype=np.float32)
    assert np.array_equal(getattr(client.ops, name)(client.tensor(x)).numpy(), x[::-1])


def test_a_file_may_define_what_opd_has_defined(client, tmp_path):
    """Without a warning, and its own is meant."""
    y = client.ops.loops(client.tensor(np.arange(9, dtype=np.float32)))
    assert y.numpy().tolist() == [14, 1, -2, 3, -4, 5, -6, 7, -8]
    file = tmp_path / "loops.cu"
    file.write_text(LOOPS + "#define TWICE 1\n#define TWICE 2\n")
    opctl = pathlib.Path(PROGRAM).with_name("opctl")
    for target in ("cpu", "sm_90"):
        done = subprocess.run([opctl, "check", file, "--target", target], timeout=PATIENCE, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        assert done.returncode == 0 or "NVRTC" in done.stdout, done.stdout
        assert done.stdout.count("redefin") == (done.returncode == 0) and "KERNEL_LOOP" not in done.stdout
