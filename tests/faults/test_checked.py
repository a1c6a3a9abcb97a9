"""Checked builds of kernels on a GPU: what a kernel does outside of its tensors, its variables and its shared memory
is told with tensor, element and line, also where the memory is another tensor's; the device goes on, nothing changes.

Tensors lie side by side in one chunk: without the checks nothing of most of these is noticed."""

import os

import numpy as np
import pytest

import opd
from planted import Planted, client, served  # noqa: F401

DEVICE = os.environ.get("OPD_TEST_DEVICE", "cpu")
pytestmark = pytest.mark.skipif(not DEVICE.startswith("cuda"), reason="the CPU's own checks: test_guards.py")

HELPERS = """
template <class F> static __device__ auto apply(F f, int64_t i) { return f(i); }
template <class F> static __device__ auto twice(F f, int64_t i) { return apply(f, i); }
"""
OUTSIDE = """
static __device__ __noinline__ float outside(const float *p, int64_t i)
{
    return p[i]; // deep
}
"""
ASM = (
    'asm volatile("{.reg .pred p; setp.ge.s64 p, %1, 0; @p ld.global.f32 %0, [%2];}"'
    ' : "=f"(f) : "l"(by), "l"(x + i + by));'
)
COPY = (
    'asm volatile("cp.async.ca.shared.global [%0], [%1], 4; cp.async.wait_all;"'
    ' :: "r"((unsigned)__cvta_generic_to_shared(t + threadIdx.x)), "l"(x + i + by) : "memory");'
)
ACCESSED = """\
//! op      accessed(Tensor x, *, int by=0) -> Tensor y
//! dtypes  float32
//! shape   x [R, C]
//! shape   y [R, C]
//!
//! forward
//!   kernel  accessed<scalar_t>
//!   grid    R
//!   block   C

template <class scalar_t>
__global__ void accessed(const torch::PackedTensorAccessor32<scalar_t, 2, torch::RestrictPtrTraits> x,
                         torch::PackedTensorAccessor32<scalar_t, 2, torch::RestrictPtrTraits> y, int64_t by)
{
    y[blockIdx.x][threadIdx.x] = x[blockIdx.x + by][threadIdx.x]; // here
}
"""

