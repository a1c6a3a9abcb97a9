"""After a fault by itself on a GPU: what ran is run again in its checked build, and the error says what it found."""

import os
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import opd
from conftest import PATIENCE, eventually
from planted import Planted, client, served  # noqa: F401

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "functional"))
from raw import Raw, RpcError

DEVICE = os.environ.get("OPD_TEST_DEVICE", "cpu")
pytestmark = [
    pytest.mark.skipif(not DEVICE.startswith("cuda"), reason="the CPU tells at once: test_guards.py"),
    pytest.mark.own_card,  # what it finds it has to find within 2 s
]

FAR = 1 << 42
OPERATORS = {
    "wild": ("", "y[i] = x[i + by];"),
    "reaches": ("", f"y[i < 64 ? i + by : i + {FAR}] = x[i];"),
    "absent": ("", "y[i] = bias[i];"),
    "chosen": ("", f"y[i] = x[i] == 5.0f ? x[i + {FAR}] : x[i];"),
    "deadlock": ("", "float f = x[i + by]; while (*(volatile float *)y != 77.0f) {} y[i] = f;"),
    "waits": ("", "if (i < 64) y[i] = x[i + by]; else while (*(volatile float *)y != 77.0f) {}"),
    # Compilers choose between two addresses, and load once, where they may.
    "hidden": ("", 'float f = x[i]; if (by) asm volatile("ld.global.f32 %0, [%1];" : "=f"(f) : "l"(by)); y[i] = f;'),
    "askew": ("", "y[i] = x[i]; *(volatile float *)((char *)x + 4 * i + 1) = 1;"),
    "good": ("", "y[i] = x[i] + 1;"),
}  # fmt: skip
IN_PLACE = """\
//! op      inplace(Tensor(a!) x, *, int by=0) -> ()
//! dtypes  float32
//! shape   x [N]
//!
//! forward
//!   kernel  inplace
//!   grid    1
//!   block   1

__global__ void inplace(float *x, int64_t N, int64_t by)
{
    x[0] += 1;
    x[1] = x[by]; // here
}
"""
IN_PLACE_ONCE = """\
    if (*(volatile float *)x != 0)
        return;
    *(volatile float *)x = 1;
    __threadfence();
    x[1] = *(const float *)(uint64_t)by;
}
"""
ONCE = IN_PLACE[: IN_PLACE.index("    x[0] += 1;")].replace("inplace", "once") + IN_PLACE_ONCE
planted = Planted("float32", OPERATORS)
HINT = "the same call with debug=True names tensor, element and line"


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "inplace.cu").write_text(IN_PLACE)
    (folder / "once.cu").write_text(ONCE)
    return planted.write(folder)


@pytest.fixture
def x(client):
    return client.tensor(np.arange(1024, dtype="float32"))


def fault(call, *args, **options):
    begun = time.monotonic()
    with pytest.raises(opd.KernelFault) as error:
        call(*args, **options)
    return str(error.value), time.monotonic() - begun


def found(name, what):
    return f"; run again with checks: {what}, {planted.line(name)}"


def test_the_line(client, x):
    message, seconds = fault(client.ops.wild, x, by=FAR)
    assert message.endswith(found("wild", f"out-of-bounds read of 'x': element {FAR} of 1024 (float32)")), message
    assert message.count("wild version 1") == 1 and HINT not in message and seconds < 10
    message, _ = fault(client.ops.absent, x)
    assert "run again with checks: read through a null pointer: 'bias' is null here" in message
    np.testing.assert_array_equal(x.numpy(), np.arange(1024, dtype="float32"))


def test_on_what_the_inputs_held(served):
    """And not on what is there when it runs: its memory is another's by then. What reads its result fails with it."""
    with Raw(served.socket) as raw:
        raw.make(1, "float32", [1024])
        raw.call("tensor_write", 1, 0, np.arange(1024, dtype="float32").tobytes())
        ids = [raw.request("forward", "chosen", [1], {}, [2]), raw.request("forward", "good", [2], {}, [3])]
        raw.request("free", "tensor", [1], {})
        for n in range(4, 8):
            raw.request("tensor_new", n, "float32", [1024])
            raw.request("tensor_write", n, 0, bytes(4096))
        with pytest.raises(RpcError) as error:
            raw.wait(ids[0])
        assert f"out-of-bounds read of 'x': element {5 + FAR} of 1024" in str(error.value)
        with pytest.raises(RpcError, match="was to be made by a request that failed|has no tensor 2"):
            raw.wait(ids[1])
        for n in range(4, 8):
            assert raw.call("tensor_read", n, 0) == bytes(4096)


