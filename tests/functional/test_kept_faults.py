"""Faults are kept: opctl faults lists them, opctl replay runs one again under the sanitizers."""

import json
import stat
import subprocess
from pathlib import Path

import numpy as np
import opd
import pytest

from conftest import DEVICE, PATIENCE, PROGRAM, eventually


# What the kernels do follows from what is in x, and so only where that was kept.
SOURCE = """\
//! op      reader(Tensor x, Tensor? b=None, *, int far=1, float by=2.0, str how="go", int? least=None) -> Tensor y
//! dtypes  float32 float64
//! words   how go hang
//! shape   x [N]
//! shape   b [N]
//! shape   y [N]
//! let     low = present(least) ? least : 0
//! saved   doubled [N]
//! example x=[8]
//! forward
//!   kernel reader
//! backward grad_x
//!   kernel reader_backward threads N

__global__ void reader(const scalar_t *x, const scalar_t *b, scalar_t *y, scalar_t *doubled, int64_t N,
                       int64_t far, acc_t by, int64_t low, int64_t how)
{
    CUDA_KERNEL_LOOP(i, N) {
        while (how == 1 && *(volatile const scalar_t *)&x[i] == scalar_t(7)) {}
        doubled[i] = x[i] * scalar_t(2);
        y[i] = x[i] == scalar_t(1234) ? x[N + far] : scalar_t(by + low);
    }
}

__global__ void reader_backward(const scalar_t *grad_y, const scalar_t *doubled, scalar_t *grad_x, int64_t N,
                                int64_t far)
{
    CUDA_KERNEL_LOOP(i, N) grad_x[i] = doubled[i] == scalar_t(10) ? grad_y[N + far] : grad_y[i];
}
"""
FORWARD, BACKWARD = (next(i for i, line in enumerate(SOURCE.splitlines(), 1) if text in line)
                     for text in ("x[N + far]", "grad_y[N + far]"))  # fmt: skip
FAR = 3 if DEVICE == "cpu" else 1 << 40


@pytest.fixture
def start(start_daemon, tmp_path):
    """start(*options): a daemon with the operator, and a client of it."""
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "reader.cu").write_text(SOURCE)

    def start(*options):
        daemon = start_daemon("--kernels", str(tmp_path / "kernels"), "--cache", str(tmp_path / "a [c]?"), *options)
        daemon.kept = tmp_path / "a [c]?" / "faults"
        return daemon, daemon.connect()

    return start


def opctl(daemon, *words):
    command = [Path(PROGRAM).parent / "opctl", "--socket", daemon.socket, *words]
    return subprocess.run(command, timeout=PATIENCE, capture_output=True, text=True, check=False)


