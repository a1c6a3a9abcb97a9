"""Graphs: what a connection runs is recorded, and run again by one request."""

import ctypes
import os
import warnings

import numpy as np
import pytest
from libopd import Client as LibraryClient
from operators import ADD, FAULTY, PICK, SPIN, double_by, put_kernels
from raw import Raw, find_roles
from upgrades import SCALE

import opd
from conftest import eventually


@pytest.fixture
def daemon(start_daemon, tmp_path):
    """With operators to edit, in `daemon.kernels`."""
    folder = tmp_path / "kernels"
    put_kernels(
        folder,
        scale=SCALE.replace("FACTOR", "1.0f"),
        spin=SPIN,
        double_it=double_by(2),
        faulty=FAULTY,
        pick=PICK,
        add_to=ADD,
    )
    daemon = start_daemon("--kernels", str(folder), "--kernels", "kernels_src")
    daemon.kernels = folder
    return daemon


@pytest.fixture
def client(daemon):
    with opd.connect(daemon.socket, start=False) as client:
        yield client


def floats(*values):
    return np.array(values, np.float32)


def test_a_replay_runs_the_calls_again(client):
    x = client.tensor(floats(1, 2, 3))
    with client.capture() as graph:
        y = client.ops.double_it(x)
        z = client.ops.scale(y, by=10.0)
        del y  # its memory is the graph's
    assert z.numpy().tolist() == [20, 40, 60]
    other = client.zeros([3])  # takes what memory there is
    x.write(floats(4, 5, 6))
    graph.replay()
    assert z.numpy().tolist() == [80, 100, 120]
    assert other.numpy().tolist() == [0, 0, 0]
    counts = client.status()["requests"]
    with client.batch():
        for _ in range(20):
            graph.replay()
    after = client.status()["requests"]
    assert after["replay"] == counts["replay"] + 20 and after["forward"] == counts["forward"]
    assert {r["op"]: r["forward"] for r in client.status()["runs"]}["double_it"] == 22


def test_in_place_and_zeros(client):
    total, x = client.zeros([3]), client.tensor(floats(1, 2, 3))
    with client.capture() as graph:
        part = client.zeros([3])
        client.ops.add_to(part, x)
        client.ops.add_to(part, x)
        client.ops.add_to(total, part)
    for _ in range(9):
        graph.replay()
    assert part.numpy().tolist() == [2, 4, 6]
    assert total.numpy().tolist() == [20, 40, 60]


def test_backward_and_an_optimizer(client):
    w = client.tensor(floats(1, 2, 3))
    one = client.tensor(floats(1, 1, 1))
    expected = floats(1, 2, 3)
    with client.capture() as graph:
        y, ctx = client.ops.silu.forward(w)
        (grad,) = ctx.backward(one)
        client.ops.sgd_step(w, grad, lr=0.5)
        del ctx, y
    for _ in range(4):
        graph.replay()
    for _ in range(5):
        s = 1 / (1 + np.exp(-expected.astype(np.float64)))
        expected = (expected - 0.5 * s * (1 + expected * (1 - s))).astype(np.float32)
    np.testing.assert_allclose(w.numpy(), expected, rtol=1e-5)


def test_a_context_from_before_stays(client):
    x, one = client.tensor(floats(1, 2, 3)), client.tensor(floats(1, 2, 4))
    _, ctx = client.ops.scale.forward(x, by=3.0)
    with client.capture() as graph:
        (grad,) = ctx.backward(one)
    ctx.free()
    one.write(floats(2, 2, 2))
    graph.replay()
    assert grad.numpy().tolist() == [6, 6, 6]


def test_what_the_block_makes_of_data_stays(client):
    x = client.zeros([3])
    with client.capture() as graph:
        y = client.tensor(floats(1, 2, 3))
        client.ops.add_to(x, y)
    graph.replay()
    assert x.numpy().tolist() == [2, 4, 6]


def test_data_for_tensors_that_are_there_is_refused(client):
    x = client.zeros([3])
    with pytest.raises(opd.errors.InvalidArgument, match="a replay would not write this again"):
        with client.capture():
            x.write(floats(1, 2, 3))
    x.write(floats(1, 2, 3))  # the capture is over
    with client.capture() as graph:
        client.ops.add_to(x, x.view(3).double_it())
    graph.replay()
    assert x.numpy().tolist() == [9, 18, 27]


