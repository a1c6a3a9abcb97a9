"""Inputs that lie as channels_last: the operators that take them so, without a copy."""

import time

import pytest
import torch
import torch.nn.functional as F
from conftest import TEST_SECONDS
from torch.testing import assert_close
from torch_fixtures import device, draw, ops, torch_daemon  # noqa: F401

import opd
import opd.torch

LAST = torch.channels_last


def is_last(tensor):
    return tensor.is_contiguous(memory_format=LAST) and not tensor.is_contiguous()


@pytest.fixture
def image(draw):
    def make(*shape, dtype=torch.float32, grad=True):
        return draw(*shape, dtype=dtype).to(memory_format=LAST).requires_grad_(grad)

    return make


CALLS = {
    "depthwise_conv2d": lambda f, x, w: f(x, w, padding=1),
    "upsample_bilinear2d": lambda f, x, w: f(x, scale=2),
}
THEIRS = {
    "depthwise_conv2d": lambda x, w: F.conv2d(x, w, padding=1, groups=len(w)),
    "upsample_bilinear2d": lambda x, w: F.interpolate(x, scale_factor=2, mode="bilinear"),
}


@pytest.mark.parametrize("name", CALLS)
def test_results_and_gradients_are_channels_last(ops, image, draw, name):
    x, w = image(2, 12, 9, 7), draw(12, 1, 3, 3, dtype=torch.float32)
    for _ in range(3):  # by the daemon, then in this process
        y, expected = CALLS[name](ops[name], x, w), THEIRS[name](x, w)
        assert is_last(y) and y.shape == expected.shape
        assert_close(y, expected, rtol=1e-5, atol=1e-5)
        grad = torch.ones_like(y)
        (slope,), (theirs,) = (torch.autograd.grad(t, x, grad) for t in (y, expected))
        assert is_last(slope)
        assert_close(slope, theirs, rtol=1e-5, atol=1e-5)
    given = CALLS[name](lambda x, *a, **k: ops[name](*a, input=x, **k) if not a else ops[name](x, *a, **k), x, w)
    assert is_last(given)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("overload", [False, True])
def test_nothing_is_copied(ops, image, draw, name, overload):
    x, w = image(1, 8, 6, 5, grad=False), draw(8, 1, 3, 3, dtype=torch.float32)
    given = {"depthwise_conv2d": ((x, w), {"padding": [1, 1]}), "upsample_bilinear2d": ((x,), {"size": [12, 10]})}
    args, kwargs = given[name]
    for _ in range(3):
        with torch.profiler.profile() as seen:
            y = (ops[name].overload if overload else ops[name])(*args, **kwargs)
        assert is_last(y)
        assert not {e.name for e in seen.events()} & {"aten::contiguous", "aten::copy_", "aten::clone"}


def test_contiguous_inputs_are_taken_as_ever(ops, draw):
    w = draw(8, 1, 3, 3, dtype=torch.float32)
    for shape in ((2, 8, 6, 5), (2, 8, 1, 1), (1, 8, 6, 5)):
        assert ops.depthwise_conv2d(draw(*shape, dtype=torch.float32), w, padding=1).is_contiguous()
    askew = draw(2, 8, 5, 6, dtype=torch.float32).transpose(2, 3)
    assert ops.depthwise_conv2d(askew, w, padding=1).is_contiguous()


def test_derivatives(ops, image, draw):
    x, w = image(1, 3, 4, 4, dtype=torch.float64), draw(3, 1, 3, 3, dtype=torch.float64, grad=True)

    def call(x, w):
        return ops.depthwise_conv2d(x, w, padding=1)

    assert torch.autograd.gradcheck(call, (x, w)) and torch.autograd.gradgradcheck(call, (x, w))
    plain, tangent = x.detach(), torch.ones_like(x)
    made = torch.func.jvp(lambda x: call(x, w.detach()), (plain,), (tangent,))[1]
    assert_close(made, call(tangent, w.detach()))
    batch = torch.stack([x.detach().contiguous(), 2 * x.detach().contiguous()])
    batch = batch.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
    assert_close(torch.vmap(lambda x: call(x, w))(batch), torch.stack([call(x, w) for x in batch]))
    torch.library.opcheck(ops.depthwise_conv2d.overload, (x, w), {"padding": [1, 1]})


def test_compile_and_autocast(ops, image, draw):
    w = draw(8, 1, 3, 3, dtype=torch.float32)
    compiled = torch.compile(lambda x: ops.depthwise_conv2d(x, w, padding=1).relu(), backend="aot_eager",
                             fullgraph=True, dynamic=True)  # fmt: skip
    for shape in ((2, 8, 6, 5), (3, 8, 9, 4)):
        x = image(*shape)
        y = compiled(x)
        assert is_last(y)
        assert_close(y, THEIRS["depthwise_conv2d"](x, w).relu(), rtol=1e-5, atol=1e-5)
    with torch.autocast(x.device.type, torch.bfloat16):
        y = ops.depthwise_conv2d(x, w, padding=1)
    assert y.dtype == torch.bfloat16 and is_last(y)


