"""Features that know nothing of each other, used together."""

import re
import subprocess

import numpy as np
import pytest

from conftest import DEVICE
from raw import Raw, make_memfd

# A saved tensor, and a check that fails where a value is negative.
ROOT = """\
//! op      root(Tensor x) -> Tensor y
//! dtypes  float32
//! shape   x [N]
//! shape   y [N]
//! check   sign : "element {index} is negative"
//! saved   half [N]
//
//! forward
//!   kernel root_forward
//! backward grad_x
//!   kernel root_backward

__global__ void root_forward(const float *x, float *y, float *half, opd::report_t *report,
                             int64_t N)
{
    CUDA_KERNEL_LOOP(i, N) {
        if (!opd::check(report, sign, x[i] >= 0, i))
            continue;
        y[i] = sqrt(x[i]);
        half[i] = 0.5f / y[i];
    }
}

__global__ void root_backward(const float *half, const float *grad_y, float *grad_x, int64_t N)
{
    CUDA_KERNEL_LOOP(i, N)
        grad_x[i] = grad_y[i] * half[i];
}
"""

# Changed in place, with the same check.
ROOT_IN_PLACE = """\
//! op      root_(Tensor(a!) x) -> ()
//! dtypes  float32
//! shape   x [N]
//! check   sign : "element {index} is negative"
//
//! forward
//!   kernel root_in_place

__global__ void root_in_place(float *x, opd::report_t *report, int64_t N)
{
    CUDA_KERNEL_LOOP(i, N) {
        if (opd::check(report, sign, x[i] >= 0, i))
            x[i] = sqrt(x[i]);
    }
}
"""

N = 8
GOOD = np.arange(1, N + 1, dtype=np.float32)
BAD = GOOD.copy()
BAD[3] = -1


@pytest.fixture
def raw(start_daemon, tmp_path):
    (tmp_path / "root.cu").write_text(ROOT)
    (tmp_path / "root_.cu").write_text(ROOT_IN_PLACE)
    with Raw(start_daemon("--kernels", str(tmp_path)).socket) as raw:
        raw.make(1, "float32", [N], GOOD.tobytes())
        raw.make(2, "float32", [N], BAD.tobytes())
        raw.make(3, "float32", [N], np.ones(N, np.float32).tobytes())
        yield raw


def read(raw, id):
    return np.frombuffer(raw.call("tensor_read", id, 0), np.float32)


def test_a_context_of_a_forward_that_makes_no_tensor(raw):
    """All outputs go into tensors that are there: the context alone is new."""
    raw.make(4, "float32", [N])
    raw.call("forward", "root", [1], {}, [None], {"into": [4], "context": 1})
    np.testing.assert_allclose(read(raw, 4), np.sqrt(GOOD), rtol=1e-6)
    raw.call("backward", 1, [3], [5])
    np.testing.assert_allclose(read(raw, 5), 0.5 / np.sqrt(GOOD), rtol=1e-6)


def test_and_of_one_that_fails(raw):
    raw.make(4, "float32", [N])
    forward = raw.request("forward", "root", [2], {}, [None], {"into": [4], "context": 1})
    backward = raw.request("backward", 1, [3], [5])
    with pytest.raises(Exception, match="element 3 is negative"):
        raw.wait(forward)
    with pytest.raises(Exception, match="a request that failed|no context 1"):
        raw.wait(backward)
    assert raw.fail("backward", 1, [3], [6]).code == "not_found"


def test_tensors_in_shared_memory_are_listed(raw):
    if DEVICE != "cpu":
        pytest.skip("a memfd is memory of the CPU")
    fd = make_memfd(4096)
    raw.call("import_open", 1, "cpu", "memfd", b"", 4096, fds=[fd])
    raw.call("import_tensor", 10, 1, 64, "float32", [N])
    raw.call("tensor_view", 11, 10, 2, [3])
    listed = {t["id"]: t for t in raw.call("tensor_list") if t["id"] in (10, 11)}
    assert [listed[k]["bytes"] for k in (10, 11)] == [4 * N, 12]
    assert listed[10]["owner"]


def test_a_failed_check_leaves_into_as_it_was_written(raw):
    raw.make(4, "float32", [N])
    raw.make(5, "float32", [N])
    error = raw.fail("forward", "root", [2], {}, [None], {"into": [4], "saved_into": [5]})
    assert str(error) == "root: element 3 is negative"
    expected = np.where(BAD < 0, 0, np.sqrt(np.abs(BAD)))
    np.testing.assert_allclose(read(raw, 4), expected, rtol=1e-6)
    assert raw.call("tensor_info", 5)["suspect"] is None
