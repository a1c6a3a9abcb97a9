"""What no good client sends. The daemon says what is wrong, serves everyone else meanwhile, holds
a bounded amount of memory, and keeps nothing of whoever has gone."""

import fcntl
import os
import random
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import msgpack
import pytest

from conftest import ROOT
from raw import (
    SANITIZED,
    HungUp,
    Raw,
    RpcError,
    count_fds,
    eventually,
    make_memfd,
    pack_request,
    read_rss,
)

MIB = 1 << 20
# The sanitizer keeps what was freed for a while.
SLACK = (400 if SANITIZED else 40) * MIB


def read_rows():
    text = (ROOT / "protocol" / "protocol.def").read_text()
    rows = re.findall(r'^REQUEST\((\w+),\s*\d+,\s*\w+,\s*"([^"]*)"', text, re.MULTILINE)
    assert len(rows) >= 19
    return rows


ROWS = read_rows()
GOOD = {
    "s": "gelu", "S": None, "i": 0, "b": b"", "M": {}, "h": 1 << 40, "H": None, "a": [],
    "A": None, "v": None,
}  # fmt: skip
BAD = {
    "s": [None, 1, 1.5, b"gelu", [], {}, True, msgpack.ExtType(5, b"x")],
    "S": [1, b"gelu", [], {}],
    "i": [None, "1", 1.0, [], {}, False, 1 << 63, (1 << 64) - 1],
    "b": [None, "text", 1, []],
    "M": [None, 1, "x", [1], b""],
    "h": [None, 0, -1, -(1 << 63), 1 << 63, (1 << 64) - 1, "1", 1.0, [], True],
    "H": [0, -1, 1 << 63, "1"],
    "a": [None, 1, "x", {}, b""],
    "A": [1, "x", {}],
    "v": [],
}
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
    msgpack.packb([0, 1, b"hello", []]),
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


@pytest.fixture
def raw(daemon):
    with Raw(daemon.socket) as raw:
        yield raw


@pytest.fixture(autouse=True)
def unharmed(daemon):
    """After every test the daemon serves, as the same process, and holds nothing of the test."""
    fds = None
    with Raw(daemon.socket) as other:
        assert other.call("hello", "before")["pid"] == daemon.pid
        fds = count_fds(daemon.pid)
    yield
    assert daemon.alive()
    with Raw(daemon.socket) as other:
        assert other.call("hello", "after")["pid"] == daemon.pid

        def settled():
            status = other.call("status")
            return status["connections"] == 1 and not any(d["tensors"] for d in status["devices"])

        assert eventually(settled), other.call("status")
        assert all(d["restarts"] == 0 for d in other.call("status")["devices"])
        assert other.call("tensor_list") == []
        # The first use of a device makes its staging memory, a first chunk, and some images.
        assert eventually(lambda: count_fds(daemon.pid) <= fds + 12), os.listdir(
            f"/proc/{daemon.pid}/fd"
        )


# --- requests that say nothing sensible


def test_unknown_methods(raw):
    for method in ("tensor_neu", "", "x" * 100000, "HELLO", "é" * 50, "request_hello"):
        error = raw.fail(method)
        assert error.code == "unknown_method" and error.number == 9
        assert method[:20] in str(error)
    assert raw.fail("hello\0").code == "unknown_method"
    assert raw.call("sync") is None


@pytest.mark.parametrize("method, letters", [r for r in ROWS if r[0] != "stop"])
def test_wrong_parameters_of_every_request(raw, method, letters):
    letters, _, optional = letters.partition("|")
    good = [GOOD[x] for x in letters]
    for i, letter in enumerate(letters + optional):
        for bad in BAD[letter]:
            params = [GOOD[x] for x in letters + optional]
            params[i] = bad
            error = raw.fail(method, *params)
            assert error.code == "invalid_argument", (params, str(error))
            assert method in str(error) and str(i + 1) in str(error)
    for n in range(len(letters)):
        error = raw.fail(method, *good[:n])
        assert error.code == "invalid_argument" and "missing" in str(error)
    error = raw.fail(method, *good, *[GOOD[x] for x in optional], None)
    assert error.code == "invalid_argument" and "at most" in str(error)


