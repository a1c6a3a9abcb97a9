"""Operators of lists of tensors: `Tensor[]` in, in place and out."""

import os

import numpy as np
import pytest
from exported import export
from libopd import Client as LibraryClient
from lists import SHAPES, axpys, draw, put_all, same
from operators import put_kernels
from raw import Raw

import opd


@pytest.fixture(scope="module")
def daemon(start_shared, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lists")
    daemon = start_shared("--kernels", put_all(folder))
    daemon.kernels = folder
    return daemon


@pytest.fixture
def ops(client):
    return client.ops


@pytest.mark.parametrize("dtype", (np.float32, np.float64))
def test_in_place(client, ops, dtype):
    """More of them than a launch can carry, with empty ones and scalars, and with one that all share."""
    xs, ys = draw(500, dtype), draw(500, dtype)[::-1]
    ys = [y if y.shape == x.shape else np.ones(x.shape, dtype) for x, y in zip(xs, ys)]
    tensors = [client.tensor(y) for y in ys]
    assert ops.axpys(tensors, [client.tensor(x) for x in xs], a=0.5) is None
    same(tensors, [y + dtype(0.5) * x for x, y in zip(xs, ys)])
    ops.axpys(tensors, xs, dtype(3))  # arrays are sent; another plan, with a tensor that is no list
    same(tensors, [y + dtype(2.5) * x + 3 for x, y in zip(xs, ys)])


@pytest.mark.parametrize("n", (150, 260, 1300))
@pytest.mark.parametrize("debug", (False, True))
def test_all_alike(client, ops, n, debug):
    """What one launch has room for, and more; checked builds have fewer slots than launches bytes."""
    xs = [np.arange(k % 5 + 1, dtype=np.float32) + k for k in range(n)]
    tensors = [client.tensor(np.full_like(x, 7)) for x in xs]
    ops.axpys(tensors, xs, a=2, debug=debug)
    same(tensors, [7 + 2 * x for x in xs])


def test_results(client, ops):
    xs = draw()
    ys, signs = ops.scales(xs, np.float32(3))
    same(ys, [3 * x for x in xs])
    same(signs, [np.where(x < 0, -1, 1).astype(np.int32) for x in xs])
    many = [np.full(3, i, np.float32) for i in range(300)]
    same(ops.scales(many, np.float32(2))[0], [2 * x for x in many])
    assert ops.scales([], np.float32(1)) == ([], [])
    ops.axpys([], [])


def test_views_and_strides(client, ops):
    whole = client.tensor(np.arange(12, dtype=np.float32))
    parts = [whole.view([4], offset=0), whole.view([4], offset=4), whole.view([4], offset=8)]
    ops.axpys(parts, [np.ones(4, np.float32)] * 3)
    np.testing.assert_array_equal(whole.numpy(), np.arange(12, dtype=np.float32) + 2)
    ys, _ = ops.scales([whole.view([6], offset=0, strides=[2]), parts[1]], np.float32(1))
    np.testing.assert_array_equal(ys[0].numpy(), np.arange(0, 12, 2) + 2)
    np.testing.assert_array_equal(ys[1].numpy(), np.arange(4, 8) + 2)


def test_refused(client, ops):
    x, y, z = (client.zeros([n]) for n in (4, 5, 4))
    for call, message in (
        (lambda: ops.axpys([x, y], [z]), r"axpys: xs has 1 tensor, ys has 2; expected as many in each list"),
        (lambda: ops.axpys([x, y], [z, client.zeros([6])]), r"axpys: at \[1\]: xs is \[6\], expected"),
        (lambda: ops.axpys([x, z, y, client.zeros([4], dtype="float64")], [x] * 4),
         r"axpys: ys\[3\] has dtype float64, ys\[0\] has float32; expected one dtype"),
        (lambda: ops.axpys([x, y, x], [z, y, z]),
         r"axpys: ys\[0\] and ys\[2\] are changed in place and share memory; expected a tensor for each"),
        (lambda: ops.axpys([x, x.view([2], offset=1)], [z, z.view([2], offset=0)]),
         r"axpys: ys\[0\] and ys\[1\] are changed in place"),
        (lambda: ops.scales([x], client.zeros([2])), "scales: at .0.: by has rank 1"),
        (lambda: ops.axpys.forward([x], [z]), "axpys has no backward"),
        (lambda: ops.axpys([x], [client.zeros([4], dtype="float64")]),
         r"axpys: at \[0\]: xs is float64, ys is float32; expected the same dtype"),
    ):
        with pytest.raises(opd.InvalidArgument, match=message):
            call()
    freed = client.zeros([4])
    freed.free()
    with pytest.raises(opd.NotFound, match=r"axpys: xs\[1\] was freed"):
        ops.axpys([x, z], [x, freed])
    with pytest.raises(opd.InvalidArgument, match=r"axpys: ys is an array of 4097, expected an array of at most 4096"):
        ops.axpys([x] * 4097, [x] * 4097)
    for value in (x, 5, [x, None], {"a": x}):
        with pytest.raises(TypeError, match=r"axpys\(\) argument 'ys' must be a list of tensors"):
            ops.axpys(value, [z, z])
    assert not x.numpy().any() and not y.numpy().any()


def test_wire(daemon, client, ops):
    with Raw(daemon.socket) as raw:
        raw.call("hello", "test", {})
        for id in (1, 2, 3):
            raw.make(id, "float32", [2], np.full(2, id, np.float32).tobytes())
        raw.make(4, "float32", [], np.float32(2).tobytes())
        reply = raw.call("forward", "scales", [[1, 2], 4], {}, [[10, 11], [12, 13]], {})
        assert [[t["id"] for t in ts] for ts in reply["outputs"]] == [[10, 11], [12, 13]]
        assert reply["outputs"][0][0]["shape"] == [2]
        # Into tensors that are there.
        raw.call("forward", "scales", [[1, 2], 4], {}, [None, [14, 15]], {"into": [[3, 10], None]})
        assert raw.call("tensor_read", 3, 0, 8) == np.full(2, 2, np.float32).tobytes()
        plan = raw.call("plan", "scales", [[["float32", [2]], ["float32", [3]]], ["float32", []]], {}, {})
        assert plan["outputs"] == [[["float32", [2]], ["float32", [3]]], [["int32", [2]], ["int32", [3]]]]
        for params, message in (
            (("scales", [1, 4], {}, [[20], [21]], {}), "scales: xs is an integer of 0, expected an array"),
            (("scales", [[1, None], 4], {}, [[20, 21], [22, 23]], {}), "scales: xs[1] is nil, expected a tensor"),
            (("scales", [[1, 99], 4], {}, [[20, 21], [22, 23]], {}), "scales: xs[1]: this connection has no tensor 99"),
            (("scales", [[1, 2], 4], {}, [[20], [22, 23]], {}), "what takes ys is an array of 1, expected an array of 2"),
            (("scales", [[1, 2], 4], {}, [20, 21], {}), "what takes ys is an integer of 0, expected an array of 2"),
            (("scales", [[1, 2], 4], {}, [[20, 20], [22, 23]], {}), "id 20 is given to two results"),
            (("scales", [[1, 2], 4], {}, [None, [22, 23]], {"into": [[3, 3], None]}),
             "lies in the memory of another result"),
            (("scales", [[1, 2], 4], {}, [None, [22, 23]], {"into": [[3, 1], None]}),
             "the tensor for ys[1] lies in the memory of xs[0]"),
            (("scales", [[1, 2], 4], {}, [[20, 21], [22, "a"]], {}), "id 1[1] for a result is a string, expected"),
            (("scales", [[1, 2], 4], {}, [[20, 21], [22, 20]], {}), "id 20 is given to two results"),
        ):
            assert message in str(raw.fail("forward", *params))


def test_prepared(daemon):
    """A call takes the ids of each list as an array; it is held against what was prepared."""
    with Raw(daemon.socket) as raw:
        raw.call("hello", "test", {})
        for i, shape in enumerate(([2], [3], [], [2])):
            raw.make(1 + i, "float32", shape, np.full(shape, 1 + i, np.float32).tobytes())
        described = [[["float32", [2]], ["float32", [3]]], ["float32", []]]
        told = raw.call("prepare", 7, "forward", "scales", described, {}, {})
        assert told["outputs"] == [[["float32", [2]], ["float32", [3]]], [["int32", [2]], ["int32", [3]]]]
        told = raw.call("call", 7, [[1, 2], 3, [20, 21], [22, 23]])
        assert told["version"] == 1
        assert raw.call("tensor_read", 21, 0, 12) == np.full(3, 6, np.float32).tobytes()
        raw.call("call", 7, [[4, 2], 3, [20, 21], [22, 23]])  # into those
        assert raw.call("tensor_read", 20, 0, 8) == np.full(2, 12, np.float32).tobytes()
        for ids, message, misfit in (
            ([1, 3, [20, 21], [22, 23]], "what is xs is an integer of 0, expected an array of 2 ids", True),
            ([[1], 3, [20, 21], [22, 23]], "what is xs is an array of 1, expected an array of 2 ids", True),
            ([[1, None], 3, [20, 21], [22, 23]], "scales: xs[1] is nil, expected a tensor", True),
            ([[2, 2], 3, [20, 21], [22, 23]], "xs[0] is float32 [3], expected float32 [2] as what was prepared", True),
            ([[1, 2], 3, [30], [22, 23]], "what takes ys is an array of 1, expected an array of 2", False),
            ([[1, 2], 3, [30, 30], [22, 23]], "id 30 is given to two results", False),
            ([[1, 2], 3, [1, 21], [22, 23]], "the tensor for ys[0] lies in the memory of xs[0]", False),
            ([[1, 2], 3, [20, 21]], "3 ids came, expected 4", False),
        ):
            error = raw.fail("call", 7, ids)
            assert message in str(error) and bool(error.misfit) == misfit, (ids, str(error))
        error = raw.fail("prepare", 8, "vjp", "glus", [[["float32", [2]]], [["float32", [2]]], ["float32", []]], {}, {})
        assert "which go into no request for a prepared vjp; use vjp" in str(error)


def test_calls_that_come_again_are_prepared(daemon):
    """In place, with results, with a context; an edit is followed."""
    def count():
        requests = client._conn.call("status")["requests"]
        return [requests.get(name, 0) for name in ("forward", "prepare", "call")]

    def ask(run, times):
        before = count()
        for _ in range(times):
            run()
        forward, prepare, call = (b - a for a, b in zip(before, count()))
        assert forward + call == times
        return prepare, call

    with daemon.connect() as client:
        xs = draw()
        tensors, by = [client.tensor(x) for x in xs], client.tensor(np.float32(3))
        made = []
        run = lambda: made.append(client.ops.scales(tensors, by))  # noqa: E731
        assert ask(run, 6)[0] == 1 and ask(run, 6) == (0, 6)
        for ys, signs in made:
            same(ys, [3 * x for x in xs])
            same(signs, [np.where(x < 0, -1, 1).astype(np.int32) for x in xs])
        with client.batch():
            ys, _ = client.ops.scales(tensors, by)
        same(ys, [3 * x for x in xs])
        assert ask(lambda: client.ops.scales(tensors[:2], by), 1) == (0, 0)  # another length is another call
        ys = [client.tensor(np.zeros_like(x)) for x in xs]
        assert ask(lambda: client.ops.axpys(ys, tensors, a=1.0), 6)[0] == 1
        same(ys, [6 * x for x in xs])
        contexts = []
        run = lambda: contexts.append(client.ops.glus.forward(tensors[:2], tensors[:2], by)[1])  # noqa: E731
        assert ask(run, 6)[0] == 1
        grads = [[np.asarray(g.numpy()) for g in c.backward(xs[:2], None)[0]] for c in contexts]
        assert all((a == b).all() for one in grads[1:] for a, b in zip(grads[0], one))
        tensors[0].free()
        with pytest.raises(opd.NotFound, match=r"scales: xs\[0\]|was freed"):
            client.ops.scales(tensors, by)


def test_exported(daemon):
    """Each tensor of a list is an operand, by its place."""
    with Raw(daemon.socket) as raw:
        raw.call("hello", "test", {})
        described = [[["float32", [2]], ["float32", [3]]], ["float32", []]]
        _, plan, fd = export(raw, "scales", "forward", described)
        os.close(fd)
        found = sorted((o.kind, o.index % 256, o.index // 256, o.dtype, o.shape) for o in plan.operands)
        given = [("input", 0, 0, "float32", [2]), ("input", 0, 1, "float32", [3]), ("input", 1, 0, "float32", [])]
        made = [("output", o, k, dtype, [2 + k]) for o, dtype in enumerate(("float32", "int32")) for k in (0, 1)]
        assert found == given + made
        described = [[["float64", [2, 3]], ["float64", [1, 3]]], ["float64", [3]]]
        _, plan, fd = export(raw, "dots", "backward", described, wanted=[True, False], grad_absent=[False, True])
        os.close(fd)
        assert [(o.index, o.shape) for o in plan.operands if o.kind == "grad_input"] == [(0, [2, 3]), (256, [1, 3])]


@pytest.mark.unsanitized("Python cannot load a sanitizer's library")
def test_c_client(daemon, client):
    c = LibraryClient(daemon.socket)
    try:
        for id in (1, 2, 3, 4):
            c.make(id, *[float(id)] * id)
        c.forward("axpys", [1, 2, 1, 2], [], lengths=([2, 2], []), a=1.0)
        assert c.read(1, 1) == [2] and c.read(2, 2) == [4, 4]
        count = lambda: client._conn.call("status")["requests"].get("call", 0)  # noqa: E731
        before = count()
        for k in range(6):  # prepared with the second
            c.forward("axpys", [1, 2, 1, 2], [], lengths=([2, 2], []), a=0.0)
        c.call("tensor_new", [5, "float32", []])
        told = c.forward("scales", [3, 4, 5], [10, 11, 12, 13], lengths=([2, -1], [2, 2]))
        assert [(id, shape, dtype) for id, dtype, shape, _, _ in told] == [
            (10, [3], b"float32"), (11, [4], b"float32"), (12, [3], b"int32"), (13, [4], b"int32")]  # fmt: skip
        assert c.read(11, 4) == [0] * 4
        c.make(7, 2.0)
        c.view(8, 7, 0, [], [])
        for k in range(40, 80, 4):
            again = c.forward("scales", [3, 4, 8], list(range(k, k + 4)), lengths=([2, -1], [2, 2]))
            assert [t[1:3] for t in again] == [t[1:3] for t in told] and again[3][0] == k + 3
        assert c.read(77, 4) == [8] * 4
        assert count() - before >= 5 + 9
        assert [t for t in c.forward("scales", [5], [], lengths=([0, -1], [0, 0]))] == []
        with pytest.raises(OSError, match="3 ids of inputs, and their lengths do not add up to that"):
            c.forward("axpys", [1, 2, 1], [], lengths=([2, 2], []))
        c.make(6, 1.0, 2.0)
        c.forward("glus", [1, 2, 1, 2, 5], [20, 21, 22, 23], 1, ([2, 2, -1], [2, 2]))
        told = c.backward(1, [0, 1, 2], [30, 31, 0, 32, 0], ([-1, 2], [2, -1, -1, -1]))
        assert told == [(30, [1]), (31, [2]), (0, []), (32, []), (0, [])]
        with pytest.raises(OSError, match="1 id of gradients, and their lengths do not add up to that"):
            c.backward(1, [0], [30], ([-1, 2], [1]))
    finally:
        c.close()


def test_graph(client, ops, daemon):
    """Captured, replayed, and replayed by what an edit has made of the operator."""
    xs, ys = draw(), [np.ones(s, np.float32) for s in SHAPES]
    given, tensors = [client.tensor(x) for x in xs], [client.tensor(y) for y in ys]
    with client.capture() as graph:
        ops.axpys(tensors, given)
        ops.axpys(tensors, given, a=1.0)
    same(tensors, [y + 3 * x for x, y in zip(xs, ys)])
    graph.replay()
    same(tensors, [y + 6 * x for x, y in zip(xs, ys)])
    put_kernels(daemon.kernels, axpys=axpys(factor=2))
    client.reload()
    for t, y in zip(tensors, ys):
        t.write(y)
    graph.replay()
    same(tensors, [2 * (2 * (y + 2 * x) + x) for x, y in zip(xs, ys)])
    put_kernels(daemon.kernels, axpys=axpys())
    client.reload()


def test_upgrade(client, ops):
    """A graph of lists goes over an upgrade."""
    xs = draw()
    given, tensors = [client.tensor(x) for x in xs], [client.zeros(list(s)) for s in SHAPES]
    with client.capture() as graph:
        ops.axpys(tensors, given)
    client.upgrade()
    graph.replay()
    same(tensors, [4 * x for x in xs])


def test_fault(client):
    """It is blamed by name, and what it was writing is suspect; so is a list with one of these."""
    xs = [client.zeros([n]) for n in (4, 5)]
    client.ops.faults(xs, np.zeros(1, np.int32))
    same(xs, [np.ones(4, np.float32), np.ones(5, np.float32)])
    with pytest.raises(opd.KernelFault, match=r"faults version \d+ forward, kernel fault \(xs\[0\] float32 \[4\], bad"):
        client.ops.faults(xs, np.ones(1, np.int32))
    with pytest.raises(opd.OpdError, match=r"axpys: ys\[0\] is suspect"):
        client.ops.axpys(xs, [np.ones(4, np.float32), np.ones(5, np.float32)])


@pytest.mark.unsanitized("a sanitizer keeps what is freed")
def test_plans_are_not_kept_for_good(daemon):
    lists = [[["float32", [3]]] * 2000] * 2
    sizes = []
    with Raw(daemon.socket) as raw:
        raw.call("hello", "test", {})
        for step in range(120):
            lists[0][0][1][0] = step  # of the others, too
            raw.call("plan", "axpys", lists, {}, {})
            if step in (30, 119):
                status = open(f"/proc/{daemon.pid}/status").read()
                sizes.append(int(status.split("VmRSS:")[1].split()[0]))
    assert sizes[1] < sizes[0] + 100_000  # KiB; where all are kept it is four times as much


@pytest.mark.parametrize("held", (False, True))
def test_other_numbers(client, ops, held):
    """Each call has its own, also where the plan of the one before is held by a graph."""
    xs, ys = draw(300), [np.ones(SHAPES[i % len(SHAPES)], np.float32) for i in range(300)]
    tensors, given, graphs = [client.tensor(y) for y in ys], [client.tensor(x) for x in xs], []
    for a in (1.0, -2.0, 4.0, 1.0):
        if held:
            with client.capture() as graph:
                ops.axpys(tensors, given, a=a)
            graphs.append(graph)
        else:
            ops.axpys(tensors, given, a=a)
    same(tensors, [y + 4 * x for x, y in zip(xs, ys)])
    for graph in graphs[:2]:
        graph.replay()
    same(tensors, [y + (3 if held else 4) * x for x, y in zip(xs, ys)])


def test_described(client, ops):
    assert str(ops.scales.__signature__).startswith("(xs: 'Sequence[Tensor]', by: 'Tensor', *,")
    assert "tuple[list[Tensor], list[Tensor]]" in str(ops.scales.__signature__)
    assert ops.axpys.schema.startswith("axpys(Tensor(a!)[] ys, Tensor[] xs,")
