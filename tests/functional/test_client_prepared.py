"""The Python client prepares by itself what is called several times with the same dtypes, shapes and attributes.
What users see but the speed is as if each call were a plain one."""

import contextlib
import enum
import gc
import os
import signal
import socket
import sys
import threading
import time
import warnings

import numpy as np
import pytest
from conftest import PATIENCE, eventually
from operators import double_by, put_kernels
from raw import find_roles
from upgrades import SCALE

import opd
from opd._calls import CallConnection
from opd._conn import Connection
from opd._reply import Batch

pytestmark = pytest.mark.unsanitized("of the client in Python")

CALLS = 6  # the first are plain, with one goes `prepare`


@pytest.fixture
def daemon(start_daemon, tmp_path):
    """With operators to edit, in `daemon.kernels`."""
    folder = tmp_path / "kernels"
    put_kernels(folder, scale=SCALE.replace("FACTOR", "1.0f"), double_it=double_by(2))
    daemon = start_daemon("--kernels", str(folder))
    daemon.kernels = folder
    return daemon


@pytest.fixture
def client(daemon):
    with daemon.connect() as client:
        yield client


@pytest.fixture
def x(client):
    return client.tensor(np.arange(4, dtype=np.float32))


def methods(client, run, times=1):
    """What the daemon was asked for by `run`, each time."""

    def count():
        requests = client._conn.call("status")["requests"]
        return {name: requests.get(name, 0) for name in ("forward", "prepare", "call")}

    seen = []
    for _ in range(times):
        before = count()
        run()
        seen += [name for name, n in count().items() for _ in range(n - before[name])]
    return seen


def repeat(call, times=CALLS):
    return [call() for _ in range(times)]


def test_it_is_prepared(client, x):
    dir(client.ops)  # they are known
    ran = methods(client, lambda: client.ops.scale(x, by=2.0), CALLS)
    assert ran[:3] == ["forward", "forward", "prepare"] and ran.count("forward") <= 3
    assert ran[-1] == "call"
    for by in (2.0, 3.0, 2.0):
        for got in repeat(lambda by=by: client.ops.scale(x, by=by)):
            assert got.numpy().tolist() == [0, by, 2 * by, 3 * by]
            assert (got.shape, got.dtype, got.name) == ((4,), "float32", None)


def test_attributes_are_told_apart(client):
    """Values that are equal to Python and not to the daemon, and ways to write them."""
    x = client.tensor(np.array([1, -1], np.float32))
    for _ in range(CALLS):
        assert np.signbit(client.ops.scale(x, by=0.0).numpy()).tolist() == [False, True]
        assert np.signbit(client.ops.scale(x, by=-0.0).numpy()).tolist() == [True, False]
        assert client.ops.scale(x, by=1).numpy().tolist() == [1, -1]
        assert client.ops.scale(x, by=np.float32(2)).numpy().tolist() == [2, -2]
        assert client.ops.scale(x=x, by=1.0).numpy().tolist() == [1, -1]
        with pytest.raises(TypeError, match="argument 'by' must be float"):
            client.ops.scale(x, by="1")


def test_every_way_to_call(client):
    rng = np.random.default_rng(1)
    image, weight = rng.random((1, 2, 6, 6), np.float32), rng.random((2, 1, 3, 3), np.float32)
    x, w, b = client.tensor(image), client.tensor(weight), client.tensor(np.ones(2, np.float32))
    conv = client.ops.depthwise_conv2d
    plain = conv(x, w).numpy(), conv(x, w, b, padding=1).numpy()
    for _ in range(CALLS):
        for got in (conv(x, w), conv(x, w, None), conv(x, weight=w), conv(image, w), x.depthwise_conv2d(w)):
            np.testing.assert_array_equal(got.numpy(), plain[0])
        for got in (conv(x, w, b, padding=1), conv(x, w, bias=b, padding=[1, 1]), conv(x, w, b, padding=(1, 1))):
            np.testing.assert_array_equal(got.numpy(), plain[1])
        with pytest.raises(TypeError, match="missing a required argument: 'weight'"):
            conv(x)


def test_contexts(client):
    """The same gradients, from contexts of prepared calls as of plain ones; from arrays, too."""
    x = client.tensor(np.linspace(-2, 2, 8, dtype=np.float32))
    ones = np.ones(8, np.float32)
    first = None
    for _ in range(CALLS):
        y, context = client.ops.gelu.forward(x)
        (grad,) = context.backward(ones)
        first = first or (y.numpy(), grad.numpy())
        np.testing.assert_array_equal(y.numpy(), first[0])
        np.testing.assert_array_equal(grad.numpy(), first[1])
    del context, y
    gc.collect()
    client.synchronize()
    assert "call" in methods(client, lambda: client.ops.gelu.forward(x))


