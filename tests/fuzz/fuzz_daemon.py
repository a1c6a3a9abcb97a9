"""The whole daemon against clients gone wrong: python tests/fuzz/fuzz_daemon.py --seconds 60

Valid sessions (fuzz_sessions.py) are changed at random and sent over many connections side by side.
Changed as messages: dropped, repeated, in another order, from another session, with other values,
types, huge numbers, other descriptors. Changed as bytes: flipped, cut, put in. After each batch a good
client is served and has its data, memory and descriptors are what they were, no sanitizer has found
anything. --seed repeats the batches, --batch N runs only one. Best with OPD_BIN=build/asan/opd.
"""

import argparse
import array
import os
import random
import re
import select
import socket
import struct
import sys
import tempfile
import time
from pathlib import Path

import msgpack

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "functional"), str(TESTS / "faults"), str(TESTS / "fuzz")]

from conftest import PATIENCE, ROOT, Daemon, find_report  # noqa: E402
from fuzz_sessions import DESCRIPTORS, EDITED, FAILING, SESSIONS  # noqa: E402
from raw import Raw, RpcError, eventually, find_roles, read_rss  # noqa: E402
from survival import count_descriptors  # noqa: E402

CONNECTIONS = 12  # of a batch
MEMORY = 400 << 20  # by which the broker may grow: a sanitizer keeps what was freed
CRASH = re.compile(r"the compiler was ended by signal (4|6|7|8|11) ")
NUMBERS = [
    -(1 << 63), -(1 << 31), -1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 16, 255, 256, 4096, 65536, (1 << 31) - 1,
    1 << 32, 1 << 40, (1 << 62) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1,
]  # fmt: skip
VALUES = [
    None, True, False, 0.0, -1.5, 1e308, float("inf"), float("nan"), b"", b"\xff" * 40, "", "gelu",
    "cpu", "cuda:0", "one", "two", "float64", "int8", "memfd", "\0", "a" * 5000, [], {}, [1], [0, 0],
    [1 << 40, 1 << 40], [[[[]]]], [None], {"context": 3}, {"deadline": 0.2}, {"into": [1]},
    {1: 2}, msgpack.ExtType(5, b"xyz"), list(range(200)),
]  # fmt: skip


