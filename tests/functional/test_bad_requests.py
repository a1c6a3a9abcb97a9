"""Requests that no good client sends: parameters and arguments that do not fit."""

import re

import msgpack
import pytest

from bad_input import raw, unharmed  # noqa: F401
from conftest import ROOT
from raw import RpcError

pytestmark = pytest.mark.in_both("a sanitizer keeps what was freed")


def read_rows():
    text = (ROOT / "protocol" / "protocol.def").read_text()
    rows = re.findall(r'^REQUEST\((\w+),\s*\d+,\s*"([^"]*)"', text, re.MULTILINE)
    assert len(rows) >= 19
    return [(name, letters.replace("f", "")) for name, letters in rows]  # which is no element


ROWS = read_rows()
GOOD = {
    "s": "gelu", "S": None, "i": 0, "b": b"", "M": {}, "h": 1 << 40, "H": None, "a": [],
    "A": None, "v": None, "m": "cuda_ipc",
}  # fmt: skip
BAD = {
    "s": [None, 1, 1.5, [], {}, True, msgpack.ExtType(5, b"x")],
    "S": [1, [], {}],
    "i": [None, "1", 1.0, [], {}, False, 1 << 63, (1 << 64) - 1],
    "b": [None, 1, [], {}],
    "M": [None, 1, "x", [1], b""],
    "h": [None, 0, -1, -(1 << 63), 1 << 63, (1 << 64) - 1, "1", 1.0, [], True],
    "H": [0, -1, 1 << 63, "1"],
    "a": [None, 1, "x", {}, b""],
    "A": [1, "x", {}],
    "v": [],
    "m": [None, 1, [], {}],
}


def test_unknown_methods(raw):
    for method in ("tensor_neu", "", "x" * 100000, "HELLO", "é" * 50, "request_hello"):
        error = raw.fail(method)
        assert error.code == "unknown_method" and error.number == 9
        assert method[:20] in str(error)
    assert raw.fail("hello\0").code == "unknown_method"
    assert raw.call("sync") is None


@pytest.mark.parametrize("method, letters", [r for r in ROWS if r[0] != "stop"])
def test_wrong_parameters_of_every_request(raw, method, letters):
    letters, _, optional = letters.partition("|")
    good = [GOOD[x] for x in letters]
    for i, letter in enumerate(letters + optional):
        for bad in BAD[letter]:
            params = [GOOD[x] for x in letters + optional]
            params[i] = bad
            error = raw.fail(method, *params)
            assert error.code == "invalid_argument", (params, str(error))
            assert method in str(error) and str(i + 1) in str(error)
    for n in range(len(letters)):
        error = raw.fail(method, *good[:n])
        assert error.code == "invalid_argument" and "missing" in str(error)
    error = raw.fail(method, *good, *[GOOD[x] for x in optional], None)
    assert error.code == "invalid_argument" and "at most" in str(error)


def test_stop_takes_no_parameters(raw):
    assert raw.fail("stop", 1).code == "invalid_argument"


def test_duplicate_keys_and_odd_maps(raw):
    raw.make(1, "float32", [2])
    two = b"\x82\xabapproximate\xa4tanh\xabapproximate\xa4none"
    raw.send(
        b"\x94\x00\x05"
        + msgpack.packb("forward")
        + b"\x94"
        + msgpack.packb("gelu")
        + b"\x91\x01"
        + two
        + b"\x91\x02"
    )
    raw.wait(5)
    assert raw.fail("forward", "gelu", [1], {1: 2}, [3]).code == "invalid_argument"
    assert raw.fail("forward", "gelu", [1], {None: 2}, [3]).code == "invalid_argument"
    assert raw.call("forward", "gelu", [1], {}, [3], {"unheard of": 1})


# --- operators


def test_an_unknown_operator_is_guessed(raw):
    raw.make(1, "float32", [2])
    error = raw.fail("forward", "gleu", [1], {}, [2])
    assert error.code == "not_found" and "did you mean" in str(error) and "gelu" in str(error)
    assert "gelu" in str(raw.fail("op_info", "gel"))
    assert raw.fail("op_info", "x" * 1000).code == "not_found"
    assert raw.fail("op_info", "").code == "not_found"


