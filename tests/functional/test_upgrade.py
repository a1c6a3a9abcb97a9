"""The daemon's program is replaced while it serves: nothing is lost, and what cannot take over is
refused without harm."""

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import opd
from conftest import DEVICE, PROGRAM, ROOT, find_family
from operators import ROUNDS, SPIN
from raw import (
    SANITIZED,
    Raw,
    RpcError,
    count_fds,
    eventually,
    find_roles,
    make_memfd,
    pack_request,
    read_rss,
)

OPCTL = str(Path(PROGRAM).parent / "opctl")
SCALE = """
//! op      scale(Tensor x, *, float by=2.0) -> Tensor y
//! doc     Times a number, and notes its input.
//! dtypes  float32
//! shape   x [...S]
//! shape   y [...S]
//! saved   noted float32 [...S]
//! example x=[5]
//
//! forward
//!   kernel  scale_forward
//!   bind    n = numel(x)
//
//! backward grad_x
//!   kernel  scale_backward
//!   bind    n = numel(x)

extern "C" __global__ void scale_forward(const float *x, float *y, float *noted, float by,
                                         long long n)
{
    CUDA_KERNEL_LOOP(i, n) {
        y[i] = x[i] * by * FACTOR;
        if (noted)
            noted[i] = x[i];
    }
}

extern "C" __global__ void scale_backward(const float *grad_y, const float *noted, float *grad_x,
                                          float by, long long n)
{
    CUDA_KERNEL_LOOP(i, n)
        grad_x[i] = grad_y[i] * by * FACTOR + 0 * noted[i];
}
"""
PATIENCE = 20


def write_scale(folder, factor):
    new = folder / ".new"
    new.write_text(SCALE.replace("FACTOR", factor))
    new.rename(folder / "scale.cu")


@pytest.fixture
def own(start_daemon, tmp_path):
    """A daemon of our own, with the operators `scale` and `spin` in `daemon.kernels`."""
    folder = tmp_path / "kernels"
    folder.mkdir()
    write_scale(folder, "1.0f")
    (folder / "spin.cu").write_text(SPIN)
    daemon = start_daemon("--kernels", str(folder))
    daemon.kernels = folder
    return daemon


def upgrade(daemon, *params):
    with Raw(daemon.socket) as raw:
        return raw.call("upgrade", *params)


def refuse(daemon, path):
    with Raw(daemon.socket) as raw:
        return raw.fail("upgrade", {"path": str(path)})


def write_script(path, text):
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


# ---- what is kept ----


def test_the_answer_and_the_process(own):
    before = own.connect()
    start = time.time()
    answer = before.upgrade()
    assert answer["pid"] == own.pid and own.alive()
    assert answer["upgrades"] == 1 and answer["version"] == before.info["version"]
    assert 0 < answer["held"] <= answer["seconds"] < time.time() - start + 0.01
    status = before.status()
    assert status["upgrades"] == 1 and status["uptime"] > answer["seconds"]
    assert status["compilers"]["failed"] == 0
    assert status["requests"]["upgrade"] == 1 and status["requests"]["hello"] == 1
    assert status["connections"] == 1
    with own.connect() as late:  # the socket is the same
        assert late.upgrade()["upgrades"] == 2
    before.close()


