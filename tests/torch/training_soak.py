"""Edits under training loops that run opd's operators in torch's own process.

Threads train a small network (DepthwiseConv2d, an operator of a formula, gelu), each on a stream of
its own where that is CUDA, while the files of all three are edited at a steady rate, some of the
edits broken. On the way the daemon is killed and another one started, and that one is upgraded.
Each version multiplies by a number of its own, so that results and gradients tell which one ran:

    a call that began after reload() had answered ran what was saved before, or something later
    a backward ran the version of its forward

and in the end neither torch's process nor the daemon holds more than it did.

    make soak-torch [SOAK_EDITS=1000] [DEVICE=cuda:0]
"""

import argparse
import gc
import os
import re
import shutil
import sys
import tempfile
import threading
import time
import traceback
import warnings
from pathlib import Path

import torch
from torch.nn import functional as F

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "functional")]

from conftest import DEVICE, PATIENCE, ROOT, Daemon, await_end, find_family  # noqa: E402
from raw import count_fds, find_roles, read_rss  # noqa: E402

import opd  # noqa: E402
import opd.torch  # noqa: E402
from opd.torch._library import find_library  # noqa: E402

PARTS = 4096  # edit N multiplies by 1 + N / PARTS
KEPT = 4  # versions of which a process keeps the plans
BATCH = 16  # steps whose results are read together: a GPU is not waited for in between
TILT = """\
//! op      tilt(Tensor x) -> Tensor y
//! dtypes  float32
//! formula y = x * FACTOR
//! example x=[64]
"""
SLACK = {  # what means nothing: a kernel of a version that few calls ran is some mappings and descriptors
    "memory": 8 << 20,
    "mappings": 30,
    "plans": 12,
    "device memory": 16 << 20,
    "broker": 4 << 20,
    "executor": 12 << 20,
    "broker's descriptors": 8,
    "executor's descriptors": 8,
    "executor's mappings": 40,
}


def read_whole(name, seen):
    """A file of kernels_src with those that it includes."""
    if name in seen:
        return ""
    seen.add(name)
    text = (ROOT / "kernels_src" / name).read_text().replace("#pragma once\n", "")
    return re.sub(r'#include "(.*)"\n', lambda found: read_whole(found[1], seen), text)


def read_texts():
    """The operators that are edited, by name; FACTOR stands where they multiply."""
    conv = read_whole("depthwise_conv2d.cu", set())
    conv = re.sub(r"(opd::store\([^;]*?),\s*(sum[^;]*)\);", r"\1, acc_t(FACTOR) * (\2));", conv)
    gelu = (ROOT / "kernels_src" / "gelu.cu").read_text()
    gelu = gelu.replace("y = x * p", "y = FACTOR * x * p")
    return {"depthwise_conv2d": conv, "tilt": TILT, "gelu": gelu}


def gelu(x):
    return x * torch.sigmoid(1.702 * x)


def compare(made, expected):
    """The number by which it was multiplied, and how far it is from that many times what was expected."""
    made, expected = made.detach().double(), expected.detach().double()
    factor = (made * expected).sum() / (expected * expected).sum()
    return torch.stack([factor, (made - factor * expected).abs().max() / expected.abs().max()])


