"""Operators whose results are the memory of what they take: `//! view`."""

from pathlib import Path

import numpy as np
import pytest

from raw import Raw

PAIR = """\
//! op      pair(Tensor(a) x, Tensor(b) y) -> (Tensor(a) u, Tensor(b) v)
//! dtypes  float32
//! type    index_t int32 int64 float64 : y v
//! shape   x [N, M]
//! shape   y [...S]
//! shape   u [M, N]
//! shape   v [numel(y), 1]
//! view    u x
//! view    v y
"""
FOLD = """\
//! op      fold(Tensor(a) x, *, int rows) -> Tensor(a)
//! dtypes  float32
//! shape   x [...S]
//! shape   output [rows, numel(x) / rows]
//! view    output x
"""
OUTSIDE = (Path(__file__).parent / "kernels" / "outside.cu").read_text()
X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


@pytest.fixture
def raw(start_daemon, tmp_path):
    (tmp_path / "pair.cu").write_text(PAIR)
    (tmp_path / "fold.cu").write_text(FOLD)
    (tmp_path / "outside.cu").write_text(OUTSIDE)
    daemon = start_daemon("--kernels", str(tmp_path))
    with Raw(daemon.socket) as raw:
        raw.daemon = daemon
        raw.make(1, "float32", [2, 3, 4], X.tobytes())
        yield raw


def read(raw, id, dtype=np.float32):
    return np.frombuffer(raw.call("tensor_read", id, 0), dtype)


def used(raw):
    return sum(d["memory_used"] for d in raw.call("status")["devices"])


def test_output_is_the_input_s_memory(raw):
    before = used(raw)
    result = raw.call("forward", "flatten", [1], {}, [2])
    assert result["outputs"][0]["shape"] == [24]
    assert used(raw) == before
    raw.call("tensor_write", 2, 0, np.float32(99).tobytes())
    assert read(raw, 1)[0] == 99
    raw.call("free", "tensor", [1])
    assert read(raw, 2)[1] == 1
    # Of a part of a tensor.
    raw.call("tensor_view", 3, 2, 4, [2, 5])
    raw.call("forward", "flatten", [3], {}, [4])
    np.testing.assert_array_equal(read(raw, 4), np.arange(4, 14))


def test_gradient_is_the_output_s(raw):
    raw.call("forward", "flatten", [1], {}, [2], {"context": 1})
    g = np.random.default_rng(0).standard_normal(24).astype(np.float32)
    raw.make(3, "float32", [24], g.tobytes())
    before = used(raw)
    (grad,) = raw.call("backward", 1, [3], [4])
    assert grad["shape"] == [2, 3, 4] and used(raw) == before
    np.testing.assert_array_equal(read(raw, 4), g)
    (grad,) = raw.call("vjp", "flatten", [None], [], [], [3], {}, [5],
                       {"inputs": [["float32", [2, 3, 4]]]})  # fmt: skip
    assert grad["shape"] == [2, 3, 4]
    raw.call("tensor_write", 5, 0, np.float32(5).tobytes())
    assert read(raw, 3)[0] == 5
    (grad,) = raw.call("backward", 1, [None], [6])
    assert not read(raw, 6).any() and grad["shape"] == [2, 3, 4]


def test_write_through_the_view_is_a_write_of_the_base(raw):
    raw.call("forward", "gelu", [1], {}, [5], {"context": 1})
    raw.call("forward", "flatten", [1], {}, [2])
    raw.call("tensor_write", 2, 0, b"\0" * 4)
    raw.make(3, "float32", [2, 3, 4])
    assert "was written after forward" in str(raw.fail("backward", 1, [3], [4]))


def test_plan_tells_of_views(raw):
    plan = raw.call("plan", "pair", [["float32", [2, 3]], ["int64", [5]]], {})
    assert plan["views"] == [0, 1] and plan["saved"] == []
    assert plan["outputs"] == [["float32", [3, 2]], ["int64", [5, 1]]]
    info = raw.call("op_info", "pair")
    assert [o["view"] for o in info["outputs"]] == ["x", "y"]
    assert info["has_backward"] and "Tensor(a) u" in info["schema"]
    gelu = raw.call("op_info", "gelu")
    assert [o["view"] for o in gelu["outputs"]] == [None]