@pytest.mark.parametrize(
    "inputs, attrs, outputs, options, expected",
    [
        ([2], {}, [10], {}, "int32"),
        ([3], {}, [10], {}, "rank 1"),
        ([], {}, [10], {}, "x"),
        ([None], {}, [10], {}, "x"),
        ([1, 1], {}, [10], {}, "takes 1"),
        ([99], {}, [10], {}, "no tensor 99"),
        (["1"], {}, [10], {}, "a string"),
        ([-1], {}, [10], {}, "id"),
        ([(1 << 64) - 1], {}, [10], {}, "id"),
        ([1], {"approximate": "tang"}, [10], {}, "tanh"),
        ([1], {"approximate": "x" * 100000}, [10], {}, "approximate"),
        ([1], {"approximate": 1}, [10], {}, "approximate"),
        ([1], {"approximate": None}, [10], {}, "approximate"),
        ([1], {"approximate": ["tanh"]}, [10], {}, "approximate"),
        ([1], {"aproximate": "tanh"}, [10], {}, "approximate"),
        ([1], {"x" * 1000: "tanh"}, [10], {}, "attribute"),
        ([1], {}, [], {}, "expected 1"),
        ([1], {}, [10, 11], {}, "expected 1"),
        ([1], {}, [1], {}, "in use"),
        ([1], {}, [0], {}, "id"),
        ([1], {}, [None], {}, "id"),
        ([1], {}, ["a"], {}, "id"),
        ([1], {}, [1 << 63], {}, "id"),
        ([1], {}, [10], {"deadline": -1}, "deadline"),
        ([1], {}, [10], {"deadline": "soon"}, "deadline"),
        ([1], {}, [10], {"context": 0}, "context"),
        ([1], {}, [10], {"context": "x"}, "context"),
        ([1], {}, [10], {"context": 1 << 63}, "context"),
        ([1], {}, [10], {"device": "cuda:99"}, "device"),
        ([1], {}, [10], {"device": 5}, "device"),
    ],
)
def test_arguments_that_do_not_fit(raw, inputs, attrs, outputs, options, expected):
    raw.make(1, "float32", [2, 3])
    raw.make(2, "int32", [2, 3])
    if inputs == [3]:
        inputs, name = [3, 1], "depthwise_conv2d"
        raw.make(3, "float32", [4])
    else:
        name = "gelu"
    error = raw.fail("forward", name, inputs, attrs, outputs, options)
    assert error.code in ("invalid_argument", "not_found"), str(error)
    assert error.op == name and expected in str(error), str(error)
    assert raw.fail("tensor_info", 10).code == "not_found"
    assert raw.call("forward", "gelu", [1], {}, [10])


