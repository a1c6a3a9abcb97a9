"""Operators made of formulas alone: what the language gives, and what an edit of one does."""


import numpy as np
import pytest
import torch
from conftest import ROOT

import opd

pytestmark = pytest.mark.unsanitized("of what kernels work out")

FUNCTIONS = ("abs acos acosh asin asinh atan atanh cbrt ceil cos cosh digamma erf erfc exp exp10 exp2 expm1 fabs "
             "floor lgamma log log10 log1p log2 normcdf rcbrt rint round rsqrt sin sinh sqrt tan tanh "
             "tgamma trunc").split()
PAIRS = "atan2 copysign fdim fmax fmin fmod hypot max min pow remainder".split()

FILES = {
    "all_functions": "//! op all_functions(Tensor x, Tensor z) -> ("
                     + ", ".join(f"Tensor o{i}" for i in range(4)) + ")\n//! dtypes float32 float64\n"
                     + "".join(f"//! formula o{i} = " + " + ".join(
                         [f"{f}({'x + 1' if f == 'acosh' else 'x'})" for f in FUNCTIONS[i::4]]
                         + [f"{f}(x, z)" for f in PAIRS[i::4]]) + "\n" for i in range(4))
                     + "//! example x=[7] z=[7]\n",
    "gamma": "//! op gamma(Tensor x) -> Tensor y\n//! dtypes float32 float64\n"
             "//! formula y = lgamma(x) + tgamma(x)\n//! example x=[9]\n",
    "where": """\
//! op      where(Tensor mask, Tensor a, Tensor b) -> (Tensor y, Tensor chosen)
//! dtypes  float16 float32 float64
//! type    bool : mask
//! type    int32 : chosen
//! formula y = mask ? a : b
//! formula chosen = 3 * mask + (a > b && !mask)
//! formula grad_a = mask ? grad_y : 0
//! formula grad_b = (1 - mask) * grad_y
//! example mask=[9] a=[9] b=[9]
""",
    "step": """\
//! op      step(Tensor(a!) param, Tensor(b!) momentum, Tensor grad, *, float lr, float mu=0.5) -> ()
//! dtypes  float32 float64
//! formula m = mu * momentum + grad
//! formula momentum = m
//! formula param = param - lr * momentum
//! example param=[5] momentum=[5] grad=[] lr=0.5
""",
    "choice": """\
//! op      choice(Tensor x, *, str mode="half", bool negate=False, int[2] k=1, float p=2.0) -> Tensor y
//! dtypes  float32 float64
//! words   mode half square "more of it"
//! require k[0] >= 0 : "k begins with {k}"
//! let     scale = p * k[0] / 2
//! formula z = mode == "half" ? x / 2 : "square" == mode ? x * x : 10 * x
//! formula y = (negate ? -z : z) * scale + k[1] - 1 / 4
//! formula grad_x = grad_y * scale * (negate ? -1 : 1) * \\
//!           (mode == "half" ? 1 / 2 : mode != "square" ? 10 : 2 * x)
//! example x=[3] mode="square"
""",
}