def test_several_views(raw):
    raw.make(2, "float32", [2, 3], X.ravel()[:6].tobytes())
    raw.make(3, "float64", [5], np.arange(5.0).tobytes())
    raw.call("forward", "pair", [2, 3], {}, [4, 5], {"context": 1})
    assert raw.call("tensor_info", 4)["shape"] == [3, 2]
    np.testing.assert_array_equal(read(raw, 5, np.float64), np.arange(5.0))
    # One gradient came, the other is zero; a failure of this request is none of the first one's.
    raw.make(6, "float32", [3, 2], X.ravel()[6:12].tobytes())
    grads = raw.call("backward", 1, [6, None], [7, 8])
    assert [g["shape"] for g in grads] == [[2, 3], [5]]
    np.testing.assert_array_equal(read(raw, 7), X.ravel()[6:12])
    assert not read(raw, 8, np.float64).any()
    grads = raw.call("backward", 1, [6, None], [None, 9])
    assert grads[0] is None


def test_number_of_elements_must_agree(raw):
    assert raw.call("forward", "fold", [1], {"rows": 6}, [2])["outputs"][0]["shape"] == [6, 4]
    error = raw.fail("forward", "fold", [1], {"rows": 5}, [3])
    assert str(error) == ("fold: output is float32 [5, 4], a view of x, which is float32 [2, 3, 4]; "
                          "expected as many elements")  # fmt: skip
    assert error.code == "invalid_argument"


def test_view_cannot_go_elsewhere(raw):
    raw.make(2, "float32", [24])
    error = raw.fail("forward", "flatten", [1], {}, [None], {"into": [2]})
    assert "is a view" in str(error)


def test_view_of_what_a_failed_request_was_to_make(raw):
    from raw import RpcError

    raw.make(2, "float32", [24])
    one, view, two = raw.together(
        ("forward", "outside", [2], {}, [3]),  # faults
        ("forward", "flatten", [3], {}, [4]),
        ("tensor_read", 4, 0),
    )
    raw.wait(view)
    for msgid in (one, two):
        with pytest.raises(RpcError):
            raw.wait(msgid)
    raw.call("tensor_read", 1, 0)


HEAD = """\
//! op      bad(Tensor w, {}) -> {}
//! dtypes  float32
//! shape   w [N]
//! shape   x [N]
//! shape   output [N]
"""


@pytest.mark.parametrize(
    "arguments, result, rest, message",
    [
        ("Tensor(a) x", "Tensor(a)", "", "no 'forward' section"),
        ("Tensor(a) x", "Tensor(a)", "//! forward\n//!   kernel k\n", "no 'view' line"),
        ("Tensor x", "Tensor", "//! view output x\n", "write Tensor(a) for both"),
        ("Tensor(b) x", "Tensor(a)", "//! view output x\n", "write Tensor(a) for both"),
        ("Tensor(a!) x", "Tensor(a)", "//! view output x\n", "write Tensor(a) for both"),
        ("Tensor(a)? x", "Tensor(a)", "//! view output x\n", "is optional"),
        ("Tensor(a) x", "Tensor(a)", "//! view x output\n", "'x' is not an output"),
        ("Tensor(a) x", "Tensor(a)", "//! view output\n", "expected an input"),
        ("Tensor(a) x", "Tensor(a)", "//! view output x\n//! view output x\n", "a second view"),
        ("Tensor(a) x", "Tensor(a)", "//! view output x\n//! saved s [N]\n", "has no kernels"),
        ("Tensor(a) x", "Tensor(a!)", "//! view output x\n", "ends with '-> ()'"),
        ("Tensor(a) x", "Tensor(a)", "//! view output x\n//! forward\n//!   kernel k\n",
         "expected one of them"),
    ],
)  # fmt: skip
def test_mistakes_are_told_at_load(raw, arguments, result, rest, message):
    kernel = "__global__ void k(const float *x, float *output, int N) { output[0] = x[0] + N; }\n"
    text = HEAD.format(arguments, result) + rest + kernel
    result = raw.call("check", "bad.cu", "", text, {"targets": ["cpu"]})
    assert not result["ok"]
    assert message in result["errors"][0]["message"], result["errors"]
