"""Autocast: an operator does as torch's own of its kind, by the `autocast` line of its file."""

import pytest
import torch
import torch.nn.functional as F
from scale_operator import save, scale, write_scale  # noqa: F401
from torch.testing import assert_close
from torch_fixtures import device, draw, ops, torch_daemon  # noqa: F401

import opd.torch

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
OF_ONE = {
    "acos": torch.acos,
    "elu": F.elu,
    "flatten": torch.flatten,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "softmax": lambda x: F.softmax(x, -1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "tanh": torch.tanh,
}


def autocast(device, dtype=torch.bfloat16):
    return torch.autocast(torch.device(device).type, dtype=dtype)


def resize(x):
    return F.interpolate(x, size=(2, 3), mode="bilinear")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_operators_of_one_tensor(ops, draw, device, dtype):
    x = draw(1, 2, 4, 4, dtype=dtype).clamp(-0.9, 0.9)
    pairs = [(getattr(ops, name), function) for name, function in OF_ONE.items()]
    pairs += [(lambda x: ops.mse_loss(x, x / 2), lambda x: F.mse_loss(x, x / 2))]
    pairs += [(lambda x: ops.gelu(x, approximate="none"), F.gelu)]
    pairs += [(lambda x: ops.upsample_bilinear2d(x, size=(2, 3)), resize)]
    with autocast(device):
        for ours, torchs in pairs:
            assert_close(ours(x), torchs(x), rtol=2e-2, atol=1e-2)  # the dtype, too


@pytest.mark.parametrize("lower", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("x_dtype", DTYPES[:3], ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_a_convolution(ops, draw, device, lower, x_dtype, bias):
    x = draw(1, 2, 5, 5, dtype=x_dtype, grad=True)
    given = [x, draw(2, 1, 3, 3, dtype=torch.float32, grad=True)]
    if bias:
        given += [draw(2, dtype=torch.float32, grad=True)]
    with autocast(device, lower):
        y, expected = ops.depthwise_conv2d(*given, padding=1), F.conv2d(*given, padding=1, groups=2)
        layer = opd.torch.DepthwiseConv2d(2, padding=1, bias=bias, device=device)
        layer.load_state_dict(dict(zip(("weight", "bias"), given[1:])))
        assert_close(layer(x), y)
    assert y.dtype == lower
    assert_close(y, expected, rtol=2e-2, atol=2e-2)
    got, want = (torch.autograd.grad(out.float().sum(), given) for out in (y, expected))
    assert_close(got, want, rtol=3e-2, atol=3e-2)  # each in its input's dtype


def test_float64_is_left_alone(ops, draw, device):
    x, w = draw(1, 2, 5, 5), draw(2, 1, 3, 3)
    with autocast(device):
        assert_close(ops.depthwise_conv2d(x, w), F.conv2d(x, w, groups=2))


@pytest.mark.parametrize("name", ["add", "mul"])
def test_operators_of_two_tensors(ops, draw, device, name):
    with pytest.raises(opd.InvalidArgument, match="expected the same dtype"):
        ops[name](draw(3, dtype=torch.bfloat16), draw(3, dtype=torch.float32))
    for a in DTYPES:
        for b in DTYPES:
            x, y = draw(2, 3, dtype=a), draw(3, seed=1, dtype=b)
            with autocast(device):
                assert_close(ops[name](x, y), getattr(torch, name)(x, y), rtol=1e-2, atol=1e-2)


def test_a_cell(ops, draw, device):
    layer = opd.torch.LLTM(3, 2, device=device)
    x, h, c = (draw(4, n, dtype=torch.float32, grad=True) for n in (3, 2, 2))
    expected = layer(x, (h, c))
    with autocast(device):
        got = layer(x, (h.bfloat16(), c))
        assert_close(ops.lltm(x, layer.weights, layer.bias, h, c), got)
    assert [t.dtype for t in got] == [torch.bfloat16] * 2
    assert_close([t.float() for t in got], list(expected), rtol=3e-2, atol=3e-2)
    got[0].float().sum().backward()
    assert layer.weights.grad.dtype == x.grad.dtype == torch.float32


def test_a_loss(ops, device):
    probs = torch.full((4, 3), 1 / 3, device=device, dtype=torch.bfloat16, requires_grad=True)
    weights, one = torch.ones(4, device=device), torch.ones(2, device=device, dtype=torch.bfloat16)
    labels = torch.tensor([0, 2, 2, 0], device=device)
    two, image = torch.tensor([1, 2], device=device), torch.tensor([1, 0, 1], device=device)
    with autocast(device):
        loss = opd.torch.PCLLoss()(probs, labels, weights, labels // 2, two, one / 2, one, one, image)
    assert loss.dtype == torch.float32
    loss.backward()
    assert probs.grad.dtype == torch.bfloat16


def test_compiled(ops, draw, device):
    torch.compiler.reset()
    model = torch.compile(ops.depthwise_conv2d, fullgraph=True, backend="aot_eager")
    x, w = draw(1, 2, 5, 5, dtype=torch.float32), draw(2, 1, 3, 3, dtype=torch.float32, grad=True)
    with autocast(device):
        y = model(x, w)
        assert_close(y, ops.depthwise_conv2d(x, w))
    assert y.dtype == torch.bfloat16
    y.sum().backward()
    assert w.grad.dtype == torch.float32
    torch.compiler.reset()


def test_a_model_without_autocast_in_it_is_compiled_under_it(ops, draw, device):
    torch.compiler.reset()
    model = torch.nn.Sequential(
        opd.torch.DepthwiseConv2d(2, padding=1, bias=True), torch.nn.Conv2d(2, 3, 1), torch.nn.GELU()
    ).to(device)
    x = draw(1, 2, 5, 5, dtype=torch.float32)
    with autocast(device):
        expected = model(x)
        assert_close(torch.compile(model, backend="aot_eager")(x), expected)
    exported = torch.export.export(model, (x,)).module()
    with autocast(device):
        assert_close(exported(x), expected)
    torch.compiler.reset()


def test_an_edit_of_the_line_is_followed(scale, tmp_path):
    x = torch.ones(3, dtype=torch.float32)
    with autocast("cpu"):
        assert opd.torch.ops.scale(x).dtype == torch.float32
    text = (tmp_path / "scale.cu").read_text().replace("float32 float64", "bfloat16 float32", 1)
    for rule, x, dtype in (
        ("lower", x, torch.bfloat16),
        ("lower cuda", x, torch.float32),
        ("float32 cpu", x.bfloat16(), torch.float32),
        ("widest", x.bfloat16(), torch.bfloat16),
    ):
        save(tmp_path / "scale.cu", text.replace("//! shape", f"//! autocast {rule}\n//! shape", 1))
        assert [c["state"] for c in scale.reload()] == ["serving"]
        opd.torch.refresh("scale")
        with autocast("cpu"):
            assert opd.torch.ops.scale(x).dtype == dtype


def test_what_cannot_have_the_dtype_stays(scale, tmp_path):
    text = (tmp_path / "scale.cu").read_text()
    save(tmp_path / "scale.cu", text.replace("//! shape", "//! autocast lower\n//! shape", 1))
    scale.reload()
    with autocast("cpu"):
        assert opd.torch.ops.scale(torch.ones(3)).dtype == torch.float32
