"""Results begin with zeros where a kernel may read them before it writes them."""

import struct

import pytest

from operators import put_kernels
from raw import Raw

N = 100
ADDS = """\
//! op      adds(Tensor x) -> Tensor y
//! dtypes  float32
//! shape   x [N]
//! shape   y [N]
//! saved   kept [N]
//! example x=[5]
//! forward
//!   kernel  add
//! backward grad_x
//!   kernel  back

__device__ void put(float *p, float v) { *p += v; }
__global__ void add(const float *x, float *y, float *kept, int N)
{
    CUDA_KERNEL_LOOP(i, N) {
        float *mine = kept + i;
        *mine += 2 * x[i];
        WRITE;
    }
}
__global__ void back(const float *grad_y, const float *kept, float *grad_x, int N)
{
    CUDA_KERNEL_LOOP(i, N) atomicAdd(&grad_x[i], grad_y[i] + kept[i]);
}
"""
WRITES = [
    "y[i] += x[i]",
    "y[i] = y[i] + x[i]",
    "atomicAdd(y + i, x[i])",
    "put(&y[i], x[i])",
    "float &out = y[i]; out += x[i]",
]


def floats(raw, id):
    return list(struct.unpack(f"{N}f", raw.call("tensor_read", id, 0)))


@pytest.mark.parametrize("write", WRITES)
def test_a_kernel_that_adds(start_daemon, tmp_path, write):
    """To memory that was another tensor's a moment ago."""
    daemon = start_daemon("--kernels", put_kernels(tmp_path / "k", adds=ADDS.replace("WRITE", write)))
    with Raw(daemon.socket) as raw:
        raw.make(1, "float32", [N], struct.pack(f"{N}f", *range(N)))
        for round in range(3):
            ids = [10 * (round + 1) + k for k in range(4)]
            for id in ids:
                raw.make(id, "float32", [N], struct.pack(f"{N}f", *[1000.0 + round] * N))
            raw.call("free", "tensor", ids)
            y, x = ids[:2]
            raw.call("forward", "adds", [1], {}, [y], {"context": round + 1})
            assert floats(raw, y) == list(range(N))
            raw.call("backward", round + 1, [1], [x])
            assert floats(raw, x) == [3 * i for i in range(N)]
            raw.call("free", "tensor", [x, y])


def test_what_was_to_be_written_into_is_cleared_too(start_daemon, tmp_path):
    daemon = start_daemon("--kernels", put_kernels(tmp_path / "k", adds=ADDS.replace("WRITE", WRITES[0])))
    with Raw(daemon.socket) as raw:
        raw.make(1, "float32", [N], struct.pack(f"{N}f", *range(N)))
        raw.make(2, "float32", [N], struct.pack(f"{N}f", *[7] * N))
        raw.call("forward", "adds", [1], {}, [None], {"into": [2]})
        assert floats(raw, 2) == list(range(N))
