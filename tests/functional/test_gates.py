"""What a request costs the broker, and the client in Python, does not grow unnoticed. tests/bench/gates.json says what
it was: where a change makes requests cheaper, or rightly dearer, `make gates` writes it anew."""

import itertools
import json
import math
import platform
import sys
import time
from importlib.metadata import version

import pytest
from conftest import DEVICE, ROOT, find_family
from counts import CLIENT_KINDS, CountedClient, CountedDaemon, Requests, Unable, count_calls, count_torch, fill_folder
from raw import Raw, find_roles
from raw_lane import CallLane

import opd

FILE = ROOT / "tests" / "bench" / "gates.json"
GATES = json.loads(FILE.read_text())
ROOM = 1.05
ROOM_AMONG_MANY = 1.1
N = 200
FLAT = ("tensor_info", "forward", "call, new result", "replay of 20 calls")
# Kinds of calls in the client, each with opd_native and without.
PYTHON = {
    kind + ", without opd_native" * pure: (kind, pure) for kind, pure in itertools.product(CLIENT_KINDS, (False, True))
}
WRITE = 1  # of x86-64: rings the executor's bell, which is done where that sleeps

pytestmark = [
    pytest.mark.unsanitized("sanitizers have instructions of their own"),
    pytest.mark.skipif(DEVICE != "cpu", reason="the CPU device is the one that is everywhere"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="gates.json is of x86-64"),
]


def measure_instructions():
    daemon = CountedDaemon()
    try:
        requests = Requests(daemon.socket)
        return {kind: round(daemon.count_requests(requests, kind, N)) for kind in requests.kinds}
    finally:
        daemon.stop()


def measure_python(daemon, name):
    """Of a prepared call or a replay, in the client; the file says of which Python."""
    client = CountedClient(daemon.socket, *PYTHON[name])
    try:
        most = 1.01 * GATES["python"].get(name, math.inf)
        return round(client.count_calls(640, most))  # as ids are made and given up by 64
    finally:
        client.stop()


def measure_calls(daemon):
    """The least of eight rounds: a busy machine makes a daemon sleep and wake more often. Where that is more than
    what is recorded, of up to eighty."""
    requests = Requests(daemon.socket)
    found = {}
    for kind in requests.kinds:
        requests.make(kind, 20)
        recorded, found[kind], rounds = GATES["system calls"].get(kind, math.inf), math.inf, 0
        while rounds < 8 or (rounds < 80 and found[kind] > recorded):
            calls = count_calls(daemon.pid, lambda kind=kind: requests.make(kind, 40))
            each = round(sum(n for call, n in calls.items() if call != WRITE) / 40, 1)
            found[kind], rounds = min(found[kind], each), rounds + 1
        requests.clear()
    return found


def hold(what, found, measured=None):
    """Each figure against what is recorded, and what was asked for. measured: names, of which some are found here."""
    too_many = {
        kind: f"{n}, recorded: {GATES[what][kind]}" for kind, n in found.items() if n > ROOM * GATES[what][kind]
    }
    assert not too_many, f"{what}: {too_many}; see {FILE.relative_to(ROOT)}"
    goals = GATES["goals"][what]
    assert goals.keys() <= (measured or found).keys()
    for kind in goals.keys() & found.keys():
        assert found[kind] <= goals[kind], f"{what} of {kind}: {found[kind]}, and {goals[kind]} is the goal"


def test_instructions():
    try:
        hold("instructions", measure_instructions())
    except Unable as why:
        pytest.skip(str(why))


def test_instructions_among_many(tmp_path):
    """Connections, tensors and operators that a request has nothing to do with cost it nothing."""
    try:
        daemon = CountedDaemon("--kernels", fill_folder(tmp_path, 300))
        try:
            idle = [Raw(daemon.socket) for _ in range(100)]
            requests = Requests(daemon.socket)
            requests.make_tensors(5000)
            found = {kind: daemon.count_requests(requests, kind, N) for kind in FLAT}
            assert len(idle) == 100  # still open
        finally:
            daemon.stop()
    except Unable as why:
        pytest.skip(str(why))
    assert all(n <= ROOM_AMONG_MANY * GATES["instructions"][kind] for kind, n in found.items()), found


