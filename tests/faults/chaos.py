"""Everything that may go wrong, at random, for a while: python tests/faults/chaos.py --seconds 60

Beside clients that work without a pause: executors, compilers and clients are killed, executors are
stopped, kernels fault and hang, operators are edited (some edits are broken), devices are restarted,
the daemon is upgraded in place, named tensors come, change and go, memory is exported and imported,
contexts are kept. --seed repeats the order. Clients may be told of a fault that was not theirs, of a
lost connection never. --brokers: so many times, one after the other, the broker is killed in the
middle of that, and the next one has all that has a name. Afterwards every tensor that is there
holds what it held, and the daemon has as many descriptors, processes and tensors and as much memory
as it had before the last part.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from survival import (  # noqa: E402
    Crowd, Treasure, Watchdog, checksum, compare_stock, eventually_agrees, faults_of, find_roles,
    is_forgiven, long_lived, show_stock, take_stock, work,
)

from conftest import DEVICE  # noqa: E402
from raw import make_memfd  # noqa: E402

import opd  # noqa: E402

EDITED = """\
//! op      edited(Tensor x) -> Tensor y
//! dtypes  float32
//! shape   x [N]
//! shape   y [N]
//! example x=[64]
//
//! forward
//!   kernel  edited
//!   grid    1

