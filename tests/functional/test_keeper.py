"""The broker is killed: named tensors are there again when the next daemon serves the socket."""

import contextlib
import os
import re
import shutil
import signal
import socket
import stat
import struct
import subprocess
from pathlib import Path

import numpy as np
import opd
import pytest

from conftest import PATIENCE, await_end, eventually, find_family, read_stat
from raw import Raw
from upgrades import SPIN, upgrade, write_scale

ADD = """\
//! op      add_in_place(Tensor(a!) x, float by) -> ()
//! dtypes  float32
//! shape   x [N]
//
//! forward
//!   kernel add_in_place

__global__ void add_in_place(float *x, float by, int64_t N)
{
    CUDA_KERNEL_LOOP(i, N)
        x[i] += by;
}
"""


@pytest.fixture
def start(start_daemon, tmp_path):
    """start(*options): the next daemon on the same socket."""
    folder = tmp_path / "kernels"
    folder.mkdir()
    (folder / "add.cu").write_text(ADD)
    (folder / "spin.cu").write_text(SPIN)

    def start(*options):
        daemon = start_daemon("--kernels", str(folder), "--keep", "60", *options, socket=tmp_path / "s")
        daemon.kernels = folder
        return daemon

    return start


def kill(daemon, keeper_is_known=False):
    """SIGKILL, as by the kernel for want of memory."""
    if not keeper_is_known:
        keeper_of(daemon)  # it has left the daemon's session, and its own parent may be there still
    family = [(pid, began) for pid, began in find_family(daemon.pid) if in_session_of(daemon, pid)]
    daemon.process.kill()
    daemon.process.wait(PATIENCE)
    daemon.process.stdout.close()
    assert not await_end(family)


def in_session_of(daemon, pid):
    try:
        return os.getsid(pid) == os.getsid(daemon.pid)
    except ProcessLookupError:
        return False


def keeper_of(daemon):
    with Raw(daemon.socket) as raw:
        known = lambda: (keeper := raw.call("status")["keeper"]) is None or keeper["pid"]  # noqa: E731
        assert eventually(known), "the keeper has not said who it is"
        return raw.call("status")["keeper"]


def version_of(daemon, op):
    with Raw(daemon.socket) as raw:
        return raw.call("op_info", op)["version"]


def ended(pid):
    return eventually(lambda: read_stat(pid) is None)


def make_many(client, rng):
    """Named tensors of many sizes with holes between them, and unnamed ones."""
    dtypes = [np.float32, np.float64, np.float16, np.int8, np.int64, np.bool_]
    values = {
        f"n{i} ü": (rng.standard_normal([i % 3, 7, 1 + 97 * i][: 1 + i % 3]) * 9).astype(dtypes[i % 6])
        for i in range(150)
    }
    tensors = {}
    between = []
    for name, value in values.items():
        tensors[name] = client.tensor(value, name=name)
        between.append(client.tensor(value))
    for name in list(values)[::7]:
        tensors.pop(name).free()
        del values[name]
    values["big"] = rng.standard_normal(3_000_001).astype(np.float32)
    client.tensor(values["big"], name="big")
    client.tensor(np.float32(7), name="scalar")
    values["scalar"] = np.array(7, np.float32)
    return values


def keep_one(client):
    client.tensor(np.ones(3), name="x")
    client.synchronize()


def holds(client, values):
    listed = {t["name"]: t for t in client.tensors() if t["name"]}
    assert sorted(listed) == sorted(values)
    for name, value in values.items():
        assert listed[name]["suspect"] is None
        got = client.attach(name).numpy()
        assert got.dtype == value.dtype and got.shape == value.shape and np.array_equal(got, value)


def test_what_has_a_name_is_there_again(start):
    first = start()
    with first.connect() as client:
        values = make_many(client, np.random.default_rng(3))
        client.synchronize()
        assert keeper_of(first)["tensors"] == len(values)
        assert os.path.exists(f"{first.socket}.keep")
        assert keeper_of(first)["bytes"] == sum(v.nbytes for v in values.values())
        kill(first)
    for _ in range(2):
        again = start()
        with again.connect() as client:
            holds(client, values)
            fresh = [client.zeros(n) for n in (1, 5000, 100_000, 20_000_000)]  # nowhere where they are
            assert not any(f.numpy().any() for f in fresh)
            del fresh
            values["more"] = np.arange(11, dtype=np.float32)
            if "more" not in {t["name"] for t in client.tensors()}:
                client.tensor(values["more"], name="more")
            holds(client, values)
            client.synchronize()
        kill(again)
    last = start()
    with last.connect() as client:
        for name in values:
            client.attach(name).free()
        client.synchronize()
    kill(last)
    with start().connect() as client:
        assert not any(t["name"] for t in client.tensors())