def test_stop_takes_no_parameters(raw):
    assert raw.fail("stop", 1).code == "invalid_argument"


def test_duplicate_keys_and_odd_maps(raw):
    raw.make(1, "float32", [2])
    two = b"\x82\xabapproximate\xa4tanh\xabapproximate\xa4none"
    raw.send(
        b"\x94\x00\x05"
        + msgpack.packb("forward")
        + b"\x94"
        + msgpack.packb("gelu")
        + b"\x91\x01"
        + two
        + b"\x91\x02"
    )
    raw.wait(5)
    assert raw.fail("forward", "gelu", [1], {1: 2}, [3]).code == "invalid_argument"
    assert raw.fail("forward", "gelu", [1], {None: 2}, [3]).code == "invalid_argument"
    assert raw.call("forward", "gelu", [1], {}, [3], {"unheard of": 1})


# --- operators


def test_an_unknown_operator_is_guessed(raw):
    raw.make(1, "float32", [2])
    error = raw.fail("forward", "gleu", [1], {}, [2])
    assert error.code == "not_found" and "did you mean" in str(error) and "gelu" in str(error)
    assert "gelu" in str(raw.fail("op_info", "gel"))
    assert raw.fail("op_info", "x" * 1000).code == "not_found"
    assert raw.fail("op_info", "").code == "not_found"


@pytest.mark.parametrize(
    "inputs, attrs, outputs, options, expected",
    [
        ([2], {}, [10], {}, "int32"),
        ([3], {}, [10], {}, "rank 1"),
        ([], {}, [10], {}, "x"),
        ([None], {}, [10], {}, "x"),
        ([1, 1], {}, [10], {}, "takes 1"),
        ([99], {}, [10], {}, "no tensor 99"),
        (["1"], {}, [10], {}, "a string"),
        ([-1], {}, [10], {}, "id"),
        ([(1 << 64) - 1], {}, [10], {}, "id"),
        ([1], {"approximate": "tang"}, [10], {}, "tanh"),
        ([1], {"approximate": "x" * 100000}, [10], {}, "approximate"),
        ([1], {"approximate": 1}, [10], {}, "approximate"),
        ([1], {"approximate": None}, [10], {}, "approximate"),
        ([1], {"approximate": ["tanh"]}, [10], {}, "approximate"),
        ([1], {"approximate": b"tanh"}, [10], {}, "approximate"),
        ([1], {"aproximate": "tanh"}, [10], {}, "approximate"),
        ([1], {"x" * 1000: "tanh"}, [10], {}, "attribute"),
        ([1], {}, [], {}, "expected 1"),
        ([1], {}, [10, 11], {}, "expected 1"),
        ([1], {}, [1], {}, "in use"),
        ([1], {}, [0], {}, "id"),
        ([1], {}, [None], {}, "id"),
        ([1], {}, ["a"], {}, "id"),
        ([1], {}, [1 << 63], {}, "id"),
        ([1], {}, [10], {"deadline": -1}, "deadline"),
        ([1], {}, [10], {"deadline": "soon"}, "deadline"),
        ([1], {}, [10], {"context": 0}, "context"),
        ([1], {}, [10], {"context": "x"}, "context"),
        ([1], {}, [10], {"context": 1 << 63}, "context"),
        ([1], {}, [10], {"device": "cuda:99"}, "device"),
        ([1], {}, [10], {"device": 5}, "device"),
    ],
)
def test_arguments_that_do_not_fit(raw, inputs, attrs, outputs, options, expected):
    raw.make(1, "float32", [2, 3])
    raw.make(2, "int32", [2, 3])
    if inputs == [3]:
        inputs, name = [3, 1], "depthwise_conv2d"
        raw.make(3, "float32", [4])
    else:
        name = "gelu"
    error = raw.fail("forward", name, inputs, attrs, outputs, options)
    assert error.code in ("invalid_argument", "not_found"), str(error)
    assert error.op == name and expected in str(error), str(error)
    assert raw.fail("tensor_info", 10).code == "not_found"
    assert raw.call("forward", "gelu", [1], {}, [10])


