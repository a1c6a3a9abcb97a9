"""What the daemon counts: metrics, opctl metrics, opctl top."""

import json
import re
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

import opd
from conftest import PATIENCE, PROGRAM

OPCTL = str(Path(PROGRAM).with_name("opctl"))


def read(text):
    """As a scraper does: {(name, labels): value}; each with a type before it."""
    values, types = {}, {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name not in types and kind in ("counter", "gauge")
            types[name] = kind
        elif not line.startswith("# HELP "):
            name, labels, value = re.fullmatch(r"(\w+)(\{.*\})? ([-+.0-9e]+)", line).groups()
            assert name in types and (types[name] == "gauge" or name.endswith("_total"))
            values[name, labels or ""] = float(value)
    return values


def test_metrics_count_what_is_done(start_daemon):
    daemon = start_daemon()
    with daemon.connect() as client:
        device = client.info["default_device"]
        x = client.tensor(np.ones(1000, np.float32), name="kept")
        client.ops.gelu(x)
        before = read(client.metrics())
        assert before["opd_build_info", f'{{version="{opd.__version__}",protocol="1"}}'] == 1
        for _ in range(5):
            y, ctx = client.ops.gelu.forward(x)
        ctx.backward(y)
        with pytest.raises(opd.NotFound):
            client.attach("nothing")
        after = read(client.metrics())

        def grown(name, labels=""):
            return after[name, labels] - before[name, labels]

        requests = [grown("opd_requests_total", f'{{method="{m}"}}') for m in ("forward", "call")]
        assert sum(requests) == 5  # what comes again is a prepared call
        assert grown("opd_runs_total", '{op="gelu",direction="forward"}') == 5
        assert grown("opd_runs_total", '{op="gelu",direction="backward"}') == 1
        assert grown("opd_errors_total", '{code="not_found"}') == 1
        assert grown("opd_errors_total", '{code="kernel_fault"}') == 0
        label = f'{{device="{device}"}}'
        assert 0 < grown("opd_run_seconds_total", '{op="gelu"}') < 10
        assert 0 < grown("opd_device_busy_seconds_total", label) <= grown("opd_uptime_seconds")
        assert after["opd_device_up", label] == 1 and after["opd_connections", ""] == 1
        assert after["opd_device_memory_named_bytes", label] == 4096
        compiles = [after["opd_compiles_total", f'{{result="{r}"}}'] for r in ("compiled", "cached")]
        assert sum(compiles) >= 2 and after["opd_compile_seconds_total", ""] > 0
        client.restart(device)
        assert read(client.metrics())["opd_device_restarts_total", label] == 1
        status = client.status()
        assert status["runs"] == [
            {"op": "gelu", "forward": 6, "backward": 1, "failed": 0,
             "seconds": status["runs"][0]["seconds"]}
        ]  # fmt: skip
        x.free()


def test_opctl_metrics(daemon, client):
    run = subprocess.run([OPCTL, "--socket", daemon.socket, "metrics"], capture_output=True, text=True)
    assert run.returncode == 0
    assert read(run.stdout).keys() == read(client.metrics()).keys()


def test_opctl_top(daemon, client):
    stop = threading.Event()

    def work():
        with daemon.connect() as other:
            x = other.tensor(np.ones(100, np.float32))
            while not stop.is_set():
                other.ops.gelu(x)

    thread = threading.Thread(target=work)
    thread.start()
    command = [OPCTL, "--socket", daemon.socket, "top", "--no-follow"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        as_json = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=PATIENCE)
    finally:
        stop.set()
        thread.join()
    assert run.returncode == 0, run.stderr
    device = client.info["default_device"]
    (row,) = [line.split() for line in run.stdout.splitlines() if line.startswith(device + " ")]
    assert row[1] == "ready" and 0 < int(row[2].rstrip("%")) <= 100
    (row,) = [line.split() for line in run.stdout.splitlines() if line.startswith("gelu ")]
    assert float(row[1]) > 0 and float(row[2]) == 0 and row[3] == "0" and float(row[4]) > 0
    assert json.loads(as_json.stdout)["pid"] == daemon.pid
