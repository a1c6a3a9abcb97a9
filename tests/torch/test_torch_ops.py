"""Values and gradients of opd.torch.ops, and how they behave beside torch's own operators."""

import inspect
import keyword
import os
import pickle
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close
from torch_fixtures import DEVICE, device, draw, isolated, ops, torch_daemon  # noqa: F401

import opd
import opd.torch
from opd._conn import Connection

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def two_results(x, b=None, gain=1.0):
    return gain * x * torch.exp(x if b is None else x + b), 2 * x


# --- what is there


def test_operators_are_functions_with_signature_and_doc(ops):
    assert {"gelu", "depthwise_conv2d", "two_results"} <= set(dir(ops))
    assert "gelu" in ops and "gellu" not in ops and list(ops) == dir(ops) and len(ops) == len(dir(ops))
    assert ops.gelu is ops["gelu"]
    assert str(inspect.signature(ops.gelu)).startswith("(x: 'Tensor', *, approximate: 'str' = 'sig")
    assert "Gaussian error linear unit" in ops.gelu.__doc__
    assert "deadline" not in ops.gelu.__doc__
    assert ops.gelu.__name__ == "gelu" and ops.gelu.schema.startswith("gelu(Tensor x")
    assert ops.gelu.overload is torch.ops.opd.gelu.default
    with pytest.raises(AttributeError, match="no operator 'gelo'; did you mean 'gelu'"):
        ops.gelo


def test_importing_opd_does_not_import_torch():
    code = "import opd, sys; sys.exit('torch' in sys.modules)"
    env = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(opd.__file__))}
    assert subprocess.run([sys.executable, "-c", code], env=env).returncode == 0


# --- values and gradients


@pytest.mark.parametrize("dtype", DTYPES)
def test_gelu_is_torchs(ops, draw, dtype):
    x = draw(3, 50, dtype=dtype, grad=True)
    y = ops.gelu(x, approximate="tanh")
    grad = torch.ones_like(y)
    (got,) = torch.autograd.grad(y, x, grad)
    reference = x.detach().double().requires_grad_()
    expected = F.gelu(reference, approximate="tanh")
    tolerance = {"rtol": 2e-2, "atol": 1e-2} if dtype.itemsize == 2 else {}
    assert (y.dtype, y.device, y.shape) == (x.dtype, x.device, x.shape)
    assert_close(y, expected.to(dtype), **tolerance)
    assert_close(got, torch.autograd.grad(expected.sum(), reference)[0].to(dtype), **tolerance)


@pytest.mark.parametrize("bias", [False, True])
def test_depthwise_convolution_is_torchs(ops, draw, bias):
    x, w = draw(2, 3, 9, 8, grad=True), draw(6, 1, 3, 2, grad=True)
    given = [x, w] + ([draw(6, grad=True)] if bias else [])
    y = ops.depthwise_conv2d(*given, stride=(2, 1), padding=1)
    expected = F.conv2d(*given, stride=(2, 1), padding=1, groups=3)
    assert_close(y, expected)
    grad = draw(*y.shape, seed=1)
    assert_close(torch.autograd.grad(y, given, grad), torch.autograd.grad(expected, given, grad))


