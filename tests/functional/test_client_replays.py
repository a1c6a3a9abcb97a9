"""Replays of the Python client that are waited for go by a lane, without a request, where there is opd_native; what users
see but the speed is as if each were one. Run with it and without."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from contextlib import contextmanager

import numpy as np
import pytest
from conftest import PATIENCE, ROOT, beside, eventually
from lane_client import client, edit, served, x  # noqa: F401
from operators import COUNT, put_kernels
from raw import find_roles
from upgrades import upgrade

import opd

pytestmark = pytest.mark.unsanitized("Python cannot load a sanitizer's library")

NATIVE = opd._native.native is not None


@contextmanager
def asleep(pid, seconds):
    """The broker, until it ends or so much later."""
    os.kill(pid, signal.SIGSTOP)

    def wake(over):
        over.wait(seconds)
        os.kill(pid, signal.SIGCONT)

    with beside(wake):
        yield


def needs_no_request(served, replay):
    """Of some tries: on a machine that is busy a wait may end by a reply, and some after it."""
    for n in range(20):
        for _ in range(20 << min(n, 6)):
            replay()
        start = time.monotonic()
        with asleep(served.pid, 1 + n):
            for _ in range(10):
                replay()
        if time.monotonic() - start < 1 + n:
            return True
    return False


def goes_by_lane(served, replay):
    """Or need not, since nothing here does."""
    for _ in range(10):
        replay()
    return not NATIVE or needs_no_request(served, replay)


def sum_up(client, x):
    """A total, what is added to it, and the graph that adds it."""
    total = client.zeros(x.shape)
    with client.capture() as graph:
        y = client.ops.double_it(x)
        client.ops.add_to(total, y)
    total.write(np.zeros(x.shape, np.float32))
    return total, y, graph


def test_replays(served, client, x):
    """Each has happened once, and what is asked for comes after it."""
    total, y, graph = sum_up(client, x)
    sums = np.zeros(4, np.float32)
    for n in range(1, 300):
        x.write(np.full(4, n % 7, np.float32))
        assert graph.replay() is None
        sums += 2 * (n % 7)
        if n % 3 == 0:
            assert np.array_equal(total.numpy(), sums) and y.numpy()[0] == 2 * (n % 7)
    before = client.status()
    for _ in range(200):
        graph.replay()
    after = client.status()
    assert after["requests"]["replay"] == before["requests"]["replay"] + 200
    runs = [{run["op"]: run["forward"] for run in told["runs"]} for told in (before, after)]
    assert runs[1]["add_to"] == runs[0]["add_to"] + 200
    assert goes_by_lane(served, graph.replay)


def test_several_graphs_and_calls_between(served, client, x):
    """More than a lane has room for."""
    double_it = client.ops.double_it
    made = [sum_up(client, x) for _ in range(20)]
    for n in range(1, 40):
        for total, _, graph in made:
            graph.replay()
        assert double_it(double_it(x)).numpy().tolist() == [4, 8, 12, 16]
    assert all(total.numpy().tolist() == [2 * n, 4 * n, 6 * n, 8 * n] for total, *_ in made)
    assert goes_by_lane(served, made[-1][-1].replay)


def test_in_batches(served, client, x):
    """Those of a batch go by requests; those behind it by the lane again, though a batch was told how."""
    total, _, graph = sum_up(client, x)
    done = 0
    for n in range(12):
        with client.batch():
            for _ in range(20):
                graph.replay()
        for _ in range(n):
            graph.replay()
        done += 20 + n
        assert total.numpy().tolist() == [2 * done, 4 * done, 6 * done, 8 * done]
        if n == 5:
            edit(served, 2)
    edit(served, 3)
    with client.batch():
        graph.replay()
    assert goes_by_lane(served, graph.replay)


def test_edits(served, client, x):
    _, y, graph = sum_up(client, x)
    assert goes_by_lane(served, graph.replay)
    for factor in (3, 4, 5):
        edit(served, factor)
        for _ in range(20):
            graph.replay()
            assert y.numpy().tolist() == [factor, 2 * factor, 3 * factor, 4 * factor]
        assert goes_by_lane(served, graph.replay)
    put_kernels(served.kernels, double_it="//! op nonsense")
    with served.connect() as other, pytest.warns(opd.ReloadWarning):
        other.reload()
    with pytest.warns(opd.ReloadWarning, match="double_it") as told:
        for _ in range(50):
            graph.replay()
    assert len(told) == 1
    assert goes_by_lane(served, graph.replay)


def test_edits_are_not_overtaken(served, client, x):
    """What is begun after reload() has answered runs no old version, in whichever thread."""
    told, over, errors = [2], threading.Event(), []

    def replay():
        try:
            with served.connect() as mine:
                x = mine.tensor(np.ones(4, np.float32))
                with mine.capture() as graph:
                    y = mine.ops.double_it(x)
                while not over.is_set():
                    least = told[-1]
                    for _ in range(20):
                        graph.replay()
                    assert y.numpy()[0] >= least
        except BaseException as e:
            errors.append(e)
            raise

    threads = [threading.Thread(target=replay) for _ in range(3)]
    for thread in threads:
        thread.start()
    for factor in range(3, 8):
        edit(served, factor)
        told.append(factor)
        time.sleep(0.1)
    over.set()
    for thread in threads:
        thread.join()
    assert not errors


def test_named_graphs_go_by_requests(served, client, x):
    """Others may replay them at any time, and write what they read."""
    total = client.zeros((4,))
    with client.capture("everybody's") as graph:
        client.ops.add_to(total, x)
    total.write(np.zeros(4, np.float32))
    with served.connect() as other:
        same = other.attach_graph("everybody's")
        for n in range(1, 40):
            graph.replay()
            same.replay()
        assert total.numpy().tolist() == [2 * n, 4 * n, 6 * n, 8 * n]
        assert not NATIVE or not client._conn.bell  # it was not worth a lane
        graph.free()
        with pytest.raises(opd.InvalidArgument, match="expected an id"):
            graph.replay()
        with pytest.raises(opd.NotFound, match="everybody's"):
            other.attach_graph("everybody's")


def test_named_tensors_go_by_requests(served, client):
    named = client.tensor(np.arange(4, dtype=np.float32), name="everybody's")
    with client.capture() as graph:
        y = client.ops.double_it(named)
    with served.connect() as other:
        same = other.attach("everybody's")
        for n in range(1, 60):
            same.write(np.full(4, n, np.float32))
            graph.replay()
            assert y.numpy().tolist() == [2 * n] * 4


def test_what_others_come_to_know_of(served, client, x):
    """A graph of theirs reads what this one does."""
    total, _, graph = sum_up(client, x)
    assert goes_by_lane(served, graph.replay)
    with client.capture("another") as another:
        z = client.ops.double_it(x)
    with served.connect() as other:
        theirs = other.attach_graph("another")
        before = total.numpy()
        for n in range(1, 30):
            graph.replay()
            theirs.replay()
            another.replay()
        assert np.array_equal(total.numpy(), before + n * z.numpy())


def test_a_check_says_the_same(served, client):
    rows = client.tensor(np.arange(15, dtype=np.float32).reshape(5, 3))
    at = client.tensor(np.array([4], np.int64))
    with client.capture() as graph:
        y = client.ops.pick(rows, at)
    for _ in range(30):
        graph.replay()
    at.write(np.array([9], np.int64))
    errors = []
    for options in ({}, {"deadline": 30}):
        with pytest.raises(opd.OpdError) as caught:
            graph.replay(**options)
        errors.append((type(caught.value), str(caught.value)))
    assert errors[0] == errors[1]
    at.write(np.array([1], np.int64))
    graph.replay()
    assert y.numpy()[0].tolist() == [3, 4, 5]


def test_a_fault(served, client, x):
    """Its error, and what is suspect then, are those of a request."""
    flag = client.tensor(np.zeros(1, np.int32))
    errors, suspects = [], []
    for options in ({}, {"deadline": 30}):
        with client.capture() as graph:
            y = client.ops.faulty(x, flag)
        assert options or goes_by_lane(served, graph.replay)
        flag.write(np.ones(1, np.int32))
        with pytest.raises(opd.KernelFault, match="faulty") as caught:
            graph.replay(**options)
        errors.append(str(caught.value))
        with pytest.raises(opd.InvalidArgument, match="suspect") as caught:
            y.numpy()
        suspects.append(str(caught.value).replace(f"tensor {y._id} ", "tensor "))
        flag.write(np.zeros(1, np.int32))
        for _ in range(20):
            graph.replay()
        assert y.numpy().tolist() == [1, 2, 3, 4]
        del y, graph
    assert errors[0] == errors[1] and suspects[0] == suspects[1]
    total, _, graph = sum_up(client, x)
    assert goes_by_lane(served, graph.replay)


def test_what_is_suspect_is_not_read(served, client, x):
    """By a graph that another's fault has spoilt."""
    flag = client.tensor(np.zeros(1, np.int32))
    y = client.zeros((4,))
    with client.capture() as graph:
        client.ops.add_to(y, client.ops.faulty(x, flag))
    with client.capture() as reads:
        client.ops.double_it(y)
    assert goes_by_lane(served, reads.replay)
    flag.write(np.ones(1, np.int32))
    with pytest.raises(opd.KernelFault):
        for _ in range(20):
            graph.replay()
    for _ in range(3):
        with pytest.raises(opd.InvalidArgument, match="a tensor that the graph reads"):
            reads.replay()
    y.write(np.ones(4, np.float32))
    for _ in range(20):
        reads.replay()