@pytest.mark.skipif(platform.python_version() != GATES["python version"], reason="gates.json is of another Python")
@pytest.mark.skipif(opd._native.native is None, reason="there is no opd_native")
@pytest.mark.parametrize("name", PYTHON)
def test_python(daemon, name):
    try:
        hold("python", {name: measure_python(daemon, name)}, PYTHON)
    except Unable as why:
        pytest.skip(str(why))


def test_system_calls(daemon):
    try:
        hold("system calls", measure_calls(daemon))
    except Unable as why:
        pytest.skip(str(why))


def test_a_lane_leaves_the_daemon_alone(daemon):
    """What goes by it takes no system call of the broker's, which looks once a second."""
    with CallLane(daemon.socket) as lane:
        lane.make(1, "float32", [32, 32])
        lane.record(5, "gelu", [1], [2])
        assert lane.arm(5)

        def run():
            for _ in range(2000):
                assert lane.run() is None

        try:
            made = count_calls(daemon.pid, run)
        except Unable as why:
            pytest.skip(str(why))
    assert sum(made.values()) < 200, made


def count_bells(pid):
    """Calls of write(): a process of the daemon makes them to wake another."""
    try:
        with open(f"/proc/{pid}/io", encoding="ascii") as told:
            return next(int(line.split()[1]) for line in told if line.startswith("syscw"))
    except OSError as why:
        pytest.skip(str(why))


def test_pipelined_calls_ring_few_bells(daemon):
    """Who sleeps is woken once, however many come while it wakes."""
    n, at_once = 2560, 128
    with Raw(daemon.socket) as raw:
        raw.make(1, "float32", [4])
        raw.call("prepare", 1, "forward", "gelu", [["float32", [4]]], {})

        def run():
            for first in range(10, 10 + n, at_once):
                ids = range(first, first + at_once)
                for number in raw.together(*[("call", 1, [1, id]) for id in ids]):
                    raw.wait(number)
                raw.call("free", "tensor", list(ids))

        run()
        pids, least = [daemon.pid, *find_roles(daemon.pid, "executor")], math.inf
        for _ in range(20):
            before = [count_bells(pid) for pid in pids]
            run()
            least = min(least, max(count_bells(pid) - was for pid, was in zip(pids, before)))
            if least < n / 4:
                return
    raise AssertionError(f"{least} bells for {n} calls")


def test_an_idle_daemon_sleeps(start_daemon):
    """None of its processes makes a system call."""
    daemon = start_daemon()
    with Raw(daemon.socket):
        Requests(daemon.socket).make("forward", 3)
        for _ in range(5):  # on a busy machine it may still have something to do after two seconds
            time.sleep(2)
            try:
                calls = {pid: count_calls(pid, lambda: time.sleep(1.5)) for pid, _ in find_family(daemon.pid)}
            except Unable as why:
                pytest.skip(str(why))
            # What it waits in goes on when the counter lets go of it.
            if all(sum(of.values()) <= 1 for of in calls.values()):
                return
    raise AssertionError(calls)


if __name__ == "__main__":
    from conftest import Daemon

    GATES["instructions"] = measure_instructions()
    served = Daemon()
    GATES["system calls"] = measure_calls(served)
    GATES["python"] = {name: measure_python(served, name) for name in PYTHON}
    GATES["python version"] = platform.python_version()
    GATES["torch"] = count_torch(served.socket)  # held by tests/torch/test_torch_direct.py
    GATES["torch version"] = version("torch").partition("+")[0]
    served.stop()
    FILE.write_text(json.dumps(GATES, indent=2) + "\n")
    sys.stdout.write(FILE.read_text())
