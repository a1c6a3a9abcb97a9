"""Editing a kernel while it serves, as users see it: the Python client and opctl against the
real daemon."""

import json
import os
import subprocess
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

import opd
from conftest import DEVICE, PATIENCE, eventually

ROOT = Path(__file__).resolve().parents[2]
OPCTL = Path(os.environ.get("OPD_BIN", ROOT / "build" / "opd")).resolve().parent / "opctl"
TARGET = "cpu" if DEVICE == "cpu" else "sm_90"

SCALE = """//! op      scale(Tensor x) -> Tensor y
//! doc     Multiplies.
//! dtypes  float32 float64
//! shape   x [...S]
//! shape   y [...S]
//! let     n = numel(x)
//! example x=[100]
//
//! forward
//!   kernel scale

__global__ void scale(const scalar_t *x, scalar_t *y, int64_t n)
{
    CUDA_KERNEL_LOOP(i, n) y[i] = x[i] * FACTOR;
}
"""
BROKEN = SCALE.replace("FACTOR", "no_such_name")


def save(folder, factor, name="scale.cu"):
    """As editors do: a new file takes the name."""
    (folder / "new").write_text(SCALE.replace("FACTOR", str(factor)))
    os.rename(folder / "new", folder / name)


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "kernels"
    folder.mkdir()
    save(folder, 2)
    return folder


@pytest.fixture
def own(start_daemon, folder):
    return start_daemon("--kernels", str(folder))


@pytest.fixture
def client(own):
    with own.connect() as client:
        yield client


@pytest.fixture
def opctl(own):
    def run(*args):
        return subprocess.run(
            [OPCTL, "--socket", own.socket, *args], stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=PATIENCE,
        )  # fmt: skip

    return run


def times(client, **keywords):
    """By what the operator multiplies now."""
    return float(client.ops.scale(np.ones(3, np.float32), **keywords).numpy()[0])


def reload_failing(client):
    with pytest.warns(opd.ReloadWarning, match="no_such_name"):
        return client.reload()


def test_reload(client, folder):
    assert times(client) == 2
    assert client.reload() == []
    save(folder, 3)
    (change,) = client.reload()
    assert (change["op"], change["version"], change["state"]) == ("scale", 2, "serving")
    assert change["file"] == str(folder / "scale.cu")
    assert change["ms"] > 0
    assert client.ops.scale.version == 2
    assert times(client) == 3
    assert client.reload() == []


def test_an_edit_is_served_without_being_asked_for(client, folder):
    assert times(client) == 2
    save(folder, 3)
    assert eventually(lambda: times(client) == 3)
    assert client.ops.scale.version == 2


def test_an_edit_that_fails(client, folder, own):
    assert times(client) == 2
    with own.connect() as other:
        other.ops.scale
        save(folder, "no_such_name")
        (change,) = reload_failing(client)
        assert change["state"] == "failed"
        assert "scale.cu:14:" in change["log"] and "no_such_name" in change["log"]
        with pytest.warns(opd.ReloadWarning, match="scale: .*not served.*scale.cu:14") as caught:
            assert times(other) == 2
        assert [w.filename for w in caught] == [__file__]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert times(other) == 2  # told once
    versions = client.ops.scale.versions
    assert [(v["version"], v["state"]) for v in versions] == [(2, "failed"), (1, "serving")]
    assert "no_such_name" in versions[0]["message"] + versions[0]["log"]


def test_versions(client, folder):
    assert times(client) == 2
    for factor in (3, 4):
        save(folder, factor)
        client.reload()
    assert times(client) == 4
    assert [times(client, version=n) for n in (1, 2, 3)] == [2, 3, 4]
    assert client.ops.scale.version == 3
    with pytest.raises(opd.NotFound, match="not kept"):
        times(client, version=9)
    states = {v["version"]: (v["state"], v["pinned"]) for v in client.ops.scale.versions}
    assert states == {3: ("serving", False), 2: ("retired", False), 1: ("retired", False)}