class Stream:
    """What one connection sends: pieces of bytes, each with descriptors."""

    def __init__(self, rng):
        self.rng = rng
        name = rng.choice([*SESSIONS, *FAILING])
        messages = self._mutate([*ALL[name]])
        self.pieces = self._encode(messages)
        self.hurry = rng.random() < 0.2  # hangs up at once
        self.deaf = rng.random() < 0.1  # never reads

    # --- as messages

    def _mutate(self, messages):
        rng = self.rng
        if rng.random() < 0.1:
            return messages
        for _ in range(rng.choice([1, 1, 2, 3, 6])):
            if not messages:
                break
            at = rng.randrange(len(messages))
            what = rng.randrange(9)
            if what == 0:
                del messages[at]
            elif what == 1:
                messages[at:at] = [messages[at]] * rng.choice([1, 1, 5, 50])
            elif what == 2:
                other = rng.randrange(len(messages))
                messages[at], messages[other] = messages[other], messages[at]
            elif what == 3:
                rng.shuffle(messages)
            elif what == 4:
                messages.insert(at, rng.choice(ALL[rng.choice([*ALL])]))
            elif what == 5:
                method, params, _ = messages[at]
                messages[at] = (method, params, rng.choice([None, *DESCRIPTORS]))
            else:
                method, params, fd = messages[at]
                messages[at] = (method, self._change(params), fd)
        return messages

    def _change(self, value):
        """The same with something else somewhere in it."""
        rng = self.rng
        if isinstance(value, list) and value and rng.random() < 0.9:
            value, at = list(value), rng.randrange(len(value))
            what = rng.randrange(10)
            if what == 0:
                del value[at]
            elif what == 1:
                value.insert(at, self._draw())
            else:
                value[at] = self._change(value[at])
            return value
        if isinstance(value, dict) and value and rng.random() < 0.9:
            value, key = dict(value), rng.choice([*value])
            if rng.random() < 0.2:
                value[rng.choice(["version", "into", "saved", "context", "by", "n"])] = value.pop(key)
            else:
                value[key] = self._change(value[key])
            # It may be any number, but nobody would wait for it here.
            if isinstance(value.get("deadline"), (int, float)) and value["deadline"] > 1:
                value["deadline"] = 1
            return value
        if isinstance(value, int) and rng.random() < 0.4:
            return value + rng.choice([-1, 1])
        if isinstance(value, (str, bytes)) and value and rng.random() < 0.5:
            at = rng.randrange(len(value))
            return value[:at] + value[at + rng.randrange(3) :]
        return self._draw()

    def _draw(self):
        return self.rng.choice(NUMBERS if self.rng.random() < 0.5 else VALUES)

    # --- as bytes

    def _encode(self, messages):
        rng, pieces = self.rng, []
        cut = rng.randrange(len(messages)) if messages and rng.random() < 0.3 else None
        for i, (method, params, fd) in enumerate(messages):
            kind = rng.random()
            if kind < 0.02:
                message = [rng.choice([1, 3, -1, "0", None]), i, method, params]
            elif kind < 0.06:
                message = [2, method, params]
            else:
                message = [0, rng.choice([i, i, i, 1, (1 << 32) - 1]), method, params]
            data = pack(message)
            if cut is not None and i >= cut and rng.random() < 0.5:
                data = self._damage(data)
            fds = [fd] if fd else []
            if rng.random() < 0.02:
                fds += rng.choices([*DESCRIPTORS], k=rng.choice([1, 2, 40]))
            pieces.append((data, fds))
        return [piece for whole in pieces for piece in self._split(*whole)]

    def _damage(self, data):
        rng, data = self.rng, bytearray(data)
        at = rng.randrange(len(data))
        what = rng.randrange(5)
        if what == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif what == 1:
            data[at] = rng.choice([0, 0x7F, 0x80, 0x90, 0xC1, 0xC6, 0xCF, 0xDB, 0xDD, 0xDF, 0xFF])
        elif what == 2:
            del data[at : at + rng.choice([1, 2, 10, 1000])]
        elif what == 3:
            data[at:at] = rng.randbytes(rng.choice([1, 2, 9, 300]))
        else:
            data[at:at] = rng.choice([b"\xdd\xff\xff\xff\xff", b"\xc6\x03\xff\xff\xff", b"\x91" * 40])
        return bytes(data)

    def _split(self, data, fds):
        if not data or self.rng.random() < 0.8:
            return [(data, fds)] if data else []
        at = self.rng.randrange(len(data))
        return [(part, kinds) for part, kinds in ((data[:at], fds), (data[at:], [])) if part]


def pack(message):
    try:
        return msgpack.packb(message)
    except (OverflowError, ValueError):
        return msgpack.packb([0, 1, "sync", []])


ALL = {**SESSIONS, **FAILING}


class Sender:
    """Sends a stream a piece at a time, without ever waiting."""

    def __init__(self, path, stream):
        self.stream, self.pieces = stream, list(stream.pieces)
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(path)
        self.sock.setblocking(False)
        self.open = True

    def step(self):
        """False: it has sent everything, or was hung up on."""
        if not self.stream.deaf:
            self.read()
        if not self.pieces or not self.open:
            return False
        data, kinds = self.pieces[0]
        fds = [DESCRIPTORS[kind]() for kind in kinds]
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            n = self.sock.sendmsg([data], rights)
            self.pieces[:1] = [(data[n:], [])] if n < len(data) else []
        except BlockingIOError:
            self.open = not self.stream.deaf  # both would stand still
        except OSError:
            self.open = False
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def read(self):
        """What has come, descriptors too, is thrown away."""
        while self.open:
            try:
                data, fds, _, _ = socket.recv_fds(self.sock, 1 << 18, 64)
            except BlockingIOError:
                return
            except OSError:
                data, fds = b"", []
            for fd in fds:
                os.close(fd)
            self.open = bool(data)

    def finish(self):
        """Waits until the daemon has answered everything and hangs up."""
        if self.stream.hurry or self.stream.deaf:
            return self.sock.close()
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        end = time.monotonic() + PATIENCE
        while self.open:
            select.select([self.sock], [], [], 1)
            self.read()
            assert time.monotonic() < end, f"a connection was not answered within {PATIENCE} s"
        self.sock.close()


