"""What the long runs share: tensors whose every bit is known, and clients that never stop asking."""

import gc
import json
import multiprocessing
import os
import random
import re
import statistics
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "functional")]

from conftest import PATIENCE, PROGRAM, Daemon, find_family, shorten  # noqa: E402
from raw import find_roles, read_rss  # noqa: E402

import opd  # noqa: E402

KERNELS = Path(__file__).resolve().parent / "kernels"
FAULTS = {
    "cuda": ["write", "read", "null", "misaligned", "trap", "assertion", "recursion", "jump"],
    "cpu": ["write", "read", "null", "recursion", "divide", "illegal", "bus", "abort", "leave"],
}


def faults_of(device):
    return FAULTS[device.partition(":")[0]]


def checksum(words):
    """The same as checksum.cu's, by NumPy."""
    total, step = 0, 1 << 24
    for start in range(0, len(words), step):
        part = words[start : start + step].view(np.uint32).astype(np.uint64) + np.uint64(1)
        places = np.arange(start, start + len(part), dtype=np.uint64) | np.uint64(1)
        total += int((part * places).sum(dtype=np.uint64))
    return (total + (1 << 63)) % (1 << 64) - (1 << 63)


class Treasure:
    """Named tensors, and what they must hold."""

    def __init__(self, client, bytes, count, seed):
        rng = np.random.default_rng(seed)
        self.sums = {}
        block = rng.integers(-(1 << 31), 1 << 31, max(bytes // count // 4, 64), dtype=np.int32)
        for i in range(count):
            words = np.roll(block, 7919 * i) ^ np.int32(i)
            name = f"treasure.{i}"
            client.tensor(words, name=name)
            self.sums[name] = checksum(words)

    def verify(self, client):
        """The names of those that are not what they were."""
        lost = []
        for name, want in self.sums.items():
            tensor = client.attach(name)
            if int(client.ops.checksum(tensor).numpy()) != want:
                lost.append(name)
            client._conn.call("free", "tensor", [tensor._id], {"drop": True})
        return lost


def is_forgiven(error, codes):
    """A request that waits for a compile is told of the compiler's end."""
    killed = error.code == "unavailable" and "the compiler was ended by signal 9" in str(error)
    return error.code in codes or (killed and "kernel_fault" in codes)


def work(socket, seed, sums, forgiven, results, ready, stop):
    """A client's process: gelu forward and backward, and checksums, each against what it must be."""
    rng = random.Random(seed)
    client = opd.connect(socket, start=False)
    x = client.tensor(np.linspace(-3, 3, 4096, dtype=np.float32) + seed)
    treasures = {name: client.attach(name) for name in sums}
    want = None
    counts = {"replies": 0, "wrong": 0, "forgiven": 0, "errors": []}
    worst = 0.0
    ready.release()
    while not stop.is_set():
        began = time.monotonic()
        try:
            if rng.random() < 0.05:
                name = rng.choice(list(sums))
                right = int(client.ops.checksum(treasures[name]).numpy()) == sums[name]
            else:
                y, ctx = client.ops.gelu.forward(x)
                got = y.numpy().tobytes() + ctx.backward(x)[0].numpy().tobytes()
                want = want or got
                right = got == want
            counts["replies"] += 1
            counts["wrong"] += not right
        except opd.ConnectionLost:
            break
        except opd.OpdError as e:
            if is_forgiven(e, forgiven):
                counts["forgiven"] += 1
            else:
                counts["errors"].append(str(e))
        worst = max(worst, time.monotonic() - began)
    counts["worst"] = worst
    results.put(counts)


def ping(socket, device, results, ready, stop):
    """How long the broker, or another device, lets a client wait at worst."""
    client = opd.connect(socket, start=False)
    x = client.tensor(np.ones(64, np.float32), device=device)
    client.ops.gelu(x)  # compiled before anything is timed
    worst = 0.0
    ready.release()
    while not stop.is_set():
        began = time.monotonic()
        client._conn.call("tensor_info", x._id) if device is None else client.ops.gelu(x)
        worst = max(worst, time.monotonic() - began)
        time.sleep(0.001)
    results.put({"worst": worst})


class Crowd:
    """Processes that run `target(*args, results, ready, stop)` until they are told to stop."""

    def __init__(self):
        self.context = multiprocessing.get_context("spawn")
        self.results, self.stop = self.context.Queue(), self.context.Event()
        self.ready = self.context.Semaphore(0)
        self.processes = []

    def add(self, target, *args):
        # One that is left behind by a run that failed ends with it.
        process = self.context.Process(
            target=target, args=(*args, self.results, self.ready, self.stop), daemon=True)
        process.start()
        self.processes.append(process)

    def await_ready(self, seconds=PATIENCE):
        for _ in self.processes:
            assert self.ready.acquire(timeout=seconds), "a client did not start"

    def finish(self, seconds=PATIENCE):
        """What each reported; AssertionError if one did not."""
        self.stop.set()
        found = [self.results.get(timeout=seconds) for _ in self.processes]
        for process in self.processes:
            process.join(seconds)
            assert process.exitcode == 0, f"a client ended with {process.exitcode}"
        return found


def gpu_memory_used(device):
    """MiB in use, by whomever, of the GPU that a device is, by NVIDIA's tool; None where it is none."""
    kind, _, index = device.partition(":")
    if kind != "cuda":
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")  # the tool counts all GPUs, CUDA those named here
    gpu = visible.split(",")[int(index or 0)] if visible else index or "0"
    try:
        out = subprocess.run(
            ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", gpu],
            capture_output=True, text=True, timeout=PATIENCE, check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return int(out.stdout.split()[0])


def await_spares(client):
    """The daemon's status when no spare is on its way: only one that is ready has a context, 0.6 GiB of a GPU's."""
    end = time.monotonic() + PATIENCE
    while True:
        status = client.status()
        if time.monotonic() > end or not any(d["spare"] == "starting" for d in status["devices"]):
            return status
        time.sleep(0.05)


def take_stock(daemon, client):
    """What the daemon holds: by /proc, and by its own account."""
    gc.collect()  # tensors in the tracebacks of errors
    client.synchronize()
    status = await_spares(client)
    # There are more compilers the more there is to compile at a time, up to one for each core.
    compilers = len(find_roles(daemon.pid, "compiler"))
    return {
        "descriptors but compilers'": sum(count_descriptors(daemon.pid).values()) - compilers,
        "processes but compilers": len(find_family(daemon.pid)) - compilers,
        "executors": len(find_roles(daemon.pid, "executor")),
        "connections": status["connections"],
        "named tensors": sum(1 for t in client.tensors() if t["name"]),
        "MiB of tensors": sum(d["memory_used"] for d in status["devices"]) >> 20,
        "MiB of the devices": sum(d["memory_reserved"] for d in status["devices"]) >> 20,
        "MiB of the broker": read_rss(daemon.pid) >> 20,
        "MiB of the GPU": gpu_memory_used(status["devices"][0]["name"]),
    }


# How much more of something may be there afterwards without a leak.
SLACK = {
    "descriptors but compilers'": 8, # of an executor's, spare's or compiler's that has just been started
    "processes but compilers": 2, # a compiler that a child of it has not yet been waited for; a spare
    "MiB of the devices": 64, # one chunk, that the order of frees has left in pieces
    # A sanitizer keeps what was freed for a while.
    "MiB of the broker": 400 if b"__asan_init" in Path(PROGRAM).read_bytes() else 8,
    "MiB of the GPU": 64,
}


def compare_stock(before, after):
    """What has grown, in words."""
    return [
        f"{what}: {was} -> {after[what]}"
        for what, was in before.items()
        if was is not None and after[what] > was + SLACK.get(what, 0)
    ]


def show_stock(before, after):
    for what, was in before.items():
        if was is not None:
            print(f"{what}: {was} -> {after[what]}")


def count_descriptors(pid):
    """Open descriptors by kind, without those of compiled code, which each new signature adds."""
    counts = {}
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            kind = os.readlink(f"/proc/{pid}/fd/{fd}")
        except OSError:
            continue  # that of the folder's reader
        if not kind.endswith(".opd") and "opd-image" not in kind:
            kind = re.sub(r":\[\d+\]", "", kind)
            counts[kind] = counts.get(kind, 0) + 1
    return counts


def check_status(daemon):
    """What `opctl status` says against /proc, when nobody but one client without unnamed tensors is
    there: what differs, in words."""
    opctl = Path(PROGRAM).parent / "opctl"
    command = [opctl, "--socket", daemon.socket, "status", "--json"]
    env = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
    status = json.loads(subprocess.run(command, capture_output=True, check=True, env=env).stdout)
    seen = {
        "pid": (status["pid"], daemon.pid),
        # opctl's own is gone when this is counted.
        "connections": (status["connections"] - 1, count_connections(daemon)),
        "executors": (len(status["devices"]), len(find_roles(daemon.pid, "executor"))),
        "spares": (sum(d["spare"] != "none" for d in status["devices"]), len(find_roles(daemon.pid, "spare"))),
        "compilers": (status["compilers"]["processes"], len(find_roles(daemon.pid, "compiler"))),
        "clients": (len(status["clients"]), status["connections"]),
    }
    for device in status["devices"]:
        seen[f"unnamed memory on {device['name']}"] = (device["memory_used"] - device["memory_named"], 0)
    host = [d for d in status["devices"] if d["name"] == "cpu"]
    if host:
        seen["bytes of chunks"] = (host[0]["memory_reserved"], chunk_bytes(daemon.pid))
    return [f"{k}: status says {a}, expected {b}" for k, (a, b) in seen.items() if a != b]


def eventually_agrees(daemon, client):
    """check_status() when what is on its way out has gone."""
    end = time.monotonic() + PATIENCE
    while True:
        gc.collect()
        client.synchronize()  # tells the daemon what has been given up here
        differs = check_status(daemon)
        if not differs or time.monotonic() > end:
            return differs
        time.sleep(0.1)


def count_connections(daemon):
    """Sockets that the broker has accepted, by the kernel's list."""
    mine = set()
    for fd in os.listdir(f"/proc/{daemon.pid}/fd"):
        try:
            mine.add(os.readlink(f"/proc/{daemon.pid}/fd/{fd}"))
        except OSError:
            pass
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    accepted = [r for r in rows if r[-1] == daemon.socket and not int(r[3], 16) & 0x10000]
    return sum(f"socket:[{r[6]}]" in mine for r in accepted)


def chunk_bytes(pid):
    """Of the memfds in which a process holds a device's memory."""
    total = 0
    for fd in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{fd}"
        try:
            if os.readlink(path).startswith("/memfd:opd-chunk"):
                total += os.stat(path).st_size
        except OSError:
            pass
    return total


def summary(times):
    """'median 210 ms, worst 340 ms of 100'"""
    if not times:
        return "none"
    return f"median {1e3 * statistics.median(times):.0f} ms, worst {1e3 * max(times):.0f} ms of {len(times)}"


class Watchdog:
    """Ends the process with a word if a run outlives its time: a hang of a test is a failure."""

    def __init__(self, seconds):
        def expire():
            print(f"the run took more than {seconds} s", file=sys.stderr, flush=True)
            os._exit(1)

        self.timer = threading.Timer(seconds, expire)
        self.timer.daemon = True
        self.timer.start()


@contextmanager
def long_lived(args, *options):
    """A daemon on args.device. What it leaves behind at its end fails the run; a run that fails
    says what did and how to repeat it, then shows the end of the daemon's log."""
    daemon = Daemon("--kernels", str(KERNELS), *options, device=args.device)
    try:
        yield daemon
    except BaseException as error:
        print(f"failed: {type(error).__name__}: {str(error)[:2000]}\n--seed {args.seed} repeats it; "
              f"the daemon's log:\n{shorten(daemon.read_log())}", file=sys.stderr, flush=True)
        daemon.process.kill()
        raise
    daemon.stop()
    print("ok: nothing was lost")
