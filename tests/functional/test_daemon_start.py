"""The daemon's start: options, configuration, devices, and its socket."""

import ctypes
import fcntl
import os
import shutil
import socket
import stat
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest

from conftest import DEVICE, PATIENCE, PROGRAM, ROOT, await_end, find_family
from operators import double_by, put_kernels
from raw import Raw, eventually, find_roles, read_fds


def run(*args, **options):
    return subprocess.run(
        [PROGRAM, *args], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE,
        **options,
    )  # fmt: skip


def test_ready_line(daemon):
    assert daemon.ready == f"ready: {daemon.socket} (devices {DEVICE})\n"


def test_spins_where_there_are_cores(start_daemon):
    daemon = start_daemon("--spin", device="cpu")
    with Raw(daemon.socket) as raw:
        assert raw.call("hello")["spins"] == (len(os.sched_getaffinity(0)) >= 4)
        for _ in range(5):
            assert raw.call("tensor_list") == []
    with Raw(start_daemon(device="cpu").socket) as raw:
        assert raw.call("hello")["spins"] is False


def test_log_says_what_it_is(daemon):
    with Raw(daemon.socket) as raw:
        version = raw.call("hello")["version"]
    log = daemon.read_log()
    assert f"opd {version}, pid {daemon.pid}, socket {daemon.socket}" in log
    assert "operators" in log and f"device {DEVICE} is ready" in log


def test_three_roles(daemon):
    assert len(find_roles(daemon.pid, "executor")) == 1
    assert eventually(lambda: find_roles(daemon.pid, "compiler"))
    for role in ("executor", "compiler"):
        for pid in find_roles(daemon.pid, role):
            assert pid != daemon.pid


def test_children_inherit_no_descriptors_of_clients(daemon):
    """Nor any other socket of the broker's; the libraries of a GPU open some of their own."""
    with Raw(daemon.socket) as raw:
        raw.call("hello")
        held = {name for name in read_fds(daemon.pid) if name.startswith("socket:")}
        assert held
        for role in ("executor", "compiler"):
            for pid in find_roles(daemon.pid, role):
                assert held.isdisjoint(read_fds(pid))


# --- options


def test_version():
    result = run("--version")
    assert (result.returncode, result.stderr) == (0, "")
    version = (ROOT / "server" / "base" / "version.h").read_text().split('"')[1]
    assert result.stdout == f"opd {version}\n"


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_names_every_option(option):
    result = run(option)
    assert result.returncode == 0 and result.stdout.startswith("usage: opd")
    for name in ("socket", "device", "kernels", "cache", "config", "log-level", "compilers",
                 "memory-limit", "client-memory", "client-requests", "max-message", "max-launches",
                 "debug", "deadline", "compile-deadline", "max-connections", "warm", "version"):  # fmt: skip
        assert f"--{name} " in result.stdout


@pytest.mark.parametrize(
    "args, expected",
    [
        (["--no-such"], "unknown option '--no-such'"),
        (["--devise", "cpu"], "did you mean 'device'?"),
        (["-x"], "-x"),
        (["file.cu"], "file.cu"),
        (["--socket"], "--socket"),
        (["--socket", ""], "empty"),
        (["--device", "gpu"], "gpu"),
        (["--device", "cuda:x"], "cuda:x"),
        (["--device", ""], "empty"),
        (["--log-level", "loud"], "loud"),
        (["--compilers", "0"], "from 1"),
        (["--compilers", "many"], "many"),
        (["--memory-limit", "-1"], "-1"),
        (["--memory-limit", "8X"], "8X"),
        (["--client-memory", "none"], "none"),
        (["--client-requests", "0"], "from 1"),
        (["--max-message", "1K"], "from 64K to 64M"),
        (["--max-message", "65M"], "from 64K to 64M"),
        (["--max-launches", "0"], "from 1"),
        (["--debug=2"], "'--debug=2' takes no value"),
        (["--version=3"], "'--version=3' takes no value"),
        (["--debug", "-x"], "unknown option '-x'"),
        (["--deadline", "0"], "above 0"),
        (["--deadline", "nan"], "nan"),
        (["--keep", "-1"], "'-1', expected seconds, at least 0"),
        (["--keep", "1e12"], "'1e12', expected seconds, at least 0 and at most 1000000000"),
        (["--keep", "nan"], "nan"),
        (["--keep", "inf"], "at most"),
        (["--keep", ""], "expected seconds"),
        (["--max-connections", "1.5"], "1.5"),
        (["--warm=maybe"], "warm"),
        (["--kernels", "/no/such/folder"], "/no/such/folder"),
        (["--kernels", "/etc/passwd"], "no folder"),
        (["--config", "/no/such/file"], "/no/such/file"),
        (["--config"], "'--config' wants a value after it"),
    ],
)
def test_wrong_options(tmp_path, args, expected):
    result = run("--socket", str(tmp_path / "s"), *args)
    assert result.returncode == 2 and result.stdout == ""
    assert result.stderr.startswith("opd: ") and expected in result.stderr
    assert result.stderr.count("\n") == 1
    assert os.listdir(tmp_path) == []


