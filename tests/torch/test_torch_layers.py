"""The modules of opd.torch."""

import copy
import io
import math
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close
from torch_fixtures import device, draw, ops, torch_daemon  # noqa: F401

import opd.torch

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def needs(ops):
    """needs(name): a layer's operator, which must be served if opd ships it."""

    def check(name):
        if not (ROOT / "kernels_src" / f"{name}.cu").exists():
            pytest.skip(f"opd ships no {name}.cu yet")
        assert name in dir(ops)

    return check


def check_state(layer, make):
    """Its parameters go into another one of its kind, and to another dtype."""
    other = make()
    assert any(not torch.equal(a, b) for a, b in zip(layer.parameters(), other.parameters()))
    other.load_state_dict(layer.state_dict())
    for a, b in zip(layer.parameters(), other.parameters()):
        assert torch.equal(a, b)
    assert all(p.dtype == torch.float64 for p in make(dtype=torch.float64).parameters())
    assert all(p.device.type == "meta" for p in make(device="meta").parameters())


# --- DepthwiseConv2d


def test_depthwise_conv2d_is_conv2d(draw, device):
    layer = opd.torch.DepthwiseConv2d(
        3, (3, 2), stride=2, padding=(1, 0), bias=True, device=device, dtype=torch.float64
    )
    reference = nn.Conv2d(
        3, 3, (3, 2), stride=2, padding=(1, 0), groups=3, device=device, dtype=torch.float64
    )
    reference.load_state_dict(layer.state_dict())
    x = draw(2, 3, 9, 8, grad=True)
    got, expected = layer(x), reference(x)
    assert_close(got, expected)
    grad = draw(*got.shape, seed=1)
    assert_close(
        torch.autograd.grad(got, (x, *layer.parameters()), grad),
        torch.autograd.grad(expected, (x, *reference.parameters()), grad),
    )


def test_depthwise_conv2d_parameters():
    def make(**options):
        return opd.torch.DepthwiseConv2d(5, 3, bias=True, **options)

    layer = make()
    check_state(layer, make)
    assert list(layer.state_dict()) == ["weight", "bias"]
    assert layer.weight.shape == (5, 1, 3, 3) and layer.bias.shape == (5,)
    assert list(opd.torch.DepthwiseConv2d(5).state_dict()) == ["weight"]
    bound = 1 / math.sqrt(5 * 9)
    assert 0.5 * bound < layer.weight.abs().max() <= bound
    assert repr(layer) == (
        "DepthwiseConv2d(5, kernel_size=(3, 3), stride=(1, 1), padding=(0, 0), bias=True)"
    )


def test_a_layer_learns(draw, device):
    """A short training run, with torch's optimiser, gets to the weights that made the data."""
    target = draw(2, 1, 3, 3, dtype=torch.float32)
    x = draw(4, 2, 8, 8, dtype=torch.float32)
    y = F.conv2d(x, target, groups=2)
    layer = opd.torch.DepthwiseConv2d(2, device=device)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
    for _ in range(150):
        optimizer.zero_grad()
        loss = F.mse_loss(layer(x), y)
        loss.backward()
        optimizer.step()
    assert loss.item() < 1e-3
    assert_close(layer.weight.detach(), target, rtol=0, atol=0.1)


def test_layers_in_a_model_of_torch(draw, device):
    """Copied, pickled, saved, in another dtype and layout, traced."""
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3),
        opd.torch.DepthwiseConv2d(3, padding=1, bias=True),
        nn.ReLU(),
        opd.torch.UpsampleBilinear2d(scale_factor=2),
    ).to(device)
    x = draw(1, 2, 6, 5, dtype=torch.float32)
    expected = model(x).detach()
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    loaded = copy.deepcopy(model)
    nn.init.zeros_(loaded[1].weight)
    loaded.load_state_dict(torch.load(file, weights_only=True))
    others = [
        loaded,
        pickle.loads(pickle.dumps(model)),
        torch.jit.trace(model, x),
        torch.fx.symbolic_trace(model),
    ]
    for other in others:
        assert torch.equal(other(x), expected)
    wide = copy.deepcopy(model).to(memory_format=torch.channels_last)
    assert_close(wide(x.contiguous(memory_format=torch.channels_last)), expected)
    for dtype in (torch.bfloat16, torch.float16):
        narrow = copy.deepcopy(model).to(dtype)(x.to(dtype))
        assert narrow.dtype == dtype
        assert_close(narrow.float(), expected, rtol=3e-2, atol=3e-2)


