"""The keeper where something is against it: bytes that are torn, a folder without room, a second daemon, a limit of
memory."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from conftest import PATIENCE, PROGRAM, SANITIZED, eventually, read_stat

from test_keeper import find_list, holds, keeper_of, kill, start  # noqa: F401
from test_short_executor import memory_group  # noqa: F401


def put(client, names, n=100):
    values = {name: np.full(n, i, np.int32) for i, name in enumerate(names)}
    for name, value in values.items():
        client.tensor(value, name=name)
    client.synchronize()
    return values


def test_whatever_is_torn_no_byte_is_wrong(start):  # noqa: F811
    """A name may be missing; what is there is what it was."""
    rng = np.random.default_rng(5)
    daemon = start()
    with daemon.connect() as client:
        values = put(client, [f"n{i}" for i in range(20)])
        pid = keeper_of(daemon)["pid"]
        kill(daemon)
    lost = 0
    for n_torn in (1, 3, 30, 300):
        with open(find_list(pid), "r+b") as file:
            data = file.read()
            for at in rng.integers(4096, len(data), n_torn):  # behind the header: its entries
                file.seek(int(at))
                file.write(bytes([int(rng.integers(256))]))
        daemon = start()
        with daemon.connect() as client:
            for t in client.tensors():
                if t["name"] in values and t["suspect"] is None:
                    assert np.array_equal(client.attach(t["name"]).numpy(), values[t["name"]])
            there = {t["name"] for t in client.tensors()}
            assert there <= set(values)
            lost += len(values) - len(there)
            for name in set(values) - there:
                client.tensor(values[name], name=name)
            for t in client.tensors():
                if t["suspect"] is not None:
                    client.attach(t["name"]).write(values[t["name"]])
            client.synchronize()
            pid = keeper_of(daemon)["pid"]
            kill(daemon)
    assert lost > 0
    with start().connect() as client:
        holds(client, values)


@pytest.mark.parametrize("what", ["a folder is in its place", "the disk is full"])
def test_where_its_socket_cannot_be(start_daemon, tmp_path, request, what):
    """The daemon serves, and says once that names will not outlive it."""
    folder = tmp_path / "full"
    folder.mkdir()
    if what == "the disk is full":  # for one more name, that is: the folder itself, the socket and its lock
        options = ["-t", "tmpfs", "-o", "nr_inodes=3", "none"]
        if os.geteuid() != 0 or subprocess.run(["mount", *options, folder], capture_output=True).returncode != 0:
            pytest.skip("needs the right to mount")
        request.addfinalizer(lambda: subprocess.run(["umount", "-l", folder], check=True))
    else:
        (folder / "s.keep").mkdir()
    daemon = start_daemon("--keep", "60", "--cache", "", "--faults", "0", socket=folder / "s")
    with daemon.connect() as client:
        put(client, ["x", "y"])
        assert client.status()["keeper"] is None
        assert client.attach("y").numpy().tolist() == [1] * 100
    log = daemon.read_log()
    assert log.count("not outlive the daemon") == 1, log


def test_a_second_daemon_takes_nothing(start, tmp_path):  # noqa: F811
    first = start()
    with first.connect() as client:
        values = put(client, ["x", "y"])
        keeper = keeper_of(first)
        for _ in range(2):
            second = subprocess.run(
                [PROGRAM, "--socket", first.socket, "--device", "cpu"], capture_output=True, text=True, timeout=PATIENCE
            )  # fmt: skip
            assert second.returncode != 0 and "another opd serves on" in second.stderr
        assert keeper_of(first) == keeper
        holds(client, values)
        kill(first)
    with start().connect() as client:
        holds(client, values)


@pytest.mark.in_both("a sanitizer takes some of its own")
def test_its_memory_is_that_of_the_tensors(start):  # noqa: F811
    """Counted once, where it was before; the keeper itself has next to none."""
    first = start()
    with first.connect() as client:
        before = client.status()["devices"][0]["memory_used"]
        values = put(client, ["x", "y", "z"], 1 << 18)
        used = client.status()["devices"][0]["memory_used"] - before
        keeper = keeper_of(first)
        assert keeper["bytes"] == used == 3 << 20
        most = (32 if SANITIZED else 1) << 20  # a sanitizer takes some of its own
        assert eventually(lambda: own_memory(keeper["pid"]) < most), own_memory(keeper["pid"])
        kill(first)
    with start("--memory-limit", "64M").connect() as client:
        assert client.status()["devices"][0]["memory_used"] == used
        holds(client, values)
        for name in values:
            client.attach(name).free()
        client.synchronize()
        assert client.status()["devices"][0]["memory_used"] == 0


def test_opctl_stop_gives_it_up(start):  # noqa: F811
    """Of one that was killed; as long as one serves its keeper ends with that alone."""
    stop = lambda: subprocess.run(  # noqa: E731
        [Path(PROGRAM).parent / "opctl", "--socket", daemon.socket, "stop"], capture_output=True, text=True
    )
    daemon = start()
    with daemon.connect() as client:
        put(client, ["x", "y"])
        keeper = keeper_of(daemon)["pid"]
        kill(daemon)
    assert stop().stdout.startswith("no daemon serves there; the named tensors")
    assert eventually(lambda: read_stat(keeper) is None)
    again = stop()
    assert again.returncode == 3 and again.stderr.startswith("opctl: ") and not again.stdout
    with start().connect() as client:
        assert not client.tensors()


def test_the_broker_is_ended_for_want_of_memory(start, memory_group):  # noqa: F811
    """By the kernel, in a group of processes whose limit another one overruns."""
    first = start()
    with first.connect() as client:
        values = put(client, ["x", "y", "z"], 1 << 18)
        keeper_of(first)
        Path(f"/proc/{first.pid}/oom_score_adj").write_text("1000")
        (memory_group / "cgroup.procs").write_text(str(first.pid))
        hog = "import sys; sys.stdin.read(1); held = [bytearray(b'x' * (16 << 20)) for _ in range(1000)]"
        other = subprocess.Popen([sys.executable, "-c", hog], stdin=subprocess.PIPE)
        (memory_group / "cgroup.procs").write_text(str(other.pid))
        other.communicate(b"x")
        assert first.process.wait(PATIENCE) == -signal.SIGKILL
    first.process.stdout.close()
    with start().connect() as client:
        holds(client, values)


def own_memory(pid):
    """Bytes that no other process has, too."""
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return sum(int(line.split()[1]) << 10 for line in file if line.startswith("Private_"))
