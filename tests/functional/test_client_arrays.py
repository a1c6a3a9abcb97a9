"""What arrays are used to be asked, of tensors in the daemon; beside NumPy."""

import operator

import numpy as np
import pytest

import opd
from operators import put_kernels

pytestmark = pytest.mark.unsanitized("of the client in Python")


@pytest.mark.parametrize("key", [
    3, -1, (0, 2), (3, -1, 1), slice(1, 3), slice(2, None), slice(None, -1), slice(3, 1), (1, slice(0, 2)),
    (..., ), (2, ...), (1, slice(None), slice(None)), (1, 2, slice(1, 4)), slice(None), (), np.int64(2),
])  # fmt: skip
def test_parts_are_views(client, key):
    array = np.arange(4 * 3 * 5, dtype=np.float32).reshape(4, 3, 5)
    x = client.tensor(array)
    part = x[key]
    assert part.shape == array[key].shape and np.array_equal(part.numpy(), array[key])
    if part.size:
        part.write(np.full(part.shape, -1, np.float32))
        array[key] = -1
        assert np.array_equal(x.numpy(), array)


@pytest.mark.parametrize("key, message", [
    (4, "out of a dimension of 4"), (-5, "out of"), ((0, 0, 0, 0), "too many indices"),
    (slice(None, None, 2), "step of a slice is 2, expected 1"), ((slice(None), 1), "no part in one piece"),
    ((slice(0, 2), slice(0, 2)), "no part in one piece"), ("a", "is no index"), (None, "is no index"),
    (True, "is no index"), (1.0, "is no index"), ([0, 1], "is no index"),
    ((0, 0, 0, slice(None)), "no part in one piece"),
])  # fmt: skip
def test_other_parts_are_errors(client, key, message):
    with pytest.raises(IndexError, match=message):
        client.tensor(np.zeros((4, 3, 5)))[key]


def test_sizes_and_shapes(client):
    array = np.arange(24.0).reshape(2, 3, 4)
    x = client.tensor(array)
    assert (x.ndim, x.size) == (3, 24)
    for shape in [(24,), (4, 6), (-1,), (2, -1), (3, 2, -1, 2), ((6, 4),), ([4, -1],), (1, 24)]:
        assert np.array_equal(x.reshape(*shape).numpy(), array.reshape(*shape))
    for shape in [(5, 5), (-1, -1), (-1, 5), (-2, -12), (0, -1), ()]:
        with pytest.raises(opd.InvalidArgument, match="cannot reshape"):
            x.reshape(*shape)
    assert client.tensor(2.0).reshape(1, 1).shape == (1, 1)
    assert client.tensor([2.0]).reshape(()).shape == ()
    assert np.array_equal(x.view(4, 3).numpy(), array.reshape(-1)[:12].reshape(4, 3))
    assert np.array_equal(x.view(3, -1).numpy(), array.reshape(3, -1))
    assert np.array_equal(x.view(-1, 5, offset=4).numpy(), array.reshape(-1)[4:].reshape(-1, 5))
    for shape, offset in [((-1, 5), 0), ((-1, -1), 0), ((-1,), 25), ((-2,), 0)]:
        with pytest.raises(opd.InvalidArgument):
            x.view(*shape, offset=offset)
    assert np.array_equal(x.T.numpy(), array.T) and x.T.shape == (4, 3, 2)
    assert np.array_equal(x[0, 1].T.numpy(), array[0, 1])
    assert np.array_equal(x[0].T[1].numpy(), array[0].T[1])
    column = x[0].T[1]  # with strides, though of one dimension
    assert np.array_equal(column.T.numpy(), array[0].T[1])
    assert np.array_equal(column.view(3, 1, strides=(4, 1)).T.numpy(), array[:1, :, 1])
    with pytest.raises(opd.InvalidArgument, match="view with strides"):
        x.T.reshape(24)
    assert client.tensor(np.zeros((2, 0, 3))).T.shape == (3, 0, 2)
    assert [row.tolist() for row in client.tensor([[1, 2], [3, 4]])] == [[1, 2], [3, 4]]
    with pytest.raises(TypeError, match="rank 0"):
        iter(client.tensor(1.0))


def test_parts_are_written(client):
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    x = client.tensor(array)
    for key, value in [(0, 7), (slice(1, 3), np.ones(6)), ((3, 2), 5.5), (slice(3, None), array[:1]), (-1, range(6))]:
        x[key] = array[key] = value
        assert np.array_equal(x.numpy(), array)
    x[2] = x[1] + 1
    x[0] *= 2
    assert x[2].tolist() == 6 * [2] and x[0].tolist() == 6 * [14]
    for key, value, error in [(0, np.ones(5), ValueError), (0, "a", TypeError), (4, 1, IndexError)]:
        with pytest.raises(error):
            x[key] = value