@pytest.mark.parametrize("compiled", [False, True])
def test_an_input_without_gradient_that_requires_grad(ops, device, compiled):
    """As with torch's operators, the result requires none."""
    function = opd.torch.PCLLoss()
    if compiled:
        torch.compiler.reset()
        function = torch.compile(function, fullgraph=True, backend="aot_eager")
    probs = torch.full((4, 3), 1 / 3, device=device)
    weights = torch.ones(4, device=device, requires_grad=True)
    one, two = torch.ones(2, device=device), torch.tensor([1, 2], device=device)
    labels = torch.tensor([0, 2, 2, 0], device=device)
    rest = (weights, labels // 2, two, one / 2, one, one, torch.tensor([1, 0, 1], device=device))
    assert not function(probs, labels, *rest).requires_grad
    probs.requires_grad_()
    loss = function(probs, labels, *rest)
    loss.backward()
    assert probs.grad is not None and weights.grad is None


def test_several_results_and_saved_tensors(ops, draw):
    x, b = draw(4, 5, grad=True), draw(4, 5, seed=1, grad=True)
    for given in ((x, b), (x,), (x, None)):
        present = [t for t in given if t is not None]
        y, z = ops.two_results(*given, gain=1.5)
        expected = two_results(*given, gain=1.5)
        assert_close((y, z), expected)
        for weights in ((1.0, 0.0), (0.0, 1.0), (0.7, -2.0)):
            got = torch.autograd.grad(
                weights[0] * y.sum() + weights[1] * z.sum(), present, retain_graph=True
            )
            want = torch.autograd.grad(
                weights[0] * expected[0].sum() + weights[1] * expected[1].sum(), present,
                retain_graph=True,
            )  # fmt: skip
            assert_close(got, want)


def test_a_result_that_is_not_used_has_no_gradient(ops, draw):
    x = draw(6, grad=True)
    assert_close(torch.autograd.grad(ops.two_results(x)[1].sum(), x)[0], torch.full_like(x, 2))


def test_only_wanted_gradients_are_computed(ops, draw):
    wanted = []
    session = opd.torch._session.get_session()
    vjp = session.vjp

    def spy(operator, tensors, descs, attrs, want, version):
        wanted.append(want)
        return vjp(operator, tensors, descs, attrs, want, version)

    session.vjp = spy
    try:
        x, w = draw(1, 2, 5, 5), draw(2, 1, 3, 3, grad=True)
        y = ops.depthwise_conv2d(x, w, draw(2))
        y.sum().backward()
    finally:
        del session.vjp
    assert wanted == [[False, True, False]]
    assert_close(w.grad, torch.autograd.grad(F.conv2d(x, w, groups=2).sum(), w)[0])


@pytest.mark.parametrize("row_dtype", [torch.int32, torch.int64])
def test_integer_input(ops, draw, device, row_dtype):
    x = draw(5, 3, grad=True)
    rows = torch.tensor([4, 0, 4, 2], device=device, dtype=row_dtype)
    y = ops.pick_rows(x, rows)
    assert_close(y, x[rows.long()])
    grad = draw(4, 3, seed=2)
    assert_close(
        torch.autograd.grad(y, x, grad), torch.autograd.grad(x[rows.long()], x, grad)
    )


def test_gradients_add_up_along_several_paths(ops, draw):
    x = draw(10, grad=True)
    y = ops.gelu(x, approximate="none")
    (ops.gelu(y, approximate="tanh") * y + x).sum().backward()
    got, x.grad = x.grad, None
    y = F.gelu(x)
    (F.gelu(y, approximate="tanh") * y + x).sum().backward()
    assert_close(got, x.grad)


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2), (), (1,)])
def test_empty_tensors_and_scalars(ops, draw, shape):
    x = draw(*shape, grad=True)
    y = ops.gelu(x, approximate="none")
    assert y.shape == x.shape
    y.backward(torch.ones_like(y))
    assert_close(x.grad, torch.autograd.grad(F.gelu(x).sum(), x)[0])


def test_any_strides(ops, draw):
    base = draw(2, 3, 6, 8)
    views = {
        "channels last": base.to(memory_format=torch.channels_last),
        "transposed": base.transpose(1, 3),
        "every other": base[..., ::2],
        "expanded": base[:1].expand(4, 3, 6, 8),
        "offset": base.flatten()[1:],
    }
    for name, view in views.items():
        x = view.detach().requires_grad_()
        y = ops.gelu(x, approximate="none")
        assert y.is_contiguous(), name
        grad = draw(*reversed(y.shape), seed=1).permute(*reversed(range(y.dim())))
        got = torch.autograd.grad(y, x, grad)
        assert_close(y, F.gelu(x).contiguous(), msg=name)
        assert_close(got, torch.autograd.grad(F.gelu(x), x, grad), msg=name)


def test_a_large_tensor(ops, draw):
    x = draw(3 << 20, dtype=torch.float32, grad=True)
    assert_close(ops.gelu(x, approximate="none"), F.gelu(x), rtol=1e-5, atol=1e-5)
    opd.torch.release()
    assert_close(ops.gelu(x[:100], approximate="none"), F.gelu(x[:100]), rtol=1e-5, atol=1e-6)


def test_results_are_torchs_own_memory(ops, draw):
    """Nothing that a later call writes."""
    results = [ops.gelu(draw(100, seed=seed)) for seed in range(20)]
    for seed, y in enumerate(results):
        assert torch.equal(y, ops.gelu(draw(100, seed=seed)))


# --- modes


def test_modes_without_gradient(ops, draw):
    x = draw(5, grad=True)
    with torch.no_grad():
        assert not ops.gelu(x).requires_grad
    with torch.inference_mode():
        y = ops.gelu(x)
        assert y.is_inference() and not y.requires_grad
        assert_close(ops.gelu(y), ops.gelu(y.clone()))
    assert ops.gelu(x).requires_grad
    assert not ops.gelu(x.detach()).requires_grad


