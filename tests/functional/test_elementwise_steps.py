"""Steps of elements in sections, formula, sum and fill, and a product's bias."""

import numpy as np
import pytest

import opd

pytestmark = pytest.mark.unsanitized("of what kernels work out")

BLEND = """
//! op      blend(Tensor x, Tensor w, Tensor? b=None, *, float a=0.5, int[2] k=1, str mode="mul") \\
//!           -> (Tensor y, Tensor z)
//! dtypes  float16 bfloat16 float32 float64
//! words   mode mul add
//! shape   x y z [N, C]
//! shape   w b [C]
//! let     scale = 1.0 * N / C
//! saved   kept acc_t [N, C]
//! scratch count int32 [C]
//! example x=[3,8] w=[8] b=[8]
//
//! forward
//!   formula kept = (mode == "mul" ? x * w : x + w) * scale + (present(b) ? k[1] * b : a)
//!   fill    count N
//!   formula y = twice(kept) + count
//!   formula z = x when N > 3
//!   fill    z -2.5 otherwise
//
//! backward grad_x
//!   formula grad_x = grad_y * w * scale * 2
//!   formula grad_x = grad_x + grad_z when N > 3
//! backward grad_w grad_b
//!   sum     grad_w = 2 * grad_y * x * scale over 0
//!   sum     grad_b = 2 * k[1] * grad_y over -2

__device__ acc_t twice(acc_t x) { return 2 * x; }
"""
DENSE = """
//! op      dense(Tensor x, Tensor w, Tensor? b=None) -> Tensor y
//! dtypes  float16 bfloat16 float32 float64
//! shape   x [B, T, I]
//! shape   w [O, I]
//! shape   b [O]
//! shape   y [B, T, O]
//! example x=[2,3,5] w=[4,5] b=[4]
//! forward
//!   matmul matrix(y, B*T, O) = matrix(x, B*T, I) @ w.T + b
//! backward grad_x
//!   matmul matrix(grad_x, B*T, I) = matrix(grad_y, B*T, O) @ w
//! backward grad_b
//!   sum grad_b = grad_y over 0, 1
"""
SOFT = """
//! op      soft(Tensor x) -> Tensor y
//! dtypes  float64
//! shape   x y [N, C]
//! example x=[2,5]
//! forward
//!   formula y = exp(x - amax(x, -1)) / sum(exp(x - amax(x, -1)), -1)
"""
PICK = """
//! op      pick(Tensor x, Tensor at, Tensor? b=None) -> Tensor y
//! dtypes  float32 float64
//! type    index_t int32 int64 : at
//! shape   x [N, C]
//! shape   at [N]
//! shape   b [N]
//! shape   y [N]
//! check   place : "at has {index} where x has {C} columns"
//! example x=[3,4] at=[3] b=[3]
//! forward
//!   kernel pick_forward threads N
//!   formula y = y + (present(b) ? b : 0)
//! backward grad_x
//!   kernel pick_backward threads N
//! backward grad_b
//!   formula grad_b = grad_y

__global__ void pick_forward(const scalar_t *x, const index_t *at, scalar_t *y, opd::report_t *report, int64_t N, int64_t C)
{
    CUDA_KERNEL_LOOP(i, N)
        if (opd::check(report, place, at[i] < C, at[i])) y[i] = x[i * C + at[i]];
}

__global__ void pick_backward(const index_t *at, const scalar_t *grad_y, scalar_t *grad_x, int64_t N, int64_t C)
{
    CUDA_KERNEL_LOOP(i, N) grad_x[i * C + at[i]] += grad_y[i];
}
"""
DTYPES = {"float16": 1e-3, "float32": 1e-6, "float64": 1e-14}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("steps")
    (folder / "blend.cu").write_text(BLEND)
    (folder / "dense.cu").write_text(DENSE)
    (folder / "soft.cu").write_text(SOFT)
    (folder / "pick.cu").write_text(PICK)
    return folder


@pytest.fixture
def client(start_daemon, folder):
    with start_daemon("--kernels", str(folder)).connect() as client:
        yield client


