"""Lanes: a client replays its graphs, and makes prepared calls, through memory that it shares with the device's process,
and the broker hears of it later. What becomes of an entry is told by the lane's word, or by a reply; never both, never
none."""

import ctypes
import os
import random
import struct
import threading

import pytest
from conftest import DEVICE, beside
from operators import ADD, COUNT, FAULTY, PICK, both_by, double_by, put_kernels
from raw import Raw, RpcError, eventually, kill_executors_soon, make_memfd
from raw_lane import ASLEEP, AT, DONE, ENTRY, IDLE, REFUSAL, SERIAL, SIZE, SLOT, CallLane, Lane, capture, fours
from upgrades import upgrade


@pytest.fixture
def served(start_daemon, tmp_path):
    folder = put_kernels(
        tmp_path / "kernels", double_it=double_by(2), pick=PICK, add_to=ADD, faulty=FAULTY, both=both_by(2)
    )
    daemon = start_daemon("--kernels", folder)
    daemon.kernels = tmp_path / "kernels"
    return daemon


@pytest.fixture(params=[Lane, CallLane], ids=lambda lane: lane.method)
def lane(request, served):
    """Tensor 1 is x, 2 is sum; 5 makes 300 = 2 x and adds it to the sum."""
    with request.param(served.socket) as lane:
        lane.make(1, "float32", [4], fours(1))
        lane.make(2, "float32", [4], fours(0))
        lane.record(5, "both", [2, 1], [300])
        assert lane.arm(5)
        lane.call("tensor_write", 2, 0, fours(0))
        yield lane


def test_replays_need_no_request(served, lane):
    assert "lane" not in lane.again(5)  # it is armed
    before = lane.call("status")["requests"][lane.method]
    for n in range(1, 100):
        assert lane.run() is None
    assert lane.call("status")["requests"][lane.method] == before + 99
    assert lane.read(2) == (200.0,) * 4
    runs = {r["op"]: r["forward"] for r in lane.call("status")["runs"]}
    assert runs["both"] == 102


def test_graphs_of_several_calls(served, lane):
    capture(lane, 7, ("double_it", [1], [301]), ("add_to", [2, 301], []))
    several = lane.call("replay", 7)["lane"]
    assert lane.arm(5)
    lane.call("tensor_write", 2, 0, fours(0))
    for n in range(1, 20):
        assert lane.run() is None and lane.run(several) is None
        assert lane.read(2) == (4.0 * n,) * 4


def test_requests_see_what_the_lane_did_and_back(lane):
    for n in range(1, 20):
        lane.call("tensor_write", 1, 0, fours(n))
        assert lane.run() is None
        assert lane.read(300) == (2.0 * n,) * 4


def test_an_idle_executor_is_rung(served, lane):
    for _ in range(3):
        assert eventually(lambda: lane.get(ASLEEP) == 1)
        assert lane.run() is None


def test_edits(served, lane):
    with Raw(served.socket) as other:
        for factor in (3, 4, 5):
            put_kernels(served.kernels, both=both_by(factor))
            other.call("reload")
            assert lane.run() is REFUSAL
            assert lane.arm(5)
            for _ in range(3):  # who watches the folder may come after reload()
                assert eventually(lambda: lane.run() is None or (lane.arm(5) and False))
                assert lane.read(300) == (factor,) * 4
        put_kernels(served.kernels, both="//! op nonsense")
        other.call("reload")
        assert lane.run() is REFUSAL  # there is a warning for it
        if lane.method == "call":
            assert lane.call("lane_call", 5, lane.ids[5]) == {}
        assert "not served" in lane.again(5)["warnings"][0]


