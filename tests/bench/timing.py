"""How the figures of bench.py are taken: calls in long loops, and kernels by events.

A call: many are sent without waiting, so that the device is never idle, and the time of all is
divided. Kernels: opd's runs are traced while a kernel holds the device, so that those behind it
begin without a gap; PyTorch's calls are captured into a CUDA graph, which launches them without
one. On the CPU device both are timed by the clock. Sides take turns; medians of turns are compared.
"""

import itertools
import statistics
import sys
import time
import traceback

import numpy as np
import torch

TURN = 0.03  # seconds of each side in a turn
CALL_TURNS, KERNEL_TURNS = 5, 5
HEAD = ("| operator | opd | PyTorch | ratio | opd's kernels | PyTorch's | ratio | compiled | ratio "
        "| bytes moved at least |\n|---|---|---|---|---|---|---|---|---|---|")  # fmt: skip


def us(seconds):
    return "" if seconds is None else f"{seconds * 1e6:.1f} µs"


def as_tuple(value):
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


class Side:
    """One of those that are compared: its call, and what was measured of it."""

    def __init__(self, call):
        self.call = call
        self.calls, self.kernels = [], []

    def median(self, what):
        times = getattr(self, what)
        return statistics.median(times) if times else None


def ratio(ours, theirs, what):
    """The median of the turns' ratios."""
    pairs = list(zip(getattr(ours, what), getattr(theirs, what))) if theirs else []
    return f"{statistics.median(a / b for a, b in pairs):.2f}" if pairs else ""


class Timing:
    def __init__(self, client, device, stream):
        self.client = client
        self.gpu = device != "cpu"
        self.stream = stream  # of PyTorch: what is captured must have begun there
        self.one = client.zeros([1])
        self.failures = 0

    # ---- opd

    def opd_call(self, call, loops):
        start = time.perf_counter()
        with self.client.batch():
            for _ in range(loops):
                call()
        return (time.perf_counter() - start) / loops

    def opd_kernels(self, runs, call, loops, launches):
        """The median of so many runs."""
        held = int(2000 + loops * (20 + 6 * launches))
        with self.client.batch():
            if self.gpu:
                self.client.ops.hold(self.one, us=held)
            for _ in range(loops):
                call()
        found = [r for r in itertools.islice(runs, loops + self.gpu) if r["op"] != "hold"]
        assert len({(r["op"], r["direction"]) for r in found}) == 1, found
        return statistics.median(r["seconds"] for r in found), found[-1]["kernels"]

    # ---- PyTorch

    def torch_call(self, call, loops):
        if not self.gpu:
            start = time.perf_counter()
            for _ in range(loops):
                call()
            return (time.perf_counter() - start) / loops
        return self._between_events(lambda: [call() for _ in range(loops)] and None) / loops

    def _between_events(self, function):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        function()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3

    def capture(self, call, loops):
        """A function that runs so many calls and returns the seconds of one."""
        if not self.gpu:
            return lambda: self.torch_call(call, loops)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(graph, stream=self.stream):
                for _ in range(loops):
                    call()
        except RuntimeError as e:
            print(f"timed by a loop, for it cannot be captured: {e}", file=sys.stderr, flush=True)
            return lambda: self.torch_call(call, loops)
        graph.replay()  # what the first launch costs is not measured
        return lambda: self._between_events(graph.replay) / loops

    # ---- both

    def row(self, name, ours, theirs=None, compiled=None, size=0, same=True):
        """A line of the table. `compiled` makes what torch.compile gives; size: bytes that must be
        moved; same: what is compared gives the same values."""
        sides = [Side(ours), Side(theirs) if theirs else None]
        try:
            sides.append(Side(compiled()) if compiled else None)
            for side in sides[1:]:
                if side and same:
                    self._check_same(name, ours, side.call)
            self._time_calls(sides)
            self._time_kernels(sides)
        except Exception:
            self.failures += 1
            print(f"{name}:", traceback.format_exc(), file=sys.stderr, flush=True)
        print(self._line(name, *sides, *[None] * (3 - len(sides)), size), flush=True)

    def _check_same(self, name, ours, theirs):
        for a, b in zip(as_tuple(ours()), as_tuple(theirs())):
            if a is None or b is None:
                continue
            n = min(b.numel(), 100_000)
            found = np.asarray(a.read(0, n), np.float64)
            expected = b.detach().reshape(-1)[:n].double().cpu().numpy()
            error = np.linalg.norm(found - expected) / max(np.linalg.norm(expected), 1e-30)
            bound = 1e-3 if b.dtype == torch.float32 else 5e-2
            if not error < bound:
                raise AssertionError(f"{name}: opd's values and PyTorch's differ by {error:.2e}")

    def _loops(self, seconds, most):
        return max(2, min(most, int(TURN / max(seconds, 1e-7))))

    def _time_calls(self, sides):
        timers = [self.opd_call, self.torch_call, self.torch_call]
        jobs = [(s, t) for s, t in zip(sides[:2], timers) if s]
        loops = {}
        for side, timer in jobs:
            timer(side.call, 3)
            loops[side] = self._loops(timer(side.call, 3), 1000)
        for _ in range(CALL_TURNS):
            for side, timer in jobs:
                side.calls.append(timer(side.call, loops[side]))

    def _time_kernels(self, sides):
        ours, others = sides[0], [s for s in sides[1:] if s]
        replays = []
        for side in others:
            self.torch_call(side.call, 3)
            replays.append(self.capture(side.call, self._loops(self.torch_call(side.call, 3), 20)))
        with self.client.trace() as runs:
            seconds, launches = self.opd_kernels(runs, ours.call, 2, 1000 if self.gpu else 1)
            loops = self._loops(seconds, 20)
            for _ in range(KERNEL_TURNS):
                ours.kernels.append(self.opd_kernels(runs, ours.call, loops, launches)[0])
                for side, replay in zip(others, replays):
                    side.kernels.append(replay())

    def _line(self, name, ours, theirs, compiled, size):
        cells = [us(ours.median("calls"))]
        cells += [us(theirs.median("calls")) if theirs else "", ratio(ours, theirs, "calls")]
        cells += [us(ours.median("kernels"))]
        for side in (theirs, compiled):
            cells += [us(side.median("kernels")) if side else "", ratio(ours, side, "kernels")]
        kernels = ours.median("kernels")
        moved = f"{size / kernels / 1e9:.0f} GB/s" if size and kernels else ""
        return f"| {name} | " + " | ".join([*cells, moved]) + " |"