def test_a_deadline_and_debug(served, client):
    steps = client.tensor(np.full(4, 5, np.float32))
    with client.capture() as graph:
        y = client.ops.count(steps)
    assert goes_by_lane(served, graph.replay)
    for n in (6, 7):
        steps.write(np.full(4, n, np.float32))
        graph.replay(deadline=30)
        assert y.numpy()[0] == n
        graph.replay(debug=True)
        graph.replay()
    steps.write(np.full(4, 1e18, np.float32))
    with pytest.raises(opd.DeadlineExceeded, match="count"):
        graph.replay(deadline=0.5)
    steps.write(np.full(4, 8, np.float32))
    graph.replay()
    assert y.numpy()[0] == 8


def test_an_operators_own_deadline(served, client):
    """Found by the lane, too."""
    put_kernels(served.kernels, count=COUNT.replace("//! example", "//! deadline 0.5\n//! example"))
    client.reload()
    steps = client.tensor(np.full(4, 5, np.float32))
    for _ in range(2):  # after such an end a graph's calls go one by one, and by requests
        with client.capture() as graph:
            client.ops.count(steps)
        assert goes_by_lane(served, graph.replay)
        steps.write(np.full(4, 1e18, np.float32))
        with pytest.raises(opd.DeadlineExceeded, match="count"):
            graph.replay()
        steps.write(np.full(4, 5, np.float32))
        graph.replay()


