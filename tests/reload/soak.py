"""Edits of operators under load, again and again: python tests/reload/soak.py --edits 1000

Some operators are edited in turn, one edit in ten is broken, while clients call all of them without
a pause. Each version adds a number of its own, and every reply is held against the version that it
says ran. At the end memory, descriptors, processes and loaded kernels are what they were after the
first edits.
"""

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from conftest import DEVICE, PATIENCE, Daemon, find_family  # noqa: E402
from edits import Caller, put  # noqa: E402
from raw import count_fds, find_roles, read_rss  # noqa: E402

OPERATOR = """\
//! op      soak{op}(Tensor x) -> Tensor y
//! dtypes  float32
//! shape   x [N]
//! shape   y [N]
//! example x=[64]
//
//! forward
//!   kernel  run<scalar_t>

// {salt}
template <class T> __global__ void run(const T *x, T *y, int N)
{{
    CUDA_KERNEL_LOOP(i, N)
        y[i] = x[i] + T({number});
}}
"""
N = 64
# Bytes of growth that mean nothing: the broker keeps what it has freed, up to a bound.
SLACK = {"broker": 8 << 20, "executor": 12 << 20}


class Client(Caller):
    """Calls all operators in turn until told to stop, pausing when told to."""

    def __init__(self, soak):
        super().__init__(soak.daemon.socket)
        self.soak = soak
        self.answered = 0
        self.warned = []
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.idle = threading.Event()

    def _work(self):
        try:
            x = self.new_id()
            self.make(x, "float32", [N], np.arange(N, dtype=np.float32).tobytes())
            last = [0] * self.soak.operators
            while not self.soak.ended.is_set():
                if not self.soak.running.is_set():
                    self.idle.set()
                    self.soak.running.wait(1)
                    continue
                self.idle.clear()
                for op in range(self.soak.operators):
                    last[op] = self._call(op, x, last[op])
        except BaseException as e:
            self.soak.errors.append(f"a client: {type(e).__name__}: {e}")
            self.idle.set()

    def _call(self, op, x, last):
        y = self.new_id()
        sent = [
            self.request("forward", f"soak{op}", [x], {}, [y], {}),
            self.request("tensor_read", y, 0),
            self.request("free", "tensor", [y]),
        ]
        reply, data, _ = [self.wait(m) for m in sent]
        version, values = reply["version"], np.frombuffer(data, np.float32)
        number = values[0]
        if len(values) != N or (values != np.arange(N, dtype=np.float32) + number).any():
            raise AssertionError(f"soak{op} version {version} gave {values}")
        if version < last:
            raise AssertionError(f"soak{op}: version {version} after {last}")
        self.soak.seen.add((op, version, float(number)))
        self.warned += reply.get("warnings", [])
        self.answered += 1
        return version