@pytest.mark.parametrize(
    "x, w, bias, attrs, expected",
    [
        ([2, 3, 9], [6, 1, 3, 3], [6], {}, "rank 3"),
        ([2, 3, 9, 9], [7, 1, 3, 3], [7], {}, "7"),
        ([2, 3, 9, 9], [6, 2, 3, 3], [6], {}, "dimension 1"),
        ([2, 3, 9, 9], [6, 1, 3, 3], [5], {}, "bias"),
        ([2, 3, 9, 9], [6, 1, 10, 10], [6], {}, ""),
        ([2, 3, 9, 9], [6, 1, 3, 3], [6], {"stride": 0}, "stride"),
        ([2, 3, 9, 9], [6, 1, 3, 3], [6], {"stride": -1}, "stride"),
        ([2, 3, 9, 9], [6, 1, 3, 3], [6], {"stride": [1, 2, 3]}, "stride"),
        ([2, 3, 9, 9], [6, 1, 3, 3], [6], {"stride": [1, 2, 3, 4, 5, 6]}, "stride"),
        ([2, 3, 9, 9], [6, 1, 3, 3], [6], {"stride": []}, "stride"),
        ([2, 3, 9, 9], [6, 1, 3, 3], [6], {"stride": 1.5}, "stride"),
        ([2, 3, 9, 9], [6, 1, 3, 3], [6], {"stride": "1"}, "stride"),
        ([2, 3, 9, 9], [6, 1, 3, 3], [6], {"stride": True}, "stride"),
        ([2, 3, 9, 9], [6, 1, 3, 3], [6], {"stride": {}}, "stride"),
        ([2, 3, 9, 9], [6, 1, 3, 3], [6], {"stride": [[1], 2]}, "stride"),
        ([2, 3, 9, 9], [6, 1, 3, 3], [6], {"padding": -1}, "padding"),
        ([2, 3, 9, 9], [6, 1, 3, 3], [6], {"padding": (1 << 63) - 1}, ""),
        ([2, 3, 9, 9], [6, 1, 3, 3], [6], {"padding": (1 << 64) - 1}, "padding"),
        ([2, 3, 9, 9], [6, 1, 3, 3], [6], {"padding": 1 << 40}, ""),
        ([2, 3, 9, 9], [6, 1, 3, 3], [6], {"dilation": 0}, "dilation"),
        ([2, 3, 9, 9], [6, 1, 3, 3], [6], {"dilation": 1 << 62}, ""),
        ([2, 3, 9, 9], [0, 1, 3, 3], [0], {}, None),
    ],
)
def test_sizes_and_attributes_that_do_not_fit(raw, x, w, bias, attrs, expected):
    raw.make(1, "float32", x)
    raw.make(2, "float32", w)
    raw.make(3, "float32", bias)
    if expected is None:  # an empty tensor may be fine; it must be answered, that is all
        id = raw.request("forward", "depthwise_conv2d", [1, 2, 3], attrs, [4])
        try:
            raw.wait(id)
        except RpcError as error:
            assert error.code == "invalid_argument"
        return
    error = raw.fail("forward", "depthwise_conv2d", [1, 2, 3], attrs, [4])
    assert error.code in ("invalid_argument", "out_of_memory"), str(error)
    assert error.op == "depthwise_conv2d" and expected in str(error), str(error)


def test_dtypes_that_do_not_agree(raw):
    raw.make(1, "float32", [1, 1, 5, 5])
    raw.make(2, "float64", [1, 1, 3, 3])
    error = raw.fail("forward", "depthwise_conv2d", [1, 2], {}, [3])
    assert "weight" in str(error) and "float64" in str(error) and "float32" in str(error)


def test_backward_that_does_not_fit(raw):
    raw.make(1, "float32", [4])
    raw.call("forward", "gelu", [1], {}, [2], {"context": 1})
    raw.make(3, "float32", [5])
    raw.make(4, "float64", [4])
    raw.make(5, "float32", [4])
    for params in (
        (1, [3], [10]), (1, [4], [10]), (1, [99], [10]), (1, ["x"], [10]), (1, [5, 5], [10]), (1, [5], []),
        (1, [5], [10, 11]), (1, [5], [1]), (1, [5], [0]), (1, [5], [1.5]), (1, [5], [10], {"deadline": 0}),
        (2, [5], [10]),
    ):  # fmt: skip
        assert raw.fail("backward", *params).code in ("invalid_argument", "not_found"), params
        assert raw.fail("tensor_info", 10).code == "not_found"
    assert raw.fail("forward", "gelu", [1], {}, [6], {"context": 1}).code == "invalid_argument"
    assert raw.fail("free", "context", [1, 2]).code == "not_found"
    assert raw.fail("free", "context", ["1"]).code == "not_found"
    raw.call("backward", 1, [5], [10])
    raw.call("backward", 1, [None], [11])
    raw.call("backward", 1, [5], [None])
    raw.call("tensor_write", 1, 0, bytes(4))
    assert "written" in str(raw.fail("backward", 1, [5], [12]))
    raw.call("free", "context", [1, 1])
    assert raw.fail("backward", 1, [5], [13]).code == "not_found"
