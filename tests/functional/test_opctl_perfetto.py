"""opctl trace --perfetto: a timeline, held against what has happened and what its viewer takes."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from conftest import DEVICE, PATIENCE
from operators import REFUSE
from test_opctl import ANSWERED, GOOD, OPCTL, USAGE, run

import opd

HALVE = "//! op halve(Tensor x) -> Tensor y\n//! dtypes float32\n//! formula y = x / 2\n//! example x=[4]\n"


class Timeline:
    def __init__(self, path):
        whole = json.loads(path.read_text())
        self.begins = whole["otherData"]["begins"]
        self.events = whole["traceEvents"]
        names = {"process_name": {}, "thread_name": {}}
        self.bars = []
        for e in self.events:
            assert e["ph"] in "MX" and isinstance(e["pid"], int) and isinstance(e["tid"], int)
            if e["ph"] == "M" and e["name"] in names:
                key = e["pid"] if e["name"] == "process_name" else (e["pid"], e["tid"])
                assert key not in names[e["name"]]
                names[e["name"]][key] = e["args"]["name"]
            elif e["ph"] == "X":
                assert e["ts"] >= 0 and e["dur"] >= 0
                self.bars.append(e)
        ends = {}
        for e in self.bars:  # in the order of their beginnings, and no two of a track at a time
            track = e["pid"], e["tid"]
            assert names["thread_name"][track] and names["process_name"][e["pid"]]
            assert e["ts"] >= ends.get(track, 0) - 1e-6, (e, ends)
            ends[track] = e["ts"] + e["dur"]
            e["process"], e["thread"] = names["process_name"][e["pid"]], names["thread_name"][track]
        assert [e["ts"] for e in self.bars] == sorted(e["ts"] for e in self.bars)

    def of(self, category):
        return [e for e in self.bars if e["cat"] == category]


@pytest.fixture
def own(start_daemon, tmp_path):
    (tmp_path / "refuse.cu").write_text(REFUSE)
    return start_daemon("--kernels", str(tmp_path), "--cache", "")  # so that all is compiled


@pytest.fixture
def record(own, tmp_path):
    """Does something while opctl records, and ends that as ^C does."""

    def record(work):
        path = tmp_path / "timeline.json"
        command = [OPCTL, "--socket", own.socket, "trace", "--perfetto", path]
        with own.connect() as client:
            process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
            assert "^C ends it" in process.stderr.readline()
            work(client)
            client._conn.call("sync")
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=PATIENCE)[1]
        assert process.returncode == GOOD, said
        return Timeline(path), said

    return record


def test_runs_and_edits(own, record, tmp_path):
    x = np.ones(1000, np.float32)

    def save(text):  # whole: a file that is written is read too soon at times
        (tmp_path / "halve").write_text(text)
        (tmp_path / "halve").rename(tmp_path / "halve.cu")

    def work(client):
        a = client.tensor(x)
        with client.batch():  # they overlap
            for _ in range(50):
                client.ops.gelu(a)
        y, ctx = client.ops.gelu.forward(a)
        ctx.backward(y)
        with own.connect() as other:
            other.ops.add(x, x).numpy()
        with pytest.raises(opd.InvalidArgument):
            client.ops.refuse(-x).numpy()
        save(HALVE)
        client.reload()
        save(HALVE.replace("formula y", "formula z"))
        with pytest.warns(opd.ReloadWarning):
            client.reload()

    timeline, said = record(work)
    requests, devices = timeline.of("request"), timeline.of("device")
    assert "54 runs" in said and len(requests) == len(devices) == 54
    assert {e["thread"] for e in devices} == {DEVICE} and {e["process"] for e in devices} == {"device time"}
    for kind in (requests, devices):
        names = [e["name"] for e in kind]
        assert names.count("gelu") == 51 and names.count("gelu backward") == 1 and names.count("add") == 1
    # Each client is a process, with as many tracks as it had in flight at a time.
    assert len({e["process"] for e in requests}) == 2
    assert all(f"(pid {os.getpid()})" in e["process"] for e in requests)
    assert max(e["tid"] for e in requests) > min(e["tid"] for e in requests) + 1
    # What a device does for a request is within it.
    for name in ("gelu", "add", "refuse", "gelu backward"):
        first, last = ([e for e in kind if e["name"] == name] for kind in (requests, devices))
        assert min(e["ts"] for e in first) <= min(e["ts"] for e in last) + 1e-3
        assert max(e["ts"] + e["dur"] for e in last) <= max(e["ts"] + e["dur"] for e in first) + 1e-3
    (refused,) = [e for e in devices if e["name"] == "refuse"]
    assert refused["args"]["error"] == "invalid_argument" and refused["args"]["version"] == 1
    edits = timeline.of("edit")
    assert [e["name"] for e in edits if "halve" in e["name"]] == ["halve reloaded", "halve failed"]
    assert all(e["process"] == "edits" and e["dur"] > 0 and e["args"]["file"].endswith("halve.cu") for e in edits)
    compiles = timeline.of("compile")
    assert sorted(e["name"] for e in compiles) == ["add", "gelu", "gelu", "refuse"]
    assert all(e["process"] == "compiles" and e["dur"] > 0 and e["args"]["kernels"] == 1 for e in compiles)


def test_names_are_text(own, tmp_path):
    """Whatever a client calls itself is a string of JSON."""
    path = tmp_path / "timeline.json"
    command = [OPCTL, "--socket", own.socket, "trace", "--perfetto", path, "--count", "1"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert "^C" in process.stderr.readline()
    code = """if True:
        import sys, numpy as np, opd
        sys.argv[0] = 'na"me\\\\ \\x1b[2J ñandú'
        with opd.connect(sys.argv[1], start=False) as client:
            client.ops.gelu(np.ones(3, np.float32)).numpy()
    """
    subprocess.run([sys.executable, "-c", code, own.socket], check=True, timeout=PATIENCE)
    assert process.wait(PATIENCE) == GOOD
    (bar,) = Timeline(path).of("request")
    assert bar["process"].startswith("python ")


def test_that_it_ends(own, tmp_path):
    path = tmp_path / "timeline.json"
    options = ["--socket", own.socket, "trace", "--perfetto"]
    assert run(*options, path, "--seconds", "0.01").returncode == GOOD
    assert Timeline(path).bars == []
    refused = run(*options, tmp_path / "none" / "file")
    assert refused.returncode == USAGE and "No such file" in refused.stderr
    assert run(*options, path, "--json").returncode == USAGE
    full = run(*options, "/dev/full", "--seconds", "0.01")
    assert full.returncode == ANSWERED and "No space left" in full.stderr
    process = subprocess.Popen([OPCTL, *options, path], stderr=subprocess.PIPE, text=True)
    assert "^C" in process.stderr.readline()
    own.process.kill()
    own.process.wait(PATIENCE)
    assert process.wait(PATIENCE) == 3
    assert Timeline(path).bars == []  # what there was is written all the same
