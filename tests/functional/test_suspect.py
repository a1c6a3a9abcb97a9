"""What is suspect after a failure, and what is not, on the edges: checks beside writes in flight,
ranges of no bytes."""

import numpy as np
import pytest
from raw import Raw, RpcError

# Both add 1 in place; where x[0] is negative, one is refused by its check, the other faults.
REFUSED = """\
//! op      refused(Tensor(a!) x) -> ()
//! dtypes  float32
//! shape   x [N]
//! check   low : "element {index} is negative"
//
//! forward
//!   kernel refused

__global__ void refused(float *x, opd::report_t *report, int64_t N)
{
    CUDA_KERNEL_LOOP(i, N)
        if (opd::check(report, low, x[i] >= 0, i))
            x[i] += 1;
}
"""
FAULTS = """\
//! op      faults(Tensor(a!) x) -> ()
//! dtypes  float32
//! shape   x [N]
//
//! forward
//!   kernel faults

__global__ void faults(float *x, int64_t N)
{
    CUDA_KERNEL_LOOP(i, N) {
        if (x[i] < 0)
            *(volatile int *)8 = 1;
        x[i] += 1;
    }
}
"""
BAD = np.array([-1, 0, 1, 2], np.float32).tobytes()


@pytest.fixture
def raw(start_daemon, tmp_path):
    (tmp_path / "refused.cu").write_text(REFUSED)
    (tmp_path / "faults.cu").write_text(FAULTS)
    with Raw(start_daemon("--kernels", str(tmp_path)).socket) as raw:
        raw.make(1, "float32", [4])
        raw.call("forward", "refused", [1], {}, [])  # compiled
        yield raw


def is_suspect(raw, id):
    return raw.call("tensor_info", id)["suspect"] is not None


def test_a_failed_check_is_the_same_behind_a_write_in_flight(raw):
    for _ in range(5):
        write, forward = raw.together(("tensor_write", 1, 0, BAD), ("forward", "refused", [1], {}, []))
        raw.wait(write)
        with pytest.raises(RpcError, match="element 0 is negative"):
            raw.wait(forward)
        assert not is_suspect(raw, 1)
        assert np.frombuffer(raw.call("tensor_read", 1, 0), np.float32).tolist() == [-1, 1, 2, 3]


def test_a_failed_check_behind_a_write_that_failed_leaves_it_suspect(raw):
    requests = raw.together(
        ("tensor_write", 1, 0, BAD),
        ("forward", "faults", [1], {}, []),
        ("forward", "refused", [1], {}, []),
    )
    raw.wait(requests[0])
    for request in requests[1:]:
        with pytest.raises(RpcError, match="faults|element 0 is negative"):
            raw.wait(request)
    assert is_suspect(raw, 1)


def test_a_chain_in_flight_tells_what_failed_first(raw):
    raw.make(2, "float32", [4])
    for k in (3, 5, 7):
        raw.call("forward", "add", [1, 2], {}, [k])
    requests = raw.together(
        ("tensor_write", 1, 0, BAD),
        ("forward", "faults", [1], {}, []),
        *[("forward", "add", [k, 2], {}, [None], {"into": [k + 2]}) for k in (1, 3, 5)],
        ("tensor_read", 7, 0),
    )
    raw.wait(requests[0])
    with pytest.raises(RpcError, match="^faults version"):
        raw.wait(requests[1])
    for request, op in zip(requests[2:], ["add: "] * 3 + [""], strict=True):
        text = rf"^{op}a tensor that it reads is suspect: a request that was writing it failed \(faults version"
        with pytest.raises(RpcError, match=text):
            raw.wait(request)
    assert str(raw.fail("tensor_read", 7, 0)).startswith("tensor_read: the tensor is suspect: a request that was writing")
    assert str(raw.fail("tensor_read", 7, 0)).count("suspect") == 1


def test_a_write_behind_a_write_that_failed_mends_it(raw):
    raw.make(2, "float32", [4], BAD)
    raw.call("forward", "relu", [2], {}, [5])  # compiled
    requests = raw.together(
        ("tensor_write", 1, 0, BAD),
        ("forward", "faults", [1], {}, []),
        ("forward", "relu", [2], {}, [None], {"into": [1]}),
    )
    with pytest.raises(RpcError, match="faults"):
        raw.wait(requests[1])
    raw.wait(requests[2])
    assert not is_suspect(raw, 1)


def test_no_bytes_of_it_are_not_suspect(raw):
    raw.call("tensor_write", 1, 0, BAD)
    raw.fail("forward", "faults", [1], {}, [])
    for element in range(5):
        assert raw.call("tensor_read", 1, 4 * element, 0) == b""
        raw.call("tensor_view", 10 + element, 1, element, [0])
        assert not is_suspect(raw, 10 + element)
        raw.call("forward", "relu", [10 + element], {}, [20 + element])
        raw.call("tensor_accept", [10 + element])  # changes nothing
        assert is_suspect(raw, 1)
    assert raw.fail("tensor_read", 1, 4, 4).code == "invalid_argument"


def test_no_bytes_are_no_write_that_backward_would_notice(raw):
    raw.make(2, "float32", [4])
    raw.call("tensor_view", 3, 1, 2, [0])
    raw.call("forward", "silu", [1], {}, [4], {"context": 1})
    raw.call("forward", "relu", [3], {}, [None], {"into": [3]})
    raw.call("forward", "refused", [3], {}, [])
    raw.call("backward", 1, [2], [5])
    raw.call("forward", "silu", [1], {}, [6], {"context": 2})
    raw.call("forward", "refused", [1], {}, [])
    assert "was written after forward" in str(raw.fail("backward", 2, [2], [7]))
