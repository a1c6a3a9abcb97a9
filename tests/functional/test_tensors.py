"""Tensors over the wire: bytes, names, views, shared memory, the order of requests."""

import mmap
import os
import struct

import msgpack
import numpy as np
import pytest

from raw import DTYPES, Raw, RpcError, eventually, make_memfd, pack_request

BIG = 200 << 20


@pytest.fixture
def raw(daemon):
    with Raw(daemon.socket) as raw:
        yield raw


def read_used(raw):
    """Bytes and number of tensors on all devices."""
    devices = raw.call("status")["devices"]
    return sum(d["memory_used"] for d in devices), sum(d["tensors"] for d in devices)


def random_bytes(size):
    return np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [[], [1], [0], [7], [3, 0, 2], [2, 3, 5], [1] * 16])
def test_bytes_come_back(raw, dtype, shape):
    size = int(np.prod(shape)) * DTYPES[dtype]
    info = raw.call("tensor_new", 1, dtype, shape)
    device = raw.call("hello")["default_device"]
    assert info == {
        "id": 1, "dtype": dtype, "shape": shape, "device": device, "name": None, "bytes": size,
        "suspect": None,
    }  # fmt: skip
    assert raw.call("tensor_info", 1) == info
    assert raw.call("tensor_read", 1, 0) == bytes(size)
    data = random_bytes(size)
    assert raw.call("tensor_write", 1, 0, data) is None
    assert raw.call("tensor_read", 1, 0, None) == data
    assert raw.call("tensor_read", 1, 0, size, None) == data


def test_the_daemons_dtypes_are_these(raw):
    assert set(raw.call("hello")["dtypes"]) == set(DTYPES)


def test_rank_17_and_other_wrong_shapes(raw):
    assert "rank 17" in str(raw.fail("tensor_new", 1, "float32", [1] * 17))
    assert "negative" in str(raw.fail("tensor_new", 1, "float32", [2, -1]))
    assert "a float" in str(raw.fail("tensor_new", 1, "float32", [2, 1.5]))
    assert "2^48" in str(raw.fail("tensor_new", 1, "float32", [1 << 62]))
    assert "2^48" in str(raw.fail("tensor_new", 1, "float32", [0, 1 << 24, 1 << 24]))
    assert "dtype" in str(raw.fail("tensor_new", 1, "float33", [2]))
    assert raw.fail("tensor_info", 1).code == "not_found"


def test_zeroed_although_the_memory_was_used_before(raw):
    for _ in range(3):
        raw.make(1, "uint8", [100000], b"\xff" * 100000)
        raw.call("free", "tensor", [1])
        raw.make(1, "uint8", [100000])
        assert raw.call("tensor_read", 1, 0) == bytes(100000)
        raw.call("free", "tensor", [1])


def test_a_part_is_written_and_read(raw):
    data = bytearray(random_bytes(1001))
    raw.make(1, "uint8", [1001], bytes(data))
    raw.call("tensor_write", 1, 333, b"hello")
    data[333:338] = b"hello"
    raw.call("tensor_write", 1, 1001, b"")
    assert raw.call("tensor_read", 1, 0) == data
    assert raw.call("tensor_read", 1, 330, 11) == data[330:341]
    assert raw.call("tensor_read", 1, 990) == data[990:]
    assert raw.call("tensor_read", 1, 1001) == b""


@pytest.mark.parametrize(
    "offset, size", [(0, 5), (4, 1), (5, 0), (-1, 1), (1, 1 << 62), (1 << 62, 1)]
)
def test_parts_outside(raw, offset, size):
    raw.make(1, "uint8", [4], b"abcd")
    assert raw.fail("tensor_read", 1, offset, size).code == "invalid_argument"
    if size < 10:
        assert raw.fail("tensor_write", 1, offset, bytes(size)).code == "invalid_argument"
    assert raw.call("tensor_read", 1, 0) == b"abcd"


