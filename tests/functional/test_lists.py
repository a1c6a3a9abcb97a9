"""Operators of lists of tensors: `Tensor[]` in, in place and out."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from conftest import PROGRAM
from exported import export
from operators import put_kernels
from raw import SANITIZED, Raw
from test_libopd_prepared import Client as LibraryClient

import opd

OPCTL = Path(PROGRAM).parent / "opctl"
# By formulas, which become few launches; by a kernel, one for each tensor.
AXPYS = """
//! op      axpys(Tensor(a!)[] ys, Tensor[] xs, Tensor? b=None, *, float a=2.0) -> ()
//! dtypes  float32 float64
//! formula ys = FACTOR * (ys + a * xs + (present(b) ? b : 0))
//! example ys=[[4],[5,6]] xs=[[4],[5,6]]
"""
SCALES = """
//! op      scales(Tensor[] xs, Tensor by) -> (Tensor[] ys, Tensor[] signs)
//! dtypes  float32
//! type    int32 : signs
//! shape   xs ys signs [...S]
//! shape   by []
//! strided xs
//! example xs=[[4],[5,6],[0]] by=[]
//! forward
//!   kernel scale threads numel(xs)
//!     bind n = numel(xs)
//!     bind step = rank(xs) == 1 ? stride(xs, 0) : 1
__global__ void scale(const float *xs, const float *by, float *ys, int *signs, int64_t n, int64_t step)
{
    CUDA_KERNEL_LOOP(i, n) {
        ys[i] = xs[i * step] * by[0];
        signs[i] = xs[i * step] < 0 ? -1 : 1;
    }
}
"""
GLUS, DOTS = ((Path(__file__).parent.parent / "torch" / "kernels" / name).read_text() for name in ("glus.cu", "dots.cu"))
FAULTS = """
//! op      faults(Tensor(a!)[] xs, Tensor bad) -> ()
//! dtypes  float32
//! type    int32 : bad
//! shape   xs [N]
//! shape   bad [1]
//! forward
//!   kernel fault grid 1 block 1
__global__ void fault(float *xs, const int *bad, int64_t N)
{
    for (int64_t i = 0; i < N; i++)
        xs[i] = bad[0] ? *(volatile const float *)(8ULL + i) : xs[i] + 1;
}
"""
SHAPES = [(4,), (5, 6), (0,), (1000, 33), (), (3, 1, 2)]


def axpys(factor=1):
    return AXPYS.replace("FACTOR", str(factor))


@pytest.fixture(scope="module")
def daemon(start_shared, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lists")
    put_kernels(folder, axpys=axpys(), scales=SCALES, faults=FAULTS, glus=GLUS, dots=DOTS)
    daemon = start_shared("--kernels", str(folder))
    daemon.kernels = folder
    return daemon


@pytest.fixture
def ops(client):
    return client.ops


def draw(n=None, dtype=np.float32):
    rng = np.random.default_rng(5)
    shapes = SHAPES if n is None else [SHAPES[i % len(SHAPES)] for i in range(n)]
    return [rng.integers(-9, 10, shape).astype(dtype) for shape in shapes]  # all is exact


def same(tensors, arrays):
    assert len(tensors) == len(arrays)
    for t, a in zip(tensors, arrays):
        assert t.shape == a.shape
        np.testing.assert_array_equal(t.numpy(), a)


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


@pytest.mark.skipif(SANITIZED, reason="Python cannot load a sanitizer's library")
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


@pytest.mark.skipif(SANITIZED, reason="a sanitizer keeps what is freed")
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


def draw_dots(sizes=(4, 5, 0, 7)):
    rng = np.random.default_rng(1)
    xs = [rng.standard_normal((n, 3)) for n in sizes]
    return xs, rng.standard_normal(3), [rng.standard_normal(n) for n in sizes]


def pull_dots(xs, w, grads):
    return [np.outer(g, w) for g in grads], sum(g @ x for g, x in zip(grads, xs))


def near(found, expected):
    assert len(found) == len(expected)
    for f, e in zip(found, expected):
        np.testing.assert_allclose(f.numpy(), e, atol=1e-12)


@pytest.mark.parametrize("wanted", (None, "xs", "w"))
def test_gradients_of_kernels(client, ops, wanted):
    xs, w, grads = draw_dots()
    (ys, _), context = ops.dots.forward(xs, w)
    near(ys, [x @ w for x in xs])
    expected = pull_dots(xs, w, grads)
    for _ in range(2):
        grad_xs, grad_w = context.backward(grads, None, wanted=wanted)
        assert (grad_xs is None) == (wanted == "w") and (grad_w is None) == (wanted == "xs")
        if grad_xs is not None:
            near(grad_xs, expected[0])
        if grad_w is not None:
            near([grad_w], [expected[1]])
    grad_xs, grad_w = context.backward(None, None)
    assert not grad_w.numpy().any() and not any(g.numpy().any() for g in grad_xs)
    _, context = ops.dots.forward([], w)
    grad_xs, grad_w = context.backward([], None)
    assert grad_xs == [] and grad_w.shape == (3,) and not grad_w.numpy().any()


def unbroadcast(array, shape):
    array = array.sum(tuple(range(array.ndim - len(shape))))
    return array.sum(tuple(i for i, n in enumerate(shape) if n == 1 and array.shape[i] != 1), keepdims=True)


@pytest.mark.parametrize("n", (1, 6, 270))
@pytest.mark.parametrize("with_b", (False, True))
def test_gradients_of_formulas(client, ops, n, with_b):
    """Of lists, of what is repeated in one place, and of what all places share: more than a launch joins."""
    rng = np.random.default_rng(n)
    shapes = [((3, 4), (3, 1)), ((4,), (3, 4)), ((2, 3, 1), (1, 3, 4))]
    xs, gates = ([rng.standard_normal(shapes[i % 3][k]) for i in range(n)] for k in (0, 1))
    by, b = rng.standard_normal(4), rng.standard_normal((3, 1)) if with_b else None
    (ys, zs), context = ops.glus.forward(xs, gates, by, b)
    square = 0.0 if b is None else b
    near(ys, [x * np.tanh(g) * by + square * x * x for x, g in zip(xs, gates)])
    gys, gzs = ([rng.standard_normal(y.shape) for y in ys] for _ in range(2))
    for given in ((gys, gzs), (gys, None), (None, gzs)):
        grad_xs, grad_gates, grad_by, grad_b = context.backward(*given)
        each = [given[0] or [0.0] * n, given[1] or [0.0] * n]
        rest = list(zip(xs, gates, [np.tanh(g) for g in gates], *each, [np.zeros(y.shape) for y in ys]))
        near(grad_xs, [unbroadcast(o + gy * (t * by + 2 * square * x) + gz * 2 * np.exp(by), x.shape)
                       for x, _, t, gy, gz, o in rest])  # fmt: skip
        near(grad_gates, [unbroadcast(o + gy * x * by * (1 - t * t), g.shape) for x, g, t, gy, _, o in rest])
        near([grad_by], [sum(unbroadcast(o + gy * x * t + gz * 2 * x * np.exp(by), (4,)) for x, _, t, gy, gz, o in rest)])
        assert (grad_b is None) == (b is None)
        if b is not None:
            near([grad_b], [sum(unbroadcast(o + gy * x * x, (3, 1)) for x, _, _, gy, _, o in rest)])


def test_gradients_of_half(client, ops):
    xs, by = [np.full((5, 5), 0.5, np.float16)] * 100, np.float16(0)
    (_, zs), context = ops.glus.forward(xs, xs, by)
    _, _, grad_by, _ = context.backward(None, [np.ones((5, 5), np.float16)] * 100)
    assert grad_by.dtype == "float16" and grad_by.numpy() == 2500


def test_gradients_refused(client, ops):
    xs, w, grads = draw_dots((4, 5))
    tensors = [client.tensor(x) for x in xs]
    _, context = ops.dots.forward(tensors, w)
    for given in (grads[:1], [grads[0], None], grads[0]):
        with pytest.raises(TypeError, match=r"dots backward\(\) takes a list of 2 gradients for ys, or None"):
            context.backward(given, None)
    with pytest.raises(opd.InvalidArgument, match=r"grad_ys\[1\] is float64 \[4\], expected float64 \[5\] as the output"):
        context.backward([grads[0], grads[0]], None)
    tensors[1].write(xs[1])
    with pytest.raises(opd.InvalidArgument, match=r"dots: xs\[1\] was written after forward"):
        context.backward(grads, None)
    saved = DOTS.replace("//! forward", "//! saved more int32 [N]\n//! forward").replace("*signs,", "*signs, int *more,")
    for text, said in (
        (saved.replace("signs[i] =", "more[i] = signs[i] ="), "'saved' beside lists of tensors"),
        (GLUS.replace("tanh(gates)", "sum(gates, -1)"), "sums over rows beside lists of tensors"),
    ):
        with pytest.raises(opd.OpdError, match=said):
            client.load(text)


def test_gradients_on_the_wire(daemon):
    """By a context, by vjp, and into tensors that are there."""
    xs, w, grads = draw_dots((2, 1))
    with Raw(daemon.socket) as raw:
        raw.call("hello", "test", {})
        for id, array in zip((1, 2, 3, 4, 5, 6), (*xs, w, *grads, np.zeros((2, 3)))):
            raw.make(id, "float64", list(array.shape), array.tobytes())
        raw.make(7, "float64", [1, 3], bytes(24))
        expected = pull_dots(xs, w, grads)
        raw.call("forward", "dots", [[1, 2], 3], {}, [[10, 11], [12, 13]], {"context": 1})
        made = raw.call("backward", 1, [[4, 5], None], [[20, 21], None], {})
        assert [t["id"] for t in made[0]] == [20, 21] and made[1] is None
        for options, read in (({}, (31, 32, 33)), ({"into": [[6, 7], 33]}, (6, 7, 33))):
            ids = [None, None] if options else [[31, 32], 33]
            raw.call("vjp", "dots", [[1, 2], 3], [None, None], [], [[4, 5], None], {}, ids, options)
            for id, e in zip(read, (*expected[0], expected[1])):
                np.testing.assert_allclose(np.frombuffer(raw.call("tensor_read", id, 0, e.nbytes)), e.ravel())
        described = {"inputs": [[["float64", [2, 3]], ["float64", [1, 3]]], None]}
        raw.call("vjp", "dots", [None, 3], [], [], [[4, 5], None], {}, [[41, 42], None], described)
        for params, message in (
            ((1, [[4], None], [[50, 51], None], {}), "what is grad_ys is an array of 1, expected an array of 2 ids"),
            ((1, [4, None], [[50, 51], None], {}), "what is grad_ys is an integer of 0, expected an array of 2"),
            ((1, [[4, None], None], [[50, 51], None], {}), "grad_ys[1] is nil, expected a tensor"),
            ((1, [[4, 5], None], [[50], None], {}), "what takes grad_xs is an array of 1, expected an array of 2"),
            ((1, [[4, 5], None], [[50, 50], None], {}), "id 50 is given to two results"),
            ((1, [[4, 5], None], [None, None], {"into": [[6, 6], None]}), "grad_xs[1] is float64 [2, 3], expected float64"),
        ):
            assert message in str(raw.fail("backward", *params))


def test_gradients_go_over_an_upgrade(client, ops):
    """Those of contexts."""
    xs, w, grads = draw_dots()
    _, context = ops.dots.forward(xs, w)
    gate, by = [client.tensor(x) for x in xs], client.tensor(w)
    given = [client.tensor(np.ones_like(x)) for x in xs]
    (_, _), of_formulas = ops.glus.forward(gate, gate, by)
    before = of_formulas.backward(given, None)
    client.upgrade()
    grad_xs, grad_w = context.backward(grads, None)
    near([*grad_xs, grad_w], [*pull_dots(xs, w, grads)[0], pull_dots(xs, w, grads)[1]])
    near([*of_formulas.backward(given, None)[0]], [g.numpy() for g in before[0]])


@pytest.mark.parametrize("wrong", (False, True))
def test_gradients_are_proved(tmp_path, wrong):
    text = DOTS.replace("* w[i % C]", "* w[i % C] * (N == 5 ? 2 : 1)") if wrong else DOTS
    for name, source in (("dots", text), ("glus", GLUS)):
        (tmp_path / f"{name}.cu").write_text(source)
    done = {n: subprocess.run([OPCTL, "check", "--grad", tmp_path / f"{n}.cu"], capture_output=True, text=True)
            for n in ("dots", "glus")}  # fmt: skip
    assert done["glus"].returncode == 0, done["glus"].stdout
    assert done["dots"].returncode == int(wrong)
    assert not wrong or "dots: grad_xs[1][0, 0] is" in done["dots"].stdout


def test_described(client, ops):
    assert str(ops.scales.__signature__).startswith("(xs: 'Sequence[Tensor]', by: 'Tensor', *,")
    assert "tuple[list[Tensor], list[Tensor]]" in str(ops.scales.__signature__)
    assert ops.axpys.schema.startswith("axpys(Tensor(a!)[] ys, Tensor[] xs,")


# Kernels that take a table of tensors and of chunks, as those of multi_tensor_apply do.
TABLE = """
constexpr int room[3] = {4, 3, 2}, blocks = 2 * room[0];
#define DEPTH 2
template <int n> struct Table {
    void *addresses[n][room[n - 1]];
    const void *single[room[n - 1]];
    SIZE_T sizes[room[n - 1]];
    unsigned char block_to_tensor[blocks];
    int block_to_chunk[blocks];
    int start_tensor_this_launch;
};
enum Mode : int { SUB, ADD };
template <typename T> struct Step {
    __device__ void operator()(int size, volatile int *count, Table<DEPTH> &t, float by, Mode mode, float *first)
    {
        int at = t.block_to_tensor[blockIdx.x], chunk = t.block_to_chunk[blockIdx.x];
        int64_t n = t.sizes[at] - int64_t(chunk) * size;
        T *out = (T *)t.addresses[0][at] + int64_t(chunk) * size;
        const T *x = (const T *)t.addresses[1][at] + int64_t(chunk) * size;
        const T *scale = (const T *)t.single[at];
        if (threadIdx.x == 0) {
            atomicAdd((int *)count, 1);
            if (chunk == 0) // told of places among all
                atomicAdd(first, float(t.start_tensor_this_launch + at));
        }
        for (int i = threadIdx.x; i < size && i < n; i += blockDim.x)
            out[i] += (mode == ADD ? by : -by) * x[i] * (scale ? *scale : T(1));
    }
};
template <typename T, typename F, typename... Args>
__global__ void apply(int chunk_size, volatile int *count, T tl, F f, Args... args)
{
    f(chunk_size, count, tl, args...);
}
"""
CHUNKS = """
//! op      chunks(Tensor(a!)[] ys, Tensor[] xs, Tensor[]? scales=None, *, float by=2.0, int mode=1) \\
//!           -> (Tensor count, Tensor places)
//! dtypes  float32 float64
//! type    int32 : count
//! type    float32 : places
//! shape   ys xs [...S]
//! shape   scales []
//! shape   count places []
//! example ys=[[4],[25]] xs=[[4],[25]]
//! forward
//!   kernel apply<Table<DEPTH>, Step<scalar_t>, float, Mode, float *> chunks ys xs scales by 10 block 4
//!     bind args = by, mode, places
"""


@pytest.mark.parametrize("size", ("int", "int64_t"))
def test_chunks(client, daemon, size):
    put_kernels(daemon.kernels, chunks=CHUNKS + TABLE.replace("SIZE_T", size))
    client.reload()
    rng = np.random.default_rng(2)
    for sizes in [(7,), (10, 0, 11), (95, 3, 0, 20, 1, 1, 1, 1, 40), (0, 0), ()]:
        ys, xs = ([rng.integers(-9, 10, n).astype(np.float32) for n in sizes] for _ in range(2))
        tensors = [client.tensor(y) for y in ys]
        if not sizes:
            with pytest.raises(opd.OpdError, match="the lists are empty, expected a tensor to make count of"):
                client.ops.chunks(tensors, xs)
            continue
        for mode, scales, by in ((1, None, 3), (0, [np.float32(k) for k in range(len(sizes))], 2)):
            count, places = client.ops.chunks(tensors, xs, scales, by=by, mode=mode)
            assert count.numpy() == sum(-(-n // 10) for n in sizes)
            assert places.numpy() == sum(k for k, n in enumerate(sizes) if n)
            ys = [y + (by if mode else -by) * x * (scales[k] if scales else 1) for k, (y, x) in enumerate(zip(ys, xs))]
            same(tensors, ys)


@pytest.mark.parametrize(
    "old, new, said",
    [
        ("xs scales by 10", "xs by 10", "'tl', which has addresses of 3 lists, but 'chunks' names 2"),
        ("by 10", "over 10", "'over' is not defined here"),
        ("by 10", "block 10", "expected another list, or 'by' and the elements of a block, got 'block'"),
        ("ys xs scales by", "ys xs count by", "'count' is a single tensor, expected a Tensor[]"),
        ("block 4", "grid 4", "'grid' and 'chunks' for one kernel, expected one of them"),
        ("chunks ys", "threads 4 chunks ys", "'chunks' beside 'threads', expected one of them for a kernel"),
        ("by, mode, places", "by", "'args[0]', which names no tensor"),
        ("by, mode, places", "by, mode, places, by", "bind of 'args[3]', which is no parameter"),
        ("by, mode, places", "by, mode, ys", "'args[2]', a list of tensors, of which"),
        ("by, mode, places", "by, mode, by", "'args[2]', a pointer, but 'by' is a number, expected a tensor"),
        ("float *>", "const float *>", "no kernel of this section writes places"),
        ("int block_to_chunk[blocks]", "int block_to_chunk[4]", "whose arrays of tensors, or of blocks, are not"),
        ("SIZE_T sizes", "float sizes", "in which 'chunks' fills 'tl.sizes' of type 'float', expected an array of int"),
        ("room[n - 1]];\n    const", "room[n]];\n    const", "whose arrays of tensors"),
        ("blocks = 2 *", "blocks = -2 *", "expected a number from 1 to"),
        ("int block_to_chunk[blocks];", "", "'tl', which has no array 'block_to_chunk', expected one beside the add"),
        ("Table<DEPTH>, Step<scalar_t>, float, Mode, float *>",
         "int, Step<scalar_t>, float, Mode, float *> bind tl = 1",
         "'chunks', but kernel 'apply' takes no struct with arrays of addresses, block_to"),
        ("T tl, F f, Args... args)", "T tl, T other, F f, Args... args)", "takes more than one struct with arrays of"),
    ],
)
def test_mistakes_of_chunks(client, old, new, said):
    text = CHUNKS + TABLE
    assert old in text
    told = client._link.ask("check", "chunks.cu", "/", text.replace(old, new).replace("SIZE_T", "int"), {})
    assert said in told["errors"][0]["message"]


def test_chunks_that_do_not_plan(client):
    for old, new, said in (
        ("by 10", "by mode", "kernel apply: chunks of 0 elements, expected at least 1"),
        ("block 4", "block 4 when numel(ys) > 9", "kernel apply: its condition holds at some places of the lists only"),
        ("block 4", "block 4 when numel(ys) < 9", "kernel apply: its condition holds at some places of the lists only"),
        ("block 4", "block numel(ys)", "kernel apply: block, shared or template arguments differ between places"),
        ("args = by", "args = numel(ys)", r"kernel apply: 'args\[0\]' differs between \[0\] and \[1\] of the lists"),
        ("SIZE_T", "unsigned char", "kernel apply: 'tl.sizes' has elements of type unsigned char, 300 does not fit"),
        ("shape   ys xs [...S]", "shape ys [N]\n//! shape xs [M]", "at .1.: xs has 25 elements, ys has 300; expected"),
    ):
        text = (CHUNKS + TABLE).replace("[25]] xs=[[4],[25]]", "[300]] xs=[[4],[25]] mode=0")
        if "shape" not in old:
            text = text.replace("xs=[[4],[25]]", "xs=[[4],[300]]")
        text = text.replace(old, new).replace("SIZE_T", "int")
        with pytest.raises(opd.OpdError, match=said):
            client.load(text)