def test_in_a_batch(client, x):
    for _ in range(2):
        with client.batch():
            made = [client.ops.scale(client.ops.scale(x, by=2.0), by=3.0) for _ in range(50)]
        assert all(y.numpy().tolist() == [0, 6, 12, 18] for y in made)
    with client.batch():
        assert methods(client, lambda: repeat(lambda: client.ops.scale(x, by=2.0), 3)) == ["call"] * 3


def test_an_error_in_a_batch(client, x):
    repeat(lambda: client.ops.scale(x, by=2.0))
    y = client.tensor(np.arange(4, dtype=np.float32))
    with pytest.raises(opd.NotFound, match="no tensor"), client.batch():
        client._link.request("free", ("tensor", [y._id]))
        made = client.ops.scale(y, by=2.0)
    with pytest.raises(opd.NotFound, match="no tensor"):
        made.numpy()
    assert client.ops.scale(x, by=2.0).numpy().tolist() == [0, 2, 4, 6]


def test_an_edit_is_followed(daemon, client, x):
    for factor in (1, 3, 5):
        put_kernels(daemon.kernels, scale=SCALE.replace("FACTOR", f"{factor}.0f"))
        with daemon.connect() as other:  # this client is not told
            other.reload()
        for y in repeat(lambda: client.ops.scale(x, by=2.0)):
            assert y.numpy().tolist() == [0, 2 * factor, 4 * factor, 6 * factor]
        assert client.ops.scale.version == client.ops.scale.versions[0]["version"]


def test_rollback_and_pin(daemon, client, x):
    put_kernels(daemon.kernels, scale=SCALE.replace("FACTOR", "3.0f"))
    client.reload()
    scale = client.ops.scale
    for _ in range(2):
        for version, factor in ((2, 3), (1, 1)):
            client.pin("scale", version)
            assert [y.numpy()[1] for y in repeat(lambda: scale(x, by=1.0))] == [factor] * CALLS
            assert scale.version == version
            assert [y.numpy()[1] for y in repeat(lambda: scale(x, by=1.0, version=2))] == [3] * CALLS
    client.pin("scale", None)
    client.rollback("scale")
    assert [y.numpy()[1] for y in repeat(lambda: scale(x, by=1.0))] == [1] * CALLS


def test_a_signature_that_no_longer_fits(daemon, client, x):
    """The error is that of a plain call; so is what comes after the next edit."""
    repeat(lambda: client.ops.scale(x, by=2.0))
    gone = SCALE.replace("FACTOR", "1.0f").replace("by", "times")
    put_kernels(daemon.kernels, scale=gone)
    with daemon.connect() as other:
        other.reload()
        with pytest.raises(TypeError) as expected:
            other.ops.scale(x.numpy(), by=2.0)
    for _ in range(CALLS):
        with pytest.raises(TypeError) as got:
            client.ops.scale(x, by=2.0)
        assert str(got.value) == str(expected.value)
    assert client.ops.scale(x, times=2.0).numpy().tolist() == [0, 2, 4, 6]


def test_a_failed_edit_warns_once(daemon, client, x):
    repeat(lambda: client.ops.scale(x, by=2.0))
    put_kernels(daemon.kernels, scale=SCALE.replace("FACTOR", "nonsense"))
    with daemon.connect() as other, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other.reload()
    with pytest.warns(opd.ReloadWarning, match="scale") as told:
        made = repeat(lambda: client.ops.scale(x, by=2.0))
    assert len(told) == 1 and told[0].filename == __file__
    assert all(y.numpy().tolist() == [0, 2, 4, 6] for y in made)


def test_freed_and_foreign_tensors(daemon, client, x):
    scale = client.ops.scale
    repeat(lambda: scale(x, by=2.0))
    with daemon.connect() as other:
        foreign = other.tensor(np.zeros(4, np.float32))
        with pytest.raises(opd.InvalidArgument, match="belongs to another client"):
            scale(foreign, by=2.0)
    x.free()
    with pytest.raises(opd.NotFound, match="this tensor was freed"):
        scale(x, by=2.0)


def test_what_is_dropped_is_freed(client, x):
    before = len(client.tensors())
    kept = repeat(lambda: client.ops.scale(x, by=2.0), 100)
    assert len(client.tensors()) == before + 100
    for _ in range(100):
        client.ops.scale(x, by=2.0)
    del kept
    gc.collect()
    assert len(client.tensors()) == before