def test_tensors_views_names_and_versions(own):
    data = np.random.default_rng(1).standard_normal(100_003).astype(np.float32)
    with own.connect() as client, own.connect() as other:
        plain, named = client.tensor(data), client.tensor(data * 2, name="weights")
        empty, scalar = client.zeros((0, 4)), client.tensor(np.float64(7))
        halves = client.tensor(data.astype(np.float16))
        attached = other.attach("weights")
        small = [client.tensor(np.full(i + 1, i, np.int32)) for i in range(500)]
        del small[::3]  # holes in the chunk
        client.synchronize()
        device = {k: v for k, v in client.status()["devices"][0].items() if k != "restarts"}
        listed = sorted(client.tensors(), key=str)
        other.upgrade()
        for _ in range(3):
            assert np.array_equal(plain.numpy(), data)
            assert np.array_equal(named.numpy(), data * 2)
            assert np.array_equal(attached.numpy(), data * 2)
            assert empty.numpy().shape == (0, 4) and scalar.numpy() == 7
            assert np.array_equal(halves.numpy(), data.astype(np.float16))
            for tensor in small:
                assert np.all(tensor.numpy() == tensor.shape[0] - 1)
            assert sorted(client.tensors(), key=str) == listed
            now = client.status()["devices"][0]
            for key in ("memory_used", "tensors", "name", "target", "model", "memory_limit"):
                assert now[key] == device[key], key
            fresh = client.zeros(1000)  # lies nowhere where something else is
            assert not fresh.numpy().any()
            del fresh
            client.synchronize()
            other.upgrade()
        with pytest.raises(opd.InvalidArgument):
            client.tensor(data, name="weights")
        del named, attached
        client.synchronize()
        again = client.attach("weights")
        assert np.array_equal(again.numpy(), data * 2)
        with Raw(own.socket) as raw:
            raw.call("tensor_attach", 1, "weights")
            raw.call("tensor_free", [1])
    assert eventually(lambda: device_of(own)["memory_used"] == 0)
    assert device_of(own)["tensors"] == 0


def device_of(daemon):
    with Raw(daemon.socket) as raw:
        return raw.call("status")["devices"][0]


def test_contexts_and_a_version_that_only_they_hold(own):
    with Raw(own.socket) as raw:
        ones = np.ones(5, np.float32).tobytes()
        raw.make(1, "float32", [5], np.arange(5, dtype=np.float32).tobytes())
        raw.make(2, "float32", [5], ones)
        first = raw.call("forward", "scale", [1], {"by": 3.0}, [3], {"context": 1})["version"]
        for factor in range(2, 20):  # more than are listed
            write_scale(own.kernels, f"{factor}.0f")
            raw.call("reload")
        last = raw.call("forward", "scale", [1], {}, [4], {"context": 2})["version"]
        assert last > first + 16
        versions = raw.call("op_info", "scale")["versions"]
        generation = raw.call("status")["generation"]
        events = raw.call("events", 0)["events"]
        raw.call("upgrade")
        assert raw.call("op_info", "scale")["versions"] == versions
        assert raw.call("status")["generation"] == generation
        now = raw.call("events", 0)["events"]
        assert now[: len(events)] == events
        assert [e["kind"] for e in now[len(events) :]] == ["upgraded"]
        raw.call("backward", 1, [2], [10])
        raw.call("backward", 2, [2], [11])
        grads = [np.frombuffer(raw.call("tensor_read", i, 0), np.float32) for i in (10, 11)]
        assert np.all(grads[0] == 3) and np.all(grads[1] == 2 * 19)
        # A write after forward is noticed across an upgrade, too.
        raw.call("forward", "gelu", [1], {}, [20], {"context": 5})
        raw.call("upgrade")
        raw.call("tensor_write", 1, 0, ones)
        raw.call("upgrade")
        assert "written after forward" in str(raw.fail("backward", 5, [2], [21]))
        raw.call("context_free", [1, 2, 5])


def test_pins_rollbacks_and_failures(own):
    with Raw(own.socket) as raw, Raw(own.socket) as told, Raw(own.socket) as follower:
        for client in (raw, told):
            client.make(1, "float32", [1], np.ones(1, np.float32).tobytes())
        write_scale(own.kernels, "2.0f")
        raw.call("reload")
        write_scale(own.kernels, "not C")
        (failed,) = raw.call("reload")
        assert failed["state"] == "failed"
        follower.call("events", 0, {"follow": True})
        assert told.call("forward", "scale", [1], {}, [2])["warnings"]
        raw.call("pin", "scale", 1)
        assert follower.receive()[2][0]["kind"] == "pinned"
        raw.call("upgrade")
        assert follower.receive()[2][0]["kind"] == "upgraded"
        assert "warnings" not in told.call("forward", "scale", [1], {}, [3])
        reply = raw.call("forward", "scale", [1], {}, [2])
        assert reply["version"] == 1 and "not served" in reply["warnings"][0]
        versions = raw.call("op_info", "scale")["versions"]
        assert [(v["version"], v["state"], v["pinned"]) for v in versions] == [
            (3, "failed", False), (2, "retired", False), (1, "serving", True),
        ]  # fmt: skip
        assert "scale.cu" in versions[0]["log"]
        assert raw.call("reload")[0]["state"] == "failed"  # it still stands
        assert raw.call("pin", "scale", None)["version"] == 2
        assert follower.receive()[2][0]["kind"] == "unpinned"
        write_scale(own.kernels, "5.0f")  # the folders are watched as before
        assert follower.receive()[2][0]["version"] == 4


