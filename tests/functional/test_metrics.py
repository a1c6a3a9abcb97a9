"""What the daemon counts: metrics, opctl metrics, opctl top."""

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

import opd
from conftest import PATIENCE, PROGRAM, beside

OPCTL = str(Path(PROGRAM).with_name("opctl"))


def read(text):
    """As a scraper does: {(name, labels): value}; each with a type before it."""
    values, types = {}, {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name not in types and kind in ("counter", "gauge", "histogram")
            types[name] = kind
        elif not line.startswith("# HELP "):
            name, labels, value = re.fullmatch(r"(\w+)(\{.*\})? ([-+.0-9e]+)", line).groups()
            family = name if name in types else re.sub("_(bucket|sum|count)$", "", name)
            assert types[family] == ("histogram" if family != name else types[name])
            assert types[family] != "counter" or name.endswith("_total")
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
        (run,) = status["runs"]
        assert {k: run[k] for k in ("op", "forward", "backward", "failed")} == {
            "op": "gelu", "forward": 6, "backward": 1, "failed": 0}  # fmt: skip
        x.free()


def test_times_and_bytes(start_daemon):
    """Each run is in one bucket, and counts the bytes of its tensors; all of it outlives the program."""
    with start_daemon().connect() as client:
        device = client.info["default_device"]
        x = client.tensor(np.ones(1000, np.float32))
        bias = client.tensor(np.ones(10, np.float32))
        y, ctx = client.ops.gelu.forward(x)
        ctx.backward(y)
        client.ops.add(x.reshape(100, 10), bias)
        (one,) = [run for run in client.status()["runs"] if run["op"] == "add"]
        assert (one["bytes"], one["copy_seconds"]) == (2 * 4000 + 40, 0)
        speed = client.copy_speed(device)
        assert speed > 1e7 and speed == client.copy_speed(device)
        assert [d["copy"] for d in client.status()["devices"] if d["name"] == device] == [speed]
        with pytest.raises(opd.NotFound):
            client.copy_speed("cpu:7")
        client.ops.add(x.reshape(100, 10), bias)
        (one,) = [run for run in client.status()["runs"] if run["op"] == "add"]
        assert one["copy_seconds"] == pytest.approx(8040 / speed, abs=2e-9)
        client.upgrade()
        for run in client.status()["runs"]:
            text = read(client.metrics())
            op = run["op"]
            assert text["opd_run_bytes_total", f'{{op="{op}"}}'] == run["bytes"] > 0
            # gelu: x and y; then x or y, dy and dx. How often each is compiled, the cache decides.
            assert run["bytes"] == {"gelu": 5 * 4000, "add": 2 * 8040}[op]
            times = [(below or 17.2, count) for _, below, count in run["times"]]
            assert times == sorted(times) and all(a < (b or np.inf) for a, b, _ in run["times"])
            n = run["forward"] + run["backward"]
            assert sum(count for _, count in times) == n == text["opd_run_duration_seconds_count", f'{{op="{op}"}}']
            assert sum(b * c for b, c in times) / 1.25 <= run["seconds"] + n * 1.25e-6
            buckets = [(float(re.search('le="(.*)"', labels)[1]), value) for (name, labels), value in text.items()
                       if name == "opd_run_duration_seconds_bucket" and f'op="{op}"' in labels]
            assert len(buckets) == 13 and buckets == sorted(buckets) and buckets[-1] == (np.inf, n)
            for bound, value in buckets:
                assert value == sum(c for b, c in times if b <= bound * (1 + 1e-9))


def test_opctl_metrics(daemon, client):
    run = subprocess.run([OPCTL, "--socket", daemon.socket, "metrics"], capture_output=True, text=True)
    assert run.returncode == 0
    assert read(run.stdout).keys() == read(client.metrics()).keys()


def test_opctl_top(daemon, client):
    def work(over):
        with daemon.connect() as other:
            x = other.tensor(np.ones(100, np.float32))
            while not over.is_set():
                other.ops.gelu(x)

    command = [OPCTL, "--socket", daemon.socket, "top", "--no-follow"]
    with beside(work):
        run = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        as_json = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=PATIENCE)
    assert run.returncode == 0, run.stderr
    device = client.info["default_device"]
    (row,) = [line.split() for line in run.stdout.splitlines() if line.startswith(device + " ")]
    assert row[1] == "ready" and 0 < int(row[2].rstrip("%")) <= 100
    (row,) = [line.split() for line in run.stdout.splitlines() if line.startswith("gelu ")]
    assert float(row[1]) > 0 and float(row[2]) == 0 and row[3] == "0" and float(row[4]) > 0
    assert json.loads(as_json.stdout)["pid"] == daemon.pid
