"""The daemon's life: start, options, processes, cache, memory limit, and what kills it."""

import ctypes
import os
import re
import shutil
import signal
import socket
import stat
import struct
import subprocess
import time
from pathlib import Path

import msgpack
import pytest

from conftest import DEVICE, PROGRAM, ROOT, await_end, find_family, in_threads
from operators import ROUNDS, SPIN
from raw import HungUp, Raw, RpcError, eventually, find_roles, pack_request

DOUBLE = """
//! op      double_it(Tensor x) -> Tensor y
//! dtypes  float32 float64
//! shape   x [...S]
//! shape   y [...S]
//! example x=[5]
//
//! forward
//!   kernel  double_it
//!   bind    n = numel(x)

extern "C" __global__ void double_it(const scalar_t *x, scalar_t *y, long long n)
{
    CUDA_KERNEL_LOOP(i, n)
        y[i] = x[i] * FACTOR;
}
"""


def run(*args, **options):
    return subprocess.run(
        [PROGRAM, *args], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
        **options,
    )  # fmt: skip


def put_kernels(folder, **sources):
    folder.mkdir(exist_ok=True)
    for name, source in sources.items():
        (folder / f"{name}.cu").write_text(source)
    return str(folder)


def double_by(factor):
    return DOUBLE.replace("FACTOR", str(factor))


def double(raw, id=1):
    """What double_it makes of 21."""
    raw.make(id, "float32", [1], struct.pack("f", 21))
    raw.call("forward", "double_it", [id], {}, [id + 1])
    return struct.unpack("f", raw.call("tensor_read", id + 1, 0))[0]


def read_compiled(raw):
    return raw.call("status")["compilers"]["compiled"]