@pytest.mark.parametrize(
    "x, w, bias, attrs, expected",
    [
        ([2, 3, 9], [6, 1, 3, 3], [6], {}, "rank 3"),
        ([2, 3, 9, 9], [7, 1, 3, 3], [7], {}, "7"),
        ([2, 3, 9, 9], [6, 2, 3, 3], [6], {}, "dimension 1"),
        ([2, 3, 9, 9], [6, 1, 3, 3], [5], {}, "bias"),
        ([2, 3, 9, 9], [6, 1, 10, 10], [6], {}, ""),
        ([2, 3, 9, 9], [6, 1, 3, 3], [6], {"stride": 0}, "stride"),
        ([2, 3, 9, 9], [6, 1, 3, 3], [6], {"stride": -1}, "stride"),
        ([2, 3, 9, 9], [6, 1, 3, 3], [6], {"stride": [1, 2, 3]}, "stride"),
        ([2, 3, 9, 9], [6, 1, 3, 3], [6], {"stride": [1, 2, 3, 4, 5, 6]}, "stride"),
        ([2, 3, 9, 9], [6, 1, 3, 3], [6], {"stride": []}, "stride"),
        ([2, 3, 9, 9], [6, 1, 3, 3], [6], {"stride": 1.5}, "stride"),
        ([2, 3, 9, 9], [6, 1, 3, 3], [6], {"stride": "1"}, "stride"),
        ([2, 3, 9, 9], [6, 1, 3, 3], [6], {"stride": True}, "stride"),
        ([2, 3, 9, 9], [6, 1, 3, 3], [6], {"stride": {}}, "stride"),
        ([2, 3, 9, 9], [6, 1, 3, 3], [6], {"stride": [[1], 2]}, "stride"),
        ([2, 3, 9, 9], [6, 1, 3, 3], [6], {"padding": -1}, "padding"),
        ([2, 3, 9, 9], [6, 1, 3, 3], [6], {"padding": (1 << 63) - 1}, ""),
        ([2, 3, 9, 9], [6, 1, 3, 3], [6], {"padding": (1 << 64) - 1}, "padding"),
        ([2, 3, 9, 9], [6, 1, 3, 3], [6], {"padding": 1 << 40}, ""),
        ([2, 3, 9, 9], [6, 1, 3, 3], [6], {"dilation": 0}, "dilation"),
        ([2, 3, 9, 9], [6, 1, 3, 3], [6], {"dilation": 1 << 62}, ""),
        ([2, 3, 9, 9], [0, 1, 3, 3], [0], {}, None),
    ],
)
def test_sizes_and_attributes_that_do_not_fit(raw, x, w, bias, attrs, expected):
    raw.make(1, "float32", x)
    raw.make(2, "float32", w)
    raw.make(3, "float32", bias)
    if expected is None:  # an empty tensor may be fine; it must be answered, that is all
        id = raw.request("forward", "depthwise_conv2d", [1, 2, 3], attrs, [4])
        try:
            raw.wait(id)
        except RpcError as error:
            assert error.code == "invalid_argument"
        return
    error = raw.fail("forward", "depthwise_conv2d", [1, 2, 3], attrs, [4])
    assert error.code in ("invalid_argument", "out_of_memory"), str(error)
    assert error.op == "depthwise_conv2d" and expected in str(error), str(error)


def test_dtypes_that_do_not_agree(raw):
    raw.make(1, "float32", [1, 1, 5, 5])
    raw.make(2, "float64", [1, 1, 3, 3])
    error = raw.fail("forward", "depthwise_conv2d", [1, 2], {}, [3])
    assert "weight" in str(error) and "float64" in str(error) and "float32" in str(error)


