"""Executors that run short of descriptors, of memory, or of what clients have shared with them."""

import fcntl
import os
import resource
import struct
from contextlib import contextmanager
from pathlib import Path

import pytest

from conftest import DEVICE
from operators import double, double_by, put_kernels
from raw import Raw, RpcError, eventually, find_roles, make_memfd

F_SEAL_FUTURE_WRITE = 0x10
on_cpu = pytest.mark.skipif(DEVICE != "cpu", reason="a driver needs what is taken away here")


@contextmanager
def short_of(pid, what, soft):
    """That process may have no more of it than `soft`, for a while."""
    before = resource.prlimit(pid, what)
    resource.prlimit(pid, what, (soft, before[1]))
    try:
        yield
    finally:
        try:
            resource.prlimit(pid, what, before)
        except ProcessLookupError:
            pass


def device_of(raw):
    return raw.call("status")["devices"][0]


@on_cpu
def test_one_that_cannot_receive_descriptors_is_replaced(start_daemon, tmp_path):
    """The command that it could not begin is run by the next one: nobody is told anything."""
    daemon = start_daemon("--kernels", put_kernels(tmp_path / "k", double_it=double_by(2.0)))
    with Raw(daemon.socket) as raw:
        raw.make(9, "float32", [4])
        raw.call("forward", "relu", [9], {}, [10])
        (pid,) = find_roles(daemon.pid, "executor")
        with short_of(pid, resource.RLIMIT_NOFILE, 3):
            assert double(raw) == 42
        assert find_roles(daemon.pid, "executor") != [pid]
        device = device_of(raw)
        assert (device["restarts"], device["state"]) == (1, "ready")


@on_cpu
@pytest.mark.unsanitized("a sanitizer needs the address space")
def test_an_image_is_loaded_when_there_is_memory_again(start_daemon, tmp_path):
    """What failed for lack of memory is not the source's fault, and is tried again."""
    daemon = start_daemon("--kernels", put_kernels(tmp_path / "k", double_it=double_by(2.0)))
    with Raw(daemon.socket) as raw:
        raw.make(1, "float32", [1], struct.pack("f", 21))
        raw.call("forward", "relu", [1], {}, [3])
        (pid,) = find_roles(daemon.pid, "executor")
        with short_of(pid, resource.RLIMIT_AS, 1 << 20):
            error = raw.fail("forward", "double_it", [1], {}, [2])
        assert error.code == "unavailable" and "does not load" in str(error)
        raw.call("forward", "double_it", [1], {}, [2])
        assert raw.call("tensor_read", 2, 0) == struct.pack("f", 42)
        assert find_roles(daemon.pid, "executor") == [pid]


UNDEFINED = double_by("missing()").replace('extern "C"', 'extern "C" float missing();\nextern "C"')


@on_cpu
def test_an_image_that_lacks_a_function_is_the_source_s_fault(start_daemon, tmp_path):
    daemon = start_daemon("--kernels", put_kernels(tmp_path / "k", double_it=UNDEFINED))
    with Raw(daemon.socket) as raw:
        raw.make(1, "float32", [1])
        error = raw.fail("forward", "double_it", [1], {}, [2])
        assert error.code == "compile_error" and "undefined symbol: missing" in str(error)


@on_cpu
def test_memory_that_cannot_be_mapped_again(start_daemon):
    daemon = start_daemon()
    with Raw(daemon.socket) as raw:
        fd = make_memfd(1 << 16)
        raw.call("import_open", 1, "cpu", "memfd", b"", 1 << 16, fds=[fd])
        raw.call("import_tensor", 5, 1, 0, "float32", [8])
        raw.make(6, "float32", [8], b"x" * 32)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, F_SEAL_FUTURE_WRITE)
        os.close(fd)
        raw.call("device_restart", "cpu")
        error = raw.fail("tensor_read", 5, 0)
        assert error.code == "unavailable" and "import it again" in str(error)
        assert raw.call("tensor_read", 6, 0) == b"x" * 32
        raw.call("free", "tensor", [5])
        raw.call("free", "import", [1])
        raw.call("import_open", 1, "cpu", "memfd", b"", 4096, fds=[(fd := make_memfd(4096))])
        os.close(fd)
        raw.call("import_tensor", 5, 1, 0, "float32", [8])
        assert raw.call("tensor_read", 5, 0) == b"\0" * 32


FORKS = """\
//! op      forks(Tensor x) -> Tensor y
//! dtypes  float32
//! shape   x [N]
//! shape   y [N]
//
//! forward
//!   kernel  forks
//!   grid    1
//!   block   1
extern "C" {
int fork(void);
int vfork(void);
int setsid(void);
int system(const char *);
int execl(const char *, const char *, ...);
int creat(const char *, unsigned);
unsigned sleep(unsigned);
}

__global__ void forks(const float *x, float *y, int64_t N)
{
    BODY;
    y[0] = 1;
}
"""
# Each leaves a file where it has come to be another process.
STARTS = {
    "fork": 'if (fork() == 0) { creat("MARK", 0600); sleep(60); }',
    "daemon": 'if (fork() == 0) { setsid(); if (fork() == 0) { creat("MARK", 0600); sleep(60); } }',
    "vfork": 'if (vfork() == 0) { creat("MARK", 0600); sleep(60); }',
    "system": 'system("touch MARK; sleep 60")',
    "exec": 'execl("/bin/sh", "sh", "-c", "touch MARK; sleep 60", (char *)0)',
}


