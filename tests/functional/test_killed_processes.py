"""Broker, executors and compilers that are killed, stopped, or too slow."""

import os
import re
import signal
import struct
import time

import pytest

from conftest import PATIENCE, await_end, find_family
from operators import ROUNDS, SPIN, double_by, put_kernels
from raw import Raw, RpcError, await_kernel, eventually, find_roles


def test_broker_killed(tmp_path, start_daemon, slow_cxx):
    """Executors and compilers end with it, and what the compilers had started."""
    daemon = start_daemon("--cache", "", "--warm", device="cpu")
    assert eventually(slow_cxx.begun.exists)
    family = find_family(daemon.pid)
    assert len(family) > 3
    daemon.process.kill()
    daemon.process.wait(PATIENCE)
    assert not await_end(family)
    assert not list(tmp_path.glob("opd-*")), "temporary files are left"


def device_of(raw):
    return raw.call("status")["devices"][0]


def test_executor_killed(start_daemon, tmp_path):
    daemon = start_daemon("--kernels", put_kernels(tmp_path / "k", spin=SPIN))
    with Raw(daemon.socket) as raw, Raw(daemon.socket) as other:
        raw.make(1, "float32", [4], b"0123456789abcdef")
        other.make(1, "uint8", [100000], b"x" * 100000, name="kept")
        raw.call("forward", "spin", [1], {"rounds": 1}, [2])
        ids = [
            raw.request("forward", "spin", [1], {"rounds": ROUNDS * 5}, [3]),
            raw.request("tensor_read", 1, 0),
        ]
        for n in range(2):  # the first time it is run again
            assert eventually(lambda n=n: device_of(other)["restarts"] == n)
            assert eventually(lambda: device_of(other)["state"] == "ready")
            assert device_of(other)["queued"] > 0
            (executor,) = find_roles(daemon.pid, "executor")
            await_kernel(executor)  # what has not begun is run again, and no error
            os.kill(executor, signal.SIGKILL)
        with pytest.raises(RpcError) as error:
            raw.wait(ids[0])
        assert error.value.code == "kernel_fault"
        assert re.search(
            r"^spin version 1 forward, kernel spin \(x float32 \[4\]\): .*signal 9", str(error.value)
        )
        # What had not begun is run by the next one.
        assert raw.wait(ids[1]) == b"0123456789abcdef"
        assert raw.fail("tensor_info", 3).code == "not_found"
        assert raw.call("tensor_read", 1, 0) == b"0123456789abcdef"
        assert other.call("tensor_read", 1, 0) == b"x" * 100000
        raw.call("forward", "spin", [1], {"rounds": 1}, [3])
        device = device_of(raw)
        assert (device["restarts"], device["reruns"], device["state"]) == (2, 1, "ready")
        (successor,) = find_roles(daemon.pid, "executor")
        assert successor != executor
        other.call("free", "tensor", [1])


def test_how_long_it_was_busy_is_never_less(start_daemon, tmp_path):
    """What was running when it was killed is run again, and that time counts, too."""
    daemon = start_daemon("--kernels", put_kernels(tmp_path / "k", spin=SPIN))
    with Raw(daemon.socket) as raw, Raw(daemon.socket) as other:
        raw.make(1, "float32", [4])
        raw.call("forward", "spin", [1], {"rounds": 1}, [2])
        spin = raw.request("forward", "spin", [1], {"rounds": ROUNDS * 5}, [3])
        assert eventually(lambda: device_of(other)["busy"] > 0.3)
        (executor,) = find_roles(daemon.pid, "executor")
        told = [device_of(other)]
        os.kill(executor, signal.SIGKILL)
        assert eventually(lambda: told.append(device_of(other)) or told[-1]["queued"] == 0)
        raw.wait(spin)
        assert told[-1]["reruns"] == 1
        busy = [device["busy"] for device in told]
        assert busy == sorted(busy)


# On the CPU its image is not loaded while the first file is there; the second tells who waits.
SLOW_TO_LOAD = """
//! op      slow_to_load(Tensor x) -> Tensor y
//! dtypes  float32
//! shape   x [N]
//! shape   y [N]
//! example x=[4]
//!
//! forward
//!   kernel slow_to_load

extern "C" int access(const char *, int);
extern "C" int creat(const char *, unsigned);
extern "C" int usleep(unsigned);
__attribute__((constructor)) static void load()
{
    if (access("%s", 0) == 0)
        creat("%s", 0600);
    while (access("%s", 0) == 0)
        usleep(1000);
}

extern "C" __global__ void slow_to_load(const float *x, float *y, int64_t N)
{
    CUDA_KERNEL_LOOP(i, N)
        y[i] = x[i] + 1;
}
"""


@pytest.mark.parametrize("deaths", [1, 2, 3])
def test_executor_killed_while_it_loads_a_kernel_again(start_daemon, tmp_path, deaths):
    """The kernel is not at fault, and what waits for it is served; at the third time it may be. (A spare would
    have loaded it before.)"""
    slow, loading = tmp_path / "slow", tmp_path / "loading"
    folder = put_kernels(tmp_path / "k", slow_to_load=SLOW_TO_LOAD % (slow, loading, slow))
    daemon = start_daemon("--kernels", folder, "--spare", "off", device="cpu")
    with Raw(daemon.socket) as raw, Raw(daemon.socket) as other:
        raw.make(1, "float32", [4], struct.pack("4f", 1, 2, 3, 4))
        raw.call("forward", "slow_to_load", [1], {}, [2])
        slow.touch()

        def kill():
            (executor,) = find_roles(daemon.pid, "executor")
            restarts = other.call("status")["devices"][0]["restarts"]
            loading.unlink(missing_ok=True)
            os.kill(executor, signal.SIGKILL)
            assert eventually(
                lambda: other.call("status")["devices"][0]["restarts"] > restarts
                and other.call("status")["devices"][0]["state"] == "ready"
            )

        kill()
        sent = [raw.request("forward", "slow_to_load", [1], {}, [3 + i]) for i in range(3)]
        for _ in range(deaths):
            assert eventually(loading.exists)
            kill()
        assert deaths == 3 or eventually(loading.exists)
        slow.unlink()
        for msgid in sent:
            if deaths < 3:
                raw.wait(msgid)
                continue
            with pytest.raises(RpcError, match="could not be loaded again .* try again") as error:
                raw.wait(msgid)
            assert error.value.code == "unavailable"
        raw.call("forward", "slow_to_load", [1], {}, [9])
        assert raw.call("tensor_read", 9, 0) == struct.pack("4f", 2, 3, 4, 5)


