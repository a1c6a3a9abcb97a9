"""trace: each run with its time on the device, to those who follow, and to nobody else."""

import json
import os
import re
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import DEVICE, PATIENCE
from operators import REFUSE

import opd

ROOT = Path(__file__).resolve().parents[2]
OPCTL = Path(os.environ.get("OPD_BIN", ROOT / "build" / "opd")).resolve().parent / "opctl"

SPIN = """//! op      spin(Tensor x, *, int rounds) -> Tensor y
//! dtypes  float32
//! shape   x [...S]
//! shape   y [...S]
//! example x=[1] rounds=1
//
//! forward
//!   kernel  spin<scalar_t>
//!   grid    1
//!   block   1
//! backward grad_x
//!   zero    grad_x
//!   kernel  first
//!   grid    1
//!   block   1
//!   kernel  first
//!   grid    1
//!   block   1

template <typename T>
__global__ void spin(const T *x, T *y, int rounds)
{
    unsigned v = 1;
    for (int i = 0; i < rounds; i++)
        v = v * 1664525u + (x[0] != T(i));
    y[0] = T(v & 1);
}

__global__ void first(const scalar_t *grad_y, scalar_t *grad_x)
{
    grad_x[0] = grad_y[0];
}
"""


@pytest.fixture
def own(start_daemon, tmp_path):
    (tmp_path / "spin.cu").write_text(SPIN)
    (tmp_path / "refuse.cu").write_text(REFUSE)
    return start_daemon("--kernels", str(tmp_path))


@pytest.fixture
def client(own):
    with own.connect() as client:
        yield client


def test_a_run_is_told_with_its_time(own, client):
    x = client.tensor(np.ones(1, np.float32))
    client.ops.spin(x, rounds=1).numpy()  # compiled
    with client.trace() as runs:
        started, before = time.perf_counter(), time.time()
        y, ctx = client.ops.spin.forward(x, rounds=3_000_000)
        y.numpy()
        took = time.perf_counter() - started
        for _ in range(5):
            ctx.backward(np.ones(1, np.float32))[0].numpy()
        forward, backward, *more = runs.read()
    assert {k: forward[k] for k in ("op", "version", "direction", "device", "kernels", "pid")} == {
        "op": "spin", "version": 1, "direction": "forward", "device": DEVICE, "kernels": 1,
        "pid": os.getpid()}
    assert (backward["direction"], backward["kernels"]) == ("backward", 2)
    assert forward["client"].startswith("python ") and forward["connection"] > 0
    assert "error" not in forward
    assert before <= forward["time"] <= backward["time"] <= time.time()
    # A loop of 3 million dependent steps takes at least a millisecond anywhere.
    assert 1e-3 < forward["seconds"] <= took and 0 <= forward["queued"] <= took
    assert forward["seconds"] + forward["queued"] <= took
    # Any one of them may have waited for a core.
    assert 0 < min(run["seconds"] for run in (backward, *more)) < forward["seconds"]
    assert backward["seq"] == forward["seq"] + 1


def test_the_time_is_that_of_the_run_alone(client):
    """What waits behind a long run has waited, not run."""
    x = client.tensor(np.ones(1, np.float32))
    client.ops.spin(x, rounds=1).numpy()
    with client.trace() as runs:
        with client.batch():
            client.ops.spin(x, rounds=100_000_000)
            for _ in range(20):
                client.ops.spin(x, rounds=1000)
        long, *short = runs.read()
    assert len(short) == 20
    assert np.median([run["seconds"] for run in short]) < long["seconds"] / 20
    # What was sent with it has waited for most of it.
    assert max(run["queued"] for run in short) > long["seconds"] / 2


def test_all_clients_are_told_of_and_numbered(own, client):
    with own.connect() as other, client.trace() as runs:
        for one in (client, other, client):
            one.ops.spin(np.ones(1, np.float32), rounds=5).numpy()
        found = runs.read()
        assert runs.read() == []
    assert [run["seq"] for run in found] == [1, 2, 3]
    assert found[0]["connection"] == found[2]["connection"] != found[1]["connection"]


def test_more_runs_than_are_kept_of_other_notifications(client):
    x = client.tensor(np.ones(1, np.float32))
    with client.trace() as runs:
        with client.batch():
            for _ in range(3000):
                client.ops.spin(x, rounds=1)
        found = runs.read()
    assert [run["seq"] for run in found] == list(range(1, 3001))


