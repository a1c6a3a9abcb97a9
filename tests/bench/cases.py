"""Operators beside what PyTorch has for them: what bench.py and bench_cpu.py time.

A generator for each family takes shapes and gives cases; it draws their tensors by a Maker.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F

import opd.torch

ops = opd.torch.ops


@dataclass
class Case:
    operator: str
    shape: str
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    inputs: list[torch.Tensor]
    flops: float = 0  # of forward; a function such as exp counts as one
    back: float = 2  # times that in backward; 0: there is none
    reads: bool = True  # backward reads the inputs
    formats: tuple[str, ...] = ()  # of images, those that PyTorch's side may have
    compiled: Any = None  # makes of torch.compile's what is called; None: it compiles `theirs` whole
    same_slopes: bool = True
    wanted: list[int] = field(default_factory=list)  # inputs whose gradients are compared; none: all

    def make_leaves(self, inputs):
        wanted = self.wanted or range(len(inputs))
        return [t.detach().requires_grad_(i in wanted) for i, t in enumerate(inputs)]


class Maker:
    def __init__(self, device="cpu", dtype=torch.float32):
        self.device, self.dtype = device, dtype
        self.generator = torch.Generator(device).manual_seed(0)

    def fresh(self):
        """One that draws the same numbers again."""
        return Maker(self.device, self.dtype)

    def normal(self, *shape, scale=1.0):
        x = torch.randn(shape, device=self.device, generator=self.generator, dtype=torch.float32)
        return (x * scale).to(self.dtype)

    def positive(self, *shape):
        return self.normal(*shape).abs().clamp(0.1, 0.9)

    def integers(self, low, high, n):
        return torch.randint(low, high, (n,), device=self.device, generator=self.generator)


def spell(*shapes):
    return ", ".join("×".join(map(str, s)) for s in shapes)


# ---- formulas


def gelu_sigmoid(x):
    return x * torch.sigmoid(1.702 * x)


UNARY = {  # and what each element takes
    "sigmoid": (torch.sigmoid, 3), "tanh": (torch.tanh, 1), "relu": (F.relu, 1), "silu": (F.silu, 4),
    "elu": (F.elu, 2), "acos": (torch.acos, 1),
}  # fmt: skip
GELU = {"sigmoid": (gelu_sigmoid, 5), "tanh": (lambda x: F.gelu(x, approximate="tanh"), 8), "none": (F.gelu, 4)}
BINARY = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div}


def elementwise(make, *shape):
    """PyTorch gives the gradient of a sum as it came, which is nothing to compare with."""
    x, y = make.normal(*shape), make.positive(*shape)
    n, text = x.numel(), spell(shape)
    for name, (function, flops) in UNARY.items():
        given = x.tanh() * 0.9 if name == "acos" else x  # where acos has a value
        yield Case(name, text, ops[name], function, [given], n * flops)
    for mode, (function, flops) in GELU.items():
        yield Case(f"gelu {mode}", text, lambda x, m=mode: ops.gelu(x, approximate=m), function, [x], n * flops)
    for name, function in BINARY.items():
        more = {} if name in ("mul", "div") else {"reads": False, "back": name == "sub", "wanted": [1]}
        yield Case(name, text, ops[name], function, [x, y], n, **more)


def broadcast(make, shape, row):
    """As above: of add the gradient of the row alone."""
    x, y = make.normal(*shape), make.normal(*row)
    n, text = x.numel(), spell(shape, row)
    yield Case("add of a row", text, ops.add, torch.add, [x, y], n, back=1, reads=False, wanted=[1])
    yield Case("mul by a row", text, ops.mul, torch.mul, [x, y], n, back=3)


def rows(make, m, n):
    x, weight, bias = make.normal(m, n), make.normal(n), make.normal(n)
    text = spell((m, n))
    yield Case("softmax", text, ops.softmax, lambda x: F.softmax(x, -1), [x], 5 * m * n, 1)
    yield Case("layer_norm", text, ops.layer_norm, lambda x, w, b: F.layer_norm(x, (n,), w, b),
               [x, weight, bias], 8 * m * n)  # fmt: skip
    yield Case("rms_norm", text, ops.rms_norm, lambda x, w: F.rms_norm(x, (n,), w), [x, weight], 5 * m * n)
    yield Case("mse_loss", text, ops.mse_loss, F.mse_loss, [x, make.normal(m, n)], 3 * m * n, 1)


# ---- images

FORMATS = ("NCHW", "NHWC")


def as_format(name, tensors):
    """Images in that memory format, weights too."""
    layout = torch.channels_last if name == "NHWC" else torch.contiguous_format
    return [t.contiguous(memory_format=layout) if t.dim() == 4 else t for t in tensors]


def channels_last(found):
    """The same, of images that lie so on both sides."""
    for case in found:
        yield replace(case, operator=f"{case.operator}, channels_last", formats=("NHWC",),
                      inputs=as_format("NHWC", case.inputs))  # fmt: skip


def depthwise(make, batch, channels, size, kernel, stride):
    x, weight = make.normal(batch, channels, size, size), make.normal(channels, 1, kernel, kernel, scale=0.1)
    bias, pad = make.normal(channels), kernel // 2

    def ours(x, w, b):
        return ops.depthwise_conv2d(x, w, b, stride=stride, padding=pad)

    def theirs(x, w, b):
        return F.conv2d(x, w, b, stride=stride, padding=pad, groups=channels)

    flops = 2 * batch * channels * ((size - 1) // stride + 1) ** 2 * kernel**2
    name = f"depthwise {kernel}×{kernel}" if kernel <= 7 else "depthwise 13×13 to 31×31"
    text = f"{spell(x.shape)}, {kernel}×{kernel}" + (f", stride {stride}" if stride > 1 else "")
    yield Case(name, text, ours, theirs, [x, weight, bias], flops, formats=FORMATS)


def upsample(make, shape, to):
    """Both modes that PyTorch has."""
    x = make.normal(*shape)
    text = f"{spell(shape)} to {spell(to)}"
    for mode, corners in (("half_pixel", False), ("align_corners", True)):
        def theirs(x, corners=corners):
            return F.interpolate(x, to, mode="bilinear", align_corners=corners)

        def ours(x, mode=mode):
            return ops.upsample_bilinear2d(x, size=to, mode=mode)

        flops = 8 * shape[0] * shape[1] * to[0] * to[1]
        yield Case("upsample_bilinear2d", f"{text}, {mode}", ours, theirs, [x], flops, 1, False, formats=FORMATS)


# ---- cells


def cell(input, weights, bias, old_h, old_cell):
    """One step of LLTM as PyTorch's tutorial on extensions composes it."""
    gates = F.linear(torch.cat([old_h, input], dim=1), weights, bias)
    input_gate, output_gate, candidate = gates.chunk(3, dim=1)
    new_cell = old_cell + F.elu(candidate) * torch.sigmoid(input_gate)
    return torch.tanh(new_cell) * torch.sigmoid(output_gate), new_cell


