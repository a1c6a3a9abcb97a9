"""What a kernel that fails costs: its request, and certainty about what it was writing; no more."""

import itertools
import os
import signal
import threading
import time

import numpy as np
import pytest

import opd
from conftest import DEVICE, PATIENCE, TEST_SECONDS
from raw import Raw, RpcError, find_roles

# In place, in three launches; the second does not return where `stuck`, and faults where `bad`.
STEPS = """
//! op      steps(Tensor(a!) x, *, bool stuck=False, bool bad=False, int rounds=1) -> ()
//! dtypes  float32 float64
//! shape   x [...S]
//! let     n = numel(x)
//! example x=[4]
//
//! forward
//!   kernel steps_first
//!   grid   1
//!   kernel steps_second<scalar_t>
//!   grid   1
//!   kernel steps_third
//!   grid   1

__global__ void steps_first(scalar_t *x, int64_t n)
{
    CUDA_KERNEL_LOOP(i, n)
        x[i] += 1;
}

template <typename T>
__global__ void steps_second(T *x, int64_t n, bool stuck, bool bad, int64_t rounds)
{
    volatile T *p = x;
    T sum = 0;
    while (stuck)
        sum += p[0];
    if (bad)
        p[1ll << 44] = 1;
    for (int64_t i = 0; threadIdx.x == 0 && i < rounds; i++)
        sum = sum * T(0.999) + T(0.001);
    if (threadIdx.x == 0 && sum == T(-1))
        p[0] = sum;
}

__global__ void steps_third(scalar_t *x, int64_t n)
{
    CUDA_KERNEL_LOOP(i, n)
        x[i] += 1;
}
"""
FAULT = {"bad": True}


@pytest.fixture
def kernels(tmp_path):
    folder = tmp_path / "k"
    folder.mkdir()
    (folder / "steps.cu").write_text(STEPS)
    return str(folder)


@pytest.fixture
def daemon(start_daemon, kernels):
    return start_daemon("--kernels", kernels)


@pytest.fixture
def client(daemon):
    with daemon.connect() as client:
        client.ops.steps(client.zeros(4))  # compiled
        yield client


def test_the_error_says_what_failed_at_what(client):
    x = client.zeros((2, 3))
    with pytest.raises(opd.KernelFault) as e:
        client.ops.steps(x, bad=True)
    assert str(e.value).startswith(
        "steps version 1 forward, kernel steps_second<scalar_t> (x float32 [2, 3]): "
    ), str(e.value)
    if DEVICE != "cpu":
        assert "CUDA_ERROR_ILLEGAL_ADDRESS" in str(e.value)
    assert e.value.op == "steps"


def test_the_kernel_is_named_among_hundreds_that_were_not_waited_for(client):
    tensors = [client.tensor(np.full(5, i, np.float32)) for i in range(100)]
    gelus = []
    with pytest.raises(opd.KernelFault, match=r"kernel steps_second<scalar_t> \(x float32 \[5\]\)"):
        with client.batch():
            for i, x in enumerate(tensors):
                client.ops.steps(x, bad=i == 50)
                gelus.append(x.gelu())
    # Each but the one that failed has run exactly once, before the fault or after it.
    for i, x in enumerate(tensors):
        if i == 50:
            assert "steps_second" in x.suspect
        else:
            assert x.numpy().tolist() == [i + 2] * 5
            assert gelus[i].shape == (5,)


