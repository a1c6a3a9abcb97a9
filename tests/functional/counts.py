"""What requests cost the broker, in counts that are the same on every run: user instructions, by valgrind, and system
calls, by build/tests/bench/count. For test_gates.py, and for `make bench-requests`."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from conftest import CACHE, PATIENCE, PROGRAM, find_family
from raw import Raw

BENCH = Path(PROGRAM).resolve().parent / "tests" / "bench"
DESC = ["float32", [32, 32]]


class Unable(Exception):
    """This machine cannot count."""


class Requests:
    """Requests of one connection, each waited for."""

    def __init__(self, socket):
        self.raw = Raw(socket)
        self.raw.make(1, *DESC)
        self.raw.make(2, *DESC)
        self.raw.call("prepare", 1, "forward", "gelu", [DESC], {})
        self.last = 2
        self.raw.call("graph_begin", 1)
        for id in (1, *range(3, 22)):  # a chain, which the graph holds
            self.raw.call("forward", "gelu", [id], {}, [self.new()])
        self.raw.call("graph_end", 1)
        of_100 = [[self.make_tensor() for _ in range(100)] for _ in range(4)]
        self.first, self.step = self.last, 0
        self.kinds = {
            "tensor_info": lambda: self.raw.call("tensor_info", 1),
            "forward": lambda: self.raw.call("forward", "gelu", [1], {}, [self.new()]),
            "call, new result": lambda: self.raw.call("call", 1, [1, self.new()]),
            "call, result that is there": lambda: self.raw.call("call", 1, [1, 2]),
            "replay of 20 calls": lambda: self.raw.call("replay", 1),
            "adam_step, the next step": lambda: self.take_step("adam_step", [ids[0] for ids in of_100]),
            "adam_steps of 100, the next step": lambda: self.take_step("adam_steps", of_100),
        }

    def new(self):
        self.last += 1
        return self.last

    def make_tensor(self):
        self.raw.make(self.new(), *DESC)
        return self.last

    def take_step(self, op, ids):
        self.step += 1
        self.raw.call("forward", op, ids, {"step": self.step}, [])

    def make(self, kind, n):
        """n of them; what they have made is freed before, since that is another request."""
        for _ in range(n):
            self.kinds[kind]()

    def clear(self):
        if self.last > self.first:
            self.raw.call("free", "tensor", list(range(self.first + 1, self.last + 1)), {"drop": True})


    def make_tensors(self, n):
        """That nobody uses, and clear() leaves there."""
        for first in range(0, n, 1000):
            for i in range(first, min(first + 1000, n)):
                self.raw.notify("tensor_new", (1 << 40) + i, "float32", [4])
            self.raw.call("sync")


class AtWork:
    """The same of n connections, which take turns."""

    def __init__(self, socket, n):
        self.all = [Requests(socket) for _ in range(n)]
        self.kinds = self.all[0].kinds
        self.n_made = 0

    def make(self, kind, n):
        for _ in range(n):
            self.all[self.n_made % len(self.all)].make(kind, 1)
            self.n_made += 1

    def clear(self):
        for requests in self.all:
            requests.clear()

    def make_tensors(self, n):
        self.all[0].make_tensors(n)


OPERATOR = """//! op      some_NUMBER(Tensor x) -> Tensor y
//! dtypes  float32
//! formula y = x + 1
"""


def fill_folder(folder, n):
    """With so many operators."""
    for i in range(n):
        (Path(folder) / f"some_{i}.cu").write_text(OPERATOR.replace("NUMBER", str(i)))
    return folder


class Counted:
    """A process in valgrind, which has printed a line that begins with "ready"."""

    def __init__(self, command, folder, env):
        if not shutil.which("valgrind") or not shutil.which("vgdb"):
            raise Unable("no valgrind here, which counts instructions")
        self.folder = folder
        counter = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder}/counts"]
        with open(folder / "log", "wb") as log:
            self.process = subprocess.Popen(
                [*counter, f"--vgdb-prefix={folder}/vgdb", *command],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env={**os.environ, **env},
            )  # fmt: skip
        if not self.process.stdout.readline().startswith(b"ready"):
            raise AssertionError((folder / "log").read_text())
        self.n_dumps = 0

    def tell(self, *words):
        command = ["vgdb", f"--vgdb-prefix={self.folder}/vgdb", f"--pid={self.process.pid}", *words]
        subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)

    def count(self, make, n):
        """User instructions of each of make(n)."""
        self.tell("zero")
        make(n)
        self.tell("dump")
        self.n_dumps += 1
        text = (self.folder / f"counts.{self.n_dumps}").read_text()
        return int(re.search(r"^(?:totals|summary): (\d+)", text, re.M)[1]) / n

    def stop(self):
        family = find_family(self.process.pid)
        self.process.terminate()
        self.process.wait(PATIENCE)
        self.process.stdin.close()
        self.process.stdout.close()
        shutil.rmtree(self.folder)
        return family


class CountedDaemon(Counted):
    """On the CPU; its broker is counted."""

    def __init__(self, *options):
        folder = Path(tempfile.mkdtemp(prefix="opd-test-"))
        self.socket = str(folder / "opd.sock")
        daemon = [PROGRAM, "--socket", self.socket, "--device", "cpu", "--cache", str(CACHE), *options]
        env = {"LD_PRELOAD": str(BENCH / "own_exe.so"), "OPD_BIN": str(Path(PROGRAM).resolve())}
        super().__init__(daemon, folder, env)

    def count_requests(self, requests, kind, n):
        self.tell("instrumentation", "on")  # not before: starting takes long with it
        requests.make(kind, 20)  # whatever the first ones set up
        requests.clear()
        counted = self.count(lambda n: requests.make(kind, n), n)
        requests.clear()
        return counted


CLIENT = """
import gc, sys, opd
client = opd.connect(sys.argv[1])
x, gelu = client.zeros((32, 32)), client.ops.gelu
with client.capture() as graph:
    y = gelu(gelu(x))
