"""Calls of the Python client that come again on the same tensors go by a lane, without a request; what users see but the
speed is as if each were one. Without opd_native all goes by requests: the same is true of the results."""

import gc
import os
import signal
import threading
import time

import numpy as np
import pytest
from conftest import DEVICE, PATIENCE, eventually
from lane_client import client, edit, served, x  # noqa: F401
from operators import put_kernels
from raw import Raw, find_roles
from raw_lane import late
from upgrades import upgrade

import opd

pytestmark = [
    pytest.mark.skipif(opd._native.native is None, reason="there is no opd_native"),
    pytest.mark.unsanitized("Python cannot load a sanitizer's library"),
]


def counts(served):
    with Raw(served.socket) as other:
        requests = other.call("status")["requests"]
        return [requests.get(name, 0) for name in ("call", "lane_call", "free", "forward")]


def goes_by_lane(served, call, n=1):
    """Sooner or later, some in a row: on a machine that is busy a wait may end by a reply, and some after it. call()
    makes n calls, and returns one's result; only by the lane an earlier result's tensor is given again."""

    def try_some():
        before = counts(served)
        made = {call()._id for _ in range(5)}
        return len(made) <= 2 and counts(served) == [before[0] + 5 * n, *before[1:]]

    return eventually(try_some)


def test_what_is_left_to_requests_is_not_armed(served, client, x):
    """After a wait that a reply has ended."""
    double_it = client.ops.double_it
    assert goes_by_lane(served, lambda: double_it(x))
    with late(served.pid):
        double_it(x)
    before = counts(served)
    double(client, x, 50)
    assert counts(served)[1] == before[1]
    assert goes_by_lane(served, lambda: double_it(x))


def double(client, x, n=1):
    for _ in range(n):
        y = client.ops.double_it(x)
    return y


def test_calls(served, client, x):
    """Results that are dropped, before the next or behind it; of a chain; and read each time."""
    double_it = client.ops.double_it
    assert goes_by_lane(served, lambda: double_it(x))
    assert goes_by_lane(served, lambda: double(client, x, 2), 2)
    assert goes_by_lane(served, lambda: double_it(double_it(x)), 2)
    for n in range(100):
        x.write(np.full(4, n, np.float32))
        assert double_it(double_it(x)).numpy().tolist() == [4 * n] * 4
    runs = {run["op"]: run["forward"] for run in client.status()["runs"]}
    before = runs["double_it"]
    double(client, x, 200)
    runs = {run["op"]: run["forward"] for run in client.status()["runs"]}
    assert runs["double_it"] == before + 200


def test_several_operators_and_inputs(served, client, x):
    y = client.tensor(np.array([5, 6, 7, 8], np.float32))
    ops = client.ops

    def each():
        assert ops.gelu(y, approximate="tanh").shape == (4,)
        a, b = ops.double_it(x), ops.double_it(y)
        c = ops.add(a, b)
        return c

    assert goes_by_lane(served, each, 4)
    assert each().numpy().tolist() == [12, 16, 20, 24]


def test_in_place(served, client, x):
    """Each has happened once, and what others ask for comes after it."""
    total = client.zeros((4,))
    for n in range(1, 200):
        client.ops.add_to(total, client.ops.double_it(x))
        if n % 10 == 0:
            assert total.numpy().tolist() == [2 * n, 4 * n, 6 * n, 8 * n]


def test_what_is_held_is_not_written(served, client, x):
    """By its user, a view, an array, a context, a graph, another prepared call's view."""
    ops, ours = client.ops, [2, 4, 6, 8]
    holders = [
        lambda y: y,
        lambda y: y[0:],
        lambda y: y.reshape(2, 2),
        lambda y: np.from_dlpack(y) if DEVICE == "cpu" else y,
        lambda y: y.T,
    ]
    for hold in holders:
        assert goes_by_lane(served, lambda: ops.double_it(x))
        held = [hold(ops.double_it(x)) for _ in range(20)]
        x.write(np.zeros(4, np.float32))
        double(client, x, 100)
        for each in held:
            array = each if isinstance(each, np.ndarray) else each.numpy()
            assert array.reshape(-1).tolist() == ours
        del held, each, array
        x.write(np.array([1, 2, 3, 4], np.float32))


def test_what_contexts_and_graphs_hold_is_not_written(served, client, x):
    ops = client.ops
    expected = ops.gelu.forward(ops.double_it(x))[1].backward(np.ones(4, np.float32))[0].numpy()
    for _ in range(10):
        double(client, x, 40)
        y, context = ops.gelu.forward(ops.double_it(x))
        x.write(np.zeros(4, np.float32))
        double(client, x, 40)
        assert np.array_equal(context.backward(np.ones(4, np.float32))[0].numpy(), expected)
        x.write(np.array([1, 2, 3, 4], np.float32))
    double(client, x, 40)
    with client.capture() as graph:
        for _ in range(40):
            y = ops.double_it(x)
    del y
    five = client.tensor(np.full(4, 5, np.float32))
    ys = [double(client, five, 40) for _ in range(20)]
    graph.replay()
    assert all(y.numpy().tolist() == [10] * 4 for y in ys)