def faults(daemon):
    done = opctl(daemon, "faults", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def fault(client, n=8, **attributes):
    x = np.zeros(n, np.float32)
    x[n // 2] = 1234
    with pytest.raises(opd.KernelFault) as told:
        client.ops.reader(client.tensor(x), far=FAR, **attributes)
    return str(told.value)


def replay(daemon, number, *options):
    """{stage: its report}."""
    done = opctl(daemon, "replay", str(number), "--json", *options)
    report = json.loads(done.stdout)
    assert report["op"] == "reader" and report["cases"] == 1 and not done.stderr, (report, done.stderr)
    assert done.returncode == (0 if report["ok"] else 1)
    return {stage["stage"]: stage for stage in report["stages"]}


def test_a_fault_is_kept(start):
    daemon, client = start()
    assert opctl(daemon, "faults").stdout.startswith("No faults are kept")
    message = fault(client, by=0.1, least=-3)
    assert eventually(lambda: len(faults(daemon)) == 1)
    (kept,) = faults(daemon)
    assert (kept["number"], kept["op"], kept["version"], kept["file"]) == (1, "reader", 1, "reader.cu")
    assert kept["device"] == DEVICE and kept["message"] == message
    assert message in opctl(daemon, "faults").stdout
    assert stat.S_IMODE(daemon.kept.stat().st_mode) == 0o700
    (file,) = daemon.kept.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    text = file.read_bytes()
    assert b"\nattr by floats 0x1.999999999999ap-4\nattr how word go\nattr least ints -3\n" in text
    assert text.endswith(np.array([0, 0, 0, 0, 1234, 0, 0, 0], np.float32).tobytes())

    client.close()
    (daemon.kept.parent.parent / "kernels" / "reader.cu").unlink()  # the source is kept, too
    for damage in (text[:-1], text + b" ", text.replace(b"fault 1", b"fault 2"), b""):
        (daemon.kept / "000002.fault").write_bytes(damage)
        (daemon.kept / "000002.fault").chmod(0o600)
        assert [f["number"] for f in faults(daemon)] == [1]
    file.chmod(0o666)  # anybody may have written what would run
    assert faults(daemon) == []
    assert "can" in opctl(daemon, "replay", "1").stderr
    assert "no fault 3 is kept" in opctl(daemon, "replay", "3").stderr
    assert "'x' is no number" in opctl(daemon, "replay", "x").stderr


@pytest.mark.unsanitized("replay has sanitizers of its own")
def test_a_fault_is_run_again(start):
    daemon, client = start()
    fault(client)
    x = np.zeros(8, np.float32)
    x[6] = 5
    y, context = client.ops.reader.forward(client.tensor(x), far=FAR)
    with pytest.raises(opd.KernelFault):
        context.backward(y)
    assert eventually(lambda: len(faults(daemon)) == 2)
    daemon.stop()  # no daemon is needed but to say where they are
    command = [PROGRAM, "trial", "replay", "{}", "", "", str(daemon.kept.parent), "json"]
    for number, line, tensor in ((1, FORWARD, "x"), (2, BACKWARD, "grad_y")):
        command[3] = str(number)
        done = subprocess.run(command, timeout=PATIENCE, capture_output=True, text=True, check=False)
        stages = {stage["stage"]: stage for stage in json.loads(done.stdout)["stages"]}
        assert done.returncode == 1 and set(stages) == {"guards", "addresses", "races"} | {DEVICE} - {"cpu"}
        (found,) = stages["guards"]["findings"]
        assert found["where"] == f"reader.cu:{line}"
        if DEVICE == "cpu":
            assert f"out-of-bounds read of '{tensor}': element 11 of 8 (float32)" in found["message"]
        else:
            (found,) = stages[DEVICE]["findings"]
            assert f"out-of-bounds read of '{tensor}': element {8 + FAR} of 8 (float32)" in found["message"]
            assert found["where"] == f"reader.cu:{line}" and found["context"].endswith("ward")
        assert stages["addresses"]["findings"][0]["where"] == f"reader.cu:{line}"


@pytest.mark.unsanitized("replay has sanitizers of its own")
def test_a_hang_is_kept(start):
    daemon, client = start()
    x = client.tensor(np.array([1, 7], np.float64))
    with pytest.raises(opd.DeadlineExceeded):
        client.ops.reader(x, how="hang", deadline=0.2)
    assert eventually(lambda: len(faults(daemon)) == 1)
    assert "ran longer than its deadline of 0.2 s" in faults(daemon)[0]["message"]
    guards = replay(daemon, 1, "--deadline", "0.2")["guards"]
    assert guards["state"] == "failed" and "ended after 0.2 s" in guards["message"]


def test_how_many_are_kept(start):
    daemon, client = start("--faults", "2", "--fault-size", "32")
    fault(client, n=8)
    fault(client, n=9)  # of which not all fits
    fault(client, n=4)
    assert eventually(lambda: [f["number"] for f in faults(daemon)] == [2, 3])
    assert b"\ntensor " not in (daemon.kept / "000002.fault").read_bytes()
    assert b"\ntensor 0 0 16\n" in (daemon.kept / "000003.fault").read_bytes()
    client.close()


def test_what_cannot_be_kept_costs_nothing(start):
    daemon, client = start()
    daemon.kept.parent.mkdir(exist_ok=True)
    daemon.kept.write_text("no folder")
    fault(client)
    assert client.ops.reader(client.tensor(np.zeros(8, np.float32))).numpy().tolist() == [2] * 8
    assert eventually(lambda: "a fault of reader is not kept: cannot write" in daemon.read_log())
    assert daemon.kept.read_text() == "no folder"
    assert "only the user of its daemon lists them" in opctl(daemon, "faults").stderr


def test_none_are_kept(start):
    daemon, client = start("--faults", "0")
    fault(client)
    client.synchronize()
    assert not daemon.kept.exists()