def test_a_view_shares_memory(raw):
    raw.make(1, "int32", [4, 6], struct.pack("24i", *range(24)))
    used, n = read_used(raw)
    info = raw.call("tensor_view", 2, 1, 6, [2, 3])
    assert (info["id"], info["shape"], info["dtype"], info["bytes"]) == (2, [2, 3], "int32", 24)
    assert read_used(raw) == (used, n + 1)
    assert raw.call("tensor_read", 2, 0) == struct.pack("6i", *range(6, 12))
    raw.call("tensor_write", 2, 4, struct.pack("i", -1))
    assert raw.call("tensor_read", 1, 28, 4) == struct.pack("i", -1)
    raw.call("tensor_view", 3, 2, 5, [])
    raw.call("free", "tensor", [1, 2])
    assert raw.call("tensor_read", 3, 0) == struct.pack("i", 11)
    raw.call("tensor_view", 4, 3, 1, [0])
    assert raw.call("tensor_read", 4, 0) == b""


@pytest.mark.parametrize(
    "offset, shape", [(0, [25]), (24, [1]), (-1, [1]), (25, [0]), (1 << 62, [1 << 40])]
)
def test_views_outside(raw, offset, shape):
    raw.make(1, "int32", [4, 6])
    assert raw.fail("tensor_view", 2, 1, offset, shape).code == "invalid_argument"
    assert raw.fail("tensor_info", 2).code == "not_found"


def test_views_need_an_unused_id(raw):
    raw.make(1, "int32", [4])
    assert "in use" in str(raw.fail("tensor_view", 1, 1, 0, [4]))
    assert raw.fail("tensor_view", 2, 3, 0, [4]).code == "not_found"


def test_list_has_what_is_named_and_what_is_ours(raw, daemon):
    with Raw(daemon.socket) as other:
        raw.make(1, "float32", [2])
        raw.make(2, "float64", [3], name="listed")
        other.make(7, "int8", [5])
        other.call("tensor_attach", 8, "listed")
        by_name = {t["name"]: t for t in raw.call("tensor_list")}
        assert by_name[None]["id"] == 1 and by_name[None]["ids"] == 1
        assert by_name["listed"]["shape"] == [3] and by_name["listed"]["ids"] == 2
        assert len(raw.call("tensor_list")) == 2
        assert {t["name"]: t["shape"] for t in other.call("tensor_list")} == {
            "listed": [3],
            None: [5],
        }
        other.call("free", "tensor", [8])
        assert [t["name"] for t in raw.call("tensor_list")].count("listed") == 0
        assert raw.call("tensor_info", 2)["name"] is None  # our id is still good


def test_a_named_tensor_outlives_its_clients_and_is_shared(raw, daemon):
    used, n = read_used(raw)
    with Raw(daemon.socket) as first:
        first.make(1, "int32", [2], struct.pack("2i", 1, 2), name="lasting")
        assert first.call("tensor_info", 1)["name"] == "lasting"
    assert eventually(lambda: raw.call("status")["connections"] == 1)
    with Raw(daemon.socket) as second, Raw(daemon.socket) as third:
        info = second.call("tensor_attach", 5, "lasting")
        assert (info["id"], info["name"], info["shape"]) == (5, "lasting", [2])
        third.call("tensor_attach", 6, "lasting")
        second.call("tensor_write", 5, 0, struct.pack("i", 9))
        assert third.call("tensor_read", 6, 0) == struct.pack("2i", 9, 2)
    raw.call("tensor_attach", 1, "lasting")
    raw.call("tensor_attach", 2, "lasting")  # two ids of one client are fine
    raw.call("free", "tensor", [1])
    assert raw.fail("tensor_attach", 3, "lasting").code == "not_found"
    assert raw.call("tensor_read", 2, 0) == struct.pack("2i", 9, 2)
    raw.call("free", "tensor", [2])
    assert read_used(raw) == (used, n)


