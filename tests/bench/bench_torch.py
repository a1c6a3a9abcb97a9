"""Calls from PyTorch: opd.torch beside a C++ extension and torch's own. Part of `make bench-operators`.

    bench_torch.py [--device cuda:0|cpu] [--turns N]

The extension is built in this run by torch.utils.cpp_extension.load_inline, and does what opd's
operator does; where there is no compiler its columns are empty. A time is of one call among many
that are sent without waiting, but where it says "waiting". Sides take turns; times are medians of
turns, ratios medians of the turns' ratios. Exits 1 if values differ.
"""

import argparse
import contextlib
import os
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from conftest import Daemon  # noqa: E402

import opd.torch  # noqa: E402

LOOPS = 200  # what is sent without waiting fits into the device's queue

COMMON = """
#include <cmath>
#define EACH(i, n) %(each)s
%(launch)s
using torch::Tensor;

%(qualifier)s void gelu_kernel(const float *x, float *y, long n) {
    EACH(i, n) y[i] = x[i] / (1 + expf(-1.702f * x[i]));
}
%(qualifier)s void gelu_back_kernel(const float *g, const float *x, float *d, long n) {
    EACH(i, n) {
        float s = 1 / (1 + expf(-1.702f * x[i]));
        d[i] = g[i] * s * (1 + 1.702f * x[i] * (1 - s));
    }
}
%(qualifier)s void lltm_kernel(const float *gates, const float *old_cell, float *h, float *cell,
                               float *kept, long n, long size) {
    EACH(i, n) {
        const float *row = gates + i / size * 3 * size + i %% size;
        float in = 1 / (1 + expf(-row[0])), out = 1 / (1 + expf(-row[size]));
        float candidate = row[2 * size] > 0 ? row[2 * size] : expm1f(row[2 * size]);
        cell[i] = old_cell[i] + candidate * in;
        h[i] = tanhf(cell[i]) * out;
        kept[i] = in;
    }
}

Tensor gelu(Tensor x) {
    x = x.contiguous();
    Tensor y = torch::empty_like(x);
    LAUNCH(gelu_kernel, x.numel(), x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
    return y;
}
Tensor gelu_back(Tensor g, Tensor x) {
    g = g.contiguous();
    Tensor d = torch::empty_like(x);
    LAUNCH(gelu_back_kernel, x.numel(), g.data_ptr<float>(), x.data_ptr<float>(), d.data_ptr<float>(), x.numel());
    return d;
}
std::vector<Tensor> lltm(Tensor input, Tensor weights, Tensor bias, Tensor old_h, Tensor old_cell) {
    Tensor gates = torch::addmm(bias, torch::cat({old_h, input}, 1), weights.transpose(0, 1));
    Tensor h = torch::empty_like(old_cell), cell = torch::empty_like(old_cell), kept = torch::empty_like(old_cell);
    LAUNCH(lltm_kernel, cell.numel(), gates.data_ptr<float>(), old_cell.data_ptr<float>(), h.data_ptr<float>(),
           cell.data_ptr<float>(), kept.data_ptr<float>(), cell.numel(), cell.size(1));
    return {h, cell, kept};
}
"""
ON_CPU = {
    "each": "for (long i = 0; i < n; i++)",
    "launch": "#define LAUNCH(kernel, n, ...) kernel(__VA_ARGS__)",
    "qualifier": "static",
}
ON_CUDA = {
    "each": "long i = blockIdx.x * (long)blockDim.x + threadIdx.x; if (i < n)",
    "launch": "#include <ATen/cuda/CUDAContext.h>\n#define LAUNCH(kernel, n, ...) kernel<<<((n) + 255) / 256, "
    "256, 0, at::cuda::getCurrentCUDAStream()>>>(__VA_ARGS__)",
    "qualifier": "__global__",
}
DECLARED = """
torch::Tensor gelu(torch::Tensor x);
torch::Tensor gelu_back(torch::Tensor g, torch::Tensor x);
std::vector<torch::Tensor> lltm(torch::Tensor input, torch::Tensor weights, torch::Tensor bias,
                                torch::Tensor old_h, torch::Tensor old_cell);
"""


