"""A device's memory: what is freed serves again at once, though the device is still at work in it;
what is not wanted any more goes back to the device after a moment, or when it has none left."""

import os
import resource
import signal
import time

import numpy as np
import pytest

from conftest import DEVICE
from raw import Raw, eventually, find_roles

MIB = 1 << 20
# Its first thread reads x[0] so many times first, so that requests pile up behind it.
SLOW = """
//! op      slow(Tensor x, *, int rounds=0) -> Tensor y
//! dtypes  float32
//! shape   x [N]
//! shape   y [N]
//! example x=[4]
//!
//! forward
//!   kernel slow
//!   grid   cdiv(N, 1024)
//!   block  256

extern "C" __global__ void slow(const float *x, float *y, int64_t rounds, int64_t N)
{
    const volatile float *p = x;
    float sum = 0;
    for (int64_t i = 0; blockIdx.x == 0 && threadIdx.x == 0 && i < rounds; i++)
        sum += p[0] * 0;
    CUDA_KERNEL_LOOP(i, N)
        y[i] = x[i] + 1 + sum;
}
"""
ROUNDS = 100_000_000 if DEVICE == "cpu" else 5_000_000  # some tenths of a second


@pytest.fixture
def kernels(tmp_path):
    (tmp_path / "slow.cu").write_text(SLOW)
    return ("--kernels", str(tmp_path))


def reserved(raw):
    (device,) = raw.call("status")["devices"]
    return device["memory_reserved"]


def limit_mapping(daemon, more):
    """So many bytes the executor may map beside what it has."""
    (executor,) = find_roles(daemon.pid, "executor")
    with open(f"/proc/{executor}/statm") as statm:
        mapped = int(statm.read().split()[0]) * resource.getpagesize()
    resource.prlimit(executor, resource.RLIMIT_AS, (mapped + more, mapped + more))


@pytest.mark.parametrize("how", ["drop", "free", "close"])
def test_results_that_are_given_up_before_they_are_made(start_daemon, kernels, how):
    """Fifty results of 16 MiB, one after the other, in 64 MiB, while the device is busy."""
    daemon = start_daemon(*kernels, "--memory-limit", "64M")
    n = 4 * MIB
    data = np.arange(n, dtype=np.float32)
    with Raw(daemon.socket) as raw, Raw(daemon.socket) as other:
        raw.make(1, "float32", [n], data.tobytes(), "x")
        raw.make(2, "float32", [1])
        raw.call("forward", "slow", [1], {}, [4])
        raw.call("free", "tensor", [4], {"drop": True})
        busy = raw.request("forward", "slow", [2], {"rounds": ROUNDS}, [3])
        if how == "close":
            for _ in range(50):
                with Raw(daemon.socket) as gone:
                    gone.request("tensor_attach", 1, "x")
                    gone.request("forward", "slow", [1], {}, [4])
                    gone.notify("tensor_info", 1)
                assert eventually(lambda: len(other.call("status")["clients"]) <= 2)
        else:
            sent = []
            for _ in range(50):
                sent.append(raw.request("forward", "slow", [1], {}, [4]))
                sent.append(raw.request("free", "tensor", [4], {"drop": how == "drop"}))
            assert eventually(lambda: other.call("status")["devices"][0]["queued"] > 50)
            for msgid in sent:
                raw.wait(msgid)
        raw.wait(busy)
        raw.call("forward", "slow", [1], {}, [4])
        assert raw.call("tensor_read", 4, 0) == (data + 1).tobytes()
        assert raw.call("tensor_read", 1, 0) == data.tobytes()
        assert reserved(raw) <= 64 * MIB
    daemon.stop()


def test_a_result_that_is_given_up_and_fails(start_daemon, kernels):
    """Its memory is another's by then, who is not taken along."""
    daemon = start_daemon(*kernels, "--deadline", "0.3")
    with Raw(daemon.socket) as raw:
        raw.make(1, "float32", [MIB])
        raw.call("forward", "slow", [1], {}, [2])
        raw.call("free", "tensor", [2], {"drop": True})
        fails = raw.request("forward", "slow", [1], {"rounds": 1 << 60}, [2])
        raw.notify("free", "tensor", [2], {"drop": True})
        good = raw.request("forward", "slow", [1], {}, [2])
        (code, _) = refuse(raw, fails)
        assert code == "deadline_exceeded"
        raw.wait(good)
        assert raw.call("tensor_read", 2, 0) == np.ones(MIB, np.float32).tobytes()
        assert raw.call("status")["devices"][0]["tensors"] == 2
    daemon.stop()


