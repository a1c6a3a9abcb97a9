"""The figures of reloading: python tests/bench/bench_reload.py [--device cuda:0] [--no-load-inline]

Everything that is compared is timed in this run, taking turns where it can, and compared by medians.
"""

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "reload")]

from compilers import OTHERS, HostCompiler, Nvrtc, edited, find_nvrtc  # noqa: E402
from conftest import DEVICE, Daemon  # noqa: E402
from edits import Caller, put, scale, until  # noqa: E402

DTYPES = ["float32", "float16", "bfloat16", "float64"]
GELU = (ROOT / "tests" / "bench" / "kernels" / "gelu.cu").read_text()
TURNS = 11
SECONDS = 120


class Bench:
    """A daemon with gelu.cu and another operator in a folder of their own."""

    def __init__(self, device, dtypes, env=None):
        self.folder = Path(os.environ["OPD_BENCH_FOLDER"]) / os.urandom(4).hex()
        self.folder.mkdir()
        self.source = edited(GELU)
        put(self.folder / "gelu.cu", self.source)
        put(self.folder / "other.cu", scale(2, "other"))
        before = dict(os.environ)
        os.environ.update(env or {})
        try:
            cache = str(self.folder / "cache")
            self.daemon = Daemon("--kernels", str(self.folder), "--cache", cache, device=device)
        finally:
            os.environ.clear()
            os.environ.update(before)
        self.caller = Caller(self.daemon.socket)
        self.ids = {}
        for dtype in dtypes:
            self.ids[dtype] = self.caller.new_id()
            self.caller.make(self.ids[dtype], dtype, [1000])
            self.version(dtype)

    def version(self, dtype):
        """That serves: computes gelu, and waits for it."""
        y = self.caller.new_id()
        reply = self.caller.call("forward", "gelu", [self.ids[dtype]], {}, [y], {})
        self.caller.call("free", "tensor", [y])
        return reply["version"]

    def save(self):
        """Returns when the file was renamed."""
        self.source = edited(GELU)
        new = self.folder / ".new"
        new.write_text(self.source)
        start = time.perf_counter()
        new.rename(self.folder / "gelu.cu")
        return start

    def edit(self):
        """Seconds from the rename to the first reply of a new version for each dtype."""
        old = self.version(next(iter(self.ids)))
        start = self.save()
        for dtype in self.ids:
            while self.version(dtype) == old:
                if time.perf_counter() - start > SECONDS:
                    raise TimeoutError(self.daemon.read_log())
                time.sleep(0.0003)
        return time.perf_counter() - start

    def close(self):
        self.caller.close()
        self.daemon.stop()


def ms(seconds):
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def make_compiler(device, target):
    """What compiles without opd, and the kernel that it compiles; None where there is none."""
    if device == "cpu":
        return HostCompiler(lambda env: Bench("cpu", DTYPES, env).close()), "gelu_forward_each"
    path = find_nvrtc()
    return (Nvrtc(target, path) if path else None), "gelu_forward"


def time_edits(device, target, skip):
    compiler, kernel = make_compiler(device, target)
    rows, first = [], None
    for name, dtypes in (("float32", DTYPES[:1]), ("its four dtypes together", DTYPES)):
        bench = Bench(device, dtypes)
        ours, theirs = [], []
        for turn in range(TURNS + 2):
            ours.append(bench.edit())
            if compiler:
                theirs.append(sum(
                    compiler.seconds(bench.source, dtype, f"{kernel}<scalar_t, 0>")
                    for dtype in dtypes
                ))  # fmt: skip
        bench.close()
        ours, theirs = ours[2:], theirs[2:]
        first = first or statistics.median(ours)
        rows.append((name, ours, theirs))
    what = "the host's compiler" if device == "cpu" else "NVRTC"
    print(f"| gelu.cu edited | rename to first reply | {what} alone, warm | ratio |\n|---|---|---|---|")
    for name, ours, theirs in rows:
        ratio = statistics.median(a / b for a, b in zip(ours, theirs)) if theirs else float("nan")
        alone = ms(statistics.median(theirs)) if theirs else "not found"
        print(f"| {name} | {ms(statistics.median(ours))} | {alone} | {ratio:.2f} |", flush=True)
    print("\nThe compiler alone: one compile after the other.\n")
    if compiler:
        compiler.close()
    if device != "cpu":
        time_others(first, skip)


