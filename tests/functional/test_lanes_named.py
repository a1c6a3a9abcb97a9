"""Lanes to memory that has a name: as if it had none, until somebody else attaches, who waits for what was begun; and a
broker that is killed does not know what was."""

import os
import signal
import socket
import struct
import threading
import time

import pytest
from conftest import eventually
from operators import ADD, COUNT, PICK, both_by, double_by, put_kernels
from raw import Raw, RpcError, await_kernel, count_fds, find_roles, read_cpu
from raw_lane import DONE, IDLE, REFUSAL, CallLane, Lane, capture, fours
from test_keeper import keeper_of, kill
from upgrades import upgrade


HALVE = """\
//! op      halve(Tensor(a!) x) -> ()
//! dtypes  float32
//! shape   x [N]
//! check   low : "x[{index}] is below 0"
//! example x=[4]
//! forward
//!   kernel  halve threads N

__global__ void halve(scalar_t *x, opd::report_t *report, int64_t N)
{
    CUDA_KERNEL_LOOP(i, N)
        if (opd::check(report, low, x[i] >= 0, i))
            x[i] = x[i] / 2;
}
"""
# Adds 1 to x, element by element, and takes its time after each, also where a compiler keeps a volatile local in a
# register and drops it.
CREEP = """\
//! op      creep(Tensor(a!) x, Tensor rounds) -> ()
//! dtypes  float32
//! shape   x [N]
//! shape   rounds [1]
//! example x=[4] rounds=[1]
//
//! forward
//!   kernel  creep
//!   grid    1
//!   block   1

extern "C" __global__ void creep(float *x, const volatile float *rounds, int N)
{
    for (int i = 0; i < N; i++) {
        x[i] += 1;
        for (float n = 0; n < rounds[0]; n += 1)
            ;
    }
}
"""


@pytest.fixture
def start(start_daemon, tmp_path):
    """start(): the next daemon on the same socket, that finds what has a name."""
    folder = put_kernels(
        tmp_path / "kernels",
        double_it=double_by(2),
        pick=PICK,
        add_to=ADD,
        count=COUNT,
        both=both_by(2),
        halve=HALVE,
        creep=CREEP,
    )
    return lambda: start_daemon("--kernels", folder, "--keep", "60", socket=tmp_path / "s")


@pytest.fixture
def served(start):
    return start()


@pytest.fixture(params=[Lane, CallLane], ids=lambda lane: lane.method)
def lane(request, served):
    """Tensor 1 is x; 2 is the sum, which has a name; 5 makes 300 = 2 x and adds it to the sum."""
    with request.param(served.socket) as lane:
        prepare(lane)
        yield lane


def prepare(lane):
    lane.make(1, "float32", [4], fours(1))
    lane.make(2, "float32", [4], fours(0), name="sum")
    lane.record(5, "both", [2, 1], [300])
    assert lane.arm(5)
    lane.call("tensor_write", 2, 0, fours(0))


def read(raw, id):
    return struct.unpack("4f", raw.call("tensor_read", id, 0))


def suspects(raw):
    return {t["name"]: t["suspect"] for t in raw.call("tensor_list") if t["name"]}


def run(lane, id):
    """As a client does; by the lane, or else by a request."""
    if not lane.armed or lane.run() is REFUSAL:
        lane.again(id)
        lane.armed = None


def test_a_name_alone_is_nobodys(served, lane):
    before = lane.call("status")["requests"][lane.method]
    with Raw(served.socket) as other:
        for n in range(1, 50):
            assert lane.run() is None
            if n == 20:  # to know that it is there is not to have it
                assert "sum" in suspects(other)
                assert other.fail("tensor_read", 2, 0).code == "not_found"
    assert lane.read(2) == (98.0,) * 4
    assert lane.call("status")["requests"][lane.method] == before + 49


def test_who_attaches_ends_it(served, lane):
    assert lane.run() is None
    with Raw(served.socket) as other:
        other.call("tensor_attach", 7, "sum")
        assert lane.run() is REFUSAL
        assert not lane.arm(5)  # which has run it, if it is a replay or call
        for n in range(10):
            other.call("tensor_write", 7, 0, fours(n))
            lane.again(5)
            assert read(other, 7) == (n + 2.0,) * 4
            other.call("forward", "add_to", [7, 7], {}, [])
            assert lane.read(2) == (2 * n + 4.0,) * 4
    lane.again(5)
    assert not lane.arm(5)  # that one has gone, and may have told others: it stays so


def test_ones_own_second_id_is_nobodys(served, lane):
    lane.call("tensor_attach", 8, "sum")
    assert lane.run() is None
    lane.call("tensor_write", 8, 0, fours(5))
    assert lane.run() is None and lane.read(2) == (7.0,) * 4