def test_sizes_that_depend_on_data(ops, image):
    x = image(3, 4, 5, 6, grad=False)

    def pick(x, mask):
        return ops.upsample_bilinear2d(x[mask], scale=2)

    mask = torch.tensor([True, False, True], device=x.device)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        made = torch.compile(pick, backend="aot_eager", fullgraph=True)(x, mask)
    assert_close(made, pick(x, mask))


def test_exporters_see_the_first_operator(ops, image):
    class Net(torch.nn.Module):
        def forward(self, x):
            return ops.upsample_bilinear2d(x, size=[10, 12])

    x = image(1, 4, 5, 6, grad=False)
    for _ in range(2):  # before and after it was called eagerly
        graph = torch.export.export(Net(), (x,)).graph
        assert [n.target.name() for n in graph.nodes if n.op == "call_function"] == ["opd::upsample_bilinear2d"]
        assert is_last(Net()(x))
    assert is_last(torch.export.export(Net(), (x,)).module()(x))
    assert_close(torch.jit.trace(Net(), x)(2 * x), Net()(2 * x))


def test_errors_are_of_what_was_called(ops, image, draw):
    x, w = image(1, 4, 5, 6), draw(4, 1, 3, 3, dtype=torch.float32)
    with pytest.raises(opd.InvalidArgument, match=r"^depthwise_conv2d: weight has 3 channels.*, input has 4; "):
        ops.depthwise_conv2d(x, w[:3])
    with pytest.raises(opd.InvalidArgument, match="^depthwise_conv2d: weight has rank 3"):
        ops.depthwise_conv2d(x, w[0])
    with pytest.raises((RuntimeError, TypeError), match=r"depthwise_conv2d\(\)"):
        ops.depthwise_conv2d(x, w, stirde=2)
    with opd.torch.options(version=7), pytest.raises(opd.OpdError, match="^depthwise_conv2d: version 7"):
        ops.depthwise_conv2d(x, w)


@pytest.mark.parametrize("window, stride, multiplier", [((9, 9), 1, 1), ((3, 3), 3, 1), ((3, 3), 1, 2)])
def test_what_its_line_leaves_to_the_first(ops, image, draw, window, stride, multiplier):
    x, w = image(1, 4, 11, 12), draw(4 * multiplier, 1, *window, dtype=torch.float32)
    y = ops.depthwise_conv2d(x, w, stride=stride, padding=1)
    kept = x.device.type == "cpu" and stride * multiplier == 1  # there windows of all sizes are
    assert y.is_contiguous(memory_format=torch.channels_last if kept else torch.contiguous_format)
    assert_close(y, F.conv2d(x, w, stride=stride, padding=1, groups=4), rtol=1e-5, atol=1e-5)


SCALE = """
//! op      {name}(Tensor x, Tensor k) -> (Tensor y, Tensor total)
//! dtypes  float32
//! shape   x [{dims}]; k [C]; y [{dims}]; total [N]
//! {line}
//! forward
//!   kernel  scale threads N by 1
__global__ void scale(const float *x, const float *k, float *y, float *total, int64_t C, int64_t H, int64_t W)
{{
    float sum = 0;
    for (int64_t c = 0; c < C; c++)
        for (int64_t p = 0; p < H * W; p++) {{
            const int64_t i = blockIdx.x * C * H * W + {index};
            y[i] = x[i] * k[c];
            sum += y[i];
        }}
    total[blockIdx.x] = sum;
}}
"""


@pytest.mark.parametrize("again", [False, True])
def test_an_operator_of_ones_own(ops, image, draw, torch_daemon, again):
    """Again: with registrations that are there of versions before."""
    client = torch_daemon.connect()

    def load(name, dims, index, line=""):
        client.load(SCALE.format(name=name, dims=dims, index=index, line=line), shared=True)

    def call():
        y, total = ops.scale_planes(x, k)
        assert_close(y, expected)
        assert_close(total, expected.sum((1, 2, 3)))
        return is_last(y)

    def becomes(wanted):
        """That there is no such operator is known for a second, and an edit once it is compiled."""
        until = time.monotonic() + TEST_SECONDS / 4
        while call() != wanted:
            assert time.monotonic() < until
            time.sleep(0.1)

    x, k = image(2, 3, 4, 5, grad=False), draw(3, dtype=torch.float32)
    expected = x * k[:, None, None]
    load("scale_planes", "N, C, H, W", "c * H * W + p", "channels_last scale_last x y when C < 9")
    assert not call()
    load("scale_last", "N, H, W, C", "p * C + c")
    becomes(True)
    x, k = image(2, 9, 4, 5, grad=False), draw(9, dtype=torch.float32)
    expected = x * k[:, None, None]
    assert not call()
    always = "channels_last scale_last x y"
    load("scale_planes", "N, C, H, W", "c * H * W + p", always)
    ops.scale_planes(x.contiguous(), k)  # which notices the edit
    becomes(True)
    load("scale_planes", "N, C, H, W", "c * H * W + p",
         f'{always}\n//! require C < 9 : "x has {{C}} channels, expected below 9"')  # fmt: skip
    for given in (x.contiguous(), x):
        with pytest.raises(opd.InvalidArgument, match="^scale_planes: x has 9 channels"):
            ops.scale_planes(given, k)
    client.close()  # its operators are of the other device's test now