def build_extension(gpu):
    """None where it cannot be built."""
    from torch.utils.cpp_extension import load_inline

    names = ["gelu", "gelu_back", "lltm"]
    include = "#include <torch/extension.h>\n"
    try:
        if gpu:
            source = include + COMMON % ON_CUDA
            return load_inline(
                "opd_bench", DECLARED, source, functions=names, extra_cuda_cflags=["-O3"]
            )
        return load_inline("opd_bench", COMMON % ON_CPU, functions=names, extra_cflags=["-O3"])
    except Exception as e:  # whatever a compiler or its absence makes of it
        print(f"no extension: {e}", file=sys.stderr)
        return None


def make_function(extension):
    class Gelu(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return extension.gelu(x)

        @staticmethod
        def backward(ctx, grad):
            return extension.gelu_back(grad, *ctx.saved_tensors)

    return Gelu.apply


class Bench:
    def __init__(self, device, turns):
        self.device, self.turns, self.gpu = device, turns, device != "cpu"
        self.wrong = False
        self.stream = torch.cuda.Stream(device) if self.gpu else None
        print(f"{torch.cuda.get_device_name(device) if self.gpu else 'CPU'}, PyTorch {torch.__version__}\n")
        print("| | opd | extension | ratio | PyTorch | ratio | opd isolated |\n|---|---|---|---|---|---|---|")

    def wait(self):
        if self.gpu:
            torch.cuda.synchronize()

    def time(self, call, loops, waiting):
        self.wait()
        begun = time.perf_counter()
        for _ in range(loops):
            call()
            if waiting:
                self.wait()
        took = time.perf_counter() - begun
        self.wait()
        return took / loops

    def row(self, name, opd_call, extension, theirs, isolated=False, waiting=False, loops=LOOPS):
        sides = {"opd": opd_call, "extension": extension, "torch": theirs}
        if isolated:
            sides["isolated"] = opd_call
        sides = {side: call for side, call in sides.items() if call}
        times = {side: [] for side in sides}
        for turn in range(self.turns + 1):
            for side, call in sides.items():
                with opd.torch.options(isolated=side == "isolated" or None):
                    for _ in range(5 if turn == 0 else 1):
                        call()
                    n = max(loops // 10, 5) if side == "isolated" else loops
                    took = self.time(call, n, waiting)
                if turn:
                    times[side].append(took)
        print(f"| {name} | {self._cells(times)} |", flush=True)

    def _cells(self, times):
        def us(side):
            return f"{statistics.median(times[side]) * 1e6:.2f} µs" if times.get(side) else ""

        def ratio(side):
            pairs = zip(times["opd"], times.get(side) or [])
            ratios = [a / b for a, b in pairs]
            return f"{statistics.median(ratios):.2f}" if ratios else ""

        cells = [us("opd"), us("extension"), ratio("extension"), us("torch"), ratio("torch"), us("isolated")]
        return " | ".join(cells)

    def check(self, name, ours, theirs):
        for a, b in zip(ours, theirs):
            if not torch.allclose(a, b, rtol=1e-3, atol=1e-4):
                self.wrong = True
                print(f"{name}: values differ by {(a - b).abs().max():.2e}", file=sys.stderr)


def time_gelu(b, extension):
    x = torch.randn(32, 32, device=b.device)
    gelu = opd.torch.ops.gelu
    with torch.no_grad():
        theirs = (lambda: extension.gelu(x)) if extension else None
        if extension:
            b.check("gelu", [gelu(x)], [extension.gelu(x)])
        b.row("gelu [32, 32]", lambda: gelu(x), theirs, lambda: F.gelu(x), isolated=True)
        b.row("the same, waiting", lambda: gelu(x), theirs, lambda: F.gelu(x), isolated=True, waiting=True)
    leaf = x.clone().requires_grad_()
    grad = torch.randn(32, 32, device=b.device)

    def both(function):
        return lambda: torch.autograd.grad(function(leaf), leaf, grad)

    apply = make_function(extension) if extension else None
    if apply:
        b.check("gelu's gradient", both(gelu)(), both(apply)())
    b.row("gelu, forward and backward", both(gelu), apply and both(apply), both(F.gelu), isolated=True)

    def backward(function):
        def run():
            leaf.grad = None
            function(leaf).backward(grad)

        return run

    b.row("the same by y.backward()", backward(gelu), apply and backward(apply), backward(F.gelu))


def time_lltm(b, extension):
    cell = opd.torch.LLTM(32, 64, device=b.device)
    input = torch.randn(16, 32, device=b.device)
    h, c = torch.randn(2, 16, 64, device=b.device)
    parameters = cell.weights.detach(), cell.bias.detach()

    def in_torch():
        gates = F.linear(torch.cat([h, input], dim=1), *parameters)
        in_gate, out_gate, candidate = gates.chunk(3, dim=1)
        new_cell = c + F.elu(candidate) * torch.sigmoid(in_gate)
        return torch.tanh(new_cell) * torch.sigmoid(out_gate), new_cell

    with torch.no_grad():
        b.check("lltm", opd.torch.ops.lltm(input, *parameters, h, c), in_torch())
        theirs = (lambda: extension.lltm(input, *parameters, h, c)) if extension else None
        if extension:
            b.check("lltm", theirs(), in_torch())
        b.row("lltm [16, 32] with 64", lambda: opd.torch.ops.lltm(input, *parameters, h, c), theirs, in_torch)
        b.row("the layer LLTM", lambda: cell(input, (h, c)), theirs, in_torch)


def make_net(layer, device):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 32, 1), layer(32), nn.ReLU(), nn.Conv2d(32, 64, 1), layer(64), nn.ReLU(),
        nn.Flatten(), nn.LazyLinear(10),
    ).to(device)  # fmt: skip