def test_name_clashes(raw, daemon):
    with Raw(daemon.socket) as other:
        raw.make(1, "int8", [1], name="taken")
        error = other.fail("tensor_new", 1, "int8", [1], "taken")
        assert error.code == "invalid_argument" and "attach" in str(error) and "free" in str(error)
        assert other.fail("tensor_info", 1).code == "not_found"
        raw.call("free", "tensor", [1])
        other.make(1, "int8", [1], name="taken")
        other.call("free", "tensor", [1])


@pytest.mark.parametrize(
    "name", ["", "x" * 256, "a\0b", b"\xff\xfe".decode("utf-8", "surrogateescape")]
)
def test_names_that_cannot_be(raw, name):
    data = msgpack.packb(
        [0, 1, "tensor_new", [1, "int8", [1], name]], unicode_errors="surrogateescape"
    )
    raw.send(data)
    with pytest.raises(RpcError, match="name"):
        raw.wait(1)
    assert raw.call("tensor_list") == []


def test_the_longest_name(raw):
    name = "é" * 127
    raw.make(1, "int8", [1], name=name)
    assert raw.call("tensor_list")[0]["name"] == name
    raw.call("free", "tensor", [1])


def test_what_has_no_name_goes_with_its_client(raw, daemon):
    before = read_used(raw)
    with Raw(daemon.socket) as other:
        for id in range(1, 50):
            other.make(id, "float32", [1000 * id])
        other.call("tensor_view", 100, 1, 0, [10])
        used, n = read_used(raw)
        assert n == before[1] + 50 and used > before[0] + 4000 * 49 * 25
        assert len(raw.call("tensor_list")) == 0
    assert eventually(lambda: read_used(raw) == before), read_used(raw)
    assert before == (0, 0)


def test_ids_belong_to_a_connection(raw, daemon):
    with Raw(daemon.socket) as other:
        raw.make(1, "int8", [1], b"a")
        other.make(1, "int8", [1], b"b")
        raw.make(2, "int8", [1])
        assert raw.call("tensor_read", 1, 0) == b"a" and other.call("tensor_read", 1, 0) == b"b"
        assert other.fail("tensor_read", 2, 0).code == "not_found"
        assert other.fail("free", "tensor", [2]).code == "not_found"


@pytest.mark.parametrize("id", [1, 127, 128, 65536, (1 << 32) + 1, (1 << 63) - 1])
def test_ids_of_every_length(raw, id):
    raw.make(id, "int8", [1], b"a")
    assert raw.call("tensor_read", id, 0) == b"a"
    raw.call("free", "tensor", [id])
    assert raw.fail("free", "tensor", [id]).code == "not_found"


def test_freeing_is_all_or_nothing_and_twice_is_once(raw):
    raw.make(1, "int8", [1])
    raw.make(2, "int8", [1])
    assert raw.fail("free", "tensor", [1, 3]).code == "not_found"
    assert raw.call("tensor_info", 1)
    raw.call("free", "tensor", [1, 2, 1])
    assert raw.fail("tensor_info", 1).code == "not_found"
    raw.call("free", "tensor", [])


def test_an_id_is_used_before_its_reply(raw):
    requests = [
        ("tensor_new", 1, "float32", [1000]),
        ("tensor_write", 1, 0, bytes(range(250)) * 16),
        ("tensor_view", 2, 1, 250, [250]),
        ("tensor_read", 2, 0),
        ("forward", "gelu", [1], {}, [3]),
        ("tensor_view", 4, 3, 0, [500]),
        ("free", "tensor", [1, 3]),
        ("forward", "gelu", [4], {}, [5]),
        ("tensor_info", 5),
    ]
    raw.send(b"".join(pack_request(i, m, p) for i, (m, *p) in enumerate(requests)))
    assert raw.wait(3) == bytes(range(250)) * 4
    assert raw.wait(8)["shape"] == [500]
    for i in (0, 1, 2, 4, 5, 6, 7):
        raw.wait(i)


