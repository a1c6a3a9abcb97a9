"""Kernels beside the best that PyTorch can do: `make bench-operators`, the figures of docs/benchmarks.md.

    bench.py [--quick] [--only GROUP]... [--match TEXT]... [--dtype DTYPE]... [--batch N]...
             [--no-compile [GROUP]]... [--rows] [--docs FILE] [--svg FILE] [--seconds N] [--device cuda:0|cpu]

Every operator that opd comes with, forward and backward, in float32, bfloat16 and float16, on shapes
of networks. PyTorch's side is the fastest of what a user can pick: for images NCHW and channels_last,
with and without cudnn.benchmark; eager and torch.compile(mode="max-autotune-no-cudagraphs"). Times
are of kernels alone (timing.py); sides take turns. A table of each operator, direction and dtype:
how many times as fast as PyTorch's best, as geometric mean over the shapes; the worst and its shape;
what is moved and computed a second at most, beside the card's copy and product of matrices; and how
often each of PyTorch's ways was the fastest. Float32 is float32: TF32 is off.

All cores first compile what torch.compile makes of each case, and opd's kernels; what it chooses by
time it chooses in the run, when the device is quiet. --no-compile: without it, or without it for a
group. --rows adds a line for each shape. --match: of a group those operators alone whose name and
shape have one of the texts ("7×7", "513×513"). --docs writes what was measured into the table of
docs/benchmarks.md; rows of which nothing was measured stay. --quick takes a minute at most: one shape
or some of each, without torch.compile, for images with cudnn.benchmark alone. It ends after 45
seconds, or --seconds, of which half at most compile ahead, and tells what was measured so far, as ^C
does. Exits 1 if values differ or a case fails.
"""

import argparse
import itertools
import math
import os
import re
import statistics
import subprocess
import sys
import time
import traceback
import warnings
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

import cases  # noqa: E402
import roofline  # noqa: E402
from conftest import Daemon  # noqa: E402
from peers import make_peers  # noqa: E402
from timing import Timer, measure_card  # noqa: E402

import opd.torch  # noqa: E402

TURN, TURNS = 0.004, 5  # seconds of each side in a turn
CLOSE = 1.25  # ways that take so much longer than the fastest are not looked at again
SLOW = 0.05  # seconds of a call, of which fewer are made
BATCHES = (1, 8, 32, 128)
WORKER_MEMORY = 8 << 30  # of the device, for a process that compiles
# For them torch.compile chooses kernels by their times while it compiles, and keeps what it has chosen.
CHOOSES = ("lltm", "lltm_sequence")

# Channels, rows and columns, window, stride: the depthwise layers of each network.
NETWORKS = {
    "MobileNetV2": [(32, 112, 3, 1), (96, 112, 3, 2), (144, 56, 3, 1), (144, 56, 3, 2), (192, 28, 3, 1),
                    (192, 28, 3, 2), (384, 14, 3, 1), (576, 14, 3, 1), (576, 14, 3, 2), (960, 7, 3, 1)],
    "EfficientNet-B0": [(144, 56, 5, 2), (240, 28, 5, 1), (240, 28, 3, 2), (480, 14, 3, 1), (480, 14, 5, 1),
                        (672, 14, 5, 1), (672, 14, 5, 2), (1152, 7, 5, 1), (1152, 7, 3, 1)],
    "ConvNeXt-T": [(96, 56, 7, 1), (192, 28, 7, 1), (384, 14, 7, 1), (768, 7, 7, 1)],
    "RepLKNet-31B": [(128, 56, 31, 1), (256, 28, 29, 1), (512, 14, 27, 1), (1024, 7, 13, 1)],
}  # fmt: skip
QUICK_LAYERS = [(32, 112, 3, 1), (96, 112, 3, 2), (192, 28, 3, 1), (144, 56, 5, 2), (672, 14, 5, 1),
                (96, 56, 7, 1), (384, 14, 7, 1), (128, 56, 31, 1), (1024, 7, 13, 1)]  # fmt: skip


# ---- shapes: each group gives cases, whose first are those of --quick


def elementwise(b):
    for shape in b.pick([(1 << 26,), (32, 197, 3072), (128, 96, 56, 56), (16, 1000)], 1):
        yield from cases.elementwise(b.make, *shape)


def broadcast(b):
    for shapes in b.pick([((4096, 4096), (4096,)), ((32, 197, 768), (768,)), ((32, 256, 56, 56), (256, 1, 1)),
                          ((64, 1000), (1000,))], 1):  # fmt: skip
        yield from cases.broadcast(b.make, *shapes)