def test_arithmetic(client):
    a, b = np.array([1.0, -2.0, 3.5], np.float32), np.array([[2.0], [4.0]], np.float32)
    x, y = client.tensor(a), client.tensor(b)
    pairs = [
        (x + y, a + b), (x - y, a - b), (x * y, a * b), (x / y, a / b), (-x, -a), (x + 1, a + 1), (2 - x, 2 - a),
        (3 * x, 3 * a), (1 / y, 1 / b), (b + x, b + a), (x - b, a - b), (b / x, b / a),
    ]  # fmt: skip
    for got, expected in pairs:
        assert isinstance(got, opd.Tensor) and got.dtype == np.float32
        assert np.allclose(got.numpy(), expected, rtol=1e-6)
    x += 1
    assert np.array_equal(x.numpy(), a + 1)
    for wrong in (lambda: x + "1", lambda: x + None, lambda: x < y, lambda: x @ y):
        with pytest.raises(TypeError, match="unsupported operand|not supported"):
            wrong()
    assert x == x and x != y and x in [y, x] and len({x, y}) == 2


def test_comparisons_by_an_operator_of_ones_own(tmp_path, start_daemon):
    source = (
        "//! op      lt(Tensor a, Tensor b) -> Tensor y\n//! dtypes  float32\n"
        "//! formula y = a < b\n//! example a=[3] b=[3]\n"
    )
    equal = source.replace("lt(", "eq(").replace("a < b", "a == b")
    with start_daemon("--kernels", put_kernels(tmp_path, lt=source, eq=equal)).connect() as client:
        x = client.tensor(np.array([1.0, 2.0, 3.0], np.float32))
        assert (x < 2).tolist() == [1, 0, 0]
        assert (2 > x).tolist() == [1, 0, 0]
        assert (x == 2).tolist() == (2 == x).tolist() == [0, 1, 0]


def test_what_is_equal(client):
    x, y = client.tensor([1.0, 2.0]), client.tensor([1.0, 2.0])
    for number in (2, 2.5, True, np.float32(2), np.ones(2)):
        for compare in (operator.eq, operator.ne):
            with pytest.raises(TypeError, match="has no operator '(eq|ne)'"):
                compare(x, number)
    assert x == x and x != y and x != None and x != "2" and x in {x: 1} and y not in {x: 1}  # noqa: E711
    assert 2 in x and 5 not in x and client.tensor(1.0) in x and np.float32(1) in x


def test_numbers(client):
    x = client.tensor(2.5)
    assert (float(x), int(x), x.tolist(), bool(x)) == (2.5, 2, 2.5, True)
    assert float(client.tensor([[3.0]])) == 3
    assert ["a", "b"][client.tensor(1)] == "b"
    with pytest.raises(TypeError, match="is no index"):
        ["a", "b"][client.tensor(1.0)]
    for convert in (float, int):
        with pytest.raises(ValueError):
            convert(client.tensor([1.0, 2.0]))
    assert client.tensor([[1, 2], [3, 4]]).tolist() == [[1, 2], [3, 4]]


def test_dtypes_equal_others(client):
    for name in ("float32", "int64", "bool", "uint8", "float16"):
        dtype = client.zeros([2], name).dtype
        assert dtype == name and dtype == np.dtype(name) and np.dtype(name) == dtype
        assert dtype == getattr(np, name if name != "bool" else "bool_") and not dtype != np.dtype(name)
        assert dtype != np.float64 and dtype != "float64" and dtype != None and dtype != 3  # noqa: E711
        assert np.zeros(2, dtype).dtype == name and {dtype: 1}[name] == 1
        assert client.zeros([2], dtype).dtype == dtype
    torch = pytest.importorskip("torch")
    assert client.zeros([2], "bfloat16").dtype == torch.bfloat16


def test_repr_shows_a_few_values(client):
    assert repr(client.tensor(1.5)).endswith(": 1.5>")
    assert repr(client.tensor([1, 2])).endswith(": [1, 2]>")
    many = np.arange(1000.0)
    assert repr(client.tensor(many)).endswith(f": {np.array2string(many, separator=', ', threshold=9)}>")
    assert repr(client.zeros([0, 3])).endswith(": []>")
    x = client.tensor([1.0])
    with client.batch():
        assert repr(x).endswith(f"on {x.device}>")
    assert repr(client.tensor(np.arange(6).reshape(2, 3)).T).endswith(":\n[[0, 3],\n [1, 4],\n [2, 5]]>")