class Trainer:
    """A thread with a network of its own."""

    def __init__(self, soak, number):
        self.soak = soak
        self.n_steps = 0
        self.idle = threading.Event()
        self.last = dict.fromkeys(soak.texts, 0)
        self.pending = []  # (floors before, what it gave)
        device = soak.torch_device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        generator = torch.Generator().manual_seed(number)
        self.x = torch.randn(2, 4, 8, 9, generator=generator).to(device).requires_grad_()
        self.target = torch.randn(2, 4, 8, 9, generator=generator).to(device)
        self.conv = opd.torch.DepthwiseConv2d(4, padding=1, device=device)
        self.optimizer = torch.optim.SGD(self.conv.parameters(), lr=1e-3)
        self.thread = threading.Thread(target=self._work, daemon=True)

    def _work(self):
        try:
            if self.stream:
                torch.cuda.current_stream(self.soak.torch_device).synchronize()
            with torch.cuda.stream(self.stream):
                while not self.soak.ended.is_set():
                    if self.soak.running.is_set():
                        self._step()
                        time.sleep(self.soak.rest)
                    else:
                        self._judge()
                        self.idle.set()
                        self.soak.running.wait(1)
        except BaseException as e:
            self.soak.errors.append(f"a training loop: {''.join(traceback.format_exception(e))}")
            self.idle.set()

    def _step(self):
        floors = dict(self.soak.floors)
        a = self.conv(self.x)
        b = opd.torch.ops.tilt(a)
        c = opd.torch.ops.gelu(b)
        for made in (a, b, c):
            made.retain_grad()
        self.optimizer.zero_grad()
        self.x.grad = None
        F.mse_loss(c, self.target).backward()
        self.pending.append((floors, self._compare(a, b, c)))
        self.optimizer.step()
        self.n_steps += 1
        if len(self.pending) == BATCH:
            self._judge()

    def _compare(self, a, b, c):
        """Of each operator: its forward and its gradients beside torch's own."""
        x, weight = self.x.detach().requires_grad_(), self.conv.weight.detach().requires_grad_()
        b_alone = b.detach().requires_grad_()
        plain, smooth = F.conv2d(x, weight, padding=1, groups=4), gelu(b_alone)
        grad_x, grad_weight = torch.autograd.grad(plain, (x, weight), a.grad)
        (grad_b,) = torch.autograd.grad(smooth, b_alone, c.grad)
        pairs = (
            *((a, plain), (self.x.grad, grad_x), (self.conv.weight.grad, grad_weight)),
            *((b, a), (a.grad, b.grad)),
            *((c, smooth), (b.grad, grad_b)),
        )
        return torch.stack([compare(*pair) for pair in pairs])

    def _judge(self):
        for floors, results in self.pending:
            rows = results.tolist()
            for op, n in (("depthwise_conv2d", 3), ("tilt", 2), ("gelu", 2)):
                self._judge_one(op, floors[op], rows[:n])
                rows = rows[n:]
        self.pending.clear()
        # With weights that have converged, gradients are sums of what cancels, and mostly rounding.
        self.conv.reset_parameters()

    def _judge_one(self, op, floor, rows):
        """rows: factor and error of its forward, then of its gradients."""
        numbers = [round((factor - 1) * PARTS) for factor, _ in rows]
        for (factor, error), n in zip(rows, numbers):
            if error > 1e-4 or abs((factor - 1) * PARTS - n) > 0.2:
                raise AssertionError(f"{op} is no version's: (factor, error) are {rows}")
        if len(set(numbers)) > 1:
            raise AssertionError(f"{op}: forward ran edit {numbers[0]}, backward {numbers[1:]}")
        if not max(floor, self.last[op]) <= numbers[0] <= self.soak.begun[op]:
            raise AssertionError(
                f"{op}: ran edit {numbers[0]}, after {self.last[op]}; {floor} was served before it began"
            )
        self.soak.seen.add((op, numbers[0]))
        self.last[op] = numbers[0]


