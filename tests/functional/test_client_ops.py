"""Operators through the Python client, against the real daemon."""

import inspect

import numpy as np
import pytest

import opd

pytestmark = pytest.mark.unsanitized("of the client in Python")


def gelu(x):
    return x / (1 + np.exp(-1.702 * x))


def gelu_grad(x):
    s = 1 / (1 + np.exp(-1.702 * x))
    return s + 1.702 * x * s * (1 - s)


@pytest.fixture
def array():
    return np.random.default_rng(0).standard_normal((3, 5))


def test_a_call(client, array):
    y = client.ops.gelu(client.tensor(array))
    assert (y.shape, y.dtype) == ((3, 5), "float64")
    np.testing.assert_allclose(y.numpy(), gelu(array), rtol=1e-12)


def test_operators_are_functions(client):
    op = client.ops.gelu
    assert op.__name__ == "gelu" and inspect.isfunction(op)
    assert str(inspect.signature(op)) == (
        "(x: 'Tensor', *, approximate: 'str' = 'sigmoid', deadline: 'Optional[float]' = None, "
        "version: 'Optional[int]' = None, debug: 'bool' = False) -> 'Tensor'"
    )
    assert op.schema in op.__doc__ and "approximate: one of sigmoid" in op.__doc__
    assert op.schema.startswith("gelu(Tensor x")
    assert op.version >= 1
    assert "gelu" in dir(client.ops)
    assert client.ops["gelu"] is op
    with pytest.raises(AttributeError, match=r"no operator 'gelo'; did you mean 'gelu'\?$"):
        client.ops.gelo
    assert not hasattr(client.ops, "gelo")


def test_operators_are_methods(client, array):
    x = client.tensor(array)
    np.testing.assert_array_equal(
        x.gelu(approximate="tanh").numpy(), client.ops.gelu(x, approximate="tanh").numpy()
    )
    assert "gelu" in dir(x)
    with pytest.raises(AttributeError, match="gelo"):
        x.gelo
    assert hasattr(x, "__cuda_array_interface__") == x.device.startswith("cuda")


def test_every_operators_examples_run(client):
    infos = client._conn.call("op_list")
    rng = np.random.default_rng(0)
    for info in infos:
        for example in info["examples"]:

            def make(i, spec):
                if isinstance(i, list):
                    return [make(each, spec) for each in i]
                if i is None:
                    return None
                a = np.asarray(rng.random(i["shape"]))
                # what may be integers stands for classes or indices, also where it is floating
                return client.tensor(np.floor(a) if "int64" in spec["dtypes"] else a, i["dtype"])

            inputs = [make(i, spec) for i, spec in zip(example["inputs"], info["inputs"])]
            outputs = client.ops[info["name"]](*inputs, **example["attrs"])
            for y in outputs if isinstance(outputs, tuple) else [outputs]:
                assert y is None or y.numpy().shape == y.shape


def test_arrays_and_numbers_as_arguments(client, array):
    np.testing.assert_allclose(client.ops.gelu(array).numpy(), gelu(array), rtol=1e-12)
    assert client.ops.gelu(array.astype(np.float32)).dtype == "float32"
    x = client.tensor(array.astype(np.float32))
    if "add" in dir(client.ops):
        assert x.add(x.numpy()).dtype == "float32"


def test_backward(client, array):
    y, ctx = client.ops.gelu.forward(array)
    np.testing.assert_allclose(y.numpy(), gelu(array), rtol=1e-12)
    (gx,) = ctx.backward(np.ones_like(array))
    np.testing.assert_allclose(gx.numpy(), gelu_grad(array), rtol=1e-10)
    (again,) = ctx.backward(client.tensor(2 * np.ones_like(array)))
    np.testing.assert_allclose(again.numpy(), 2 * gelu_grad(array), rtol=1e-10)
    (none,) = ctx.backward(None)
    assert not none.numpy().any()
    with pytest.raises(TypeError, match="takes 1 gradient, not 2"):
        ctx.backward(1.0, 1.0)
    with pytest.raises(TypeError, match="no gradient of z; it has x"):
        ctx.backward(None, wanted=("z",))
    ctx.free()
    with pytest.raises(opd.NotFound, match="freed"):
        ctx.backward(None)


def test_backward_after_an_input_was_changed(client, array):
    x = client.tensor(array)
    _, ctx = client.ops.gelu.forward(x)
    x.write(array + 1)
    with pytest.raises(opd.InvalidArgument):
        ctx.backward(np.ones_like(array))


def test_a_context_outlives_its_tensors(client, array):
    _, ctx = client.ops.gelu.forward(array)
    client.synchronize()
    client.tensor(np.zeros((100, 100)))
    np.testing.assert_allclose(
        ctx.backward(np.ones_like(array))[0].numpy(), gelu_grad(array), rtol=1e-10
    )


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda op, x: op(), r"gelu\(\) missing a required argument: 'x'"),
        (lambda op, x: op(None), r"gelu\(\) argument 'x' must be a tensor"),
        (lambda op, x: op(x, "tanh"), r"gelu\(\) too many positional arguments"),
        (lambda op, x: op(x, aproximate="tanh"), "'aproximate'; did you mean 'approximate'"),
        (lambda op, x: op(x, approximate=1), "argument 'approximate' must be str, not int 1"),
        (lambda op, x: op(x, deadline=0), "argument 'deadline' must be seconds above 0, not 0"),
    ],
)
def test_wrong_arguments(client, array, call, message):
    with pytest.raises(TypeError, match=message):
        call(client.ops.gelu, client.tensor(array))


def test_the_daemons_errors(client):
    with pytest.raises(opd.InvalidArgument, match="approximate.*tahn.*sigmoid") as e:
        client.ops.gelu(client.zeros(3), approximate="tahn")
    assert e.value.code == "invalid_argument" and e.value.op == "gelu"
    with pytest.raises(opd.InvalidArgument, match="int32"):
        client.ops.gelu(client.zeros(3, "int32"))
    assert client.ops.gelu(client.zeros(3)).shape == (3,)


def test_batch(client, array):
    with client.batch():
        x = client.tensor(array)
        for _ in range(100):
            x = x.gelu()
        assert repr(x) in ("<opd.Tensor, not yet known>", repr(x))
        assert x.shape == array.shape
        y, ctx = client.ops.gelu.forward(x)
        (gx,) = ctx.backward(client.tensor(np.ones_like(array)))
    expected = array
    for _ in range(100):
        expected = gelu(expected)
    np.testing.assert_allclose(x.numpy(), expected, rtol=1e-10)
    np.testing.assert_allclose(gx.numpy(), gelu_grad(expected), rtol=1e-10)


def test_batch_raises_the_cause(client, array):
    x = client.tensor(array)
    with pytest.raises(opd.InvalidArgument, match="tahn"):
        with client.batch():
            y = client.ops.gelu(x, approximate="tahn")
            z = client.ops.gelu(y)
            client.ops.gelu(x)
    with pytest.raises(opd.NotFound):
        z.shape
    with client.batch():
        client.ops.gelu(x, approximate="tahn")
        with pytest.raises(opd.InvalidArgument, match="tahn"):
            client.synchronize()
    client.synchronize()


def test_status(client):
    status = client.status()
    assert status["connections"] >= 1
    assert status["requests"]["hello"] >= 1
    assert [d["state"] for d in status["devices"]] == ["ready"]


def test_operators_as_a_collection(client):
    assert "gelu" in client.ops and "gellu" not in client.ops and 3 not in client.ops
    names = list(client.ops)
    assert names == dir(client.ops) and "gelu" in names and len(client.ops) == len(names)
