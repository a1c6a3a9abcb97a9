"""What an upgrade keeps of memory: what is suspect, what is shared with clients, who holds what."""

import fcntl
import mmap
import os
import socket
import time

import numpy as np
import pytest

import opd
from conftest import DEVICE
from operators import ROUNDS, SPIN
from raw import Raw, RpcError, eventually
from test_faults import STEPS
from test_memory import export, on_cpu, open_memfd
from test_metrics import read
from test_upgrade import count_memfds
from upgrades import SCALE

MIB = 1 << 20


@pytest.fixture
def start(start_daemon, tmp_path):
    """Starts a daemon with `scale`, `spin` and `steps`."""
    for name, text in {"scale": SCALE.replace("FACTOR", "1.0f"), "spin": SPIN, "steps": STEPS}.items():
        (tmp_path / f"{name}.cu").write_text(text)
    return lambda *options: start_daemon("--kernels", str(tmp_path), *options)


@pytest.fixture
def own(start):
    return start()


def device_of(raw):
    return raw.call("status")["devices"][0]


# ---- suspect ----


def test_what_is_suspect_stays_so_and_nothing_else(own):
    with own.connect() as client, own.connect() as other:
        x = client.tensor(np.arange(12, dtype=np.float32), name="weights")
        sound = client.tensor(np.ones(3, np.float32))
        middle = x.view((4,), offset=4)
        with pytest.raises(opd.KernelFault):
            client.ops.steps(middle, bad=True)
        with pytest.raises(opd.KernelFault):
            client.ops.steps(x.view((1,), offset=11), bad=True)
        why, part = x.suspect, middle.suspect
        assert "steps_second" in why and "float32 [1]" in why and "float32 [4]" in part
        for _ in range(2):
            other.upgrade()
            assert x.suspect == other.attach("weights").suspect == why and middle.suspect == part
            for begin, count in ((0, 12), (7, 1), (3, 2), (11, 1)):
                with pytest.raises(opd.InvalidArgument, match="suspect: .*steps_second"):
                    x.read(begin, count)
            with pytest.raises(opd.InvalidArgument, match="suspect"):
                client.ops.gelu(middle)
            assert x.read(0, 4).tolist() == [0, 1, 2, 3] and x.read(8, 3).tolist() == [8, 9, 10]
            assert sound.suspect is None and sound.numpy().tolist() == [1] * 3
        middle.write(np.full(4, 7, np.float32))
        other.upgrade()
        assert middle.suspect is None and middle.numpy().tolist() == [7] * 4
        assert x.suspect == why
        x.accept()
        other.upgrade()
        assert x.suspect is None and x.read(0, 11).tolist() == [0, 1, 2, 3, *[7] * 4, 8, 9, 10]


def test_what_a_failed_request_was_to_make_is_not_there_after_it(own):
    """A view of it is made without waiting, and stays."""
    with Raw(own.socket) as raw:
        raw.make(1, "float32", [4], np.ones(4, np.float32).tobytes())
        raw.call("forward", "spin", [1], {"rounds": 1}, [2])
        options = {"deadline": 0.3}
        failing = raw.request("forward", "spin", [1], {"rounds": 1 << 50}, [3], options)
        view = raw.request("tensor_view", 4, 3, 0, [2])
        with pytest.raises(RpcError):
            raw.wait(failing)
        raw.wait(view)
        before = str(raw.fail("tensor_read", 4, 0))
        assert "by a request that failed" in before
        raw.call("upgrade")
        assert str(raw.fail("tensor_read", 4, 0)) == before
        raw.call("free", "tensor", [1, 2, 4])
        assert device_of(raw)["memory_used"] == 0


# ---- shared in place ----


