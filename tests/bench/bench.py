"""The figures of docs/benchmarks.md: `make bench`, on the best device there is.

Round trips are medians of single requests. Operators are timed by long loops of requests sent
without waiting, so that the device is never idle; PyTorch the same way, in the same run, taking
turns with opd (ours, theirs, ours, ...), and the medians of the turns are compared.
"""

import os
import statistics
import sys
import tempfile
import time

import torch
import torch.nn.functional as F

import opd

GPU = torch.cuda.is_available() and os.environ.get("OPD_BENCH_DEVICE", "cuda:0") != "cpu"
DEVICE = "cuda:0" if GPU else "cpu"
TURNS = 9
DTYPES = ["float32", "bfloat16"] if GPU else ["float32"]


def median_us(function, repeats):
    for _ in range(20):
        function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter_ns()
        function()
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times) / 1e3, sorted(times)[int(repeats * 0.99)] / 1e3


def round_trips(client):
    print("| request | median | 99th percentile |\n|---|---|---|")
    x = client.tensor([[1.0] * 32] * 32, dtype="float32")
    conn = client._conn
    rows = [
        ("tensor_info: answered by the broker", lambda: conn.call("tensor_info", x._id)),
        ("gelu of [32, 32]: forward, waiting for the result", lambda: client.ops.gelu(x)),
        ("read of [32, 32]", lambda: x.numpy()),
    ]
    for name, function in rows:
        median, worst = median_us(function, 3000)
        print(f"| {name} | {median:.1f} µs | {worst:.1f} µs |")

    def hundred():
        with client.batch():
            for _ in range(100):
                client.ops.gelu(x)

    median, worst = median_us(hundred, 50)
    print(f"| gelu of [32, 32], each of 100 in a batch | {median / 100:.1f} µs | {worst / 100:.1f} µs |")


def time_opd(client, function, loops):
    start = time.perf_counter()
    with client.batch():
        for _ in range(loops):
            function()
    return (time.perf_counter() - start) / loops


def time_torch(function, loops):
    if not GPU:
        start = time.perf_counter()
        for _ in range(loops):
            function()
        return (time.perf_counter() - start) / loops
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(loops):
        function()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / loops


def compare(client, name, ours, theirs, size):
    """Alternating turns; loops so that a turn takes some 100 ms."""
    time_opd(client, ours, 3), time_torch(theirs, 3)
    loops = max(5, min(2000, int(0.1 / max(time_torch(theirs, 5), 1e-6))))
    pairs = [(time_opd(client, ours, loops), time_torch(theirs, loops)) for _ in range(TURNS)]
    a, b = (statistics.median(p[i] for p in pairs) for i in (0, 1))
    ratio = statistics.median(p[0] / p[1] for p in pairs)
    print(f"| {name} | {a * 1e6:.1f} µs | {b * 1e6:.1f} µs | {ratio:.2f} | {size / a / 1e9:.0f} GB/s |",
          flush=True)


def depthwise(client, dtype, kernel):
    shape = (64, 128, 56, 56) if GPU else (8, 64, 56, 56)
    channels, padding = shape[1], kernel // 2
    place = "cuda" if GPU else "cpu"
    x = torch.randn(shape, device=place, dtype=getattr(torch, dtype))
    w = torch.randn(channels, 1, kernel, kernel, device=place, dtype=x.dtype)
    grad = torch.randn_like(x)
    ox, ow, og = (client.tensor(t.cpu(), dtype=dtype) for t in (x, w, grad))
    conv = client.ops.depthwise_conv2d
    size = x.numel() * x.element_size()
    name = f"depthwise {kernel}×{kernel} {dtype}"
    compare(client, f"{name} forward", lambda: conv(ox, ow, padding=padding),
            lambda: F.conv2d(x, w, padding=padding, groups=channels), 2 * size)
    _, ctx = conv.forward(ox, ow, padding=padding)

    def theirs(mask):
        return torch.ops.aten.convolution_backward(
            grad, x, w, None, (1, 1), (padding, padding), (1, 1), False, (0, 0), channels,
            (*mask, False))

    compare(client, f"{name} grad_input", lambda: ctx.backward(og, wanted=("input",)),
            lambda: theirs((True, False)), 2 * size)
    compare(client, f"{name} grad_weight", lambda: ctx.backward(og, wanted=("weight",)),
            lambda: theirs((False, True)), 2 * size)


def gelu(client, dtype):
    n = 1 << 26 if GPU else 1 << 22
    x = torch.randn(n, device="cuda" if GPU else "cpu", dtype=getattr(torch, dtype))
    ox = client.tensor(x.cpu(), dtype=dtype)
    size = 2 * n * x.element_size()
    for approximate in ("tanh", "none"):
        compare(client, f"gelu {approximate} {dtype} forward",
                lambda: client.ops.gelu(ox, approximate=approximate),
                lambda: F.gelu(x, approximate=approximate), size)
    _, ctx = client.ops.gelu.forward(ox, approximate="tanh")
    grad = torch.randn_like(x)
    og = client.tensor(grad.cpu(), dtype=dtype)
    compare(client, f"gelu tanh {dtype} backward", lambda: ctx.backward(og),
            lambda: torch.ops.aten.gelu_backward(grad, x, approximate="tanh"), 3 * n * x.element_size())


def main():
    folder = tempfile.mkdtemp(prefix="opd-bench-")
    os.environ.setdefault("OPD_SOCKET", folder + "/opd.sock")
    client = opd.connect()
    device = client.status()["devices"][0]
    print(f"opd {client.info['version']} on {device['model']}, PyTorch {torch.__version__}, "
          f"Python {sys.version.split()[0]}\n")
    try:
        round_trips(client)
        print("\n| operator | opd | PyTorch | ratio | bytes moved at least, by opd |\n|---|---|---|---|---|")
        for dtype in DTYPES:
            gelu(client, dtype)
            for kernel in (3, 7):
                depthwise(client, dtype, kernel)
    finally:
        client.stop()


if __name__ == "__main__":
    main()