def test_a_write_under_way_makes_it_suspect(start):
    first = start("--deadline", "1000")
    with first.connect() as client, first.connect() as other:
        hit = client.tensor(np.zeros(1000, np.float32), name="hit")
        client.tensor(np.ones(1000, np.float32), name="quiet")
        client.ops.add_in_place(hit, by=1.0)
        before = client.tensor(np.ones(4, np.float32), name="before")
        client.ops.add_in_place(before, by=1.0)
        client.synchronize()
        with Raw(first.socket) as raw:  # the device is busy: what comes behind waits
            raw.make(1, "float32", [1])
            raw.call("forward", "spin", [1], {"rounds": 1}, [2])
            raw.call("tensor_attach", 3, "hit")
            raw.request("forward", "spin", [1], {"rounds": 10**13}, [4])
            raw.request("forward", "add_in_place", [3], {"by": 1.0}, [])
            raw.request("tensor_new", 5, "float32", [5], "new")
            assert eventually(lambda: other.status()["devices"][0]["queued"] == 3)
            kill(first)
    with start().connect() as client:
        listed = {t["name"]: t["suspect"] for t in client.tensors()}
        assert sorted(listed) == ["before", "hit", "new", "quiet"]
        assert listed["quiet"] is None and listed["before"] is None
        assert "killed" in listed["hit"] and "killed" in listed["new"]
        assert np.all(client.attach("quiet").numpy() == 1)
        assert np.all(client.attach("before").numpy() == 2)
        hit = client.attach("hit")
        with pytest.raises(opd.InvalidArgument, match="'hit'.*is suspect.*killed.*tensor_accept"):
            hit.numpy()
        hit.accept()
        assert np.all(hit.numpy() == hit.numpy()[0])


def find_list(pid):
    """The keeper's memfd of names, once it has read what was sent to it."""

    def look():
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                if "opd-names" in os.readlink(fd):
                    return fd
        return None

    return eventually(look)


def test_a_torn_entry_is_a_name_that_is_missing(start):
    first = start()
    with first.connect() as client:
        values = {f"n{i}": np.full(100, i, np.int32) for i in range(20)}
        for name, value in values.items():
            client.tensor(value, name=name)
        client.synchronize()
        pid = keeper_of(first)["pid"]
        kill(first)
    with open(find_list(pid), "r+b") as file:
        data = file.read()
        for name in ("n3", "n17"):
            del values[name]
            file.seek(data.index(name.encode() + b"\0") - 20)  # something of its entry
            file.write(b"\x5a")
    with start().connect() as client:
        holds(client, values)
        holds(client, values)


def test_a_list_that_is_none_is_passed_over(start):
    first = start()
    with first.connect() as client:
        keep_one(client)
        pid = keeper_of(first)["pid"]
        kill(first)
    with open(find_list(pid), "r+b") as file:
        file.write(b"not it")
    second = start()
    with second.connect() as client:
        assert not client.tensors()
        assert "are lost" in second.read_log()
        keep_one(client)
    assert ended(pid)
    kill(second)
    with start().connect() as client:
        assert np.all(client.attach("x").numpy() == 1)


@pytest.mark.parametrize("how", ["stop", "SIGTERM"])
def test_a_daemon_that_stops_leaves_nothing(start, tmp_path, how):
    daemon = start()
    with daemon.connect() as client:
        keep_one(client)
        pid = keeper_of(daemon)["pid"]
        if how == "stop":
            client.stop()
            daemon.process.wait(PATIENCE)
        else:
            daemon.stop()
    assert ended(pid)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["kernels", "s.lock"]
    with start().connect() as client:
        assert not client.tensors()


def test_its_time_is_over(start):
    daemon = start("--keep", "0.2")
    with daemon.connect() as client:
        keep_one(client)
        pid = keeper_of(daemon)["pid"]
        kill(daemon)
    assert ended(pid)
    with start().connect() as client:
        assert not client.tensors()


def test_nothing_is_kept_where_nobody_wants_it(start):
    daemon = start("--keep", "0")
    with daemon.connect() as client:
        keep_one(client)
        assert client.status()["keeper"] is None
        assert not os.path.exists(f"{daemon.socket}.keep")
        kill(daemon)
    with start().connect() as client:
        assert not client.tensors()