def test_long_replays(served, client):
    """Beyond the time for which the word is watched: the reply comes, or it was told in the end."""
    steps = client.tensor(np.full(4, 5, np.float32))
    with client.capture() as graph:
        y = client.ops.count(steps)
    for n in (3, 8_000_000, 4, 4_000_000, 5):
        steps.write(np.full(4, n, np.float32))
        for _ in range(3 if n > 100 else 60):
            graph.replay()
        assert y.numpy()[0] == n


def test_drops(served, client, x):
    """The graph holds what its calls have made, and gives it up."""
    graphs = []
    for _ in range(5):
        total, y, graph = sum_up(client, x)
        assert goes_by_lane(served, graph.replay)
        before = total.numpy()
        del y
        gc.collect()
        graph.replay()
        assert total.numpy().tolist() == (before + [2, 4, 6, 8]).tolist()
        graphs.append(graph)
    graphs[0].free()
    for _ in range(2):
        with pytest.raises(opd.InvalidArgument, match="expected an id"):
            graphs[0].replay()
    client.synchronize()
    used = client.status()["devices"][0]["memory_used"]
    del graphs, graph
    gc.collect()
    client.synchronize()
    assert eventually(lambda: client.status()["devices"][0]["memory_used"] < used)
    assert len(client.tensors()) == 2  # x and the last total