def draw(client, dtype, *shapes):
    """Tensors of numbers that every dtype has, and these in float64."""
    rng = np.random.default_rng(5)
    arrays = [rng.integers(-8, 9, shape) / 4.0 for shape in shapes]
    return [(client.tensor(a, dtype=dtype), a) for a in arrays]


def near(found, wanted, dtype):
    assert found.shape == wanted.shape
    bound = DTYPES[dtype] * max(1, np.abs(wanted).max(initial=0))
    np.testing.assert_allclose(np.asarray(found.numpy(), np.float64), wanted, rtol=0, atol=bound)


@pytest.mark.parametrize("mode", ["mul", "add"])
def test_formulas(client, mode):
    for n, with_bias in [(5, True), (3, False), (0, True)]:
        (x, x0), (w, w0), (b, b0), (g, g0), (h, h0) = draw(client, "float32", (n, 8), 8, 8, (n, 8), (n, 8))
        (y, z), context = client.ops.blend.forward(x, w, b if with_bias else None, mode=mode, k=(2, 3))
        kept = (x0 * w0 if mode == "mul" else x0 + w0) * (n / 8) + (3 * b0 if with_bias else 0.5)
        near(y, 2 * kept + n, "float32")
        near(z, x0 if n > 3 else np.full((n, 8), -2.5), "float32")
        wanted = ["x", "w", "b"] if with_bias else ["x", "w"]
        grads = context.backward(g, h, wanted=wanted)
        near(grads[0], g0 * w0 * (n / 8) * 2 + (h0 if n > 3 else 0), "float32")
        near(grads[1], (2 * g0 * x0 * (n / 8)).sum(0), "float32")
        if with_bias:
            near(grads[2], (6 * g0).sum(0), "float32")


@pytest.mark.parametrize("index", ["int32", "int64"])
def test_beside_kernels_that_name_types_and_checks(client, index):
    """A step has none of them, and is compiled with the file."""
    (x, x0), (b, b0), (g, g0) = draw(client, "float32", (3, 4), 3, 3)
    at = client.tensor(np.array([3, 0, 2], index))
    y, context = client.ops.pick.forward(x, at, b)
    near(y, x0[[0, 1, 2], [3, 0, 2]] + b0, "float32")
    grad_x, _, grad_b = context.backward(g)
    expected = np.zeros((3, 4))
    expected[[0, 1, 2], [3, 0, 2]] = g0
    near(grad_x, expected, "float32")
    near(grad_b, g0, "float32")
    with pytest.raises(opd.InvalidArgument, match="at has 4 where x has 4 columns"):
        client.ops.pick(x, client.tensor(np.array([4, 0, 2], index)), b)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_bias(client, dtype):
    """Rounded once: the product and the bias together, as their sum in float32 would be."""
    (x, x0), (w, w0), (b, b0), (g, g0) = draw(client, dtype, (4, 33, 40), (24, 40), 24, (4, 33, 24))
    y, context = client.ops.dense.forward(x, w, b)
    near(y, x0 @ w0.T + b0, dtype)
    near(client.ops.dense(x, w), x0 @ w0.T, dtype)
    grad_x, _, grad_b = context.backward(g, wanted=["x", "b"])
    near(grad_x, g0 @ w0, dtype)
    near(grad_b, g0.sum((0, 1)), dtype)
    again = context.backward(g, wanted=["b"])
    assert again[-1].numpy().tobytes() == grad_b.numpy().tobytes()


def test_sums_of_rows(client):
    """Of long rows each sum is made in parts, and kept until both are there."""
    for shape in (3, 5), (2, 70001), (3, 0):
        (x, x0), = draw(client, "float64", shape)
        e = np.exp(x0 - x0.max(-1, keepdims=True, initial=-8))
        near(client.ops.soft(x), e / e.sum(-1, keepdims=True), "float64")


def test_graph(client):
    """Recorded, and replayed with other numbers in the same memory."""
    (x, x0), (w, w0), (b, b0) = draw(client, "float32", (2, 3, 5), (4, 5), 4)
    with client.capture() as graph:
        y = client.ops.dense(x, w, b)
    for factor in (1, 2, 3):
        x.write(x0.astype(np.float32) * factor)
        graph.replay(debug=factor == 3)
        near(y, factor * x0 @ w0.T + b0, "float32")