def time_others(ours, skip):
    print("| an edit to the first result | time | times opd's |\n|---|---|---|")
    print(f"| opd, gelu float32 | {ms(ours)} | 1 |")
    for name, function, turns in OTHERS:
        if function.__name__ in skip:
            continue
        try:
            function() if turns > 1 else None
            took = statistics.median(function() for _ in range(turns))
        except Exception as e:
            print(f"| {name} | {type(e).__name__}: {str(e).splitlines()[0][:80] if str(e) else ''} | |")
            continue
        print(f"| {name} | {ms(took)} | {took / ours:.1f} |", flush=True)
    print()


# ---- others' requests during a compile


def time_requests(device):
    """Round trips of an operator that is not edited, while nothing and while gelu compiles."""
    bench = Bench(device, DTYPES)
    caller = Caller(bench.daemon.socket)
    caller.run("other")
    busy, over = threading.Event(), threading.Event()
    bench.caller.call("events", 0, {"follow": True})

    def edit():
        try:
            for _ in range(8):
                time.sleep(0.3)
                busy.set()
                bench.save()
                bench.caller.receive(SECONDS)
                busy.clear()
        finally:
            over.set()

    thread = threading.Thread(target=edit)
    times = {False: [], True: []}
    x, y = caller.one(), caller.new_id()
    thread.start()
    while not over.is_set():
        was = busy.is_set()
        start = time.perf_counter()
        caller.call("forward", "other", [x], {}, [y], {})
        took = time.perf_counter() - start
        caller.call("free", "tensor", [y])
        if busy.is_set() == was:
            times[was].append(took)
    thread.join()
    caller.close()
    bench.close()
    print("| round trip of an operator | requests | median | 99th percentile |\n|---|---|---|---|")
    quiet, compiling = (np.percentile(times[b], [50, 99]) for b in (False, True))
    for name, b, (median, worst) in (("quiet", False, quiet), ("gelu compiles", True, compiling)):
        print(f"| {name} | {len(times[b])} | {median * 1e6:.0f} µs | {worst * 1e6:.0f} µs |")
    print(f"| ratio | | {compiling[0] / quiet[0]:.2f} | {compiling[1] / quiet[1]:.2f} |\n", flush=True)


# ---- edits and first calls beside what others do

BOMB = """\
//! op bomb(Tensor x) -> Tensor y
//! dtypes float32
//! shape x [N]
//! shape y [N]
//! example x=[8]
//! forward
//!   kernel bomb
template <unsigned long long P, int D> struct Tree
{ static const int value = Tree<2 * P, D - 1>::value + Tree<2 * P + 1, D - 1>::value; };
template <unsigned long long P> struct Tree<P, 0> { static const int value = 1; };
extern "C" __global__ void bomb(const float *x, float *y, int N) { y[0] = x[0] + Tree<1, 50>::value; }
"""
CALLERS, CHECKS, ELEMENTS = 3, 20, 1 << 20


def call_on(socket):
    """Until it is killed."""
    with Caller(socket) as caller:
        x, y = caller.new_id(), caller.new_id()
        caller.make(x, "float32", [ELEMENTS])
        while True:
            caller.call("forward", "other", [x], {}, [y], {})
            caller.call("free", "tensor", [y])


def time_edits_beside(bench, callers):
    """Of edits while nothing else is done, and while others call as fast as they can."""
    quiet = [bench.edit() for _ in range(TURNS)]
    processes = [multiprocessing.Process(target=call_on, args=(bench.daemon.socket,)) for _ in range(callers)]
    for process in processes:
        process.start()
    until(lambda: bench.caller.call("status")["runs"],
          lambda runs: sum(r["forward"] for r in runs if r["op"] == "other") > 10 * callers)  # fmt: skip
    busy = [bench.edit() for _ in range(TURNS)]
    for process in processes:
        process.kill()
        process.join()
    return quiet, busy


def time_first_calls_beside(bench, checks):
    """Of operators that nobody has called, while nothing and while checks that do not end compile."""
    for i in range(2 * TURNS):
        text = scale(i + 2, f"first{i}").replace("//! example x=[8]\n", "")  # it would be compiled
        put(bench.folder / f"first{i}.cu", text)
    bench.caller.call("reload")

    def first(i):
        start = time.perf_counter()
        bench.caller.run(f"first{i}")
        return time.perf_counter() - start

    quiet = [first(i) for i in range(TURNS)]
    with Caller(bench.daemon.socket) as other:
        for i in range(checks):
            other.request("check", "bomb.cu", "", BOMB + f"// {i}\n", {})
        until(lambda: bench.caller.call("metrics"), lambda m: "opd_compiles_waiting 0\n" not in m)
        return quiet, [first(i) for i in range(TURNS, 2 * TURNS)]


