"""The wire by hand: MessagePack-RPC over the socket without the Python client, so that tests can
send what no client would. And what /proc says of the daemon's processes."""

import array
import os
import random
import re
import signal
import socket
import threading
import time
from pathlib import Path

import msgpack

from conftest import DEVICE, PATIENCE, PROGRAM, eventually, find_family, read_stat  # noqa: F401

DTYPES = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
}  # fmt: skip


class RpcError(Exception):
    """The error slot of a reply."""

    def __init__(self, error):
        super().__init__(error["message"])
        self.code = error["code"]
        self.number = error["number"]
        self.log = error.get("log")
        self.op = error.get("op")
        self.misfit = error.get("misfit", False)


class HungUp(Exception):
    """The daemon closed the connection."""


class Raw:
    def __init__(self, path):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(path)
        self.sock.settimeout(PATIENCE)
        self.unpacker = msgpack.Unpacker(max_buffer_size=1 << 28, strict_map_key=False)
        self.replies = {}  # those that came while another was awaited
        self.msgid = 0

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def close(self):
        self.sock.close()

    def send(self, data, fds=()):
        """Bytes as they are."""
        if fds:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
            data = data[self.sock.sendmsg([data], rights) :]
        if data:
            self.sock.sendall(data)

    def request(self, method, *params, fds=()):
        """Sends, and returns the message's id."""
        self.msgid += 1
        self.send(pack_request(self.msgid, method, params), fds)
        return self.msgid

    def together(self, *requests):
        """Sends (method, *params) of each in one piece, so that the later are begun while the first is on the
        device; returns the messages' ids."""
        first = self.msgid + 1
        self.msgid += len(requests)
        self.send(b"".join(pack_request(first + i, r[0], r[1:]) for i, r in enumerate(requests)))
        return range(first, first + len(requests))

    def notify(self, method, *params, fds=()):
        self.send(msgpack.packb([2, method, params]), fds)

    def receive(self, seconds=PATIENCE):
        """The next message, whichever it is. HungUp at the end, TimeoutError."""
        end = time.monotonic() + seconds
        while True:
            for message in self.unpacker:
                return message
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"nothing came for {seconds} s")
            self.sock.settimeout(left)
            try:
                data = self.sock.recv(1 << 18)
            except ConnectionResetError:
                data = b""
            finally:
                self.sock.settimeout(PATIENCE)
            if not data:
                raise HungUp
            self.unpacker.feed(data)

    def wait(self, msgid, seconds=PATIENCE):
        """The result of a request that was sent; RpcError."""
        while msgid not in self.replies:
            kind, id, error, result = self.receive(seconds)
            assert kind == 1
            self.replies[id] = (error, result)
        error, result = self.replies.pop(msgid)
        if error is not None:
            assert result is None
            raise RpcError(error)
        return result

    def call(self, method, *params, fds=()):
        return self.wait(self.request(method, *params, fds=fds))

    def fail(self, method, *params, fds=()):
        """The error of a request that must fail."""
        try:
            result = self.call(method, *params, fds=fds)
        except RpcError as error:
            return error
        raise AssertionError(f"{method}{params!r:.200} was answered with {result!r:.200}")

    def make(self, id, dtype, shape, data=None, name=None):
        self.call("tensor_new", id, dtype, shape, name)
        if data:
            self.call("tensor_write", id, 0, data)

    def last_words(self):
        """What the daemon says before it hangs up: RpcErrors, the last one returned; or None."""
        said = None
        try:
            while True:
                kind, _, error, _ = self.receive()
                assert kind == 1
                said = RpcError(error) if error else said
        except HungUp:
            return said


def pack_request(msgid, method, params):
    return msgpack.packb([0, msgid, method, params])


def make_memfd(size, seal=True, flags=os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC):
    fd = os.memfd_create("opd-test", flags)
    os.ftruncate(fd, size)
    if seal:
        import fcntl

        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return fd


def find_roles(pid, role):
    """The pids of the daemon's children in that role, by their command lines. (A child of theirs has
    the same until it runs its own program.) A "spare" is an executor that does not serve yet; one that
    has to is called so until it has loaded what it was loading."""
    found, spares = [], []
    for child, _ in find_family(pid):
        stat = read_stat(child)
        if stat is None or int(stat[1]) != pid:
            continue
        try:
            words = Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0")
            comm = Path(f"/proc/{child}/comm").read_text().strip()
        except OSError:
            continue
        if words[:2] == ["opd", "executor"] and "spare" in words and comm != f"opd: {words[2]}":
            words[1] = "spare"
            spares.append(child)
        if words[:2] == ["opd", role]:
            found.append(child)
    return found or (spares if role == "executor" else [])


def kill_executors_soon(pid):
    """A thread that does so within some milliseconds."""

    def kill():
        time.sleep(random.uniform(0.001, 0.03))
        for executor in find_roles(pid, "executor"):
            os.kill(executor, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    return killer


SPARE_FDS = 4  # that a daemon has for a spare: a socket, rings and two bells


def count_fds(pid):
    """Without those that lead to spares, which come by themselves after the first work."""
    spares = find_roles(pid, "spare")
    return len(os.listdir(f"/proc/{pid}/fd")) - SPARE_FDS * len(spares)


def read_fds(pid):
    """What its descriptors are, as /proc says; it may close some meanwhile."""
    links = []
    for n in os.listdir(f"/proc/{pid}/fd"):
        try:
            links.append(os.readlink(f"/proc/{pid}/fd/{n}"))
        except FileNotFoundError:
            pass
    return links


def read_rss(pid):
    """Bytes of memory in use, without what is shared with the executors."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"RssAnon:\s*(\d+) kB", status)[1]) << 10


def read_cpu(pid):
    """Seconds of a processor that it has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def await_kernel(executor, before=None):
    """Of one that is ready, and has been sent a kernel that takes seconds: waits until that runs.
    before: what read_cpu() said before it was sent, of a kernel that may be over when this begins."""
    if DEVICE != "cpu":
        return time.sleep(0.5)  # nothing is to be seen from here
    before = read_cpu(executor) if before is None else before
    assert eventually(lambda: read_cpu(executor) > before + 0.03)