def refuse(raw, msgid):
    with pytest.raises(Exception) as caught:
        raw.wait(msgid)
    return caught.value.code, str(caught.value)


def test_chunks_stay_for_a_moment(start_daemon):
    daemon = start_daemon()
    with Raw(daemon.socket) as raw:
        size = 300 * MIB  # a chunk of its own on every device
        for _ in range(3):
            for id in (1, 2, 3):
                raw.call("tensor_new", id, "uint8", [size])
            full = reserved(raw)
            assert full >= 3 * size
            begin = time.monotonic()
            raw.call("free", "tensor", [1, 2, 3])
            early = reserved(raw) == full
            assert early or time.monotonic() - begin > 1, "what may be wanted again has gone"
        assert eventually(lambda: reserved(raw) == size), reserved(raw)
        assert time.monotonic() - begin > 0.9
        time.sleep(0.5)  # two looks of the daemon later
        assert reserved(raw) == size, "one is kept"
    daemon.stop()


def test_a_chunk_whose_client_has_gone_meanwhile(start_daemon):
    """Nobody uses it, so nobody frees what is in it."""
    daemon = start_daemon()
    size = 300 * MIB
    with Raw(daemon.socket) as raw:
        raw.call("tensor_new", 1, "uint8", [size])
        raw.call("free", "tensor", [1])
        time.sleep(1)  # the daemon has looked what is empty, and has kept this one
        (executor,) = find_roles(daemon.pid, "executor")
        os.kill(executor, signal.SIGSTOP)
        with Raw(daemon.socket) as gone:
            gone.request("tensor_new", 1, "uint8", [2 * size])
            assert eventually(lambda: raw.call("status")["devices"][0]["queued"] > 0)
        assert eventually(lambda: raw.call("status")["connections"] == 1)
        os.kill(executor, signal.SIGCONT)
        assert eventually(lambda: reserved(raw) == 2 * size), reserved(raw)
    daemon.stop()


@pytest.mark.skipif(DEVICE != "cpu", reason="a GPU's memory cannot be limited so")
def test_unused_chunks_make_room(start_daemon):
    """The executor may map 500 MiB more: enough for three or for a large one, not for all."""
    daemon = start_daemon()
    with Raw(daemon.socket) as raw:
        raw.make(1, "uint8", [1])
        limit_mapping(daemon, 500 * MIB)
        for id in (2, 3, 4):
            raw.call("tensor_new", id, "uint8", [100 * MIB])
        raw.call("free", "tensor", [2, 3, 4])
        raw.call("tensor_new", 2, "uint8", [350 * MIB])
        error = raw.fail("tensor_new", 3, "uint8", [350 * MIB])
        assert error.code == "out_of_memory"
        raw.call("free", "tensor", [2])
        raw.call("tensor_new", 3, "uint8", [200 * MIB])
    daemon.stop()


PAIR = """
//! op      pair(Tensor x, *, int n) -> (Tensor a, Tensor b)
//! dtypes  float32
//! shape   x [1]
//! shape   a [n]
//! shape   b [n]
//! example x=[1] n=4
//!
//! forward
//!   kernel pair

extern "C" __global__ void pair(const float *x, float *a, float *b, int64_t n)
{
    CUDA_KERNEL_LOOP(i, n)
        a[i] = b[i] = x[0];
}
"""


@pytest.mark.skipif(DEVICE != "cpu", reason="a GPU's memory cannot be limited so")
def test_two_results_of_which_one_has_room(start_daemon, tmp_path):
    """Each is given up when the other has none: that is no room for the other."""
    (tmp_path / "pair.cu").write_text(PAIR)
    daemon = start_daemon("--kernels", str(tmp_path))
    with Raw(daemon.socket) as raw:
        raw.make(1, "float32", [1])
        raw.call("forward", "pair", [1], {"n": 4}, [2, 3])
        limit_mapping(daemon, 500 * MIB)
        error = raw.fail("forward", "pair", [1], {"n": 300 * MIB // 4}, [4, 5])
        assert error.code == "out_of_memory", error
        raw.call("forward", "pair", [1], {"n": 150 * MIB // 4}, [4, 5])
    daemon.stop()