def test_what_no_graph_can_be(client, daemon):
    with pytest.raises(opd.errors.InvalidArgument, match="nothing has run"):
        with client.capture():
            pass
    x = client.tensor(floats(1, 2, 3))
    with pytest.raises(opd.errors.InvalidArgument, match="is being captured already"):
        with client.capture():
            x.double_it()
            with client.capture():
                pass
    with pytest.raises(TypeError):
        with client.capture() as graph:
            x.double_it(3, 4, 5)
    with Raw(daemon.socket) as raw:
        assert raw.fail("replay", 3).code == "not_found"
        assert raw.fail("graph_end", 3).code == "not_found"
        raw.call("graph_begin", 3)
        assert "is being captured" in str(raw.fail("replay", 3))
        raw.call("free", "graph", [3])
        assert "never made, or freed" in str(raw.fail("graph_end", 3))


def test_an_edit_is_followed(client, daemon):
    x = client.tensor(floats(1, 2, 3))
    with client.capture() as graph:
        y = client.ops.double_it(x)
        fixed = client.ops.double_it(x, version=1)
    put_kernels(daemon.kernels, double_it=double_by(7))
    client.reload()
    graph.replay()
    assert y.numpy().tolist() == [7, 14, 21]
    assert fixed.numpy().tolist() == [2, 4, 6]
    client.rollback("double_it")
    graph.replay()
    assert y.numpy().tolist() == [2, 4, 6]


def test_an_edit_that_does_not_fit_leaves_the_graph_where_it_is(client, daemon):
    x = client.tensor(floats(1, 2, 3, 4))
    with client.capture() as graph:
        y = client.ops.double_it(x)
    longer = double_by(3).replace("y [...S]", "y [2, ...S]")
    put_kernels(daemon.kernels, double_it=longer)
    client.reload()
    with pytest.warns(opd.ReloadWarning, match="goes on with the version that it has"):
        graph.replay()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph.replay()
    assert y.numpy().tolist() == [2, 4, 6, 8]
    put_kernels(daemon.kernels, double_it=double_by(5))
    client.reload()
    graph.replay()
    assert y.numpy().tolist() == [5, 10, 15, 20]


def test_forward_and_backward_go_to_a_version_together(client, daemon):
    x, one = client.tensor(floats(1, 2, 3)), client.tensor(floats(1, 1, 1))
    with client.capture() as graph:
        y, ctx = client.ops.scale.forward(x)
        (grad,) = ctx.backward(one)
    assert grad.numpy().tolist() == [2, 2, 2]
    edited = SCALE.replace("FACTOR", "3.0f")
    put_kernels(daemon.kernels, scale=edited)
    client.reload()
    graph.replay()
    assert y.numpy().tolist() == [6, 12, 18] and grad.numpy().tolist() == [6, 6, 6]
    # What forward keeps for backward is laid out in another way.
    put_kernels(daemon.kernels, scale=edited.replace("3.0f", "5.0f").replace("noted float32 [", "noted float32 [2, "))
    client.reload()
    with pytest.warns(opd.ReloadWarning, match="scale: the graph goes on"):
        graph.replay()
    assert y.numpy().tolist() == [6, 12, 18] and grad.numpy().tolist() == [6, 6, 6]


def test_an_edit_that_fails_is_told(client, daemon):
    x = client.tensor(floats(1, 2, 3))
    with client.capture() as graph:
        y = client.ops.double_it(x)
    put_kernels(daemon.kernels, double_it=double_by("nonsense"))
    with pytest.warns(opd.ReloadWarning, match="nonsense"):
        client.reload()
    with pytest.warns(opd.ReloadWarning, match="the edit of .* is not served"):
        graph.replay()
    assert y.numpy().tolist() == [2, 4, 6]


def test_the_member_that_faults_is_named(client):
    x, bad = client.tensor(floats(1, 2, 3)), client.tensor(np.zeros(1, np.int32))
    total = client.zeros([3])
    with client.capture() as graph:
        y = client.ops.double_it(x)
        z = client.ops.faulty(y, bad)
        client.ops.add_to(total, z)
        w = client.ops.scale(z)
    bad.write(np.ones(1, np.int32))
    for options in {}, {"debug": True}:
        # What a GPU has run as one graph is told apart when it is replayed again.
        with pytest.raises(
            opd.errors.KernelFault,
            match="faulty version 1 forward, kernel faulty|one of 4 calls of a graph, faulty version 1 or",
        ):
            graph.replay(**options)
        assert total.suspect
        with pytest.raises(opd.errors.InvalidArgument, match="a tensor that the graph reads"):
            graph.replay()
        total.write(floats(1, 1, 1))
    bad.write(np.zeros(1, np.int32))
    graph.replay()
    assert total.numpy().tolist() == [3, 5, 7] and w.numpy().tolist() == [4, 8, 12]