def test_what_a_failed_request_would_have_made_is_not_there(raw):
    requests = [
        ("forward", "gelu", [99], {}, [1], {"context": 1}),
        ("forward", "gelu", [1], {}, [2]),
        ("tensor_read", 2, 0),
        ("backward", 1, [None], [3]),
        ("tensor_new", 1, "int8", [1]),
    ]
    raw.send(b"".join(pack_request(i, m, p) for i, (m, *p) in enumerate(requests)))
    for i in range(4):
        with pytest.raises(RpcError) as error:
            raw.wait(i)
        assert error.value.code == "not_found"
    assert raw.wait(4)["id"] == 1


def test_answers_of_the_broker_overtake_the_devices(raw):
    """Replies are told apart by their ids, not by their order."""
    raw.make(1, "float32", [8 << 20])
    raw.call("forward", "gelu", [1], {}, [2])  # it is compiled now
    raw.call("free", "tensor", [2])
    raw.send(
        pack_request(1001, "forward", ("gelu", [1], {}, [2])) + pack_request(1002, "status", ())
    )
    order = [raw.receive()[1], raw.receive()[1]]
    assert sorted(order) == [1001, 1002]
    assert order == [1002, 1001]


def test_sync_comes_after_all_that_was_sent_before(raw):
    raw.make(1, "float32", [4 << 20])
    requests = [("forward", "gelu", [1], {}, [2 + i]) for i in range(8)]
    data = [pack_request(1000 + i, m, p) for i, (m, *p) in enumerate(requests)]
    raw.send(b"".join([*data, pack_request(2000, "sync", ()), pack_request(2001, "status", ())]))
    order = [raw.receive()[1] for _ in range(10)]
    assert order[:8] == list(range(1000, 1008)) and order[8] == 2000


# --- shared memory


def open_shm(raw, id, size):
    fd = make_memfd(size)
    raw.call("shm_open", id, size, fds=[fd])
    memory = mmap.mmap(fd, size)
    os.close(fd)
    return memory


def test_through_shared_memory(raw):
    memory = open_shm(raw, 1, 8192)
    memory[100:110] = b"0123456789"
    raw.make(1, "uint8", [20])
    assert raw.call("tensor_write", 1, 5, [1, 100, 10]) is None
    assert raw.call("tensor_read", 1, 0) == b"\0" * 5 + b"0123456789" + b"\0" * 5
    assert raw.call("tensor_read", 1, 6, 8, [1, 8184]) is None
    assert memory[8184:] == b"12345678"
    assert raw.call("tensor_read", 1, 0, None, [1, 0]) is None
    assert memory[5:15] == b"0123456789"
    assert raw.call("tensor_write", 1, 20, [1, 8192, 0]) is None
    assert raw.call("free", "shm", [1]) is None
    assert raw.fail("tensor_write", 1, 0, [1, 0, 1]).code == "not_found"


@pytest.mark.parametrize(
    "where",
    [
        [1, 8190, 3],
        [1, -1, 1],
        [1, 0, -1],
        [1, 1 << 62, 1],
        [1, 0],
        [1],
        [],
        [1, "0", 1],
        [1, 0, 1.0],
    ],
)
def test_outside_shared_memory(raw, where):
    open_shm(raw, 1, 8192)
    raw.make(1, "uint8", [20])
    assert raw.fail("tensor_write", 1, 0, where).code == "invalid_argument"
    if len(where) == 3 and isinstance(where[2], int) and where[2] > 0:
        assert raw.fail("tensor_read", 1, 0, where[2], where[:2]).code == "invalid_argument"