@on_cpu
def test_a_mapping_of_an_exported_tensor(own):
    n = 1000
    with Raw(own.socket) as raw, Raw(own.socket) as other:
        raw.make(1, "float32", [n], np.arange(n, dtype=np.float32).tobytes())
        info, fd = export(raw, 1, 1)
        with mmap.mmap(fd, info["chunk_size"]) as memory:
            os.close(fd)
            seen = np.frombuffer(memory, np.float32, n, info["offset"])
            for i in range(3):
                other.call("upgrade")
                assert seen[-1] == n - 1
                seen[0] = 50 + i
                assert np.frombuffer(raw.call("tensor_read", 1, 0, 4), np.float32) == 50 + i
                raw.call("tensor_write", 1, 4, np.float32(70 + i).tobytes())
                assert seen[1] == 70 + i
                again, fd = export(raw, 1, 2)
                assert again == info  # the chunk's number too
                os.close(fd)
                raw.call("free", "export", [2])
            # It holds the memory: nothing else comes to lie there.
            raw.call("free", "tensor", [1])
            other.call("upgrade")
            used = device_of(raw)["memory_used"]
            assert used > 0
            others = range(10, 40)
            for id in others:
                raw.make(id, "float32", [n], np.full(n, -1, np.float32).tobytes())
            assert seen[:2].tolist() == [52, 72] and np.array_equal(seen[2:], np.arange(2, n))
            # A chunk that is made after it has another number.
            raw.call("tensor_new", 99, "uint8", [65 * MIB])
            new, fd = export(raw, 99, 3)
            assert new["chunk"] != info["chunk"]
            os.close(fd)
            raw.call("free", "tensor", [99, *others])
            raw.call("free", "export", [3])
            assert device_of(raw)["memory_used"] == used
            raw.call("free", "export", [1])
            assert device_of(raw)["memory_used"] == 0
            assert raw.fail("free", "export", [1]).code == "not_found"
            del seen


@on_cpu
def test_arrays_of_the_client_share_memory_on(own):
    with own.connect() as client:
        x = client.tensor(np.arange(10, dtype=np.float32))
        array = np.from_dlpack(x)
        client.upgrade()
        x.write(np.full(10, 3, np.float32))
        assert array.tolist() == [3] * 10
        later = np.from_dlpack(client.zeros(5))  # of the same chunk, and the same mapping
        assert array.tolist() == [3] * 10 and later.tolist() == [0] * 5
        del array, later, x
        client.synchronize()
        assert eventually(lambda: client.status()["devices"][0]["memory_used"] == 0)


@on_cpu
def test_memory_of_a_client(own):
    size = 64 << 10
    with Raw(own.socket) as raw, Raw(own.socket) as other:
        memory = open_memfd(raw, 1, size)
        x = np.frombuffer(memory, np.float32, 100, 64)
        y = np.frombuffer(memory, np.float32, 100, 8192)
        raw.call("import_tensor", 1, 1, 64, "float32", [100])
        raw.call("import_tensor", 2, 1, 8192, "float32", [100])
        other.call("upgrade")
        for i in range(3):
            assert eventually(lambda: count_memfds(own.pid) == 1)
            x[:] = i
            raw.call("forward", "scale", [1], {"by": 3.0}, [None], {"into": [2]})
            assert np.all(y == 3 * i)
            assert np.all(np.frombuffer(raw.call("tensor_read", 1, 0), np.float32) == i)
            if i == 1:
                raw.call("free", "import", [1])  # the tensors hold it
            other.call("upgrade")
        assert raw.fail("import_tensor", 3, 1, 0, "float32", [1]).code == "not_found"
        second = open_memfd(raw, 1, size)
        raw.call("import_tensor", 3, 1, 0, "float32", [4])
        second[:4] = np.float32(8).tobytes()
        # One that a context alone holds.
        raw.call("forward", "gelu", [3], {}, [4], {"context": 5})
        raw.call("free", "tensor", [3])
        raw.call("free", "import", [1])
        other.call("upgrade")
        raw.make(5, "float32", [4], np.ones(4, np.float32).tobytes())
        raw.call("backward", 5, [5], [6])
        slope = np.frombuffer(raw.call("tensor_read", 6, 0), np.float32)
        assert abs(slope[0] - 1) < 1e-3 and slope[1] == 0.5
        raw.call("free", "context", [5])
        raw.call("free", "tensor", [1, 2])
        raw.call("sync")
        assert eventually(lambda: count_memfds(own.pid) == 0)
        del x, y