def test_rollback_and_pin(client, folder):
    assert times(client) == 2
    with pytest.raises(opd.NotFound):
        client.rollback("scale")
    save(folder, 3)
    client.reload()
    assert client.rollback("scale") == 1
    assert client.ops.scale.version == 1 and times(client) == 2
    save(folder, 4)
    client.reload()
    assert times(client) == 4
    assert client.pin("scale", 2) == 2
    assert times(client) == 3
    save(folder, 5)
    client.reload()
    assert times(client) == 3
    assert [v["version"] for v in client.ops.scale.versions if v["pinned"]] == [2]
    assert client.pin("scale", None) == 4
    assert times(client) == 5
    for wrong in (lambda: client.pin("scale", 77), lambda: client.rollback("no_such_op")):
        with pytest.raises(opd.NotFound):
            wrong()


def test_events(client, folder):
    assert times(client) == 2
    before = client.events()
    since = before[-1]["seq"] if before else 0
    save(folder, 3)
    client.reload()
    client.rollback("scale")
    reloaded, back = client.events(since)
    assert (reloaded["kind"], reloaded["op"], reloaded["version"]) == ("reloaded", "scale", 2)
    assert abs(reloaded["time"] - time.time()) < 600
    assert back["kind"] == "rolled back" and back["version"] == 1
    assert client.events(back["seq"]) == []


def test_following_events(client, folder):
    assert times(client) == 2
    with client.events(follow=True) as stream:
        before = client.events()
        assert [next(stream) for _ in before] == before
        save(folder, 3)
        event = next(stream)
        assert (event["kind"], event["version"]) == ("reloaded", 2)
        save(folder, "no_such_name")
        event = next(stream)
        assert event["kind"] == "failed" and "no_such_name" in event["log"]
        threading.Timer(0.2, stream.close).start()
        assert list(stream) == []
    with pytest.warns(opd.ReloadWarning, match="no_such_name"):
        assert times(client) == 3


@pytest.mark.skipif(DEVICE != "cpu", reason="expects the CPU's kernels")
def test_check(client, folder):
    file = folder / "scale.cu"
    result = client.check(file, targets="cpu")
    assert result["op"] == "scale" and result["ok"] and result["errors"] == []
    kernels = {(k["kernel"], k["dtype"], k["target"]) for k in result["kernels"]}
    assert kernels == {("scale", "float32", "cpu"), ("scale", "float64", "cpu")}
    result = client.check(file, dtypes=["float64"])
    assert {k["dtype"] for k in result["kernels"]} == {"float64"}
    with pytest.raises(opd.InvalidArgument, match="float61"):
        client.check(file, dtypes=["float61"])


def test_check_of_what_does_not_compile(client, tmp_path):
    file = tmp_path / "bad.cu"
    file.write_text(BROKEN)
    result = client.check(file)
    assert not result["ok"]
    assert "bad.cu:14:" in result["errors"][0]["log"]
    file.write_text(SCALE.replace("//! dtypes", "//! dtyps"))
    result = client.check(file)
    assert not result["ok"] and "bad.cu:3" in result["errors"][0]["message"]
    assert "scale" in dir(client.ops)


def test_check_finds_what_the_file_includes(client, folder, tmp_path):
    file = tmp_path / "including.cu"
    file.write_text('#include "factor.cuh"\n' + SCALE)
    assert not client.check(file)["ok"]
    (tmp_path / "factor.cuh").write_text("#define FACTOR 7\n")
    assert client.check(file)["ok"]


# ---- opctl ----


def test_opctl_reload(client, opctl, folder):
    assert times(client) == 2
    done = opctl("reload")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Nothing changed.\n", "")
    save(folder, 3)
    done = opctl("--json", "reload")
    assert (done.returncode, done.stderr) == (0, "")
    assert [c["state"] for c in json.loads(done.stdout)] in (["serving"], [])  # or it was noticed
    assert times(client) == 3