def test_another_of_that_name(served, lane):
    """The name goes to other memory, which others attach to: what is armed names the one before."""
    if lane.method == "call":
        lane.call("free", "tensor", [2])
        assert lane.run() is REFUSAL  # its tensor has gone
        return
    lane.call("free", "tensor", [2])
    lane.make(2, "float32", [4], fours(0), name="sum")
    with Raw(served.socket) as other:
        other.call("tensor_attach", 7, "sum")
        other.call("tensor_write", 7, 0, fours(9))
        assert lane.run() is None
        assert read(other, 7) == (9.0,) * 4 and lane.read(2) == (9.0,) * 4
        assert lane.read(300) == (2.0,) * 4


def test_who_attaches_waits_for_what_was_begun(served, lane):
    """And what it sends with that comes behind."""
    for i, n in enumerate((1e6, 2e6, 3e6)):
        lane.make(10 + i, "float32", [4], fours(1), name=f"steps {i}")
        lane.record(20 + i, "count", [10 + i], [400 + i])
        assert lane.arm(20 + i)
        assert lane.run() is None
        lane.call("tensor_write", 10 + i, 0, fours(n))
        sent = lane.enter()
        with Raw(served.socket) as other:
            ids = other.together(("tensor_attach", 7, f"steps {i}"), ("tensor_write", 7, 0, fours(7)))
            for id in ids:
                other.wait(id)
            end = lane.end(sent)
            assert end is None or end is REFUSAL or "code" not in end
            assert read(other, 7) == (7.0,) * 4
        assert lane.read(400 + i)[0] == (1 if end is REFUSAL else n)


def test_who_attaches_to_a_graph_waits_for_what_was_begun(served, lane):
    """By another graph or call, on memory that this one writes."""
    lane.make(10, "float32", [4], fours(1))
    capture(lane, 30, ("add_to", [10, 10], []), name="doubles")
    lane.record(20, "count", [10], [400])
    assert lane.arm(20) and lane.run() is None
    lane.call("tensor_write", 10, 0, fours(8e6))
    executor = find_roles(served.pid, "executor")[0]
    before = read_cpu(executor)
    sent = lane.enter()
    await_kernel(executor, before)
    with Raw(served.socket) as other:
        other.call("graph_attach", 7, "doubles")
        assert lane.get(0) == DONE
        assert lane.end(sent) is None and lane.run() is REFUSAL and not lane.arm(20)
        other.call("replay", 7)
        lane.again(20)
        assert lane.read(400) == (16e6,) * 4


def test_a_client_that_goes_amid_an_entry(served, lane):
    """What has a name is written all the same, by what the broker has not heard of: where that fails it is half done,
    and neither done again nor taken for good."""
    lane.make(10, "float32", [1000], struct.pack("1000f", *range(1000)), name="creeps")
    lane.make(11, "float32", [1], struct.pack("f", 0))
    lane.record(6, "creep", [10, 11], [])
    assert lane.arm(6) and lane.run() is None
    lane.call("tensor_write", 11, 0, struct.pack("f", 1e7))
    executor = find_roles(served.pid, "executor")[0]
    with Raw(served.socket) as other:
        other.call("status")
        before = count_fds(served.pid)
        lane.enter()
        await_kernel(executor)
        lane.sock.shutdown(socket.SHUT_RDWR)
        assert eventually(lambda: count_fds(served.pid) < before)  # a request would have it look
        os.kill(executor, signal.SIGKILL)
        other.call("tensor_attach", 7, "creeps")
        assert "creep" in str(other.fail("tensor_read", 7, 0))


def test_attached_amid_replays(served, lane):
    """One client adds 2 all the time, another attaches at some time, and adds 1000s: none is lost, none happens twice."""
    over, errors, done = threading.Event(), [], [0]

    def replay():
        try:
            while not over.is_set():
                run(lane, 5)
                done[0] += 1
        except BaseException as e:
            errors.append(e)
            raise

    thread = threading.Thread(target=replay)
    thread.start()
    try:
        time.sleep(0.2)
        with Raw(served.socket) as other:
            other.make(1, "float32", [4], fours(1000))
            least = done[0]
            other.call("tensor_attach", 7, "sum")
            for n in range(1, 40):
                other.call("forward", "add_to", [7, 1], {}, [])
                seen, most = read(other, 7)[0] - 1000 * n, done[0] + 1
                assert 2 * least <= seen <= 2 * most
                least = seen / 2
    finally:
        over.set()
        thread.join()
    assert not errors
    assert lane.read(2)[0] == 2 * done[0] + 1000 * 39