SEEN = """\
//! op      seen({0} x) -> {0} y
//! dtypes  float32
//! {1}
"""


def test_what_has_become_a_view_is_not_written(served, client, x):
    """An operator that was prepared when it made a copy."""

    def put(source):
        put_kernels(served.kernels, seen=source)
        with served.connect() as other:
            other.reload()

    put(SEEN.format("Tensor", "formula y = x"))
    five = client.tensor(np.full(4, 5, np.float32))
    for _ in range(4):
        seen = client.ops.seen(double(client, x, 40))
    put(SEEN.format("Tensor(a)", "shape x [N]\n//! shape y [N]\n//! view y x"))
    for _ in range(3):
        double(client, x, 40)
        seen = [client.ops.seen(double(client, x)) for _ in range(10)]
        double(client, five, 100)
        assert all(each.numpy().tolist() == [2, 4, 6, 8] for each in seen)


def test_in_batches(served, client, x):
    """What a batch has yet to read is not written."""
    ops = client.ops
    five = client.tensor(np.full(4, 5, np.float32))
    for _ in range(10):
        double(client, x, 40)
        with client.batch():
            made = [ops.double_it(ops.double_it(x)) for _ in range(50)]
            double(client, five, 5)
        double(client, five, 40)
        assert all(y.numpy().tolist() == [4, 8, 12, 16] for y in made)


def test_edits(served, client, x):
    assert goes_by_lane(served, lambda: client.ops.double_it(x))
    for factor in (3, 4, 5):
        edit(served, factor)
        for _ in range(50):
            assert double(client, x).numpy().tolist() == [factor, 2 * factor, 3 * factor, 4 * factor]
        assert client.ops.double_it.version == factor - 1
        assert goes_by_lane(served, lambda: client.ops.double_it(x))
    put_kernels(served.kernels, double_it="//! op nonsense")
    with served.connect() as other, pytest.warns(opd.ReloadWarning):
        other.reload()
    with pytest.warns(opd.ReloadWarning, match="double_it") as told:
        double(client, x, 50)
    assert len(told) == 1


def test_edits_are_not_overtaken(served, client, x):
    """What is begun after reload() has answered runs no old version, in whichever thread."""
    told, over, errors = [2], threading.Event(), []

    def call():
        try:
            while not over.is_set():
                least = told[-1]
                for _ in range(20):
                    y = client.ops.double_it(x)
                assert y.numpy()[0] >= least
        except BaseException as e:
            errors.append(e)
            raise

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for factor in range(3, 9):
        edit(served, factor)
        told.append(factor)
        time.sleep(0.1)
    over.set()
    for thread in threads:
        thread.join()
    assert not errors


def test_threads(served, client):
    """Each gets its own results, and keeps some."""
    xs = [client.tensor(np.full(4, i, np.float32)) for i in range(4)]
    errors, end = [], time.monotonic() + 3

    def work(i):
        kept = []
        try:
            while time.monotonic() < end:
                y = double(client, xs[i], 30)
                kept = [*kept[-10:], y, client.ops.double_it(y)]
                assert kept[-2].numpy()[0] == 2 * i and kept[-1].numpy()[0] == 4 * i
                assert all(each.numpy()[0] in (2 * i, 4 * i) for each in kept)
                if i == 1:
                    client.tensors()
        except BaseException as e:
            errors.append(e)
            raise

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_kept_results_are_freed(served, client, x):
    double(client, x, 100)
    assert len(client.tensors()) == 1
    kept = [client.ops.double_it(x) for _ in range(50)]
    assert len(client.tensors()) == 51 and len({y._id for y in kept}) == 50
    del kept
    y = client.ops.double_it(x)
    y.free()
    with pytest.raises(opd.NotFound, match="freed"):
        client.ops.double_it(y)
    double(client, x, 100)
    assert len(client.tensors()) == 1
    assert goes_by_lane(served, lambda: client.ops.double_it(x))
    x.free()
    with pytest.raises(opd.NotFound, match="freed"):
        client.ops.double_it(x)
    gc.collect()
    assert len(client.tensors()) == 0


def test_an_input_that_the_daemon_has_not(served, client, x):
    double(client, x, 100)
    client._conn.send("free", ("tensor", [x._id]))
    for _ in range(3):
        with pytest.raises(opd.NotFound, match="no tensor"):
            client.ops.double_it(x)


def test_named_tensors_go_by_requests(served, client):
    """Others may write them."""
    named = client.tensor(np.arange(4, dtype=np.float32), name="everybody's")
    with served.connect() as other:
        same = other.attach("everybody's")
        for n in range(1, 100):
            same.write(np.full(4, n, np.float32))
            assert client.ops.double_it(named).numpy().tolist() == [2 * n] * 4


