"""A request that changes nothing in place is run again when its executor is killed: once, and its
client does not notice."""

import os
import random
import signal
import struct
import threading
import time

import numpy as np
import pytest

import opd
from conftest import DEVICE
from operators import SPIN, put_kernels
from raw import Raw, RpcError, eventually, find_roles

on_cpu = pytest.mark.skipif(DEVICE != "cpu", reason="a kernel of a GPU sees no files")
ONE_TO_FOUR = struct.pack("4f", 1, 2, 3, 4)
TWO_TO_FIVE = struct.pack("4f", 2, 3, 4, 5)

# Adds one, once the file `go` is there; each time it begins, `begun` grows by a byte.
HELD = """\
//! op      held(Tensor x, *, str how="wait") -> Tensor y
//! dtypes  float32
//! words   how wait crash
//! shape   x [N]
//! shape   y [N]
//
//! forward
//!   kernel  held
//!   grid    1
//!   block   1
//! backward grad_x
//!   kernel  held
//!   bind    x = grad_y
//!   bind    y = grad_x
//!   grid    1
//!   block   1
extern "C" {
int open(const char *, int, ...);
long write(int, const void *, unsigned long);
int close(int);
int access(const char *, int);
int usleep(unsigned);
void abort(void);
}

__global__ void held(const float *x, float *y, int64_t N, int64_t how)
{
    int fd = open("FOLDER/begun", 02000 | 0100 | 1, 0600);
    write(fd, "x", 1);
    close(fd);
    y[0] = -1;
    if (how == 1)
        abort();
    while (access("FOLDER/go", 0) != 0)
        usleep(1000);
    for (int64_t i = 0; i < N; i++)
        y[i] = x[i] + 1;
}
"""
# The same, before it is loaded.
HELD_AT_LOAD = HELD.partition("//! backward")[0].replace("held", "held_at_load") + """
extern "C" {
int open(const char *, int, ...);
long write(int, const void *, unsigned long);
int access(const char *, int);
int usleep(unsigned);
}
__attribute__((constructor)) static void load()
{
    write(open("FOLDER/begun", 02000 | 0100 | 1, 0600), "x", 1);
    while (access("FOLDER/go", 0) != 0)
        usleep(1000);
}
__global__ void held_at_load(const float *x, float *y, int64_t N, int64_t how)
{
    for (int64_t i = 0; i < N; i++)
        y[i] = x[i] + 1;
}
"""
HELD_IN_PLACE = (
    HELD.partition("//! backward")[0]
    .replace("held(Tensor x, *", "held_in_place(Tensor(a!) x, *").replace("-> Tensor y", "-> ()")
    .replace("//! shape   y [N]\n", "").replace("//!   kernel  held\n", "//!   kernel  held\n//!   bind    y = x\n")
    + 'extern "C"' + HELD.partition('extern "C"')[2]
)  # fmt: skip


@pytest.fixture
def house(start_daemon, tmp_path):
    """A daemon with them; its process can be killed in the middle of their kernels."""
    sources = {n: s.replace("FOLDER", str(tmp_path)) for n, s in
               {"held": HELD, "held_at_load": HELD_AT_LOAD, "held_in_place": HELD_IN_PLACE}.items()}  # fmt: skip
    daemon = start_daemon("--kernels", put_kernels(tmp_path / "k", **sources))
    daemon.begun, daemon.go = tmp_path / "begun", tmp_path / "go"

    def kill(times):
        """Each time when the kernel has begun once more."""
        for n in range(1, times + 1):
            assert eventually(lambda: daemon.begun.exists() and daemon.begun.stat().st_size >= n)
            (pid,) = find_roles(daemon.pid, "executor")
            os.kill(pid, signal.SIGKILL)

    daemon.kill = kill
    return daemon


def counts(raw):
    device = raw.call("status")["devices"][0]
    return device["restarts"], device["reruns"]


@on_cpu
@pytest.mark.parametrize("method", ["forward", "call"])
def test_once_and_silently(house, method):
    with Raw(house.socket) as raw, Raw(house.socket) as other:
        raw.make(1, "float32", [4], ONE_TO_FOUR)
        if method == "call":
            raw.call("prepare", 9, "forward", "held", [["float32", [4]]], {})
            ids = [raw.request("call", 9, [1, 2])]
        else:
            ids = [raw.request("forward", "held", [1], {}, [2], {"context": 7})]
        ids.append(raw.request("tensor_read", 2, 0))
        house.kill(1)
        assert eventually(lambda: house.begun.stat().st_size == 2)
        house.go.touch()
        raw.wait(ids[0])
        assert raw.wait(ids[1]) == TWO_TO_FIVE
        assert counts(other) == (1, 1)
        events = other.call("events")["events"]
        assert any(e["kind"] == "device" and "signal 9" in e["message"] for e in events)


@on_cpu
def test_backward_too(house):
    with Raw(house.socket) as raw:
        raw.make(1, "float32", [4], ONE_TO_FOUR)
        house.go.touch()
        raw.call("forward", "held", [1], {}, [2], {"context": 7})
        house.go.unlink()
        house.begun.unlink()
        back = raw.request("backward", 7, [1], [3])
        house.kill(1)
        house.go.touch()
        raw.wait(back)
        assert raw.call("tensor_read", 3, 0) == TWO_TO_FIVE
        assert counts(raw) == (1, 1)