def test_memory_that_was_first_used_in_inference_mode(ops, draw):
    opd.torch.release()
    x = draw(1 << 18)
    with torch.inference_mode():
        ops.gelu(x)
    assert_close(ops.gelu(x, approximate="none"), F.gelu(x))
    with torch.inference_mode():
        assert_close(ops.gelu(x, approximate="none"), F.gelu(x))


def test_another_default_device(ops, draw):
    opd.torch.release()
    x = draw(1 << 18, grad=True)
    torch.set_default_device("meta")
    try:
        y = ops.gelu(x, approximate="none")
        (grad,) = torch.autograd.grad(y.sum(), x)
    finally:
        torch.set_default_device(None)
    assert y.device == grad.device == x.device
    assert_close(y, F.gelu(x))


def test_functions_are_pickled_by_name(ops):
    assert pickle.loads(pickle.dumps(ops.gelu)) is ops.gelu


# --- what is checked by torch and by numbers


def test_gradcheck(ops, draw):
    check = torch.autograd.gradcheck
    assert check(lambda x: ops.gelu(x, approximate="tanh"), draw(3, 4, grad=True))
    given = draw(1, 2, 5, 4, grad=True), draw(4, 1, 3, 3, grad=True), draw(4, grad=True)
    assert check(lambda *a: ops.depthwise_conv2d(*a, stride=2, padding=(1, 0)), given)
    assert check(ops.two_results, (draw(3, 4, grad=True), draw(3, 4, seed=1, grad=True)))
    assert check(ops.two_results, (draw(3, 4, grad=True),))


def test_second_derivative_is_refused_by_name(ops, draw):
    x = draw(3, grad=True)
    (slope,) = torch.autograd.grad(ops.two_results(x)[0].sum(), x, create_graph=True)
    with pytest.raises(opd.OpdError, match="opd: two_results has no second derivative"):
        slope.sum().backward()
    with pytest.raises(opd.OpdError, match="opd: two_results has no second derivative"):
        torch.autograd.gradgradcheck(ops.two_results, (x,))


def test_forward_mode_is_refused_by_name(ops, draw):
    """Its tangent would be lost in silence."""
    from torch.autograd import forward_ad

    with forward_ad.dual_level():
        dual = forward_ad.make_dual(draw(3), draw(3, seed=1))
        with pytest.raises(opd.OpdError, match="two_results has no forward-mode derivative"):
            ops.two_results(dual)
        ops.two_results(draw(3))


def test_opcheck(ops, draw):
    check = torch.library.opcheck
    x = draw(3, 4, dtype=torch.float32, grad=True)
    check(ops.gelu.overload, (x,), {"approximate": "tanh"})
    image, weight = draw(1, 2, 5, 4, grad=True), draw(4, 1, 3, 3, grad=True)
    check(ops.depthwise_conv2d.overload, (image, weight), {"stride": 2})
    check(ops.two_results.overload, (x, x.detach()), {"gain": 0.5})
    check(ops.pick_rows.overload, (x, torch.tensor([0, 2], device=x.device)))
    check(ops.step_down.overload, (x.detach(), x.detach().clone()))
    for name in ("gelu__forward", "gelu__infer"):
        check(getattr(torch.ops.opd, name).default, (x if "forward" in name else x.detach(), "tanh"))


# --- errors


def test_errors_are_the_daemons(ops, draw, device):
    x = draw(3)
    with pytest.raises(opd.InvalidArgument, match='approximate is "tahn".*did you mean \'tanh\''):
        ops.gelu(x, approximate="tahn")
    with pytest.raises(opd.InvalidArgument, match="input has rank 1"):
        ops.depthwise_conv2d(x, x)
    with pytest.raises(opd.InvalidArgument, match="complex64"):
        ops.gelu(x.to(torch.complex64))
    with pytest.raises(opd.InvalidArgument, match="dense"):
        ops.gelu(x.to_sparse())
    with pytest.raises(RuntimeError, match="approx"):
        ops.gelu(x, approx="tanh")
    with pytest.raises(RuntimeError, match="Tensor"):
        ops.gelu(3)


