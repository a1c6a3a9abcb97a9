"""A graph's calls run beside each other where they share no memory, and what comes of it are the bytes of one after the
other. Captures drawn at random, held against NumPy. On the stand-in for NVIDIA's driver (`make standin`) the nodes of a
graph run in the order that is most unlike the calls', then by chance, as far as the edges between them allow: one that
lacks shows as a wrong value. Where there are no graphs calls go one by one."""

import random
import re

import numpy as np
import pytest
from conftest import ROOT
from operators import put_kernels
from raw import Raw, RpcError

N = 24
MODULUS = 1048573  # values stay below 2^20, and all that is computed below 2^24: exact in float32

MIX = """
//! op      mix(Tensor x, Tensor y) -> Tensor z
//! dtypes  float32
//! shape   x y z [N]
//! example x=[24] y=[24]
//! forward
//!   kernel mix
__device__ inline float wrap(float v) { return (float)((int)v % 1048573); }
__global__ void mix(const float *x, const float *y, float *z, int N)
{
    CUDA_KERNEL_LOOP(i, N)
        z[i] = wrap(3 * x[i] + y[i] + 1);
}
"""
# Changes what it is given, in two kernels.
BUMP = """
//! op      bump(Tensor(a!) x, Tensor y) -> ()
//! dtypes  float32
//! shape   x y [N]
//! example x=[24] y=[24]
//! forward
//!   kernel bump
//!   kernel once_more
__device__ inline float wrap(float v) { return (float)((int)v % 1048573); }
__global__ void bump(float *x, const float *y, int N)
{
    CUDA_KERNEL_LOOP(i, N)
        x[i] = wrap(5 * x[i] + y[i]);
}
__global__ void once_more(float *x, int N)
{
    CUDA_KERNEL_LOOP(i, N)
        x[i] = wrap(x[i] + 7);
}
"""
# Its x[i] is an index: of an element of `x`, or it is refused.
PICK = """
//! op      pick(Tensor table, Tensor x) -> Tensor y
//! dtypes  float32
//! shape   table [M]
//! shape   x y [N]
//! check   known : "x[{index}] is no index"
//! example table=[24] x=[24] x in 0..23
//! forward
//!   kernel pick
__global__ void pick(const float *table, const float *x, float *y, opd::report_t *report, int N, int M)
{
    CUDA_KERNEL_LOOP(i, N)
        if (opd::check(report, known, x[i] >= 0 && x[i] < M, i))
            y[i] = table[(int)x[i]];
}
"""
# By way of scratch, with something kept for its backward, and zeros that are added to.
ROUND = """
//! op      roundabout(Tensor x) -> Tensor y
//! dtypes  float32
//! shape   x y [N]
//! saved   kept float32 [N]
//! scratch room float32 [N]
//! example x=[24]
//! forward
//!   kernel first
//!   kernel second
//! backward grad_x
//!   kernel back
__device__ inline float wrap(float v) { return (float)((int)v % 1048573); }
__global__ void first(const float *x, float *room, int N)
{
    CUDA_KERNEL_LOOP(i, N)
        room[i] = wrap(7 * x[i] + 2);
}
__global__ void second(const float *x, const float *room, float *kept, float *y, int N)
{
    CUDA_KERNEL_LOOP(i, N) {
        kept[N - 1 - i] = wrap(room[i] + 3);
        y[i] += wrap(room[i] + x[i]);
    }
}
__global__ void back(const float *kept, const float *grad_y, float *grad_x, int N)
{
    CUDA_KERNEL_LOOP(i, N)
        atomicAdd(grad_x + i, wrap(3 * grad_y[i] + kept[i]));
}
"""
# Takes what lies apart in memory.
TURN = """
//! op      turn(Tensor x) -> Tensor y
//! dtypes  float32
//! strided x
//! shape   x y [N]
//! example x=[24]
//! forward
//!   kernel turn
//!     bind step = stride(x, 0)
__global__ void turn(const float *x, float *y, int N, int step)
{
    CUDA_KERNEL_LOOP(i, N)
        y[i] = x[(N - 1 - i) * step];
}
"""
SPREAD = """
//! op      spread(Tensor x, Tensor y) -> Tensor z
//! dtypes  float32
//! formula z = fmod(2 * x + y, 1048573)
//! example x=[24] y=[1]
"""
BUMPS = """
//! op      bumps(Tensor(a!)[] xs, Tensor[] ys) -> ()
//! dtypes  float32
//! formula xs = fmod(3 * xs + ys, 1048573)
//! example xs=[[24],[5]] ys=[[24],[5]]
"""
# Has memory of its own that lasts; and changes, against its schema, an input.
COUNTS = """
//! op      counts(Tensor x) -> Tensor y
//! dtypes  float32
//! shape   x y [N]
//! example x=[24]
//! forward
//!   kernel counts
__device__ int calls = 0;
__global__ void counts(const float *x, float *y, int N)
{
    if (threadIdx.x == 0 && blockIdx.x == 0)
        calls = calls % 1000 * 3 + 1;
    __syncthreads();
    CUDA_KERNEL_LOOP(i, N)
        y[i] = calls;
}
"""
LIES = """
//! op      lies(Tensor x, Tensor y) -> Tensor z
//! dtypes  float32
//! shape   x y z [N]
//! example x=[24] y=[24]
//! forward
//!   kernel lies
__global__ void lies(float *x, const float *y, float *z, int N)
{
    CUDA_KERNEL_LOOP(i, N) {
        z[i] = x[i];
        x[i] = (float)((int)(3 * x[i] + y[i]) % 1048573);
    }
}
"""