@on_cpu
def test_descriptors_that_nobody_has_read_yet(own):
    """Replies with and without them, behind more bytes than a socket takes."""
    size = 3 * MIB
    with Raw(own.socket) as raw, Raw(own.socket) as other:
        raw.make(1, "uint8", [size], os.urandom(size))
        raw.make(2, "float32", [10], np.arange(10, dtype=np.float32).tobytes())
        sent, kinds = [], []
        for i in range(30):
            if i % 10 == 0:
                sent.append(raw.request("tensor_read", 1, 0))
            sent.append(raw.request("tensor_export", 2, i + 1))
            kinds.append(sent[-1])
            sent.append(raw.request("tensor_info", 2))
        for _ in range(2):
            assert eventually(lambda: other.call("status")["requests"].get("tensor_export", 0) > 0)
            other.call("upgrade")
        fds = []
        while not all(id in raw.replies for id in sent):
            read_more(raw, fds)
        assert len(fds) == len(kinds)
        for id, fd in zip(kinds, fds):
            error, info = raw.replies[id]
            assert error is None and info["size"] == 40
            with mmap.mmap(fd, info["chunk_size"]) as memory:
                at = info["offset"]
                assert np.frombuffer(memory[at : at + 40], np.float32).tolist() == list(range(10))
            os.close(fd)


def read_more(raw, fds):
    data, new, _, _ = socket.recv_fds(raw.sock, 1 << 16, 8)
    assert data, "the daemon hung up"
    fds += new
    raw.unpacker.feed(data)
    for _, id, error, result in raw.unpacker:
        raw.replies[id] = (error, result)


# ---- who holds what ----


def test_limits_and_who_holds_what(start):
    daemon = start("--memory-limit", "128M", "--client-memory", "60M")
    with Raw(daemon.socket) as raw, Raw(daemon.socket) as tester, Raw(daemon.socket) as third:
        raw.call("hello", "trainer")
        tester.call("hello", "tester")
        raw.call("tensor_new", 1, "uint8", [40 * MIB])
        raw.call("tensor_new", 2, "uint8", [8 * MIB], "weights")
        tester.call("tensor_new", 1, "uint8", [20 * MIB])
        with Raw(daemon.socket) as leaving:
            leaving.call("hello", "leaving")
            leaving.call("tensor_new", 1, "uint8", [MIB], "left")
            leaving.call("tensor_new", 2, "uint8", [MIB], "attached")
            third.call("tensor_attach", 1, "attached")
        assert eventually(lambda: "leaving" not in [c["client"] for c in third.call("status")["clients"]])

        def look():
            status = third.call("status")
            clients = {c["client"]: (c["memory"], c["pid"], c["tensors"]) for c in status["clients"]}
            device = {k: status["devices"][0][k] for k in ("memory_used", "memory_named", "tensors")}
            too_much = third.fail("tensor_new", 2, "uint8", [100 * MIB])
            mine = raw.fail("tensor_new", 3, "uint8", [20 * MIB])
            full = third.fail("tensor_new", 2, "uint8", [59 * MIB])
            named = sorted((t["name"], t["owner"]) for t in third.call("tensor_list"))
            return clients, device, str(too_much), str(mine), str(full), named

        before = look()
        for _ in range(2):
            third.call("upgrade")
            assert look() == before
        assert before[0]["trainer"][1] == os.getpid()
        assert "may hold 60 MiB" in before[2] and "holds 48 MiB" in before[3]
        assert "40 MiB by trainer" in before[4] and "20 MiB by tester" in before[4]
        assert before[5][1] == ("left", f"leaving (pid {os.getpid()})")
        # It is counted back, too.
        raw.call("free", "tensor", [1])
        raw.call("tensor_new", 1, "uint8", [30 * MIB])
        assert "holds 38 MiB" in str(raw.fail("tensor_new", 3, "uint8", [30 * MIB]))
        raw.close()
        assert eventually(lambda: device_of(third)["memory_used"] == 30 * MIB)


