"""A device's process is replaced: on request, and when it dies while it starts."""

import contextlib
import os
import signal
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

import opd
from conftest import PROGRAM, beside
from raw import eventually, find_roles
from test_faults import ROUNDS, STEPS, kernels  # noqa: F401

OPCTL = str(Path(PROGRAM).with_name("opctl"))


@pytest.fixture
def daemon(start_daemon, kernels):  # noqa: F811
    return start_daemon("--kernels", kernels)


def list_children(pid):
    """Sooner than find_roles(): before a new one can do anything."""
    return {int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def test_tensors_stay_and_requests_end_first(daemon):
    with daemon.connect() as client, daemon.connect() as other:
        device = client.info["default_device"]
        x = client.tensor(np.arange(4, dtype=np.float32))
        client.ops.steps(x)
        (before,) = find_roles(daemon.pid, "executor")
        done = []
        slow = threading.Thread(
            target=lambda: done.append(other.ops.steps(other.zeros(1), rounds=ROUNDS))
        )
        slow.start()
        assert eventually(lambda: client.status()["devices"][0]["queued"] > 0)
        told = client.restart(device)
        slow.join()
        assert done == [None], "the request in flight failed"
        (after,) = find_roles(daemon.pid, "executor")
        assert after != before
        assert (told["state"], told["restarts"]) == ("ready", 1)
        assert x.numpy().tolist() == [2, 3, 4, 5] and x.suspect is None
        client.ops.steps(x)
        assert x.numpy().tolist() == [4, 5, 6, 7]
        with pytest.raises(opd.NotFound, match="no such device is served: 'cuda:77'"):
            client.restart("cuda:77")


def test_what_does_not_end_misses_its_deadline(daemon):
    with daemon.connect() as client, daemon.connect() as other:
        other.ops.steps(other.zeros(1))
        errors = []

        def hang():
            try:
                other.ops.steps(other.zeros(1), stuck=True, deadline=1)
            except opd.OpdError as e:
                errors.append(e)

        hanging = threading.Thread(target=hang)
        hanging.start()
        assert eventually(lambda: client.status()["devices"][0]["queued"] > 0)
        assert client.restart(client.info["default_device"])["state"] == "ready"
        hanging.join()
        assert [type(e) for e in errors] == [opd.DeadlineExceeded]


def test_many_restarts_under_load(daemon):
    with daemon.connect() as client, daemon.connect() as other:
        x = client.zeros(4)
        client.ops.steps(x)
        n, stop = 1, threading.Event()

        def restart():
            while not stop.is_set():
                other.restart(other.info["default_device"])

        restarting = threading.Thread(target=restart)
        restarting.start()
        while client.status()["devices"][0]["restarts"] < 20:
            with client.batch():
                for _ in range(10):
                    client.ops.steps(x)
            n += 10
        stop.set()
        restarting.join()
        assert x.numpy().tolist() == [2 * n] * 4


def test_opctl_restart(daemon):
    with daemon.connect() as client:
        device = client.info["default_device"]
        run = subprocess.run(
            [OPCTL, "--socket", daemon.socket, "restart", device], capture_output=True, text=True
        )
        assert run.returncode == 0 and run.stdout == f"Device {device} is ready, restarted 1 time.\n"
        run = subprocess.run(
            [OPCTL, "--socket", daemon.socket, "restart", "tpu"], capture_output=True, text=True
        )
        assert run.returncode == 1 and "no such device" in run.stderr


def is_refused(call):
    """With what words; "": it is not."""
    try:
        call()
    except opd.Unavailable as error:
        return str(error)
    except (opd.KernelFault, opd.InvalidArgument):
        pass  # it had begun; it is suspect since
    return ""


def test_one_that_dies_while_it_starts(daemon):
    """It is given up for a while, the daemon serves on, and the device recovers by itself."""
    with daemon.connect() as client:
        x = client.tensor(np.arange(4, dtype=np.float32), name="kept")
        y = client.zeros(4)
        client.ops.steps(client.zeros(1))  # compiled: compilers are killed below as well

        def kill(over):
            while not over.is_set():
                for pid in list_children(daemon.pid) - spared:
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        pass

        def find_spared():
            """Without a spare that is being started, whose role cannot be seen yet."""
            spared = list_children(daemon.pid)
            spared -= {*find_roles(daemon.pid, "executor"), *find_roles(daemon.pid, "spare")}
            return client.status()["devices"][0]["spare"] != "starting" and [spared]

        (spared,) = eventually(find_spared)
        with beside(kill):
            assert eventually(lambda: client.status()["devices"][0]["restarts"] > 0)
            with contextlib.suppress(opd.Unavailable, opd.KernelFault):  # no OutOfMemory between two
                client.zeros(20_000_000).free()
            assert eventually(lambda: client.status()["devices"][0]["state"] == "failed")
            device = client.status()["devices"][0]
            assert "signal 9" in device["message"] or "while starting" in device["message"]
            # Perhaps not at once: where we get no processor, one comes up before it is killed.
            assert eventually(lambda: "does not work: " in is_refused(lambda: client.ops.steps(y)))
            y.accept()
            assert x.suspect is None
            assert "steps" in dir(client.ops) and len(client.tensors()) == 2
            assert [t["name"] for t in client.tensors() if t["name"]] == ["kept"]
            assert eventually(lambda: is_refused(lambda: client.restart(device["name"])))
        assert eventually(lambda: client.status()["devices"][0]["state"] == "ready")
        assert x.numpy().tolist() == [0, 1, 2, 3]
        client.ops.steps(x)
        assert x.numpy().tolist() == [2, 3, 4, 5]
        x.free()