def test_large_tensors_are_freed_with_the_next_call(client):
    big = client.zeros((1 << 20,))
    used = []
    for _ in range(10):
        client.ops.scale(big, by=1.0)
        used.append(client.status()["devices"][0]["memory_used"])
    repeat(lambda: client.ops.scale(big, by=1.0), 20)
    with client.batch():  # nothing else tells what was dropped before
        client.ops.scale(big, by=1.0)
    assert client.status()["devices"][0]["memory_used"] <= max(used)


def test_many_signatures(client):
    for n in range(1, 260):
        x = client.zeros((n % 130 + 1,))
        repeat(lambda: client.ops.scale(x, by=float(n % 130)), 4)  # noqa: B023
    for n in range(450):
        client.ops.scale(x, by=float(n))
    assert client.ops.scale(x, by=2.0).shape == x.shape


def test_after_an_upgrade(client, x):
    repeat(lambda: client.ops.scale(x, by=2.0))
    client.upgrade()
    for y in repeat(lambda: client.ops.scale(x, by=2.0)):
        assert y.numpy().tolist() == [0, 2, 4, 6]


def test_a_lost_connection(start_daemon, daemon, client, x):
    repeat(lambda: client.ops.scale(x, by=2.0))
    with daemon.connect() as other:
        other.stop()
    daemon.process.wait(PATIENCE)
    with pytest.raises(opd.ConnectionLost, match="forward: "):
        repeat(lambda: client.ops.scale(x, by=2.0))
    with pytest.raises(opd.ConnectionLost):
        client.ops.scale(x, by=2.0)


def test_a_connection_that_ends_is_no_reply(daemon, client, x):
    """Of the first call, too, of which it is not known yet how its reply will look."""
    dir(client.ops)
    repeat(lambda: client.ops.scale(x, by=2.0), 2)
    client.synchronize()  # `prepare` is answered
    with daemon.connect() as other:
        (executor,) = find_roles(daemon.pid, "executor")
        os.kill(executor, signal.SIGSTOP)

        def end_it():
            eventually(lambda: other._conn.call("status")["requests"].get("call"))
            os.kill(daemon.pid, signal.SIGKILL)

        ending = threading.Thread(target=end_it)
        ending.start()
        with pytest.raises(opd.ConnectionLost):
            client.ops.scale(x, by=2.0)
        ending.join()
    os.kill(executor, signal.SIGKILL)
    daemon.process.wait(PATIENCE)


def test_a_tensor_that_is_freed_within_the_call(client, x):
    """By another thread, or a finalizer: where ids are made, Python runs."""
    make_wires = client._link.make_wires
    client._link.make_wires = lambda: (x.free(), make_wires())
    with pytest.raises(opd.NotFound, match="was freed|no tensor"):
        repeat(lambda: client.ops.scale(x, by=2.0), 70)


def test_attributes_of_other_classes(client, x):
    class Word(str, enum.Enum):
        TANH = "tanh"

    expected = client.ops.gelu(x, approximate="tanh").numpy()
    for word in (Word.TANH, np.str_("tanh")):
        for y in repeat(lambda word=word: client.ops.gelu(x, approximate=word)):
            assert np.array_equal(y.numpy(), expected)


def test_threads(client):
    """Each gets its own results, from quick calls, batches and slow requests side by side."""
    xs = [client.tensor(np.full(4, i, np.float32)) for i in range(6)]
    errors, end = [], time.monotonic() + 2

    def work(i):
        try:
            while time.monotonic() < end:
                for _ in range(20):
                    y = client.ops.scale(xs[i], by=2.0)
                assert y.numpy()[0] == 2 * i
                if i == 1:
                    with client.batch():
                        ys = [client.ops.scale(xs[i], by=3.0) for _ in range(20)]
                    assert all(y.numpy()[0] == 3 * i for y in ys)
                if i == 2:
                    client.synchronize()
                if i == 3:
                    assert client.tensor(np.full(4, 7, np.float32)).numpy()[3] == 7
        except BaseException as e:
            errors.append(e)
            raise

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_references(daemon, client, x):
    """However a call ends, nothing is kept of it, and what it made is given up; in a cycle, too."""
    scale = client.ops.scale
    repeat(lambda: scale(x, by=2.0))
    (handle,) = {*client.ops._prepared[False]["scale"].quick.values()}
    held = (x, x._kind, x._wire, handle, client._link, client._conn, handle.parts)

    def fail():
        with pytest.raises(opd.NotFound, match="no tensor"):
            scale(gone, by=2.0)

    def cycle():
        ring = [scale(x, by=2.0)]
        ring.append(ring)

    for way in (lambda: scale(x, by=2.0), lambda: repeat(lambda: scale(x, by=2.0), 70), fail, cycle):
        gone = client.tensor(np.arange(4, dtype=np.float32))
        client._link.request("free", ("tensor", [gone._id]))
        way()
        gc.collect()
        before = len(client.tensors()), [sys.getrefcount(of) for of in held]  # results are kept until the first
        repeat(way, 20)
        gc.collect()
        assert (len(client.tensors()), [sys.getrefcount(of) for of in held]) == before, way