def test_a_misaligned_write_may_have_written(client, x):
    """A GPU tells of it, and writes all the same, at the aligned address below: an input may have changed."""
    message, _ = fault(client.ops.askew, x)
    assert "(716): misaligned address; run again with checks: misaligned write of 'x': 4 bytes from element " in message
    assert x.suspect.startswith("a kernel wrote to it askew: askew")
    with pytest.raises(opd.InvalidArgument, match="is suspect"):
        x.numpy()
    x.accept()
    assert x.suspect is None and x.numpy().shape == (1024,)


def test_another_tensor_that_it_wrote_is_suspect(client, x):
    neighbours = [client.tensor(np.zeros(1024, "float32")) for _ in range(3)]
    message, _ = fault(client.ops.reaches, x, by=-1024)
    assert message.endswith(found("reaches", "out-of-bounds write of 'y': element -1024 of 1024 (float32)")), message
    suspect = []
    for tensor in (x, *neighbours):
        try:
            tensor.numpy()
        except opd.InvalidArgument as error:
            assert "is suspect" in str(error) and "a kernel wrote outside of its own tensor: reaches" in str(error)
            assert "; out-of-bounds write of 'y'" in str(error)
            suspect.append(tensor)
    (tensor,) = suspect
    tensor.accept()
    assert tensor.numpy()[0] in (0, 1)


def test_nothing_is_found(client, x):
    """It fails with what it finds at first alone, which it has changed when it runs again."""
    message, _ = fault(client.ops.once, x, by=(1 << 44) + 64)
    assert "run again with checks, on what it had left of what it changes in place: no bad access was found" in message


def restarts(client):
    return client.status()["devices"][0]["restarts"]


@pytest.mark.parametrize("spare", ["auto", "off"])
def test_an_address_made_of_numbers(start_daemon, kernels, spare):
    """Nobody knows where it should lie, so it is not checked: the second run fails as the first one did, in a process
    of its own."""
    daemon = start_daemon("--kernels", kernels, "--spare", spare)
    with daemon.connect() as client:
        x = client.tensor(np.arange(1024, dtype="float32"))
        for n in range(1, 4):
            message, _ = fault(client.ops.hidden, x, by=(1 << 44) + 64)
            assert message.endswith(HINT)
            assert client.ops.good(x).numpy()[1] == 2
            assert restarts(client) == n
        message, _ = fault(client.ops.wild, x, by=FAR)
        assert "run again with checks: out-of-bounds read of 'x'" in message and restarts(client) == 4
        last = "ready" if spare == "auto" else "none"
        assert eventually(lambda: client.status()["devices"][0]["spare"] == last)


def test_a_fault_while_another_runs_again(start_daemon, kernels):
    """Each is told what it did; a process that does so is no spare meanwhile."""
    daemon = start_daemon("--kernels", kernels)
    with daemon.connect() as client:
        x = client.tensor(np.arange(1024, dtype="float32"))
        client.ops.good(x).numpy()
        with Raw(daemon.socket) as one, Raw(daemon.socket) as other:
            for raw in (one, other):
                raw.make(1, "float32", [1024])
            ids = [(one, one.request("forward", "deadlock", [1], {"by": FAR}, [2]))]
            for raw, name in ((other, "wild"), (other, "wild"), (one, "wild")):
                time.sleep(0.05)
                ids.append((raw, raw.request("forward", name, [1], {"by": FAR}, [10 + len(ids)])))
            for raw, number in ids:
                with pytest.raises(RpcError, match="run again with checks: out-of-bounds read of 'x'|" + HINT):
                    raw.wait(number)
        assert restarts(client) == 4
        np.testing.assert_array_equal(client.ops.good(x).numpy(), np.arange(1, 1025, dtype="float32"))


