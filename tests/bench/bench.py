"""The figures of docs/benchmarks.md: `make bench-operators`, on the best device there is.

    bench.py [--device cuda:0|cpu] [--only GROUP]... [--dtype DTYPE]... [--no-compile]

Every operator that opd comes with, forward and backward, beside PyTorch eager and, for those of
formulas and LLTM, torch.compile; requests alone; calls through opd.torch. timing.py tells how.
Exits 1 if a row failed: its error is on standard error, and its cells are empty.
"""

import argparse
import functools
import os
import statistics
import sys
import time
import warnings
from pathlib import Path

# No processes beside ours that compile, while calls are timed.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import numpy as np
import torch
import torch.nn.functional as F

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from conftest import Daemon  # noqa: E402
from timing import HEAD, Timing  # noqa: E402

import opd  # noqa: E402


class Bench:
    """What a group needs: the daemon's client, the sizes of this device, tensors on both sides."""

    def __init__(self, client, device, compiles):
        self.client, self.device, self.compiles = client, device, compiles
        self.gpu = device != "cpu"
        self.place = device
        self.dtype = "float32"
        self.stream = torch.cuda.Stream(device) if self.gpu else None
        self.timing = Timing(client, device, self.stream)
        self.generator = torch.Generator(device).manual_seed(0)

    def pick(self, on_gpu, on_cpu):
        return on_gpu if self.gpu else on_cpu

    def random(self, *shape, scale=1.0):
        """Normal numbers in both places: (opd's, PyTorch's)."""
        x = torch.randn(shape, device=self.place, generator=self.generator) * scale
        return self.both(x.to(getattr(torch, self.dtype)))

    def both(self, x):
        return self.client.tensor(x.cpu(), dtype=str(x.dtype).removeprefix("torch.")), x

    def row(self, name, *args, **keywords):
        self.timing.row(f"{name} {self.dtype}", *args, **keywords)

    def grads(self, function, leaves, grads, wanted):
        """A call of the backward of function(*leaves), whose forward has run."""
        outputs = function(*leaves)
        return lambda: torch.autograd.grad(outputs, wanted, grads, retain_graph=True)

    def both_ways(self, name, op, function, pairs, grads, attrs=None, wanted=None, size=(0, 0),
                  compiled=None, note="", same_slopes=True):  # fmt: skip
        """Rows of forward and backward. pairs: the inputs; grads: of the outputs; wanted: the
        inputs whose gradients are compared, by their positions; function: PyTorch's; None: none;
        compiled: makes what torch.compile gives of it; same_slopes: gradients are compared."""
        attrs = attrs or {}
        ours, theirs = zip(*pairs)
        leaves = [t.detach().requires_grad_(t.is_floating_point()) for t in theirs]
        our_grads, their_grads = zip(*grads)
        inputs = [i["name"] for i in self.client._conn.call("op_info", op)["inputs"]]
        picked = range(len(pairs)) if wanted is None else wanted
        target = [leaves[i] for i in picked]
        call = self.client.ops[op]
        # Both rows use one function, which is compiled forward and backward at once.
        made = functools.cache(compiled) if compiled and self.compiles else None
        self.row(f"{name} forward", lambda: call(*ours, **attrs),
                 function and (lambda: function(*leaves)),
                 made and (lambda: lambda: made()(*leaves)), size[0])  # fmt: skip
        _, context = call.forward(*ours, **attrs)
        names = tuple(inputs[i] for i in picked)

        def backward():
            found = context.backward(*our_grads, wanted=names)
            return [found[i] for i in picked]

        self.row(f"{name} backward{note}", backward,
                 function and self.grads(function, leaves, their_grads, target),
                 made and (lambda: self.grads(made(), leaves, their_grads, target)), size[1],
                 same_slopes)  # fmt: skip
        torch._dynamo.reset()


# ---- groups of operators


def whole(function):
    return lambda: torch.compile(function, dynamic=False)


def gelu_sigmoid(x):
    return x * torch.sigmoid(1.702 * x)


ELEMENTWISE = {
    "sigmoid": ("sigmoid", torch.sigmoid, {}),
    "tanh": ("tanh", torch.tanh, {}),
    "relu": ("relu", F.relu, {}),
    "silu": ("silu", F.silu, {}),
    "elu": ("elu", F.elu, {}),
    "acos": ("acos", torch.acos, {}),
    "gelu sigmoid": ("gelu", gelu_sigmoid, {"approximate": "sigmoid"}),
    "gelu tanh": ("gelu", lambda x: F.gelu(x, approximate="tanh"), {"approximate": "tanh"}),
    "gelu none": ("gelu", F.gelu, {"approximate": "none"}),
}