def test_iteration_waits_and_close_ends_it(own, client):
    runs = client.trace()
    done = threading.Timer(0.2, lambda: client.ops.spin(np.ones(1, np.float32), rounds=7).numpy())
    done.start()
    assert next(runs)["op"] == "spin"
    done.join()
    ender = threading.Timer(0.2, runs.close)
    ender.start()
    assert list(runs) == []
    ender.join()


def test_a_run_that_fails_is_told_of(client):
    with client.trace() as runs:
        with pytest.raises(opd.InvalidArgument, match=r"x\[1\] is below 0"):
            client.ops.refuse(np.array([1, -1], np.float32)).numpy()
        (run,) = runs.read()
    assert (run["op"], run["error"]) == ("refuse", "invalid_argument")


def test_nobody_is_told_who_did_not_ask(own, client):
    """Nor after asking for an end, and only what begins while somebody follows is numbered."""
    conn = own.connect()._conn
    conn.keep_notifications()
    run = client.ops.spin
    x = np.ones(1, np.float32)
    run(x, rounds=1).numpy()
    conn.call("trace")
    run(x, rounds=1).numpy()
    conn.call("sync")
    assert [record["seq"] for (record,) in conn.take_notifications("trace")] == [1]
    conn.call("trace", {"follow": False})
    run(x, rounds=1).numpy()
    conn.call("sync")
    assert conn.take_notifications("trace") == []
    conn.call("trace")
    run(x, rounds=1).numpy()
    conn.call("sync")
    assert [record["seq"] for (record,) in conn.take_notifications("trace")] == [2]
    with pytest.raises(opd.InvalidArgument, match="trace: follow is a string, expected a boolean"):
        conn.call("trace", {"follow": "yes"})
    conn.close()


def test_it_goes_on_after_an_upgrade_and_a_restart(client):
    with client.trace() as runs:
        client.ops.spin(np.ones(1, np.float32), rounds=1).numpy()
        client._conn.call("upgrade")
        client.ops.spin(np.ones(1, np.float32), rounds=1).numpy()
        client._conn.call("device_restart", DEVICE)
        client.ops.spin(np.ones(1, np.float32), rounds=1).numpy()
        assert [(run["op"], run["seq"]) for run in runs.read()] == [("spin", n) for n in (1, 2, 3)]


@pytest.fixture
def run_opctl(own, tmp_path):
    """Runs it to its end while a client is at work; the lines that it has written."""

    def run(*args):
        command = [OPCTL, "--socket", own.socket, *args]
        with open(tmp_path / "out", "w") as out, own.connect() as client:
            client.ops.spin(np.ones(1, np.float32), rounds=10).numpy()  # compiled
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out,
                                       stderr=subprocess.STDOUT)
            while process.poll() is None:
                client.ops.spin(np.ones(1, np.float32), rounds=10).numpy()
        text = (tmp_path / "out").read_text()
        assert process.returncode == 0, text
        return text.splitlines()

    return run


def test_opctl_prints_runs(run_opctl):
    head, *lines = run_opctl("trace", "--count", "3")
    assert head.split() == ["OPERATOR", "VERSION", "DIRECTION", "DEVICE", "KERNELS", "QUEUED", "US",
                            "DEVICE", "US", "CLIENT"]
    assert len(lines) == 3
    for line in lines:
        assert re.fullmatch(rf"spin +1 forward +{DEVICE} +1 +\d+\.\d +\d+\.\d  python .*\(pid {os.getpid()}\)",
                            line), line


def test_opctl_as_json_for_a_time(run_opctl):
    started = time.monotonic()
    lines = run_opctl("--json", "trace", "--seconds", "1")
    assert time.monotonic() - started >= 1
    runs = [json.loads(line) for line in lines]
    assert runs and all(run["op"] == "spin" and run["seconds"] > 0 for run in runs)


@pytest.mark.parametrize("option", ("--count=0", "--seconds=-1", "--seconds=soon", "--count=nan"))
def test_opctl_refuses_what_is_no_number(own, option):
    done = subprocess.run([OPCTL, "--socket", own.socket, "trace", option], capture_output=True,
                          text=True, timeout=PATIENCE)
    name, value = option.split("=")
    assert done.returncode == 2
    assert f"{name} wants a number above 0, not '{value}'" in done.stderr
