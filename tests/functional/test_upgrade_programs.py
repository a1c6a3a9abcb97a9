"""The program that takes over in an upgrade: where it is, and one that cannot is refused without harm."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

import opd
from conftest import DEVICE, PATIENCE, PROGRAM, ROOT
from raw import Raw, RpcError, count_fds, eventually, find_roles, read_fds
from upgrades import own, upgrade, write_scale  # noqa: F401

OPCTL = str(Path(PROGRAM).parent / "opctl")


def refuse(daemon, path):
    with Raw(daemon.socket) as raw:
        return raw.fail("upgrade", {"path": str(path)})


def write_script(path, text):
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def test_a_new_program_at_the_same_path_and_one_at_another(start_daemon, tmp_path):
    place = tmp_path / "bin" / "opd"
    place.parent.mkdir()
    shutil.copy(PROGRAM, place)
    daemon = start_daemon("--kernels", str(ROOT / "kernels_src"), program=str(place))
    with daemon.connect() as client:
        kept = client.tensor(np.arange(9))
        x = client.tensor(np.ones(3, np.float32))
        y = client.ops.gelu(x)
        inode = os.stat(f"/proc/{daemon.pid}/exe").st_ino
        shutil.copy(PROGRAM, tmp_path / "new")
        (tmp_path / "new").rename(place)  # as an installation does
        client.upgrade()
        assert os.stat(f"/proc/{daemon.pid}/exe").st_ino == os.stat(place).st_ino != inode
        place.unlink()
        with pytest.raises(opd.InvalidArgument, match="was started, cannot be run: No such"):
            client.upgrade()
        other = tmp_path / "other"
        shutil.copy(PROGRAM, other)
        done = subprocess.run(
            [OPCTL, "--socket", daemon.socket, "upgrade", "other"],
            cwd=tmp_path, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert f"pid {daemon.pid}" in done.stdout and "ms" in done.stdout
        assert os.readlink(f"/proc/{daemon.pid}/exe") == str(other)
        assert client.upgrade()["upgrades"] == 3  # from there, now
        assert np.array_equal(kept.numpy(), np.arange(9))
        assert np.array_equal(client.ops.gelu(x).numpy(), y.numpy())
        assert client.status()["kernels"] == [str(ROOT / "kernels_src")]


def test_opctl_upgrade(own):
    done = subprocess.run(
        [OPCTL, "--socket", own.socket, "--json", "upgrade"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["upgrades"] == 1
    status = subprocess.run([OPCTL, "--socket", own.socket, "status"], capture_output=True, text=True)
    assert "upgraded 1 time\n" in status.stdout and f"pid {own.pid}" in status.stdout
    done = subprocess.run(
        [OPCTL, "--socket", own.socket, "upgrade", "/bin/true"], capture_output=True, text=True
    )
    assert done.returncode == 1 and "check-state" in done.stderr and not done.stdout


def test_the_place_stays_taken(own):
    upgrade(own)
    second = subprocess.run(
        [PROGRAM, "--socket", own.socket, "--device", DEVICE], capture_output=True, text=True
    )
    assert second.returncode == 3 and "another opd serves" in second.stderr


def test_a_script_that_runs_the_program(own, tmp_path):
    """What takes over need not be the program itself."""
    log = tmp_path / "log"
    script = write_script(tmp_path / "wrapper", f'echo "$1" >> {log}\nexec {PROGRAM} "$@"\n')
    with Raw(own.socket) as raw:
        raw.make(1, "float32", [4], np.ones(4, np.float32).tobytes())
        assert raw.call("upgrade", {"path": str(script)})["pid"] == own.pid
        assert log.read_text().split() == ["check-state", "check-state", "resume"]
        assert np.all(np.frombuffer(raw.call("tensor_read", 1, 0), np.float32) == 1)
        assert raw.call("upgrade")["upgrades"] == 2  # as the script had it run


def test_the_word_of_a_new_program_harms_no_process(own, tmp_path):
    """It reads the numbers of processes that are in use: they are not its own."""
    with Raw(own.socket) as raw:
        raw.make(1, "float32", [4])
        before = find_roles(own.pid, "executor") + find_roles(own.pid, "compiler")
        script = write_script(
            tmp_path / "only-checks", f'[ "$1" = check-state ] && {PROGRAM} "$@" && exit 1\nexit 1\n')
        assert raw.fail("upgrade", {"path": str(script)}).code == "invalid_argument"
        raw.call("tensor_read", 1, 0)
        after = find_roles(own.pid, "executor") + find_roles(own.pid, "compiler")
        assert set(before) <= set(after)  # one more compiler may have started
        assert raw.call("status")["devices"][0]["restarts"] == 0


def test_programs_that_cannot_take_over_are_refused(own, tmp_path):
    plain = tmp_path / "plain"
    plain.write_text("text")
    other_format = write_script(
        tmp_path / "other-format",
        'echo "the running daemon writes its state in format 1, opd 9.9 reads 7 to 9"; exit 1\n',
    )
    no_program = tmp_path / "no-program"
    no_program.write_bytes(b"\x7fELF")
    no_program.chmod(0o755)
    cases = [
        (tmp_path / "nowhere", "No such file"),
        (plain, "Permission denied"),
        (no_program, "ended with status 127"),
        (tmp_path, "is no program"),
        (other_format, "format 1, opd 9.9 reads 7 to 9"),
        ("/bin/true", "is no opd"),
        ("/bin/false", "ended with status 1"),
        (write_script(tmp_path / "crashes", "kill -SEGV $$\n"), "crashed by signal 11"),
        (write_script(tmp_path / "talks", "yes | head -c 60000\n"), "is no opd"),
        (write_script(tmp_path / "silent", "exit 3\n"), "ended with status 3"),
    ]
    follower = own.connect()
    with Raw(own.socket) as raw:
        raw.make(1, "float32", [4], np.ones(4, np.float32).tobytes())
        raw.call("forward", "scale", [1], {}, [2], {"context": 1})
        raw.call("backward", 1, [1], [3])
        (executor,) = find_roles(own.pid, "executor")
        fds = count_fds(own.pid)
        for path, says in cases:
            error = refuse(own, path)
            assert error.code == "invalid_argument" and says in str(error), str(error)
            assert np.all(np.frombuffer(raw.call("tensor_read", 2, 0), np.float32) == 2)
        assert raw.call("backward", 1, [1], [4])
        assert find_roles(own.pid, "executor") == [executor]  # nothing was given up
        status = raw.call("status")
        assert status["upgrades"] == 0 and status["pid"] == own.pid
        assert eventually(lambda: count_fds(own.pid) <= fds)
        assert raw.fail("upgrade", {"path": "relative"}).code == "invalid_argument"
        assert raw.fail("upgrade", {"path": 3}).code == "invalid_argument"
        write_scale(own.kernels, "3.0f")  # edits are served as before
        assert raw.call("reload")[0]["state"] == "serving"
        assert raw.call("upgrade")["upgrades"] == 1
    assert "refused" in own.read_log()
    follower.close()


def test_a_program_that_hangs_is_refused_and_nobody_waits_for_it(own, tmp_path):
    hangs = write_script(tmp_path / "hangs", "sleep 1000\n")
    with Raw(own.socket) as raw, Raw(own.socket) as asking:
        raw.make(1, "float32", [4])
        asked = asking.request("upgrade", {"path": str(hangs)})
        assert eventually(lambda: sleepers(str(hangs)))
        for _ in range(100):  # in the five seconds that the program has
            raw.call("tensor_read", 1, 0)
        assert sleepers(str(hangs)), "they were answered after it was given up"
        with pytest.raises(RpcError) as error:
            asking.wait(asked)
        assert error.value.code == "invalid_argument" and "did not say" in str(error.value)
        assert eventually(lambda: not sleepers(str(hangs)))
        assert raw.call("upgrade")["upgrades"] == 1


def sleepers(what):
    found = subprocess.run(["pgrep", "-f", what], capture_output=True, text=True).stdout.split()
    return [p for p in found if p != str(os.getpid())]


def test_a_program_that_says_yes_once_and_then_no(own, tmp_path):
    """The second look, when service is held already: it goes on where it was."""
    flag = tmp_path / "asked"
    script = write_script(
        tmp_path / "fickle",
        f'if [ -e {flag} ]; then echo "not in the mood"; exit 1; fi\n'
        f'touch {flag}; echo "ok 1 9.9"; exit 0\n',
    )
    with Raw(own.socket) as raw:
        raw.make(1, "float32", [4], np.ones(4, np.float32).tobytes())
        assert "not in the mood" in str(refuse(own, script))
        assert np.all(np.frombuffer(raw.call("tensor_read", 1, 0), np.float32) == 1)
        with Raw(own.socket) as late:
            assert late.call("upgrade")["upgrades"] == 1


def test_a_program_that_cannot_be_run_though_it_said_yes(own, tmp_path):
    """A script without "#!": libc's search for programs runs it, execve() does not."""
    script = tmp_path / "no-magic"
    script.write_text("echo ok 1 9.9\n")
    script.chmod(0o755)
    with Raw(own.socket) as raw:
        raw.make(1, "float32", [4], np.ones(4, np.float32).tobytes())
        (executor,) = find_roles(own.pid, "executor")
        assert "cannot be run: Exec format error" in str(refuse(own, script))
        assert np.all(np.frombuffer(raw.call("tensor_read", 1, 0), np.float32) == 1)
        assert find_roles(own.pid, "executor") == [executor]
        os.kill(executor, signal.SIGKILL)  # the next one inherits nothing that was to be kept
        assert eventually(lambda: find_roles(own.pid, "executor") not in ([], [executor]))
        assert np.all(np.frombuffer(raw.call("tensor_read", 1, 0), np.float32) == 1)
        (executor,) = find_roles(own.pid, "executor")
        assert not [s for s in sockets(executor) if s in listening(own.socket)]
        assert raw.call("upgrade")["upgrades"] == 1


def sockets(pid):
    return [link[8:-1] for link in read_fds(pid) if link.startswith("socket:[")]


def listening(path):
    rows = (line.split() for line in Path("/proc/net/unix").read_text().splitlines())
    return [row[6] for row in rows if len(row) > 7 and row[7] == path]


def test_a_program_that_changes_between_its_word_and_its_start(own, tmp_path):
    script = tmp_path / "changes"
    write_script(script, f'echo "ok 1 9.9"; echo "# more" >> {script}\n')
    with Raw(own.socket) as raw:
        assert "changed meanwhile" in str(refuse(own, script))
        assert raw.call("upgrade")["upgrades"] == 1


def test_stopped_while_it_is_upgraded(own, tmp_path):
    hangs = write_script(tmp_path / "hangs", "sleep 1000\n")
    with Raw(own.socket) as raw:
        raw.request("upgrade", {"path": str(hangs)})
        assert eventually(lambda: sleepers(str(hangs)))
        own.process.terminate()
        error = raw.last_words()
        assert error.code == "unavailable" and "stopping" in str(error)
        assert own.process.wait(PATIENCE) == 0
    assert eventually(lambda: not sleepers(str(hangs)))
    assert not os.path.exists(own.socket)