def test_arguments_that_do_not_fit(ops, draw):
    x = draw(3)
    for call, text in (
        (lambda: ops.tanh(x, alpha=1), r"tanh\(\) got an unexpected keyword argument 'alpha'; it is "
                                       r"tanh\(Tensor x\) -> Tensor y"),
        (lambda: ops.add(x, 2.0), r"add\(\) argument 'other' must be a tensor, not float 2.0; it is"),
        (lambda: ops.gelu(x, approximate=3), "gelu.. argument 'approximate' must be str, not int 3"),
        (lambda: ops.gelu(), r"gelu\(\) missing a required argument: 'x'"),
        (lambda: ops.gelu(x, x), r"gelu\(\) too many positional arguments"),
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match=text):
            call()


def test_blanks_and_words_in_a_schema(ops, device):
    x = torch.ones(3, device=device)
    assert_close(ops.blanks(x), x * 1.5)
    assert_close(ops.blanks(x, lambda_=2.0, import_=False), x * 2)


def test_nothing_is_asked_for_a_call_that_works(ops, draw, device, monkeypatch, isolated):
    """Where torch's tensor is not on a device of the daemon, its values are sent, and the result's read."""
    isolated()
    sent = set() if device == DEVICE else {"tensor_new", "tensor_write", "tensor_read", "free"}
    x = draw(3)
    ops.gelu(x)
    asked = []
    send = Connection.send

    def record(self, method, *args, **rest):
        asked.append(method)
        return send(self, method, *args, **rest)

    monkeypatch.setattr(Connection, "send", record)
    ops.gelu(x)
    ops.gelu(x=x, approximate="sigmoid")
    assert asked.count("forward") == 1
    assert set(asked) <= {"prepare", "forward"} | sent  # and calls of what was prepared
    assert not {"plan", "op_list", "op_info", "events", "status"} & set(asked)


def test_tensors_of_two_devices_are_refused(ops, draw, device):
    other = torch.empty(2, 1, 3, 3, device="meta" if device == "cpu" else "cpu")
    with pytest.raises(opd.InvalidArgument, match="depthwise_conv2d: its tensors are on .*expected one"):
        opd.torch._session.find_device("depthwise_conv2d", [draw(1, 2, 5, 5), None, other])


def test_meta_tensors_give_shapes(ops):
    x = torch.empty(2, 3, 9, 8, device="meta")
    y = ops.depthwise_conv2d(x, torch.empty(3, 1, 3, 3, device="meta"), stride=2)
    assert y.device.type == "meta" and y.shape == (2, 3, 4, 3)


# --- every operator


def make_example(example, device):
    tensors = []
    for i, desc in enumerate(example["inputs"]):
        if desc is None:
            tensors.append(None)
            continue
        dtype = getattr(torch, desc["dtype"])
        values = torch.rand(desc["shape"], generator=torch.Generator().manual_seed(i))
        tensors.append((values + 0.1).to(device, dtype))  # integers: 0 or 1
    return tensors


def as_float64(tensor):
    return torch.from_numpy(tensor.numpy().astype("float64"))


def attempt(function, tensors, attrs):
    """Its results, or its error."""
    names = {f"{name}_" if keyword.iskeyword(name) else name: v for name, v in attrs.items()}
    try:
        return function(*tensors, **names)
    except opd.OpdError as e:
        return str(e)


# In this process a product of matrices is torch's, in the daemon it is not: the bounds are lltm's
# against the formula; all else is exact.
PRODUCTS = ("lltm", "strided_product")
BOUNDS = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


def find_bound(name, dtype):
    bound = BOUNDS[dtype] if name.startswith(PRODUCTS) else 0
    return {"rtol": bound, "atol": bound}


def test_every_operators_examples_give_what_they_give_a_client(ops, torch_daemon, device):
    with torch_daemon.connect() as client, torch.no_grad():
        for info in client._conn.call("op_list"):
            if any(i.get("list") for i in info["inputs"]):
                continue  # test_torch_lists.py
            for example in info["examples"]:
                given = make_example(example, device)
                ours = [None if t is None else client.tensor(t, device=DEVICE) for t in given]
                name, attrs = info["name"], example["attrs"]
                got = attempt(ops[name], given, attrs)
                expected = attempt(client.ops[name], ours, attrs)
                if isinstance(expected, str):
                    assert got == expected, name
                    continue
                pairs = list(zip(given, ours))
                if expected is not None:
                    pairs += zip(*(v if isinstance(v, tuple) else (v,) for v in (got, expected)))
                for t, e in pairs:
                    if t is not None:
                        assert str(t.dtype) == f"torch.{e.dtype}", name
                        assert_close(
                            t.cpu().double(), as_float64(e), **find_bound(name, t.dtype), equal_nan=True,
                            msg=lambda text, name=name: f"{name}: {text}",
                        )