def test_the_keeper_is_killed(start):
    daemon = start()
    with daemon.connect() as client:
        values = {f"n{i}": np.full(1000, i, np.float32) for i in range(5)}
        for name, value in values.items():
            client.tensor(value, name=name)
        client.synchronize()
        first = keeper_of(daemon)["pid"]
        eventually(lambda: keeper_age(first) > 1.2)  # not two within a second
        os.kill(first, signal.SIGKILL)
        eventually(lambda: (k := client.status()["keeper"]) and k["pid"] not in (0, first))
        kill(daemon)
    with start().connect() as client:
        holds(client, values)


def keeper_age(pid):
    began = int(read_stat(pid)[19]) / os.sysconf("SC_CLK_TCK")
    return float(Path("/proc/uptime").read_text().split()[0]) - began


def test_after_an_upgrade(start):
    daemon = start()
    with daemon.connect() as client:
        values = {f"n{i}": np.full(1000, i, np.float32) for i in range(5)}
        for name in ("n0", "n1", "n2"):
            client.tensor(values[name], name=name)
        keeper = keeper_of(daemon)
        upgrade(daemon)
        assert keeper_of(daemon) == keeper
        client.tensor(values["n3"], name="n3")
        client.attach("n1").free()
        upgrade(daemon)
        client.tensor(values["n4"], name="n4")
        client.synchronize()
        assert keeper_of(daemon)["pid"] == keeper["pid"]
        assert keeper_of(daemon)["tensors"] == 4
        kill(daemon)
    del values["n1"]
    with start().connect() as client:
        holds(client, values)


def test_a_version_that_is_pinned(start, tmp_path):
    folder = tmp_path / "kernels"
    write_scale(folder, "1.0f")
    first = start()
    with first.connect() as client:
        x = client.tensor(np.ones(5, np.float32))
        assert client.ops.scale(x).numpy()[0] == 2
        for factor in (3, 5):
            write_scale(folder, f"{factor}.0f")
            client.reload()
            assert eventually(lambda: client.ops.scale(x).numpy()[0] == 2 * factor)  # noqa: B023
        client.pin("scale", 2)
        assert client.ops.scale(x).numpy()[0] == 6
        kill(first)
    for _ in range(2):  # the second time it is what the first one has left
        again = start()
        with again.connect() as client:
            x = client.tensor(np.ones(5, np.float32))
            assert client.ops.scale(x).numpy()[0] == 6
            assert version_of(again, "scale") == 2
            assert eventually(lambda: client.status()["keeper"])
            kill(again)
    last = start()
    with last.connect() as client:
        x = client.tensor(np.ones(5, np.float32))
        client.pin("scale", None)
        assert client.ops.scale(x).numpy()[0] == 10
        assert client.status()["operators"] > 20
        client.synchronize()
        kill(last)
    fourth = start()
    with fourth.connect() as client:
        assert client.ops.scale(client.tensor(np.ones(5, np.float32))).numpy()[0] == 10
        assert version_of(fourth, "scale") == 1


def test_memory_that_a_client_has_mapped_is_not_given_out(start):
    """It may write there still."""
    first = start()
    with first.connect() as client:
        named = client.tensor(np.zeros(1000, np.float32), name="x")
        view = np.from_dlpack(named) if client.status()["devices"][0]["name"] == "cpu" else None
        with Raw(first.socket) as raw:
            raw.call("tensor_attach", 1, "x")
            raw.call("tensor_export", 1, 1)
            client.synchronize()
            kill(first)
    second = start()
    with second.connect() as client:
        reserved = client.status()["devices"][0]["memory_reserved"]
        fresh = client.zeros(1000)
        assert client.status()["devices"][0]["memory_reserved"] > reserved
        client.attach("x").free()
        del fresh, view
        client.synchronize()
        assert eventually(lambda: client.status()["devices"][0]["memory_reserved"] <= reserved)


def test_memory_that_a_client_has_mapped_stays_so_after_an_upgrade(start):
    first = start()
    with first.connect() as client, Raw(first.socket) as raw:
        client.tensor(np.zeros(1000, np.float32), name="x")
        raw.call("tensor_attach", 1, "x")
        raw.call("tensor_export", 1, 1)
        client.synchronize()
        kill(first)
    second = start()
    for _ in range(2):
        upgrade(second)
    with second.connect() as client:
        reserved = client.status()["devices"][0]["memory_reserved"]
        fresh = client.zeros(1000)
        assert client.status()["devices"][0]["memory_reserved"] > reserved
        assert np.all(client.attach("x").numpy() == 0)
        del fresh