def test_edits_are_not_overtaken(served, lane):
    """What is begun after reload() has answered runs no old version."""
    told, over = [2], threading.Event()

    def edit():
        with Raw(served.socket) as other:
            for factor in range(3, 9):
                put_kernels(served.kernels, both=both_by(factor))
                other.call("reload")
                told.append(factor)
        over.set()

    thread = threading.Thread(target=edit)
    thread.start()
    while not over.is_set():
        least = told[-1]
        if not lane.armed or lane.run() is REFUSAL:  # it is not armed before an edit's first run is over
            lane.arm(5)
        assert lane.read(300)[0] >= least
    thread.join()


def test_memory_of_others_goes_by_requests(served, lane):
    """As far as others have come to know of it: test_lanes_named.py."""
    with Raw(served.socket) as other:
        other.make(1, "float32", [4], fours(1), name="everybody's")
        lane.call("tensor_attach", 3, "everybody's")
    lane.record(6, "double_it", [3], [400])
    assert lane.arm(6) is None
    capture(lane, 7, ("double_it", [1], [401]), name="a graph")
    assert lane.call("replay", 7) == {}
    assert lane.arm(5) and lane.run() is None
    with Raw(served.socket) as other:
        other.call("graph_attach", 1, "a graph")  # it reads x
        assert lane.run() is REFUSAL
        assert lane.arm(5) is None


def test_a_fault_is_its_own(served, lane):
    lane.make(3, "int32", [1], struct.pack("i", 0))
    lane.record(6, "faulty", [1, 3], [400])
    with Raw(served.socket) as other:
        other.make(1, "float32", [4], fours(1))
        assert lane.arm(6)
        assert lane.run() is None
        lane.call("tensor_write", 3, 0, struct.pack("i", 1))
        error = lane.run()
        assert error["code"] == "kernel_fault" and "faulty" in error["message"]
        other.call("forward", "double_it", [1], {}, [2])
        assert struct.unpack("4f", other.call("tensor_read", 2, 0)) == (2.0,) * 4
    lane.call("tensor_write", 3, 0, struct.pack("i", 0))
    assert lane.fail("tensor_read", 400, 0).code == "invalid_argument"  # suspect
    lane.open()
    lane.call("tensor_write", 2, 0, fours(0))
    assert bool(lane.arm(6)) == (lane.method == "call")  # a graph goes one by one from now on
    assert lane.arm(5)
    lane.call("tensor_write", 2, 0, fours(0))
    assert lane.run() is None and lane.read(2) == (2.0,) * 4


@pytest.mark.parametrize("of", [Lane, CallLane])
def test_a_deadline(start_daemon, tmp_path, of):
    daemon = start_daemon("--kernels", put_kernels(tmp_path / "kernels", count=COUNT), "--deadline", "1")
    with of(daemon.socket) as lane:
        lane.make(1, "float32", [4], fours(1))
        lane.record(5, "count", [1], [2])
        assert lane.arm(5)
        assert lane.run() is None and lane.read(2) == (1.0,) * 4
        lane.call("tensor_write", 1, 0, fours(1e18))
        error = lane.run()  # nobody else wakes the broker
        assert error["code"] == "deadline_exceeded" and "count" in error["message"]


def test_given_up_memory_is_not_written(served, lane):
    """What a lane still names is no other's danger."""
    armed = lane.armed
    if lane.method == "replay":
        lane.call("free", "graph", [5])
    lane.call("free", "tensor", [300, 2])
    with Raw(served.socket) as other:
        for id in range(1, 5):
            other.make(id, "float32", [4], fours(7))
        assert lane.run(armed) is REFUSAL
        for id in range(1, 5):
            assert struct.unpack("4f", other.call("tensor_read", id, 0)) == (7.0,) * 4


def test_calls_whose_tensors_go(served):
    """The lane holds none of them: what is made in their place is another."""
    with CallLane(served.socket) as lane:
        lane.make(1, "float32", [4], fours(1))
        lane.record(5, "double_it", [1], [2])
        held = lane.call("status")["devices"][0]["memory_used"]
        for kind, ids in (("tensor", [2]), ("tensor", [1]), ("prepared", [5])):
            assert lane.arm(5) and lane.run() is None
            lane.call("free", kind, ids)
            assert lane.run() is REFUSAL
            assert (lane.call("status")["devices"][0]["memory_used"] < held) == (kind == "tensor")
            if ids == [1]:
                lane.make(1, "float32", [4], fours(3))
        assert lane.read(2) == (6.0,) * 4