extern "C" __global__ void edited(const float *x, float *y, int N)
{
    CUDA_KERNEL_LOOP(i, N)
        y[i] = x[i] + %s;
}
"""
# What a client may be told while processes are killed at random: its request was the one that ran,
# or it needs what that one was to make.
FORGIVEN = ("kernel_fault", "deadline_exceeded", "not_found")
DEADLINE = 1  # seconds for all requests: a stopped executor costs that
KEPT = 12  # named tensors, exports, imports, contexts and graphs at most


class Chaos:
    """Each event leaves things as they must be, or raises AssertionError."""

    def __init__(self, daemon, client, kernels, seed):
        self.daemon, self.client, self.kernels, self.seed = daemon, client, kernels, seed
        self.device = client.status()["devices"][0]["name"]
        self.number = 0  # of events
        self.rng = random.Random(seed)  # of the event that runs
        self.edits = 0
        self.counts, self.last = {}, []
        self.named = {}  # name -> its words, None where it is suspect
        self.shared, self.imports, self.contexts, self.graphs, self.timers = [], [], [], [], []
        often = [
            self.fault, self.kill_executor, self.kill_later, self.kill_later, self.kill_compiler,
            self.kill_client, self.edit,
            self.break_edit, self.restart, self.make_named, self.write_named, self.check_named,
            self.free_named, self.share, self.unshare, self.take_memory, self.give_memory,
            self.keep_context, self.use_context, self.keep_graph, self.use_graph, self.use_graph,
        ]  # fmt: skip
        rare = [self.hang, self.hang, self.stop_executor, self.upgrade, self.upgrade, self.upgrade]
        self.events = [*often, *often, *often, *rare]

    def strike(self):
        # An event's draws depend on nothing that time decides.
        self.rng = random.Random(f"{self.seed}.{self.number}")
        event = self.rng.choice(self.events)
        name = event.__name__
        self.counts[name] = self.counts.get(name, 0) + 1
        self.last = [*self.last[-19:], f"{self.number} {name}"]
        self.number += 1
        event()

    def insist(self, action):
        """Its result; again while something that was killed takes it along."""
        for _ in range(50):
            try:
                return action()
            except opd.InvalidArgument as e:
                if "suspect" not in str(e):
                    raise
            except opd.OpdError as e:
                if not is_forgiven(e, FORGIVEN):
                    raise
        raise AssertionError("fifty attempts have failed")

    def close(self):
        """Gives up all that it holds but the named tensors."""
        for timer in self.timers:
            timer.join()
        self.shared.clear()
        self.contexts.clear()
        self.graphs.clear()
        while self.imports:
            self.give_memory()

    # --- faults and kills

    def fault(self, kind=None, **options):
        kind = kind or self.rng.choice(faults_of(self.device))
        x = self.insist(lambda: self.client.zeros([64]))
        try:
            self.client.ops.fault(x, kind=kind, **options).numpy()
        except (opd.KernelFault, opd.DeadlineExceeded, opd.NotFound):
            return
        raise AssertionError(f"{kind}: the kernel ended well")

    def hang(self):
        self.fault("hang", deadline=0.3)

    def _signal(self, role, number):
        pids = find_roles(self.daemon.pid, role)
        if pids:
            try:
                os.kill(max(pids), number)
            except ProcessLookupError:
                pass  # it was on its way out

    def kill_executor(self):
        self._signal("executor", signal.SIGKILL)

    def kill_later(self):
        """In the middle of what comes next."""
        role = self.rng.choice(["executor", "executor", "compiler"])
        timer = threading.Timer(self.rng.random() * 0.05, self._signal, (role, signal.SIGKILL))
        timer.start()
        self.timers = [t for t in [*self.timers, timer] if t.is_alive()]

    def stop_executor(self):
        """It neither ends nor works. One that starts is given much longer: it may be at the driver."""
        self.insist(lambda: self.client.zeros([64]))
        self._signal("executor", signal.SIGSTOP)

    def kill_compiler(self):
        self._signal("compiler", signal.SIGKILL)

    def kill_client(self):
        """A client that dies in the middle of a message, with work under way, and with memory that
        it has lent or borrowed."""
        cut, exports, imports = self.rng.randrange(1, 9), self.rng.random() < 0.5, self.rng.random() < 0.5
        pid = os.fork()
        if pid == 0:
            try:
                client = opd.connect(self.daemon.socket, start=False)
                with client.batch():
                    x = client.tensor(np.ones(100_000, np.float32))
                    for _ in range(20):
                        x = client.ops.gelu(x)
                    context = client.ops.gelu.forward(x)[1]  # noqa: F841
                    if exports:
                        client._conn.send("tensor_export", (x._id, 1))
                    if imports and self.device == "cpu":
                        self._lend(client)
                    client._conn._sock.send(b"\x94\x00\x01\xa7forward"[:cut])
                    os.kill(os.getpid(), signal.SIGKILL)
            finally:
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == signal.SIGKILL, "the client that was to die did not get there"

    def _lend(self, client):
        """Runs kernels in memory of this process, and waits for none of them."""
        fd = make_memfd(1 << 16)
        client._conn.send("import_open", (1, "cpu", "memfd", b"", 1 << 16), fd=fd)
        client._conn.send("import_tensor", (1000, 1, 0, "float32", [64]))
        for i in range(20):
            client._conn.send("forward", ("fault", [1000], {}, [1001 + i], {"context": 1 + i}))

    def restart(self):
        self.insist(lambda: self.client.restart(self.device))

    def kill_broker(self):
        """What has a name is there again; all else is gone, and a connection of ours."""
        os.kill(self.daemon.pid, signal.SIGKILL)
        for timer in self.timers:
            timer.join()
        for held in (self.shared, self.contexts, self.graphs, self.imports):
            held.clear()
        self.client.close()
        self.daemon.start_again()
        self.client = self.daemon.connect()
        for name in self.named:
            self.verify(name)

    def upgrade(self):
        before = self.client.status()
        self.insist(self.client.upgrade)
        after = self.client.status()
        assert after["pid"] == before["pid"] and after["upgrades"] > before["upgrades"]

    # --- edits

    def edit(self):
        self.edits += 1
        self._save(EDITED % self.edits)
        x = np.arange(64, dtype=np.float32)

        def ask():
            self.client.reload()
            return self.client.ops.edited(self.client.tensor(x)).numpy()

        for _ in range(20):
            got = self.insist(ask)
            if np.array_equal(got, x + self.edits):
                return
            # The compiler or executor that had this edit was killed: saving it again is the cure.
            assert self._last_version()["state"] == "failed", f"not the edit that was saved: {got[:4]}"
            self._save(EDITED % self.edits + f"// again {self.rng.random()}\n")
        raise AssertionError("twenty edits were not served")

    def break_edit(self):
        self._save(EDITED % "no_such_name")
        self.insist(self.client.reload)
        assert self._last_version()["state"] == "failed"

    def _last_version(self):
        return self.client._conn.call("op_info", "edited")["versions"][0]

    def _save(self, text):
        path = self.kernels / "edited.cu"
        path.with_suffix(".new").write_text(text)
        path.with_suffix(".new").rename(path)

    # --- named tensors

    def _draw(self):
        size = self.rng.choice([1, 100, 1024, 65_537, 1_000_000])
        return np.random.default_rng(self.rng.getrandbits(32)).integers(0, 1 << 30, size, np.int32)

    def make_named(self):
        if len(self.named) == KEPT:
            self.free_named()
        name, words = f"chaos.{self.number}", self._draw()

        def make():
            try:
                tensor = self.client.attach(name)  # made by the attempt before
            except opd.NotFound:
                tensor = self.client.zeros(words.shape, "int32", name)
            tensor.write(words)

        self.insist(make)
        self.named[name] = words

    def _pick(self):
        return self.rng.choice(sorted(self.named)) if self.named else None

    def write_named(self):
        """All of it or a part, which a kill may interrupt: then all again."""
        if (name := self._pick()) is None:
            return
        words = self.named[name]
        new, begin = self._draw()[: len(words)], self.rng.randrange(len(words))
        part = new[: len(words) - begin]
        after = words.copy()
        after[begin : begin + len(part)] = part
        tensor = self.insist(lambda: self.client.attach(name))
        try:
            tensor.view(part.shape, offset=begin).write(part)
        except opd.OpdError as e:
            assert e.code in FORGIVEN, e
            self.insist(lambda: tensor.write(after))
        self.named[name] = after

    def check_named(self):
        if name := self._pick():
            self.verify(name)

    def verify(self, name):
        words = self.named[name]
        tensor = self.insist(lambda: self.client.attach(name))
        assert tensor.suspect is None, f"{name}: {tensor.suspect}"
        got = self.insist(tensor.numpy)
        assert np.array_equal(got, words), f"{name} has changed"
        total = self.insist(lambda: int(self.client.ops.checksum(tensor).numpy()))
        assert total == checksum(words), f"{name}: the checksum is wrong"

    def free_named(self):
        if name := self._pick():
            self.insist(lambda: self.client.attach(name)).free()
            del self.named[name]

    # --- memory of both sides

    def share(self):
        """A tensor in this process's memory, on the CPU device; held by an export anywhere."""
        if len(self.shared) == KEPT:
            self.unshare()
        words = self._draw()
        tensor = self.insist(lambda: self.client.tensor(words))
        if self.device == "cpu":
            mapped = self.insist(lambda: np.from_dlpack(tensor))
            self.shared.append((mapped, tensor, words))
            self._check_shared(self.shared[-1])
        else:
            self.shared.append((self.insist(lambda: self.client._link.exports.open(tensor._id)), tensor, words))

    def _check_shared(self, entry):
        mapped, tensor, words = entry
        if self.device == "cpu":
            assert np.array_equal(mapped, words), "what is shared has changed"
        got = self.insist(lambda: int(self.client.ops.checksum(tensor).numpy()))
        assert got == checksum(words), "the daemon sees something else"

    def unshare(self):
        if self.shared:
            self._check_shared(self.shared.pop(self.rng.randrange(len(self.shared))))

    def take_memory(self):
        """A memfd of ours in which a kernel reads and writes. Kept for later events."""
        if self.device != "cpu" or len(self.imports) == KEPT:
            return
        import mmap

        memory, size = self.client._memory, 1 << 16
        fd = make_memfd(size)
        try:
            id = self.insist(lambda: memory.import_open("cpu", "memfd", b"", size, fd))
            mapped = np.frombuffer(mmap.mmap(fd, size), np.float32)
        finally:
            os.close(fd)
        mapped[:] = np.arange(len(mapped))
        x = self.insist(lambda: memory.import_tensor(id, 0, "float32", [64]))
        self.imports.append((id, mapped, x))
        self._use_memory(self.imports[-1])

    def _use_memory(self, entry):
        _, mapped, x = entry
        mapped[:64] = np.arange(64) + self.number

        def use():
            if x.suspect:
                x.accept()
            return self.client.ops.fault(x).numpy()

        assert np.array_equal(self.insist(use), mapped[:64] + 1), "a kernel here went wrong"
        assert np.array_equal(mapped[64:], np.arange(64, len(mapped))), "it left its tensor"

    def give_memory(self):
        if self.imports:
            entry = self.imports.pop(self.rng.randrange(len(self.imports)))
            self._use_memory(entry)
            self.client._memory.import_close([entry[0]])

    # --- contexts

    def keep_context(self):
        if len(self.contexts) == KEPT:
            self.use_context()
        x = self.insist(lambda: self.client.tensor(np.linspace(-2, 2, 1000, dtype=np.float32)))
        self.contexts.append(self.insist(lambda: self.client.ops.gelu.forward(x)[1]))

    def use_context(self):
        if not self.contexts:
            return
        context = self.contexts.pop(self.rng.randrange(len(self.contexts)))
        ones = np.ones(1000, np.float32)
        got = self.insist(lambda: context.backward(self.client.tensor(ones))[0].numpy())
        x = np.linspace(-2, 2, 1000, dtype=np.float32).astype(np.float64)
        s = 1 / (1 + np.exp(-1.702 * x))
        np.testing.assert_allclose(got, s * (1 + 1.702 * x * (1 - s)), rtol=1e-4, atol=1e-5)

    # --- graphs

    def keep_graph(self):
        def capture():
            x = self.client.tensor(np.arange(64, dtype=np.float32))
            with self.client.capture() as graph:
                y = self.client.ops.edited(x)
                for _ in range(3):
                    y = self.client.ops.edited(y)
            return graph, x, y

        if len(self.graphs) == KEPT:
            self.graphs.pop(self.rng.randrange(len(self.graphs)))
        self.graphs.append(self.insist(capture))

    def use_graph(self):
        if not self.graphs:
            return
        graph, x, y = self.rng.choice(self.graphs)
        data = np.arange(64, dtype=np.float32) * self.rng.randrange(100)

        def replay():
            x.write(data)
            for _ in range(3):
                graph.replay()
            return y.numpy()

        got = self.insist(replay)
        assert np.array_equal(got, data + 4 * self.edits), f"a replay of another version: {got[:4]}"