def test_executor_killed_again_and_again(start_daemon):
    daemon = start_daemon()
    with Raw(daemon.socket) as raw:
        raw.make(1, "float32", [4], b"0123456789abcdef")
        raw.call("forward", "gelu", [1], {}, [2])
        result = raw.call("tensor_read", 2, 0)
        for _ in range(5):
            for pid in find_roles(daemon.pid, "executor"):
                os.kill(pid, signal.SIGKILL)
            raw.call("forward", "gelu", [1], {}, [3])
            assert raw.call("tensor_read", 3, 0) == result
            raw.call("free", "tensor", [3])
        assert raw.call("tensor_read", 1, 0) == b"0123456789abcdef"
        assert raw.call("status")["devices"][0]["restarts"] == 5


def test_clients_go_while_the_executor_dies(start_daemon):
    """Whatever is freed, unmapped and retried at that moment."""
    daemon = start_daemon()
    for round in range(10):
        clients = [Raw(daemon.socket) for _ in range(5)]
        for c in clients:
            c.request("tensor_new", 1, "float32", [1 << 20])
            for i in range(4):
                c.request("forward", "gelu", [1], {}, [2 + i], {"context": i + 1})
                c.request("free", "tensor", [2 + i])
        time.sleep(0.02 * (round % 4))
        for pid in find_roles(daemon.pid, "executor"):
            os.kill(pid, signal.SIGKILL)
        for c in clients[: round % 5]:
            c.close()
        with Raw(daemon.socket) as raw:

            def restarted():
                device = raw.call("status")["devices"][0]
                return device["state"] == "ready" and device["restarts"] == round + 1

            assert eventually(restarted)
        for c in clients:
            c.close()
    with Raw(daemon.socket) as raw:
        assert eventually(lambda: raw.call("status")["devices"][0]["tensors"] == 0)
        assert raw.call("status")["devices"][0]["memory_used"] == 0
        raw.make(1, "float32", [4])
        raw.call("forward", "gelu", [1], {}, [2])


def test_executor_stopped_misses_its_deadline(start_daemon):
    """SIGSTOP: it neither ends nor works."""
    daemon = start_daemon("--deadline", "2")
    with Raw(daemon.socket) as raw:
        raw.make(1, "int8", [4], b"abcd")
        (pid,) = find_roles(daemon.pid, "executor")
        os.kill(pid, signal.SIGSTOP)
        assert raw.fail("tensor_read", 1, 0).code == "deadline_exceeded"
        assert raw.call("tensor_read", 1, 0) == b"abcd"


def test_compiler_killed(tmp_path, start_daemon, slow_cxx):
    daemon = start_daemon("--kernels", put_kernels(tmp_path / "k", double_it=double_by(4.0625)),
                          "--cache", "", "--compilers", "1", device="cpu")  # fmt: skip
    with Raw(daemon.socket) as raw:
        raw.make(1, "float32", [1], struct.pack("f", 2))
        id = raw.request("forward", "double_it", [1], {}, [2])
        assert eventually(slow_cxx.begun.exists)
        # The one beside it has told who the host's compiler is, and ends.
        assert eventually(lambda: len(find_roles(daemon.pid, "compiler")) == 1)
        (compiler,) = find_roles(daemon.pid, "compiler")
        family = find_family(compiler)
        assert len(family) > 1
        os.kill(compiler, signal.SIGKILL)
        with pytest.raises(RpcError, match="double_it.*signal 9") as error:
            raw.wait(id)
        assert error.value.code == "unavailable" and error.value.op == "double_it"
        assert not await_end(family), "what the compiler started goes on"
        assert eventually(lambda: not list(tmp_path.glob("opd-compiler-*")))
        slow_cxx.go.touch()
        raw.call("forward", "double_it", [1], {}, [2])
        assert struct.unpack("f", raw.call("tensor_read", 2, 0)) == (8.125,)
        assert raw.call("status")["compilers"]["failed"] == 1


def test_compile_deadline(tmp_path, start_daemon, slow_cxx):
    daemon = start_daemon("--kernels", put_kernels(tmp_path / "k", double_it=double_by(5.0625)), "--cache", "",
                          "--compile-deadline", "3", device="cpu")  # fmt: skip
    with Raw(daemon.socket) as raw:
        raw.make(1, "float32", [1])
        family = None
        id = raw.request("forward", "double_it", [1], {}, [2])
        assert eventually(slow_cxx.begun.exists)
        family = find_family(daemon.pid)
        with pytest.raises(RpcError, match="--compile-deadline"):
            raw.wait(id)
        left = await_end([f for f in family if f not in find_family(daemon.pid)])
        assert not left, "what the compiler started goes on"
        raw.call("tensor_read", 1, 0)