# --- LLTM


def lltm(input, weights, bias, old_h, old_cell):
    gates = F.linear(torch.cat([old_h, input], 1), weights, bias).chunk(3, 1)
    cell = old_cell + F.elu(gates[2]) * torch.sigmoid(gates[0])
    return torch.tanh(cell) * torch.sigmoid(gates[1]), cell


def test_lltm(draw, device, needs):
    needs("lltm")
    layer = opd.torch.LLTM(4, 6, device=device, dtype=torch.float64)
    input, h, cell = draw(3, 4, grad=True), draw(3, 6, grad=True), draw(3, 6, seed=1, grad=True)
    given = (input, layer.weights, layer.bias, h, cell)
    got, expected = layer(input, (h, cell)), lltm(*given)
    assert_close(got, expected)
    grads = draw(3, 6, seed=2), draw(3, 6, seed=3)
    assert_close(
        torch.autograd.grad(got, given, grads), torch.autograd.grad(expected, given, grads)
    )
    assert torch.autograd.gradcheck(lambda *a: opd.torch.ops.lltm(*a), given)


def test_lltm_parameters():
    def make(**options):
        return opd.torch.LLTM(4, 9, **options)

    layer = make()
    check_state(layer, make)
    assert layer.weights.shape == (27, 13) and layer.bias.shape == (27,)
    assert 0.2 < layer.weights.abs().max() <= 1 / 3
    assert repr(layer) == "LLTM(4, 9)"


# --- UpsampleBilinear2d


@pytest.mark.parametrize("mode", ["half_pixel", "align_corners"])
@pytest.mark.parametrize("size", [(7, 9), (3, 4), (5, 6)])
def test_upsample(draw, needs, mode, size):
    needs("upsample_bilinear2d")
    x = draw(2, 3, 5, 6, grad=True)
    got = opd.torch.UpsampleBilinear2d(size=size, mode=mode)(x)
    expected = F.interpolate(x, size, mode="bilinear", align_corners=mode == "align_corners")
    assert_close(got, expected)
    grad = draw(*got.shape, seed=1)
    assert_close(torch.autograd.grad(got, x, grad), torch.autograd.grad(expected, x, grad))


def test_upsample_by_a_factor(draw, needs):
    needs("upsample_bilinear2d")
    x = draw(1, 1, 4, 6)
    assert_close(
        opd.torch.UpsampleBilinear2d(scale_factor=2)(x),
        F.interpolate(x, scale_factor=2, mode="bilinear"),
    )
    assert opd.torch.UpsampleBilinear2d(scale_factor=(2.5, 0.5))(x).shape == (1, 1, 10, 3)


def test_upsample_parameters():
    assert repr(opd.torch.UpsampleBilinear2d(scale_factor=2)) == (
        "UpsampleBilinear2d(scale_factor=2, mode='half_pixel')"
    )
    for options in ({}, {"size": 4, "scale_factor": 2}):
        with pytest.raises(ValueError, match="one of size and scale_factor"):
            opd.torch.UpsampleBilinear2d(**options)


# --- PCLLoss