def make_loop(step):
    def loop(inputs, weights, bias, h, c):
        hs = []
        for input in inputs.unbind():
            h, c = step(input, weights, bias, h, c)
            hs.append(h)
        return torch.stack(hs), h, c

    return loop


def recurrent(make, batch, inputs, state, steps=0):
    """Of one step, or `steps` of them."""
    tensors = [make.normal(*([steps] if steps else []), batch, inputs),
               make.normal(3 * state, state + inputs, scale=state**-0.5), make.normal(3 * state),
               make.normal(batch, state), make.normal(batch, state)]  # fmt: skip
    flops = 6 * batch * state * (state + inputs) * (steps or 1)
    text = f"{batch}×{inputs}→{state}"
    if not steps:
        yield Case("lltm", text, ops.lltm, cell, tensors, flops)
        return
    # Over many steps the roundings of 16 bits add up, PyTorch's in other places.
    yield Case("lltm_sequence", f"{steps} steps, {text}", ops.lltm_sequence, make_loop(cell), tensors, flops,
               compiled=make_loop, same_slopes=make.dtype == torch.float32)  # fmt: skip


def pcl_loss(make, n, classes, clusters):
    of, assignment = make.integers(1, classes, clusters), make.integers(0, clusters, n)
    label = torch.where(make.normal(n) < 0, of[assignment], 0)
    count = 1 + torch.zeros(clusters, device=make.device).index_add_(0, assignment, (label > 0).float()).long()
    weight, p, img = make.positive(n), make.positive(clusters), make.positive(clusters)
    image = torch.ones_like(make.integers(0, 2, classes))

    def theirs(probs):  # the gradient is that of a cluster's mean, as the operator defines it
        chosen = probs.gather(1, label[:, None])[:, 0]
        background = torch.where(label == 0, weight * chosen.log(), 0).sum()
        mean = torch.where(label > 0, chosen, 0) * (img / (count * p))[assignment] * image[label]
        return -(background + (image[of] * img * p.log()).sum() + (mean - mean.detach()).sum()) / n

    def ours(probs):
        return ops.pcl_loss(probs, label, weight, assignment, of, p, count, img, image)

    yield Case("pcl_loss", f"{n}×{classes}, {clusters}", ours, theirs, [make.positive(n, classes)], 2 * n)


# ---- optimizers: they change tensors in place


def optimizers(make, many, *shape):
    """Of so many tensors: (operator, ours, {way: theirs}, bytes moved, FLOP)."""
    for kind, made, given, moved, flops in (
        ("sgd", torch.optim.SGD, {}, 3, 2),
        ("sgd", torch.optim.SGD, {"momentum": 0.9}, 5, 4),
        ("adam", torch.optim.Adam, {}, 7, 14),
    ):
        tensors = [[make.normal(*shape) for _ in range(many)] for _ in range((moved + 1) // 2)]
        for t in tensors[-1]:
            t.abs_()  # sums of squares
        # PyTorch's fused steps of 16 bits on the CPU change nothing.
        idle = make.device == "cpu" and make.dtype.itemsize == 2
        capturable = {"capturable": True} if kind == "adam" and make.device != "cpu" else {}
        ways = {}
        for way in ["foreach"] if idle else ["foreach", "fused"]:
            theirs = [make.normal(*shape).requires_grad_() for _ in range(many)]
            for t in theirs:
                t.grad = make.normal(*shape)
            ways[f"torch.optim, {way}"] = made(theirs, lr=1e-3, **{way: True}, **given, **capturable).step
        options = given | {"lr": 1e-3} | ({"step": 10} if kind == "adam" else {})
        op = getattr(ops, f"{kind}_step{'s' if many > 1 else ''}")
        args = tensors if many > 1 else [t[0] for t in tensors]
        name = f"{kind}_step{f's of {many}' if many > 1 else ''}{' momentum' if given else ''}"
        n = sum(t.numel() for t in tensors[0])
        yield (name, lambda op=op, args=args, options=options: op(*args, **options), ways,
               moved * n * make.dtype.itemsize, flops * n)  # fmt: skip