class Good:
    """A client that does nothing wrong. Its data must last."""

    DATA = bytes(range(256)) * 64

    def __init__(self, path):
        self.raw = Raw(path)
        self.raw.call("hello", "good", {})
        self.raw.make(1, "uint8", [len(self.DATA)], self.DATA)
        self.raw.make(2, "uint8", [len(self.DATA)], self.DATA, "kept by the good client")
        self.raw.make(3, "float32", [64], struct.pack("64f", *range(64)))

    def check(self, path):
        for id in (1, 2):
            assert self.insist(self.raw, "tensor_read", id, 0) == self.DATA, "its data has changed"
        with Raw(path) as other:  # a new connection is served too
            self.insist(other, "tensor_new", 1, "float32", [64], None, "cpu")
            self.insist(other, "tensor_write", 1, 0, struct.pack("64f", *range(64)))
            self.insist(other, "forward", "flatten", [1], {}, [3])
            self.insist(other, "forward", "nudge", [1], {"by": 1.0}, [])
            got = struct.unpack("64f", self.insist(other, "tensor_read", 3, 0))
            assert got == tuple(range(1, 65)), got

    def clear(self):
        """Frees the named tensors that others have left; what is still in use by nobody."""
        for tensor in self.raw.call("tensor_list"):
            if tensor["name"] and tensor["name"] != "kept by the good client":
                self.raw.call("tensor_attach", 9, tensor["name"])
                self.raw.call("free", "tensor", [9])

    def extra(self):
        """What the daemon holds for others."""
        status = self.raw.call("status")
        return {
            "connections": status["connections"] - 1,
            "tensors": sum(d["tensors"] for d in status["devices"]) - 3,
            "requests": sum(c["in_flight"] for c in status["clients"]) - 0,
        }

    def insist(self, raw, method, *params):
        return raw.call(method, *params)


class Fuzz:
    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.kernels = folder / "kernels"
        self.kernels.mkdir()
        self.daemon = None
        self.fds, self.rss, self.log_end = None, None, 0

    def start(self):
        (self.kernels / "scaled.cu").write_text(SCALED)
        (self.kernels / "edited.cu").write_text(EDITED % 1)
        self.daemon = Daemon(
            "--kernels", str(self.kernels), "--kernels", str(TESTS / "functional" / "kernels"),
            "--kernels", str(TESTS / "faults" / "kernels"), "--memory-limit", "512M",
            "--deadline", "1", "--max-message", "4M", device="cpu")  # fmt: skip
        self.good = Good(self.daemon.socket)
        self.fds, self.log_end = None, 0
        self.good.raw.call("forward", "edited", [3], {}, [4])
        self.good.raw.call("free", "tensor", [4])
        (self.kernels / "edited.cu").write_text(EDITED % 2)
        self.good.raw.call("reload")

    def replay_unchanged(self):
        """Each session as it stands: it is valid, and every request is in one of them."""
        rows = set(re.findall(r"^REQUEST\((\w+),", (ROOT / "protocol/protocol.def").read_text(), re.M))
        used = {method for session in SESSIONS.values() for method, _, _ in session} | {"stop"}
        assert rows == used, f"no session has {sorted(rows - used)}"
        for name, session in SESSIONS.items():
            with Raw(self.daemon.socket) as raw:
                for method, params, kind in session:
                    fds = [DESCRIPTORS[kind]()] if kind else []
                    try:
                        msgid = raw.request(method, *params, fds=fds)
                        while msgid not in raw.replies:
                            message = raw.receive()
                            if message[0] == 1:
                                raw.replies[message[1]] = tuple(message[2:])
                        raw.wait(msgid)
                    except RpcError as error:
                        raise AssertionError(f"{name}: {method}{params!r:.200}: {error}") from error
                    finally:
                        for fd in fds:
                            os.close(fd)

    def run_batch(self, number):
        rng = random.Random(f"{self.args.seed}.{number}")
        senders = [Sender(self.daemon.socket, Stream(rng)) for _ in range(CONNECTIONS)]
        busy = list(senders)
        while busy:
            sender = rng.choice(busy)
            if not sender.step():
                sender.finish() if sender.stream.hurry else None
                busy.remove(sender)
        for sender in senders:
            sender.finish()
        self.check()

    def check(self):
        assert self.daemon.alive(), f"the daemon ended with {self.daemon.process.returncode}"
        self.good.check(self.daemon.socket)
        self.good.clear()
        nothing = {"connections": 0, "tensors": 0, "requests": 0}
        if not eventually(lambda: (self.good.clear(), self.good.extra())[1] == nothing):
            raise AssertionError(f"left of clients that are gone: {self.good.extra()}")
        text = self.daemon.read_log()[self.log_end :]
        assert not (report := find_report(text)), report
        assert not CRASH.search(text), "a compiler has crashed; its log: " + text
        self.log_end += len(text)

    def measure(self):
        """Descriptors but for the sockets of compilers, which start as they are needed; bytes."""
        counts = count_descriptors(self.daemon.pid)
        counts["socket"] = counts.get("socket", 0) - len(find_roles(self.daemon.pid, "compiler"))
        return counts, read_rss(self.daemon.pid)

    def check_growth(self):
        def grown():
            counts, _ = self.measure()
            return {k: (self.fds.get(k, 0), n) for k, n in counts.items() if n > self.fds.get(k, 0) + 2}

        if not eventually(lambda: not grown()):
            raise AssertionError(f"descriptors that stay: {grown()}")
        rss = self.measure()[1]
        assert rss < self.rss + MEMORY, f"the broker grew from {self.rss >> 20} to {rss >> 20} MiB"

    def stop(self):
        """As a client asks for it."""
        with Raw(self.daemon.socket) as raw:
            assert raw.call("stop") is None
        assert self.daemon.process.wait(PATIENCE) == 0, "it did not end well"
        self.good.raw.close()
        self.daemon.stop()


