"""Gradients of operators of lists of tensors."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
from conftest import PROGRAM
from lists import DOTS, GLUS, put_all
from raw import Raw

import opd

OPCTL = Path(PROGRAM).parent / "opctl"


@pytest.fixture(scope="module")
def daemon(start_shared, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lists")
    return start_shared("--kernels", put_all(folder))


@pytest.fixture
def ops(client):
    return client.ops


def draw_dots(sizes=(4, 5, 0, 7)):
    rng = np.random.default_rng(1)
    xs = [rng.standard_normal((n, 3)) for n in sizes]
    return xs, rng.standard_normal(3), [rng.standard_normal(n) for n in sizes]


def pull_dots(xs, w, grads):
    return [np.outer(g, w) for g in grads], sum(g @ x for g, x in zip(grads, xs))


def near(found, expected):
    assert len(found) == len(expected)
    for f, e in zip(found, expected):
        np.testing.assert_allclose(f.numpy(), e, atol=1e-12)


@pytest.mark.parametrize("wanted", (None, "xs", "w"))
def test_gradients_of_kernels(client, ops, wanted):
    xs, w, grads = draw_dots()
    (ys, _), context = ops.dots.forward(xs, w)
    near(ys, [x @ w for x in xs])
    expected = pull_dots(xs, w, grads)
    for _ in range(2):
        grad_xs, grad_w = context.backward(grads, None, wanted=wanted)
        assert (grad_xs is None) == (wanted == "w") and (grad_w is None) == (wanted == "xs")
        if grad_xs is not None:
            near(grad_xs, expected[0])
        if grad_w is not None:
            near([grad_w], [expected[1]])
    grad_xs, grad_w = context.backward(None, None)
    assert not grad_w.numpy().any() and not any(g.numpy().any() for g in grad_xs)
    _, context = ops.dots.forward([], w)
    grad_xs, grad_w = context.backward([], None)
    assert grad_xs == [] and grad_w.shape == (3,) and not grad_w.numpy().any()


def unbroadcast(array, shape):
    array = array.sum(tuple(range(array.ndim - len(shape))))
    return array.sum(tuple(i for i, n in enumerate(shape) if n == 1 and array.shape[i] != 1), keepdims=True)


@pytest.mark.parametrize("n", (1, 6, 270))
@pytest.mark.parametrize("with_b", (False, True))
def test_gradients_of_formulas(client, ops, n, with_b):
    """Of lists, of what is repeated in one place, and of what all places share: more than a launch joins."""
    rng = np.random.default_rng(n)
    shapes = [((3, 4), (3, 1)), ((4,), (3, 4)), ((2, 3, 1), (1, 3, 4))]
    xs, gates = ([rng.standard_normal(shapes[i % 3][k]) for i in range(n)] for k in (0, 1))
    by, b = rng.standard_normal(4), rng.standard_normal((3, 1)) if with_b else None
    (ys, zs), context = ops.glus.forward(xs, gates, by, b)
    square = 0.0 if b is None else b
    near(ys, [x * np.tanh(g) * by + square * x * x for x, g in zip(xs, gates)])
    gys, gzs = ([rng.standard_normal(y.shape) for y in ys] for _ in range(2))
    for given in ((gys, gzs), (gys, None), (None, gzs)):
        grad_xs, grad_gates, grad_by, grad_b = context.backward(*given)
        each = [given[0] or [0.0] * n, given[1] or [0.0] * n]
        rest = list(zip(xs, gates, [np.tanh(g) for g in gates], *each, [np.zeros(y.shape) for y in ys]))
        near(grad_xs, [unbroadcast(o + gy * (t * by + 2 * square * x) + gz * 2 * np.exp(by), x.shape)
                       for x, _, t, gy, gz, o in rest])  # fmt: skip
        near(grad_gates, [unbroadcast(o + gy * x * by * (1 - t * t), g.shape) for x, g, t, gy, _, o in rest])
        near([grad_by], [sum(unbroadcast(o + gy * x * t + gz * 2 * x * np.exp(by), (4,)) for x, _, t, gy, gz, o in rest)])
        assert (grad_b is None) == (b is None)
        if b is not None:
            near([grad_b], [sum(unbroadcast(o + gy * x * x, (3, 1)) for x, _, _, gy, _, o in rest)])


def test_gradients_of_half(client, ops):
    xs, by = [np.full((5, 5), 0.5, np.float16)] * 100, np.float16(0)
    (_, zs), context = ops.glus.forward(xs, xs, by)
    _, _, grad_by, _ = context.backward(None, [np.ones((5, 5), np.float16)] * 100)
    assert grad_by.dtype == "float16" and grad_by.numpy() == 2500


def test_gradients_refused(client, ops):
    xs, w, grads = draw_dots((4, 5))
    tensors = [client.tensor(x) for x in xs]
    _, context = ops.dots.forward(tensors, w)
    for given in (grads[:1], [grads[0], None], grads[0]):
        with pytest.raises(TypeError, match=r"dots backward\(\) takes a list of 2 gradients for ys, or None"):
            context.backward(given, None)
    with pytest.raises(opd.InvalidArgument, match=r"grad_ys\[1\] is float64 \[4\], expected float64 \[5\] as the output"):
        context.backward([grads[0], grads[0]], None)
    tensors[1].write(xs[1])
    with pytest.raises(opd.InvalidArgument, match=r"dots: xs\[1\] was written after forward"):
        context.backward(grads, None)
    saved = DOTS.replace("//! forward", "//! saved more int32 [N]\n//! forward").replace("*signs,", "*signs, int *more,")
    for text, said in (
        (saved.replace("signs[i] =", "more[i] = signs[i] ="), "'saved' beside lists of tensors"),
        (GLUS.replace("tanh(gates)", "sum(gates, -1)"), "sums over rows beside lists of tensors"),
    ):
        with pytest.raises(opd.OpdError, match=said):
            client.load(text)


def test_gradients_on_the_wire(daemon):
    """By a context, by vjp, and into tensors that are there."""
    xs, w, grads = draw_dots((2, 1))
    with Raw(daemon.socket) as raw:
        raw.call("hello", "test", {})
        for id, array in zip((1, 2, 3, 4, 5, 6), (*xs, w, *grads, np.zeros((2, 3)))):
            raw.make(id, "float64", list(array.shape), array.tobytes())
        raw.make(7, "float64", [1, 3], bytes(24))
        expected = pull_dots(xs, w, grads)
        raw.call("forward", "dots", [[1, 2], 3], {}, [[10, 11], [12, 13]], {"context": 1})
        made = raw.call("backward", 1, [[4, 5], None], [[20, 21], None], {})
        assert [t["id"] for t in made[0]] == [20, 21] and made[1] is None
        for options, read in (({}, (31, 32, 33)), ({"into": [[6, 7], 33]}, (6, 7, 33))):
            ids = [None, None] if options else [[31, 32], 33]
            raw.call("vjp", "dots", [[1, 2], 3], [None, None], [], [[4, 5], None], {}, ids, options)
            for id, e in zip(read, (*expected[0], expected[1])):
                np.testing.assert_allclose(np.frombuffer(raw.call("tensor_read", id, 0, e.nbytes)), e.ravel())
        described = {"inputs": [[["float64", [2, 3]], ["float64", [1, 3]]], None]}
        raw.call("vjp", "dots", [None, 3], [], [], [[4, 5], None], {}, [[41, 42], None], described)
        for params, message in (
            ((1, [[4], None], [[50, 51], None], {}), "what is grad_ys is an array of 1, expected an array of 2 ids"),
            ((1, [4, None], [[50, 51], None], {}), "what is grad_ys is an integer of 0, expected an array of 2"),
            ((1, [[4, None], None], [[50, 51], None], {}), "grad_ys[1] is nil, expected a tensor"),
            ((1, [[4, 5], None], [[50], None], {}), "what takes grad_xs is an array of 1, expected an array of 2"),
            ((1, [[4, 5], None], [[50, 50], None], {}), "id 50 is given to two results"),
            ((1, [[4, 5], None], [None, None], {"into": [[6, 6], None]}), "grad_xs[1] is float64 [2, 3], expected float64"),
        ):
            assert message in str(raw.fail("backward", *params))


def test_gradients_go_over_an_upgrade(client, ops):
    """Those of contexts."""
    xs, w, grads = draw_dots()
    _, context = ops.dots.forward(xs, w)
    gate, by = [client.tensor(x) for x in xs], client.tensor(w)
    given = [client.tensor(np.ones_like(x)) for x in xs]
    (_, _), of_formulas = ops.glus.forward(gate, gate, by)
    before = of_formulas.backward(given, None)
    client.upgrade()
    grad_xs, grad_w = context.backward(grads, None)
    near([*grad_xs, grad_w], [*pull_dots(xs, w, grads)[0], pull_dots(xs, w, grads)[1]])
    near([*of_formulas.backward(given, None)[0]], [g.numpy() for g in before[0]])


@pytest.mark.parametrize("wrong", (False, True))
def test_gradients_are_proved(tmp_path, wrong):
    text = DOTS.replace("* w[i % C]", "* w[i % C] * (N == 5 ? 2 : 1)") if wrong else DOTS
    for name, source in (("dots", text), ("glus", GLUS)):
        (tmp_path / f"{name}.cu").write_text(source)
    done = {n: subprocess.run([OPCTL, "check", "--grad", tmp_path / f"{n}.cu"], capture_output=True, text=True)
            for n in ("dots", "glus")}  # fmt: skip
    assert done["glus"].returncode == 0, done["glus"].stdout
    assert done["dots"].returncode == int(wrong)
    assert not wrong or "dots: grad_xs[1][0, 0] is" in done["dots"].stdout
