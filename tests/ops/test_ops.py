"""Every operator that the daemon reports, forward and backward, against float64.

The cases are the operator's examples, as the daemon reports them, and those of references.py.
Inputs are rounded to the dtype under test first, so that the error is the operator's own.
"""

import itertools
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import DEVICE, PROGRAM, ROOT, TEST_SECONDS
from references import (
    BOUNDS,
    DOMAINS,
    ELSEWHERE,
    REFERENCES,
    SATURATED,
    as_shipped,
    each,
    is_wanted,
    relative_error,
)

import opd

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32,
          "float64": torch.float64}


def examples(info):
    for example in info["examples"]:
        shapes = [i and i["shape"] for i in example["inputs"]]
        yield shapes, example["attrs"]


def cases(info, dtype):
    _, more = REFERENCES[info["name"]]
    return [*examples(info), *(case for case in more if is_wanted(case, dtype))]


def operators(client):
    return {info["name"]: info for info in client._conn.call("op_list")}


def make_inputs(info, shapes, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    domain = DOMAINS.get(info["name"], lambda x: x)
    return [
        None if shape is None else
        domain(torch.randn(shape, generator=generator, dtype=torch.float64)).to(DTYPES[dtype])
        for shape in shapes + [None] * (len(info["inputs"]) - len(shapes))
    ]


def full_attrs(info, attrs):
    values = {a["name"]: a["default"] for a in info["attrs"]}
    for name, value in attrs.items():
        spec = next(a for a in info["attrs"] if a["name"] == name)
        alone = spec["list"] and value is not None and not isinstance(value, list)
        values[name] = [value] * spec["list"] if alone else value
    return values


def to_torch(tensor):
    """In float64, exactly: NumPy has no bfloat16 of its own."""
    return torch.from_numpy(tensor.numpy().astype(np.float64))


def as_tuple(value):
    return value if isinstance(value, tuple) else (value,)


def run_reference(name, inputs, attrs, grads):
    """Outputs and gradients in float64."""
    function, _ = REFERENCES[name]
    leaves = [None if x is None else x.double().requires_grad_() for x in inputs]
    outputs = as_tuple(function(*leaves, **attrs))
    given = [g.double() for g in grads(outputs)]
    wanted = [x for x in leaves if x is not None]
    found = iter(torch.autograd.grad(outputs, wanted, given, allow_unused=True))
    return outputs, [None if x is None else next(found) for x in leaves]


@pytest.mark.parametrize("dtype", each(DTYPES))
@pytest.mark.parametrize("name", REFERENCES)
def test_forward_and_backward(client, name, dtype, record_worst):
    """Of all cases one direction, then the other: their kernels are compiled beside each other."""
    info = operators(client)[name]
    runs = []
    with client.batch():
        for shapes, attrs in cases(info, dtype):
            inputs = make_inputs(info, shapes, dtype)
            tensors = [None if x is None else client.tensor(x, dtype=dtype) for x in inputs]
            runs.append((shapes, attrs, inputs, *client.ops[name].forward(*tensors, **attrs)))

    def check(got, ref, what):
        error = relative_error(to_torch(got), ref)
        assert error <= BOUNDS[dtype], f"{name} {dtype} {shapes} {attrs}: {what}: error {error:.2e}"
        record_worst(name, dtype, what, error)

    made, expected_grads = [], []
    for shapes, attrs, inputs, outputs, _ in runs:
        grad_seed = torch.Generator().manual_seed(1)

        def grads(outputs):
            made.append([torch.randn(o.shape, generator=grad_seed, dtype=torch.float64).to(DTYPES[dtype])
                         for o in outputs])  # fmt: skip
            return made[-1]

        expected, slopes = run_reference(name, inputs, full_attrs(info, attrs), grads)
        expected_grads.append(slopes)
        for out, ref in zip(as_tuple(outputs), expected):
            assert out.dtype == dtype
            check(out, ref.detach(), "forward")
    with client.batch():
        found = [ctx.backward(*[client.tensor(g, dtype=dtype) for g in given])
                 for (*_, ctx), given in zip(runs, made)]  # fmt: skip
    for (shapes, attrs, *_), got, slopes in zip(runs, found, expected_grads):
        for spec, out, ref in zip(info["inputs"], got, slopes):
            assert (out is None) == (ref is None or not spec["differentiable"]), spec["name"]
            if out is not None:
                check(out, ref, f"grad_{spec['name']}")


@pytest.mark.parametrize("name", REFERENCES)
def test_every_case_is_planned_in_every_dtype(client, name):
    """Of what is computed on a GPU alone, too: a header's sizes and choices are the same ones here."""
    info = operators(client)[name]
    inputs = info["inputs"]
    for shapes, attrs in [*examples(info), *REFERENCES[name][1]]:
        for dtype in DTYPES:
            given = shapes + [None] * (len(inputs) - len(shapes))
            plan = client.plan(name, [s if s is None else (dtype, s) for s in given], full_attrs(info, attrs))
            assert plan["outputs"]


def test_every_operator_has_a_reference(client):
    missing = set(operators(client)) - set(REFERENCES) - set(ELSEWHERE)
    assert not missing, f"no reference for {sorted(missing)}: add them to references.py"


@pytest.mark.parametrize("name", [*REFERENCES, *ELSEWHERE])
def test_gradients_are_proved(name):
    """opctl check --grad, which knows nothing of the reference: float64 on the CPU, every example."""
    opctl = Path(PROGRAM).parent / "opctl"
    path = ROOT / "kernels_src" / f"{name}.cu"
    done = subprocess.run([opctl, "check", "--grad", path], env={**os.environ, "OPD_BIN": PROGRAM},
                          timeout=TEST_SECONDS, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", REFERENCES)
def test_every_subset_of_gradients(client, name):
    """Each gradient alone is the same as among all, however it is computed then."""
    info = operators(client)[name]
    for shapes, attrs in examples(info):
        tensors = [None if x is None else client.tensor(x.numpy())
                   for x in make_inputs(info, shapes, "float64")]
        outputs, ctx = client.ops[name].forward(*tensors, **attrs)
        grads = [client.tensor(np.ones(o.shape)) for o in as_tuple(outputs)]
        whole = [None if g is None else to_torch(g) for g in ctx.backward(*grads)]
        names = [s["name"] for s, g in zip(info["inputs"], whole) if g is not None]
        for n in range(1, len(names) + 1):
            for subset in itertools.combinations(names, n):
                part = ctx.backward(*grads, wanted=subset)
                for spec, alone, among in zip(info["inputs"], part, whole):
                    if spec["name"] not in subset:
                        assert alone is None
                    else:
                        error = relative_error(to_torch(alone), among)
                        assert error < 1e-13, (name, shapes, subset, error)


@as_shipped
@pytest.mark.parametrize("name", REFERENCES)
def test_non_contiguous_inputs(client, name):
    info = operators(client)[name]
    shapes, attrs = next(examples(info))
    inputs = [x.numpy() for x in make_inputs(info, shapes, "float32") if x is not None]
    strided = [np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 0, -1)), -1, 0) for x in inputs]
    assert any(not x.flags.c_contiguous for x in strided) or all(x.ndim < 2 for x in strided)
    first = client.ops[name](*[client.tensor(x) for x in inputs], **attrs)
    second = client.ops[name](*[client.tensor(x) for x in strided], **attrs)
    for a, b in zip(as_tuple(first), as_tuple(second)):
        assert np.array_equal(a.numpy(), b.numpy())