def test_after_a_fault_calls_are_told_apart(client):
    x, bad = client.tensor(floats(1, 2, 3)), client.tensor(np.zeros(1, np.int32))
    total = client.zeros([3])
    with client.capture() as graph:
        z = client.ops.faulty(client.ops.double_it(x), bad)
        client.ops.add_to(total, z)
    for n in range(2, 6):  # as one launch, where a device can
        graph.replay()
        assert total.numpy().tolist() == [2 * n, 4 * n, 6 * n]
    bad.write(np.ones(1, np.int32))
    with pytest.raises(opd.errors.KernelFault, match="faulty version 1|one of 3 calls of a graph"):
        graph.replay()
    total.write(floats(0, 0, 0))
    with pytest.raises(opd.errors.KernelFault, match="faulty version 1 forward, kernel faulty"):
        graph.replay()
    total.write(floats(0, 0, 0))
    bad.write(np.zeros(1, np.int32))
    for n in range(1, 4):
        graph.replay()
        assert total.numpy().tolist() == [2 * n, 4 * n, 6 * n]


def test_many_graphs_and_edits_between(client, daemon):
    graphs = []
    for k in range(80):  # more than a device keeps as one launch
        x, total = client.tensor(floats(k, 1, 2)), client.zeros([3])
        with client.capture() as graph:
            client.ops.add_to(total, client.ops.scale(client.ops.double_it(x)))
        graphs.append((graph, total, k))
    for by in 2, 3, 5:
        put_kernels(daemon.kernels, double_it=double_by(by))
        client.reload()
        with client.batch():
            for graph, total, _ in graphs:
                for _ in range(3):
                    graph.replay()
    for _, total, k in graphs:  # scale doubles, too
        assert total.numpy().tolist() == [k * 64, 64, 128]


def test_a_check_of_a_member(client):
    table = client.tensor(np.arange(12, dtype=np.float32).reshape(4, 3))
    rows, more = client.tensor(np.array([1, 2])), client.tensor(np.array([3, 0]))
    with client.capture() as graph:
        a = client.ops.pick(table, rows)
        b = client.ops.pick(table, more)
    more.write(np.array([0, 9]))
    with pytest.raises(opd.errors.InvalidArgument, match="pick: row 1 of rows is not below 4"):
        graph.replay()
    more.write(np.array([2, 2]))
    graph.replay()
    graph.replay()
    assert b.numpy().tolist() == [[6, 7, 8]] * 2 and a.numpy()[0].tolist() == [3, 4, 5]


def test_a_deadline_is_of_all(client):
    x = client.tensor(floats(1))
    with client.capture() as graph:
        for _ in range(3):
            client.ops.spin(x, rounds=10)
    graph.replay(deadline=30)
    assert not graph.replay()
    with client.capture() as graph:
        client.ops.spin(x, rounds=40_000_000)
    with pytest.raises(opd.errors.DeadlineExceeded, match="spin version 1"):
        graph.replay(deadline=0.01)


def test_a_killed_executor_is_no_fault_of_the_graph(client, daemon):
    x = client.tensor(floats(1, 2, 3))
    with client.capture() as graph:
        y = client.ops.double_it(x)
    (executor,) = find_roles(daemon.pid, "executor")
    os.kill(executor, 9)
    graph.replay()
    assert y.numpy().tolist() == [2, 4, 6]


def test_an_upgrade_keeps_it(client, daemon):
    x = client.tensor(floats(1, 2, 3))
    with client.capture("kept") as graph:
        y, ctx = client.ops.scale.forward(x, by=3.0)
        (grad,) = ctx.backward(x)
        total = client.zeros([3])
        client.ops.add_to(total, grad)
    client.upgrade()
    x.write(floats(4, 5, 6))
    graph.replay()
    assert y.numpy().tolist() == [12, 15, 18] and grad.numpy().tolist() == [12, 15, 18]
    assert total.numpy().tolist() == [12, 15, 18]
    put_kernels(daemon.kernels, scale=SCALE.replace("FACTOR", "2.0f"))
    client.reload()
    client.upgrade()
    graph.replay()
    assert y.numpy().tolist() == [24, 30, 36]


def test_a_capture_goes_on_over_an_upgrade(client):
    x = client.tensor(floats(1, 2, 3))
    with client.capture() as graph:
        y = client.ops.double_it(x)
        client.upgrade()
        z = client.ops.double_it(y)
    x.write(floats(2, 2, 2))
    graph.replay()
    assert z.numpy().tolist() == [8, 8, 8]