def test_pcl_loss(draw, device, needs):
    needs("pcl_loss")
    n, classes = 4, 3
    probs = torch.softmax(draw(n, classes), 1).detach().requires_grad_()
    labels = torch.tensor([0, 2, 2, 0], device=device)
    weights = draw(n, seed=1).abs()
    assignment = torch.tensor([0, 1, 1, 0], device=device)
    pc_labels = torch.tensor([1, 2], device=device)
    pc_probs = draw(2, seed=2).abs() / 10 + 0.5
    pc_count = torch.tensor([1.0, 2.0], device=device, dtype=torch.float64)
    img_weights = draw(2, seed=3).abs()
    im_labels = torch.tensor([1, 0, 1], device=device)
    loss = opd.torch.PCLLoss()(
        probs, labels, weights, assignment, pc_labels, pc_probs, pc_count, img_weights, im_labels
    )
    background = labels == 0
    expected = -(weights * probs[:, 0].log())[background].sum()
    expected = (expected - img_weights[1] * pc_probs[1].log()) / n
    assert_close(loss, expected.detach(), check_dtype=False)
    (got,) = torch.autograd.grad(loss, probs, torch.full_like(loss, 3.0))
    want = torch.zeros_like(probs)
    want[background, 0] = -(weights / probs[:, 0])[background].detach()
    want[~background, 2] = -img_weights[1] / (pc_count[1] * pc_probs[1])
    assert_close(got, 3 * want / n)


# --- wrong arguments

DW, LLTM, UP = opd.torch.DepthwiseConv2d, opd.torch.LLTM, opd.torch.UpsampleBilinear2d
PAIR = "expected an int or a pair of ints above 0"


@pytest.mark.parametrize(
    "make, kind, text",
    [
        (lambda: DW(3, (1, 2, 3)), ValueError, f"DepthwiseConv2d: kernel_size is (1, 2, 3), {PAIR}"),
        (lambda: DW(3, (3,)), ValueError, f"DepthwiseConv2d: kernel_size is (3,), {PAIR}"),
        (lambda: DW(3, 0), ValueError, f"DepthwiseConv2d: kernel_size is 0, {PAIR}"),
        (lambda: DW(3, 3.0), TypeError, f"DepthwiseConv2d: kernel_size is 3.0, {PAIR}"),
        (lambda: DW(3, stride=(1, 0)), ValueError, f"DepthwiseConv2d: stride is (1, 0), {PAIR}"),
        (lambda: DW(3, stride=(1, 2, 3)), ValueError, "stride is (1, 2, 3), expected an int or"),
        (lambda: DW(3, padding="same"), TypeError, "padding is 'same', expected an int or a pair of "),
        (lambda: DW(3, padding=-1), ValueError, "padding is -1, expected an int or a pair of ints of"),
        (lambda: DW(3, padding=1.0), TypeError, "DepthwiseConv2d: padding is 1.0, expected"),
        (lambda: DW(3, padding=True), TypeError, "DepthwiseConv2d: padding is True, expected"),
        (lambda: DW(0), ValueError, "DepthwiseConv2d: in_channels is 0, expected an int above 0"),
        (lambda: DW((3, 3)), TypeError, "DepthwiseConv2d: in_channels is (3, 3), expected an int"),
        (lambda: LLTM(-1, 2), ValueError, "LLTM: input_features is -1, expected an int above 0"),
        (lambda: LLTM(3, 0), ValueError, "LLTM: state_size is 0, expected an int above 0"),
        (lambda: UP(size=(1, 2, 3)), ValueError, f"UpsampleBilinear2d: size is (1, 2, 3), {PAIR}"),
        (lambda: UP(size=2.5), TypeError, f"UpsampleBilinear2d: size is 2.5, {PAIR}"),
        (lambda: UP(scale_factor="2"), TypeError, "scale_factor is '2', expected a number or a pair"),
        (lambda: UP(scale_factor=(2, -1)), ValueError, "scale_factor is (2, -1), expected"),
        (lambda: UP(scale_factor=math.nan), ValueError, "scale_factor is nan, expected"),
        (lambda: UP(size=2, mode="bilinear"), ValueError, "mode is 'bilinear', expected one of half_p"),
    ],
)
def test_wrong_arguments_are_named(make, kind, text):
    with pytest.raises(kind, match=re.escape(text)):
        make()


def test_numbers_of_numpy():
    two = np.int64(2)
    layer = DW(two, np.array([3, 1]), stride=[two, 1], padding=np.int32(0))
    assert repr(layer) == repr(DW(2, (3, 1), (2, 1)))
    assert repr(LLTM(two, two)) == "LLTM(2, 2)"
    assert repr(UP(size=(two, 3))) == repr(UP(size=(2, 3)))
    assert repr(UP(scale_factor=np.float64(1.5))) == repr(UP(scale_factor=1.5))