@as_shipped
@pytest.mark.parametrize("name", REFERENCES)
def test_inputs_that_are_views(client, name):
    """A view may begin anywhere: kernels that take 16 bytes at a time must notice."""
    info = operators(client)[name]
    shapes, attrs = next(examples(info))
    inputs = [x for x in make_inputs(info, shapes, "float32") if x is not None]
    whole = [client.tensor(x.numpy()) for x in inputs]
    views = []
    for x in inputs:
        padded = client.tensor(np.concatenate([np.zeros(1, np.float32), x.numpy().ravel()]))
        views.append(padded.view(list(x.shape), offset=1))
    a, ctx_a = client.ops[name].forward(*whole, **attrs)
    b, ctx_b = client.ops[name].forward(*views, **attrs)
    for one, other in zip(as_tuple(a), as_tuple(b)):
        assert np.allclose(one.numpy(), other.numpy(), rtol=1e-6, atol=1e-6)
    ones = [np.ones(o.shape, np.float32) for o in as_tuple(a)]
    for one, other in zip(ctx_a.backward(*ones), ctx_b.backward(*ones)):
        if one is not None:
            assert np.allclose(one.numpy(), other.numpy(), rtol=1e-5, atol=1e-5)


@as_shipped
@pytest.mark.parametrize("name", REFERENCES)
def test_special_values_and_poison(client, name):
    """Every element of an output is written: the memory it gets is dirty, never zero by luck."""
    info = operators(client)[name]
    shapes, attrs = next(examples(info))
    inputs = [client.tensor(x.numpy()) for x in make_inputs(info, shapes, "float32") if x is not None]
    first = [o.numpy() for o in as_tuple(client.ops[name](*inputs, **attrs))]
    for _ in range(3):
        dirt = [client.tensor(np.full(o.shape, np.nan, np.float32)) for o in first for _ in range(4)]
        for tensor in dirt:
            tensor.free()
        again = as_tuple(client.ops[name](*inputs, **attrs))
        assert all(np.array_equal(a, b.numpy()) for a, b in zip(first, again))