def test_shared_memory(own):
    size = 1 << 20
    with Raw(own.socket) as raw, Raw(own.socket) as late:
        fd, late_fd = make_memfd(size), make_memfd(size)
        os.pwrite(fd, bytes(range(256)) * (size // 256), 0)
        raw.call("shm_open", 1, size, fds=[fd])
        raw.call("tensor_new", 1, "uint8", [size])
        raw.call("tensor_write", 1, 0, [1, 0, size])
        # Descriptor and half of the message before, the other half after.
        message = pack_request(77, "shm_open", (1, size))
        late.send(message[:5], fds=[late_fd])
        time.sleep(0.1)
        for _ in range(3):
            raw.call("upgrade")
        os.pwrite(fd, b"\xaa" * 100, 0)
        raw.call("tensor_write", 1, 50, [1, 0, 100])
        raw.call("tensor_read", 1, 0, size, [1, 0])
        expected = bytearray(bytes(range(256)) * (size // 256))
        expected[50:150] = b"\xaa" * 100
        assert os.pread(fd, size, 0) == expected
        late.send(message[5:])
        assert late.receive()[1:3] == [77, None]
        late.call("tensor_new", 1, "uint8", [10])
        late.call("tensor_read", 1, 0, 10, [1, 0])
        raw.call("shm_close", 1)
        os.close(fd), os.close(late_fd)


def test_bytes_that_were_not_read_or_not_sent(own):
    """A message in pieces, replies that nobody has read, requests behind one that waits."""
    size = 3 << 20
    with Raw(own.socket) as slow, Raw(own.socket) as pieces, Raw(own.socket) as asking:
        data = os.urandom(size)
        slow.make(1, "uint8", [size], data)
        reads = [slow.request("tensor_read", 1, 0) for _ in range(20)]
        whole = pack_request(5, "tensor_new", (9, "float32", [3]))
        time.sleep(0.2)
        for i in range(len(whole)):
            pieces.send(whole[i : i + 1])
            if i % 10 == 5:
                asking.call("upgrade")
        assert pieces.receive()[3]["shape"] == [3]
        for id in reads:
            assert slow.wait(id) == data


# ---- under load ----


def train(daemon, stop, counts, errors, seed):
    """Forward and backward with contexts held, unnamed tensors with known contents."""
    try:
        rng = np.random.default_rng(seed)
        with daemon.connect() as client:
            x = rng.standard_normal(4096).astype(np.float32)
            kept = client.tensor(x)
            named = client.tensor(x, name=f"named {seed}")
            big = rng.standard_normal(300_000).astype(np.float32)  # by shared memory
            held = []
            while not stop.is_set():
                y = client.ops.scale(kept, by=2.0)
                assert np.array_equal(y.numpy(), x * 2)
                held.append(y)
                with client.batch():
                    parts = [client.ops.scale(kept, by=float(k)) for k in range(8)]
                for k, part in enumerate(parts):
                    assert np.array_equal(part.numpy(), x * np.float32(k))
                assert np.array_equal(client.tensor(big).numpy(), big)
                assert np.array_equal(named.numpy(), x)
                del held[:-5]
                counts[seed] += 1
            client._request("tensor_free", ([named._id],))
    except BaseException as error:
        errors.append(error)


def backward_loop(daemon, stop, counts, errors, seed):
    """Raw: contexts that live across upgrades, requests sent ahead."""
    try:
        with Raw(daemon.socket) as raw:
            raw.make(1, "float32", [64], np.ones(64, np.float32).tobytes())
            raw.call("forward", "scale", [1], {"by": 7.0}, [2], {"context": 1})
            next_id = 10
            while not stop.is_set():
                sent = []
                for _ in range(20):
                    sent.append(raw.request("backward", 1, [1], [next_id]))
                    sent.append(raw.request("tensor_read", next_id, 0))
                    sent.append(raw.request("tensor_free", [next_id]))
                    next_id += 1
                results = [raw.wait(id) for id in sent]
                for grad in results[1::3]:
                    assert np.all(np.frombuffer(grad, np.float32) == 7)
                counts[seed] += 1
    except BaseException as error:
        errors.append(error)


def test_twenty_upgrades_under_load(own):
    stop, errors, counts = threading.Event(), [], [0] * 4
    loops = [train, train, backward_loop, backward_loop]
    threads = [
        threading.Thread(target=loop, args=(own, stop, counts, errors, i))
        for i, loop in enumerate(loops)
    ]
    follower = own.connect()
    events = follower.events(follow=True)
    for thread in threads:
        thread.start()
    held = []
    try:
        assert eventually(lambda: all(counts) or errors, PATIENCE) and not errors, errors
        fds = memory = 0
        for n in range(20):
            before = list(counts)
            answer = upgrade(own)
            assert answer["pid"] == own.pid and answer["upgrades"] == n + 1
            held.append(answer["held"])
            alive = eventually(lambda: all(a > b for a, b in zip(counts, before)) or errors, PATIENCE)
            assert alive and not errors, errors
            if n == 4:
                eventually(lambda: len(find_family(own.pid)) < 6, 3)
                fds, memory = count_fds(own.pid), read_rss(own.pid)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not errors, errors
    print(f"nothing was begun for {1e3 * np.median(held):.0f} ms (median), {1e3 * max(held):.0f} ms (most)")
    assert max(held) < 5
    kinds = [next(events)["kind"] for _ in range(20)]
    assert kinds == ["upgraded"] * 20
    # What the loops had is gone; what they had in flight differs from time to time.
    assert count_fds(own.pid) <= fds + 4
    if not SANITIZED:
        assert read_rss(own.pid) < memory + (24 << 20)
    events.close()
    assert eventually(lambda: device_of(own)["memory_used"] == 0)
    assert eventually(lambda: not zombies(own.pid))
    follower.close()


def zombies(pid):
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [child for child in children if is_zombie(child)]


def is_zombie(pid):
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_the_children_are_replaced_and_none_is_left(own):
    with Raw(own.socket) as raw:
        raw.make(1, "float32", [4])
        raw.call("forward", "scale", [1], {}, [2])
        (executor,) = find_roles(own.pid, "executor")
        compilers = find_roles(own.pid, "compiler")
        raw.call("upgrade")
        raw.call("forward", "scale", [1], {}, [3])
        assert eventually(lambda: executor not in find_roles(own.pid, "executor"))
        assert len(find_roles(own.pid, "executor")) == 1
        assert eventually(lambda: not set(compilers) & set(find_roles(own.pid, "compiler")))
        assert eventually(lambda: not zombies(own.pid))


def test_requests_that_run_and_requests_that_compile(own):
    """What runs ends first; what waits for a compile, and what is behind it, is answered late."""
    with Raw(own.socket) as running, Raw(own.socket) as compiling, Raw(own.socket) as asking:
        running.make(1, "float32", [4])
        running.call("forward", "spin", [1], {"rounds": 10}, [2])
        compiling.make(1, "float32", [4], np.ones(4, np.float32).tobytes())
        spin = running.request("forward", "spin", [1], {"rounds": ROUNDS}, [3])
        behind = running.request("tensor_read", 3, 0)
        write_scale(own.kernels, f"{time.time_ns() % 1000000}.0f + 4")  # in no cache
        asked = asking.request("upgrade")
        late = compiling.request("forward", "scale", [1], {}, [2])
        assert asking.wait(asked)["seconds"] > 0.1
        assert running.wait(spin)["version"] == 1 and len(running.wait(behind)) == 16
        assert compiling.wait(late)["version"] >= 1
        compiling.call("reload")
        assert compiling.call("forward", "scale", [1], {}, [3])["version"] == 2


def test_checks_and_edits_under_way_end_first(own):
    with Raw(own.socket) as raw, Raw(own.socket) as asking, Raw(own.socket) as looking:
        source = SCALE.replace("FACTOR", f"{time.time_ns() % 1000000}.0f")
        check = raw.request("check", "scale.cu", "", source)
        asked = asking.request("upgrade")
        write_scale(own.kernels, "8.0f")
        reload = looking.request("reload")
        assert raw.wait(check)["ok"]
        assert asking.wait(asked)["upgrades"] == 1
        assert looking.wait(reload)[0]["state"] == "serving"
        assert raw.call("check", "scale.cu", "", source)["ok"]


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


def test_two_at_once_and_one_that_leaves(own):
    with Raw(own.socket) as one, Raw(own.socket) as two:
        first, second = one.request("upgrade"), two.request("upgrade")
        results = []
        for client, id in ((one, first), (two, second)):
            try:
                results.append(client.wait(id)["upgrades"])
            except RpcError as error:
                assert error.code == "unavailable" and "under way" in str(error)
        assert 1 in results
    done = max(results)
    leaving = Raw(own.socket)
    leaving.request("upgrade")
    leaving.close()
    with Raw(own.socket) as raw:
        assert eventually(lambda: raw.call("status")["upgrades"] == done + 1)
        raw.notify("upgrade")
        assert eventually(lambda: raw.call("status")["upgrades"] == done + 2)


def test_a_kernel_that_hangs_is_ended_by_its_deadline_first(own):
    with Raw(own.socket) as hanging, Raw(own.socket) as asking:
        hanging.make(1, "float32", [4], np.ones(4, np.float32).tobytes())
        options = {"deadline": 1.0}
        id = hanging.request("forward", "spin", [1], {"rounds": 1 << 50}, [2], options)
        time.sleep(0.5)
        assert asking.call("upgrade")["upgrades"] == 1
        with pytest.raises(RpcError) as error:
            hanging.wait(id)
        assert error.value.code == "deadline_exceeded"
        assert np.all(np.frombuffer(hanging.call("tensor_read", 1, 0), np.float32) == 1)


def test_a_device_that_dies_after_an_upgrade(own):
    with Raw(own.socket) as raw:
        raw.make(1, "float32", [4], np.ones(4, np.float32).tobytes(), "kept")
        for _ in range(2):
            raw.call("upgrade")
            raw.call("sync")
            raw.call("tensor_read", 1, 0)
            (executor,) = eventually(lambda: len(e := find_roles(own.pid, "executor")) == 1 and e)
            os.kill(executor, signal.SIGKILL)
            assert eventually(lambda: find_roles(own.pid, "executor") not in ([], [executor]))
            assert np.all(np.frombuffer(raw.call("tensor_read", 1, 0), np.float32) == 1)
        assert raw.call("status")["devices"][0]["restarts"] == 2
        raw.call("tensor_free", [1])


# ---- other programs ----


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
    assert "upgraded 1 times" in status.stdout and f"pid {own.pid}" in status.stdout
    done = subprocess.run(
        [OPCTL, "--socket", own.socket, "upgrade", "/bin/true"], capture_output=True, text=True
    )
    assert done.returncode == 1 and "check-state" in done.stderr and not done.stdout


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
        worst = 0.0
        end = time.monotonic() + 3
        while time.monotonic() < end:
            start = time.monotonic()
            raw.call("tensor_read", 1, 0)
            worst = max(worst, time.monotonic() - start)
        assert worst < 1
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
    links = (os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir())
    return [link[8:-1] for link in links if link.startswith("socket:[")]


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
        time.sleep(0.3)
        own.process.terminate()
        error = raw.last_words()
        assert error.code == "unavailable" and "stopping" in str(error)
        assert own.process.wait(15) == 0
    assert eventually(lambda: not sleepers(str(hangs)))
    assert not os.path.exists(own.socket)


def test_a_signal_at_any_moment_of_an_upgrade_ends_it(start_daemon):
    """Before, while it is held, between the programs, after: never lost, never a crash."""
    for n in range(24):
        daemon = start_daemon()
        with Raw(daemon.socket) as raw:
            for _ in range(1 + n % 3):
                upgrade(daemon)
            raw.request("upgrade")
            time.sleep(n * 0.0015)
            daemon.stop()  # asserts its status, that it leaves nothing, and how long it takes


def test_killed_after_an_upgrade_it_leaves_nothing(own):
    upgrade(own)
    family = find_family(own.pid)
    own.process.kill()
    own.process.wait()
    assert eventually(lambda: not any(os.path.exists(f"/proc/{p}") for p, _ in family))
    own.process.stdout.close()
