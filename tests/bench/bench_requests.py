"""What a request costs beside what it starts: `make bench-requests`, on the best device there is.

    bench_requests.py [--device cuda:0|cpu] [--rounds N] [--only times|clients|step|data|many]

times: gelu of [32, 32] from C and from Python, each waited for or many at once, and 20 of them as a graph, beside a kernel
that is launched in process, PyTorch's eager call and CuPy's, and the CUDA graphs of both; waited for also with opd --spin.
All sides take turns; medians of the rounds, and of their ratios to PyTorch's.

clients: calls a second of eight programs in C at once, pipelined and as graphs of 20, over all devices of --device.

step: a training step of examples/resident.py, as one replay and as calls in a batch.

data: 64 MiB of a NumPy array into a tensor and out of one, beside memcpy and numpy.copy(), whose memory is fresh as a
read's is; on a GPU also PyTorch's copy of page-locked memory. All sides take turns.

many: the broker's user instructions for each request, with 1 to 1,000 connections that take turns, 10 to 50,000 tensors,
10 to 4,000 operators: counts, by valgrind, on the CPU device.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "functional")]

import numpy as np  # noqa: E402
from conftest import PROGRAM, Daemon  # noqa: E402
from counts import AtWork, CountedDaemon, Unable, fill_folder  # noqa: E402

SHAPE = (32, 32)
TURN = 0.15  # seconds of each side in a round
BATCH = 200
IN_GRAPH = 20  # as in requests.c
CLIENTS = 8
DATA = 64 << 20  # bytes
DRIVER = Path(PROGRAM).resolve().parent / "tests" / "bench" / "requests"


class InC:
    """A side of requests.c: µs of a call, None where it is not there."""

    def __init__(self, process, side):
        self.process, self.side = process, side

    def __call__(self, n):
        self.process.stdin.write(f"{self.side} {n}\n")
        self.process.stdin.flush()
        said = self.process.stdout.readline().strip()
        if not said:
            raise RuntimeError("the C driver has ended")
        return None if said == "-" else float(said)


def timed(act, each=1):
    """µs of one, where act() makes `each`."""

    def side(n):
        loops = max(1, n // each)
        begin = time.perf_counter()
        for _ in range(loops):
            act()
        return (time.perf_counter() - begin) / loops / each * 1e6

    return side


def open_driver(socket):
    return subprocess.Popen([DRIVER, socket], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def close_driver(driver):
    driver.stdin.close()
    driver.wait()
    driver.stdout.close()


def opd_sides(client):
    x = client.tensor(np.ones(SHAPE, np.float32))
    gelu = client.ops.gelu

    def batch():
        with client.batch():
            for _ in range(BATCH):
                gelu(x)

    with client.capture() as graph:
        y = x
        for _ in range(IN_GRAPH):
            y = gelu(y)
    return {
        "opd, Python, waiting": timed(lambda: gelu(x)),
        "opd, Python, in a batch": timed(batch, BATCH),
        "opd, Python, a graph of 20": timed(graph.replay),
    }


def torch_sides(device):
    try:
        import torch
    except ImportError:
        return {}
    x = torch.ones(SHAPE, device=device)
    gelu = torch.nn.functional.gelu
    if device == "cpu":
        return {"PyTorch eager": timed(lambda: gelu(x))}

    def waiting():
        gelu(x)
        torch.cuda.synchronize()

    def enqueue():
        for _ in range(BATCH):
            gelu(x)
        torch.cuda.synchronize()

    waiting()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x
        for _ in range(IN_GRAPH):
            y = gelu(y)

    def replay():
        graph.replay()
        torch.cuda.synchronize()

    return {
        "PyTorch eager, waiting": timed(waiting),
        "PyTorch eager, enqueued": timed(enqueue, BATCH),
        "PyTorch, a CUDA graph of 20": timed(replay),
    }


def cupy_sides(device):
    if device == "cpu":
        return {}
    try:
        import cupy
    except ImportError:
        return {}
    kernel = cupy.ElementwiseKernel("float32 x", "float32 y", "y = x / (1 + exp(-1.702f * x))", "bench_gelu")
    with cupy.cuda.Device(int(device.partition(":")[2] or 0)):
        x = cupy.ones(SHAPE, np.float32)
    stream = cupy.cuda.get_current_stream()

    def waiting():
        kernel(x)
        stream.synchronize()

    def enqueue():
        for _ in range(BATCH):
            kernel(x)
        stream.synchronize()

    return {"CuPy, waiting": timed(waiting), "CuPy, enqueued": timed(enqueue, BATCH)}


def take_turns(sides, rounds):
    """µs of each side in each round."""
    loops = {}
    for name, side in list(sides.items()):
        first = side(50)  # warm
        if first is None:
            del sides[name]
            continue
        loops[name] = max(BATCH, int(TURN * 1e6 / max(side(BATCH), 0.1)))
    found = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            found[name].append(side(loops[name]))
    return found


def show_times(found, base):
    print(f"\n| gelu of [32, 32] | µs, median | least | beside {base} |\n|---|---|---|---|")
    for name, times in found.items():
        beside = [a / b for a, b in zip(times, found[base])] if base in found else []
        ratio = f"{statistics.median(beside):.2f}" if beside else ""
        print(f"| {name} | {statistics.median(times):.2f} | {min(times):.2f} | {ratio} |", flush=True)


def bench_times(device, rounds):
    daemon, spinning = Daemon(device=device), Daemon("--spin", device=device)
    driver, spinner = open_driver(daemon.socket), open_driver(spinning.socket)
    client = daemon.connect()
    sides = {
        "opd, C, waiting": InC(driver, "waiting"),
        "opd --spin, C, waiting": InC(spinner, "waiting"),
        "opd, C, pipelined": InC(driver, "pipelined"),
        "opd, C, a graph of 20": InC(driver, "replay"),
        **opd_sides(client),
        "launch in process, waiting": InC(driver, "launch"),
        "launch in process, enqueued": InC(driver, "enqueue"),
        "CUDA graph of 20 in process, waiting": InC(driver, "graph"),
        **torch_sides(device),
        **cupy_sides(device),
    }
    found = take_turns(sides, rounds)
    show_times(found, "PyTorch eager" if device == "cpu" else "PyTorch eager, waiting")
    client.close()
    close_driver(driver)
    close_driver(spinner)
    daemon.stop()
    spinning.stop()


# ---- clients


def count_a_second(drivers, side, n):
    """What all of them do in a second, of which each does n."""
    for n_now in (200, n):  # warm
        begin = time.perf_counter()
        for driver in drivers:
            driver.stdin.write(f"{side} {n_now}\n")
            driver.stdin.flush()
        for driver in drivers:
            driver.stdout.readline()
    return len(drivers) * n / (time.perf_counter() - begin)


def bench_clients(device, rounds):
    print(f"\n| {CLIENTS} clients in C at once, gelu of [32, 32] | calls a second, median | most |\n|---|---|---|")
    daemon = Daemon(device=device)
    drivers = [open_driver(daemon.socket) for _ in range(CLIENTS)]
    for name, side, n, calls in (("pipelined", "pipelined", 6400, 1), ("graphs of 20", "replay", 1000, IN_GRAPH)):
        found = [calls * count_a_second(drivers, side, n) for _ in range(rounds)]
        print(f"| {name} | {statistics.median(found):,.0f} | {max(found):,.0f} |", flush=True)
    for driver in drivers:
        close_driver(driver)
    daemon.stop()


# ---- step


def bench_step(device, rounds):
    sys.path.insert(0, str(ROOT / "examples"))
    import resident

    rng = np.random.default_rng(0)
    daemon = Daemon("--kernels", str(ROOT / "examples"), device=device)
    client = daemon.connect()
    points, classes = resident.make_spirals(rng, 300)
    x, target, one = client.tensor(points), client.tensor(classes), client.tensor(np.float32(1))
    sizes = zip(resident.WIDTHS, resident.WIDTHS[1:])
    layers = [resident.Layer(client, rng, i, *widths) for i, widths in enumerate(sizes)]
    with client.capture() as step:
        resident.train_step(client, layers, x, target, one)

    def replays():
        with client.batch():
            for _ in range(50):
                step.replay()

    def calls():
        with client.batch():
            resident.train_step(client, layers, x, target, one)

    sides = {"replayed, each of 50 in a batch": timed(replays, 50), "replayed, waiting": timed(step.replay)}
    found = take_turns({**sides, "its calls in a batch": timed(calls)}, rounds)
    print("\n| a step of examples/resident.py | µs, median | least |\n|---|---|---|")
    for name, times in found.items():
        print(f"| {name} | {statistics.median(times):.1f} | {min(times):.1f} |", flush=True)
    client.close()
    daemon.stop()


# ---- data


def pinned_sides(device):
    """PyTorch's copies between a GPU and page-locked memory."""
    try:
        import torch
    except ImportError:
        return {}
    if device == "cpu":
        return {}
    host = torch.empty(DATA // 4).pin_memory()
    there = torch.empty(DATA // 4, device=device)
    return {
        "page-locked, to the GPU": lambda: (there.copy_(host), torch.cuda.synchronize()),
        "page-locked, from the GPU": lambda: (host.copy_(there), torch.cuda.synchronize()),
    }


def bench_data(device, rounds):
    daemon = Daemon(device=device)
    client = daemon.connect()
    array = np.random.default_rng(0).random(DATA // 4, np.float32)
    warm, tensor = array.copy(), client.tensor(array)
    sides = {
        "memcpy": lambda: np.copyto(warm, array),
        "numpy.copy()": array.copy,
        "opd, write": lambda: tensor.write(array),
        "opd, read": tensor.numpy,
        **pinned_sides(device),
    }
    for side in sides.values():  # what is kept for a size that comes again is there from then on
        timed(side)(3)
    found = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            side()  # its memory and the caches are as its own last turn leaves them
            found[name].append(timed(side)(3) / 1e3)
    assert np.array_equal(tensor.numpy(), array)
    print(f"\n| {DATA >> 20} MiB | ms, median | least | GB/s | speed beside memcpy | beside numpy.copy() |")
    print("|---" * 6 + "|")
    for name, times in found.items():
        middle = statistics.median(times)
        figures = [middle, min(times), DATA / middle / 1e6]
        figures += [statistics.median(a / b for a, b in zip(found[x], times)) for x in ("memcpy", "numpy.copy()")]
        print(f"| {name} | " + " | ".join(f"{figure:.2f}" for figure in figures) + " |", flush=True)
    client.close()
    daemon.stop()


# ---- many


def show_many(what, counts):
    kinds = next(iter(counts.values()))
    print(f"\n| {what} | " + " | ".join(kinds) + " |\n|---" + "|---" * len(kinds) + "|")
    for n, found in counts.items():
        print(f"| {n:,} | " + " | ".join(f"{c:,.0f}" for c in found.values()) + " |", flush=True)


def count_with(fill, *options, connections=1):
    daemon = CountedDaemon(*options)
    try:
        requests = AtWork(daemon.socket, connections)
        fill(requests)
        return {kind: daemon.count_requests(requests, kind, max(200, connections)) for kind in requests.kinds}
    finally:
        daemon.stop()


def bench_many(sizes):
    more = ("--max-connections", "2000")
    show_many("connections", {n: count_with(lambda _: None, *more, connections=n) for n in sizes["connections"]})
    show_many("tensors", {n: count_with(lambda r, n=n: r.make_tensors(n)) for n in sizes["tensors"]})
    of_operators = {}
    for n in sizes["operators"]:
        with tempfile.TemporaryDirectory() as folder:
            of_operators[n] = count_with(lambda _: None, "--kernels", fill_folder(folder, n))
    show_many("operators", of_operators)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default=os.environ.get("DEVICE") or "cpu")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", choices=["times", "clients", "step", "data", "many"])
    options = parser.parse_args()
    if options.only in (None, "times"):
        bench_times(options.device, options.rounds)
    if options.only in (None, "clients"):
        bench_clients(options.device, options.rounds)
    if options.only in (None, "step"):
        bench_step(options.device, options.rounds)
    if options.only in (None, "data"):
        bench_data(options.device, options.rounds)
    if options.only in (None, "many"):
        try:
            bench_many({"connections": [1, 100, 1000], "tensors": [10, 1000, 50_000], "operators": [10, 400, 4000]})
        except Unable as why:
            print(f"\nmany: not counted: {why}")


if __name__ == "__main__":
    main()
