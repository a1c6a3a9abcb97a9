"""The daemon's program is replaced while it serves: nothing that clients have is lost."""

import os
import signal
import time

import numpy as np
import pytest

import opd
from conftest import find_family
from raw import Raw, eventually, find_roles, make_memfd, pack_request, read_fds
from upgrades import device_of, own, upgrade, write_scale, zombies  # noqa: F401


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
            raw.call("free", "tensor", [1])
    assert eventually(lambda: device_of(own)["memory_used"] == 0)
    assert device_of(own)["tensors"] == 0


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
        raw.call("free", "context", [1, 2, 5])


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


def count_memfds(pid):
    """Those of make_memfd()."""
    return sum("memfd:opd-test" in link for link in read_fds(pid))


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
        before = count_memfds(own.pid)
        late.send(message[:5], fds=[late_fd])
        assert eventually(lambda: count_memfds(own.pid) > before)
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
        raw.call("free", "shm", [1])
        os.close(fd), os.close(late_fd)


def test_bytes_that_were_not_read_or_not_sent(own):
    """A message in pieces, replies that nobody has read, requests behind one that waits."""
    size = 3 << 20
    with Raw(own.socket) as slow, Raw(own.socket) as pieces, Raw(own.socket) as asking:
        data = os.urandom(size)
        slow.make(1, "uint8", [size], data)
        reads = [slow.request("tensor_read", 1, 0) for _ in range(20)]
        whole = pack_request(5, "tensor_new", (9, "float32", [3]))
        assert eventually(lambda: asking.call("status")["requests"].get("tensor_read", 0) > 0)
        for i in range(len(whole)):
            pieces.send(whole[i : i + 1])
            if i % 10 == 5:
                asking.call("upgrade")
        assert pieces.receive()[3]["shape"] == [3]
        for id in reads:
            assert slow.wait(id) == data


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
        raw.call("free", "tensor", [1])


def test_killed_after_an_upgrade_it_leaves_nothing(own):
    upgrade(own)
    family = find_family(own.pid)
    own.process.kill()
    own.process.wait()
    assert eventually(lambda: not any(os.path.exists(f"/proc/{p}") for p, _ in family))
    own.process.stdout.close()


def test_a_client_from_before_free(own):
    """Its connection goes on through an upgrade to a daemon that has one request for all that is given up."""
    with Raw(own.socket) as old:
        for id in range(1, 5):
            old.make(id, "float32", [4])
        old.call("tensor_new", 5, "float32", [4], "stays")
        old.call("forward", "gelu", [1], {}, [6], {"context": 7})
        old.call("upgrade")
        old.call("tensor_free", [1, 6])
        old.call("context_free", [7])
        old.call("drop", [2, 5, 99], [7, 98])
        assert sorted(t["id"] for t in old.call("tensor_list") if t["id"]) == [3, 4]
        assert old.fail("tensor_free", [3, 99]).code == "not_found"
        old.call("tensor_export", 3, 8)
        old.call("export_free", [8])
        fd = make_memfd(4096)
        old.call("shm_open", 1, 4096, fds=[fd])
        old.call("shm_close", 1)
        assert old.fail("shm_close", 1).code == "not_found"
        os.close(fd)
        assert old.fail("import_close", [1]).code == "not_found"
        assert old.call("tensor_attach", 9, "stays")["name"] == "stays"
