"""A client that waits for a call or replay can be told by a word in shared memory that it is done, without the broker
between them. Either that, or a reply: never both, never none."""

import mmap
import os
import random
import signal
import struct

import numpy as np
import pytest
from conftest import DEVICE, beside
from libopd import Client as LibraryClient
from operators import PICK, double_by, put_kernels
from raw import Raw, RpcError, eventually, find_roles, kill_executors_soon, make_memfd
from upgrades import upgrade

import opd

IDLE, AWAITED, SLEPT_ON, DONE = range(4)
DESC = ["float32", [4]]
ONES = struct.pack("4f", 1, 1, 1, 1)


class Waiting(Raw):
    """A client with a word, and double_it prepared: call 1 of tensor 1, or of another."""

    def __init__(self, path):
        super().__init__(path)
        fd = make_memfd(4096)
        self.call("shm_open", 9, 4096, fds=[fd])
        self.memory = mmap.mmap(fd, 4096)
        os.close(fd)
        self.call("done_word", 9, 64)
        self.make(1, *DESC, ONES)
        self.call("prepare", 1, "forward", "double_it", [DESC], {})
        self.call("prepare", 2, "forward", "pick", [["float32", [5, 3]], ["int64", [1]]], {})
        self.last = 100

    @property
    def state(self):
        return struct.unpack_from("I", self.memory, 64)[0]

    @state.setter
    def state(self, value):
        struct.pack_into("I", self.memory, 64, value)

    @property
    def version(self):
        return struct.unpack_from("I", self.memory, 68)[0]

    def run(self, *params):
        """Of a request that is waited for by the word: None where that tells, or else the reply's message."""
        self.state = AWAITED
        sent = self.request(*params)
        while self.state != DONE:
            try:
                kind, id, error, result = self.receive(0.001)
            except TimeoutError:
                continue
            assert (kind, id) == (1, sent) and self.state != DONE
            self.state = IDLE
            return error or result
        return None

    def new(self):
        self.last += 1
        return self.last

    def double(self, id=1):
        """By the word; the result's id."""
        self.call("sync")  # the broker may hear of the one before later
        assert self.run("call", 1, [id, self.new()]) is None
        return self.last

    def read(self, id):
        """The next reply is this one's: none was left."""
        sent = self.request("tensor_read", id, 0)
        kind, replied, error, result = self.receive()
        assert (kind, replied, error) == (1, sent, None)
        return struct.unpack("4f", result)


@pytest.fixture
def served(start_daemon, tmp_path):
    daemon = start_daemon("--kernels", put_kernels(tmp_path / "kernels", double_it=double_by(2), pick=PICK))
    daemon.kernels = tmp_path / "kernels"
    return daemon


@pytest.fixture
def waiting(served):
    with Waiting(served.socket) as raw:
        raw.wait(raw.request("call", 1, [1, 100]))  # whatever a first one takes
        yield raw


def edit(raw, kernels, factor):
    put_kernels(kernels, double_it=double_by(factor))
    raw.call("reload")


def test_one_after_the_other(waiting):
    id = 1
    for n in range(1, 12):
        id = waiting.double(id)  # each reads what the one before has made
        assert waiting.version == 1
        assert waiting.read(id) == (2.0**n,) * 4
    waiting.call("call", 1, [1, 500])  # nobody waits at the word
    assert waiting.read(500) == (2.0,) * 4


def test_who_waits_no_longer_has_the_reply(waiting):
    for _ in range(10):
        waiting.last += 1
        waiting.state = IDLE
        assert waiting.call("call", 1, [1, waiting.last]) == {"version": 1}
    waiting.call("done_word", None, 0)
    waiting.state = AWAITED
    assert waiting.call("call", 1, [1, 700]) == {"version": 1}
    assert waiting.state == AWAITED


def test_many_at_once_have_their_replies_but_one_at_most(waiting):
    for _ in range(5):
        waiting.state = AWAITED
        sent = [waiting.request("call", 1, [1, waiting.last + i]) for i in range(1, 9)]
        waiting.last += 8
        waiting.wait(waiting.request("sync"))
        missing = set(sent) - set(waiting.replies)
        assert missing == ({sent[0]} if waiting.state == DONE else set())
        waiting.replies.clear()
        assert waiting.read(waiting.last) == (2.0,) * 4


def test_edits(served, waiting):
    with Raw(served.socket) as other:
        for n, factor in enumerate((3, 4, 5), 2):
            edit(other, served.kernels, factor)
            assert eventually(lambda: waiting.run("call", 1, [1, waiting.new()]) is None)
            assert waiting.version == n
            assert waiting.read(waiting.double()) == (factor,) * 4


def test_errors_are_replies(waiting):
    assert waiting.run("call", 1, [99, 101])["code"] == "not_found"
    waiting.make(2, "float32", [5, 3], np.arange(15, dtype=np.float32).tobytes())
    waiting.make(3, "int64", [1], struct.pack("q", 4))
    assert waiting.run("call", 2, [2, 3, waiting.new()]) == {"version": 1}  # it has checks
    waiting.call("tensor_write", 3, 0, struct.pack("q", 7))
    assert "row 0 of rows is not below" in waiting.run("call", 2, [2, 3, waiting.new()])["message"]
    assert waiting.read(waiting.double()) == (2.0,) * 4