def test_upgrades(served, lane):
    for _ in range(2):
        assert lane.run() is None
        upgrade(served)
        assert lane.read(2)[0] % 2 == 0
        lane.open()
        assert lane.arm(5) and lane.run() is None
    with Raw(served.socket) as other:
        other.call("tensor_attach", 7, "sum")
        assert lane.run() is REFUSAL
        upgrade(served)
        lane.open()
        assert not lane.arm(5)
        lane.again(5)
        assert read(other, 7) == lane.read(2)


def test_upgrades_with_what_only_calls_hold(served, lane):
    """The memory that a check reports in is nobody's but the lane's: the daemon's state does not have it."""
    lane.make(3, "float32", [5, 3], struct.pack("15f", *range(15)))
    lane.make(4, "int64", [1], struct.pack("q", 4))
    lane.record(6, "pick", [3, 4], [400])
    for _ in range(2):
        assert lane.arm(6) and lane.run() is None
        upgrade(served)
        lane.open()


def test_a_check_fails_as_by_a_request(lane):
    """What an operator's `check` says is told by a reply; what comes later is armed again."""
    lane.make(3, "float32", [5, 3], struct.pack("15f", *range(15)))
    lane.make(4, "int64", [1], struct.pack("q", 4))
    lane.record(6, "pick", [3, 4], [400])
    assert lane.arm(6) and lane.run() is None
    for n in range(3):
        lane.call("tensor_write", 4, 0, struct.pack("q", 9 + n))
        error = lane.run()
        assert error["code"] == "invalid_argument" and "row 0 of rows is not below 5" in error["message"]
        assert lane.run() is REFUSAL
        if lane.method == "replay":
            assert error["message"] in str(lane.fail("replay", 6))
        lane.call("tensor_write", 4, 0, struct.pack("q", n))
        assert lane.arm(6) and lane.run() is None
        value = struct.unpack("3f", lane.call("tensor_read", 400, 0))
        assert value == (3.0 * n, 3.0 * n + 1, 3.0 * n + 2)


def test_what_a_check_has_refused_is_not_suspect(lane):
    """As by a request: its kernel has run, and what it has not refused it has done."""
    lane.make(3, "float32", [4], struct.pack("4f", 1, -2, 3, 4))
    with pytest.raises(RpcError, match=r"x\[1\] is below 0"):
        lane.call("forward", "halve", [3], {}, [])
    assert read(lane, 3) == (0.5, -2, 1.5, 2)
    lane.call("tensor_write", 3, 0, struct.pack("4f", 1, 2, 3, 4))
    lane.record(6, "halve", [3], [])
    assert lane.arm(6)
    lane.call("tensor_write", 3, 0, struct.pack("4f", 1, -2, 3, 4))
    error = lane.run()
    assert error["code"] == "invalid_argument" and "x[1] is below 0" in error["message"]
    assert read(lane, 3) == (0.5, -2, 1.5, 2)


@pytest.mark.parametrize("of", [Lane, CallLane])
@pytest.mark.parametrize("rests", [False, True])
def test_a_killed_broker(start, of, rests):
    """What a lane may write at any time is suspect then; not where nothing had come for a while."""
    first = start()
    with of(first.socket) as lane:
        prepare(lane)
        lane.make(3, "float32", [4], fours(3), name="read only")
        lane.record(6, "double_it", [3], [400])
        armed = lane.arm(6)
        assert armed and lane.run(armed) is None
        assert lane.arm(5) and lane.run() is None
        last = lane.read(2)
        if rests:  # and is armed by the next
            assert eventually(lambda: lane.run() is REFUSAL or time.sleep(1.5))
            lane.arm(5)
            last = lane.read(2)
            time.sleep(3)
        kill(first)
    with start().connect() as client:
        listed = {t["name"]: t["suspect"] for t in client.tensors()}
        assert sorted(listed) == ["read only", "sum"] and listed["read only"] is None
        assert client.attach("read only").numpy().tolist() == [3] * 4
        total = client.attach("sum")
        if rests:
            assert listed["sum"] is None and total.numpy().tolist() == list(last)
        else:
            assert "killed" in listed["sum"]
            total.accept()
            assert total.numpy().tolist() == list(last)


def test_a_killed_broker_amid_entries(start):
    """The device's process goes on for a while, and nobody knows."""
    first = start()
    with Lane(first.socket) as lane:
        prepare(lane)
        keeper_of(first)
        first.process.send_signal(signal.SIGSTOP)
        for _ in range(5):
            sent = lane.enter()
            assert eventually(lambda: lane.get(0) == DONE), sent
            lane.put(0, IDLE)
        kill(first, keeper_is_known=True)
    with start().connect() as client:
        total = client.attach("sum")
        assert "killed" in total.suspect
        total.accept()
        assert total.numpy()[0] == 10
