"""Clients that are slow, that are killed, and that are too many."""

import resource
import signal
import socket
import subprocess
import sys
import time

import pytest

from conftest import PATIENCE
from bad_input import MIB, SLACK, raw, unharmed  # noqa: F401
from raw import HungUp, Raw, count_fds, eventually, pack_request, read_cpu, read_rss

pytestmark = pytest.mark.in_both("a sanitizer keeps what was freed")


# --- slow


def test_half_a_message_holds_nobody_up(raw, daemon):
    whole = pack_request(1, "tensor_new", (1, "uint8", [1000]))
    halves = [Raw(daemon.socket) for _ in range(20)]
    for half in halves:
        half.send(whole[: len(whole) // 2])
    for i in range(1, 20):
        raw.make(i, "float32", [10])
    for half in halves:
        half.send(whole[len(whole) // 2 :])
        assert half.wait(1)["bytes"] == 1000
        half.close()


def test_one_byte_at_a_time(raw):
    data = pack_request(1, "tensor_new", (1, "float32", [2, 3])) + pack_request(2, "sync", ())
    for i in range(len(data)):
        raw.send(data[i : i + 1])
    raw.wait(2)
    assert raw.wait(1)["shape"] == [2, 3]


def test_a_big_message_in_pieces(raw, daemon):
    size = 8 * MIB
    raw.make(1, "uint8", [size])
    data = pack_request(9, "tensor_write", (1, 0, b"\x03" * size))
    with Raw(daemon.socket) as other:
        for i in range(0, len(data), 100000):
            raw.send(data[i : i + 100000])
            if i % 2000000 == 0:
                other.call("status")
    raw.wait(9)
    assert raw.call("tensor_read", 1, size - 1) == b"\x03"


def test_who_never_reads_is_not_written_for(daemon, raw):
    """Requests for 16 MiB each, in a loop, by a client that reads no reply."""
    size = 16 * MIB
    before = read_rss(daemon.pid)
    with Raw(daemon.socket) as deaf:
        deaf.make(1, "uint8", [size])
        deaf.sock.settimeout(0.2)
        read = pack_request(7, "tensor_read", (1, 0))
        sent, most, refused = 0, 0, 0
        while refused < 8 and sent < 200000:
            try:
                sent += deaf.sock.send(read * 100) // len(read)
                refused = 0
            except TimeoutError:
                refused += 1
                raw.call("status")  # others are served
                most = max(most, read_rss(daemon.pid))
        assert sent < 200000, "the daemon never stopped reading"
        assert most < before + 160 * MIB + SLACK, f"{(most - before) >> 20} MiB for one client"
    assert eventually(lambda: read_rss(daemon.pid) < before + SLACK), read_rss(daemon.pid) - before


def test_who_reads_slowly_gets_all(raw):
    size = 3 * MIB
    raw.make(1, "uint8", [size], b"\x09" * size)
    ids = [raw.request("tensor_read", 1, 0) for _ in range(20)]
    time.sleep(0.5)
    for id in ids:
        assert raw.wait(id) == b"\x09" * size


def test_memory_of_big_messages_is_given_back(daemon, raw):
    before = read_rss(daemon.pid)
    others = [Raw(daemon.socket) for _ in range(6)]
    for other in others:
        other.make(1, "uint8", [50 * MIB], bytes(50 * MIB))
        other.call("tensor_read", 1, 0)
        other.call("free", "tensor", [1])
    after = read_rss(daemon.pid)
    assert after < before + 64 * MIB + SLACK, f"{(after - before) >> 20} MiB for idle clients"
    for other in others:
        other.close()


# --- gone


DIES = """
import os, signal, socket, sys
import msgpack
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
def pack(id, method, *params):
    return msgpack.packb([0, id, method, params])
s.sendall(pack(1, "tensor_new", 1, "float32", [4 << 20]))
s.sendall(b"".join(pack(2 + i, "forward", "gelu", [1], {}, [2 + i], {"context": 1 + i}) for i in range(8)))
if sys.argv[2] == "message":
    s.sendall(pack(99, "tensor_write", 1, 0, bytes(1 << 20))[:-1000])
if sys.argv[2] == "replies":
    s.sendall(b"".join(pack(100 + i, "tensor_read", 1, 0) for i in range(8)))
if sys.argv[2] == "later":
    s.recv(100)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("when", ["request", "message", "replies", "later"])
def test_a_client_is_killed(raw, daemon, when):
    died = subprocess.run([sys.executable, "-c", DIES, daemon.socket, when], timeout=PATIENCE)
    assert died.returncode == -signal.SIGKILL

    def settled():
        status = raw.call("status")
        return status["connections"] == 1 and all(d["memory_used"] == 0 for d in status["devices"])

    assert eventually(settled), raw.call("status")


def test_ten_thousand_connections_one_after_the_other(raw, daemon):
    raw.call("sync")  # the daemon has taken the connection
    before = count_fds(daemon.pid)
    rss = read_rss(daemon.pid)
    for i in range(10000):
        s = socket.socket(socket.AF_UNIX)
        s.connect(daemon.socket)
        try:
            s.send(b"\x94\x00"[: i % 3])
        except BrokenPipeError:
            pass  # the daemon is behind, and there are 256
        s.close()
    assert eventually(lambda: raw.call("status")["connections"] == 1)
    # A chunk that was asked for by who is gone stays for a second.
    assert eventually(lambda: count_fds(daemon.pid) <= before)
    assert read_rss(daemon.pid) < rss + 64 * MIB + SLACK  # 256 at a time, and buffers to read into


# --- too many


def test_more_connections_than_allowed(raw, daemon):
    many = [Raw(daemon.socket) for _ in range(300)]
    served, said = 0, set()
    for one in many:
        try:
            one.call("hello")
            served += 1
        except (HungUp, OSError):
            said.add(str(one.last_words()))
    raw.call("status")
    for one in many:
        one.close()
    assert served == 255  # and ours
    assert said == {
        "there are 256 connections, which is all that --max-connections allows; close one"
    }


def test_no_descriptors_left(start_daemon):
    """A limit of the system instead of ours: whoever comes is told so, and the daemon does not spin."""
    daemon = start_daemon("--max-connections", "1000")
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (60, 60))
    many = [Raw(daemon.socket) for _ in range(100)]
    time.sleep(0.5)
    many[0].call("status")
    began = read_cpu(daemon.pid)
    time.sleep(1)
    assert read_cpu(daemon.pid) - began < 0.3, "it spins"
    assert "ulimit" in str(many[-1].last_words())
    for one in many[1:]:
        one.close()
    assert eventually(lambda: many[0].call("status")["connections"] == 1)
    with Raw(daemon.socket) as raw:
        assert raw.call("hello")["pid"] == daemon.pid
    many[0].close()
