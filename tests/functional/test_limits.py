"""What one client may take, what it is told, and that it cannot take it from the others."""

import os
import select
import socket
import statistics
import threading
import time

import numpy as np
import pytest

import opd
from conftest import in_threads
from raw import Raw, count_fds, eventually, find_roles, pack_request, read_rss
from test_faults import kernels  # noqa: F401

MIB = 1 << 20


# --- memory


def test_memory_limit(start_daemon):
    daemon = start_daemon("--memory-limit", "100M")
    with Raw(daemon.socket) as raw:
        raw.call("tensor_new", 2, "uint8", [60 << 20])
        raw.call("tensor_new", 1, "uint8", [30 << 20])
        error = raw.fail("tensor_new", 3, "uint8", [30 << 20])
        assert error.code == "out_of_memory"
        for word in ("may hold 100 MiB, 30 MiB asked for", "held: 90 MiB in 2 tensors: 90 MiB by",
                     f"(pid {os.getpid()})", "--memory-limit"):  # fmt: skip
            assert word in str(error), (word, str(error))
        assert raw.fail("tensor_info", 3).code == "not_found"
        raw.make(4, "float32", [1])
        error = raw.fail("tensor_new", 5, "uint8", [1 << 40])
        assert error.code == "out_of_memory"
        raw.call("free", "tensor", [1])
        raw.call("tensor_new", 3, "uint8", [30 << 20])
        raw.call("free", "tensor", [2, 3, 4])
        raw.call("tensor_new", 6, "uint8", [96 << 20])  # what was freed in pieces is one again
        device = raw.call("status")["devices"][0]
        assert device["memory_reserved"] <= device["memory_limit"] == 100 << 20


def test_memory_limit_of_an_operators_results(start_daemon):
    daemon = start_daemon("--memory-limit", "100M")
    with Raw(daemon.socket) as raw:
        raw.call("tensor_new", 1, "float32", [15 << 20])
        error = raw.fail("forward", "gelu", [1], {}, [2], {"context": 1})
        assert error.code == "out_of_memory" and error.op == "gelu" and "gelu" in str(error)
        assert raw.fail("backward", 1, [None], [3]).code == "not_found"
        raw.make(4, "float32", [1])
        raw.call("forward", "gelu", [4], {}, [2])