def test_what_was_loaded_meanwhile(start_daemon, kernels):
    """While a process runs again what does not end, it has not loaded yet what came since: whichever serves next has."""
    daemon = start_daemon("--kernels", kernels)
    with daemon.connect() as client:
        x = client.tensor(np.arange(1024, dtype="float32"))
        client.ops.wild(x).numpy()
        fault(client.ops.waits, x, by=FAR)  # its checked build is there from now on
        with Raw(daemon.socket) as one, Raw(daemon.socket) as other:
            for raw in (one, other):
                raw.make(1, "float32", [1024])
            begun = restarts(client)
            hangs = one.request("forward", "waits", [1], {"by": FAR}, [2])
            assert eventually(lambda: restarts(client) == begun + 1)
            assert eventually(lambda: client.status()["devices"][0]["spare"] == "ready")
            client.ops.good(x).numpy()
            wild = other.request("forward", "wild", [1], {"by": FAR}, [2])
            assert eventually(lambda: restarts(client) == begun + 2)
            np.testing.assert_array_equal(client.ops.good(x).numpy(), np.arange(1, 1025, dtype="float32"))
            for raw, number in ((one, hangs), (other, wild)):
                with pytest.raises(RpcError, match="run again with checks: |" + HINT):
                    raw.wait(number)


def test_what_it_changed_in_place(client, x):
    message, _ = fault(client.ops.inplace, x, by=FAR)
    assert "; run again with checks, on what it had left of what it changes in place: out-of-bounds read of 'x'" in message
    with pytest.raises(opd.InvalidArgument, match="is suspect"):
        x.numpy()
    x.accept()
    assert x.numpy()[0] in (0, 1)  # and not once more


def test_others_go_first(served, client, x):
    """Nobody waits for the post-mortem but who faulted."""
    client.ops.good(x).numpy()
    slowest, stop = [0.0], threading.Event()

    def work():
        with served.connect() as other:
            z = other.tensor(np.zeros(1024, "float32"))
            while not stop.is_set():
                np.testing.assert_array_equal(other.ops.good(z).numpy(), np.ones(1024, "float32"))
                slowest[0] += 1

    thread = threading.Thread(target=work)
    thread.start()
    assert eventually(lambda: slowest[0] > 3)
    for _ in range(3):
        assert "run again with checks: " in fault(client.ops.wild, x, by=FAR)[0]
    stop.set()
    thread.join()


def test_a_run_that_does_not_end_costs_no_more_than_it_may(client, x):
    """Its threads wait for one that has ended: today's error, at its time."""
    client.ops.good(x).numpy()
    before = restarts(client)
    message, seconds = fault(client.ops.deadlock, x, by=FAR)
    assert restarts(client) == before + 1
    assert message.endswith(HINT) or "out-of-bounds read of 'x'" in message, message
    assert seconds < 10
    np.testing.assert_array_equal(client.ops.good(x).numpy(), np.arange(1, 1025, dtype="float32"))


def test_of_a_graph(client, x):
    """One launch to the driver the first time, call by call from then on."""
    x.write(np.zeros(1024, "float32"))
    with client.capture() as graph:
        client.ops.good(client.ops.chosen(client.ops.good(x)))
    for _ in range(3):
        graph.replay()
    x.write(np.full(1024, 4, "float32"))
    for _ in range(2):
        message, _ = fault(graph.replay)
        assert f"out-of-bounds read of 'x': element {FAR} of 1024" in message, message


def test_a_client_that_is_gone(served, client, x):
    with Raw(served.socket) as raw:
        raw.make(1, "float32", [1024])
        raw.request("forward", "wild", [1], {"by": FAR}, [2])
    np.testing.assert_array_equal(client.ops.good(x).numpy(), np.arange(1, 1025, dtype="float32"))
    assert eventually(lambda: len(client.status()["clients"]) == 1)
    assert eventually(lambda: client.status()["devices"][0]["memory_used"] == 4096)


def test_no_room_for_copies(start_daemon, kernels):
    with start_daemon("--kernels", kernels, "--client-memory", "20K").connect() as client:
        x = client.tensor(np.arange(1024, dtype="float32"))
        held = [client.zeros([1024], "float32") for _ in range(2)]
        begun = client.status()["devices"][0]["restarts"]
        message, _ = fault(client.ops.wild, x, by=FAR)
        assert message.endswith(HINT) and "run again" not in message, message
        del held
        assert "run again with checks: out-of-bounds read" in fault(client.ops.wild, x, by=FAR)[0]
        assert client.status()["devices"][0]["restarts"] == begun + 2


def test_it_ends_with_the_daemon(start_daemon, kernels):
    daemon = start_daemon("--kernels", kernels)
    with Raw(daemon.socket) as raw:
        raw.make(1, "float32", [1024])
        raw.call("forward", "good", [1], {}, [2])
        wild = raw.request("forward", "wild", [1], {"by": FAR}, [3])
        daemon.process.terminate()
        with pytest.raises(RpcError, match="illegal memory access"):
            raw.wait(wild)
    assert daemon.process.wait(PATIENCE) == 0