# name: (what stands before the kernel, its line, `by`, the message)
PLANTED = {
    "reads": ("", "y[i] = x[i + by];", 1, "out-of-bounds read of 'x': element 1024 of 1024 (float32)"),
    "writes": ("", "y[i + by] = x[i];", 1, "out-of-bounds write of 'y': element 1024 of 1024 (float32)"),
    "walks": ("", "const scalar_t *p = x + i; for (int k = 0; k < by; k++) p += 64; y[i] = *p;", 16,
              "out-of-bounds read of 'x': element 1024 of 1024 (float32)"),
    "before": ("", "y[i] = x[i + by];", -1, "out-of-bounds read of 'x': element -1 of 1024 (float32)"),
    "helped": (HELPERS, "y[i] = twice([=](int64_t k) { return x[k + by]; }, i);", 1,
               "out-of-bounds read of 'x': element 1024 of 1024 (float32)"),
    "halves": ("", "if (i % 4 == 0) *(float4 *)(y + i) = *(const float4 *)(x + i + by);", 4,
               "out-of-bounds read of 'x': element 1024 of 1024 (float32)"),
    "predicated": ("", "float f = 0; " + ASM + " y[i] = f;", 1,
                   "out-of-bounds read of 'x': element 1024 of 1024 (float32)"),
    "far": ("", "y[i + by] = x[i];", 1 << 20, "out-of-bounds write of 'y': element 1048576 of 1024 (float32)"),
    "adds": ("", "atomicAdd((float *)y + i + by, 1.0f);", 1,
             "out-of-bounds write of 'y': element 1024 of 1024 (float32)"),
    "wild": ("", "y[i] = x[i + by];", 1 << 42,
             "out-of-bounds read of 'x': element 4398046511104 of 1024 (float32)"),
    "absent": ("", "y[i] = bias[i];", 0, "read through a null pointer: 'bias' is null here"),
    "quads": ("", "if (i == 0) *(float4 *)y = *(const float4 *)(x + by);", 1,
              "misaligned read of 'x': 16 bytes from element 1"),
    "nothing": ("", "const float *volatile none = nullptr; const float *p = none; y[i] = p[i];", 0,
                "read through a null pointer"),
    "looks": ("__device__ float lut[16];", "y[i] = lut[(i + by) % 17];", 16,
              "out-of-bounds read of 'lut': element 16 of 16"),
    "tiles": ("", "__shared__ float t[64]; t[threadIdx.x + by] = x[i]; __syncthreads(); y[i] = t[threadIdx.x];", 1,
              "out-of-bounds write of shared memory 't': element 64 of 64"),
    "doubles": ("", "__shared__ float t_0[64]; if (i == 0) *(volatile double *)(t_0 + by) = 1; y[i] = x[i];", 3,
                "misaligned write of shared memory 't_0': 8 bytes from byte 12"),
    "chosen": ("", "const scalar_t *p = by > 0 ? x : (const scalar_t *)y; y[i] = p[i + by];", 1 << 42,
               "which is in no tensor"),
    "traps": ("", "if (i == by) __trap(); y[i] = x[i];", 3, "__trap()"),
    "asserts": ("", "assert(i != by); y[i] = x[i];", 3, "an assertion failed"),
    "leaves": ("", "float f = x[i + by]; __syncthreads(); y[i] = __shfl_xor_sync(~0u, f, 1);", 1,
               "out-of-bounds read of 'x': element 1024 of 1024 (float32)"),
    "strides": ("", "y[i] = x[i / 64 * (64 + by) + i % 64];", 1,
                "out-of-bounds read of 'x': element 1024 of 1024 (float32)"),
    "scatters": ("", "atomicAdd((float *)y + (int64_t)(float)x[i] * by, 1.0f);", 2,
                 "out-of-bounds write of 'y': element 1024 of 1024 (float32)"),
    "last": ("", "y[i] = x[i == 1023 ? 1023 + by : 1023 - i];", 1,
             "out-of-bounds read of 'x': element 1024 of 1024 (float32)"),
    "copies": ("", "__shared__ float t[64]; " + COPY + " __syncthreads(); y[i] = t[threadIdx.x];", 1,
               "out-of-bounds read of 'x': element 1024 of 1024 (float32)"),
}  # fmt: skip
DEEP = {"noinline": (OUTSIDE, "y[i] = outside((const float *)x, i + by);", 1 << 42, "which is in no tensor")}
GOOD = (
    "",
    "__shared__ float tile[64]; tile[threadIdx.x] = x[i]; __syncwarp();"
    " y[i] = tile[threadIdx.x] + (bias ? float(bias[i]) : 0.0f);",
)
# What comes by an array of the thread's own or of its block is one of the tensors still.
KEPT = {
    "listed": ("", "const scalar_t *p[4] = {x, x, x, x}; y[i] = p[(i + by) % 4][i + by];", 1 << 42, "which is in no tensor"),
    "shared": ("", "__shared__ const scalar_t *p[2]; p[by & 1] = x; __syncthreads(); y[i] = p[by & 1][i + by];", 1 << 42,
               "which is in no tensor"),
}  # fmt: skip
# Right, in memory that is no tensor's. What is read there is not checked, and that is said, unless its address is known.
CHOOSE = """
static __device__ __noinline__ float pick(const float *p, int i) { return p[i]; } // deep
__device__ float lut[64];"""
HEAP = "float *p = (float *)malloc(8); if (!p) return; p[by] = x[i]; p[1 - by] = 0; y[i] = p[by] + p[1 - by]; free(p);"
FOREIGN = {
    "variable": ("__device__ float lut[64], *kept;", "if (threadIdx.x == 0) kept = lut; __syncthreads();"
                 " float *p = *(float *volatile *)&kept; p[threadIdx.x] = x[i]; y[i] = p[threadIdx.x];"),
    "either": (CHOOSE, "lut[threadIdx.x] = x[i]; const float *p = by ? (const float *)x : lut + threadIdx.x; y[i] = *p;"),
    "passed": (CHOOSE, "lut[threadIdx.x] = x[i]; y[i] = by ? pick((const float *)x, by) : pick(lut, threadIdx.x);"),
    "local": (CHOOSE, "lut[threadIdx.x] = x[i]; const float *p[2] = {lut, (const float *)x};"
              " y[i] = p[by & 1][threadIdx.x];"),
    "heap": ("", HEAP),
    "halves_of": ("__device__ float lut[64];", "lut[threadIdx.x] = x[i]; uint64_t a = (uint64_t)(lut + threadIdx.x);"
                  " unsigned l = __shfl_sync(~0u, (unsigned)a, threadIdx.x % 32),"
                  " h = __shfl_sync(~0u, (unsigned)(a >> 32), threadIdx.x % 32);"
                  " y[i] = *(float *)((uint64_t)h << 32 | l);"),
}  # fmt: skip
EIGHTS = ("", "if (i % 8 == 0) *(float4 *)(y + i) = *(const float4 *)(x + i);")
OPERATORS = {**PLANTED, **DEEP, **KEPT, **FOREIGN, "good": GOOD, "eights": EIGHTS}