def test_a_named_graph_is_everyones(client, daemon):
    x = client.tensor(floats(1, 2, 3), name="in")
    with opd.connect(daemon.socket, start=False) as first:
        y = first.zeros([3], name="out")
        mine = first.attach("in")
        with first.capture("step") as graph:
            first.ops.add_to(y, mine.double_it())
        with pytest.raises(opd.errors.InvalidArgument, match="'step' is there already"):
            with first.capture("step"):
                pass
    graph = client.attach_graph("step")
    with opd.connect(daemon.socket, start=False) as other:
        for _ in range(3):
            other.attach_graph("step").replay()
            graph.replay()
    assert client.attach("out").numpy().tolist() == [14, 28, 42]
    graph.free()
    with pytest.raises(opd.errors.NotFound, match="no graph named 'step'"):
        client.attach_graph("step")
    x.free()


def test_a_client_that_goes_leaves_no_half_a_graph(client, daemon):
    with Raw(daemon.socket) as raw:
        raw.call("graph_begin", 1, {"name": "half"})
        with pytest.raises(opd.errors.NotFound, match="it is being captured"):
            client.attach_graph("half")
    x = client.tensor(floats(1, 2, 3))

    def take_name():
        try:
            with client.capture("half"):
                x.double_it()
        except opd.errors.InvalidArgument:
            return False
        return True

    eventually(take_name)


def test_one_that_is_dropped_while_it_is_captured_gives_its_name_back(daemon):
    with Raw(daemon.socket) as raw:
        for _ in range(2):
            raw.call("graph_begin", 1, {"name": "half"})
            raw.call("free", "graph", [1], {"drop": True})
        assert raw.fail("graph_attach", 1, "half").code == "not_found"


def test_a_graph_that_is_too_long(client):
    x, y = client.zeros([3]), client.zeros([3])
    with pytest.raises(opd.errors.InvalidArgument, match="more calls than a graph may have"):
        with client.capture(), client.batch():
            for _ in range(4100):
                client.ops.add_to(x, y)
    with client.capture() as graph, client.batch():
        for _ in range(4000):
            client.ops.add_to(x, y)
    y.write(floats(1, 2, 3))
    graph.replay()
    assert x.numpy().tolist() == [4000, 8000, 12000]


def test_its_memory_goes_with_it(client):
    def used():
        return sum(d["memory_used"] for d in client.status()["devices"])

    x, before = client.zeros([1 << 16]), used()
    with client.capture() as graph:
        y = x.double_it().double_it().double_it()
    held = used()
    assert held >= before + 3 * (1 << 18)
    del y
    assert used() == held
    graph.free()
    eventually(lambda: used() == before)


def test_a_trace_tells_of_replays(client):
    x = client.tensor(floats(1, 2, 3))
    with client.capture() as graph:
        x.double_it().double_it()
    with client.trace() as runs:
        graph.replay()
        (run,) = eventually(lambda: runs.read())
    assert run["direction"] == "replay" and run["kernels"] == 2 and run["seconds"] > 0


@pytest.mark.unsanitized("Python cannot load a sanitizer's library")
def test_from_c(client, daemon):
    library = LibraryClient(daemon.socket)
    error = ctypes.byref(library.error)

    def ask(name, *args):
        function = getattr(library.lib, name)
        function.restype = ctypes.c_bool
        library.done(function(library.client, *args, error))

    def graph(name):
        return ctypes.c_int64({"mine": 40, "other": 41}[name])

    try:
        library.make(1, 1, 2, 3)
        ask("opd_graph_begin", graph("mine"), b"of c")
        library.forward("double_it", [1], [2])
        library.forward("scale", [2], [3], by=5.0)
        ask("opd_graph_end", graph("mine"))
        library.free(2)
        for n in range(1, 4):
            write = (ctypes.c_float * 3)(n, n, n)
            ask("opd_tensor_write", ctypes.c_int64(1), ctypes.c_uint64(0), write, ctypes.c_size_t(12))
            ask("opd_replay", graph("mine"), ctypes.c_double(5))
            assert library.read(3, 3) == [10 * n] * 3
        client.attach_graph("of c").replay()
        ask("opd_graph_attach", graph("other"), b"of c")
        ask("opd_graph_free", (ctypes.c_int64 * 1)(40), ctypes.c_size_t(1))
        ask("opd_replay", graph("other"), ctypes.c_double(0))
        with pytest.raises(OSError, match="no graph 40"):
            ask("opd_replay", graph("mine"), ctypes.c_double(0))
    finally:
        library.close()