def test_what_one_in_flight_decides_is_a_reply(waiting):
    """A second connection reads what the first one's failing request is making."""
    waiting.make(2, "float32", [5, 3], np.arange(15, dtype=np.float32).tobytes())
    waiting.make(3, "int64", [1], struct.pack("q", 7))
    for id in range(200, 210):
        waiting.state = AWAITED
        failing = waiting.request("call", 2, [2, 3, id])
        waiting.call("prepare", 100 + id, "forward", "double_it", [["float32", [1, 3]]], {})
        with pytest.raises(RpcError):
            waiting.wait(failing)
        waiting.state = AWAITED
        assert waiting.fail("call", 100 + id, [id, 900]).code == "not_found"


def test_replays(served, waiting):
    waiting.call("graph_begin", 5)
    for x, y in ((1, 300), (300, 301), (301, 302), (302, 303)):
        waiting.call("forward", "double_it", [x], {}, [y])
    waiting.call("graph_end", 5)
    for n in range(1, 6):
        waiting.call("tensor_write", 1, 0, struct.pack("4f", n, n, n, n))
        assert waiting.run("replay", 5) is None
        assert waiting.version == 0
        assert waiting.read(303) == (16.0 * n,) * 4
    waiting.make(2, "float32", [5, 3], np.arange(15, dtype=np.float32).tobytes())
    waiting.make(3, "int64", [1], struct.pack("q", 4))
    waiting.call("graph_begin", 6)
    waiting.call("call", 2, [2, 3, 400])
    waiting.call("graph_end", 6)
    assert waiting.run("replay", 6) == {}  # it has checks


def test_upgrade(served, waiting):
    for _ in range(2):
        upgrade(served)
        # The first call of a program binds anew, and may wait for that.
        assert eventually(lambda: waiting.run("call", 1, [1, waiting.new()]) is None)
        assert waiting.read(waiting.double()) == (2.0,) * 4


def test_killed_executors(served, waiting):
    """In the midst of it: every request has one end, and what was told done is done."""
    for _ in range(3):
        killer = kill_executors_soon(served.pid)
        while killer.is_alive():
            waiting.state = AWAITED
            sent = waiting.request("call", 1, [1, waiting.new()])
            while waiting.state != DONE and sent not in waiting.replies:
                try:
                    _, id, error, _ = waiting.receive(0.001)
                    assert error is None
                    waiting.replies[id] = None
                except TimeoutError:
                    pass
            waiting.state = IDLE
        killer.join()
        waiting.replies.clear()
        assert struct.unpack("4f", waiting.call("tensor_read", waiting.last, 0)) == (2.0,) * 4


def test_a_hostile_client(served, waiting):
    """It writes what it likes there, all the time, closes the memory under a request, and ends in the midst of one:
    an honest one beside it notices nothing."""
    with Waiting(served.socket) as hostile:

        def scribble(over):
            while not over.is_set():
                hostile.state = random.choice((0, 1, 2, 3, 0xFFFFFFFF))

        with beside(scribble):
            for i in range(50):
                hostile.request("call", 1, [1, 200 + i])
                assert waiting.read(waiting.double()) == (2.0,) * 4
        hostile.request("call", 1, [1, 400])
        hostile.request("free", "shm", [9])
        hostile.request("call", 1, [1, 401])
        assert hostile.call("tensor_info", 401)["shape"] == [4]
        fd = make_memfd(72)
        hostile.call("shm_open", 9, 71, fds=[fd])  # shorter than where the word was
        os.close(fd)
        assert hostile.call("call", 1, [1, 402]) == {"version": 1}
        for bad in ((9, 64), (9, -8), (9, 4), (9, 2**62), (8, 0)):
            assert hostile.fail("done_word", *bad).code in ("invalid_argument", "not_found")
    with Waiting(served.socket) as gone:
        gone.state = SLEPT_ON
        gone.request("call", 1, [1, 101])
    assert waiting.read(waiting.double()) == (2.0,) * 4
    if DEVICE == "cpu":
        with Raw(served.socket) as raw:
            assert raw.call("status")["devices"][0]["restarts"] == 0


@pytest.mark.unsanitized("Python cannot load a sanitizer's library")
def test_libopd(served):
    client = LibraryClient(served.socket)
    with Raw(served.socket) as other:
        client.make(1, 1, 2, 3)
        last = 10
        for factor in (2, 3):
            for _ in range(100):
                last += 1
                assert client.forward("double_it", [1], [last]) == [(last, b"float32", [3], 12, b"")]
                assert client.read(last, 3) == [factor, 2 * factor, 3 * factor]
            with pytest.raises(OSError, match="is in use"):
                client.forward("double_it", [1], [last])
            for pid in find_roles(served.pid, "executor"):
                os.kill(pid, signal.SIGKILL)
            edit(other, served.kernels, 3)
        assert other.call("status")["requests"]["done_word"] == 1
    client.close()


@pytest.mark.skipif(opd._native.native is None, reason="there is no opd_native")
def test_python(served):
    with opd.connect(served.socket) as client, Raw(served.socket) as other:
        x = client.tensor(np.arange(4, dtype=np.float32))
        for factor in (2, 3):
            edit(other, served.kernels, factor)
            for _ in range(40):
                y = x
                for n in range(1, 5):  # each waited for
                    y = client.ops.double_it(y)
                assert y.tolist() == [0, factor**4, 2 * factor**4, 3 * factor**4]
            for pid in find_roles(served.pid, "executor"):
                os.kill(pid, signal.SIGKILL)
        assert other.call("status")["requests"]["done_word"] == 1
