"""Upgrades of a daemon that is busy: requests, compiles, edits and other upgrades under way, and signals."""

import itertools
import threading
import time

import numpy as np
import pytest

from conftest import SANITIZED, find_family
from operators import ROUNDS
from raw import Raw, RpcError, count_fds, eventually, read_rss
from upgrades import SCALE, device_of, own, upgrade, write_scale, zombies  # noqa: F401


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
            client._link.request("free", ("tensor", [named._id]))
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
                    sent.append(raw.request("free", "tensor", [next_id]))
                    next_id += 1
                results = [raw.wait(id) for id in sent]
                for grad in results[1::3]:
                    assert np.all(np.frombuffer(grad, np.float32) == 7)
                counts[seed] += 1
    except BaseException as error:
        errors.append(error)


N_UPGRADES = 8 if SANITIZED else 20  # the checked program takes seconds to start


@pytest.mark.in_both("fewer upgrades, and memory is not looked at")
def test_many_upgrades_under_load(own):
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
        assert eventually(lambda: all(counts) or errors) and not errors, errors
        fds = memory = 0
        for n in range(N_UPGRADES):
            before = list(counts)
            answer = upgrade(own)
            assert answer["pid"] == own.pid and answer["upgrades"] == n + 1
            held.append(answer["held"])
            alive = eventually(lambda: all(a > b for a, b in zip(counts, before)) or errors)
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
    assert max(held) < 30
    kinds = (event["kind"] for event in events)
    kinds = list(itertools.islice((kind for kind in kinds if kind != "compiled"), N_UPGRADES))
    assert kinds == ["upgraded"] * N_UPGRADES
    # What the loops had is gone; what they had in flight differs from time to time.
    assert eventually(lambda: count_fds(own.pid) <= fds + 4)
    if not SANITIZED:
        assert read_rss(own.pid) < memory + (24 << 20)
    events.close()
    assert eventually(lambda: device_of(own)["memory_used"] == 0)
    assert eventually(lambda: not zombies(own.pid))
    follower.close()


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
        assert eventually(lambda: asking.call("status")["devices"][0]["queued"] > 0)
        assert asking.call("upgrade")["upgrades"] == 1
        with pytest.raises(RpcError) as error:
            hanging.wait(id)
        assert error.value.code == "deadline_exceeded"
        assert np.all(np.frombuffer(hanging.call("tensor_read", 1, 0), np.float32) == 1)


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