class Signalled(Exception):
    pass


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_signals_at_any_time(daemon):
    """A handler's exception leaves the connection usable, or lost with a word why; no reply goes to another call."""
    client = daemon.connect()
    x = client.tensor(np.arange(4, dtype=np.float32))
    repeat(lambda: client.ops.scale(x, by=2.0))

    def interrupt(*_):
        raise Signalled

    rng = np.random.default_rng(3)
    old = signal.signal(signal.SIGALRM, interrupt)
    lost = interrupted = 0
    try:
        for i in range(300):
            try:
                signal.setitimer(signal.ITIMER_REAL, float(rng.uniform(2e-6, 4e-4)))
                for _ in range(40):
                    client.ops.scale(x, by=2.0)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Signalled:
                interrupted += 1
            try:
                got = client.ops.scale(x, by=float(i)).numpy()
                assert got.tolist() == [0, i, 2 * i, 3 * i]
            except opd.ConnectionLost as e:
                assert "signal came in the middle" in str(e)
                lost += 1
                client = daemon.connect()
                x = client.tensor(np.arange(4, dtype=np.float32))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
        client.close()
    assert 100 < interrupted > lost, (interrupted, lost)


def test_a_signal_while_a_descriptor_waits_to_be_sent():
    """It goes all the same, though the signal's exception has ended the call, and that has closed it."""

    ours, theirs = socket.socketpair()
    conn = Connection(ours, "a socket", 60.0)
    came = []

    def interrupt(*_):
        if conn._out and not came:  # once, when it waits
            came.append(True)
            raise Signalled

    theirs.settimeout(60)
    with contextlib.suppress(BlockingIOError):
        while True:
            ours.send(bytes(1 << 16), socket.MSG_DONTWAIT)
    read, write = os.pipe()
    old = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
        with pytest.raises(Signalled):
            conn.send("shm_open", (1, 4096), fd=write)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    os.close(write)
    passed = []
    while not passed:
        conn.write()
        assert not conn.closed
        passed = socket.recv_fds(theirs, 1 << 16, 1)[1]
    conn.close()
    theirs.close()
    os.write(passed[0], b"through")
    os.close(passed[0])
    with open(read, "rb") as pipe:
        assert pipe.read() == b"through"  # and its end: no duplicate is left


def test_calls_of_a_batch_go_together():
    """The first at once, those behind it by sixteen, before another request, or when somebody waits."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    conn, batch = CallConnection(ours, "a socket", 60.0), Batch()

    def count():
        try:
            return theirs.recv(1 << 16).count(b"\x94\x00")
        except BlockingIOError:
            return 0

    seen = []
    for _ in range(40):
        conn.send_call(b"\x94\x00\x00\xa4call\x90", batch, None)
        seen.append(count())
    assert seen[0] == 1 and set(seen[1:]) == {0, 16} and sum(seen) == 33
    assert conn.write() and count() == 7
    conn.send_call(b"\x94\x00\x00\xa4call\x90", batch, None)
    conn.send("tensor_write", (1, 0, b"1"), batch=batch)
    assert count() == 2
    conn.close()
    theirs.close()


def test_the_timeout(start_daemon, tmp_path):
    """Silence ends the wait of a prepared call after the client's timeout; the connection stays usable."""
    daemon = start_daemon()
    with daemon.connect() as patient, daemon.connect() as client:
        pid = patient.status()["pid"]
        x = client.tensor(np.ones(4, np.float32))
        repeat(lambda: client.ops.gelu(x))
        client._conn.timeout = 0.3  # of a daemon that is stopped; a busy one may take as long
        os.kill(pid, signal.SIGSTOP)
        try:
            started = time.monotonic()
            with pytest.raises(opd.DeadlineExceeded, match="forward: the daemon .* sent nothing for 0.3 s"):
                client.ops.gelu(x)
            assert time.monotonic() - started < 20
        finally:
            os.kill(pid, signal.SIGCONT)
            client._conn.timeout = PATIENCE
        expected = patient.ops.gelu(np.ones(4, np.float32)).numpy()
        assert eventually(lambda: (client.ops.gelu(x).numpy() == expected).all())