def wrap(v):
    return np.fmod(v, np.float32(MODULUS)).astype(np.float32)


@pytest.fixture(scope="module")
def served(start_shared, tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernels")
    put_kernels(
        folder, mix=MIX, bump=BUMP, roundabout=ROUND, turn=TURN, spread=SPREAD, bumps=BUMPS, counts=COUNTS, lies=LIES,
        pick=PICK,
    )  # fmt: skip
    return start_shared("--kernels", folder)


@pytest.fixture
def client(served):
    with served.connect() as client:
        yield client


class Capture:
    """Calls drawn at random, on the daemon's tensors and, as functions to be called again, on arrays beside them: pairs
    of (tensor, array), in which views share what they are of."""

    def __init__(self, client, seed):
        self.client, self.random = client, random.Random(seed)
        self.again = []
        # To make one in the capture, and write it once, would be a constant; these are there before.
        self.pairs = [self.new(np.float32([self.random.randrange(1000) for _ in range(N)])) for _ in range(4)]
        self.kept = list(self.pairs)
        self.contexts = []

    def new(self, array):
        return self.client.tensor(array), np.array(array, np.float32)

    def pick(self):
        return self.random.choice(self.pairs)

    def do(self, function):
        function()
        self.again.append(function)

    def make(self, tensor, function, shape=(N,)):
        array = np.empty(shape, np.float32)
        self.do(lambda: np.copyto(array, function()))
        self.pairs.append((tensor, array))

    def mix(self):
        (x, a), (y, b) = self.pick(), self.pick()
        self.make(self.client.ops.mix(x, y), lambda: wrap(3 * a + b + 1))

    def bump(self):
        (x, a), (y, b) = self.pick(), self.pick()
        if np.shares_memory(a, b):
            return
        self.client.ops.bump(x, y)
        self.do(lambda: np.copyto(a, wrap(wrap(5 * a + b) + 7)))

    def bumps(self):
        chosen = self.random.sample(self.pairs, 4) if len(self.pairs) >= 4 else []
        if any(np.shares_memory(chosen[i][1], chosen[k][1]) for i in range(len(chosen)) for k in range(i)):
            return
        (x, a), (y, b), (v, c), (w, d) = chosen
        self.client.ops.bumps([x, y], [v, w])
        self.do(lambda: (np.copyto(a, wrap(3 * a + c)), np.copyto(b, wrap(3 * b + d))))

    def roundabout(self):
        x, a = self.pick()
        y, context = self.client.ops.roundabout.forward(x)
        kept = np.empty(N, np.float32)
        self.do(lambda: np.copyto(kept[::-1], wrap(wrap(7 * a + 2) + 3)))
        self.make(y, lambda: wrap(wrap(7 * a + 2) + a))
        self.contexts.append((context, kept))

    def backward(self):
        if self.contexts:
            (context, kept), (y, b) = self.random.choice(self.contexts), self.pick()
            self.make(context.backward(y)[0], lambda: wrap(3 * b + kept))

    def turn(self):
        """Every other element, backwards, into a half."""
        (x, a), (y, b) = self.pick(), self.pick()
        odd, i = self.random.randrange(2), self.random.randrange(2) * N // 2
        half = self.client.ops.turn(x.view((N // 2,), offset=odd, strides=(2,)))
        self.client.ops.bump(y.view((N // 2,), offset=i), half)
        low = b[i : i + N // 2]
        self.do(lambda: np.copyto(low, wrap(wrap(5 * low + a[odd::2][::-1].copy()) + 7)))

    def spread(self):
        (x, a), (y, b) = self.pick(), self.pick()
        at = self.random.randrange(N)
        self.make(self.client.ops.spread(x, y.view((1,), offset=at)), lambda: wrap(2 * a + b[at]))

    def view(self):
        """Halves, that calls change by themselves."""
        (x, a), (y, b) = self.pick(), self.pick()
        i, k = self.random.randrange(2) * N // 2, self.random.randrange(2) * N // 2
        low, high = a[i : i + N // 2], b[k : k + N // 2]
        if np.shares_memory(low, high):
            return
        self.client.ops.bump(x.view((N // 2,), offset=i), y.view((N // 2,), offset=k))
        self.do(lambda: np.copyto(low, wrap(wrap(5 * low + high) + 7)))

    def zeros(self):
        self.make(self.client.zeros(N), lambda: np.zeros(N, np.float32))

    def forget(self):
        if len(self.pairs) > 6:
            self.pairs.pop(self.random.randrange(4, len(self.pairs)))

    def draw(self, n):
        kinds = [self.mix, self.bump, self.bump, self.bumps, self.roundabout, self.backward, self.turn, self.spread]
        kinds += [self.view, self.view, self.zeros, self.forget]
        for _ in range(n):
            self.random.choice(kinds)()

    def compare(self):
        for k, (tensor, array) in enumerate(self.pairs):
            np.testing.assert_array_equal(tensor.numpy(), array, err_msg=f"tensor {k} of {len(self.pairs)}")

    def replay(self):
        self.graph.replay()
        for function in self.again:
            function()


@pytest.mark.parametrize("seed", range(24))
def test_captures_by_chance(client, seed):
    c = Capture(client, seed)
    with client.capture() as c.graph:
        c.draw(40 if seed % 4 else 150)
    c.compare()
    for n in (1, 1, 1, 3):  # one by one; as a graph
        for _ in range(n):
            c.replay()
        c.compare()


def test_memory_of_a_kernel(client):
    x = client.tensor(np.ones(N, np.float32))
    expected, calls = [], 0
    with client.capture() as graph:
        made = [client.ops.counts(x) for _ in range(6)]
    first = made[0].numpy()[0]
    for _ in range(4):
        graph.replay()
        calls = made[0].numpy()[0]
        for y in made:
            expected.append(calls)
            assert (y.numpy() == calls).all()
            calls = calls % 1000 * 3 + 1
    assert len(set(expected)) > 6 and first != calls


def test_an_input_that_a_kernel_changes(client):
    """Since its parameter is not const: what the schema says is not all that is believed."""
    x, y = client.zeros(N), client.tensor(np.arange(N, dtype=np.float32))
    with client.capture() as graph:
        made = [client.ops.lies(x, y) for _ in range(5)]
    for _ in range(4):
        graph.replay()
        expected = made[0].numpy()
        for z in [*made, x]:
            np.testing.assert_array_equal(z.numpy(), expected)
            expected = wrap(3 * expected + np.arange(N, dtype=np.float32))


def test_a_long_graph(client):
    """More calls than are looked at together."""
    x, y = (client.tensor(np.full(N, k, np.float32)) for k in (1, 2))
    a, b = x.numpy(), y.numpy()
    with client.capture() as graph, client.batch():
        for _ in range(700):
            client.ops.bump(x, y)
            client.ops.bump(y, x)
    for _ in range(4):
        for _ in range(700):
            a = wrap(wrap(5 * a + b) + 7)
            b = wrap(wrap(5 * b + a) + 7)
        np.testing.assert_array_equal(x.numpy(), a)
        np.testing.assert_array_equal(y.numpy(), b)
        graph.replay()


def test_what_kernels_report_is_told_of_their_replay(served):
    """More replays in flight than there are places for what they report, each of which refuses other elements."""
    n, members = 1500, 3
    rng = np.random.default_rng(0)
    table, good = np.arange(N, dtype=np.float32) * 2, np.arange(N, dtype=np.float32)[::-1].copy()
    with Raw(served.socket) as raw:
        raw.make(1, "float32", [N], table.tobytes())
        for k in range(members):
            raw.make(10 + k, "float32", [N])
        raw.call("graph_begin", 1)
        for k in range(members):
            raw.call("forward", "mix", [10 + k, 1], {}, [20 + k])
            raw.call("forward", "pick", [1, 10 + k], {}, [30 + k])
        raw.call("graph_end", 1)
        asked = []
        for step in range(n):
            k, x, first = step % members, good.copy(), None
            if rng.random() < 0.3:
                bad = rng.choice(N, 2, replace=False)
                x[bad], first = N + step, bad
            requests = raw.together(("tensor_write", 10 + k, 0, x.tobytes()), ("replay", 1))
            asked.append((requests[-1], k, first))
        wrong = [None] * members
        for step, (request, k, first) in enumerate(asked):
            wrong[k] = first
            expected = next((w for w in wrong if w is not None), None)
            try:
                raw.wait(request)
                assert expected is None, f"replay {step}"
            except RpcError as error:
                told = re.search(r"pick: x\[(\d+)\] is no index", str(error))
                assert expected is not None and told and int(told[1]) in expected, f"replay {step}: {error}"
        for k in range(members):
            raw.call("tensor_write", 10 + k, 0, good.tobytes())
        raw.call("replay", 1)
        for k in range(members):
            assert np.frombuffer(raw.call("tensor_read", 30 + k, 0), np.float32).tolist() == table[::-1].tolist()
            assert np.frombuffer(raw.call("tensor_read", 20 + k, 0), np.float32).tolist() == (3 * good + table + 1).tolist()


def test_a_training_step(start_daemon, monkeypatch):
    """Replayed, to the bit what its calls make, one after the other."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import resident

    daemon = start_daemon("--kernels", str(ROOT / "examples"), "--kernels", str(ROOT / "kernels_src"))
    with daemon.connect() as client:
        points, classes = resident.make_spirals(np.random.default_rng(0), 10)
        x, target, one = client.tensor(points), client.tensor(classes), client.tensor(np.float32(1))

        def start(name):
            rng = np.random.default_rng(1)
            return [resident.Layer(client, rng, f"{name}.{i}", *w) for i, w in enumerate([(2, 8), (8, 8), (8, 3)])]

        once, again = start("once"), start("again")
        with client.capture() as graph:
            loss = resident.train_step(client, again, x, target, one)
        for n in range(5):
            if n:
                graph.replay()
            expected = resident.train_step(client, once, x, target, one)
            assert loss.numpy() == expected.numpy()
            for layer, other in zip(again, once, strict=True):
                for t, u in zip([*layer.params, *sum(layer.moments, ())], [*other.params, *sum(other.moments, ())]):
                    np.testing.assert_array_equal(t.numpy(), u.numpy())