def test_suspect_until_it_is_written_again(client, daemon):
    a = np.arange(12, dtype=np.float32).reshape(3, 4)
    x, other = client.tensor(a, name="weights"), client.tensor(a)
    view, rest = x.view((4,), offset=4), x.view((4,), offset=8)
    with pytest.raises(opd.KernelFault):
        client.ops.steps(view, bad=True)
    told = "'weights'.* is suspect: .*steps version 1 forward, kernel steps_second.*write all of it"
    uses = (x.numpy, x.gelu, lambda: client.ops.steps(x), lambda: client.ops.gelu.forward(x))
    for use in uses:
        with pytest.raises(opd.InvalidArgument, match=told):
            use()
    with pytest.raises(opd.InvalidArgument, match="suspect"):
        view.numpy()
    # Everything else is as it was, the rest of its memory too.
    assert rest.numpy().tolist() == [8, 9, 10, 11] and rest.suspect is None
    assert x.read(0, 4).tolist() == [0, 1, 2, 3]
    assert (other.numpy() == a).all() and other.suspect is None
    with daemon.connect() as second:
        y = second.attach("weights")
        assert "steps_second" in y.suspect
        (listed,) = second.tensors()
        assert listed["suspect"] == y.suspect
        with pytest.raises(opd.InvalidArgument, match="suspect"):
            y.numpy()
        with pytest.raises(opd.InvalidArgument, match="suspect"):
            y.read(6, 1)
    view.write(np.full(4, 7, np.float32))
    assert x.suspect is None
    assert x.numpy().tolist() == [[0, 1, 2, 3], [7] * 4, [8, 9, 10, 11]]
    client.ops.steps(x)
    assert x.read(4, 1).tolist() == [9]
    x.free()


def test_a_part_that_is_written_again_is_sound(client):
    x = client.zeros(8)
    with pytest.raises(opd.KernelFault):
        client.ops.steps(x, bad=True)
    x.view((2,), offset=3).write(np.ones(2, np.float32))
    assert x.read(3, 2).tolist() == [1, 1]
    for begin, count in ((2, 2), (4, 2), (0, 1), (7, 1)):
        with pytest.raises(opd.InvalidArgument, match="suspect"):
            x.read(begin, count)
    x.view((3,)).write(np.ones(3, np.float32))
    x.view((3,), offset=5).write(np.ones(3, np.float32))
    assert x.suspect is None and x.numpy().tolist() == [1] * 8


def test_large_tensors_are_written_again_in_pieces(client):
    n = 9_000_000
    x = client.zeros(n)
    with pytest.raises(opd.KernelFault):
        client.ops.steps(x, bad=True)
    x.write(np.arange(n, dtype=np.float32))
    assert x.suspect is None and (x.numpy() == np.arange(n, dtype=np.float32)).all()


def test_accept(client):
    x = client.zeros(4)
    with pytest.raises(opd.KernelFault):
        client.ops.steps(x, bad=True)
    x.accept()
    assert x.suspect is None
    assert set(x.numpy()) <= {0, 1, 2}
    with Raw(client.socket) as raw:
        assert raw.fail("tensor_accept", [x._id]).code == "not_found"


def test_what_was_sent_after_it(client):
    """Without waiting: what uses it fails as well, and writing it again makes it sound."""
    x, y = client.zeros(4), client.zeros(4)
    with pytest.raises(opd.KernelFault), client.batch():
        client.ops.steps(x, bad=True)
        z = x.gelu()
        client.ops.steps(x)
        w = y.gelu()
    with pytest.raises(opd.InvalidArgument, match="suspect: .*steps_second"):
        z.numpy()
    assert w.numpy().tolist() == [0] * 4
    assert x.suspect
    with pytest.raises(opd.KernelFault), client.batch():
        client.ops.steps(y, bad=True)
        y.write(np.full(4, 5, np.float32))
        client.ops.steps(y)
        v = y.view((2,))
    assert y.numpy().tolist() == [7] * 4 and y.suspect is None
    assert v.numpy().tolist() == [7] * 2


def test_a_hang_makes_suspect_too(client):
    x = client.zeros(4)
    with pytest.raises(opd.DeadlineExceeded, match="kernel steps_second.*deadline of 0.3 s"):
        client.ops.steps(x, stuck=True, deadline=0.3)
    assert "deadline of 0.3 s" in x.suspect


@pytest.mark.usefixtures("client")
def test_what_has_ended_is_told_before_the_next(daemon):
    """A hang behind it has its own deadline, and keeps nobody waiting."""
    with Raw(daemon.socket) as raw:
        for n in range(8 if DEVICE == "cpu" else 2):
            raw.make(2 * n + 1, "float32", [4])
            raw.make(2 * n + 2, "float32", [4])
            short = raw.request("forward", "steps", [2 * n + 1], {}, [])
            stuck = raw.request("forward", "steps", [2 * n + 2], {"stuck": True}, [], {"deadline": 0.1})
            raw.wait(short)
            with pytest.raises(RpcError, match=r"deadline of 0\.1 s"):
                raw.wait(stuck)