def reference_functions(x, z):
    one = {
        "abs": torch.abs, "fabs": torch.abs, "cbrt": lambda v: v.sign() * v.abs() ** (1 / 3),
        "rcbrt": lambda v: 1 / (v.sign() * v.abs() ** (1 / 3)), "exp10": lambda v: 10**v,
        "normcdf": torch.special.ndtr, "rint": torch.round, "acosh": lambda v: torch.acosh(v + 1),
        "tgamma": lambda v: torch.exp(torch.lgamma(v)),
    }
    two = {"fdim": lambda a, b: torch.clamp(a - b, min=0),
           "max": torch.maximum, "min": torch.minimum,
           "remainder": lambda a, b: a - b * torch.round(a / b)}
    return [sum([one.get(f, getattr(torch, f, None))(x) for f in FUNCTIONS[i::4]]
                + [two.get(f, getattr(torch, f, None))(x, z) for f in PAIRS[i::4]]) for i in range(4)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("formulas")
    for name, text in FILES.items():
        (folder / f"{name}.cu").write_text(text)
    return folder


@pytest.fixture
def formulas(start_daemon, folder):
    daemon = start_daemon("--kernels", str(ROOT / "kernels_src"), "--kernels", str(folder))
    with daemon.connect() as client:
        client.folder = folder
        yield client


def test_functions_and_types(formulas):
    client, random = formulas, np.random.default_rng(0)
    x, z = random.uniform(0.1, 0.9, (2, 50))
    for dtype, bound in (("float64", 1e-12), ("float32", 1e-5)):
        outputs = client.ops.all_functions(client.tensor(x, dtype=dtype), client.tensor(z, dtype=dtype))
        rounded = [torch.from_numpy(v.astype(dtype)).double() for v in (x, z)]
        for out, expected in zip(outputs, reference_functions(*rounded)):
            assert np.allclose(out.numpy(), expected.numpy(), rtol=bound, atol=bound)

    mask = np.array([[True], [False]])
    a, b = random.standard_normal((2, 2, 9)).astype(np.float32)
    (y, chosen), ctx = client.ops.where.forward(mask, a, b[0])
    assert np.array_equal(y.numpy(), np.where(mask, a, b[0]))
    assert chosen.dtype == "int32"
    assert np.array_equal(chosen.numpy(), np.where(mask, 3, a > b[0]))
    none, grad_a, grad_b = ctx.backward(np.ones((2, 9), np.float32), None)
    assert none is None
    assert np.array_equal(grad_a.numpy(), np.broadcast_to(mask, (2, 9)).astype(np.float32))
    assert np.array_equal(grad_b.numpy(), np.ones(9, np.float32))


def test_the_derivatives_of_gamma_functions(formulas):
    x = np.array([-5.3, -2.5, -0.1, 1e-3, 0.5, 1, 1.4616, 3, 9.99, 12])
    for dtype, bound in (("float64", 1e-12), ("float32", 1e-5)):
        given = torch.from_numpy(x.astype(dtype)).double()
        psi = torch.digamma(given)
        expected = psi + psi * torch.exp(torch.lgamma(given)) * torch.tensor([(-1.0) ** np.floor(min(v, 0)) for v in x])
        _, context = formulas.ops.gamma.forward(formulas.tensor(x, dtype=dtype))
        grad = context.backward(formulas.tensor(np.ones_like(x), dtype=dtype))[0].numpy()
        assert np.allclose(grad, expected.numpy(), rtol=bound, atol=bound)


def test_in_place_reads_what_was_before(formulas):
    param, momentum, grad = np.random.default_rng(0).standard_normal((3, 4, 5))
    p, m = formulas.tensor(param), formulas.tensor(momentum)
    formulas.ops.step(p, m, grad[:1], lr=0.1, mu=0.9)
    assert np.allclose(m.numpy(), 0.9 * momentum + grad[:1])
    assert np.allclose(p.numpy(), param - 0.1 * momentum)
    with pytest.raises(opd.InvalidArgument, match=r"step: momentum is \[5\], expected .* \[4, 5\]"):
        formulas.ops.step(p, formulas.tensor(momentum[0]), grad, lr=0.1)


@pytest.mark.parametrize("mode", ["half", "square", "more of it"])
@pytest.mark.parametrize("negate", [False, True])
def test_attributes(formulas, mode, negate):
    x = np.random.default_rng(0).standard_normal(11)
    y, ctx = formulas.ops.choice.forward(formulas.tensor(x), mode=mode, negate=negate, k=[3, 4], p=0.5)
    sign, scale = -1 if negate else 1, 0.75
    z, slope = {"half": (x / 2, 0.5), "square": (x * x, 2 * x), "more of it": (10 * x, 10)}[mode]
    assert np.allclose(y.numpy(), sign * scale * z + 4 - 0.25)
    assert np.allclose(ctx.backward(np.ones(11))[0].numpy(), sign * scale * slope * np.ones(11))


def test_attributes_are_checked(formulas):
    with pytest.raises(opd.InvalidArgument, match="k begins with"):
        formulas.ops.choice(np.ones(3), k=[-1, 0])


def test_what_does_not_broadcast(client):
    with pytest.raises(opd.InvalidArgument, match=r"add: other is \[2, 4\], expected a shape that "
                                                  r"broadcasts with input, which is \[3\]"):
        client.ops.add(client.zeros([3]), client.zeros([2, 4]))


@pytest.mark.parametrize("shape", [[300, 1001], [1001, 300], [2, 100, 40, 3]])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_sums_are_the_same_bits_each_time(client, shape, dtype):
    """Of every set of dimensions, large enough for several stages."""
    random = np.random.default_rng(0)
    x = random.uniform(0.5, 1, shape).astype(dtype)
    for kept in range(2 ** len(shape)):
        other = [n if kept >> d & 1 else 1 for d, n in enumerate(shape)]
        _, ctx = client.ops.mul.forward(client.tensor(x), client.zeros(other, dtype=dtype))
        grad = client.tensor(np.full(shape, 1 / 64, dtype))
        first, again = (ctx.backward(grad, wanted=("other",))[1].numpy() for _ in range(2))
        axes = tuple(d for d in range(len(shape)) if not kept >> d & 1)
        expected = (x.astype(np.float64) / 64).sum(axes, keepdims=True)
        assert first.tobytes() == again.tobytes()
        assert np.allclose(first, expected, rtol=1e-5 if dtype == "float32" else 1e-3, atol=0), kept


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_far_out(client, dtype):
    """No NaN where the exponential overflows."""
    far = [-1e4, -100, -90, -88.5, -50, 0, 50, 88.5, 90, 100, 1e4]
    for name in ("sigmoid", "silu", "tanh", "elu", "relu"):
        x = client.tensor(np.array(far, np.float32), dtype=dtype)
        y, ctx = client.ops[name].forward(x)
        (slope,) = ctx.backward(client.tensor(np.ones(len(far), np.float32), dtype=dtype))
        reference = torch.tensor(far, dtype=torch.float64, requires_grad=True)
        function = getattr(torch.nn.functional, name, None) or getattr(torch, name)
        expected = function(reference)
        expected.sum().backward()
        assert np.allclose(y.numpy().astype(float), expected.detach(), rtol=4e-3, atol=1e-6), name
        assert np.allclose(slope.numpy().astype(float), reference.grad, rtol=4e-3, atol=1e-6), name


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("at", [0, 1, 3])
def test_views_and_odd_sizes(client, dtype, at):
    """Vectors are for aligned tensors of whole vectors; the rest is as right."""
    random = np.random.default_rng(0)
    for shape, other in [([37], [37]), ([4, 40], [40]), ([4, 40], [4, 1]), ([3, 13], [13]),
                         ([1001, 131], [131]), ([70, 3, 313], [3, 1]), ([31, 7, 401], [31, 1, 401])]:
        views, values = [], []
        for s in (shape, other):
            n = int(np.prod(s))
            whole = client.tensor(random.integers(-8, 8, n + at).astype(np.float32), dtype=dtype)
            views.append(whole.view(s, offset=at))
            values.append(whole.numpy().astype(np.float64)[at:].reshape(s))
        y, ctx = client.ops.mul.forward(*views)
        assert np.array_equal(y.numpy().astype(np.float64), values[0] * values[1])
        ones = client.tensor(np.ones(n := y.shape, np.float32), dtype=dtype)
        grad, grad_other = (g.numpy().astype(np.float64) for g in ctx.backward(ones))
        assert np.array_equal(grad, np.broadcast_to(values[1], n))
        axes = tuple(d for d in range(len(shape)) if d + len(other) < len(shape)
                     or other[d + len(other) - len(shape)] != shape[d])
        rounding = {"bfloat16": 2**-8, "float16": 2**-11}.get(dtype, 0)  # of sums too large for these
        assert np.allclose(grad_other.ravel(), values[0].sum(axes).ravel(), rtol=rounding, atol=0)


def test_context_keeps_what_backward_reads(client):
    """relu's derivative is made of its output: the input may change meanwhile, the output not."""
    x = client.tensor(np.ones(5))
    y, ctx = client.ops.relu.forward(x)
    x.write(np.zeros(5))
    assert np.allclose(ctx.backward(np.ones(5))[0].numpy(), 1)
    y.write(np.zeros(5))
    with pytest.raises(opd.InvalidArgument):
        ctx.backward(np.ones(5))


def test_a_broken_edit_is_told_with_its_place(formulas):
    text = """\
//! op      twice(Tensor x) -> Tensor y
//! dtypes  float32
//! formula y = {}
//! example x=[4]
"""
    path = formulas.folder / "twice.cu"

    def save(formula):
        new = path.with_suffix(".new")  # renamed, so that nobody reads a half of it
        new.write_text(text.format(formula))
        new.rename(path)
        return formulas.reload()[-1:]

    try:
        (served,) = save("x + x")
        assert served["state"] == "serving"
        assert formulas.ops.twice(np.ones(4, np.float32)).numpy().tolist() == [2] * 4
        (failed,) = save("x + siin(x)")
        assert failed["state"] == "failed"
        assert "twice.cu:3:21: there is no function 'siin'; did you mean 'sin'?" in failed["message"]
        assert failed["log"] == "//! formula y = x + siin(x)\n                    ^\n"
        assert formulas.ops.twice(np.ones(4, np.float32)).numpy().tolist() == [2] * 4
        (served,) = save("3 * x")
        assert formulas.ops.twice(np.ones(4, np.float32)).numpy().tolist() == [3] * 4
    finally:
        path.unlink()


def test_large_sum(client):
    """More elements than one stage sums well."""
    n = 3_000_001
    x = np.random.default_rng(0).uniform(0.5, 1, n).astype(np.float32)
    _, ctx = client.ops.mul.forward(client.tensor(x), client.zeros([]))
    (_, total) = ctx.backward(np.ones(n, np.float32), wanted=("other",))
    assert abs(float(total.numpy()) / x.astype(np.float64).sum() - 1) < 1e-6


# --- derived gradients

LEAKY = """\
//! op      leaky(Tensor x, Tensor scale, *, float slope=0.1) -> Tensor y
//! dtypes  float16 float32 float64
//! formula y = scale * (x > 0 ? x : slope * x)
//! example x=[9] scale=[9]
"""


@pytest.fixture
def derived(start_daemon, tmp_path):
    (tmp_path / "leaky.cu").write_text(LEAKY)
    daemon = start_daemon("--kernels", str(ROOT / "kernels_src"), "--kernels", str(tmp_path))
    with daemon.connect() as client:
        yield client


def test_gradients_are_derived_and_summed_over_what_was_repeated(derived):
    x = np.linspace(-2, 2, 40).reshape(5, 8)
    scale = np.arange(1.0, 9)
    y, context = derived.ops.leaky.forward(x, scale, slope=0.25)
    grad_x, grad_scale = (g.numpy() for g in context.backward(np.ones((5, 8))))
    assert np.array_equal(grad_x, np.where(x > 0, 1, 0.25) * scale)
    assert np.allclose(grad_scale, np.where(x > 0, x, 0.25 * x).sum(0), rtol=1e-14)


POLYNOMIAL = """\
//! op      poly(Tensor x, Tensor a, Tensor b, Tensor c, Tensor d, Tensor e) -> Tensor y
//! dtypes  float32 float64
//! formula y = a + x * (b + x * (c + x * (d + x * e)))
//! example x=[3,9] a=[9] b=[9] c=[9] d=[9] e=[9]
"""


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_that_are_summed_together(start_daemon, tmp_path, dtype):
    """More of them than one launch makes, in one part and in several; here each has the same bits by itself."""
    (tmp_path / "poly.cu").write_text(POLYNOMIAL)
    names, rng = "abcde", np.random.default_rng(0)
    with start_daemon("--kernels", str(tmp_path)).connect() as client:
        for rows in (1, 70, 3001):
            x, grad_y = (rng.uniform(-1, 1, (rows, 100)).astype(dtype) for _ in range(2))
            _, context = client.ops.poly.forward(x, *rng.uniform(-1, 1, (5, 100)).astype(dtype))
            powers = [np.power(x.astype(np.float64), i) for i in range(5)]
            wanted = [(grad_y.astype(np.float64) * power).sum(0) for power in powers]
            all_of_them = {name: g.numpy() for name, g in zip(names, context.backward(grad_y)[1:])}
            for name, expected in zip(names, wanted):
                scale = np.abs(expected).max()
                assert np.abs(all_of_them[name] - expected).max() < {"float32": 1e-5, "float64": 1e-13}[dtype] * scale
            for some in ("a", "e", "bd", "ace", "bcde"):
                grads = dict(zip(names, context.backward(grad_y, wanted=tuple(some))[1:]))
                for name in some:
                    assert np.array_equal(grads[name].numpy(), all_of_them[name]), (rows, some, name)


OWN = """\
//! op      scaled(Tensor x, Tensor? scale=None, *, bool twice=False) -> Tensor y
//! dtypes  float32 float64
//! formula s = present(scale) && !twice ? 3 * scale : present(scale) ? scale : 2
//! formula y = s * x + own::cube(0)
//! example x=[3,9]
//! example x=[3,9] scale=[9]
#include "cube.cuh"
template <class T> __device__ T
load(T x, int n = 3) { return n == 3 ? T(own::cube(x)) : x; }
"""


def test_functions_of_the_file_and_tensors_that_may_be_absent(start_daemon, tmp_path):
    (tmp_path / "cube.cuh").write_text("namespace own { template <class T> __device__ T cube(T x) "
                                       "{ return x * x * x; } }\n")
    (tmp_path / "scaled.cu").write_text(OWN.replace("own::cube(0)", "0 * x"))
    text = OWN.replace("op      scaled", "op      own").replace("s * x + own::cube(0)", "s * load(x) + load(x, 1)")
    (tmp_path / "own.cu").write_text(text)
    x, scale = np.linspace(-2, 2, 18).reshape(2, 9), np.arange(9.0)
    with start_daemon("--kernels", str(tmp_path)).connect() as client:
        assert np.allclose(client.ops.own(x).numpy(), 2 * x**3 + x, rtol=1e-14)
        assert np.allclose(client.ops.own(x, scale).numpy(), 3 * scale * x**3 + x, rtol=1e-14)
        assert [t["differentiable"] for t in client._link.call("op_info", "own")["inputs"]] == [False, True]
        y, context = client.ops.scaled.forward(x, scale, twice=True)
        assert np.allclose(y.numpy(), scale * x, rtol=1e-14)
        grad_x, grad_scale = (g.numpy() for g in context.backward(np.ones_like(x)))
        assert np.allclose(grad_x, np.broadcast_to(scale, x.shape), rtol=1e-14)
        assert np.allclose(grad_scale, x.sum(0), rtol=1e-13, atol=1e-15)
        assert np.array_equal(client.ops.scaled(np.ones(4)).numpy(), [2] * 4)  # no trace of the last scale
        _, context = client.ops.scaled.forward(x)
        grad_x, grad_scale = context.backward(np.ones_like(x))
        assert grad_scale is None and np.array_equal(grad_x.numpy(), np.full_like(x, 2))
        backward, tangent = client.ops["scaled.backward"], client.ops["scaled.tangent"]
        assert np.allclose(backward(x, x, scale)[0].numpy(), 3 * scale * x, rtol=1e-14)
        assert np.allclose(tangent(x, None, x, scale).numpy(), 3 * scale * x, rtol=1e-14)
        assert np.allclose(tangent(x, scale, x, scale).numpy(), 6 * scale * x, rtol=1e-14)
        assert np.allclose(tangent(x, None, x).numpy(), 2 * x, rtol=1e-14)


ROWS = """\
//! op      rows(Tensor x, Tensor w, *, int n=1, bool all=False) -> (Tensor y, Tensor top, Tensor total)
//! dtypes  float32 float64
//! formula t = amax(x, -n:)
//! formula y = w * (x - t) / count(-n:)
//! formula top = t - amin(x, -n:)
//! formula total = all ? x * x : mean(x * x, -n:)
//! example x=[3,9] w=[9]
"""


def test_sums_of_rows(start_daemon, tmp_path):
    """Beside NumPy: one dimension and two, rows in parts, and a tie, of which amax's gradient is shared."""
    (tmp_path / "rows.cu").write_text(ROWS)
    with start_daemon("--kernels", str(tmp_path)).connect() as client:
        for shape, n in (((3, 9), 1), ((2, 3, 5), 2), ((4,), 1), ((2, 70001), 1), ((0, 4), 1)):
            x = np.random.default_rng(0).integers(-4, 4, shape).astype(float)
            w = np.arange(1.0, shape[-1] + 1)
            axes, size = tuple(range(-n, 0)), float(np.prod(shape[-n:]))
            (y, top, total), context = client.ops.rows.forward(x, w, n=n)
            t = x.max(axes, keepdims=True)
            assert np.allclose(y.numpy(), w * (x - t) / size, rtol=1e-14)
            assert np.array_equal(top.numpy(), t - x.min(axes, keepdims=True))
            assert np.allclose(total.numpy(), (x * x).mean(axes, keepdims=True), rtol=1e-13)
            g = np.ones(top.shape)
            grad_x, grad_w = (d.numpy() for d in context.backward(np.zeros_like(x), g, 0 * g))
            high, low = x == t, x == x.min(axes, keepdims=True)
            shared = high / high.sum(axes, keepdims=True) - low / low.sum(axes, keepdims=True)
            assert np.allclose(grad_x, shared, rtol=1e-14) and not grad_w.any()
            grad_x, grad_w = (d.numpy() for d in context.backward(np.ones_like(x), 0 * g, g))
            assert np.allclose(grad_w, ((x - t) / size).reshape(-1, shape[-1]).sum(0), rtol=1e-12)
            dy = np.broadcast_to(w / size, shape)
            expected = dy - high / high.sum(axes, keepdims=True) * dy.sum(axes, keepdims=True) + 2 * x / size
            assert np.allclose(grad_x, expected, rtol=1e-10, atol=1e-12)
        assert client.ops.rows(x[:0], w, all=True)[2].shape == (0, 4)


CANNOT_BE = {
    "sum(x, 0)": "a sum over dimension 0 .'0'., expected -1, the last, or -N:, the last N",
    "sum(x, -3:)": "a sum over the dimensions '-3:' from -3 on, expected -2 to -1",
    "sum(x, -1) + sum(x)": "sums over the last 1 dimensions .'-1'. and over 2 .''.; expected the same",
    "sum(x, 1.5)": "what is summed over is '1.5', a float; expected an integer",
    "sum(x, -1, -2)": "expected '\\)', got ','",
}


def test_sums_that_cannot_be(start_daemon, tmp_path):
    text = "//! op f(Tensor x) -> Tensor y\n//! dtypes float32\n//! formula y = %s\n//! example x=[2,3]\n"
    (tmp_path / "f.cu").write_text(text % "x")
    with start_daemon("--kernels", str(tmp_path)).connect() as client:
        for formula, error in CANNOT_BE.items():
            (tmp_path / "f.cu").write_text(text % formula)
            with pytest.warns(opd.ReloadWarning, match=error):
                assert client.reload()[-1]["state"] == "failed"


def test_derivatives_are_operators_that_are_found_by_name_alone(derived):
    x, g, s = np.linspace(-2, 2, 9), np.arange(9.0), np.full(9, 3.0)
    assert not [name for name in derived.ops if "." in name]
    backward, tangent = derived.ops["leaky.backward"], derived.ops["leaky.tangent"]
    grad_x, grad_s = backward(g, x, s)
    assert np.allclose(grad_x.numpy(), np.where(x > 0, 1, 0.1) * g * s, rtol=1e-14)
    assert np.allclose(tangent(g, s, x, s).numpy(), g * np.where(x > 0, 1, 0.1) * s
                       + s * np.where(x > 0, x, 0.1 * x), rtol=1e-14)
    assert len(derived.ops["leaky.backward.backward"](g, g, g, x, s)) == 3
    assert "leaky.tangent.backward.tangent" in derived.ops and "leaky.forward" not in derived.ops
    with pytest.raises(opd.NotFound, match="only operators of formulas have derivatives"):
        derived._link.call("op_info", "lltm.backward")
    with pytest.raises(opd.NotFound, match="the derivatives of one are .backward and .tangent"):
        derived._link.call("op_info", "leaky.backwards")


def test_an_edit_is_an_edit_of_the_derivatives(derived, tmp_path):
    x, ones = np.array([-1.0, 2.0]), np.ones(2)
    backward = derived.ops["leaky.backward"]
    assert backward(ones, x, ones)[0].numpy().tolist() == [0.1, 1]
    _, before = derived.ops.leaky.forward(x, ones)
    (tmp_path / "leaky.cu").write_text(LEAKY.replace("? x :", "? x * x :"))
    assert [c["state"] for c in derived.reload()] == ["serving"]
    assert backward(ones, x, ones)[0].numpy().tolist() == [0.1, 4] and backward.version == 2
    assert backward(ones, x, ones, version=1)[0].numpy().tolist() == [0.1, 1]
    assert before.backward(ones)[0].numpy().tolist() == [0.1, 1]
    (tmp_path / "leaky.cu").write_text(LEAKY.replace("Tensor scale", "Tensor scale, Tensor more")
                                       .replace("scale *", "more + scale *").replace("scale=[9]", "scale=[9] more=[9]"))
    derived.reload()
    assert len(backward(ones, x, ones)) == 3


def test_a_wrong_gradient_is_told(derived, tmp_path):
    text = LEAKY + "//! formula grad_x = grad_y * (x > 0 ? 1 : slope)\n"
    (tmp_path / "leaky.cu").write_text(text)
    expected = r"leaky.cu:5: grad_x is not the derivative of the formulas: at x = .* it gives .*, expected"
    with pytest.warns(opd.ReloadWarning, match=expected):
        changes = derived.reload()
    assert changes[-1]["state"] == "serving" and "grad_x is not the derivative" in changes[-1]["message"]
    with pytest.warns(opd.ReloadWarning, match=expected):
        derived.ops.leaky(np.ones(3), np.ones(3))
    derived.ops.leaky(np.ones(3), np.ones(3))  # once
    (tmp_path / "leaky.cu").write_text(text.replace("grad_y *", "grad_y * scale *"))
    assert derived.reload()[-1]["message"] == ""


def test_a_derivatives_context_outlives_an_upgrade_and_an_edit(derived, tmp_path):
    x, ones = np.array([-1.0, 2.0]), np.ones(2)
    _, context = derived.ops["leaky.backward"].forward(ones, x, ones)
    derived._link.call("upgrade")
    (tmp_path / "leaky.cu").write_text(LEAKY.replace("? x :", "? x * x :"))
    derived.reload()
    grads = context.backward(ones, None)
    assert grads[0].numpy().tolist() == [0.1, 1]
