"""How bench.py times kernels: by CUDA graphs of many calls, whose replays are timed by events.

So the host is out of it, and the device runs them without a gap. What is small stays in the L2
from one call to the next, for all alike. Where there is no GPU calls are timed by the clock.
"""

import time

import torch


class Timer:
    def __init__(self, device, stream):
        self.gpu, self.stream = device != "cpu", stream

    def between_events(self, function):
        if not self.gpu:
            begun = time.perf_counter()
            function()
            return time.perf_counter() - begun
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        function()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3

    def repeated(self, call, seconds):
        """A function that gives the seconds of a call, from as many of them as take so long."""
        for _ in range(3):  # loads, chooses and compiles what it needs
            call()
        loops = max(1, min(100, int(seconds / self.between_events(call))))

        def loop():
            for _ in range(loops):
                call()

        if not self.gpu:
            return lambda: self.between_events(loop) / loops
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=self.stream):
            loop()
        graph.replay()  # what the first launch costs is not measured
        return lambda: self.between_events(graph.replay) / loops


def measure_card(timer, device, dtype):
    """(bytes/s of a copy, FLOP/s of a product of matrices), both large."""
    x = torch.zeros(1 << (28 if timer.gpu else 20), device=device)
    y = torch.empty_like(x)
    n = 8192 if timer.gpu else 256
    a = torch.randn(n, n, device=device, dtype=dtype)
    copy, product = (lambda: torch.neg(x, out=y)), (lambda: a @ a)  # copy_() is not the fastest
    return (8 * x.numel() / min(timer.repeated(copy, 0.02)() for _ in range(3)),
            2 * n**3 / min(timer.repeated(product, 0.05)() for _ in range(3)))  # fmt: skip
