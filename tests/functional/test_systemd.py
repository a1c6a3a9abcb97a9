"""What systemd and the daemon agree on: a socket that is handed over, and when it serves."""

import os
import signal
import socket

import pytest

import opd
from conftest import CACHE, DEVICE, PATIENCE, PROGRAM

FIRST_FD = 3

pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="one device is enough")


class Manager:
    """Makes sockets as a unit of systemd's does, and starts the daemon with them."""

    def __init__(self, folder, names=("opd.sock",), kind=socket.SOCK_STREAM):
        self.folder = folder
        self.sockets = []
        for name in names:
            self.sockets.append(socket.socket(socket.AF_UNIX, kind))
            self.sockets[-1].bind(str(folder / name))
            if kind == socket.SOCK_STREAM:
                self.sockets[-1].listen(5)
        self.told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.told.bind(str(folder / "notify"))
        self.told.settimeout(PATIENCE)

    def start(self, *options, pid=None):
        fds = [s.fileno() for s in self.sockets]

        def hand_over():
            for fd in [os.dup2(os.dup(fd), 100 + i) for i, fd in enumerate(fds)]:
                os.dup2(fd, fd - 100 + FIRST_FD)
            os.environ.update(LISTEN_PID=str(pid or os.getpid()), LISTEN_FDS=str(len(fds)),
                              LISTEN_FDNAMES="opd.socket", NOTIFY_SOCKET=str(self.folder / "notify"))
            os.execv(PROGRAM, command)

        command = [PROGRAM, "--device", "cpu", "--cache", str(CACHE), *options]
        child = os.fork()
        if child == 0:
            try:
                for number in (1, 2):
                    os.dup2(os.open(self.folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)
                hand_over()
            finally:
                os._exit(127)
        return child

    def log(self):
        return (self.folder / "log").read_text()


def end(pid, number=signal.SIGTERM):
    os.kill(pid, number)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_socket_that_is_handed_over(tmp_path):
    manager = Manager(tmp_path)
    early = socket.socket(socket.AF_UNIX)
    early.connect(str(tmp_path / "opd.sock"))  # before there is a daemon
    early.close()
    for _ in range(2):  # it is there still for the next one
        pid = manager.start()
        assert manager.told.recv(100) == b"READY=1"
        with opd.connect(str(tmp_path / "opd.sock"), start=False) as client:
            assert client.status()["socket"] == str(tmp_path / "opd.sock")
            kept = client.tensor([1.0], name="kept")
            client.upgrade()
            os.kill(pid, signal.SIGHUP)
            assert client.attach("kept").numpy() == 1
            del kept
        assert end(pid) == 0, manager.log()
        while (told := manager.told.recv(100)) == b"READY=1":
            pass
        assert told == b"STOPPING=1"
        assert (tmp_path / "opd.sock").exists()


def test_two_daemons_on_one_socket(tmp_path):
    manager = Manager(tmp_path)
    pid = manager.start()
    assert manager.told.recv(100) == b"READY=1"
    second = manager.start()
    assert os.waitstatus_to_exitcode(os.waitpid(second, 0)[1]) == 3
    assert "another opd serves on" in manager.log()
    assert end(pid) == 0


@pytest.mark.parametrize("names, kind", [(("a", "b"), socket.SOCK_STREAM), (("a",), socket.SOCK_DGRAM)])
def test_what_it_cannot_take_over(tmp_path, names, kind):
    manager = Manager(tmp_path, names, kind)
    pid = manager.start()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    assert "expected one, with ListenStream= and a path" in manager.log()


def test_what_is_meant_for_another_process(tmp_path):
    manager = Manager(tmp_path)
    pid = manager.start("--socket", str(tmp_path / "own.sock"), pid=1)
    assert manager.told.recv(100) == b"READY=1"
    with opd.connect(str(tmp_path / "own.sock"), start=False) as client:
        assert client.status()["socket"] == str(tmp_path / "own.sock")
    assert end(pid) == 0
    assert not (tmp_path / "own.sock").exists()


def test_nobody_to_notify(tmp_path, start_daemon, monkeypatch):
    for path in ("", "relative", "/no/such/socket", "@opd-nobody", "/" + "x" * 200):
        monkeypatch.setenv("NOTIFY_SOCKET", path)
        start_daemon().stop()