SCALED = """\
//! op      scaled(Tensor x, *, float gain=1.0) -> Tensor y
//! dtypes  float32
//! shape   x [...S]
//! shape   y [...S]
//! saved   e [...S]
//
//! forward
//!   kernel scaled_forward
//!   bind   n = numel(x)
//
//! backward grad_x
//!   kernel scaled_backward
//!   bind   n = numel(x)

__global__ void scaled_forward(const float *x, float *y, float *e, int64_t n, float gain)
{
    CUDA_KERNEL_LOOP(i, n) {
        e[i] = gain * exp(x[i]);
        y[i] = x[i] * e[i];
    }
}

__global__ void scaled_backward(const float *e, const float *grad_y, float *grad_x, int64_t n)
{
    CUDA_KERNEL_LOOP(i, n)
        grad_x[i] = grad_y[i] * e[i];
}
"""


def run(fuzz, args):
    fuzz.start()
    fuzz.replay_unchanged()
    fuzz.check()
    batches = [args.batch] if args.batch is not None else range(1 << 30)
    end, told = time.monotonic() + args.seconds, time.monotonic()
    for number in batches:
        fuzz.batch = number
        fuzz.run_batch(number)
        if fuzz.fds is None:
            fuzz.fds, fuzz.rss = fuzz.measure()
        elif number % 10 == 0:
            fuzz.check_growth()
        if time.monotonic() > end:
            break
        if time.monotonic() - told > 10:
            told = time.monotonic()
            print(f"{number + 1} batches, {int(end - told)} s left", flush=True)
    fuzz.check_growth()
    status = fuzz.good.raw.call("status")
    fuzz.stop()
    print(f"ok: {fuzz.batch + 1} batches, {status['requests_total']} requests, "
          f"{status['errors_total']} errors, {status['devices'][0]['restarts']} restarts of the device")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--batch", type=int, help="only this one")
    args = parser.parse_args()
    print(f"fuzz_daemon: --seed {args.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="opd-fuzz-") as folder:
        fuzz = Fuzz(args, Path(folder))
        try:
            run(fuzz, args)
        except BaseException:
            batch = getattr(fuzz, "batch", None)
            print(f"fuzz_daemon: failed; --seed {args.seed} --batch {batch} repeats it", file=sys.stderr)
            if fuzz.daemon:
                print(fuzz.daemon.read_log()[-4000:], file=sys.stderr)
                fuzz.daemon.process.kill()
            raise


if __name__ == "__main__":
    main()
