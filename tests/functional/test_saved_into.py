"""forward's option saved_into: saved tensors in memory that is there, for clients that keep them."""

import re

import numpy as np
import pytest
from raw import Raw

KEPT = """\
//! op      kept(Tensor x) -> Tensor y
//! dtypes  float32
//! shape   x [N]
//! shape   y [N]
//! saved   root [N]
//! saved   half float64 [2]
//
//! forward
//!   kernel kept_forward
//! backward grad_x
//!   kernel kept_backward

__global__ void kept_forward(const float *x, float *y, float *root, double *half, int64_t N)
{
    CUDA_KERNEL_LOOP(i, N) {
        root[i] = sqrt(x[i]);
        y[i] = root[i];
        if (i < 2)
            half[i] = 0.5;
    }
}

__global__ void kept_backward(const float *root, const double *half, const float *grad_y,
                              float *grad_x, int64_t N)
{
    CUDA_KERNEL_LOOP(i, N)
        grad_x[i] = float(half[1]) * grad_y[i] / root[i];
}
"""
N = 100


@pytest.fixture
def raw(start_daemon, tmp_path):
    (tmp_path / "kept.cu").write_text(KEPT)
    with Raw(start_daemon("--kernels", str(tmp_path)).socket) as raw:
        x = np.linspace(1, 4, N, dtype=np.float32)
        raw.make(1, "float32", [N], x.tobytes())
        raw.make(2, "float32", [N], np.ones(N, np.float32).tobytes())
        yield raw


def read(raw, id, dtype="float32"):
    return np.frombuffer(raw.call("tensor_read", id, 0), dtype)


def test_they_are_written_there_and_serve_backward(raw):
    raw.make(3, "float32", [N])
    raw.make(4, "float64", [2])
    reply = raw.call("forward", "kept", [1], {}, [5], {"saved_into": [3, 4]})
    assert "saved" not in reply
    np.testing.assert_allclose(read(raw, 3), np.sqrt(read(raw, 1)), rtol=1e-6)
    assert read(raw, 4, "float64").tolist() == [0.5, 0.5]
    raw.call("vjp", "kept", [None], [None], [3, 4], [2], {}, [6], {"inputs": [["float32", [N]]]})
    np.testing.assert_allclose(read(raw, 6), 0.5 / np.sqrt(read(raw, 1)), rtol=1e-6)


def test_in_a_view_of_a_larger_tensor(raw):
    raw.make(3, "float32", [3 * N])
    raw.call("tensor_view", 4, 3, N, [N])
    raw.make(5, "float64", [2])
    raw.call("forward", "kept", [1], {}, [6], {"saved_into": [4, 5]})
    values = read(raw, 3).reshape(3, N)
    assert not values[[0, 2]].any()
    np.testing.assert_allclose(values[1], np.sqrt(read(raw, 1)), rtol=1e-6)


def test_a_context_whose_input_is_written_so_notices(raw):
    raw.make(3, "float32", [N])
    raw.make(4, "float64", [2])
    raw.call("forward", "gelu", [3], {}, [5], {"context": 1})
    raw.call("forward", "kept", [1], {}, [6], {"saved_into": [3, 4]})
    assert "x was written after forward" in str(raw.fail("backward", 1, [2], [7]))


def test_what_does_not_fit_is_refused_and_nothing_is_made(raw):
    raw.make(3, "float32", [N])
    raw.make(4, "float64", [2])
    raw.make(5, "float32", [N + 1])
    for ids, more, message in (
        ([3], {}, "of 1, expected 2 ids"),
        (3, {}, "expected 2 ids"),
        ([3, 99], {}, "99"),
        ([3, "4"], {}, "half"),
        ([4, 3], {}, "expected .* as the saved tensor"),
        ([5, 4], {}, "expected .* as the saved tensor"),
        ([1, 4], {}, "lies in the memory of x"),
        ([3, 4], {"into": [3]}, "lies in the memory of y"),
        ([3, 4], {"context": 1}, "saved_into goes without"),
        ([3, 4], {"saved": [20, 21]}, "saved_into goes without"),
    ):
        out = None if "into" in more else 10
        error = raw.fail("forward", "kept", [1], {}, [out], {"saved_into": ids, **more})
        assert error.code in ("invalid_argument", "not_found")
        assert re.search(message, str(error)), (ids, more, str(error))
    assert raw.fail("tensor_info", 10).code == "not_found"
    raw.call("forward", "kept", [1], {}, [10], {"saved_into": [3, 4]})
