"""Replies that clients do not read, and those to a client that sends no more."""

import functools
import select
import socket

import pytest
from conftest import beside
from raw import HungUp, Raw, eventually, read_rss

MIB = 1 << 20
SIZE = 60 * MIB


def sip(clients, over):
    """They take a little each second: who takes nothing for 30 is ended, and a machine may be slow."""
    while not over.wait(1):
        ready = select.select([raw.sock for raw in clients], [], [], 0)[0]
        for raw in clients:
            if raw.sock in ready:
                raw.unpacker.feed(raw.sock.recv(1 << 16))


def test_what_nobody_reads_has_a_bound(start_daemon):
    daemon = start_daemon()
    with Raw(daemon.socket) as owner:
        owner.make(1, "uint8", [SIZE], b"x" * SIZE, "large")
        owner.call("tensor_read", 1, 0)  # staging memory is there
        before = read_rss(daemon.pid)
        stuck = [Raw(daemon.socket) for _ in range(8)]
        for raw in stuck:
            raw.call("tensor_attach", 1, "large")
        with beside(functools.partial(sip, stuck)):
            large = [raw.request("tensor_read", 1, 0) for raw in stuck][0]
            # Who comes last is served with what is small, and waits with what is large.
            assert eventually(lambda: read_rss(daemon.pid) - before > SIZE)
            with Raw(daemon.socket) as last:
                last.call("tensor_attach", 1, "large")
                for raw in last, owner:
                    assert raw.call("tensor_read", 1, 0, 100_000) == b"x" * 100_000
            waits = owner.request("tensor_read", 1, 0)
            stuck[0].request("tensor_info", 1)
            with pytest.raises(TimeoutError):
                owner.receive(1)
            assert read_rss(daemon.pid) - before < 4 * SIZE
        # Two of them read, or are gone: then there is room.
        assert stuck[0].wait(large) == b"x" * SIZE
        for raw in stuck[1:]:
            raw.close()
        assert owner.wait(waits) == b"x" * SIZE
        stuck[0].close()


def test_who_never_reads_is_ended_when_others_wait(start_daemon):
    """It has 30 seconds, for which this waits."""
    daemon = start_daemon()
    with Raw(daemon.socket) as owner:
        owner.make(1, "uint8", [SIZE], b"x" * SIZE, "large")
        stuck = [Raw(daemon.socket) for _ in range(3)]
        for raw in stuck:
            raw.call("tensor_attach", 1, "large")
            raw.request("tensor_read", 1, 0)
        assert eventually(lambda: read_rss(daemon.pid) > SIZE)
        waits = owner.request("tensor_read", 1, 0)
        assert owner.wait(waits, 120) == b"x" * SIZE
        assert "does not read its replies" in daemon.read_log()
        for raw in stuck:
            raw.close()


@pytest.mark.parametrize("method", ["status", "forward", "tensor_read"])
def test_who_sends_no_more_gets_its_replies(daemon, method):
    with Raw(daemon.socket) as raw:
        raw.make(1, "float32", [1 << 20])
        raw.call("forward", "relu", [1], {}, [2])
        more = {"status": [], "forward": ["relu", [1], {}], "tensor_read": [1, 0]}[method]
        requests = [
            raw.request(method, *more, *([[10 + i]] if method == "forward" else []))
            for i in range(10)
        ]
        raw.sock.shutdown(socket.SHUT_WR)
        for request in requests:
            raw.wait(request)
        with pytest.raises(HungUp):  # when all is said
            raw.receive()


def test_half_a_message_is_not_waited_for(daemon):
    with Raw(daemon.socket) as raw:
        request = raw.request("status")
        raw.send(b"\x94\x00")
        raw.sock.shutdown(socket.SHUT_WR)
        raw.wait(request)
        with pytest.raises(HungUp):
            raw.receive()


def test_who_is_gone_after_that_is_let_go_of(daemon):
    """While its request waits: nobody is there for the reply."""
    with Raw(daemon.socket) as other:
        before = other.call("status")["connections"]
        raw = Raw(daemon.socket)
        raw.make(1, "float32", [1 << 20])
        for i in range(20):
            raw.request("forward", "gelu", [1], {}, [10 + i])
        raw.sock.shutdown(socket.SHUT_WR)
        raw.close()
        assert eventually(lambda: other.call("status")["connections"] == before)