@as_shipped
@pytest.mark.parametrize("name", REFERENCES)
def test_wrong_dtype_and_rank_name_the_argument(client, name):
    info = operators(client)[name]
    shapes, attrs = next(examples(info))
    good = [x for x in make_inputs(info, shapes, "float32") if x is not None]
    wrong = [client.tensor(np.ones(x.shape, np.int32)) for x in good]
    if "int32" in info["inputs"][0]["dtypes"]:
        client.ops[name](*wrong, **attrs)
    else:
        with pytest.raises(opd.InvalidArgument, match=f"{name}: {info['inputs'][0]['name']} is int32"):
            client.ops[name](*wrong, **attrs)
    if len(good) > 1:
        mixed = [client.tensor(good[0].numpy())] + [client.tensor(x.double().numpy()) for x in good[1:]]
        with pytest.raises(opd.InvalidArgument, match=f"{name}: {info['inputs'][1]['name']} is float64"):
            client.ops[name](*mixed, **attrs)


@pytest.mark.parametrize("dtype", each(DTYPES))
@pytest.mark.parametrize("name", SATURATED)
def test_saturated(client, name, dtype, record_worst):
    info = operators(client)[name]
    for low, high in SATURATED[name]:
        if low < -5 and dtype == "float16":
            continue
        x = torch.linspace(low, high, 1000, dtype=torch.float64).to(DTYPES[dtype])
        for attrs in [{}, *(attrs for _, attrs in examples(info))]:
            given = lambda outputs: [torch.ones_like(x)]  # noqa: E731
            (y,), (grad,) = run_reference(name, [x], full_attrs(info, attrs), given)
            out, ctx = client.ops[name].forward(client.tensor(x, dtype=dtype), **attrs)
            found = ctx.backward(client.tensor(torch.ones_like(x), dtype=dtype))[0]
            for what, of, ref in (("forward", out, y.detach()), ("grad_x", found, grad)):
                error = relative_error(to_torch(of), ref)
                where = f"{name} {dtype} {attrs} from {low} to {high}: {what}: error {error:.2e}"
                assert error <= BOUNDS[dtype], where
                record_worst(name, dtype, f"{what} (saturated)", error)


@as_shipped
def test_gelu_far_out(client):
    """No overflow where the exponential does: 0 on the far left, x on the far right."""
    x = np.array([-1e4, -200, -89, -50, 0, 50, 89, 200, 1e4], np.float32)
    for approximate in ("sigmoid", "tanh", "none"):
        y, ctx = client.ops.gelu.forward(client.tensor(x), approximate=approximate)
        slope = ctx.backward(np.ones_like(x))[0].numpy()
        assert np.allclose(y.numpy(), np.maximum(x, 0), atol=1e-6), approximate
        assert np.allclose(slope, [0, 0, 0, 0, 0.5, 1, 1, 1, 1], atol=1e-6), approximate