def test_opctl_ops_lists_versions(client, opctl, folder):
    assert times(client) == 2
    save(folder, "no_such_name")
    reload_failing(client)
    lines = opctl("ops", "scale").stdout.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("VERSION"))
    assert lines[at].split() == ["VERSION", "TIME", "HASH", "STATE", "MESSAGE"]
    assert "failed" in lines[at + 1] and "no_such_name" in lines[at + 1]
    assert "serving" in lines[at + 2]


def test_opctl_rollback_and_pin(client, opctl, folder):
    assert times(client) == 2
    done = opctl("rollback", "scale")
    assert done.returncode == 1 and done.stderr.startswith("opctl: not_found: ")
    save(folder, 3)
    client.reload()
    done = opctl("rollback", "scale")
    assert (done.returncode, done.stderr) == (0, "") and "Version 1 " in done.stdout
    assert times(client) == 2
    assert "Version 2 " in opctl("pin", "scale", "2").stdout
    assert times(client) == 3
    assert "pinned" in opctl("ops", "scale").stdout
    assert opctl("pin", "scale", "latest").returncode == 0
    assert opctl("pin", "scale", "9").returncode == 1


def test_opctl_check(client, opctl, folder, tmp_path):
    done = opctl("check", str(folder / "scale.cu"), "--target", TARGET)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("KERNEL")
    assert sorted(line.split()[:3] for line in lines[1:]) == [
        ["scale", "float32", TARGET], ["scale", "float64", TARGET],
    ]  # fmt: skip
    bad = tmp_path / "bad.cu"
    bad.write_text(BROKEN)
    done = opctl("check", str(bad), "--target", TARGET, "--dtype", "float32")
    assert (done.returncode, done.stdout) == (1, "")
    assert "bad.cu:14:" in done.stderr and "error: " in done.stderr


def test_opctl_events(client, own, folder):
    assert times(client) == 2
    process = subprocess.Popen(
        [OPCTL, "--socket", own.socket, "--json", "events"], stdout=subprocess.PIPE, text=True
    )
    try:
        for _ in client.events():
            process.stdout.readline()
        save(folder, 3)
        event = json.loads(process.stdout.readline())
        assert (event["kind"], event["op"], event["version"]) == ("reloaded", "scale", 2)
        own.stop()
        assert process.wait(PATIENCE) == 3
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_opctl_code(opctl):
    done = opctl("ops", "scale", "--ptx", "--dtype", "float64")
    if done.stderr.startswith("opctl: unavailable"):
        pytest.skip("no NVRTC here")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("// scale, float64, sm_") and ".entry" in done.stdout


# ---- an operator that is not there, because its file fails ----


def test_a_new_file_with_a_mistake_is_told_of_where_its_operator_is_looked_up(client, folder):
    def put(text):
        (folder / "new").write_text(text.replace("scale", "fresh"))
        os.rename(folder / "new", folder / "fresh.cu")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", opd.ReloadWarning)
            client.reload()

    text = SCALE.replace("FACTOR", "5")
    put(text.replace("dtypes", "dtyeps"))
    client.restart(client.status()["devices"][0]["name"])  # a later event
    with pytest.raises(AttributeError) as caught:
        client.ops.fresh
    told = str(caught.value)
    assert f"no operator 'fresh': {folder}/fresh.cu failed: fresh.cu:3:" in told and "dtyeps" in told
    with pytest.raises(AttributeError, match="no operator 'fres'; it has .*scale"):
        client.ops.fres
    put(text)
    assert client.ops.fresh(np.ones(2, np.float32)).numpy().tolist() == [5, 5]
    (folder / "fresh.cu").unlink()
    assert eventually(lambda: client.reload() or "fresh" not in dir(client.ops))
    with pytest.raises(AttributeError, match="no operator 'fresh'; it has"):
        client.ops.fresh
