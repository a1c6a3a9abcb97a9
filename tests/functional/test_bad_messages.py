"""Bytes that are no messages, and messages of odd forms."""

import os
import random
import socket
import struct

import msgpack
import pytest

from bad_input import MIB, raw, unharmed  # noqa: F401
from conftest import DEVICE
from raw import HungUp, Raw, RpcError, make_memfd, pack_request, read_rss

pytestmark = pytest.mark.in_both("a sanitizer keeps what was freed")

GARBAGE = [
    b"\xc1",
    b"\x00",
    b"\xc0",
    b"\x80",
    b"\x90",
    b"\x91\x00",
    b"GET / HTTP/1.1\r\n\r\n",
    b"\xff" * 100,
    msgpack.packb("hello"),
    msgpack.packb([0, 1, "hello"]),
    msgpack.packb([0, 1, "hello", [], 5]),
    msgpack.packb([0, 1, "hello", {}]),
    msgpack.packb([0, 1, None, []]),
    msgpack.packb([0, -1, "hello", []]),
    msgpack.packb([0, 1 << 32, "hello", []]),
    msgpack.packb([0, "1", "hello", []]),
    msgpack.packb([1, 1, None, None]),
    msgpack.packb([2, "hello"]),
    msgpack.packb([3, 1, "hello", []]),
    msgpack.packb([False, 1, "hello", []]),
    msgpack.packb({"method": "hello"}),
    b"\x94\x00\x01\xa5hello\xdd\xff\xff\xff\xff",  # an array of 4 billion
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\x94\x00\x01\xa5hello\xdf\x80\x00\x00\x00",
    b"\x94\x00\x01\xa5hello" + b"\x91" * 10000,  # nested
    b"\x91" * 10000,
    b"\x81" * 10000,
    b"\x94\x00\x01\xa5hello\xc6\x04\x00\x00\x00",  # binary of 64 MiB
    b"\xc6\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\xc9\xff\xff\xff\xff\x05",
]


@pytest.mark.parametrize("data", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_ends_the_connection_with_the_reason(raw, daemon, data):
    rss = read_rss(daemon.pid)
    raw.call("tensor_new", 1, "int8", [1])
    raw.send(data)
    said = raw.last_words()
    assert said and said.code == "malformed_message" and len(str(said)) > 20
    assert read_rss(daemon.pid) < rss + 8 * MIB


def test_what_came_before_the_garbage_is_answered(raw):
    raw.send(pack_request(1, "hello", ()) + pack_request(2, "status", ()) + b"\xc1")
    assert [raw.receive()[1] for _ in range(3)] == [1, 2, 0]
    with pytest.raises(HungUp):
        raw.receive()


def test_random_bytes(daemon):
    rng = random.Random(5)
    good = pack_request(1, "tensor_new", (1, "float32", [2, 3], None, None))
    good += pack_request(2, "forward", ("gelu", [1], {"approximate": "tanh"}, [2], {"context": 1}))
    for _ in range(300):
        data = bytearray(good)
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        with Raw(daemon.socket) as raw:
            raw.send(bytes(data))
            raw.sock.shutdown(socket.SHUT_WR)
            raw.last_words()


def test_text_that_is_no_utf8_does_not_come_back(raw):
    """It would be bytes that a strict client cannot decode."""
    odd = b"\xff\xfe\x80".decode("utf-8", "surrogateescape")
    for params in (["forward", [odd, [], {}, []]], ["op_info", [odd]], [odd, []], ["tensor_attach", [1, odd]],
                   ["hello", [odd]], ["op_info", ["é" * 31 + "x"]], ["x" * 63 + "é", []]):  # fmt: skip
        raw.send(msgpack.packb([0, 77, *params], unicode_errors="surrogateescape"))
        kind, id, error, result = raw.receive()
        assert (kind, id) == (1, 77)


def test_the_same_message_id_twice(raw):
    raw.send(pack_request(5, "sync", ()) * 2)
    assert [raw.receive()[1] for _ in range(2)] == [5, 5]


@pytest.mark.parametrize("msgid", [0, 127, 128, (1 << 32) - 1])
def test_message_ids_of_every_length(raw, msgid):
    raw.send(pack_request(msgid, "sync", ()))
    raw.wait(msgid)


def test_integers_may_be_longer_than_they_need(raw):
    """An encoder may write 1 as a 64-bit integer, signed or not."""
    one = b"\xd3" + struct.pack(">q", 1)
    big = b"\xcf" + struct.pack(">Q", 1)
    raw.send(
        b"\x94\xcc\x00\xce\x00\x00\x00\x09\xd9\x0atensor_new\xdc\x00\x03"
        + big
        + b"\xda\x00\x04int8\xdd\x00\x00\x00\x01"
        + one
    )
    assert raw.wait(9)["shape"] == [1]
    assert raw.call("tensor_info", 1)


def test_encoders_with_one_type_for_strings_and_bytes(raw):
    """Before MessagePack had bin all was str; some languages send names as bin."""

    def call(method, *params, **how):
        raw.msgid += 1
        raw.send(msgpack.packb([0, raw.msgid, method, params], **how))
        return raw.wait(raw.msgid)

    zeros, ones = bytes(8), struct.pack("<2f", 1, 1)
    old = {"use_bin_type": False}
    call("tensor_new", 1, "float32", [2], b"old \xc3\xa9", None, **old)
    call("tensor_write", 1, 0, ones, **old)
    assert raw.call("tensor_read", 1, 0) == ones
    call("tensor_write", 1, 0, b"\xff" * 8, **old)  # no UTF-8
    assert raw.call("tensor_read", 1, 0) == b"\xff" * 8
    call("tensor_write", 1, 0, zeros, **old)

    raw.send(msgpack.packb([2, b"set_client_info", []]))  # a notification that nobody knows
    assert call(b"hello", b"a client", {})["protocol"] == 1
    assert call(b"tensor_attach", 2, "old é".encode())["name"] == "old é"
    options = {b"device": b"cpu" if DEVICE == "cpu" else DEVICE.encode(), b"version": 1}
    call(b"forward", b"gelu", [2], {b"approximate": b"tanh"}, [3], options)
    assert raw.call("tensor_read", 3, 0) == zeros
    for method, params in ((b"tensor_new", (4, b"float33", [1])), (b"\xff\xfe", ()), (b"sync\0", ())):
        with pytest.raises(RpcError):
            call(method, *params)
    with pytest.raises(RpcError, match="name: expected"):
        call(b"tensor_new", 4, b"int8", [1], b"\xff", None)
    call(b"free", b"tensor", [1])  # its name too


# --- notifications


def test_notifications_are_done_and_not_answered(raw):
    raw.notify("tensor_new", 1, "uint8", [4])
    raw.notify("tensor_write", 1, 0, b"abcd")
    raw.notify("hello")
    raw.notify("no_such_method")
    raw.notify("tensor_info", 77)
    raw.notify("tensor_new", 1, "uint8", [4])
    raw.notify("forward", "gelu", [55], {}, [56])
    assert raw.call("tensor_read", 1, 0) == b"abcd"
    raw.notify("free", "tensor", [1])
    assert raw.fail("tensor_info", 1).code == "not_found"
    assert raw.replies == {}


def test_a_notification_may_bring_a_descriptor(raw):
    fd = make_memfd(4096)
    os.pwrite(fd, b"abcd", 0)
    raw.notify("shm_open", 1, 4096, fds=[fd])
    os.close(fd)
    raw.make(1, "uint8", [4])
    raw.call("tensor_write", 1, 0, [1, 0, 4])
    assert raw.call("tensor_read", 1, 0) == b"abcd"