def test_upgrades_and_killed_executors(served, client, x):
    total, y, graph = sum_up(client, x)
    for _ in range(2):
        assert goes_by_lane(served, graph.replay)
        upgrade(served)
        before = total.numpy()
        for _ in range(10):
            graph.replay()
        assert np.array_equal(total.numpy(), before + 20 * np.arange(1, 5))
        assert goes_by_lane(served, graph.replay)
        for pid in find_roles(served.pid, "executor"):
            os.kill(pid, signal.SIGKILL)
        try:
            graph.replay()
        except opd.OpdError:
            total.write(np.zeros(4, np.float32))
        assert eventually(lambda: y.numpy().tolist() == [2, 4, 6, 8])


def test_a_lane_that_has_ended_is_opened_again(served, client, x):
    """Also for what has never gone by it."""
    for _ in range(2):
        total, y, graph = sum_up(client, x)
        assert goes_by_lane(served, graph.replay)
        assert goes_by_lane(served, lambda: client.ops.double_it(x))
        del total, y, graph
        for pid in find_roles(served.pid, "executor"):
            os.kill(pid, signal.SIGKILL)
        client.synchronize()


def test_an_upgrade_in_mid_replay(served, client):
    """Each has happened once, by whichever program."""
    steps, total = client.tensor(np.full(4, 3e5, np.float32)), client.zeros((4,))
    with client.capture() as graph:
        client.ops.add_to(total, client.ops.count(steps))
    total.write(np.zeros(4, np.float32))
    over, n = threading.Event(), 0

    def upgrades():
        try:
            for _ in range(3):
                upgrade(served)
        finally:
            over.set()

    thread = threading.Thread(target=upgrades)
    thread.start()
    while not over.is_set():
        graph.replay()
        n += 1
    thread.join()
    steps.write(np.ones(4, np.float32))
    before = total.numpy()
    assert before[0] == sum(np.float32(3e5) for _ in range(n))
    assert goes_by_lane(served, graph.replay)


CLIENT = """
import sys, numpy as np, opd
client = opd.connect(sys.argv[1])
steps = client.tensor(np.full(4, 5, np.float32))
with client.capture() as graph:
    client.ops.count(steps)
for _ in range(50):
    graph.replay()
steps.write(np.full(4, 3e6, np.float32))
print("ready", flush=True)
while True:
    graph.replay()
"""


def test_a_client_that_dies_in_mid_replay(served, client, x):
    _, y, graph = sum_up(client, x)
    for _ in range(3):
        env = {**os.environ, "PYTHONPATH": str(ROOT / "client" / "python")}
        command = [sys.executable, "-c", CLIENT, served.socket]
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as other:
            assert other.stdout.readline() == b"ready\n"
            time.sleep(0.05)
            other.kill()
        for _ in range(10):
            graph.replay()
        assert y.numpy().tolist() == [2, 4, 6, 8]
    assert goes_by_lane(served, graph.replay)
    assert eventually(lambda: len(client.status()["clients"]) == 1)