@pytest.fixture
def slow_cxx(tmp_path, monkeypatch):
    """The host's compiler, which waits until it is told to go on."""

    class Control:
        begun, go = tmp_path / "begun", tmp_path / "go"

    script = tmp_path / "slow-c++"
    script.write_text(
        f'#!/bin/sh\ncase "$*" in *opd.cpp*) ;; *) exec c++ "$@" ;; esac\n'
        f": > {Control.begun}\nwhile [ ! -e {Control.go} ]; do sleep 0.02; done\n"
        'exec c++ "$@"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("OPD_CXX", str(script))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    yield Control
    Control.go.touch()


# --- start and options


def test_ready_line(daemon):
    assert daemon.ready == f"ready: {daemon.socket} (devices {DEVICE})\n"


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


def read_fds(pid):
    return {os.readlink(f"/proc/{pid}/fd/{n}") for n in os.listdir(f"/proc/{pid}/fd")}


def test_children_inherit_no_descriptors_of_clients(daemon):
    """Nor any other socket of the broker's; the libraries of a GPU open some of their own."""
    with Raw(daemon.socket) as raw:
        raw.call("hello")
        held = {name for name in read_fds(daemon.pid) if name.startswith("socket:")}
        assert held
        for role in ("executor", "compiler"):
            for pid in find_roles(daemon.pid, role):
                assert not held & read_fds(pid)


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
        (["--no-such"], "--no-such"),
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
        (["--debug=2"], "--debug=2"),
        (["--deadline", "0"], "above 0"),
        (["--deadline", "nan"], "nan"),
        (["--max-connections", "1.5"], "1.5"),
        (["--warm=maybe"], "warm"),
        (["--kernels", "/no/such/folder"], "/no/such/folder"),
        (["--kernels", "/etc/passwd"], "no folder"),
        (["--config", "/no/such/file"], "/no/such/file"),
        (["--config"], "--config"),
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


def test_stale_socket_is_replaced(tmp_path, start_daemon):
    path = tmp_path / "opd.sock"
    first = start_daemon(socket=path)
    family = find_family(first.pid)
    first.process.kill()
    first.process.wait(10)
    assert path.exists()
    assert not await_end(family, 10)
    second = start_daemon(socket=path)
    with Raw(str(path)) as raw:
        assert raw.call("hello")["pid"] == second.pid
    second.stop()
    assert not path.exists()


# --- stop


def list_shared():
    return set(os.listdir("/dev/shm"))


@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT", "stop", "everyone"])
def test_stop_finishes_what_is_in_flight(tmp_path, start_daemon, monkeypatch, how):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    shared = list_shared()
    daemon = start_daemon("--kernels", put_kernels(tmp_path / "k", spin=SPIN))
    family = find_family(daemon.pid)
    with Raw(daemon.socket) as raw, Raw(daemon.socket) as idle:
        raw.make(1, "float32", [4])
        raw.call("forward", "spin", [1], {"rounds": 1}, [2])
        ids = [
            raw.request("forward", "spin", [1], {"rounds": ROUNDS // 2}, [3 + i]) for i in range(2)
        ]
        ids.append(raw.request("tensor_read", 4, 0))
        assert eventually(lambda: sum(d["queued"] for d in idle.call("status")["devices"]) > 0)
        family += find_family(daemon.pid)
        if how == "stop":
            assert idle.call("stop") is None
        elif how == "everyone":  # as a service manager does
            os.killpg(daemon.pid, signal.SIGTERM)
        else:
            os.kill(daemon.pid, getattr(signal, how))
        for id in ids:
            raw.wait(id)
        with pytest.raises(HungUp):
            raw.receive()
        with pytest.raises(HungUp):
            idle.receive()
    assert daemon.process.wait(10) == 0, daemon.read_log()
    assert not await_end(family, 5)
    assert not os.path.exists(daemon.socket)
    assert list_shared() == shared
    assert os.listdir(tmp_path) == ["k"]


def test_stop_refuses_what_comes_later(tmp_path, start_daemon):
    daemon = start_daemon("--kernels", put_kernels(tmp_path / "k", spin=SPIN))
    with Raw(daemon.socket) as raw:
        raw.make(1, "float32", [4])
        raw.call("forward", "spin", [1], {"rounds": 1}, [2])
        ids = [
            raw.request("forward", "spin", [1], {"rounds": ROUNDS // 2}, [3]),
            raw.request("stop"),
            raw.request("status"),
        ]
        assert raw.wait(ids[1]) is None
        with pytest.raises(RpcError, match="stopping") as error:
            raw.wait(ids[2])
        assert error.value.code == "unavailable"
        with pytest.raises(OSError):
            Raw(daemon.socket)
        raw.wait(ids[0])
    assert daemon.process.wait(10) == 0


def test_stop_waits_for_a_request_that_waits_for_its_compile(tmp_path, start_daemon, slow_cxx):
    daemon = start_daemon("--kernels", put_kernels(tmp_path / "k", double_it=double_by(3.0625)),
                          "--cache", "", device="cpu")  # fmt: skip
    with Raw(daemon.socket) as raw:
        raw.make(1, "float32", [4])
        first = raw.request("forward", "double_it", [1], {}, [2])
        second = raw.request("forward", "double_it", [2], {}, [3])
        assert eventually(slow_cxx.begun.exists)
        os.kill(daemon.pid, signal.SIGTERM)
        time.sleep(0.2)
        assert daemon.alive()
        slow_cxx.go.touch()
        raw.wait(first)
        with pytest.raises(RpcError, match="stopping"):
            raw.wait(second)
    assert daemon.process.wait(10) == 0


def test_stop_does_not_wait_for_a_compile_that_nobody_wants(tmp_path, start_daemon, slow_cxx):
    daemon = start_daemon("--warm", "--cache", "", device="cpu")
    assert eventually(slow_cxx.begun.exists)
    family = find_family(daemon.pid)
    assert len(family) > 3
    os.kill(daemon.pid, signal.SIGTERM)
    assert daemon.process.wait(5) == 0
    assert not await_end(family, 2), "a compiler's compiler is left"
    assert not list(tmp_path.glob("opd-*")), "temporary files are left"


def test_stop_and_a_client_that_sent_half_a_message(start_daemon):
    daemon = start_daemon()
    with Raw(daemon.socket) as raw:
        raw.send(pack_request(1, "status", ())[:-1])
        daemon.stop(5)


def test_stop_twice(start_daemon):
    daemon = start_daemon()
    os.kill(daemon.pid, signal.SIGTERM)
    os.kill(daemon.pid, signal.SIGTERM)
    assert daemon.process.wait(10) == 0


# --- processes that are killed


def test_broker_killed(tmp_path, start_daemon, slow_cxx):
    """Executors and compilers end with it, and what the compilers had started."""
    daemon = start_daemon("--cache", "", "--warm", device="cpu")
    assert eventually(slow_cxx.begun.exists)
    family = find_family(daemon.pid)
    assert len(family) > 3
    daemon.process.kill()
    daemon.process.wait(10)
    assert not await_end(family, 5)
    assert not list(tmp_path.glob("opd-*")), "temporary files are left"


def test_executor_killed(start_daemon, tmp_path):
    daemon = start_daemon("--kernels", put_kernels(tmp_path / "k", spin=SPIN))
    with Raw(daemon.socket) as raw, Raw(daemon.socket) as other:
        raw.make(1, "float32", [4], b"0123456789abcdef")
        other.make(1, "uint8", [100000], b"x" * 100000, name="kept")
        raw.call("forward", "spin", [1], {"rounds": 1}, [2])
        ids = [
            raw.request("forward", "spin", [1], {"rounds": ROUNDS * 5}, [3]),
            raw.request("tensor_read", 1, 0),
        ]
        assert eventually(lambda: other.call("status")["devices"][0]["queued"] > 0)
        time.sleep(0.2)  # begun by now: what has not is run again, and no error
        (executor,) = find_roles(daemon.pid, "executor")
        os.kill(executor, signal.SIGKILL)
        with pytest.raises(RpcError) as error:
            raw.wait(ids[0])
        assert error.value.code == "kernel_fault"
        assert re.search(
            r"^spin version 1 forward, kernel spin \(x float32 \[4\]\): .*signal 9", str(error.value)
        )
        # What had not begun is run by the next one.
        assert raw.wait(ids[1]) == b"0123456789abcdef"
        assert raw.fail("tensor_info", 3).code == "not_found"
        assert raw.call("tensor_read", 1, 0) == b"0123456789abcdef"
        assert other.call("tensor_read", 1, 0) == b"x" * 100000
        raw.call("forward", "spin", [1], {"rounds": 1}, [3])
        device = raw.call("status")["devices"][0]
        assert (device["restarts"], device["state"]) == (1, "ready")
        (successor,) = find_roles(daemon.pid, "executor")
        assert successor != executor
        other.call("tensor_free", [1])


def test_executor_killed_again_and_again(start_daemon):
    daemon = start_daemon()
    with Raw(daemon.socket) as raw:
        raw.make(1, "float32", [4], b"0123456789abcdef")
        raw.call("forward", "gelu", [1], {}, [2])
        result = raw.call("tensor_read", 2, 0)
        for _ in range(5):
            for pid in find_roles(daemon.pid, "executor"):
                os.kill(pid, signal.SIGKILL)
            again = 0
            while True:
                try:
                    raw.call("forward", "gelu", [1], {}, [3])
                    break
                except RpcError as error:
                    assert error.code == "kernel_fault"
                    again += 1
            assert again <= 1
            assert raw.call("tensor_read", 3, 0) == result
            raw.call("tensor_free", [3])
        assert raw.call("tensor_read", 1, 0) == b"0123456789abcdef"
        assert raw.call("status")["devices"][0]["restarts"] == 5


def test_executor_stopped_misses_its_deadline(start_daemon):
    """SIGSTOP: it neither ends nor works."""
    daemon = start_daemon("--deadline", "0.5")
    with Raw(daemon.socket) as raw:
        raw.make(1, "int8", [4], b"abcd")
        (pid,) = find_roles(daemon.pid, "executor")
        os.kill(pid, signal.SIGSTOP)
        assert raw.fail("tensor_read", 1, 0).code == "deadline_exceeded"
        assert raw.call("tensor_read", 1, 0) == b"abcd"


def test_compiler_killed(tmp_path, start_daemon, slow_cxx):
    daemon = start_daemon("--kernels", put_kernels(tmp_path / "k", double_it=double_by(4.0625)),
                          "--cache", "", "--compilers", "1", device="cpu")  # fmt: skip
    with Raw(daemon.socket) as raw:
        raw.make(1, "float32", [1], struct.pack("f", 2))
        id = raw.request("forward", "double_it", [1], {}, [2])
        assert eventually(slow_cxx.begun.exists)
        (compiler,) = find_roles(daemon.pid, "compiler")
        os.kill(compiler, signal.SIGKILL)
        with pytest.raises(RpcError, match="double_it.*signal 9") as error:
            raw.wait(id)
        assert error.value.code == "unavailable" and error.value.op == "double_it"
        slow_cxx.go.touch()
        raw.call("forward", "double_it", [1], {}, [2])
        assert struct.unpack("f", raw.call("tensor_read", 2, 0)) == (8.125,)
        assert raw.call("status")["compilers"]["failed"] == 1


def test_compile_deadline(tmp_path, start_daemon, slow_cxx):
    daemon = start_daemon("--kernels", put_kernels(tmp_path / "k", double_it=double_by(5.0625)), "--cache", "",
                          "--compile-deadline", "0.5", device="cpu")  # fmt: skip
    with Raw(daemon.socket) as raw:
        raw.make(1, "float32", [1])
        family = None
        id = raw.request("forward", "double_it", [1], {}, [2])
        assert eventually(slow_cxx.begun.exists)
        family = find_family(daemon.pid)
        with pytest.raises(RpcError, match="--compile-deadline"):
            raw.wait(id)
        left = await_end([f for f in family if f not in find_family(daemon.pid)], 3)
        assert not left, "what the compiler started goes on"
        raw.call("tensor_read", 1, 0)


# --- kernels


def test_a_later_folder_wins(tmp_path, start_daemon):
    first = put_kernels(tmp_path / "first", double_it=double_by(2))
    second = put_kernels(tmp_path / "second", renamed=double_by(3))
    daemon = start_daemon("--kernels", first, "--kernels", second)
    with Raw(daemon.socket) as raw:
        assert double(raw) == 63
        ops = [o for o in raw.call("op_list") if o["name"] == "double_it"]
        assert [o["file"] for o in ops] == [f"{second}/renamed.cu"]
        assert raw.call("status")["kernels"][-2:] == [first, second]
    log = daemon.read_log()
    assert f"{second}/renamed.cu replaces {first}/double_it.cu" in log


def test_a_shipped_operator_is_replaced(tmp_path, start_daemon):
    folder = put_kernels(tmp_path / "own", own=double_by(2).replace("double_it(", "gelu(", 1))
    daemon = start_daemon("--kernels", folder)
    with Raw(daemon.socket) as raw:
        assert raw.call("op_info", "gelu")["file"] == f"{folder}/own.cu"
        assert raw.call("op_info", "gelu")["source"] == Path(folder, "own.cu").read_text()


def test_what_does_not_parse_is_not_served(tmp_path, start_daemon):
    folder = put_kernels(
        tmp_path / "own",
        good=double_by(2),
        bad="//! op bad(Tensor x) -> Tensor y\n//! dtyps float32\n",
        binary="",
        huge="// x\n" * 300000,
    )
    Path(folder, "binary.cu").write_bytes(bytes(range(256)) * 10)
    Path(folder, "latin.cu").write_bytes(
        double_by(2).replace("double_it", "latin").encode() + b"// \xe9\n"
    )
    Path(folder, "folder.cu").mkdir()
    Path(folder, ".hidden.cu").write_text("//! nonsense")
    os.mkfifo(Path(folder, "pipe.cu"))
    Path(folder, "dangling.cu").symlink_to("/no/such/file")
    daemon = start_daemon("--kernels", folder)
    log = daemon.read_log()
    assert "not served: bad.cu:2: " in log and "dtypes" in log
    for name in ("binary.cu", "huge.cu", "folder.cu", "dangling.cu", "pipe.cu"):
        assert any("not served" in line and name in line for line in log.splitlines()), (name, log)
    assert ".hidden.cu" not in log
    with Raw(daemon.socket) as raw:
        names = [o["name"] for o in raw.call("op_list")]
        assert "double_it" in names and "bad" not in names and "gelu" in names
        if "latin" in names:
            assert raw.call("op_info", "latin")["source"]
        assert double(raw) == 42


def test_a_kernel_that_does_not_compile(tmp_path, start_daemon):
    source = double_by("no_such_name")
    line = next(i for i, text in enumerate(source.splitlines(), 1) if "no_such_name" in text)
    daemon = start_daemon("--kernels", put_kernels(tmp_path / "own", double_it=source))
    with Raw(daemon.socket) as raw:
        raw.make(1, "float32", [1])
        for _ in range(2):
            error = raw.fail("forward", "double_it", [1], {}, [2])
            assert error.code == "compile_error" and error.op == "double_it"
            assert f"double_it.cu:{line}" in str(error) or f"double_it.cu({line})" in str(error)
            assert f"double_it.cu:{line}" in error.log or f"double_it.cu({line})" in error.log
            assert "no_such_name" in error.log
        compilers = raw.call("status")["compilers"]
        assert compilers["failed"] == 1  # once: the same source would fail again
        assert raw.fail("tensor_info", 2).code == "not_found"
        raw.call("forward", "gelu", [1], {}, [2])


# --- cache


def test_a_warm_cache_compiles_nothing(tmp_path, start_daemon):
    options = (
        "--cache",
        str(tmp_path / "cache"),
        "--kernels",
        put_kernels(tmp_path / "k", double_it=double_by(2)),
    )
    daemon = start_daemon(*options)
    with Raw(daemon.socket) as raw:
        assert double(raw) == 42
        assert read_compiled(raw) == 1
    daemon.stop()
    daemon = start_daemon(*options)
    with Raw(daemon.socket) as raw:
        assert double(raw) == 42
        compilers = raw.call("status")["compilers"]
        assert (compilers["compiled"], compilers["cache_hits"]) == (0, 1)
    daemon.stop()
    put_kernels(tmp_path / "k", double_it=double_by(4))
    daemon = start_daemon(*options)
    with Raw(daemon.socket) as raw:
        assert double(raw) == 84 and read_compiled(raw) == 1


def test_an_edited_header_is_compiled_anew(tmp_path, start_daemon):
    source = (
        double_by(2).replace("extern", '#include "factor.h"\nextern', 1).replace("* 2", "* TIMES")
    )
    kernels = put_kernels(tmp_path / "k", double_it=source)
    header = tmp_path / "k" / "factor.h"
    for factor in (2, 5, 2):
        header.write_text(f"#define TIMES {factor}\n")
        daemon = start_daemon("--cache", str(tmp_path / "cache"), "--kernels", kernels)
        with Raw(daemon.socket) as raw:
            assert double(raw) == 21 * factor
            last = read_compiled(raw)
        daemon.stop()
    assert last == 0


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "foreign"])
def test_a_damaged_cache_entry_is_a_miss(tmp_path, start_daemon, damage):
    options = (
        "--cache",
        str(tmp_path / "cache"),
        "--kernels",
        put_kernels(tmp_path / "k", double_it=double_by(2)),
    )
    daemon = start_daemon(*options)
    with Raw(daemon.socket) as raw:
        double(raw)
    daemon.stop()
    entries = [p for p in (tmp_path / "cache").rglob("*") if p.is_file()]
    assert entries
    for entry in entries:
        data = bytearray(entry.read_bytes())
        if damage == "cut":
            data = data[: len(data) // 2]
        elif damage == "flip":
            data[len(data) // 2] ^= 1
        elif damage == "empty":
            data = b""
        else:
            data = b"#!/bin/sh\n" * 1000
        entry.chmod(0o600)
        entry.write_bytes(data)
    daemon = start_daemon(*options)
    with Raw(daemon.socket) as raw:
        assert double(raw) == 42 and read_compiled(raw) == 1
    daemon.stop()
    daemon = start_daemon(*options)
    with Raw(daemon.socket) as raw:
        assert double(raw) == 42 and read_compiled(raw) == 0


def serve_without_cache(start_daemon, tmp_path, cache):
    """Works all the same, and says so."""
    daemon = start_daemon(
        "--cache", str(cache), "--kernels", put_kernels(tmp_path / "k", double_it=double_by(2))
    )
    with Raw(daemon.socket) as raw:
        assert double(raw) == 42 and read_compiled(raw) == 1
    assert "cache" in daemon.read_log()
    daemon.stop()


def test_cache_that_cannot_be_made(tmp_path, start_daemon):
    (tmp_path / "file").write_text("x")
    serve_without_cache(start_daemon, tmp_path, tmp_path / "file" / "cache")


def test_cache_that_is_a_file(tmp_path, start_daemon):
    (tmp_path / "file").write_text("x")
    serve_without_cache(start_daemon, tmp_path, tmp_path / "file")


@pytest.fixture
def mount(tmp_path):
    """mount(options): a file system of its own; skipped where that is not allowed."""
    folder = tmp_path / "mounted"

    def make(options):
        folder.mkdir(exist_ok=True)
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "none", folder], capture_output=True
        )
        if done.returncode:
            pytest.skip(f"mounting is not allowed: {done.stderr.decode()}")
        return folder

    yield make
    subprocess.run(["umount", "-l", folder], capture_output=True)


def test_read_only_cache(tmp_path, start_daemon, request):
    cache = tmp_path / "cache"
    cache.mkdir()
    if os.geteuid() == 0:
        cache = request.getfixturevalue("mount")("ro")
    else:
        cache.chmod(0o500)
    serve_without_cache(start_daemon, tmp_path, cache)


def test_full_disk_under_the_cache(tmp_path, start_daemon, mount):
    cache = mount("size=4k")
    serve_without_cache(start_daemon, tmp_path, cache)
    assert not [p for p in cache.rglob("*") if p.is_file()], "pieces are left"


def test_no_cache(tmp_path, start_daemon):
    daemon = start_daemon(
        "--cache", "", "--kernels", put_kernels(tmp_path / "k", double_it=double_by(2))
    )
    with Raw(daemon.socket) as raw:
        assert double(raw) == 42 and raw.call("status")["cache"] == ""


def test_warm(tmp_path, start_daemon):
    """The first request after it finds its kernel compiled."""
    daemon = start_daemon(
        "--warm", "--kernels", put_kernels(tmp_path / "k", double_it=double_by(2))
    )
    with Raw(daemon.socket) as raw:

        def done():
            c = raw.call("status")["compilers"]
            return c["compiled"] + c["cache_hits"]

        seen = 0
        while not (seen and eventually(lambda: done() > seen, 5) is False):
            seen = done() or seen
        assert seen >= 4
        assert double(raw) == 42
        assert done() == seen
        assert raw.call("status")["compilers"]["failed"] == 0


# --- memory


def test_memory_limit(start_daemon):
    daemon = start_daemon("--memory-limit", "100M")
    with Raw(daemon.socket) as raw:
        raw.call("tensor_new", 2, "uint8", [60 << 20])
        raw.call("tensor_new", 1, "uint8", [30 << 20])
        error = raw.fail("tensor_new", 3, "uint8", [30 << 20])
        assert error.code == "out_of_memory"
        for word in ("may hold 100 MiB, 30 MiB asked for", "held: 90 MiB in 2 tensors: 90 MiB by",
                     f"(pid {os.getpid()})", "--memory-limit"):  # fmt: skip
            assert word in str(error), (word, str(error))
        assert raw.fail("tensor_info", 3).code == "not_found"
        raw.make(4, "float32", [1])
        error = raw.fail("tensor_new", 5, "uint8", [1 << 40])
        assert error.code == "out_of_memory"
        raw.call("tensor_free", [1])
        raw.call("tensor_new", 3, "uint8", [30 << 20])
        raw.call("tensor_free", [2, 3, 4])
        raw.call("tensor_new", 6, "uint8", [96 << 20])  # what was freed in pieces is one again
        device = raw.call("status")["devices"][0]
        assert device["memory_reserved"] <= device["memory_limit"] == 100 << 20


def test_memory_limit_of_an_operators_results(start_daemon):
    daemon = start_daemon("--memory-limit", "100M")
    with Raw(daemon.socket) as raw:
        raw.call("tensor_new", 1, "float32", [15 << 20])
        error = raw.fail("forward", "gelu", [1], {}, [2], {"context": 1})
        assert error.code == "out_of_memory" and error.op == "gelu" and "gelu" in str(error)
        assert raw.fail("backward", 1, [None], [3]).code == "not_found"
        raw.make(4, "float32", [1])
        raw.call("forward", "gelu", [4], {}, [2])


# --- busy


def test_many_clients_at_once(daemon):
    def work(seed):
        with Raw(daemon.socket) as raw:
            for i in range(20):
                data = bytes([seed, i]) * 2000
                raw.make(1, "uint8", [4000], data)
                assert raw.call("tensor_read", 1, 0) == data
                raw.make(2, "float32", [1000])
                raw.call("forward", "gelu", [2], {}, [3])
                raw.call("tensor_free", [1, 2, 3])

    in_threads(20, work)


def test_clients_go_while_the_executor_dies(start_daemon):
    """Whatever is freed, unmapped and retried at that moment."""
    daemon = start_daemon()
    for round in range(10):
        clients = [Raw(daemon.socket) for _ in range(5)]
        for c in clients:
            c.request("tensor_new", 1, "float32", [40 << 20])
            for i in range(4):
                c.request("forward", "gelu", [1], {}, [2 + i], {"context": i + 1})
                c.request("tensor_free", [2 + i])
        time.sleep(0.02 * (round % 4))
        for pid in find_roles(daemon.pid, "executor"):
            os.kill(pid, signal.SIGKILL)
        for c in clients[: round % 5]:
            c.close()
        with Raw(daemon.socket) as raw:

            def restarted():
                device = raw.call("status")["devices"][0]
                return device["state"] == "ready" and device["restarts"] == round + 1

            assert eventually(restarted)
        for c in clients:
            c.close()
    with Raw(daemon.socket) as raw:
        assert eventually(lambda: raw.call("status")["devices"][0]["tensors"] == 0)
        assert raw.call("status")["devices"][0]["memory_used"] == 0
        raw.make(1, "float32", [4])
        raw.call("forward", "gelu", [1], {}, [2])


def test_the_lock_file_of_a_dead_daemon_is_no_obstacle(tmp_path, start_daemon):
    path = tmp_path / "opd.sock"
    (tmp_path / "opd.sock.lock").write_text("12345\n")
    s = socket.socket(socket.AF_UNIX)
    s.bind(str(path))
    s.close()
    start_daemon(socket=path).stop()


@pytest.mark.skipif(not shutil.which("setpriv"), reason="needs setpriv")
def test_another_user_is_refused(tmp_path, start_daemon):
    if os.geteuid() != 0:
        pytest.skip("needs root")
    os.chmod(tmp_path, 0o755)
    for parent in tmp_path.parents:
        if (
            parent.stat().st_uid == os.geteuid()
            and parent != Path("/tmp")
            and str(parent).startswith("/tmp")
        ):
            os.chmod(parent, 0o755)
    path = tmp_path / "opd.sock"
    start_daemon(socket=path)
    path.chmod(0o666)
    code = "import socket,sys; s=socket.socket(1); s.connect(sys.argv[1]); sys.stdout.buffer.write(s.recv(1000))"
    result = subprocess.run(
        ["setpriv", "--reuid", "12345", "--clear-groups", "/usr/bin/python3", "-c", code, str(path)],
        capture_output=True, timeout=20,
    )  # fmt: skip
    assert b"another user" in result.stdout, result


def test_a_client_that_never_reads_does_not_hold_up_the_stop(start_daemon):
    daemon = start_daemon()
    raw = Raw(daemon.socket)
    raw.make(1, "uint8", [8 << 20])
    raw.sock.settimeout(0.5)
    try:
        for id in range(100):
            raw.sock.sendall(msgpack.packb([0, id, "tensor_read", [1, 0, None, None]]))
            time.sleep(0.01)
    except OSError:
        pass  # it is not read from any more
    began = time.monotonic()
    daemon.stop(20)
    assert time.monotonic() - began < 10
    raw.close()