def test_a_fault(served, client, x):
    flag = client.tensor(np.zeros(1, np.int32))
    assert goes_by_lane(served, lambda: client.ops.faulty(x, flag))
    flag.write(np.ones(1, np.int32))
    for _ in range(2):
        with pytest.raises(opd.KernelFault, match="faulty"):
            client.ops.faulty(x, flag)
    flag.write(np.zeros(1, np.int32))
    assert client.ops.faulty(x, flag).numpy().tolist() == [1, 2, 3, 4]
    assert goes_by_lane(served, lambda: client.ops.faulty(x, flag))
    assert goes_by_lane(served, lambda: client.ops.double_it(x))
    gc.collect()
    assert len(client.tensors()) == 2


def test_a_deadline(served, client):
    count = client.ops.count
    steps = client.tensor(np.full(4, 5, np.float32))
    assert goes_by_lane(served, lambda: count(steps, deadline=0.5))
    steps.write(np.full(4, 1e18, np.float32))
    with pytest.raises(opd.DeadlineExceeded, match="count"):
        count(steps, deadline=0.5)
    steps.write(np.full(4, 5, np.float32))
    assert count(steps, deadline=0.5).numpy()[0] == 5


def test_long_calls(served, client):
    """Beyond the time for which the word is watched: the reply comes, or it was told in the end."""
    steps = client.tensor(np.full(4, 5, np.float32))
    for n in (3, 8_000_000, 4, 4_000_000, 5):
        steps.write(np.full(4, n, np.float32))
        for _ in range(3 if n > 100 else 60):
            assert client.ops.count(steps).numpy()[0] == n


def test_upgrades_and_killed_executors(served, client, x):
    for _ in range(2):
        assert goes_by_lane(served, lambda: client.ops.double_it(x))
        upgrade(served)
        assert double(client, x, 10).numpy().tolist() == [2, 4, 6, 8]
        assert goes_by_lane(served, lambda: client.ops.double_it(x))
        for pid in find_roles(served.pid, "executor"):
            os.kill(pid, signal.SIGKILL)
        try:
            double(client, x)
        except opd.OpdError:
            pass
        assert eventually(lambda: double(client, x).numpy().tolist() == [2, 4, 6, 8])


def test_a_lost_connection(served, client, x):
    double(client, x, 100)
    with served.connect() as other:
        other.stop()
    served.process.wait(PATIENCE)
    for _ in range(2):
        with pytest.raises(opd.ConnectionLost, match="forward: "):
            client.ops.double_it(x)


def test_a_fork(served, client, x):
    """The child has none of it, and does its parent no harm."""
    y = double(client, x, 100)
    child = os.fork()
    if child == 0:
        try:
            client.ops.double_it(x)
        except opd.ConnectionLost:
            del y
            gc.collect()
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert goes_by_lane(served, lambda: client.ops.double_it(x))
    assert y.numpy().tolist() == [2, 4, 6, 8]


class Signalled(Exception):
    pass


@pytest.mark.parametrize("method", ["shm_open", "done_word", "lane_open", "lane_call"])
def test_a_signal_while_a_lane_is_asked_for(served, client, x, method):
    """Its exception comes where the request has gone and nothing knows: what comes after goes by a lane all the same."""
    conn, send = client._conn, client._conn.send

    def interrupted(asked, *args, **options):
        reply = send(asked, *args, **options)
        if asked == method:
            del conn.send
            raise Signalled
        return reply

    conn.send = interrupted
    with pytest.raises(Signalled):
        for _ in range(1000):
            client.ops.double_it(x)
    assert goes_by_lane(served, lambda: client.ops.double_it(x))
    assert client.ops.double_it(x).numpy().tolist() == [2, 4, 6, 8]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_signals(served):
    """A handler's exception, at any time: what is called next comes after what it has ended, and gets its own result; or
    the connection is lost, with a word why."""

    def interrupt(*_):
        raise Signalled

    def begin():
        client = served.connect()
        made = [client.tensor(np.full(4, value, np.float32)) for value in (1, 0, 2e5)]
        return client, *made

    client, x, total, steps = begin()
    rng = np.random.default_rng(5)
    old = signal.signal(signal.SIGALRM, interrupt)
    interrupted = lost = 0
    try:
        for n in range(300):
            x.write(np.full(4, n, np.float32))
            try:
                signal.setitimer(signal.ITIMER_REAL, float(rng.uniform(2e-6, 3e-3)))
                for _ in range(60):
                    client.ops.count(steps)
                    client.ops.add_to(total, x)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Signalled:
                interrupted += 1
            try:
                seen = total.numpy()
                assert client.ops.double_it(x).numpy().tolist() == [2 * n] * 4
                assert np.array_equal(total.numpy(), seen)  # nothing came late
            except opd.ConnectionLost as e:
                assert "signal came in the middle" in str(e)
                lost += 1
                client.close()
                client, x, total, steps = begin()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert interrupted > 50 and lost < interrupted / 5, (interrupted, lost)
    assert goes_by_lane(served, lambda: client.ops.double_it(x))
    client.synchronize()
    gc.collect()
    assert not client._conn.replies and len(client.tensors()) == 3
    client.close()
