"""The daemon's end: what is in flight is finished, and nothing holds it up or is left."""

import os
import signal
import time

import msgpack
import pytest

from conftest import PATIENCE, await_end, find_family
from operators import ROUNDS, SPIN, double_by, put_kernels
from raw import HungUp, Raw, RpcError, eventually, pack_request


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
    assert daemon.process.wait(PATIENCE) == 0, daemon.read_log()
    assert not await_end(family)
    assert not os.path.exists(daemon.socket)
    assert list_shared() == shared
    assert os.listdir(tmp_path) == ["k"]


def test_a_hangup_takes_edits_up_and_no_tensor(tmp_path, start_daemon):
    folder = put_kernels(tmp_path / "k", double_it=double_by(2))
    daemon = start_daemon("--kernels", folder)
    with Raw(daemon.socket) as raw:
        raw.make(1, "float32", [1], b"\0\0\0\0", "kept")
        for factor in (3, 4):
            put_kernels(tmp_path / "k", double_it=double_by(factor))
            os.kill(daemon.pid, signal.SIGHUP)
            assert eventually(lambda: raw.call("op_info", "double_it")["version"] == factor - 1)
        assert [t["name"] for t in raw.call("tensor_list")] == ["kept"]


def test_signals_that_were_ignored_at_the_start(start_daemon):
    """As nohup and a shell's & have it; an upgrade keeps to it."""
    ignored = [signal.SIGINT, signal.SIGHUP]
    before = [signal.signal(number, signal.SIG_IGN) for number in ignored]
    try:
        daemon = start_daemon()
    finally:
        for number, handler in zip(ignored, before):
            signal.signal(number, handler)
    with Raw(daemon.socket) as raw:
        for _ in range(2):
            for number in ignored:
                os.kill(daemon.pid, number)
            raw.call("upgrade")
        raw.call("status")
    with open(f"/proc/{daemon.pid}/status") as status:
        (line,) = [line for line in status if line.startswith("SigIgn:")]
    mask = int(line.split()[1], 16)
    assert all(mask & 1 << number - 1 for number in ignored)
    daemon.stop()  # by SIGTERM


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
    assert daemon.process.wait(PATIENCE) == 0


def accepts(daemon):
    """A daemon that is stopping does not."""
    try:
        Raw(daemon.socket).close()
        return True
    except OSError:
        return False


def test_stop_waits_for_a_request_that_waits_for_its_compile(tmp_path, start_daemon, slow_cxx):
    daemon = start_daemon("--kernels", put_kernels(tmp_path / "k", double_it=double_by(3.0625)),
                          "--cache", "", device="cpu")  # fmt: skip
    with Raw(daemon.socket) as raw:
        raw.make(1, "float32", [4])
        first = raw.request("forward", "double_it", [1], {}, [2])
        second = raw.request("forward", "double_it", [2], {}, [3])
        assert eventually(slow_cxx.begun.exists)
        os.kill(daemon.pid, signal.SIGTERM)
        assert eventually(lambda: not accepts(daemon)) and daemon.alive()
        slow_cxx.go.touch()
        raw.wait(first)
        with pytest.raises(RpcError, match="stopping"):
            raw.wait(second)
    assert daemon.process.wait(PATIENCE) == 0


def test_stop_does_not_wait_for_a_compile_that_nobody_wants(tmp_path, start_daemon, slow_cxx):
    daemon = start_daemon("--warm", "--cache", "", device="cpu")
    assert eventually(slow_cxx.begun.exists)
    family = find_family(daemon.pid)
    assert len(family) > 3
    os.kill(daemon.pid, signal.SIGTERM)
    assert daemon.process.wait(PATIENCE) == 0
    assert not await_end(family), "a compiler's compiler is left"
    assert not list(tmp_path.glob("opd-*")), "temporary files are left"


def test_stop_and_a_client_that_sent_half_a_message(start_daemon):
    daemon = start_daemon()
    with Raw(daemon.socket) as raw:
        raw.send(pack_request(1, "status", ())[:-1])
        daemon.stop()


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
    daemon.stop()
    assert time.monotonic() - began < 25, "it was waited for as for a request, which has 30 s"
    raw.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stop_again_and_again(start_daemon, number):
    """Until it has ended: at none of its last moments does it die of it. (Without a pause a process that has another
    core does nothing but take signals.)"""
    daemon = start_daemon()
    while daemon.alive():
        os.kill(daemon.pid, number)
        time.sleep(20e-6)
    assert daemon.process.returncode == 0