def test_killed_before_it_has_begun(daemon, client):
    """What the dead executor had not begun has not happened, and is run again."""
    x, y = client.zeros(4), client.zeros(4)
    (executor,) = find_roles(daemon.pid, "executor")
    os.kill(executor, signal.SIGSTOP)
    with client.batch():
        client.ops.steps(y)
        client.ops.steps(x)
        z = x.gelu()
        os.kill(executor, signal.SIGKILL)
    assert x.suspect is None
    assert x.numpy().tolist() == [2] * 4 and y.numpy().tolist() == [2] * 4
    assert z.shape == (4,)


def test_writes_that_a_kill_interrupts(daemon):
    """Whatever is read without an error is what was written. Kills come within a write, wherever in it."""
    size = 8 << 20
    with daemon.connect() as client:
        tensors = [client.tensor(np.zeros(size, np.uint8)) for _ in range(4)]
        may_hold = [{0} for _ in tensors]
        stop, served, writing = threading.Event(), threading.Event(), threading.Event()
        took = 0.01

        def kill():
            for n in itertools.count():
                if n % 5:  # else it may be the next one's start that is interrupted
                    served.wait(PATIENCE)
                served.clear()
                pids = find_roles(daemon.pid, "executor")
                writing.clear()
                if stop.is_set():  # which is so before the last of what is waited for
                    return
                writing.wait(PATIENCE)
                time.sleep(took * (n % 7) / 6)
                for pid in pids:
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        pass

        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        value = reads = errors = 0
        # A kill that comes late meets no write, on a busy machine most do. A GPU's executor is slow to begin.
        enough = time.monotonic() + (TEST_SECONDS / 2 if DEVICE == "cpu" else 20)
        while (reads < 30 or errors < 10) and time.monotonic() < enough:
            value = value % 250 + 1
            for t, may in zip(tensors, may_hold):
                may.add(value)
                begin = time.monotonic()
                writing.set()
                try:
                    t.write(np.full(size, value, np.uint8))
                    took = time.monotonic() - begin
                    may.clear()
                    may.add(value)
                except opd.OpdError:
                    errors += 1  # what of it had not begun has not happened
                try:
                    got = t.numpy().tobytes()
                except opd.OpdError:
                    errors += 1
                    continue
                assert not got.translate(None, bytes(may))
                served.set()
                reads += 1
        stop.set()
        for event in served, writing:
            event.set()
        killer.join()
        assert DEVICE != "cpu" or errors >= 10


def test_edits_and_kills_under_load(daemon, kernels):
    """What a dead executor had not begun is run with the kernels of its own version, which the edit
    meanwhile was about to unload."""
    with Raw(daemon.socket) as raw, daemon.connect() as other:
        stop, unexpected, kills = threading.Event(), [], 0
        codes = ("kernel_fault", "not_found")

        def edit():
            n = 0
            while not stop.is_set():
                n += 1
                with open(f"{kernels}/steps.cu", "w") as f:
                    f.write(STEPS + f"// {n % 7}\n")
                other.reload()

        raw.make(1, "float32", [4])
        raw.call("forward", "steps", [1], {}, [])
        editor = threading.Thread(target=edit)
        editor.start()
        while kills < 30:
            ids = []
            for i in range(100, 160):
                ids.append(raw.request("tensor_new", i, "float32", [4]))
                ids.append(raw.request("forward", "steps", [i], {"rounds": 50000}, []))
                if i == 140:
                    for pid in find_roles(daemon.pid, "executor"):
                        os.kill(pid, signal.SIGKILL)
                        kills += 1
            for id in ids:
                try:
                    raw.wait(id)
                except RpcError as e:
                    unexpected += [e] if e.code not in codes else []
            raw.call("free", "tensor", list(range(100, 160)), {"drop": True})
        stop.set()
        editor.join()
        assert not unexpected, unexpected[:3]


