"""Descriptors that no message takes, and shared memory that is none."""

import fcntl
import os
import resource
import signal
import socket
import subprocess

import pytest
from bad_input import raw, unharmed  # noqa: F401
from conftest import DEVICE, PATIENCE, PROGRAM
from raw import (HungUp, Raw, RpcError, count_fds, eventually, find_roles, make_memfd,
                 pack_request)  # fmt: skip

pytestmark = pytest.mark.in_both("a sanitizer keeps what was freed")


def test_descriptors_that_no_message_takes(daemon, raw):
    raw.call("sync")  # the daemon has taken the connection
    before = count_fds(daemon.pid)
    fd = os.open("/dev/null", os.O_RDONLY)
    with Raw(daemon.socket) as other:
        most = 0
        try:
            for _ in range(100):
                other.call("hello", fds=[fd] * 5)
                most = max(most, count_fds(daemon.pid))
        except (HungUp, OSError):
            pass
        assert most < before + 64
        raw.call("status")
    assert eventually(lambda: count_fds(daemon.pid) <= before)
    with Raw(daemon.socket) as other:
        with pytest.raises((HungUp, OSError)):
            other.send(pack_request(1, "hello", ()), [fd] * 200)
            other.wait(1)
    with Raw(daemon.socket) as other:  # with garbage, and with half a message
        other.send(b"\xc1", [fd] * 3)
        other.last_words()
    with Raw(daemon.socket) as other:
        other.send(b"\x94\x00", [fd] * 3)
    os.close(fd)
    assert eventually(lambda: count_fds(daemon.pid) <= before)


def make_pipe():
    r, w = os.pipe()
    os.close(r)
    return w


def make_file():
    fd = os.open("/tmp", os.O_TMPFILE | os.O_RDWR)
    os.ftruncate(fd, 4096)
    return fd


def make_read_only():
    fd = make_memfd(4096)
    again = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    os.close(fd)
    return again


def make_write_sealed():
    fd = make_memfd(4096)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    return fd


@pytest.mark.parametrize(
    "make, size, expected",
    [
        (None, 4096, "SCM_RIGHTS"),
        (lambda: make_memfd(4096, seal=False), 4096, "sealed"),
        (lambda: make_memfd(4096, seal=False, flags=os.MFD_CLOEXEC), 4096, "sealed"),
        (make_pipe, 4096, "memfd"),
        (make_file, 4096, "memfd"),
        (lambda: os.open("/dev/zero", os.O_RDWR), 4096, "memfd"),
        (lambda: os.open("/", os.O_RDONLY), 4096, "memfd"),
        (lambda: socket.socket().detach(), 4096, "memfd"),
        (make_read_only, 4096, "writable"),
        (make_write_sealed, 4096, "writable"),
        (lambda: make_memfd(4096), 4097, "4096"),
        (lambda: make_memfd(4096), 0, "size"),
        (lambda: make_memfd(4096), -1, "size"),
        (lambda: make_memfd(4096), (1 << 63) - 1, "size"),
        (lambda: make_memfd(0), 1, "size"),
    ],
)
def test_shared_memory_that_is_none(daemon, raw, make, size, expected):
    raw.call("sync")  # the daemon has taken the connection
    before = count_fds(daemon.pid)
    fds = [make()] if make else []
    error = raw.fail("shm_open", 1, size, fds=fds)
    for fd in fds:
        os.close(fd)
    assert error.code == "invalid_argument" and expected in str(error), str(error)
    assert eventually(lambda: count_fds(daemon.pid) <= before)
    assert raw.fail("free", "shm", [1]).code == "not_found"


def test_shared_memory_cannot_be_made_shorter(daemon, raw):
    """Not under the feet of an executor that copies from it: the kernel keeps the seal."""
    fd = make_memfd(1 << 20)
    raw.call("shm_open", 1, 1 << 20, fds=[fd])
    raw.make(1, "uint8", [1 << 20])
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 0)
    raw.call("tensor_write", 1, 0, [1, 0, 1 << 20])
    # One that could be is never mapped, and so harms nobody when it is.
    loose = make_memfd(1 << 20, seal=False)
    assert "sealed" in str(raw.fail("shm_open", 2, 1 << 20, fds=[loose]))
    os.ftruncate(loose, 0)
    raw.call("tensor_read", 1, 0, 1 << 20, [1, 0])
    os.close(fd)
    os.close(loose)
    assert raw.call("status")["devices"][0]["restarts"] == 0


def test_shared_memory_of_more_than_there_is(raw):
    """A memfd is only a promise: an executor would be unable to map it."""
    raw.make(1, "uint8", [16])
    size = 1 << 60
    fd = make_memfd(size)
    error = raw.fail("shm_open", 1, size, fds=[fd])
    assert error.code == "invalid_argument" and "mapped" in str(error)
    os.close(fd)
    fd = make_memfd(4096)
    raw.call("shm_open", 1, 4096, fds=[fd])
    raw.call("tensor_write", 1, 0, [1, 0, 16])
    os.close(fd)