def test_backward_that_does_not_fit(raw):
    raw.make(1, "float32", [4])
    raw.call("forward", "gelu", [1], {}, [2], {"context": 1})
    raw.make(3, "float32", [5])
    raw.make(4, "float64", [4])
    raw.make(5, "float32", [4])
    for params in (
        (1, [3], [10]), (1, [4], [10]), (1, [99], [10]), (1, ["x"], [10]), (1, [5, 5], [10]), (1, [5], []),
        (1, [5], [10, 11]), (1, [5], [1]), (1, [5], [0]), (1, [5], [1.5]), (1, [5], [10], {"deadline": 0}),
        (2, [5], [10]),
    ):  # fmt: skip
        assert raw.fail("backward", *params).code in ("invalid_argument", "not_found"), params
        assert raw.fail("tensor_info", 10).code == "not_found"
    assert raw.fail("forward", "gelu", [1], {}, [6], {"context": 1}).code == "invalid_argument"
    assert raw.fail("context_free", [1, 2]).code == "not_found"
    assert raw.fail("context_free", ["1"]).code == "not_found"
    raw.call("backward", 1, [5], [10])
    raw.call("backward", 1, [None], [11])
    raw.call("backward", 1, [5], [None])
    raw.call("tensor_write", 1, 0, bytes(4))
    assert "written" in str(raw.fail("backward", 1, [5], [12]))
    raw.call("context_free", [1, 1])
    assert raw.fail("backward", 1, [5], [13]).code == "not_found"


def test_text_that_is_no_utf8_does_not_come_back(raw):
    """It would be bytes that a strict client cannot decode."""
    odd = b"\xff\xfe\x80".decode("utf-8", "surrogateescape")
    for params in (["forward", [odd, [], {}, []]], ["op_info", [odd]], [odd, []], ["tensor_attach", [1, odd]],
                   ["hello", [odd]], ["op_info", ["é" * 31 + "x"]], ["x" * 63 + "é", []]):  # fmt: skip
        raw.send(msgpack.packb([0, 77, *params], unicode_errors="surrogateescape"))
        kind, id, error, result = raw.receive()
        assert (kind, id) == (1, 77)


# --- bytes that are no messages


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


# --- clients that are slow