replay = graph.replay

def call(n):
    for _ in range(n):
        gelu(x)

def wait_for_replays(n):
    for _ in range(n):
        replay()

def call_in_batches(n):
    with client.batch():
        call(n)

def replay_in_batches(n):
    with client.batch():
        for _ in range(n):
            replay()

make = {
    "call": call,
    "replay": wait_for_replays,
    "call in a batch": call_in_batches,
    "replay in a batch": replay_in_batches,
}[sys.argv[2]]
gc.disable()
print("ready", opd._native.native is not None, flush=True)
for line in sys.stdin:
    make(int(line))
    print(flush=True)
"""
CLIENT_KINDS = ("call", "replay", "call in a batch", "replay in a batch")


class CountedClient(Counted):
    """A program in Python, whose calls are prepared; kind: one of CLIENT_KINDS. pure: without opd_native."""

    def __init__(self, socket, kind, pure):
        # Python's own folders are found by it; -S leaves out what else it would look for.
        env = {"PYTHONPATH": os.pathsep.join(sys.path), "OPD_PURE": str(int(pure)), "PYTHONHASHSEED": "0"}
        folder = Path(tempfile.mkdtemp(prefix="opd-test-"))
        super().__init__([sys.executable, "-S", "-c", CLIENT, socket, kind], folder, env)

    def make(self, n):
        self.process.stdin.write(b"%d\n" % n)
        self.process.stdin.flush()
        assert self.process.stdout.readline()

    def count_calls(self, n, most):
        """The least of five rounds, of up to thirty while that is above `most`: where the machine is busy, replies
        are waited for more often."""
        self.make(100)
        self.tell("instrumentation", "on")
        self.make(100)
        found, rounds = math.inf, 0
        while rounds < 5 or (rounds < 30 and found > most):
            found, rounds = min(found, self.count(self.make, n)), rounds + 1
        return found


TORCH = """
import gc, signal, sys, torch, opd.torch
opd.torch.use(sys.argv[1])
torch.set_num_threads(1)
plain, wanted = torch.zeros(2, 2), torch.zeros(2, 2, requires_grad=True)
gc.disable()
for call, x in (opd.torch.ops.gelu, plain), (torch.relu, plain), (opd.torch.ops.gelu, wanted):
    for _ in range(20):
        call(x)
    for n in (1, 3):
        signal.raise_signal(signal.SIGUSR2)
        for _ in range(n):
            call(x)
        signal.raise_signal(signal.SIGUSR2)
"""
TORCH_KINDS = ("opd.torch.ops.gelu", "torch.relu", "opd.torch.ops.gelu, for a gradient")


def count_torch(socket):
    """User instructions of a call in torch's own process; valgrind would take minutes to load torch."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "0", "OPD_ISOLATED": ""}
    command = [BENCH / "count", "-i", sys.executable, "-c", TORCH, socket]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode == 2:
        raise Unable(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    counts = list(map(int, done.stdout.split()))
    return {kind: round((more - few) / 2) for kind, few, more in zip(TORCH_KINDS, counts[::2], counts[1::2])}


def count_calls(pid, act):
    """The system calls of a process while act() runs: {number: how many}."""
    counter = subprocess.Popen(
        [BENCH / "count", str(pid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    if counter.stdout.readline() != "ready\n":
        raise Unable(counter.communicate()[1].strip())
    act()
    said, error = counter.communicate(timeout=PATIENCE)
    assert counter.returncode == 0, error
    return {int(number): n for number, n in json.loads(said).items()}