class Soak:
    def __init__(self, device=DEVICE, operators=3, clients=8, seconds=None):
        self.operators = operators
        self.seconds = seconds
        self.folder = Path(tempfile.mkdtemp(prefix="opd-soak-"))
        self.salt = os.urandom(8).hex()  # nothing of this is in a cache
        self.errors, self.seen, self.took = [], set(), []
        self.expected = {}  # (operator, version): number
        self.n_broken = self.n_edits = 0
        self.running, self.ended = threading.Event(), threading.Event()
        for op in range(operators):
            self._write(op, 0)
            self.expected[op, 1] = 0
        cache = ["--cache", str(self.folder / "cache"), "--cache-size", "16M"]
        self.daemon = Daemon("--kernels", str(self.folder), *cache, device=device)
        self.watcher = Caller(self.daemon.socket)
        self.watcher.call("events", 0, {"follow": True})
        self.clients = [Client(self) for _ in range(clients)]

    def _write(self, op, number):
        text = OPERATOR.format(op=op, number=number, salt=self.salt)
        put(self.folder / f"soak{op}.cu", text)

    def edit(self):
        """One edit, until the daemon tells what came of it."""
        self.n_edits += 1
        op, fails = self.n_edits % self.operators, self.n_edits % 10 == 7
        start = time.perf_counter()
        self._write(op, f"broken_{self.n_edits}" if fails else self.n_edits)
        event = {"kind": "compiled"}  # for a call: is told beside what came of edits
        while event["kind"] == "compiled":
            _, _, (event,) = self.watcher.receive(PATIENCE)
        took = time.perf_counter() - start
        told = (event["op"], event["kind"])
        if told != (f"soak{op}", "failed" if fails else "reloaded"):
            raise AssertionError(f"edit {self.n_edits} of soak{op}: {event}")
        if fails:
            self.n_broken += 1
        else:
            self.expected[op, event["version"]] = self.n_edits
            self.took.append(took)

    def pause(self):
        """All clients wait, and nothing is under way."""
        for client in self.clients:
            client.idle.clear()
        self.running.clear()
        for client in self.clients:
            if not client.idle.wait(PATIENCE):
                raise AssertionError("a client hangs")
        self.watcher.call("status")
        time.sleep(0.3)

    def measure(self):
        (executor,) = find_roles(self.daemon.pid, "executor")
        (device,) = self.watcher.call("status")["devices"]
        return {
            "broker": read_rss(self.daemon.pid),
            "executor": read_rss(executor),
            "broker fds": count_fds(self.daemon.pid),
            "executor fds": count_fds(executor),
            "processes": len(find_family(self.daemon.pid)),
            "restarts": device["restarts"],
            "device memory": device["memory_used"],
            "mappings of code": count_code(executor),
        }

    def run(self, edits, warm):
        """`warm`: after so many of the edits, what is in use is what it stays."""
        for client in self.clients:
            client.thread.start()
        self.running.set()
        start = told = time.monotonic()
        before = None
        while self.n_edits < edits and not self.errors:
            if self.n_edits == warm:
                self.pause()
                before = self.measure()
                self.running.set()
            elif before and self.seconds and time.monotonic() - start > self.seconds:
                break
            self.edit()
            if time.monotonic() - told > 5:
                told = time.monotonic()
                self.say(told - start)
        if not self.errors:
            self.pause()
        self.say(time.monotonic() - start)
        after = None if self.errors else self.measure()
        self.ended.set()
        self.running.set()
        for client in self.clients:
            client.thread.join(PATIENCE)
        self.judge(before, after)

    def say(self, seconds):
        replies = sum(client.answered for client in self.clients)
        middle = statistics.median(self.took) * 1e3 if self.took else 0
        print(f"{seconds:6.0f} s  {self.n_edits} edits, {self.n_broken} of them broken; "
              f"{replies} replies; median edit {middle:.0f} ms", flush=True)  # fmt: skip

    def judge(self, before, after):
        assert not self.errors, self.errors
        wrong = [s for s in self.seen if self.expected.get(s[:2]) != s[2]]
        assert not wrong, f"(operator, version, number) that was not so: {wrong}"
        for client in self.clients:
            assert len(client.warned) == len(set(client.warned)), "a failure was told twice"
        warned = {text for client in self.clients for text in client.warned}
        assert self.n_broken == 0 or warned, "no failure was told"
        print(f"{'':18}{'after the first':>16}{'at the end':>16}")
        for key in before:
            print(f"{key:18}{before[key]:16}{after[key]:16}")
        for key in before:
            slack = SLACK.get(key, 0)
            assert after[key] <= before[key] + slack, f"{key} grew: {before[key]} to {after[key]}"

    def close(self):
        self.ended.set()
        self.running.set()
        for caller in (self.watcher, *self.clients):
            caller.close()
        if self.daemon.alive():
            self.daemon.stop()
        for path in sorted(self.folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        self.folder.rmdir()


def count_code(pid):
    """Executable mappings: kernels of the CPU device are some of them."""
    with open(f"/proc/{pid}/maps") as maps:
        return sum(line.split()[1].startswith("r-x") for line in maps)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--edits", type=int, default=60)
    parser.add_argument("--device", default=DEVICE)
    parser.add_argument("--operators", type=int, default=3)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, help="ends after so long")
    args = parser.parse_args()
    soak = Soak(args.device, args.operators, args.clients, args.seconds)
    try:
        soak.run(args.edits, warm=min(args.edits // 3, 20 * args.operators))
        print("no wrong version, no failed request, no growth")
    finally:
        soak.close()


if __name__ == "__main__":
    main()