planted = Planted("float16 float32", OPERATORS)
source, line = planted.source, planted.line


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "accessed.cu").write_text(ACCESSED)
    return planted.write(folder)


def fault(client, name, x, **options):
    with pytest.raises(opd.KernelFault) as error:
        getattr(client.ops, name)(x, **options)
    return str(error.value)


@pytest.mark.parametrize("name", [*PLANTED, *DEEP, *KEPT])
def test_planted(client, name):
    *_, by, expected = OPERATORS[name]
    values = np.arange(1024, dtype="float32")
    x, neighbour = client.tensor(values), client.tensor(values)
    restarts = client.status()["devices"][0]["restarts"]
    message = fault(client, name, x, by=by, debug=True)
    assert expected in message and message.endswith(line(name, "// deep" if name in DEEP else "// here")), message
    assert fault(client, name, x, by=by, debug=True) == message  # of all threads the same one
    assert client.status()["devices"][0]["restarts"] == restarts
    np.testing.assert_array_equal(neighbour.numpy(), values)
    np.testing.assert_array_equal(x.numpy(), values)


def test_a_vector_half_of_which_is_outside(client):
    x = client.tensor(np.zeros(1004, "float16"))
    message = fault(client, "eights", x, debug=True)
    assert "out-of-bounds read of 'x': element 1004 of 1004 (float16)" in message
    assert message.endswith(line("eights"))


def test_an_accessor(client):
    x = client.tensor(np.arange(1024, dtype="float32").reshape(16, 64))
    np.testing.assert_array_equal(client.ops.accessed(x, debug=True).numpy(), x.numpy())
    message = fault(client, "accessed", x, by=1, debug=True)
    where = 1 + ["// here" in text for text in ACCESSED.splitlines()].index(True)
    assert "out-of-bounds read of 'x': element 1024 of 1024 (float32)" in message
    assert message.endswith(f"accessed.cu:{where}")


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("n", [1, 63, 1024, 1001])
def test_good_kernels_are_not_told_of(client, n, dtype):
    x = client.tensor(np.arange(n).astype(dtype))
    bias = client.tensor(np.ones(n, dtype))
    for given in ((x,), (x, bias)):
        np.testing.assert_array_equal(client.ops.good(*given, debug=True).numpy(), client.ops.good(*given).numpy())


def test_memory_that_is_no_tensor_is_listed_and_not_told_of(start_daemon, kernels, tmp_path):
    """A compile tells, and these are not in the cache."""
    daemon = start_daemon("--kernels", kernels, "--cache", tmp_path / "cache", "--debug")
    with daemon.connect() as client:
        x = client.tensor(np.arange(1024, dtype="float32"))
        for name in FOREIGN:
            np.testing.assert_array_equal(getattr(client.ops, name)(x).numpy(), x.numpy(), err_msg=name)
            note = f"{line(name, '// deep' if name == 'passed' else '// here')}: note: "
            told = [text for text in daemon.read_log().splitlines() if text.startswith(note)]
            assert told and all(": its address is from memory, or of no tensor" in text for text in told), (name, told)


def test_every_call_of_a_daemon_that_debugs(start_daemon, kernels):
    with start_daemon("--kernels", kernels, "--debug").connect() as client:
        x = client.tensor(np.arange(1024, dtype="float32"))
        assert "out-of-bounds read of 'x': element 1024 of 1024" in fault(client, "reads", x, by=1)
        np.testing.assert_array_equal(client.ops.reads(x).numpy(), x.numpy())