def test_calls_that_lanes_do_not_run(served, lane):
    lane.make(3, "float32", [4], fours(1))
    descs = [["float32", [4]]]
    lane.call("prepare", 6, "forward", "double_it", descs, {})
    assert lane.fail("lane_call", 7, [3, 4]).misfit
    for ids in ([3, 4], [3], [3, 1, 2], [4, 3], [3, 3]):  # 4 is not there
        assert lane.fail("lane_call", 6, ids).code in ("invalid_argument", "not_found")
    lane.call("graph_begin", 8)
    assert lane.call("lane_call", 6, [3, 1]) == {}
    lane.call("free", "graph", [8])
    assert lane.call("lane_call", 6, [3, 1])["lane"]
    for i in range(50, 80):  # all places are taken at some time
        lane.make(i, "float32", [4])
        told = lane.call("lane_call", 6, [3, i])
    assert told == {}
    lane.call("free", "tensor", [*range(50, 80)])
    assert eventually(lambda: lane.call("lane_call", 6, [3, 1]))
    lane.call("free", "shm", [9])
    assert lane.call("lane_call", 6, [3, 1]) == {}


def test_two_lanes(served, lane):
    with type(lane)(served.socket) as other:
        other.make(1, "float32", [4], fours(5))
        other.record(5, "double_it", [1], [2])
        assert other.arm(5)
        assert other.armed[0] != lane.armed[0]
        for _ in range(20):
            both = lane.enter(), other.enter()
            assert lane.end(both[0]) is None and other.end(both[1]) is None
        assert other.run(lane.armed) is REFUSAL and lane.run(other.armed) is REFUSAL
        assert other.read(2) == (10.0,) * 4 and lane.read(2) == (40.0,) * 4


def test_closing(served, lane):
    for bad in ((9, AT, DEVICE), (9, AT + 8, DEVICE), (8, AT, DEVICE), (9, SIZE, DEVICE), (9, AT, "none")):
        assert lane.fail("lane_open", *bad).code in ("invalid_argument", "not_found", "malformed_message")
    lane.call("free", "shm", [9])
    lane.enter()
    assert lane.call("lane_wait", lane.msgid) == {"begun": False, "open": False}
    with type(lane)(served.socket) as again:  # and ends with one that is not told
        again.make(1, "float32", [4], fours(5))
        again.record(5, "double_it", [1], [2])
        again.arm(5)
        again.enter()
    assert "lane" not in lane.again(5)
    if lane.method == "call":
        assert lane.call("lane_call", 5, lane.ids[5]) == {}


def test_asking_whether_it_was_begun(lane):
    assert lane.run() is None
    assert lane.call("lane_wait", lane.msgid) == {"begun": True, "open": True}
    assert lane.run() is REFUSAL  # that has disarmed
    assert lane.call("lane_wait", lane.msgid)["begun"] is False
    assert lane.arm(5) and lane.run() is None


def test_upgrade(served, lane):
    for _ in range(2):
        assert lane.run() is None
        lane.read(300)  # it is known to have run
        last = lane.msgid - 1
        upgrade(served)
        lane.enter()
        assert lane.call("lane_wait", last) == {"begun": True, "open": False}
        assert lane.call("lane_wait", lane.msgid - 2)["begun"] is False
        lane.open()
        assert lane.arm(5) and lane.run() is None