def test_the_keeper_is_killed_as_soon_as_it_is_there(start):
    daemon = start()
    with daemon.connect() as client:
        client.tensor(np.ones(3), name="x")
        first = keeper_of(daemon)["pid"]
        os.kill(first, signal.SIGKILL)
        client.tensor(np.ones(4), name="y")
        assert eventually(lambda: (k := client.status()["keeper"]) and k["pid"] not in (0, first))
        client.synchronize()
        kill(daemon)
    with start().connect() as client:
        holds(client, {"x": np.ones(3), "y": np.ones(4)})


def test_the_broker_ends_before_it_has_read_a_word(tmp_path):
    """Its end of the socket is reset then; what it has sent counts."""
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    path = str(tmp_path / "keep")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen(8)
    program = os.environ.get("OPD_BIN", "build/opd")
    fds = [its.fileno(), listener.fileno()]
    command = ["bash", "-c", f'exec "$0" keeper 60 warn 3<&{fds[0]} 4<&{fds[1]}', program]
    subprocess.run(command, pass_fds=fds, check=True)
    its.close()
    listener.close()
    message = struct.Struct("IIIIQ")
    pid = message.unpack(mine.recv(100, socket.MSG_PEEK))[4]
    os.kill(pid, signal.SIGSTOP)
    held = os.memfd_create("held")
    for region in (2**32 - 1, 7):
        socket.send_fds(mine, [message.pack(1, 0, region, 0, 4096)], [held])
    os.close(held)
    mine.close()
    os.kill(pid, signal.SIGCONT)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as next_one:
        next_one.settimeout(PATIENCE)
        next_one.connect(path)
        given = [message.unpack(next_one.recv(100)) for _ in range(4)]
        assert [g[0] for g in given] == [5, 1, 1, 6] and {g[2] for g in given[1:3]} == {2**32 - 1, 7}
        next_one.send(message.pack(4, 0, 0, 0, 0))
    assert ended(pid)


@pytest.mark.parametrize("keep", ["60", "0"])
def test_one_that_does_not_start_loses_nothing(start, keep):
    first = start()
    with first.connect() as client:
        keep_one(client)
        kill(first)
    with pytest.raises(AssertionError, match="the daemon ended"):
        start("--keep", keep, "--device", "cuda:63")
    with start("--keep", keep).connect() as client:
        holds(client, {"x": np.ones(3)})


def test_there_is_no_place_for_its_socket(start_daemon, tmp_path):
    path = tmp_path / ("s" * (104 - len(str(tmp_path))))
    daemon = start_daemon("--keep", "60", socket=path)
    with daemon.connect() as client:
        for name in ("x", "y"):
            client.tensor(np.ones(3), name=name)
        assert client.status()["keeper"] is None
    assert daemon.read_log().count("will not outlive the daemon") == 1


@pytest.mark.skipif(not shutil.which("setpriv") or os.geteuid() != 0, reason="needs root and setpriv")
def test_another_user_gets_nothing(start, tmp_path):
    daemon = start()
    with daemon.connect() as client:
        keep_one(client)
        kill(daemon)
    path = tmp_path / "s.keep"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o666)
    for parent in [tmp_path, *tmp_path.parents]:
        if str(parent).startswith("/tmp/"):
            parent.chmod(0o755)
    code = (
        "import socket, sys; s = socket.socket(1, 5); s.connect(sys.argv[1]); "
        "sys.stdout.write(repr(s.recvmsg(100, 1000)[:2]))"
    )
    result = subprocess.run(
        ["setpriv", "--reuid", "12345", "--clear-groups", "/usr/bin/python3", "-c", code, str(path)],
        capture_output=True, timeout=PATIENCE, text=True,
    )  # fmt: skip
    assert result.stdout == "(b'', [])" or "reset" in result.stderr, result
    with start().connect() as client:
        assert np.all(client.attach("x").numpy() == 1)


def test_opctl_says_what_it_holds(start):
    daemon = start()
    opctl = Path(os.environ.get("OPD_BIN", "build/opd")).parent / "opctl"
    show = lambda: subprocess.run(  # noqa: E731
        [opctl, "--socket", daemon.socket, "status"], capture_output=True, text=True, check=True
    ).stdout
    assert "\nkeeper " not in show()
    with daemon.connect() as client:
        client.tensor(np.ones(1 << 18, np.float32), name="x")
        pid = keeper_of(daemon)["pid"]
        assert re.search(rf"keeper +pid {pid} holds 1 named tensor, 1.0 MiB, for ", show()), show()