def rows(b):
    for shape in b.pick([(16384, 1024), (6304, 768), (4096, 8192), (75648, 197), (64, 1000)], 1):
        yield from cases.rows(b.make, *shape)


def depthwise(b):
    layers = QUICK_LAYERS if b.args.quick else [layer for of in NETWORKS.values() for layer in of]
    batches = b.args.batch or ([32] if b.args.quick else BATCHES)
    if not b.timer.gpu:
        layers, batches = layers[2:3], [1]
    for batch, (channels, size, kernel, stride) in itertools.product(batches, layers):
        yield from cases.depthwise(b.make, batch, channels, size, kernel, stride)


def upsample(b):
    for shape, to in b.pick([((16, 64, 128, 128), (256, 256)), ((8, 21, 65, 65), (513, 513)),
                             ((8, 256, 32, 32), (64, 64)), ((2, 256, 25, 34), (50, 68)),
                             ((4, 3, 1080, 1920), (540, 960)), ((1, 512, 16, 16), (32, 32))], 2):  # fmt: skip
        yield from cases.upsample(b.make, shape, to)


def channels_last(b):
    """Those of depthwise and upsample on both sides so: PyTorch cannot pick NCHW, nor opd."""
    yield from cases.channels_last(depthwise(b))
    yield from cases.channels_last(upsample(b))


def lltm(b):
    for sizes in b.pick([(256, 1024, 1024), (64, 256, 512), (16, 32, 128)], 3):
        yield from cases.recurrent(b.make, *sizes)


def lltm_sequence(b):
    for sizes in b.pick([(256, 1024, 1024), (16, 32, 128)], 2):
        yield from cases.recurrent(b.make, *sizes, 100)


def pcl_loss(b):
    yield from cases.pcl_loss(b.make, 2000, 21, 100)


GROUPS = {g.__name__: g for g in [depthwise, upsample, channels_last, lltm, lltm_sequence, pcl_loss, elementwise,
                                  broadcast, rows]}  # fmt: skip


# ---- measuring


@dataclass
class Row:
    group: str
    operator: str
    direction: str
    dtype: str
    shape: str
    ours: float  # seconds
    theirs: float
    speed: float  # PyTorch's time over ours: the median of turns
    way: str  # PyTorch's fastest
    moved: float
    flops: float
    peers: dict[str, float] = field(default_factory=dict)  # their times over ours


def as_list(value):
    return list(value) if isinstance(value, (tuple, list)) else [value]


def bytes_of(tensors):
    return sum(t.numel() * t.element_size() for t in tensors)


def find_formats(case):
    return {f" {name}": cases.as_format(name, case.inputs) for name in case.formats} or {"": case.inputs}


def find_eager(case, quick):
    """(name, function, inputs, cudnn.benchmark) of each that a user can pick; quick: of most."""
    for name, inputs in find_formats(case).items():
        if not (case.formats and quick):
            yield f"eager{name}", case.theirs, inputs, False
        if case.formats:
            yield f"eager{name}, cudnn.benchmark", case.theirs, inputs, True


def find_compiled(case):
    for name, inputs in find_formats(case).items():
        torch._dynamo.reset()
        options = {"mode": "max-autotune-no-cudagraphs", "dynamic": False}
        made = (case.compiled(torch.compile(cases.cell, **options)) if case.compiled
                else torch.compile(case.theirs, **options))  # fmt: skip
        yield f"compiled{name}", made, inputs, True