class Soak:
    def __init__(self, device=DEVICE, threads=2, rate=20, rest=0):
        self.rate, self.rest = rate, rest
        self.device = device
        self.torch_device = torch.device(device)
        self.folder = Path(tempfile.mkdtemp(prefix="opd-soak-"))
        self.kernels = self.folder / "kernels"
        self.temporary = self.folder / "tmp"
        for folder in (self.kernels, self.temporary):
            folder.mkdir()
        self.salt = os.urandom(8).hex()  # nothing of this is in a cache
        self.texts = read_texts()
        self.begun = dict.fromkeys(self.texts, 0)  # the last edit that may be there
        self.saved = dict.fromkeys(self.texts, 0)  # the last that is, unless a broken one is
        self.is_broken = dict.fromkeys(self.texts, False)  # what is there, or will be at once
        self.broken = dict.fromkeys(self.texts, 0)  # how many of these there were
        self.is_found = True  # by the loops: the daemon
        self.floors = dict.fromkeys(self.texts, 0)  # what reload() has said is served
        self.errors, self.seen = [], set()
        self.n_edits = 0
        self.running, self.ended = threading.Event(), threading.Event()
        for op in self.texts:
            self._save(op, 0)
        self.daemon = self._start()
        opd.torch.use(self.daemon.socket)
        self.allowed_tf32 = torch.backends.cudnn.allow_tf32
        torch.backends.cudnn.allow_tf32 = False  # torch's own are what results are held against
        self.trainers = [Trainer(self, n) for n in range(threads)]
        self.reloader = threading.Thread(target=self._reload, daemon=True)

    def _start(self):
        cache = ["--cache", str(self.folder / "cache"), "--cache-size", "16M"]
        socket = self.folder / "opd.sock"
        before = os.environ.get("TMPDIR")
        os.environ["TMPDIR"] = str(self.temporary)
        try:
            return Daemon("--kernels", str(self.kernels), *cache, device=self.device, socket=socket)
        finally:
            del os.environ["TMPDIR"]
            if before is not None:
                os.environ["TMPDIR"] = before

    # --- edits

    def _save(self, op, number):
        """As vim does; number None: what does not compile."""
        factor = "oops" if number is None else repr(1 + number / PARTS)
        path = self.kernels / f"{op}.cu"
        new = path.with_name("4913")
        new.write_text(f"{self.texts[op].replace('FACTOR', factor)}// {self.salt}\n")
        if number is None:
            self.is_broken[op] = True  # the good one before it may never be served
            self.broken[op] += 1
        else:
            self.begun[op] = number
        new.rename(path)
        if number is not None:
            self.saved[op] = number
            self.is_broken[op] = False

    def edit(self):
        self.n_edits += 1
        op = list(self.texts)[self.n_edits % len(self.texts)]
        self._save(op, None if self.n_edits % 10 == 7 else self.n_edits)

    def _reload(self):
        """Asks for it all the time, and notes what calls from then on must run."""
        client = None
        while not self.ended.is_set():
            try:
                client = client or self.daemon.connect()
                is_broken, broken, saved = dict(self.is_broken), dict(self.broken), dict(self.saved)
                client.reload()
                for op in self.texts if self.is_found else ():
                    if not is_broken[op] and broken[op] == self.broken[op]:
                        self.floors[op] = max(self.floors[op], saved[op])
            except opd.ConnectionLost:
                client = None  # one is killed, and another one comes
            except BaseException as e:
                self.errors.append(f"reload(): {type(e).__name__}: {e}")
            time.sleep(0.01)
        if client:
            client.close()

    def run_edits(self, until):
        """One each 1 / rate seconds, whatever has come of those before."""
        due = time.monotonic()
        while self.n_edits < until and not self.errors:
            self.edit()
            due += 1 / self.rate
            time.sleep(max(0, due - time.monotonic()))

    def settle(self):
        """The last edits of all are good, and all loops run them."""
        for op in self.texts:
            self.n_edits += 1
            self._save(op, self.n_edits)
        self.wait(lambda: self.floors == self.saved)
        self.run_steps(2 * BATCH)

    def fill(self):
        """Versions are kept for a while, here and in the daemon: from now on as many as ever are."""
        for _ in range(KEPT):
            self.settle()

    def run_steps(self, count):
        starts = [trainer.n_steps for trainer in self.trainers]
        self.wait(lambda: all(t.n_steps >= n + count for t, n in zip(self.trainers, starts)))

    def wait(self, holds):
        end = time.monotonic() + PATIENCE
        while not holds() and not self.errors:
            if time.monotonic() > end:
                raise AssertionError(f"it does not come; reload() has told of {self.floors}, saved is {self.saved}")
            time.sleep(0.01)
        if self.errors:
            raise AssertionError("\n".join(self.errors))

    # --- what is held

    def pause(self):
        for trainer in self.trainers:
            trainer.idle.clear()
        self.running.clear()
        self.wait(lambda: all(trainer.idle.is_set() for trainer in self.trainers))
        gc.collect()
        if self.torch_device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()

    def measure_torch(self):
        """Nothing that an edit has replaced is left once no call runs it."""
        loaded, retired = find_library().count()
        found = {
            "memory": read_rss(os.getpid()),
            "mappings": count_lines("maps"),
            "images": len(list_images()),
            "descriptors": count_fds(os.getpid()),
            "plans": loaded,
            "retired plans": retired,
            "temporary files": self.count_left(),
        }
        if self.torch_device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self.torch_device)
            found["device memory"] = total - free
        return found

    def count_left(self):
        """Temporary files but those of compilers that live, which are ready for the next edit."""
        names = [path.name for path in self.temporary.iterdir()]
        owners = [re.match(r"opd-compiler-(\d+)-", name) for name in names]
        return sum(1 for owner in owners if not (owner and os.path.exists(f"/proc/{owner[1]}")))

    def measure_daemon(self):
        (executor,) = find_roles(self.daemon.pid, "executor")
        with self.daemon.connect() as client:
            (device,) = client.status()["devices"]
        return {
            "broker": read_rss(self.daemon.pid),
            "executor": read_rss(executor),
            "broker's descriptors": count_fds(self.daemon.pid),
            "executor's descriptors": count_fds(executor),
            "executor's mappings": count_lines("maps", executor),
            "processes": len(find_family(self.daemon.pid)),
            "restarts": device["restarts"],
            "memory for tensors": device["memory_used"],
        }

    # --- the whole

    def replace_daemon(self):
        """While it is gone, loops go on, and a file is edited. They look for another one now and then."""
        self.run_steps(2 * BATCH)
        old, family = self.daemon, find_family(self.daemon.pid)
        old.process.kill()
        old.process.wait()
        old.process.stdout.close()
        assert not await_end(family), "processes of a daemon that was killed are left"
        old.clear()
        self.run_steps(2 * BATCH)
        self.n_edits += 1
        self.is_found = False
        self._save("tilt", self.n_edits)
        self.daemon = self._start()
        start = time.monotonic()
        self.wait(lambda: all(t.last["tilt"] == self.n_edits for t in self.trainers))
        self.is_found = True
        assert time.monotonic() - start < PATIENCE / 10, "loops find another daemon late"
        self.wait(lambda: self.floors == self.saved)

    def upgrade(self):
        with self.daemon.connect() as client:
            client.upgrade()

    def run(self, edits, judge_daemon=True, replace_daemon=True):
        for trainer in self.trainers:
            trainer.thread.start()
        self.reloader.start()
        self.running.set()
        self.run_steps(1)
        start = time.monotonic()
        self.run_edits(edits * 3 // 10)
        self.fill()
        self.pause()
        before = self.measure_torch()
        self.running.set()
        if replace_daemon:
            self.replace_daemon()
        self.run_edits(edits * 6 // 10)
        if judge_daemon:
            self.fill()
            self.pause()
            daemon_before = self.measure_daemon()
            self.running.set()
        self.run_edits(edits * 7 // 10)
        self.upgrade()
        self.run_edits(edits)
        self.settle()
        self.pause()
        self.report(time.monotonic() - start)
        grown = judge(before, self.measure_torch())
        if judge_daemon:
            grown += judge(daemon_before, self.measure_daemon())
        self.end()
        assert not grown, grown
        assert not self.errors, "\n".join(self.errors)

    def report(self, seconds):
        steps = sum(trainer.n_steps for trainer in self.trainers)
        with self.daemon.connect() as client:
            runs = re.findall(r'^opd_runs_total\{op="(?:depth|tilt|gelu).* (\d+)$', client.metrics(), re.M)
        print(f"{self.n_edits} edits in {seconds:.0f} s, {sum(self.broken.values())} of them broken; "
              f"{len(self.seen)} versions seen in {steps} steps of {len(self.trainers)} loops; "
              f"{sum(map(int, runs))} runs in the daemon since it was started anew")  # fmt: skip

    def end(self):
        self.ended.set()
        self.running.set()
        for thread in (self.reloader, *(trainer.thread for trainer in self.trainers)):
            if thread.is_alive():
                thread.join(PATIENCE)

    def close(self):
        self.end()
        opd.torch.use(None)
        torch.backends.cudnn.allow_tf32 = self.allowed_tf32
        if self.daemon.alive():
            self.daemon.stop()
        shutil.rmtree(self.folder)


def list_images():
    """Kernels of the CPU that are mapped here, and what is mapped of memfds."""
    text = Path("/proc/self/maps").read_text()
    return re.findall(r"^\S+ r-x\S* .*memfd.*$", text, re.M)


def count_lines(name, pid="self"):
    return len(Path(f"/proc/{pid}/{name}").read_text().splitlines())


def judge(before, after):
    """What has grown."""
    print(f"{'':24}{'before':>16}{'at the end':>16}")
    for key in before:
        print(f"{key:24}{before[key]:16}{after[key]:16}", flush=True)
    return [
        f"{key}: {before[key]} before, {after[key]} at the end"
        for key in before
        if after[key] > before[key] + SLACK.get(key, 0)
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--edits", type=int, default=100)
    parser.add_argument("--device", default=DEVICE)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rate", type=float, default=20, help="edits a second")
    parser.add_argument("--rest", type=float, default=0, help="seconds, of a loop after each step")
    args = parser.parse_args()
    warnings.simplefilter("ignore", opd.ReloadWarning)
    soak = Soak(args.device, args.threads, args.rate, args.rest)
    try:
        soak.run(args.edits)
        print("no wrong version, no growth")
    finally:
        soak.close()


if __name__ == "__main__":
    main()