def test_half_a_message_holds_nobody_up(raw, daemon):
    whole = pack_request(1, "tensor_new", (1, "uint8", [1000]))
    halves = [Raw(daemon.socket) for _ in range(20)]
    for half in halves:
        half.send(whole[: len(whole) // 2])
    began = time.monotonic()
    for i in range(1, 20):
        raw.make(i, "float32", [10])
    assert time.monotonic() - began < 5
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
        sent, most, end = 0, 0, time.monotonic() + 3
        while time.monotonic() < end and sent < 200000:
            try:
                sent += deaf.sock.send(read * 100) // len(read)
            except TimeoutError:
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
        other.call("tensor_free", [1])
    after = read_rss(daemon.pid)
    assert after < before + 64 * MIB + SLACK, f"{(after - before) >> 20} MiB for idle clients"
    for other in others:
        other.close()


# --- descriptors


def test_descriptors_that_no_message_takes(daemon, raw):
    raw.call("sync")  # the daemon has taken the connection
    before = count_fds(daemon.pid)
    fd = os.open("/dev/null", os.O_RDONLY)
    with Raw(daemon.socket) as other:
        most = 0
        try:
            for _ in range(100):
                other.call("hello", fds=[fd] * 5)
                most = max(most, count_fds(daemon.pid))
        except (HungUp, OSError):
            pass
        assert most < before + 64
        raw.call("status")
    assert eventually(lambda: count_fds(daemon.pid) <= before)
    with Raw(daemon.socket) as other:
        with pytest.raises((HungUp, OSError)):
            other.send(pack_request(1, "hello", ()), [fd] * 200)
            other.wait(1)
    with Raw(daemon.socket) as other:  # with garbage, and with half a message
        other.send(b"\xc1", [fd] * 3)
        other.last_words()
    with Raw(daemon.socket) as other:
        other.send(b"\x94\x00", [fd] * 3)
    os.close(fd)
    assert eventually(lambda: count_fds(daemon.pid) <= before)


def make_pipe():
    r, w = os.pipe()
    os.close(r)
    return w


def make_file():
    fd = os.open("/tmp", os.O_TMPFILE | os.O_RDWR)
    os.ftruncate(fd, 4096)
    return fd


def make_read_only():
    fd = make_memfd(4096)
    again = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    os.close(fd)
    return again


def make_write_sealed():
    fd = make_memfd(4096)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    return fd


@pytest.mark.parametrize(
    "make, size, expected",
    [
        (None, 4096, "SCM_RIGHTS"),
        (lambda: make_memfd(4096, seal=False), 4096, "sealed"),
        (lambda: make_memfd(4096, seal=False, flags=os.MFD_CLOEXEC), 4096, "sealed"),
        (make_pipe, 4096, "memfd"),
        (make_file, 4096, "memfd"),
        (lambda: os.open("/dev/zero", os.O_RDWR), 4096, "memfd"),
        (lambda: os.open("/", os.O_RDONLY), 4096, "memfd"),
        (lambda: socket.socket().detach(), 4096, "memfd"),
        (make_read_only, 4096, "writable"),
        (make_write_sealed, 4096, "writable"),
        (lambda: make_memfd(4096), 4097, "4096"),
        (lambda: make_memfd(4096), 0, "size"),
        (lambda: make_memfd(4096), -1, "size"),
        (lambda: make_memfd(4096), (1 << 63) - 1, "size"),
        (lambda: make_memfd(0), 1, "size"),
    ],
)
def test_shared_memory_that_is_none(daemon, raw, make, size, expected):
    raw.call("sync")  # the daemon has taken the connection
    before = count_fds(daemon.pid)
    fds = [make()] if make else []
    error = raw.fail("shm_open", 1, size, fds=fds)
    for fd in fds:
        os.close(fd)
    assert error.code == "invalid_argument" and expected in str(error), str(error)
    assert count_fds(daemon.pid) <= before
    assert raw.fail("shm_close", 1).code == "not_found"


def test_shared_memory_of_more_than_there_is(raw):
    """A memfd is only a promise: an executor would be unable to map it."""
    raw.make(1, "uint8", [16])
    size = 1 << 60
    fd = make_memfd(size)
    error = raw.fail("shm_open", 1, size, fds=[fd])
    assert error.code == "invalid_argument" and "mapped" in str(error)
    os.close(fd)
    fd = make_memfd(4096)
    raw.call("shm_open", 1, 4096, fds=[fd])
    raw.call("tensor_write", 1, 0, [1, 0, 16])
    os.close(fd)


def test_ids_of_shared_memory_are_taken_once(daemon, raw):
    before = count_fds(daemon.pid)
    fd = make_memfd(4096)
    raw.call("shm_open", 1, 4096, fds=[fd])
    for _ in range(10):
        assert "in use" in str(raw.fail("shm_open", 1, 4096, fds=[fd]))
    os.close(fd)
    assert count_fds(daemon.pid) <= before + 1


# --- clients that go


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
    died = subprocess.run([sys.executable, "-c", DIES, daemon.socket, when], timeout=30)
    assert died.returncode == -signal.SIGKILL

    def settled():
        status = raw.call("status")
        return status["connections"] == 1 and all(d["memory_used"] == 0 for d in status["devices"])

    assert eventually(settled), raw.call("status")


def test_ten_thousand_connections_one_after_the_other(raw, daemon):
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
    assert count_fds(daemon.pid) <= before
    assert read_rss(daemon.pid) < rss + 64 * MIB + SLACK  # 256 at a time, and buffers to read into


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


def read_cpu(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
    raw.notify("tensor_free", [1])
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