@on_cpu
@pytest.mark.parametrize("how", STARTS)
def test_a_kernel_starts_no_process(start_daemon, tmp_path, how):
    """It would have every tensor mapped, and nothing would end it: so it is not begun."""
    mark = tmp_path / "begun"
    body = STARTS[how].replace("MARK", str(mark))
    daemon = start_daemon("--kernels", put_kernels(tmp_path / "k", forks=FORKS.replace("BODY", body)))
    with Raw(daemon.socket) as raw:
        raw.make(1, "float32", [8], b"x" * 32)
        error = raw.fail("forward", "forks", [1], {}, [2])
        assert error.code == "kernel_fault"
        assert str(error).startswith("forks version 1 forward, kernel forks (x float32 [8]): ")
        assert "a kernel may start no process" in str(error)
        assert not mark.exists()
        assert raw.call("tensor_read", 1, 0) == b"x" * 32
        raw.call("forward", "relu", [1], {}, [3])


CLOSES = FORKS.replace("forks", "closes").replace("int fork(void);", "int close(int);")
# As server/executor/devwire.h numbers them.
CLOSED = {"socket": "close(3)", "command_bell": "close(5)", "done_bell": "close(6)"}


@on_cpu
@pytest.mark.parametrize("body", [*CLOSED.values(), "; ".join(CLOSED.values())], ids=[*CLOSED, "all"])
def test_one_whose_descriptors_a_kernel_has_closed_is_replaced(start_daemon, tmp_path, body):
    """At once, not by a deadline; and what has run is told."""
    kernels = put_kernels(tmp_path / "k", closes=CLOSES.replace("BODY", body))
    daemon = start_daemon("--kernels", kernels, "--deadline", "3600")
    with Raw(daemon.socket) as raw:
        raw.make(1, "float32", [1], struct.pack("f", 21))
        raw.call("forward", "closes", [1], {}, [2])
        assert raw.call("tensor_read", 2, 0) == struct.pack("f", 1)
        assert eventually(lambda: device_of(raw)["restarts"] == 1 and device_of(raw)["state"] == "ready")
        raw.call("forward", "relu", [1], {}, [3])
        assert raw.call("tensor_read", 3, 0) == struct.pack("f", 21)


def test_processes_say_what_they_are(start_daemon):
    """In ps, top and pkill."""
    daemon = start_daemon()

    def names(role):
        return {open(f"/proc/{pid}/comm").read().strip() for pid in find_roles(daemon.pid, role)}

    with Raw(daemon.socket):
        assert names("executor") == {f"opd: {DEVICE}"}
        assert eventually(lambda: names("compiler") == {"opd: compiler"})
        assert open(f"/proc/{daemon.pid}/comm").read() == "opd: broker\n"


LIMIT = 600 << 20


@pytest.fixture
def memory_group():
    """A control group with that limit, of version 1 or 2."""
    own = [line.strip().split(":") for line in open("/proc/self/cgroup")]
    first = [path for _, kinds, path in own if "memory" in kinds.split(",")]
    base = Path("/sys/fs/cgroup/memory" + first[0] if first else "/sys/fs/cgroup" + own[-1][2])
    group = base / f"opd-test-{os.getpid()}"
    try:
        if not first:
            (base / "cgroup.subtree_control").write_text("+memory")
        group.mkdir()
        (group / ("memory.limit_in_bytes" if first else "memory.max")).write_text(str(LIMIT))
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    yield group
    eventually(lambda: not (group / "cgroup.procs").read_text())
    group.rmdir()


@on_cpu
def test_a_container_s_limit_is_no_memory_not_an_end(memory_group, start_daemon):
    own = Path("/proc/self/cgroup").read_text()
    before = memory_group.parent / "cgroup.procs"
    (memory_group / "cgroup.procs").write_text(str(os.getpid()))  # what is started now is in it
    try:
        daemon = start_daemon()
    finally:
        before.write_text(str(os.getpid()))
    assert Path("/proc/self/cgroup").read_text() == own
    with Raw(daemon.socket) as raw:
        raw.make(1, "float32", [4], b"0123456789abcdef")
        assert device_of(raw)["memory_total"] == LIMIT
        for n in range(8):
            try:
                raw.make(2 + n, "uint8", [64 << 20], b"x" * (8 << 20))
            except RpcError as error:
                assert error.code == "out_of_memory" and "control group" in str(error)
                break
        assert 2 <= n < 8
        raw.call("free", "tensor", [2])  # and then there is room again
        raw.make(100, "uint8", [60 << 20])
        raw.call("forward", "relu", [1], {}, [101])
        assert raw.call("tensor_read", 1, 0) == b"0123456789abcdef"
        assert device_of(raw)["restarts"] == 0