def test_config_file(tmp_path, start_daemon):
    config = tmp_path / "opd.conf"
    kernels = put_kernels(tmp_path / "kernels", double_it=double_by(2))
    config.write_text(
        f"# a comment\n\n  memory-limit = 96M\nkernels= {kernels}\nlog-level=debug\n"
        "max-connections = 1\n"
    )
    daemon = start_daemon("--config", str(config), "--max-connections", "5")
    with Raw(daemon.socket) as raw, Raw(daemon.socket) as second:
        status = raw.call("status")
        assert status["kernels"][-1] == kernels
        assert status["devices"][0]["memory_limit"] == 96 << 20
        assert second.call("status")["connections"] == 2  # the argument won
    assert " debug " in daemon.read_log()


@pytest.mark.parametrize(
    "text, line",
    [
        ("compilers = 2\nbogus = 1\n", 2),
        ("compilers\n", 1),
        ("\ndeadline = -1\n", 2),
        ("config = x\n", 1),
    ],
)
def test_wrong_config_file(tmp_path, text, line):
    config = tmp_path / "opd.conf"
    config.write_text(text)
    result = run("--config", str(config), "--socket", str(tmp_path / "s"))
    assert result.returncode == 2 and f"{config}:{line}: " in result.stderr


# --- devices


def have_gpu():
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    return (
        cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0
    )


@pytest.mark.skipif(have_gpu(), reason="there is a GPU")
def test_cuda_without_a_gpu_says_why(tmp_path):
    path = tmp_path / "opd.sock"
    result = run("--socket", str(path), "--device", "cuda")
    assert result.returncode == 1 and result.stdout == ""
    last = result.stderr.splitlines()
    assert any(line.startswith("opd: device cuda:0: ") and "libcuda" in line for line in last), last
    assert not path.exists()


@pytest.mark.skipif(have_gpu(), reason="there is a GPU")
def test_auto_without_a_gpu_serves_the_cpu(start_daemon):
    daemon = start_daemon(device="auto")
    assert "(devices cpu)" in daemon.ready and "not served: cuda:0: " in daemon.read_log()


# --- the socket


def test_socket_and_folder_are_private(tmp_path, start_daemon):
    path = tmp_path / "new" / "opd.sock"
    old = os.umask(0)
    try:
        daemon = start_daemon(socket=path)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    daemon.stop()
    assert not path.exists()


def test_folder_that_others_can_write(tmp_path):
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    result = run("--socket", str(folder / "s"), "--device", "cpu")
    assert result.returncode == 1 and "others" in result.stderr


def test_what_is_no_socket_is_left_alone(tmp_path):
    path = tmp_path / "precious"
    path.write_text("text")
    result = run("--socket", str(path), "--device", "cpu")
    assert result.returncode == 1 and "no socket" in result.stderr
    assert path.read_text() == "text"


def test_socket_path_too_long(tmp_path):
    result = run("--socket", str(tmp_path / ("x" * 120)), "--device", "cpu")
    assert result.returncode == 1 and "longer" in result.stderr


def test_socket_folder_that_cannot_be(tmp_path):
    result = run("--socket", "/proc/opd/x", "--device", "cpu")
    assert result.returncode == 1 and "/proc/opd" in result.stderr