def test_memory_of_a_client(start_daemon):
    daemon = start_daemon("--client-memory", "10M")
    with Raw(daemon.socket) as raw, Raw(daemon.socket) as other:
        assert raw.call("hello")["limits"]["client_memory"] == 10 * MIB
        raw.call("tensor_new", 1, "uint8", [6 * MIB], "kept")
        error = raw.fail("tensor_new", 2, "uint8", [5 * MIB])
        assert error.code == "out_of_memory"
        for words in ("5 MiB asked for", "holds 6 MiB", "may hold 10 MiB", "--client-memory"):
            assert words in str(error)
        other.call("tensor_new", 1, "uint8", [10 * MIB])
        raw.call("tensor_new", 2, "uint8", [4 * MIB])
        # What an operator makes counts too.
        raw.call("free", "tensor", [2])
        raw.call("tensor_new", 2, "float32", [3 * MIB // 4])
        error = raw.fail("forward", "gelu", [2], {}, [3], {"context": 1})
        assert error.code == "out_of_memory" and "--client-memory" in str(error)
        raw.call("free", "tensor", [1, 2])
        raw.call("tensor_new", 2, "uint8", [10 * MIB])
        raw.call("free", "tensor", [2])


def test_the_error_says_who_holds_it(start_daemon):
    daemon = start_daemon("--memory-limit", "128M")
    with Raw(daemon.socket) as raw, Raw(daemon.socket) as other, Raw(daemon.socket) as third:
        raw.call("hello", "trainer")
        other.call("hello", "tester")
        raw.call("tensor_new", 1, "uint8", [40 * MIB])
        raw.call("tensor_new", 2, "uint8", [8 * MIB], "weights")
        other.call("tensor_new", 1, "uint8", [20 * MIB])
        device = raw.call("status")["devices"][0]["name"]
        error = third.fail("tensor_new", 1, "uint8", [100 * MIB])
        assert error.code == "out_of_memory"
        assert (
            f"{device} may hold 128 MiB, 100 MiB asked for and no free piece is large enough; "
            f"held: 68 MiB in 3 tensors: 40 MiB by trainer (pid {os.getpid()}), "
            f"20 MiB by tester (pid {os.getpid()}), 8 MiB in named tensors" in str(error)
        ), str(error)
        clients = {c["client"]: c for c in third.call("status")["clients"]}
        assert clients["trainer"]["memory"] == {device: 40 * MIB}
        assert clients["trainer"]["pid"] == os.getpid()
        assert clients["tester"]["tensors"] == 1
        (named,) = third.call("tensor_list")
        assert named["owner"] == f"trainer (pid {os.getpid()})"
        # It goes with its client, but what is attached, and what has a name.
        third.call("tensor_attach", 5, "weights")
        raw.close()
        assert eventually(lambda: third.call("status")["devices"][0]["memory_used"] == 28 * MIB)
        error = third.fail("tensor_new", 1, "uint8", [110 * MIB])
        assert "held: 28 MiB in 2 tensors: 20 MiB by tester" in str(error)
        third.call("free", "tensor", [5])
        assert third.call("status")["devices"][0]["memory_named"] == 0


# --- messages, launches


def test_size_of_a_message(start_daemon):
    daemon = start_daemon("--max-message", "100K")
    with Raw(daemon.socket) as raw:
        limit = raw.call("hello")["limits"]["max_message"]
        assert limit == 100 << 10
        raw.make(1, "uint8", [300000], b"x" * 90000)
        error = raw.fail("tensor_read", 1, 0)
        assert error.code == "invalid_argument" and "do not go into a message" in str(error)
        assert raw.call("tensor_read", 1, 0, 90000) == b"x" * 90000
        raw.request("tensor_write", 1, 0, b"x" * (limit + 1))
        assert raw.last_words().code == "malformed_message"
    with daemon.connect() as client:  # it goes by what hello says
        a = np.arange(500_000, dtype=np.float32)
        assert (client.tensor(a).numpy() == a).all()


def test_launches_of_a_request(start_daemon, kernels):  # noqa: F811
    daemon = start_daemon("--kernels", kernels, "--max-launches", "2")
    with daemon.connect() as client:
        assert client.info["limits"]["max_launches"] == 2
        assert client.zeros(3).gelu().shape == (3,)
        x = client.zeros(4)
        with pytest.raises(opd.InvalidArgument, match=r"3 launches .* at most 2 .*--max-launches"):
            client.ops.steps(x)
        assert x.numpy().tolist() == [0] * 4 and x.suspect is None


# --- fair turns


def test_many_clients_at_once(daemon):
    def work(seed):
        with Raw(daemon.socket) as raw:
            for i in range(20):
                data = bytes([seed, i]) * 2000
                raw.make(1, "uint8", [4000], data)
                assert raw.call("tensor_read", 1, 0) == data
                raw.make(2, "float32", [1000])
                raw.call("forward", "gelu", [2], {}, [3])
                raw.call("free", "tensor", [1, 2, 3])

    in_threads(20, work)


def quick_latency(call, seconds):
    """That of a fourth of the calls. (All calls wait where requests of another go first; where only
    the machine is busy, some do not.)"""
    times, end = [], time.monotonic() + seconds
    while time.monotonic() < end or len(times) < 8:
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return statistics.quantiles(times, n=4)[0]


@pytest.mark.parametrize("what", ["forward", "small writes", "large writes"])
def test_a_flood_starves_nobody(start_daemon, kernels, what):  # noqa: F811
    """The other waits for a few of the flood's requests at a time, not for hundreds."""
    daemon = start_daemon("--kernels", kernels)
    with Raw(daemon.socket) as quiet, Raw(daemon.socket) as owner:
        quiet.make(1, "float32", [4], b"x" * 16)
        owner.make(1, "uint8", [40 * MIB], name="target")
        owner.make(2, "float32", [1], name="busy")
        quiet.call("forward", "steps", [1], {"rounds": 1}, [])
        rounds = 5_000_000  # some milliseconds
        quiet.call("forward", "steps", [1], {"rounds": rounds}, [])

        def one():
            quiet.call("tensor_write", 1, 0, b"y" * 16)

        def count():
            return quiet.call("status")["requests"].get(what.split()[-1].replace("writes", "tensor_write"), 0)

        alone = quick_latency(one, 0.3)
        begin = time.perf_counter()
        quiet.call("forward", "steps", [1], {"rounds": rounds}, [])
        run = time.perf_counter() - begin
        pre = {
            "forward": pack_request(1, "tensor_attach", (1, "busy")),
            "small writes": pack_request(1, "tensor_attach", (1, "target")),
            "large writes": pack_request(1, "tensor_attach", (1, "target")),
        }[what]
        body = {
            "forward": pack_request(2, "forward", ("steps", [1], {"rounds": rounds}, [])) * 64,
            "small writes": pack_request(2, "tensor_write", (1, 0, b"z" * 4096)) * 64,
            "large writes": pack_request(2, "tensor_write", (1, 0, b"z" * (40 * MIB))),
        }[what]
        # In a process of its own: threads of Python would share the lock with the other.
        pid = os.fork()
        if pid == 0:
            try:
                sock_flood(daemon.socket, pre, body)
            finally:
                os._exit(0)
        try:
            before = count()
            assert eventually(lambda: count() > before + 4)
            if what == "forward":
                time.sleep(1.2)  # the flood has the device for itself until somebody else is at work
            before, begin = count(), time.perf_counter()
            flooded = quick_latency(one, 2)
            each = (time.perf_counter() - begin) / (count() - before)
            queued = [quiet.call("status")["devices"][0]["queued"] for _ in range(20)]
        finally:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
        bound = {"forward": 12 * run, "small writes": 0.02, "large writes": 0.4}[what]
        bound = max(bound, 12 * each)  # of a slow machine
        assert flooded < alone + bound, (what, alone, flooded, run, each)
        assert max(queued) <= 16, "the flood fills the device's queue"
        owner.call("free", "tensor", [1, 2])


def test_who_only_asks_takes_nothing_from_others(start_daemon, kernels):
    """A monitor is no reason to let a client have only a few requests in flight."""
    daemon = start_daemon("--kernels", kernels)
    with Raw(daemon.socket) as busy, Raw(daemon.socket) as monitor:
        busy.make(1, "float32", [4])
        busy.call("forward", "steps", [1], {"rounds": 1}, [])
        assert monitor.call("status")["pid"] == daemon.pid
        busy.sock.sendall(pack_request(7, "forward", ("steps", [1], {"rounds": 3_000_000}, [])) * 60)
        queued = [monitor.call("status")["devices"][0]["queued"] for _ in range(20)]
        assert max(queued) > 30


def sock_flood(path, first, body):
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)
    sock.sendall(first)
    sock.recv(1 << 16)
    sock.setblocking(False)
    rest = memoryview(body)
    while True:
        readable, writable, _ = select.select([sock], [sock], [])
        try:
            if writable:
                rest = rest[sock.send(rest) :] or memoryview(body)
            if readable and not sock.recv(1 << 20):
                return
        except BlockingIOError:
            pass


def test_who_sends_without_reading_is_left_waiting(daemon):
    """Back-pressure: the daemon does not grow, the client's own socket fills."""
    with Raw(daemon.socket) as raw, Raw(daemon.socket) as other:
        raw.make(1, "float32", [1 << 16])
        before = read_rss(daemon.pid)
        raw.sock.settimeout(1)
        packed = pack_request(1, "tensor_read", (1, 0)) * 100
        sent = 0
        with pytest.raises(TimeoutError):
            while sent < 1000 * len(packed):
                raw.sock.sendall(packed)
                sent += len(packed)
        assert read_rss(daemon.pid) - before < 16 * MIB
        assert other.call("status")["pid"] == daemon.pid


def test_large_pieces_of_two_clients_take_turns(daemon):
    """Neither many middle-sized writes nor one of nearly all staging memory waits for ever."""
    with Raw(daemon.socket) as large, Raw(daemon.socket) as middle:
        large.make(1, "uint8", [62 * MIB])
        middle.make(1, "uint8", [6 * MIB])
        stop, done = threading.Event(), [0]

        def write_middle():
            while not stop.is_set():
                ids = [middle.request("tensor_write", 1, 0, b"m" * (6 * MIB)) for _ in range(8)]
                for id in ids:
                    middle.wait(id)
                    done[0] += 1

        thread = threading.Thread(target=write_middle)
        thread.start()
        try:
            for _ in range(5):
                large.call("tensor_write", 1, 0, b"l" * (62 * MIB))
        finally:
            stop.set()
            thread.join()
        assert done[0] > 5


def test_who_leaves_the_queue_for_staging_memory_holds_nobody_up(start_daemon):
    daemon = start_daemon()
    with Raw(daemon.socket) as other:
        other.make(1, "uint8", [40 * MIB])
        (executor,) = find_roles(daemon.pid, "executor")
        leaving = [Raw(daemon.socket) for _ in range(3)]
        for raw in leaving:
            raw.make(1, "uint8", [60 * MIB])
        os.kill(executor, 19)
        try:
            threads = [
                threading.Thread(target=raw.request, args=("tensor_write", 1, 0, b"x" * (60 * MIB)))
                for raw in leaving
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            id = other.request("tensor_write", 1, 0, b"o" * (40 * MIB))
            for raw in leaving[1:]:
                raw.close()
        finally:
            os.kill(executor, 18)
        other.wait(id)
        leaving[0].wait(leaving[0].msgid)
        leaving[0].close()


def test_connections_leave_no_descriptors(daemon):
    before = count_fds(daemon.pid)
    for _ in range(20):
        with Raw(daemon.socket) as raw:
            raw.make(1, "float32", [4], b"x" * 16)
    assert eventually(lambda: count_fds(daemon.pid) <= before + 1)