# --- deadlines, debugging

ROUNDS = 450_000_000 if DEVICE == "cpu" else 200_000_000  # more than half a second, by one thread


def put_with_deadline(folder, seconds):
    with open(f"{folder}/slow.cu", "w") as f:
        f.write(
            STEPS.replace("op      steps(", "op      slow(").replace(
                "//! let", f"//! deadline {seconds}\n//! let"
            )
        )


def test_an_operators_own_deadline(start_daemon, kernels):
    put_with_deadline(kernels, 60)
    with start_daemon("--kernels", kernels, "--deadline", "1").connect() as client:
        x = client.zeros(1)
        client.ops.slow(x)
        rounds, took = ROUNDS, 0.0
        while took < 1.2:  # longer than the daemon's deadline
            rounds *= 2
            begin = time.monotonic()
            client.ops.slow(x, rounds=rounds)
            took = time.monotonic() - begin
        # The call's own goes before it.
        with pytest.raises(opd.DeadlineExceeded, match="deadline of 0.1 s"):
            client.ops.slow(x, rounds=50 * rounds, deadline=0.1)
        x = client.zeros(1)
        with pytest.raises(opd.DeadlineExceeded, match="deadline of 1 s"):
            client.ops.steps(x, rounds=50 * rounds)
        put_with_deadline(kernels, 0.3)
        client.reload()
        x = client.zeros(1)
        with pytest.raises(opd.DeadlineExceeded, match="deadline of 0.3 s"):
            client.ops.slow(x, rounds=50 * rounds)
        for wrong in ("0", "-1", "soon", "", "1 2"):
            put_with_deadline(kernels, wrong)
            with pytest.warns(opd.ReloadWarning, match="slow.cu:5: expected seconds above 0|slow.cu:5: "):
                client.reload()


def test_a_client_waits_as_long_as_the_operator_may_take(start_daemon, kernels):
    put_with_deadline(kernels, 60)
    daemon = start_daemon("--kernels", kernels)
    with daemon.connect() as client:
        client.ops.slow(client.zeros(1))
    with daemon.connect() as client:
        x = client.zeros(1)
        client._conn.timeout = 0.1
        client.ops.slow(x, rounds=ROUNDS)


def test_debug_of_a_call(client):
    x, y = client.zeros(4), client.zeros(4)
    with client.batch():
        for _ in range(20):
            client.ops.steps(y)
        client.ops.steps(x, debug=True)
    assert x.numpy().tolist() == [2] * 4 and y.numpy().tolist() == [40] * 4
    with pytest.raises(opd.KernelFault, match="kernel steps_second<scalar_t> ") as e:
        client.ops.steps(x, bad=True, debug=True)
    assert "or a later one" not in str(e.value)
    z, ctx = client.ops.gelu.forward(y, debug=True)
    (grad,) = ctx.backward(z, debug=True)
    assert grad.shape == (4,)
    with pytest.raises(TypeError, match="debug"):
        client.ops.steps(x, debug=1)
    with Raw(client.socket) as raw:
        raw.make(1, "float32", [4])
        error = raw.fail("forward", "gelu", [1], {}, [2], {"debug": 1})
        assert error.code == "invalid_argument" and "debug" in str(error)


@pytest.mark.parametrize("how", ["option", "environment"])
def test_debug_of_the_daemon(start_daemon, kernels, monkeypatch, how):
    options = ["--debug"] if how == "option" else []
    if how == "environment":
        monkeypatch.setenv("OPD_DEBUG", "1")
    with start_daemon("--kernels", kernels, *options).connect() as client:
        assert client.status()["debug"] is True
        x = client.zeros(4)
        client.ops.steps(x)
        assert x.numpy().tolist() == [2] * 4
        with pytest.raises(opd.KernelFault, match="kernel steps_second<scalar_t> "):
            with client.batch():
                for i in range(100):
                    client.ops.steps(client.zeros(4), bad=i == 50)