def time_beside(device):
    bench = Bench(device, DTYPES[:1])
    bench.caller.run("other")
    edits = time_edits_beside(bench, CALLERS)
    rows = ((f"an edit beside {CALLERS} callers", edits),
            (f"a first call beside {CHECKS} checks that do not end", time_first_calls_beside(bench, CHECKS)))
    bench.close()
    print("| to its reply | quiet | beside | ratio |\n|---|---|---|---|")
    for name, times in rows:
        quiet, busy = map(statistics.median, times)
        print(f"| {name} | {ms(quiet)} | {ms(busy)} | {busy / quiet:.2f} |", flush=True)
    print()


# ---- restart


def send_all(caller):
    """A first request of every operator for every dtype, forward and backward; how many."""
    sent = []
    for op in caller.call("op_list"):
        for dtype in op["dtypes"]:
            for example in op["examples"]:
                sent += send_example(caller, op, dtype, example)
    for message in sent:
        caller.wait(message, SECONDS)
    return len(sent)


def send_example(caller, op, dtype, example):
    ids = []
    for spec, given in zip(op["inputs"], example["inputs"]):
        ids.append(caller.new_id() if given else None)
        if given:
            own = dtype if given["dtype"] == op["dtypes"][0] else given["dtype"]
            caller.request("tensor_new", ids[-1], own, given["shape"])
    context = {"context": caller.new_id()} if op["has_backward"] else {}
    outputs = [caller.new_id() for _ in op["outputs"]]
    sent = [caller.request("forward", op["name"], ids, example["attrs"], outputs, context)]
    if op["has_backward"]:
        wanted = [
            caller.new_id() if id and spec["differentiable"] else None
            for id, spec in zip(ids, op["inputs"])
        ]
        grads = outputs  # of their shapes
        sent.append(caller.request("backward", context["context"], grads, wanted, {}))
    return sent


def time_start(device, cache, *options):
    """Seconds from the start until it is ready, and until all first requests are answered."""
    start = time.perf_counter()
    daemon = Daemon("--cache", cache, *options, device=device)
    ready = time.perf_counter() - start
    with Caller(daemon.socket) as caller:
        n = send_all(caller)
        took = time.perf_counter() - start
        state = caller.call("status")["compilers"]
    daemon.stop()
    return ready, took, n, state


def time_restart(device):
    folder = Path(os.environ["OPD_BENCH_FOLDER"])
    empty, warm = [], []
    for i in range(3):
        cache = str(folder / f"cache{i}")
        empty.append(time_start(device, cache))
        time_start(device, cache, "--warm")  # what else is warmed
        warm.append(time_start(device, cache, "--warm"))
    n = empty[0][2]
    print(f"| start until the first {n} requests, of every operator and dtype, are answered "
          "| compiled | ready | all answered |\n|---|---|---|---|")  # fmt: skip
    rows = (("empty cache", empty), ("warm cache, --warm", warm))
    middle = []
    for name, runs in rows:
        ready, took = (statistics.median(r[i] for r in runs) for i in (0, 1))
        middle.append(took)
        print(f"| {name} | {runs[-1][3]['compiled']} | {ms(ready)} | {ms(took)} |")
    print(f"| ratio | | | {middle[0] / middle[1]:.1f} |\n", flush=True)


def introduce(device):
    """Prints what is measured; returns the device's target."""
    bench = Bench(device, DTYPES[:1])
    key = "host" if device == "cpu" else "nvrtc"
    ask = bench.caller.call
    status = until(lambda: ask("status"), lambda s: "not asked" not in s["compilers"][key])
    bench.close()
    (info,) = status["devices"]
    compiler = status["compilers"][key].split(" on ")[0].split(" cubin")[0]
    print(f"opd {status['version']} on {info['model']}, {os.cpu_count()} cores; {compiler}\n")
    return info["target"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default=DEVICE)
    parser.add_argument("--no-load-inline", action="store_true", help="it takes two minutes")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="opd-bench-") as folder:
        os.environ["OPD_BENCH_FOLDER"] = folder
        target = introduce(args.device)
        time_edits(args.device, target, {"time_load_inline"} if args.no_load_inline else ())
        time_requests(args.device)
        time_beside(args.device)
        time_restart(args.device)


if __name__ == "__main__":
    main()
