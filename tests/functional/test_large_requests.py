"""Large requests are done in parts, so that no other client waits for one."""

import re
import select
import threading

import pytest
from raw import Raw, eventually

MIB = 1 << 20
MILLION = list(range(1 << 40, (1 << 40) + 1_000_000))


def count_parts(raw):
    return int(re.search(r"^opd_request_parts_total (\d+)$", raw.call("metrics"), re.M)[1])


def make_nothing(raw):
    raw.make(1, "float32", [8])


def make_bytes(raw):
    raw.make(1, "uint8", [60 * MIB])


def make_many(raw):
    for first in range(100, 6100, 1000):
        for request in [raw.request("tensor_new", first + i, "int8", [1]) for i in range(1000)]:
            raw.wait(request)


# What it needs, the request, and how many parts are behind the first one.
LARGE = {
    "drop": (make_nothing, ["free", "tensor", MILLION, {"drop": True}], 488),
    "free": (make_nothing, ["free", "tensor", [1] * 1_000_000], 488),
    "accept": (make_nothing, ["tensor_accept", [1] * 1_000_000], 488),
    "write": (make_bytes, ["tensor_write", 1, 0, b"x" * (60 * MIB)], 59),
    "read": (make_bytes, ["tensor_read", 1, 0], 59),
    "list": (make_many, ["tensor_list"], 11),
}


@pytest.fixture
def own(start_daemon):
    """A daemon that nobody else asks for anything."""
    daemon = start_daemon()
    with Raw(daemon.socket) as other:
        other.make(1, "float32", [8])
        other.daemon = daemon
        yield other


@pytest.mark.parametrize("what", LARGE)
def test_others_are_served_in_between(own, what):
    """Another's requests are answered while it is half done."""
    prepare, request, parts = LARGE[what]
    seen = set()
    for _ in range(20):
        assert eventually(lambda: own.call("status")["devices"][0]["tensors"] == 1)  # of the client before, none
        with Raw(own.daemon.socket) as large:
            prepare(large)
            before = count_parts(own)
            sender = threading.Thread(target=large.request, args=request)  # more than a socket holds
            sender.start()
            while not select.select([large.sock], [], [], 0)[0]:
                seen.add(count_parts(own) - before)
            sender.join()
            large.wait(large.msgid)
            assert count_parts(own) - before == parts
        if len(seen - {0, parts}) >= 5:
            break
    assert len(seen - {0, parts}) >= 5, seen


def test_what_comes_out_is_whole(own):
    with Raw(own.daemon.socket) as large:
        data = bytes(range(251)) * (20 * MIB // 251)
        large.make(1, "uint8", [len(data)], data)
        # Small replies, before and behind large ones that are packed meanwhile.
        requests = [large.request("tensor_read", 1, 0, 5) for _ in range(3)]
        requests += [large.request("tensor_read", 1, i) for i in range(3)]
        requests += [large.request("tensor_info", 1) for _ in range(3)]
        replies = [large.wait(request) for request in requests]
        assert replies[:3] == [data[:5]] * 3
        assert all(replies[3 + i] == data[i:] for i in range(3))
        make_many(large)
        listed = large.call("tensor_list")
        assert len(listed) == 6001 and len({t["id"] for t in listed}) == 6001
        assert large.call("free", "tensor", [t["id"] for t in listed]) is None
        assert large.call("tensor_list") == []
        assert large.fail("free", "tensor", [1] * 100_000).code == "not_found"


def test_nothing_is_freed_unless_all_is_there(own):
    with Raw(own.daemon.socket) as large:
        make_many(large)
        ids = list(range(100, 6100))
        assert large.fail("free", "tensor", [*ids, 99]).code == "not_found"
        assert len(large.call("tensor_list")) == 6000
        large.call("free", "tensor", ids)


def test_a_client_with_many_tensors_is_gone(own):
    """What it had is freed in turns of 4,096, and all of it; the daemon stops without waiting for a client."""
    used = own.call("status")["devices"][0]["memory_used"]
    for stop in (False, True):
        with Raw(own.daemon.socket) as large:
            large.make(1, "int8", [1])
            for first in range(100, 13100, 1000):
                requests = [large.request("tensor_view", first + i, 1, 0, [1]) for i in range(1000)]
                for request in requests:
                    large.wait(request)
            before = count_parts(own)
        if stop:
            own.daemon.stop()
        else:
            assert eventually(lambda: own.call("status")["devices"][0]["memory_used"] == used)
            assert own.call("status")["devices"][0]["tensors"] == 1
            assert count_parts(own) - before == 3  # 13,001 tensors: the fourth turn ends it


@pytest.mark.parametrize("what", LARGE)
def test_who_asked_is_gone(own, what):
    """In the middle of it: what it held is free again."""
    prepare, request, _ = LARGE[what]
    for _ in range(3):
        with Raw(own.daemon.socket) as large:
            prepare(large)
            before = count_parts(own)
            sender = threading.Thread(target=send, args=(large, request))
            sender.start()
            assert eventually(lambda: count_parts(own) > before)
            large.sock.shutdown(2)
            sender.join()
    assert eventually(lambda: own.call("status")["devices"][0]["tensors"] == 1)
    with Raw(own.daemon.socket) as after:  # all staging memory is there
        make_bytes(after)
        after.call("tensor_write", 1, 0, b"y" * (60 * MIB))
        assert after.call("tensor_read", 1, 60 * MIB - 3) == b"yyy"


def send(large, request):
    try:
        large.request(*request)
    except OSError:
        pass  # it is gone


def test_an_upgrade_waits_for_it(own):
    with Raw(own.daemon.socket) as large:
        make_many(large)
        before = count_parts(own)
        # Some are freed, and then the last ids are looked for once more.
        request = large.request("free", "tensor", list(range(100, 6100)) * 40)
        assert eventually(lambda: count_parts(own) > before)
        assert own.call("upgrade")["upgrades"] == 1
        assert large.wait(request) is None
        assert large.call("tensor_list") == []