def elementwise(b):
    n = b.pick(1 << 26, 1 << 20)
    x, grad = b.random(n), b.random(n)
    inside = b.both(torch.tanh(x[1]) * 0.9)  # where acos has a value
    item = x[1].element_size()
    for name, (op, function, attrs) in ELEMENTWISE.items():
        b.both_ways(name, op, function, [inside if op == "acos" else x], [grad], attrs,
                    size=(2 * n * item, 3 * n * item), compiled=whole(function))  # fmt: skip


def broadcast(b):
    rows, columns = b.pick((4096, 4096), (512, 512))
    x, y, grad = b.random(rows, columns), b.random(columns), b.random(rows, columns)
    size = x[1].numel() * x[1].element_size()
    # PyTorch gives the gradient of add's first input without a copy.
    b.both_ways("add of a row", "add", torch.add, [x, y], [grad], wanted=[1], size=(2 * size, size),
                compiled=whole(torch.add), note=", of the row")  # fmt: skip
    b.both_ways("mul by a row", "mul", torch.mul, [x, y], [grad], size=(2 * size, 3 * size),
                compiled=whole(torch.mul))  # fmt: skip
    n = b.pick(1 << 26, 1 << 20)
    x, y, grad = b.random(n), b.random(n), b.random(n)
    item = x[1].element_size()
    b.both_ways("mul", "mul", torch.mul, [x, y], [grad], size=(3 * n * item, 5 * n * item),
                compiled=whole(torch.mul))  # fmt: skip


def depthwise(b):
    for kernel in (3, 7):
        shape = b.pick((64, 128, 56, 56), (8, 64, 56, 56))
        channels, padding = shape[1], kernel // 2
        (ox, x), (ow, w) = b.random(*shape), b.random(channels, 1, kernel, kernel, scale=0.1)
        og, grad = b.random(*shape)
        conv = b.client.ops.depthwise_conv2d
        size = 2 * x.numel() * x.element_size()
        name = f"depthwise {kernel}×{kernel}"
        b.row(f"{name} forward", lambda: conv(ox, ow, padding=padding),
              lambda: F.conv2d(x, w, padding=padding, groups=channels), size=size)
        _, ctx = conv.forward(ox, ow, padding=padding)

        def theirs(*mask):
            found = torch.ops.aten.convolution_backward(
                grad, x, w, None, (1, 1), (padding, padding), (1, 1), False, (0, 0), channels,
                (*mask, False))
            return [g for g in found if g is not None]

        def ours(name):
            return [g for g in ctx.backward(og, wanted=(name,)) if g is not None]

        b.row(f"{name} grad_input", lambda: ours("input"), lambda: theirs(True, False), size=size)
        b.row(f"{name} grad_weight", lambda: ours("weight"), lambda: theirs(False, True), size=size)


def upsample(b):
    n, c, h, w = b.pick((16, 64, 128, 128), (2, 8, 64, 64))
    x, grad = b.random(n, c, h, w), b.random(n, c, 2 * h, 2 * w)
    size = 5 * x[1].numel() * x[1].element_size()
    for mode in ("half_pixel", "align_corners", "asymmetric"):
        def function(x, corners=mode == "align_corners"):
            return F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=corners)

        b.both_ways(f"upsample ×2 {mode}", "upsample_bilinear2d",
                    None if mode == "asymmetric" else function, [x], [grad],
                    {"scale": 2, "mode": mode}, size=(size, size))  # fmt: skip


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


def cells(b, *steps):
    for batch, inputs, state in b.pick([(16, 32, 128), (256, 1024, 1024)],
                                       [(16, 32, 128), (32, 128, 128)]):
        scale = 1 / state**0.5
        yield (f"{batch}×{inputs}→{state}",
               [b.random(*steps, batch, inputs), b.random(3 * state, state + inputs, scale=scale),
                b.random(3 * state, scale=scale), b.random(batch, state), b.random(batch, state)],
               [b.random(batch, state) for _ in range(2)], (batch, state))  # fmt: skip


def lltm(b):
    for name, pairs, grads, _ in cells(b):
        b.both_ways(f"lltm {name}", "lltm", cell, pairs, grads, compiled=whole(cell))


