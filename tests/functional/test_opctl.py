"""opctl and the C client's example, against the real daemon."""

import json
import os
import socket
import subprocess
import threading
from pathlib import Path

import msgpack
import numpy as np
import pytest

from conftest import PATIENCE, can_compile, eventually

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("OPD_BIN", ROOT / "build" / "opd")).resolve().parent
OPCTL = BUILD / "opctl"

GOOD, ANSWERED, USAGE, ABSENT = 0, 1, 2, 3


def run(*args, **options):
    return subprocess.run(
        [OPCTL, *args], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE,
        **options,
    )  # fmt: skip


@pytest.fixture
def opctl(daemon):
    return lambda *args: run("--socket", daemon.socket, *args)


@pytest.fixture
def ask(daemon):
    """What the daemon answers, by msgpack alone."""

    def ask(method, *params):
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(daemon.socket)
            s.sendall(msgpack.packb([0, 1, method, params]))
            unpacker = msgpack.Unpacker(max_buffer_size=1 << 26)
            while data := s.recv(1 << 16):
                unpacker.feed(data)
                for kind, _, error, result in unpacker:
                    assert (kind, error) == (1, None)
                    return result
        raise AssertionError("the daemon closed the connection")

    return ask


def read_json(done):
    assert (done.returncode, done.stderr) == (GOOD, "")
    assert done.stdout.endswith("\n") and done.stdout.count("\n") == 1
    return json.loads(done.stdout, parse_constant=pytest.fail)


# ---- commands ----


def test_status(daemon, opctl, ask):
    done = opctl("status")
    assert (done.returncode, done.stderr) == (GOOD, "")
    status = ask("status")
    assert f"opd {status['version']}" in done.stdout
    assert f"pid {daemon.pid}" in done.stdout
    assert daemon.socket in done.stdout
    for device in status["devices"]:
        assert device["name"] in done.stdout
    assert "CLIENT" in done.stdout and "libopd" in done.stdout


def test_status_as_json(daemon, opctl, ask):
    status, expected = read_json(opctl("--json", "status")), ask("status")
    assert status.keys() == expected.keys()
    for key in ("version", "protocol", "pid", "socket", "started", "operators", "cache"):
        assert status[key] == expected[key]
    assert [d["name"] for d in status["devices"]] == [d["name"] for d in expected["devices"]]


def test_ops(opctl, ask):
    done = opctl("ops")
    assert (done.returncode, done.stderr) == (GOOD, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("OPERATOR")
    assert [line.split()[0] for line in lines[1:]] == [op["name"] for op in ask("op_list")]


def test_ops_shows_what_a_derivative_is_made_of(opctl):
    done = opctl("ops", "silu.backward")
    assert done.returncode == 0 and "//! op      silu.backward(Tensor g_y, Tensor x)" in done.stdout
    assert "//! formula d_x = " in done.stdout and "//! formula" not in opctl("ops", "silu").stdout


def test_ops_as_json_is_the_reply(opctl, ask):
    assert read_json(opctl("ops", "--json")) == ask("op_list")
    assert read_json(opctl("ops", "gelu", "--json")) == ask("op_info", "gelu")


def test_one_op(opctl, ask):
    done = opctl("ops", "gelu")
    assert (done.returncode, done.stderr) == (GOOD, "")
    op = ask("op_info", "gelu")
    assert done.stdout.startswith(op["schema"] + "\n")
    assert op["file"] in done.stdout
    for part in op["inputs"] + op["attrs"] + op["outputs"]:
        assert part["name"] in done.stdout
    assert "sigmoid" in done.stdout


def test_an_op_that_there_is_not(opctl):
    done = opctl("ops", "no_such_op")
    assert (done.returncode, done.stdout) == (ANSWERED, "")
    assert done.stderr.startswith("opctl: not_found: ")
    assert "no_such_op" in done.stderr


def test_tensors(client, opctl):
    done = opctl("tensors")
    assert (done.returncode, done.stdout) == (GOOD, "No named tensors.\n")
    x = client.tensor(np.zeros((2, 300), "float32"), name="test-opctl é")
    lines = opctl("tensors").stdout.splitlines()
    (info,) = read_json(opctl("--json", "tensors"))
    x.free()
    assert len(lines) == 2
    for word in ("test-opctl é", "float32", "2x300", "2.3 KiB", info["device"]):
        assert word in lines[1]
    assert (info["name"], info["shape"], info["bytes"]) == ("test-opctl é", [2, 300], 2400)
    assert read_json(opctl("--json", "tensors")) == []


def test_stop(start_daemon):
    daemon = start_daemon()
    done = run("--socket", daemon.socket, "stop")
    assert (done.returncode, done.stdout, done.stderr) == (GOOD, "", "")
    assert daemon.process.wait(PATIENCE) == 0
    assert not os.path.exists(daemon.socket)
    assert run("--socket", daemon.socket, "status").returncode == ABSENT


# ---- no daemon ----


def test_no_daemon(tmp_path):
    done = run("--socket", str(tmp_path / "none"), "status")
    assert (done.returncode, done.stdout) == (ABSENT, "")
    assert str(tmp_path / "none") in done.stderr


def test_default_socket(daemon, tmp_path):
    environment = {**os.environ, "OPD_SOCKET": daemon.socket}
    assert run("status", env=environment).returncode == GOOD
    environment = {**os.environ, "OPD_SOCKET": "", "XDG_RUNTIME_DIR": str(tmp_path)}
    done = run("status", env=environment)
    assert done.returncode == ABSENT
    assert f"{tmp_path}/opd/opd.sock" in done.stderr


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x94\x01"])
def test_something_else_behind_the_socket(tmp_path, answer):
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def serve():
            peer, _ = listener.accept()
            with peer:
                peer.recv(1 << 16)
                peer.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        done = run("--socket", path, "status")
        thread.join()
    assert (done.returncode, done.stdout) == (ABSENT, "")
    assert done.stderr.startswith("opctl: ")


# ---- usage ----


def test_help_and_version():
    done = run("--help")
    assert (done.returncode, done.stderr) == (GOOD, "")
    for word in ("status", "ops [NAME]", "tensors", "reload", "check FILE.cu", "events",
                 "rollback OP", "pin OP VERSION|latest", "upgrade [PROGRAM]", "stop", "--socket", "--json"):  # fmt: skip
        assert word in done.stdout
    done = run("check", "--help")
    assert (done.returncode, done.stderr) == (GOOD, "")
    assert done.stdout.startswith("Usage: opctl check FILE.cu [OPTIONS]\n")
    assert "--target" in done.stdout and "--follow" not in done.stdout
    done = run("--version")
    assert (done.returncode, done.stdout.split()[0]) == (GOOD, "opctl")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "Usage: opctl"),
        (("chek", "x.cu"), "did you mean 'check'?"),
        (("--folow", "events"), "did you mean '--follow'?"),
        (("status", "--sass"), "status takes no --sass"),
        (("check",), "check wants FILE.cu"),
        (("pin", "gelu"), "pin wants OP VERSION|latest"),
        (("rollback",), "rollback wants OP"),
        (("rollback", "a", "b"), "'b'"),
        (("stauts",), "did you mean 'status'?"),
        (("tensor",), "did you mean 'tensors'?"),
        (("xyzzy",), "unknown command 'xyzzy'\n"),
        (("status", "more"), "'more'"),
        (("ops", "a", "b"), "'b'"),
        (("--jsn", "status"), "--jsn"),
        (("--socket",), "--socket"),
        (("--socket", "/" * 200, "status"), "200 bytes"),
    ],
)
def test_usage(args, words):
    done = run(*args)
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert words in done.stderr