def test_two_shared_memories_and_one_twice(raw):
    first, second = open_shm(raw, 1, 4096), open_shm(raw, 2, 4096)
    raw.make(1, "uint8", [4])
    first[:4], second[:4] = b"aaaa", b"bbbb"
    raw.call("tensor_write", 1, 0, [1, 0, 2])
    raw.call("tensor_write", 1, 2, [2, 0, 2])
    assert raw.call("tensor_read", 1, 0) == b"aabb"
    fd = make_memfd(4096)
    assert "in use" in str(raw.fail("shm_open", 1, 4096, fds=[fd]))
    os.close(fd)
    raw.call("free", "shm", [1])
    third = open_shm(raw, 1, 4096)
    third[:4] = b"cccc"
    raw.call("tensor_write", 1, 0, [1, 0, 4])
    assert raw.call("tensor_read", 1, 0) == b"cccc"
    assert raw.fail("free", "shm", [9]).code == "not_found"


def test_closed_while_it_is_read_into(raw):
    memory = open_shm(raw, 1, 32 << 20)
    memory[:] = b"\x07" * len(memory)
    raw.make(1, "uint8", [32 << 20])
    ids = [raw.request("tensor_write", 1, 0, [1, 0, 32 << 20]), raw.request("free", "shm", [1])]
    for id in ids:
        raw.wait(id)
    assert raw.call("tensor_read", 1, (32 << 20) - 3) == b"\x07" * 3


def test_200_mb_through_shared_memory(raw):
    memory = open_shm(raw, 1, BIG)
    view = np.frombuffer(memory, np.uint8)
    view[:] = np.random.default_rng(1).integers(0, 256, 1 << 20, np.uint8).repeat(BIG >> 20)
    expected = view[::4099].copy()
    raw.make(1, "float32", [BIG // 4])
    raw.call("tensor_write", 1, 0, [1, 0, BIG])
    view[:] = 0
    raw.call("tensor_read", 1, 0, BIG, [1, 0])
    assert np.array_equal(view[::4099], expected)
    del view


def test_200_mb_through_messages(raw):
    raw.make(1, "uint8", [BIG])
    piece = (64 << 20) - 8192
    data = random_bytes(1 << 20) * 65
    assert raw.fail("tensor_read", 1, 0, BIG).code == "invalid_argument"
    sent = [
        raw.request("tensor_write", 1, at, data[: min(piece, BIG - at)])
        for at in range(0, BIG, piece)
    ]
    for id in sent:
        raw.wait(id)
    for at in range(0, BIG, piece):
        size = min(piece, BIG - at)
        assert raw.call("tensor_read", 1, at, size) == data[:size]


def test_a_message_of_the_largest_size(raw):
    limit = raw.call("hello")["limits"]["max_message"]
    raw.make(1, "uint8", [limit])
    frame = len(pack_request(9, "tensor_write", (1, 0, bytes(1 << 16)))) - (1 << 16)
    for size in (limit - frame - 4096, limit - frame):
        raw.send(pack_request(9, "tensor_write", (1, 0, b"\x05" * size)))
        raw.wait(9)
    assert raw.call("tensor_read", 1, size - 2, 3) == b"\x05\x05\0"


def test_the_message_that_came_with_a_descriptor_decides_whose_it_is(raw):
    """A descriptor is not shifted to a later request, nor lost when many requests come at once."""
    fds = [make_memfd(4096) for _ in range(8)]
    for i, fd in enumerate(fds):
        os.pwrite(fd, bytes([65 + i]) * 4096, 0)
    raw.make(1, "uint8", [8])
    ids = []
    for i, fd in enumerate(fds):
        ids.append(raw.request("shm_open", 1 + i, 4096, fds=[fd]))
        ids.append(raw.request("tensor_write", 1, i, [1 + i, 0, 1]))
        os.close(fd)
    for id in ids:
        raw.wait(id)
    assert raw.call("tensor_read", 1, 0) == b"ABCDEFGH"


def test_everything_is_given_back(raw, daemon):
    """Last: nothing that the tests above did is left."""
    assert eventually(lambda: raw.call("status")["connections"] == 1)
    assert read_used(raw) == (0, 0)
    assert raw.call("tensor_list") == []
    assert eventually(lambda: all(d["queued"] == 0 for d in raw.call("status")["devices"]))