def test_depthwise_errors(client):
    conv = client.ops.depthwise_conv2d
    x, w = client.zeros([1, 4, 5, 5]), client.zeros([3, 1, 3, 3])
    with pytest.raises(opd.InvalidArgument, match=r"weight has 3 channels in dimension 0, input has 4; "
                                                  r"expected \[4\*M, 1, KH, KW\]"):
        conv(x, w)
    with pytest.raises(opd.InvalidArgument, match="stride"):
        conv(x, client.zeros([4, 1, 3, 3]), stride=0)
    with pytest.raises(opd.InvalidArgument, match="padding"):
        conv(x, client.zeros([4, 1, 3, 3]), padding=-1)
    with pytest.raises(opd.InvalidArgument, match="dilation"):
        conv(x, client.zeros([4, 1, 3, 3]), dilation=[1, 0])
    with pytest.raises(opd.InvalidArgument, match="depthwise_conv2d"):
        conv(x, client.zeros([4, 1, 7, 7]))  # no room for the kernel
    with pytest.raises(opd.InvalidArgument, match="bias"):
        conv(x, client.zeros([4, 1, 3, 3]), client.zeros([5]))
    with pytest.raises(opd.InvalidArgument, match="rank 3"):
        conv(client.zeros([4, 5, 5]), client.zeros([4, 1, 3, 3]))


def exact_conv2d(x, w, g, stride, padding, dilation):
    """Output, and gradients for its gradient g: sums of what is inside the input alone."""
    spread = np.repeat(x, len(w) // x.shape[1], axis=1)
    y, grad_x, grad_w = np.zeros_like(g), np.zeros_like(spread), np.zeros_like(w)
    for oh, ow, kh, kw in np.ndindex(*g.shape[2:], *w.shape[2:]):
        ih, iw = oh * stride - padding + kh * dilation, ow * stride - padding + kw * dilation
        if 0 <= ih < x.shape[2] and 0 <= iw < x.shape[3]:
            y[..., oh, ow] += w[:, 0, kh, kw] * spread[..., ih, iw]
            grad_x[..., ih, iw] += w[:, 0, kh, kw] * g[..., oh, ow]
            grad_w[:, 0, kh, kw] += (g[..., oh, ow] * spread[..., ih, iw]).sum(0)
    return y, grad_x.reshape(*x.shape[:2], -1, *x.shape[2:]).sum(2), grad_w


@pytest.mark.skipif(DEVICE != "cpu", reason="a GPU's kernels multiply the zeros around a row, too")
@pytest.mark.parametrize("dtype", each(["float32", "float64"]))
@pytest.mark.filterwarnings("ignore:invalid value")
def test_depthwise_infinities(client, dtype):
    """What is not finite reaches the sums that read it, and no others; by rows and by tiles, in both layouts."""
    random = np.random.default_rng(0)
    for stride, padding, dilation, multiplier, window, channels in itertools.product(
            (1, 2, 3), (0, 2), (1, 2), (1, 2), ((3, 3), (9, 8)), (2, 67)):
        size = (np.array(window) - 1) * dilation + random.integers(1, 5, 2)
        across = (size + 2 * padding - (np.array(window) - 1) * dilation - 1) // stride + 1
        x, w, g = (random.standard_normal(shape).astype(dtype) for shape in (
            [2, channels, *size], [channels * multiplier, 1, *window], [2, channels * multiplier, *across]))
        for tensor in random.choice([0, 1, 2], random.integers(1, 3), replace=False):
            value = random.choice([np.inf, -np.inf, np.nan])
            (x, w, g)[tensor].flat[random.integers((x, w, g)[tensor].size)] = value
        attrs = {"stride": stride, "padding": padding, "dilation": dilation}
        y, ctx = client.ops.depthwise_conv2d.forward(client.tensor(x), client.tensor(w), **attrs)
        found = [t.numpy() for t in (y, *ctx.backward(client.tensor(g))[:2])]
        x_last, g_last = (client.tensor(np.ascontiguousarray(t.transpose(0, 2, 3, 1))) for t in (x, g))
        y, ctx = client.ops.depthwise_conv2d_nhwc.forward(x_last, client.tensor(w), **attrs)
        grad_x, grad_w = (t.numpy() for t in ctx.backward(g_last)[:2])
        last = y.numpy().transpose(0, 3, 1, 2), grad_x.transpose(0, 3, 1, 2), grad_w
        for what, a, b, c in zip(("output", "grad_input", "grad_weight"), found, last, exact_conv2d(x, w, g, **attrs)):
            np.testing.assert_allclose(a, c, 1e-4, 1e-4, err_msg=f"{what} {window} {channels} {attrs}")
            np.testing.assert_allclose(b, c, 1e-4, 1e-4, err_msg=f"{what}, NHWC, {window} {channels} {attrs}")