def test_upgrade_before_it_is_told(served, lane):
    """What ran by the lane while the program is tried, and woke nobody: a backward of before that is refused."""
    lane.call("forward", "gelu", [2], {}, [20], {"context": 8})
    assert lane.run() is None  # from now on the broker looks by itself, now and then
    lane.call("forward", "gelu", [2], {}, [21], {"context": 9})
    with Raw(served.socket) as other:
        sent = other.request("upgrade")
        other.call("status")
        ended = lane.run()
        other.wait(sent)
    refused = lane.fail("backward", 9, [1], [22]) if ended is None else None
    assert ended is REFUSAL or "was written after forward" in str(refused)


def test_killed_executors(served, lane):
    """In the midst of it: each replay has happened once, or was not begun, or has failed."""
    total = 0
    for _ in range(3):
        killer = kill_executors_soon(served.pid)
        failed = False
        while killer.is_alive() and not failed:
            failed, ran = replay_once(lane)
            total += ran
        killer.join()
        if failed:
            lane.call("tensor_write", 2, 0, fours(2 * total))
        asked = lane.call("lane_wait", 0)
        if not asked["open"]:
            lane.open()
        assert lane.read(2) == (2.0 * total,) * 4

        def arm():  # not while the one that was killed may still write
            nonlocal total
            total += 1
            return lane.arm(5)

        assert eventually(arm)


def replay_once(lane):
    """(it has failed, it has run). As a client does: by the lane, or else by a request."""
    sent = lane.enter()
    for _ in range(20):
        if lane.get(0) == DONE:
            lane.put(0, IDLE)
            return False, True
        try:
            _, id, error, _ = lane.receive(0.001)
            assert id == sent
            return error is not None, error is None
        except TimeoutError:
            pass
    lane.put(0, IDLE)
    told = {}
    asked = lane.request("lane_wait", sent)
    while asked not in told:
        _, id, error, result = lane.receive()
        told[id] = error, result
    if told[asked][1]["begun"]:
        while sent not in told:
            _, id, error, result = lane.receive()
            told[id] = error, result
        error = told[sent][0]
        return error is not None, error is None
    assert sent not in told
    try:
        lane.again(5)
        return False, True
    except RpcError:
        return True, False


def test_a_hostile_client(served, lane):
    """It writes what it likes there, all the time: an honest one beside it notices nothing."""
    with type(lane)(served.socket) as hostile:
        hostile.make(1, "float32", [4], fours(1))
        hostile.record(5, "double_it", [1], [2])
        hostile.arm(5)

        def scribble(over):
            serials = [hostile.armed[1], lane.armed[1], 0, 2**64 - 1]
            while not over.is_set():
                hostile.put(0, random.choice((0, 1, 2, 3, 0xFFFFFFFF)))
                hostile.put(SLOT, random.choice((*range(20), 0xFFFFFFFF)))
                hostile.put(SERIAL, random.choice(serials), ctypes.c_uint64)
                hostile.put(ENTRY + 4, random.getrandbits(32))
                hostile.put(ENTRY, random.getrandbits(32))
                hostile.put(ASLEEP, random.getrandbits(1))
                try:
                    os.eventfd_write(hostile.bell, random.choice((1, 2**63)))
                except BlockingIOError:
                    os.set_blocking(hostile.bell, random.random() < 0.5)
                    os.set_blocking(hostile.bell, False)
                    os.eventfd_read(hostile.bell)

        with beside(scribble):
            for n in range(1, 100):
                assert lane.run() is None
                assert lane.read(2) == (2.0 * n,) * 4
        hostile.call("free", "shm", [9])
        read, write = os.pipe()
        for wrong in (read, write):
            fd = make_memfd(SIZE)
            hostile.call("shm_open", 9, SIZE, fds=[fd])
            os.close(fd)
            assert hostile.fail("lane_open", 9, AT, DEVICE, fds=[wrong]).code == "invalid_argument"
            hostile.call("free", "shm", [9])
            os.close(wrong)
    assert lane.run() is None
    with Raw(served.socket) as raw:
        assert raw.call("status")["devices"][0]["restarts"] == 0