def test_what_was_counted(own):
    with own.connect() as client:
        x = client.tensor(np.ones(1000, np.float32), name="kept")
        y, ctx = client.ops.scale.forward(x)
        kept = ctx.backward(y), client.zeros(4)  # what is dropped is told with a later request
        with pytest.raises(opd.NotFound):
            client.attach("nothing")
        with pytest.raises(opd.KernelFault):
            client.ops.steps(kept[1], bad=True)
        client.restart(client.info["default_device"])
        client.synchronize()
        before = read(client.metrics())
        client.upgrade()
        after = read(client.metrics())
        same = [
            ("opd_errors_total", '{code="not_found"}'), ("opd_errors_total", '{code="kernel_fault"}'),
            ("opd_runs_failed_total", '{op="steps"}'), ("opd_run_seconds_total", '{op="scale"}'),
            ("opd_cache_bytes", ""),
            *(key for key in before if key[0].startswith(("opd_device_", "opd_runs_"))),
        ]  # fmt: skip
        for key in same:
            if key[0] == "opd_device_busy_seconds_total":
                assert before[key] <= after[key] < before[key] + 1
            elif not key[0].startswith(("opd_device_up", "opd_device_queue", "opd_device_spare")):
                assert after[key] == before[key], key
        assert after["opd_runs_total", '{op="scale",direction="backward"}'] == 1
        assert after["opd_device_busy_seconds_total", f'{{device="{DEVICE}"}}'] > 0
        assert after["opd_compile_seconds_total", ""] >= before["opd_compile_seconds_total", ""]
        growing = ("opd_requests_total", '{method="forward"}')
        assert after[growing] == before[growing]


# ---- requests that wait ----


def test_requests_that_wait_behind_a_kernel(own):
    """A restart, an export, an import: each ends before it, and is answered."""
    with Raw(own.socket) as busy, Raw(own.socket) as asking:
        waiting = [Raw(own.socket) for _ in range(4)]
        restarting, exporting, importing, closing = waiting
        busy.make(1, "float32", [4])
        busy.call("forward", "spin", [1], {"rounds": 10}, [2])
        exporting.make(1, "float32", [4], np.full(4, 6, np.float32).tobytes())
        spin = busy.request("forward", "spin", [1], {"rounds": ROUNDS}, [3])
        assert eventually(lambda: device_of(asking)["queued"] > 0)
        sent = exporting.request("tensor_export", 1, 1)
        if DEVICE == "cpu":
            size = 8192
            fd = os.memfd_create("opd-test", os.MFD_ALLOW_SEALING)
            os.ftruncate(fd, size)
            seal(fd)
            opening = importing.request("import_open", 1, "cpu", "memfd", b"", size, fds=[fd])
            made = importing.request("import_tensor", 1, 1, 0, "float32", [4])
            closing.call("shm_open", 1, size, fds=[fd])
            os.pwrite(fd, np.full(4, 5, np.float32).tobytes(), 0)
            os.close(fd)
        restart = restarting.request("device_restart", DEVICE)
        closing.request("device_restart", DEVICE)  # nobody waits for its answer
        closing.close()
        asked = asking.request("upgrade")
        assert asking.wait(asked)["upgrades"] == 1
        assert busy.wait(spin)["version"] == 1
        told = restarting.wait(restart)
        assert told["name"] == DEVICE and told["state"] == "ready" and told["restarts"] >= 1
        fds = []
        while sent not in exporting.replies:
            read_more(exporting, fds)
        assert len(fds) == 1 and exporting.wait(sent)["size"] == 16
        os.close(fds[0])
        if DEVICE == "cpu":
            assert importing.wait(opening) is None and importing.wait(made)["id"] == 1
            assert np.all(np.frombuffer(importing.call("tensor_read", 1, 0), np.float32) == 5)
        assert np.all(np.frombuffer(exporting.call("tensor_read", 1, 0), np.float32) == 6)
        assert restarting.call("device_restart", DEVICE)["state"] == "ready"
        for raw in waiting:
            raw.close()


def seal(fd):
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)


def test_upgrades_and_restarts_together(own):
    with Raw(own.socket) as raw, Raw(own.socket) as asking:
        raw.make(1, "float32", [4], np.ones(4, np.float32).tobytes(), "kept")
        for i in range(8):
            restart = raw.request("device_restart", DEVICE)
            time.sleep(0.01 * i)
            asked = asking.request("upgrade")
            assert raw.wait(restart)["state"] == "ready"
            assert asking.wait(asked)["upgrades"] == i + 1
            assert np.all(np.frombuffer(raw.call("tensor_read", 1, 0), np.float32) == 1)
        raw.call("free", "tensor", [1])