def test_threads(served, client):
    """One connection, and a graph of each."""
    made = [sum_up(client, client.tensor(np.full(4, i, np.float32))) for i in range(1, 5)]
    counts, errors, end = [0] * len(made), [], time.monotonic() + 2

    def work(i):
        total, y, graph = made[i]
        try:
            while time.monotonic() < end:
                for _ in range(10):
                    graph.replay()
                    counts[i] += 1
                assert total.numpy()[0] == 2 * (i + 1) * counts[i]
                with client.batch():
                    client.ops.double_it(y)
        except BaseException as e:
            errors.append(e)
            raise

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(made))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and min(counts) > 0


def test_a_lost_connection(served, client, x):
    _, _, graph = sum_up(client, x)
    assert goes_by_lane(served, graph.replay)
    with served.connect() as other:
        other.stop()
    served.process.wait(PATIENCE)
    for _ in range(2):
        with pytest.raises(opd.ConnectionLost, match="^replay: "):
            graph.replay()


def test_silence(served, client, x):
    """A daemon that is stopped, and an executor with it; the connection stays usable."""
    total, _, graph = sum_up(client, x)
    assert goes_by_lane(served, graph.replay)
    stopped = [served.pid, *find_roles(served.pid, "executor")]
    for seconds in (0.2, PATIENCE):
        client._conn.timeout = seconds
        if seconds == PATIENCE:
            break
        before = total.numpy()
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(opd.DeadlineExceeded, match="^replay: .* sent nothing"):
                graph.replay()
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
    client.synchronize()
    graph.replay()
    grown = (total.numpy() - before) / np.arange(1, 5)
    assert grown.tolist() in ([2] * 4, [4] * 4)  # the one that was not waited for may have happened


def test_a_fork(served, client, x):
    """The child has none of it, and does its parent no harm."""
    _, y, graph = sum_up(client, x)
    assert goes_by_lane(served, graph.replay)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            graph.replay()
        except opd.ConnectionLost:
            del graph
            gc.collect()
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert goes_by_lane(served, graph.replay)
    assert y.numpy().tolist() == [2, 4, 6, 8]


class Signalled(Exception):
    pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_signals(served):
    """A handler's exception, at any time: what is asked for next comes after what it has ended, nothing happens late, and
    nothing twice; or the connection is lost, with a word why."""

    def interrupt(*_):
        raise Signalled

    def begin():
        client = served.connect()
        x, steps = client.tensor(np.ones(4, np.float32)), client.tensor(np.full(4, 2e5, np.float32))
        total, _, graph = sum_up(client, x)
        with client.capture() as counting:
            client.ops.count(steps)
        for _ in range(20):  # what opens a lane is asked for once
            graph.replay()
        return client, total, graph, counting

    client, total, graph, counting = begin()
    rng = np.random.default_rng(5)
    old = signal.signal(signal.SIGALRM, interrupt)
    interrupted = lost = 0
    try:
        for _ in range(200):
            try:
                total.write(np.zeros(4, np.float32))
                done = 0
                try:
                    signal.setitimer(signal.ITIMER_REAL, float(rng.uniform(2e-6, 3e-3)))
                    for _ in range(40):
                        counting.replay()
                        graph.replay()
                        done += 1
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except Signalled:
                    interrupted += 1
                seen = total.numpy()
                assert seen[0] in (2 * done, 2 * done + 2), (seen, done)
                graph.replay()
                assert np.array_equal(total.numpy(), seen + 2)  # nothing came late
            except opd.ConnectionLost as e:
                assert "signal came in the middle" in str(e)
                lost += 1
                signal.setitimer(signal.ITIMER_REAL, 0)
                client.close()
                client, total, graph, counting = begin()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    # Between sending and waiting nobody knows what has gone; without opd_native that takes longer.
    assert interrupted > 30 and lost < interrupted / (5 if NATIVE else 2), (interrupted, lost)
    assert goes_by_lane(served, graph.replay)
    client.synchronize()
    assert not client._conn.replies
    client.close()