def test_what_one_connection_shares_has_a_bound(daemon, raw):
    """Sparse memory costs no bytes, but the addresses of the device's process, which are everyone's."""
    raw.make(1, "uint8", [16])
    fd, refused, shared = make_memfd(1 << 44), None, 0
    for id in range(1, 64):
        size = (1 << 44) >> (id - 1) // 2  # what there is room for, and some more
        try:
            raw.call("shm_open", id, size, fds=[fd])
            raw.call("tensor_write", 1, 0, [id, 0, 16])
            shared += size
        except RpcError as error:
            assert error.code == "out_of_memory"
            refused = str(error)
    assert shared <= 1 << 44
    assert "16 TiB in all" in refused and "free some" in refused
    error = raw.fail("import_open", 9, DEVICE, "memfd", b"", 1 << 43, fds=[fd])
    assert DEVICE != "cpu" or error.code == "out_of_memory"
    with Raw(daemon.socket) as other:
        other.make(1, "uint8", [200 << 20])
        small = make_memfd(4096)
        other.call("shm_open", 1, 4096, fds=[small])
        other.call("tensor_write", 1, 0, [1, 0, 16])
        os.close(small)
    raw.call("free", "shm", [1])
    raw.call("shm_open", 100, 1 << 43, fds=[fd])
    os.close(fd)


def test_ids_of_shared_memory_are_taken_once(daemon, raw):
    raw.call("sync")  # the daemon has taken the connection
    before = count_fds(daemon.pid)
    fd = make_memfd(4096)
    raw.call("shm_open", 1, 4096, fds=[fd])
    for _ in range(10):
        assert "in use" in str(raw.fail("shm_open", 1, 4096, fds=[fd]))
    os.close(fd)
    assert eventually(lambda: count_fds(daemon.pid) <= before + 1)


def test_the_last_descriptors_are_kept_back(start_daemon):
    """Clients take what there is; an executor can be started anew all the same."""
    daemon = start_daemon()
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (128, 128))
    with Raw(daemon.socket) as owner, Raw(daemon.socket) as raw:
        owner.make(1, "uint8", [16], b"x" * 16, "precious")
        raw.make(1, "uint8", [16])
        refused = None
        for id in range(1, 65):
            fd = make_memfd(4096)
            try:
                raw.call("shm_open", id, 4096, fds=[fd])
                raw.call("tensor_write", 1, 0, [id, 0, 16])
            except RpcError as error:
                refused = error
                break
            finally:
                os.close(fd)
        assert refused and refused.code == "out_of_memory" and "ulimit" in str(refused)
        assert id > 20  # many were there to be had
        before = owner.call("status")["devices"][0]["restarts"]
        os.kill(find_roles(daemon.pid, "executor")[0], signal.SIGKILL)
        assert eventually(lambda: owner.call("status")["devices"][0]["restarts"] > before)
        assert owner.call("tensor_read", 1, 0) == b"x" * 16
        raw.call("tensor_write", 1, 0, [1, 0, 16])  # what was mapped is mapped again
        for one in range(1, id):
            raw.call("free", "shm", [one])
        raw.call("sync")
        with Raw(daemon.socket) as later:
            later.call("status")


@pytest.mark.parametrize("size", [4096, 1 << 44], ids=["descriptors", "addresses"])
def test_the_first_bytes_by_a_message_when_clients_have_all(start_daemon, size):
    """The memory that these go through is the daemon's own, and made then."""
    daemon = start_daemon()
    if size == 4096:
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (128, 128))
    clients, fd, refused = [Raw(daemon.socket) for _ in range(6)], make_memfd(size), set()
    for raw in clients:
        raw.call("tensor_new", 1, "uint8", [16], None)
    for raw in clients:
        try:
            for id in range(1, 65):
                raw.call("shm_open", id, size, fds=[fd])
                raw.call("tensor_write", 1, 0, [id, 0, 16])
        except RpcError as error:
            refused.add(error.code)
    os.close(fd)
    assert refused == {"out_of_memory"}
    clients[0].call("tensor_write", 1, 0, b"x" * 16)
    assert clients[0].call("tensor_read", 1, 0) == b"x" * 16
    for raw in clients:
        raw.close()


def test_too_few_descriptors_to_start(tmp_path):
    ended = subprocess.run(
        [PROGRAM, "--socket", str(tmp_path / "opd.sock"), "--device", "cpu"],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16)),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert ended.returncode == 1, ended
    assert "16 file descriptors are too few" in ended.stderr and "ulimit -n" in ended.stderr