def get_ready(chaos):
    """For what is counted from here on."""
    client = chaos.client
    chaos.edit()
    client.ops.gelu.forward(client.zeros([64]))[1].backward(client.zeros([64]))
    client.restart(chaos.device)
    client.ops.fault(client.zeros([64]))  # a GPU keeps room for its stack from here on
    chaos.share()  # maps memory here: on a GPU this process has a context from here on
    chaos.unshare()
    chaos.keep_graph()
    chaos.use_graph()  # an executor keeps what it has replayed: on a GPU, a graph of the driver
    chaos.graphs.clear()


def live(args, chaos, treasure, last):
    """A broker's life. What its clients have seen, and what there was before them."""
    get_ready(chaos)
    assert not treasure.verify(chaos.client)
    before = take_stock(chaos.daemon, chaos.client)
    crowd = Crowd()
    for i in range(args.workers):
        crowd.add(work, chaos.daemon.socket, i, treasure.sums, FORGIVEN)
    crowd.await_ready()
    try:
        strike_until(chaos, args.seconds / (1 + args.brokers))
        if last:
            chaos.close()
        else:
            chaos.kill_broker()
    except BaseException:
        print("the last events:", ", ".join(chaos.last), file=sys.stderr)
        raise
    return crowd.finish(), before


def run(args, daemon, kernels):
    warnings.simplefilter("ignore", opd.ReloadWarning)
    client = daemon.connect()
    treasure = Treasure(client, args.mib << 20, 8, args.seed)
    chaos = Chaos(daemon, client, kernels, args.seed)
    found = []
    for n in range(1 + args.brokers):
        seen, before = live(args, chaos, treasure, n == args.brokers)
        found += seen
    client = chaos.client
    for name in list(chaos.named):
        chaos.verify(name)
        chaos.insist(lambda name=name: client.attach(name)).free()
    lost = treasure.verify(client)
    after = take_stock(daemon, client)
    differs = eventually_agrees(daemon, client)

    print(", ".join(f"{name} {n}" for name, n in sorted(chaos.counts.items())), f"kill_broker {args.brokers}", sep=", ")
    errors = [e for f in found for e in f["errors"]]
    print(f"{len(found)} clients: {sum(f['replies'] for f in found)} replies, "
          f"{sum(f['wrong'] for f in found)} wrong, {sum(f['forgiven'] for f in found)} told of a "
          f"failure, {len(errors)} other errors")
    print(f"named tensors that changed: {len(lost)} of {len(treasure.sums)}")
    show_stock(before, after)
    assert not lost, lost
    assert not errors, errors[:3]
    assert not any(f["wrong"] for f in found), "clients got wrong results"
    assert all(f["replies"] for f in found), "a client got no reply at all"
    assert not differs, differs
    assert not (grown := compare_stock(before, after)), grown
    client.close()


def strike_until(chaos, seconds):
    end, told = time.monotonic() + seconds, time.monotonic()
    while time.monotonic() < end:
        chaos.strike()
        time.sleep(chaos.rng.random() * 0.05)
        if time.monotonic() - told > 10:
            told = time.monotonic()
            print(f"{chaos.number} events, {int(end - told)} s left", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--brokers", type=int, default=2, help="how many are killed")
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--device", default=DEVICE)
    args = parser.parse_args()
    print(f"chaos: --seed {args.seed}", flush=True)
    Watchdog(args.seconds + 300)
    with tempfile.TemporaryDirectory(prefix="opd-chaos-") as folder:
        with long_lived(args, "--kernels", folder, "--deadline", str(DEADLINE), "--keep", "60") as daemon:
            run(args, daemon, Path(folder))


if __name__ == "__main__":
    main()
