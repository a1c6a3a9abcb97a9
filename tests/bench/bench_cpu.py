"""Operators on the CPU beside PyTorch's, with as many threads: `make bench-cpu`.

    bench_cpu.py [--only NAME]... [--turns N] [--threads N] [--sizes small,large] [--dtype NAME]
                 [--no-daemon]

Every operator that opd comes with, forward and backward, as a user calls it: by opd.torch, in the
process of PyTorch, with tensors on the CPU. Backward is torch.autograd.grad() of what forward has
left, for both. Sides take turns; times are the least of all turns, for what else runs on a machine
makes them longer only; "ratio" is of these, "median" that of the turns' ratios. "in the daemon" is
what the CPU device itself takes for the same call. Exits 1 if values differ.
"""

import argparse
import ctypes
import math
import statistics
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

import cases  # noqa: E402
from conftest import Daemon  # noqa: E402

import opd.torch  # noqa: E402

TURN = 0.01  # seconds of each side in a turn
ERRORS = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
BARRIERS = ("pcl_loss forward",)  # threads that wait for one another, which the device runs in turns
VIEWS = ("flatten",)  # the device runs nothing, so there is no time of its own to wait for


def find_cases(make, large):
    yield from cases.elementwise(make, *((1 << 20,) if large else (32, 32)))
    yield from cases.broadcast(make, *(((1024, 1024), (1024,)) if large else ((32, 32), (32,))))
    yield from cases.rows(make, *((1024, 1024) if large else (32, 32)))
    x = make.normal(*((1024, 1024) if large else (32, 32)))
    yield cases.Case("flatten", cases.spell(x.shape), cases.ops.flatten, torch.flatten, [x])
    images = []
    layers = [(8, 64, 56, 3, 1), (8, 96, 56, 3, 2), (8, 120, 28, 5, 1), (4, 96, 56, 7, 1)]
    late = [(4, 384, 14, 3, 1), (4, 576, 14, 3, 2), (4, 960, 7, 3, 1), (4, 1152, 7, 5, 1), (4, 1024, 7, 13, 1)]
    for layer in layers + late if large else [(1, 8, 8, *layer[3:]) for layer in layers]:
        images += cases.depthwise(make, *layer)
    images += cases.upsample(make, *(((4, 32, 64, 64), (128, 128)) if large else ((1, 4, 32, 32), (64, 64))))
    yield from images
    yield from cases.channels_last(images)
    for steps in 0, 20 if large else 10:
        yield from cases.recurrent(make, *((128, 256, 256) if large else (16, 32, 128)), steps)
    yield from cases.pcl_loss(make, *((2000, 21, 100) if large else (30, 5, 4)))


def us(seconds):
    return f"{seconds * 1e6:.1f} µs"


def as_list(value):
    return list(value) if isinstance(value, (tuple, list)) else [value]