def test_second_daemon_on_a_live_socket(daemon):
    with Raw(daemon.socket) as raw:
        raw.make(1, "int8", [1], b"a")
        result = run("--socket", daemon.socket, "--device", "cpu")
        assert result.returncode == 3 and result.stdout == ""
        assert f"another opd serves on {daemon.socket}" in result.stderr
        assert raw.call("tensor_read", 1, 0) == b"a"
    with Raw(daemon.socket) as raw:
        assert raw.call("hello")["pid"] == daemon.pid


def test_a_lock_that_is_about_to_be_let_go(tmp_path, start_daemon):
    """As by a process that a killed daemon had just forked, and that has not run its own program yet."""
    path = tmp_path / "opd.sock"
    with open(f"{path}.lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        timer = threading.Timer(0.1, lambda: fcntl.flock(held, fcntl.LOCK_UN))
        timer.start()
        daemon = start_daemon(socket=path)
        timer.join()
    assert daemon.ready.startswith("ready: ")


def test_a_socket_that_nobody_answers_on_any_more(tmp_path, start_daemon):
    """A process that one that was killed had just forked has it and the lock, until it runs a program of its own."""
    path = tmp_path / "opd.sock"
    with open(f"{path}.lock", "w") as held, socket.socket(socket.AF_UNIX) as listening:
        fcntl.flock(held, fcntl.LOCK_EX)
        listening.bind(str(path))
        listening.listen(8)

        def let_go():
            fcntl.flock(held, fcntl.LOCK_UN)
            listening.close()

        timer = threading.Timer(0.1, let_go)
        timer.start()
        daemon = start_daemon(socket=path)
        timer.join()
    assert daemon.ready.startswith("ready: ")
    with Raw(str(path)) as raw:
        assert raw.call("hello")["pid"] == daemon.pid


def test_stale_socket_is_replaced(tmp_path, start_daemon):
    path = tmp_path / "opd.sock"
    first = start_daemon(socket=path)
    family = find_family(first.pid)
    first.process.kill()
    first.process.wait(PATIENCE)
    assert path.exists()
    assert not await_end(family)
    second = start_daemon(socket=path)
    with Raw(str(path)) as raw:
        assert raw.call("hello")["pid"] == second.pid
    second.stop()
    assert not path.exists()


def test_the_lock_file_of_a_dead_daemon_is_no_obstacle(tmp_path, start_daemon):
    path = tmp_path / "opd.sock"
    (tmp_path / "opd.sock.lock").write_text("12345\n")
    s = socket.socket(socket.AF_UNIX)
    s.bind(str(path))
    s.close()
    start_daemon(socket=path).stop()


@pytest.mark.skipif(not shutil.which("setpriv"), reason="needs setpriv")
def test_another_user_is_refused(request, start_daemon):
    if os.geteuid() != 0:
        pytest.skip("needs root")
    folder = Path(tempfile.mkdtemp(prefix="opd-test-"))  # pytest's own are closed to others by each run that begins
    request.addfinalizer(lambda: shutil.rmtree(folder))
    folder.chmod(0o755)
    path = folder / "opd.sock"
    start_daemon(socket=path)
    path.chmod(0o666)
    code = "import socket,sys; s=socket.socket(1); s.connect(sys.argv[1]); sys.stdout.buffer.write(s.recv(1000))"
    result = subprocess.run(
        ["setpriv", "--reuid", "12345", "--clear-groups", "/usr/bin/python3", "-c", code, str(path)],
        capture_output=True, timeout=PATIENCE,
    )  # fmt: skip
    assert b"another user" in result.stdout, result


def test_a_gpu_that_is_not_there_is_told_of_once(start_daemon):
    """Nobody has asked for one."""
    daemon = start_daemon(device="auto")
    with Raw(daemon.socket) as raw:
        if any(d["name"] != "cpu" for d in raw.call("status")["devices"]):
            pytest.skip("there is a GPU")
        assert "cuda" not in str(raw.call("events"))
    told = [line for line in daemon.read_log().splitlines() if "cuda" in line and " broker: " in line]
    assert len(told) == 1 and " info " in told[0] and "not served: cuda:0: " in told[0]