def test_output_that_cannot_be_written(daemon):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [OPCTL, "--socket", daemon.socket, "--json", "ops"],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=PATIENCE,
        )  # fmt: skip
    assert done.returncode == ANSWERED
    assert "could not be written" in done.stderr


# ---- the library ----


@pytest.mark.unsanitized("a sanitizer's build has no shared library")
@pytest.mark.skipif(not can_compile(), reason="no C compiler, or no msgpack.h")
def test_example(daemon, tmp_path):
    library = tmp_path / "libopd.so.0"  # its soname
    library.symlink_to(BUILD / "libopd.so")
    sources = ROOT / "client" / "c"
    program = tmp_path / "example"
    subprocess.run(
        ["cc", "-Wall", "-Werror", f"-I{sources}", sources / "example.c", library, "-o", program],
        check=True, timeout=PATIENCE,
    )  # fmt: skip
    done = subprocess.run(
        [program, daemon.socket], env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    words = done.stdout.replace("gelu(", "").replace(")", "").split()
    x, y, grad = (np.array(words[i::5], float) for i in (0, 2, 4))
    assert x.tolist() == [-3, -2, -1, 0, 1, 2, 3]

    def gelu(x):
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    assert np.allclose(y, gelu(x), atol=2e-6)
    assert np.allclose(grad, (gelu(x + 1e-5) - gelu(x - 1e-5)) / 2e-5, atol=2e-6)


def test_check_without_a_daemon(tmp_path):
    """It has one to itself, and nothing is left of it; not where it is interrupted either."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    env = {**os.environ, "TMPDIR": str(folder), "OPD_BIN": str(BUILD / "opd")}
    command = ["--socket", str(tmp_path / "none"), "check", "--target", "cpu", "--dtype", "float32"]
    good = str(ROOT / "kernels_src" / "relu.cu")
    done = run(*command, good, "--json", env=env)
    assert read_json(done)["op"] == "relu" and len(json.loads(done.stdout)["kernels"]) == 2
    bad = tmp_path / "bad.cu"
    bad.write_text("//! op bad(Tensor x) -> Tensor y\n//! gird 3\n")
    done = run(*command, bad, env=env)
    assert done.returncode == ANSWERED and "bad.cu:2: unknown directive 'gird'" in done.stderr
    assert run(*command, good, env={**env, "OPD_BIN": "/none"}).returncode == ABSENT
    assert run(*command, tmp_path / "none.cu", env=env).returncode == USAGE
    process = subprocess.Popen([OPCTL, *command, good], env=env, stdout=subprocess.DEVNULL)
    assert eventually(lambda: list(folder.iterdir()))
    process.terminate()
    assert process.wait(PATIENCE) == 128 + 15
    assert not list(folder.iterdir())


def test_check_for_the_cpu_alone(opctl):
    """Whose compiler does not tell what a kernel takes."""
    done = opctl("check", str(ROOT / "kernels_src" / "relu.cu"), "--target", "cpu", "--dtype", "float32")
    assert (done.returncode, done.stderr) == (GOOD, "")
    head, *rows = [line.split() for line in done.stdout.splitlines()]
    assert head == ["KERNEL", "DTYPE", "TARGET"]
    assert rows and all(row[-2:] == ["float32", "cpu"] for row in rows)
