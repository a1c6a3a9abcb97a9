"""`matmul` and `repeat` in operators of the test's own, against NumPy in float64: by the device's
BLAS, where it has one, and by opd's own kernel."""

import numpy as np
import pytest

import opd

DTYPES = {"float64": 1e-12, "float32": 2e-6, "bfloat16": 5e-3, "float16": 6e-4}

KERNELS = {
    # a and b as they come or transposed; wide: the result in acc_t, then rounded by a kernel.
    "product": """
//! op      product(Tensor a, Tensor b, *, bool ta=False, bool tb=False) -> (Tensor c, Tensor wide)
//! dtypes  float16 bfloat16 float32 float64
//! shape   a [A0, A1]
//! shape   b [B0, B1]
//! let     M = ta ? A1 : A0
//! let     N = tb ? B0 : B1
//! shape   c [M, N]
//! shape   wide [M, N]
//! scratch w acc_t [M, N]
//! example a=[5,7] b=[7,3]
//! forward
//!   matmul c = a @ b
//!     when !ta && !tb
//!   matmul c = a.T @ b
//!     otherwise ta && !tb
//!   matmul c = a @ b.T
//!     otherwise !ta
//!   matmul c = a.T @ b.T
//!     otherwise
//!   matmul w = matrix(a, A0, A1) @ b
//!     when !ta && !tb
//!   matmul w = a.T @ b
//!     otherwise ta && !tb
//!   matmul w = a @ b.T
//!     otherwise !ta
//!   matmul w = a.T @ matrix(b, B0, B1).T
//!     otherwise
//!   kernel round_off
//!     grid cdiv(M * N, 256)
//!     bind n = M * N
//! backward grad_a
//!   matmul grad_a = grad_c @ b.T
//!     when !ta && !tb
//!   matmul grad_a = b @ grad_c.T
//!     otherwise ta && !tb
//!   matmul grad_a = grad_c @ b
//!     otherwise !ta
//!   matmul grad_a = b.T @ grad_c.T
//!     otherwise
//!   matmul grad_a += grad_wide @ b.T
//!     when !ta && !tb
//!   matmul grad_a += b @ grad_wide.T
//!     otherwise ta && !tb
//!   matmul grad_a += grad_wide @ b
//!     otherwise !ta
//!   matmul grad_a += b.T @ grad_wide.T
//!     otherwise
__global__ void round_off(const acc_t *w, scalar_t *wide, int64_t n)
{
    CUDA_KERNEL_LOOP(i, n) {
        wide[i] = scalar_t(w[i]);
    }
}
""",
    # Two halves of y by matrices within matrices; the last column of y stays zero.
    "halves": """
//! op      halves(Tensor x, Tensor u, Tensor v) -> Tensor y
//! dtypes  float16 bfloat16 float32 float64
//! shape   x [N, 2, K]
//! shape   u [K, C]
//! shape   v [K, C]
//! shape   y [N, 2*C + 1]
//! example x=[3,2,5] u=[5,4] v=[5,4]
//! forward
//!   matmul matrix(y, N, C, 2*C + 1) = matrix(x, N, K, 2*K) @ u
//!   matmul matrix(y, N, C, 2*C + 1, C) = matrix(x, N, K, 2*K, K) @ v
//!     tf32
""",
    # h[t] = tanh(x[t] + h[t-1] w'), and back through time.
    "recurrent": """
//! op      recurrent(Tensor x, Tensor w, Tensor h0) -> Tensor hs
//! dtypes  float16 bfloat16 float32 float64
//! shape   x [T, B, S]
//! shape   w [S, S]
//! shape   h0 [B, S]
//! shape   hs [T, B, S]
//! let     n = B * S
//! scratch gates acc_t [B, S]
//! scratch d [B, S]
//! scratch dh acc_t [B, S]
//! example x=[3,2,5] w=[5,5] h0=[2,5]
//! forward
//!   repeat t < T
//!     matmul gates = h0 @ w.T
//!       when t == 0
//!     matmul gates = matrix(hs, B, S, S, (t - 1) * n) @ w.T
//!       otherwise
//!     kernel step
//!       grid cdiv(n, 256)
//!   end
//! backward grad_x grad_w grad_h0
//!   zero   dh
//!   zero   grad_w
//!   repeat t < T
//!     kernel step_back
//!       grid cdiv(n, 256)
//!       bind t = T - 1 - t
//!     matmul dh = d @ w
//!     matmul grad_w += d.T @ h0
//!       when wanted(grad_w) && t == T - 1
//!     matmul grad_w += d.T @ matrix(hs, B, S, S, (T - 2 - t) * n)
//!       otherwise wanted(grad_w)
//!   end
//!   kernel finish
//!     when wanted(grad_h0)
//!     grid cdiv(n, 256)
__global__ void step(const acc_t *gates, const scalar_t *x, scalar_t *hs, int64_t t, int64_t n)
{
    CUDA_KERNEL_LOOP(i, n) {
        hs[t * n + i] = scalar_t(tanh(gates[i] + acc_t(x[t * n + i])));
    }
}
__global__ void step_back(const scalar_t *hs, const scalar_t *grad_hs, const acc_t *dh, scalar_t *d,
                          scalar_t *grad_x, int64_t t, int64_t n)
{
    CUDA_KERNEL_LOOP(i, n) {
        const acc_t h = hs[t * n + i];
        d[i] = scalar_t((acc_t(grad_hs[t * n + i]) + dh[i]) * (1 - h * h));
        if (grad_x)
            grad_x[t * n + i] = d[i];
    }
}
__global__ void finish(const acc_t *dh, scalar_t *grad_h0, int64_t n)
{
    CUDA_KERNEL_LOOP(i, n) {
        grad_h0[i] = scalar_t(dh[i]);
    }
}
""",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kernels")
    for name, text in KERNELS.items():
        (folder / f"{name}.cu").write_text(text)
    return folder


@pytest.fixture(scope="module", params=["vendor", "own"])
def blas(request, folder):
    """A client of a daemon that multiplies by the one or the other."""
    from conftest import Daemon

    daemon = Daemon("--kernels", str(folder), "--blas", request.param)
    with daemon.connect() as client:
        yield client
    daemon.stop()


def to_dtype(array, dtype):
    """Rounded to it; bfloat16, which NumPy has not, as float32."""
    if dtype != "bfloat16":
        return array.astype(dtype)
    bits = array.astype("float32").view("uint32")
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype("uint32").view("float32")


def make(rng, shape, dtype):
    return to_dtype(rng.standard_normal(shape), dtype)


def put(client, array, dtype):
    return client.tensor(array, dtype=dtype)


def wide(value):
    array = value.numpy() if isinstance(value, opd.Tensor) else value
    return np.asarray(array).astype("float64")


def check(got, want, dtype):
    got = wide(got)
    assert got.shape == want.shape
    error = np.linalg.norm(got - want) / (np.linalg.norm(want) or 1)
    assert error <= DTYPES[dtype], error


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("tb", [False, True])
def test_products(blas, dtype, ta, tb):
    rng = np.random.default_rng(1)
    sizes = [(1, 1, 1), (5, 7, 3), (64, 64, 64), (49, 130, 65), (128, 33, 257), (300, 200, 70)]
    for m, k, n in sizes + [(3, 0, 4), (0, 3, 4), (3, 4, 0)]:
        a = make(rng, (k, m) if ta else (m, k), dtype)
        b = make(rng, (n, k) if tb else (k, n), dtype)
        want = (wide(a).T if ta else wide(a)) @ (wide(b).T if tb else wide(b))
        for result in blas.ops.product(put(blas, a, dtype), put(blas, b, dtype), ta=ta, tb=tb):
            check(result, want, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("tb", [False, True])
def test_gradients_add_up(blas, dtype, ta, tb):
    rng = np.random.default_rng(2)
    m, k, n = 37, 20, 45
    a, b = make(rng, (k, m) if ta else (m, k), dtype), make(rng, (n, k) if tb else (k, n), dtype)
    grads = make(rng, (m, n), dtype), make(rng, (m, n), dtype)
    _, context = blas.ops.product.forward(put(blas, a, dtype), put(blas, b, dtype), ta=ta, tb=tb)
    grad_a, grad_b = context.backward(*(put(blas, g, dtype) for g in grads), wanted=["a"])
    want = (wide(grads[0]) + wide(grads[1])) @ (wide(b) if tb else wide(b).T)
    check(grad_a, want.T if ta else want, dtype)
    assert grad_b is None


@pytest.mark.parametrize("dtype", DTYPES)
def test_matrices_within_tensors(blas, dtype):
    rng = np.random.default_rng(3)
    x, u, v = (make(rng, s, dtype) for s in ([19, 2, 33], [33, 21], [33, 21]))
    y = wide(blas.ops.halves(*(put(blas, t, dtype) for t in (x, u, v))))
    check(y[:, :21], wide(x)[:, 0] @ wide(u), dtype)
    # TF32 was allowed, and keeps 10 bits.
    error = np.linalg.norm(y[:, 21:42] - wide(x)[:, 1] @ wide(v)) / np.linalg.norm(y[:, 21:42])
    assert error <= max(DTYPES[dtype], 2e-3 if dtype == "float32" else 0)
    assert (y[:, 42] == 0).all()


def run_recurrent(x, w, h):
    hs = []
    for step in x:
        h = np.tanh(step + h @ w.T)
        hs.append(h)
    return np.array(hs).reshape(x.shape)


def go_back(x, w, h0, hs, grad_hs):
    grad_x, grad_w, dh = np.zeros_like(x), np.zeros_like(w), np.zeros_like(h0)
    for t in reversed(range(len(x))):
        d = (grad_hs[t] + dh) * (1 - hs[t] ** 2)
        grad_x[t] = d
        grad_w += d.T @ (hs[t - 1] if t else h0)
        dh = d @ w
    return grad_x, grad_w, dh


@pytest.mark.parametrize("steps", [0, 1, 2, 20])
@pytest.mark.parametrize("dtype", DTYPES)
def test_through_time(blas, dtype, steps):
    rng = np.random.default_rng(4)
    x, h0 = make(rng, (steps, 3, 17), dtype), make(rng, (3, 17), dtype)
    w = to_dtype(0.2 * rng.standard_normal((17, 17)), dtype)
    grad = make(rng, x.shape, dtype)
    hs, context = blas.ops.recurrent.forward(*(put(blas, t, dtype) for t in (x, w, h0)))
    want = run_recurrent(wide(x), wide(w), wide(h0))
    bound = {"bfloat16": 2e-2, "float16": 2e-3}.get(dtype, DTYPES[dtype])
    assert np.linalg.norm(wide(hs) - want) <= bound * (np.linalg.norm(want) or 1)
    got = context.backward(put(blas, grad, dtype))
    wanted = go_back(wide(x), wide(w), wide(h0), want, wide(grad))
    for g, ref in zip(got, wanted):
        assert np.linalg.norm(wide(g) - ref) <= 2 * bound * (np.linalg.norm(ref) or 1)


def test_a_thousand_steps(blas):
    rng = np.random.default_rng(5)
    x, w, h0 = rng.standard_normal((1000, 2, 8)), rng.standard_normal((8, 8)), np.zeros((2, 8))
    w *= 0.1
    inputs = [blas.tensor(t) for t in (x, w, h0)]
    hs, context = blas.ops.recurrent.forward(*inputs)
    check(hs, run_recurrent(x, w, h0), "float64")
    got = context.backward(blas.tensor(np.ones(x.shape)))  # 3 launches a step
    for g, ref in zip(got, go_back(x, w, h0, wide(hs), np.ones(x.shape))):
        check(g, ref, "float64")


def test_too_many_steps(blas):
    with pytest.raises(opd.InvalidArgument, match="40000 launches .* at most 8192 .*max-launches"):
        blas.ops.recurrent(blas.zeros((20000, 1, 1)), blas.zeros((1, 1)), blas.zeros((1, 1)))
    with pytest.raises(opd.InvalidArgument, match="'T' is 65537, expected 0 to 65536"):
        blas.ops.recurrent(blas.zeros((65537, 1, 1)), blas.zeros((1, 1)), blas.zeros((1, 1)))


def test_more_than_a_command_holds(start_daemon, folder):
    daemon = start_daemon("--kernels", str(folder), "--blas", "own", "--max-launches", "100000")
    with daemon.connect() as client:
        x, w, h0 = client.zeros((20000, 1, 1)), client.zeros((1, 1)), client.zeros((1, 1))
        with pytest.raises(opd.InvalidArgument, match="40000 launches are more than one request"):
            client.ops.recurrent(x, w, h0)


def test_shapes_are_checked(blas):
    with pytest.raises(opd.InvalidArgument) as caught:
        blas.ops.product(blas.zeros((3, 4)), blas.zeros((5, 6)), tb=True)
    assert (
        "product: matmul c = a @ b.T: float32 [3, 5] = float32 [3, 4] @ float32 [5, 6].T, "
        "expected as many columns of the first as rows of the second"
    ) in str(caught.value)


def test_status_names_the_blas(blas, request):
    (device, *_) = blas.status()["devices"]
    own = "own" in request.node.name
    assert device["blas"] == "" if own else isinstance(device["blas"], str)
    if device["blas"]:
        assert device["blas"].split()[0] in ("cuBLASLt", "OpenBLAS")


def test_an_unknown_blas_is_refused(start_daemon):
    with pytest.raises(AssertionError, match="--blas: 'mine', expected vendor or own"):
        start_daemon("--blas", "mine")