class Bench:
    def __init__(self, args):
        self.args, self.failures = args, 0
        self.stream = torch.cuda.Stream(args.device) if args.device != "cpu" else None
        self.timer = Timer(args.device, self.stream)
        self.turns = 3 if args.quick else TURNS
        self.rows, self.card = [], {}
        self.make = None  # tensors of the dtype that is measured

    def pick(self, shapes, quick):
        if not self.timer.gpu:
            return shapes[-1:]
        return shapes[:quick] if self.args.quick else shapes

    def prepare(self, case, function, inputs, backward):
        """The call that is timed, and what it moves."""
        if not backward:
            return lambda: function(*inputs)
        leaves = case.make_leaves(inputs)
        wanted = [t for t in leaves if t.requires_grad]
        outputs = as_list(function(*leaves))
        # As they would come: in the outputs' layout; the same for all.
        grads = [torch.empty_like(t).copy_(self.make.fresh().normal(*t.shape)) for t in outputs]
        return lambda: torch.autograd.grad(outputs, wanted, grads, retain_graph=True)

    def count(self, case, backward):
        made = as_list(case.ours(*case.inputs))
        if not backward:
            return bytes_of(case.inputs) + bytes_of(made), case.flops
        wanted = [case.inputs[i] for i in case.wanted] or case.inputs
        return bytes_of(made) + bytes_of(wanted) + case.reads * bytes_of(case.inputs), case.flops * case.back

    def find_ways(self, group, case):
        yield from find_eager(case, self.args.quick)
        if self.compiles(group, case):
            yield from find_compiled(case)

    def compiles(self, group, case):
        if self.args.quick or not self.timer.gpu or {"all", group} & set(self.args.no_compile):
            return False
        # torch.compile leaves a convolution to the same libraries: one batch shows it.
        return case.inputs[0].shape[0] == 32 or not case.operator.startswith("depthwise")

    def measure(self, group, case, backward):
        direction = "backward" if backward else "forward"
        ours = self.prepare(case, case.ours, case.inputs, backward)
        ways, best = {}, math.inf
        for name, function, inputs, benchmark in self.find_ways(group, case):
            torch.backends.cudnn.benchmark = benchmark
            try:
                call = self.prepare(case, function, inputs, backward)
                if not ways and (not backward or case.same_slopes):
                    self.check(as_list(ours()), as_list(call()))
                ways[name] = self.look_at(call)
            except Exception as e:
                if not name.startswith("compiled"):
                    raise
                print(f"{case.operator} {case.shape}, {name}: {e!r:.300}", file=sys.stderr, flush=True)
                continue
            best = min(best, ways[name][0])
            ways = {way: seen for way, seen in ways.items() if seen[0] <= CLOSE * best}
        row = self.take_turns(f"{case.operator} {case.shape}", ours, ways, make_peers(case, backward))
        moved, flops = self.count(case, backward)
        self.add(Row(group, case.operator, direction, self.name, case.shape, *row[:4], moved, flops, row[4]))

    def look_at(self, call):
        """(seconds of a call, roughly; what gives them anew), of the device's time alone, as in turns."""
        replay = self.timer.repeated(call, TURN)
        return min(replay(), replay()), replay

    def take_turns(self, what, ours, ways, peers):
        torch.backends.cudnn.benchmark = False
        sides = {"opd": self.timer.repeated(ours, TURN)}
        sides |= {name: replay for name, (_, replay) in ways.items()}
        for name, call in list(peers.items()):
            try:
                sides[name] = self.timer.repeated(call, TURN)
            except Exception as e:  # whatever theirs is
                print(f"{what}, {name}: {e!r:.300}", file=sys.stderr, flush=True)
                del peers[name]
        turns = 2 if min(rough for rough, _ in ways.values()) > SLOW else self.turns
        times = {name: [] for name in sides}
        for _ in range(turns):
            for name, replay in sides.items():
                times[name].append(replay())
        median = {name: statistics.median(of) for name, of in times.items()}
        way = min(ways, key=median.get)
        speed = statistics.median(b / a for a, b in zip(times["opd"], times[way]))
        return median["opd"], median[way], speed, way, {p: median[p] / median["opd"] for p in peers}

    def check(self, ours, theirs):
        for a, b in zip(ours, theirs):
            error = (a.float() - b.float()).norm() / b.float().norm().clamp_min(1e-30)
            if not error < (1e-3 if self.make.dtype == torch.float32 else 5e-2):
                raise AssertionError(f"opd's values and PyTorch's differ by {error:.2e}")

    def add(self, row):
        self.rows.append(row)
        if self.args.rows:
            peers = "".join(f", {name} {ratio:.2f} ×" for name, ratio in row.peers.items())
            print(f"{row.operator} {row.direction} {row.dtype} {row.shape}: {row.ours * 1e6:.1f} µs, "
                  f"{row.speed:.2f} × {row.way}{peers}", flush=True)  # fmt: skip

    def attempt(self, what, function, *args):
        try:
            function(*args)
        except Exception:
            self.failures += 1
            print(f"{what}:", traceback.format_exc(limit=-4), file=sys.stderr, flush=True)

    def matches(self, case):
        return not self.args.match or any(m in f"{case.operator} {case.shape}" for m in self.args.match)

    def time_optimizers(self):
        for many, shape in ((1, (1 << 26,)), (1, (1024, 4096)), (161, (1 << 16,))):
            shape = shape if self.timer.gpu else (1 << 10,)
            for name, ours, ways, moved, flops in cases.optimizers(self.make, many, *shape):
                seen = {way: self.look_at(step) for way, step in ways.items()}
                a, b, speed, way, _ = self.take_turns(name, ours, seen, {})
                shown = cases.spell(shape)
                self.add(Row("optimizers", name, "step", self.name, shown, a, b, speed, way, moved, flops))

    def find_cases(self):
        """(group, case, backward), group by group, so that what is reached is whole; of optimizers no case."""
        dtypes = self.args.dtype or ["float32", "bfloat16", "float16"][: 2 if self.args.quick else 3]
        for group, dtype in itertools.product(self.args.only or [*GROUPS, "optimizers"], dtypes):
            self.name, self.make = dtype, cases.Maker(self.args.device, getattr(torch, dtype))
            if group == "optimizers":
                yield group, None, False
                continue
            for case in GROUPS[group](self):
                for backward in (False, True):
                    if (case.back or not backward) and self.matches(case):
                        yield group, case, backward

    def compile_ahead(self, socket, until):
        """On all cores what run() will compile, into caches that it finds it in."""
        free, _ = torch.cuda.mem_get_info(self.args.device)
        n = max(1, min(os.cpu_count() - 1, free // WORKER_MEMORY))
        environment = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
        command = [sys.executable, *sys.argv, "--share", socket, str(n)]
        workers = [subprocess.Popen([*command, str(i)], env=environment) for i in range(n)]
        try:
            for worker in workers:
                worker.wait(max(0, until - time.perf_counter()) if until < math.inf else None)
        except subprocess.TimeoutExpired:
            print("not all is compiled ahead", flush=True)
        finally:
            for worker in workers:
                worker.terminate()
                worker.wait()

    def compile_share(self, n, i):
        for group, case, backward in itertools.islice(self.find_cases(), i, None, n):
            if not case:
                continue
            ways = [(case.ours, case.inputs)]
            if self.compiles(group, case):
                ways = itertools.chain(ways, ((made, inputs) for _, made, inputs, _ in find_compiled(case)))
            keeps = torch._inductor.config.patch(fx_graph_cache=group not in CHOOSES)
            with torch.set_grad_enabled(backward), keeps:
                for function, inputs in ways:
                    with suppress(Exception):  # it will be told when it is measured
                        self.prepare(case, function, inputs, backward)()

    def run(self, until):
        for group, case, backward in self.find_cases():
            if time.perf_counter() > until:
                what = f"{case.operator} of {group}" if case else group
                print(f"after {self.args.seconds:.0f} s, at {what} in {self.name}; so far:")
                return
            if self.name not in self.card:
                self.card[self.name] = measure_card(self.timer, self.args.device, self.make.dtype)
            if not case:
                self.attempt(group, self.time_optimizers)
                continue
            with torch.set_grad_enabled(backward):
                self.attempt(f"{case.operator} {case.shape}", self.measure, group, case, backward)


# ---- what is told


def tell(rows, card):
    print("\n| operator | shapes | × PyTorch's best | worst | at | bytes/s | of the card's | FLOP/s "
          "| of the card's | peers |\n|---|---|---|---|---|---|---|---|---|---|")  # fmt: skip
    for (operator, direction, dtype), found in grouped(rows, lambda r: (r.operator, r.direction, r.dtype)):
        worst = min(found, key=lambda r: r.speed)
        bandwidth, peak = (max(getattr(r, of) / r.ours for r in found) for of in ("moved", "flops"))
        names = {name for r in found for name in r.peers}
        peers = ", ".join(f"{n} {mean(r.peers[n] for r in found if n in r.peers):.2f}" for n in sorted(names))
        print(f"| {operator} {direction} {dtype} | {len(found)} | {mean(r.speed for r in found):.2f} | {worst.speed:.2f} "
              f"| {worst.shape} ({worst.way}) | {bandwidth / 1e12:.2f} TB/s | {bandwidth / card[dtype][0]:.2f} "
              f"| {peak / 1e12:.2f} T | {peak / card[dtype][1]:.2f} | {peers} |")  # fmt: skip
    print("\n| group | shapes and dtypes | × PyTorch's best | below 1 | worst | which is |\n|---|---|---|---|---|---|")
    for (group, direction), found in grouped(rows, lambda r: (r.group, r.direction)):
        of, ways = [r.speed for r in found], Counter(r.way for r in found)
        print(f"| {group} {direction} | {len(of)} | {mean(of):.2f} | {sum(s < 1 for s in of)} | {min(of):.2f} "
              f"| {', '.join(f'{way}: {n}' for way, n in ways.most_common())} |")  # fmt: skip


DOCS_DTYPES = ("float32", "bfloat16")  # side by side in the table of docs/benchmarks.md


def docs_columns(found):
    """Of one operator, direction and dtype: mean, worst of several, TB/s and TFLOP/s where that is 1 at least."""
    speeds = [r.speed for r in found]
    moved, computed = (max(getattr(r, of) / r.ours for r in found) / 1e12 for of in ("moved", "flops"))
    return [f"{mean(speeds):.2f}", f"{min(speeds):.2f}" if len(found) > 1 else "", f"{moved:.2f}" if moved >= 0.2 else "",
            f"{computed:.1f}" if computed >= 1 else ""]  # fmt: skip


def write_docs(path, rows):
    """Puts what was measured into the table's rows, in their order; those of new operators follow."""
    lines = path.read_text().split("\n")
    begin = next(i for i, line in enumerate(lines) if re.match(r"\| operator \| float32 \| worst \| TB/s", line)) + 2
    end = next(i for i in range(begin, len(lines)) if not lines[i].startswith("|"))
    table = {cells[0].strip(): [c.strip() for c in cells[1:]] for cells in (x.split("|")[1:-1] for x in lines[begin:end])}
    for (operator, direction), found in grouped(rows, lambda r: (r.operator, r.direction)):
        cells = table.setdefault(f"{operator} {direction}", [""] * 8)
        for i, dtype in enumerate(DOCS_DTYPES):
            of = [r for r in found if r.dtype == dtype]
            if of:
                cells[4 * i : 4 * i + 4] = docs_columns(of)
    lines[begin:end] = [f"| {name} | {' | '.join(cells)} |" for name, cells in table.items()]
    path.write_text("\n".join(lines))


def mean(values):
    return math.exp(statistics.fmean(map(math.log, values)))


def grouped(rows, key):
    found = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found.items()


def draw(path, rows, card):
    panels = []
    for dtype in ("float32", "bfloat16"):
        points = [
            (r.group, r.flops / r.moved, r.flops / r.ours, f"{r.operator} {r.direction}, {r.shape}")
            for r in rows
            if r.dtype == dtype and r.group != "channels_last"
            and (r.group != "depthwise" or r.shape.startswith("32×"))
        ]
        if points:
            panels.append((dtype, card[dtype], points))
    roofline.draw(path, panels)


def read_args():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--only", action="append", choices=[*GROUPS, "optimizers"])
    parser.add_argument("--match", action="append")
    parser.add_argument("--dtype", action="append", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--batch", action="append", type=int)
    parser.add_argument("--no-compile", action="append", nargs="?", const="all", default=[], choices=["all", *GROUPS])
    parser.add_argument("--share", nargs=3, help=argparse.SUPPRESS)  # a socket, so many processes, which of them this is
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--docs", type=Path)
    parser.add_argument("--svg", type=Path)
    args = parser.parse_args()
    args.seconds = args.seconds or (45 if args.quick else math.inf)
    return args


def main():
    args = read_args()
    warnings.filterwarnings("ignore")
    torch.backends.cudnn.allow_tf32 = False
    torch._dynamo.config.recompile_limit = 64
    torch._functorch.config.donated_buffer = False  # the backward is run many times
    torch._inductor.config.autotune_local_cache = False  # what is chosen beside other work is not kept
    # Of 100 depthwise convolutions it chose the library for each; a kernel of its own took 5 times as long at least,
    # 7,000 at the median, and minutes to be tried.
    torch._inductor.config.max_autotune_conv_backends = "ATEN"
    begun = time.perf_counter()
    b = Bench(args)
    if args.share:
        opd.torch.use(args.share[0])
        with torch.cuda.stream(b.stream), suppress(KeyboardInterrupt):
            b.compile_share(*map(int, args.share[1:]))
        return
    daemon = Daemon(device=args.device)
    client = daemon.connect()
    opd.torch.use(daemon.socket)
    device = client.status()["devices"][0]
    print(f"opd {client.info['version']} on {device['model']}, PyTorch {torch.__version__}", flush=True)
    try:
        if b.timer.gpu and not args.quick:
            b.compile_ahead(daemon.socket, begun + args.seconds / 2)
            print(f"compiled ahead: {time.perf_counter() - begun:.0f} s", flush=True)
        with torch.cuda.stream(b.stream):  # None: nothing
            b.run(begun + args.seconds)
    except KeyboardInterrupt:
        print("interrupted; so far:")
    finally:
        opd.torch.use(None)
        client.close()
        daemon.stop()
    for dtype, (bandwidth, peak) in b.card.items():
        print(f"{dtype}: a copy moves {bandwidth / 1e12:.2f} TB/s, a product of matrices takes {peak / 1e12:.1f} TFLOP/s")
    tell(b.rows, b.card)
    print(f"\n({time.perf_counter() - begun:.0f} s)")
    if args.docs:
        write_docs(args.docs, b.rows)
    if args.svg and b.rows:
        draw(args.svg, b.rows, b.card)
    sys.exit(b.failures > 0)


if __name__ == "__main__":
    main()