@on_cpu
def test_the_second_kill_is_an_error(house):
    with Raw(house.socket) as raw, Raw(house.socket) as other:
        raw.make(1, "float32", [4], ONE_TO_FOUR)
        ids = [raw.request("forward", "held", [1], {}, [2]), raw.request("tensor_read", 1, 0)]
        house.kill(2)
        with pytest.raises(RpcError, match=r"^held version 1 forward, kernel held \(x float32 \[4\]\): .*signal 9") as error:
            raw.wait(ids[0])
        assert error.value.code == "kernel_fault"
        assert raw.wait(ids[1]) == ONE_TO_FOUR
        assert raw.fail("tensor_info", 2).code == "not_found"
        assert counts(other) == (2, 1)
        house.go.touch()
        raw.call("forward", "held", [1], {}, [2])  # another one begins with nothing against it
        assert raw.call("tensor_read", 2, 0) == TWO_TO_FIVE


@on_cpu
@pytest.mark.parametrize("kills", [1, 2])
def test_a_kernel_is_loaded_again(house, kills):
    with Raw(house.socket) as raw:
        raw.make(1, "float32", [4], ONE_TO_FOUR)
        id = raw.request("forward", "held_at_load", [1], {}, [2])
        house.kill(kills)
        house.go.touch()
        if kills == 1:
            raw.wait(id)
            assert raw.call("tensor_read", 2, 0) == TWO_TO_FIVE
        else:
            with pytest.raises(RpcError, match="signal 9"):
                raw.wait(id)


@on_cpu
@pytest.mark.parametrize("how", ["in place", "into"])
def test_what_is_changed_in_place_is_suspect(house, how):
    with Raw(house.socket) as raw:
        raw.make(1, "float32", [4], ONE_TO_FOUR)
        raw.make(2, "float32", [4], ONE_TO_FOUR)
        target = 2 if how == "into" else 1
        if how == "in place":
            id = raw.request("forward", "held_in_place", [1], {}, [])
        else:
            id = raw.request("forward", "held", [1], {}, [None], {"into": [target]})
        house.kill(1)
        with pytest.raises(RpcError) as error:
            raw.wait(id)
        assert error.value.code == "kernel_fault" and "signal 9" in str(error.value)
        assert "suspect" in str(raw.fail("tensor_read", target, 0))
        assert raw.call("tensor_read", 3 - target, 0) == ONE_TO_FOUR
        assert house.begun.stat().st_size == 1 and counts(raw) == (1, 0)


@on_cpu
def test_what_a_kernel_does_itself_is_not_repeated(house):
    with Raw(house.socket) as raw:
        raw.make(1, "float32", [4], ONE_TO_FOUR)
        assert "abort()" in str(raw.fail("forward", "held", [1], {"how": "crash"}, [2]))
        ran = house.begun.stat().st_size  # again, by the executor itself, to find the line
        error = raw.fail("forward", "held", [1], {}, [2], {"deadline": 0.2})
        assert error.code == "deadline_exceeded"
        assert house.begun.stat().st_size == ran + 1 and counts(raw) == (2, 0)


@on_cpu
def test_a_stopped_one_misses_its_deadline(house):
    with Raw(house.socket) as raw:
        raw.make(1, "float32", [4], ONE_TO_FOUR)
        (pid,) = find_roles(house.pid, "executor")
        id = raw.request("forward", "held", [1], {}, [2], {"deadline": 0.5})
        assert eventually(house.begun.exists)
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(RpcError) as error:
            raw.wait(id)
        assert error.value.code == "deadline_exceeded" and counts(raw) == (1, 0)


def test_kills_at_random_cost_nobody_anything(start_daemon, tmp_path):
    """Each time all have gone on for a bit; one client has the device at work for most of the time, and it goes on
    until a kill has met a run."""
    daemon = start_daemon("--kernels", put_kernels(tmp_path / "k", spin=SPIN))
    stop, turns = threading.Event(), [0, 0, 0, 0]
    errors = []
    owner = daemon.connect()
    xs = [f"x{n}" for n in range(3)]
    for n, name in enumerate(xs):
        owner.tensor(np.linspace(-3, 3, 1 << (6 + 6 * n), dtype=np.float32), name=name)

    def forward_and_backward(client, x):
        y, context = client.ops.gelu.forward(x)
        return y.numpy().tobytes() + context.backward(y)[0].numpy().tobytes()

    def spin(client, x):
        return client.ops.spin(x, rounds=1_000_000).numpy().tobytes()

    def work(n):
        run = spin if n == 3 else forward_and_backward
        with daemon.connect() as client:
            x, want = xs[n % 3], None
            try:
                while not stop.is_set() and not errors:
                    got = run(client, client.attach(x))
                    want = want or got
                    assert got == want, "another result"
                    turns[n] += 1
            except (opd.OpdError, AssertionError) as error:
                errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    rng, raw, kills = random.Random(1), Raw(daemon.socket), 0
    while kills < 30 or (counts(raw)[1] == 0 and kills < 1000):
        kills += 1
        before = list(turns)
        assert eventually(lambda: errors or all(t > b + 1 for t, b in zip(turns, before)), 60), turns
        time.sleep(rng.random() * 0.02)
        for pid in find_roles(daemon.pid, "executor"):
            os.kill(pid, signal.SIGKILL)
    stop.set()
    for thread in threads:
        thread.join()
    assert not errors, errors
    owner.close()
    with raw:
        restarts, reruns = counts(raw)
        assert restarts > 20 and 0 < reruns <= restarts