def time_training(b):
    images = torch.randn(32, 3, 16, 16, device=b.device)
    labels = torch.randint(10, (32,), device=b.device)
    layers = {
        "opd": lambda n: opd.torch.DepthwiseConv2d(n, 3, padding=1, bias=True),
        "torch": lambda n: nn.Conv2d(n, n, 3, padding=1, groups=n),
    }
    steps, graphs, losses = {}, {}, {}
    for side, layer in layers.items():
        net = make_net(layer, b.device)
        net(images)
        if side == "opd":
            weights = [p.detach().clone() for p in net.parameters()]
        else:
            with torch.no_grad():
                for p, w in zip(net.parameters(), weights):
                    p.copy_(w)
        steps[side] = make_step(net, images, labels)
        # All of it on one stream that is not the legacy one: a graph captures the nodes of autograd, too.
        with torch.cuda.stream(b.stream) if b.gpu else contextlib.nullcontext():
            losses[side] = torch.stack([steps[side]().detach().clone() for _ in range(5)])
            if b.gpu:
                graphs[side] = capture(steps[side], b.stream)
        b.wait()
    b.check("losses of five steps", [losses["opd"]], [losses["torch"]])
    loops = 20
    b.row("a training step of a depthwise net", steps["opd"], None, steps["torch"], loops=loops)
    if graphs:
        b.row("the same as a CUDA graph", graphs["opd"], None, graphs["torch"], waiting=True, loops=loops)


def make_step(net, images, labels):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
        return loss

    return step


def capture(step, stream):
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()
    return graph.replay


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--turns", type=int, default=7)
    given = parser.parse_args()
    if given.device == "cpu":
        torch.set_num_threads(1)  # calls are compared, not how many cores are free
    extension = build_extension(given.device != "cpu")
    daemon = Daemon(device=given.device)
    opd.torch.use(daemon.socket)
    try:
        bench = Bench(given.device, given.turns)
        time_gelu(bench, extension)
        time_lltm(bench, extension)
        time_training(bench)
    finally:
        opd.torch.use(None)
        daemon.stop()
    sys.exit(bench.wrong)


if __name__ == "__main__":
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(ROOT / "build" / "extensions"))
    main()