class Bench:
    def __init__(self, client, args):
        self.client, self.args, self.wrong = client, args, False
        self.ratios = {}  # of (size, name)

    def both_ways(self, size, case):
        shapes = case.shape.split(", ")  # behind them a stride, or a mode
        name = f"{case.operator}, {shapes[-1]}" if shapes[-1][0].isalpha() else case.operator
        if case.operator.startswith("depthwise") and size == "large":
            name += f", {shapes[0]}"
        sides = case.ours, case.theirs
        with torch.no_grad():
            self.row(size, f"{name} forward", *[lambda f=f: f(*case.inputs) for f in sides])
        if not case.back:
            return
        leaves = case.make_leaves(case.inputs)
        wanted = [t for t in leaves if t.requires_grad]
        outputs = [as_list(f(*leaves)) for f in sides]
        # Of a mean more: in float16 all else would be subnormal, of which few digits are left.
        grads = [torch.randn_like(t) if t.ndim else torch.full_like(t, 4096) for t in outputs[0]]
        self.row(size, f"{name} backward", *[
            lambda outs=outs: torch.autograd.grad(outs, wanted, grads, retain_graph=True) for outs in outputs])  # fmt: skip

    def row(self, size, name, ours, theirs, same=True):
        if same:
            self.check(name, as_list(ours()), as_list(theirs()))
        sides = ours, theirs
        loops = [max(1, min(1000, int(TURN / min(self.time(f, 2), self.time(f, 2))))) for f in sides]
        turns = [[self.time(f, n) for f, n in zip(sides, loops)] for _ in range(self.args.turns)]
        a, b = (min(side) for side in zip(*turns))
        self.ratios[size, name] = a / b
        alone = self.args.no_daemon or name.startswith(VIEWS)
        cells = [us(a), us(b), f"{a / b:.2f}", f"{statistics.median(x / y for x, y in turns):.2f}",
                 "" if alone else us(self.time_in_daemon(ours, loops[0]))]  # fmt: skip
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)

    def time(self, function, loops):
        # Of one thread the processor's time: what others take of it does not count.
        clock = time.thread_time if self.args.threads == 1 else time.perf_counter
        begun = clock()
        for _ in range(loops):
            function()
        return (clock() - begun) / loops

    def time_in_daemon(self, function, loops):
        loops = min(loops, 20)
        with opd.torch.options(isolated=True), self.client.trace() as runs:
            for _ in range(loops):
                function()
            return min(next(runs)["seconds"] for _ in range(loops))

    def check(self, name, ours, theirs):
        for a, b in zip(ours, theirs):
            error = (a.double() - b.double()).norm() / b.double().norm().clamp_min(1e-30)
            if not error < ERRORS[b.dtype]:
                self.wrong = True
                print(f"{name}: opd's values and PyTorch's differ by {error:.2e}", file=sys.stderr)

    def tell(self):
        for what in ("large", "small", ""):
            found = {k: r for k, r in self.ratios.items() if k[0].startswith(what) and k[1] not in BARRIERS}
            if found:
                mean = math.exp(statistics.fmean(map(math.log, found.values())))
                worst = sorted(found, key=found.get, reverse=True)[:5]
                print(f"{what or 'all'}: geometric mean {mean:.2f}; worst "
                      + ", ".join(f"{found[k]:.2f} ({k[1]}, {k[0]})" for k in worst))  # fmt: skip


def run(b, args):
    for size in args.sizes.split(","):
        large, make = size == "large", cases.Maker(dtype=getattr(torch, args.dtype))
        print(f"\n{size}\n\n| operator | opd | PyTorch | ratio | median | in the daemon |")
        print("|---|---|---|---|---|---|")

        def chosen(name):
            return not args.only or any(name.startswith(only) for only in args.only)

        for case in find_cases(make, large):
            if chosen(case.operator):
                b.both_ways(size, case)
        for many in (1, 161):
            shape = (1 << (14 if many > 1 else 20),) if large else (32, 32)
            for name, ours, ways, *_ in cases.optimizers(make, many, *shape):
                if chosen(name):
                    b.row(size, name, ours, min(ways.values(), key=lambda step: b.time(step, 9)), same=False)
    print()
    b.tell()


def keep_memory():
    """What is freed stays with the process: to ask the kernel for pages anew would be most of a time."""
    M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, LARGE = -1, -3, 1 << 30
    for what in (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD):
        ctypes.CDLL(None).mallopt(what, LARGE)


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--only", action="append")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--sizes", default="large,small")
    parser.add_argument("--dtype", choices=("float16", "bfloat16", "float32", "float64"), default="float32")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--no-daemon", action="store_true")
    args = parser.parse_args()
    keep_memory()
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    daemon = Daemon(device="cpu")
    opd.torch.use(daemon.socket)
    client = daemon.connect()
    print(f"opd {client.info['version']}, PyTorch {torch.__version__}, {torch.get_num_threads()} threads")
    b = Bench(client, args)
    try:
        run(b, args)
    finally:
        opd.torch.use(None)
        client.close()
        daemon.stop()
    sys.exit(b.wrong)


if __name__ == "__main__":
    main()