def lltm_sequence(b):
    steps = b.pick(100, 10)
    for name, pairs, grads, shape in cells(b, steps):
        grads = [b.random(steps, *shape), *grads]
        b.both_ways(f"lltm_sequence {steps} × {name}", "lltm_sequence", make_loop(cell), pairs, grads,
                    compiled=lambda: make_loop(whole(cell)()),  # a loop of compiled steps
                    # Over 100 steps the roundings of 16 bits add up, PyTorch's in other places.
                    same_slopes=b.dtype == "float32")  # fmt: skip


def pcl_loss(b):
    n, classes, clusters = b.pick((2000, 21, 100), (300, 21, 20))
    rng = np.random.default_rng(0)
    assignment, of_cluster = rng.integers(0, clusters, n), rng.integers(1, classes, clusters)
    labels = np.where(rng.random(n) < 0.5, of_cluster[assignment], 0)
    counts = 1 + np.bincount(assignment[labels > 0], minlength=clusters)

    def positive(*shape):
        ours, theirs = b.random(*shape)
        return b.both(theirs.abs().clamp(0.05, 1))

    def integers(values):
        return b.both(torch.tensor(values, device=b.place))

    present = rng.integers(0, 2, classes)
    present[:3] = 1
    pairs = [positive(n, classes), integers(labels), positive(n), integers(assignment),
             integers(of_cluster), positive(clusters), integers(counts), positive(clusters),
             integers(present)]  # fmt: skip
    ours, (probs, label, weight, cluster, of, p, count, img, images) = zip(*pairs)
    og, grad = b.both(torch.tensor(1.0, device=b.place, dtype=probs.dtype))

    def forward():
        background = torch.where((label == 0) & (images[0] != 0), weight * probs[:, 0].log(), 0)
        found = torch.where(images[of] != 0, img * p.log(), 0)
        return -(background.sum() + found.sum()) / n

    def backward():
        of_background = -weight / probs[:, 0]
        of_clusters = -img[cluster] / (count[cluster] * p[cluster])
        value = torch.where(label == 0, of_background, of_clusters) * (images[label] != 0)
        value = (value * grad / n).to(probs.dtype)
        return torch.zeros_like(probs).scatter_(1, label[:, None], value[:, None])

    b.row("pcl_loss forward", lambda: b.client.ops.pcl_loss(*ours), forward)
    _, ctx = b.client.ops.pcl_loss.forward(*ours)
    b.row("pcl_loss backward", lambda: ctx.backward(og)[:1], backward)


def optimizers(b):
    n = b.pick(1 << 26, 1 << 20)
    item = torch.empty(0, dtype=getattr(torch, b.dtype)).element_size()
    ours = [b.random(n)[0] for _ in range(2)] + [b.client.zeros([n], dtype=b.dtype) for _ in range(2)]
    param, grad, one, two = ours
    ops = b.client.ops
    capturable = {"capturable": True} if b.gpu else {}
    for name, call, kind, options, moved in (
        ("sgd_step", lambda: ops.sgd_step(param, grad, lr=1e-3), torch.optim.SGD, {}, 3),
        ("sgd_step momentum", lambda: ops.sgd_step(param, grad, one, lr=1e-3, momentum=0.9),
         torch.optim.SGD, {"momentum": 0.9}, 5),
        ("adam_step", lambda: ops.adam_step(param, grad, one, two, step=10), torch.optim.Adam,
         capturable, 7),
    ):  # fmt: skip
        theirs = b.random(n)[1].requires_grad_()
        theirs.grad = b.random(n)[1]
        optimizer = kind([theirs], lr=1e-3, fused=True, **options)
        optimizer.step()
        b.row(name, call, optimizer.step, size=moved * n * item, same=False)
    optimizers_of_lists(b, 161, n >> 10)


def optimizers_of_lists(b, count, n):
    """Of as many parameters as a ResNet-50 has, small ones."""
    item = torch.empty(0, dtype=getattr(torch, b.dtype)).element_size()
    ours = [[b.random(n)[0] for _ in range(count)] for _ in range(2)]
    ours += [[b.client.zeros([n], dtype=b.dtype) for _ in range(count)] for _ in range(2)]
    ops = b.client.ops
    for name, call, kind, moved in (
        ("sgd_steps", lambda: ops.sgd_steps(*ours[:2], lr=1e-3), torch.optim.SGD, 3),
        ("adam_steps", lambda: ops.adam_steps(*ours, step=10), torch.optim.Adam, 7),
    ):
        theirs = [b.random(n)[1].requires_grad_() for _ in range(count)]
        for t in theirs:
            t.grad = b.random(n)[1]
        optimizer = kind(theirs, lr=1e-3, foreach=True)
        optimizer.step()
        b.row(f"{name} of {count}", call, optimizer.step, size=moved * n * count * item, same=False)


# ---- requests, and calls of opd.torch


def median_us(function, repeats):
    for _ in range(20):
        function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter_ns()
        function()
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times) / 1e3, sorted(times)[int(repeats * 0.99)] / 1e3


def requests(b):
    client, conn = b.client, b.client._conn
    print("| request | median | 99th percentile |\n|---|---|---|")
    x = client.tensor(np.ones([32, 32], np.float32))
    for name, function in (
        ("tensor_info: answered by the broker", lambda: conn.call("tensor_info", x._id)),
        ("gelu of [32, 32]: forward, waiting for the result", lambda: client.ops.gelu(x)),
        ("read of [32, 32]", lambda: x.numpy()),
    ):
        median, worst = median_us(function, 3000)
        print(f"| {name} | {median:.1f} µs | {worst:.1f} µs |")

    def hundred():
        with client.batch():
            for _ in range(100):
                client.ops.gelu(x)

    median, worst = median_us(hundred, 50)
    print(f"| gelu of [32, 32], each of 100 in a batch | {median / 100:.1f} µs | {worst / 100:.1f} µs |")


def calls(b):
    """Each call is waited for, PyTorch's too."""
    import opd.torch

    opd.torch.use(b.client.socket)
    print("| call | opd.torch | PyTorch | ratio | bytes moved at least, by opd.torch |\n|---|---|---|---|---|")
    for place in ("cpu", b.device) if b.gpu else ("cpu",):
        for what, n, repeats in (("[32, 32]", 1024, 500), ("64 MiB", 1 << 24, 10)):
            x = torch.randn(n, device=place)

            def done(function):
                y = function(x, approximate="tanh")
                if x.is_cuda:
                    torch.cuda.synchronize()
                return y

            sides = (opd.torch.ops.gelu, F.gelu)
            pairs = [[median_us(lambda: done(f), repeats)[0] for f in sides] for _ in range(3)]
            ours, theirs = (statistics.median(p[i] for p in pairs) for i in (0, 1))
            moved = f"{2 * 4 * n / ours / 1e3:.1f} GB/s" if n > 1024 else ""
            print(f"| gelu of a {'CUDA' if x.is_cuda else 'CPU'} tensor, {what} | {ours:.1f} µs | "
                  f"{theirs:.1f} µs | {ours / theirs:.2f} | {moved} |", flush=True)
    opd.torch.release()


OPERATORS = [elementwise, broadcast, depthwise, upsample, lltm, lltm_sequence, pcl_loss, optimizers]
GROUPS = {group.__name__: group for group in [requests, calls, *OPERATORS]}


def read_args():
    parser = argparse.ArgumentParser()
    best = "cuda:0" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=os.environ.get("OPD_BENCH_DEVICE", best))
    parser.add_argument("--only", action="append", choices=GROUPS)
    parser.add_argument("--dtype", action="append", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--no-compile", action="store_true")
    return parser.parse_args()


def run(b, args):
    groups = [GROUPS[name] for name in args.only] if args.only else GROUPS.values()
    for group in groups:
        if group not in OPERATORS:
            print(f"\n{group.__name__}\n")
            group(b)
    for group in groups:
        if group not in OPERATORS:
            continue
        begin = time.perf_counter()
        print(f"\n{group.__name__}\n\n{HEAD}", flush=True)
        for b.dtype in args.dtype or ("float32", "bfloat16"):
            group(b)
        print(f"\n({time.perf_counter() - begin:.0f} s)", flush=True)


def main():
    args = read_args()
    warnings.filterwarnings("ignore")
    torch._dynamo.config.recompile_limit = 64
    torch._functorch.config.donated_buffer = False  # the backward is run many times
    daemon = Daemon("--kernels", str(Path(__file__).parent / "kernels"), device=args.device)
    client = daemon.connect()
    device = client.status()["devices"][0]
    print(f"opd {client.info['version']} on {device['model']}, PyTorch {torch.__version__}, "
          f"Python {sys.version.split()[0]}")
    b = Bench(client, args.device, not args.no_compile)
    try:
        with torch.cuda.stream(b.stream):  # None: nothing
            run(b, args)
    finally:
        client.close()
        daemon.stop()
    sys.exit(b.timing.failures > 0)


if __name__ == "__main__":
    main()
