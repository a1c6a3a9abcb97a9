"""Inputs that are taken as they lie in memory: `//! strided`."""

import subprocess
from pathlib import Path

import numpy as np
import pytest

import opd
from conftest import PROGRAM
from raw import Raw, RpcError

OUTSIDE = """\
//! op      strided_outside(Tensor x) -> Tensor y
//! dtypes  float32
//! strided x
//! shape   x [N]
//! shape   y [N]
//
//! forward
//!   kernel strided_outside
//!   bind   s = stride(x, 0)

__global__ void strided_outside(const scalar_t *x, scalar_t *y, int64_t N, int64_t s)
{
    CUDA_KERNEL_LOOP(i, N)
        y[i] = x[(i + 1) * s];
}
"""
KERNELS = Path(__file__).parent.parent / "torch" / "kernels"
X = np.arange(24, dtype=np.float32)


@pytest.fixture(scope="module")
def daemon(start_shared, tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("kernels")
    for name in ("read_strided", "flip_sign", "strided_product"):
        (tmp_path / f"{name}.cu").write_text((KERNELS / f"{name}.cu").read_text())
    (tmp_path / "outside.cu").write_text(OUTSIDE)
    return start_shared("--kernels", str(tmp_path))


@pytest.fixture
def client(daemon):
    with opd.connect(daemon.socket) as client:
        yield client


LAYOUTS = [  # shape, strides, offset
    ((4, 6), (1, 4), 0),  # transposed
    ((3, 3), (8, 2), 1),  # every other column
    ((5, 4), (0, 1), 3),  # expanded
    ((5, 4), (0, 0), 23),
    ((3, 4), (4, 3), 0),  # overlapping
    ((1, 4), (77, 6), 2),
]


@pytest.mark.parametrize("shape, strides, offset", LAYOUTS)
def test_views_are_read_as_they_lie(client, shape, strides, offset):
    x = client.tensor(X)
    seen = np.lib.stride_tricks.as_strided(X[offset:], shape, [4 * s for s in strides])
    for _ in range(4):  # plain, and prepared
        view = x.view(shape, offset=offset, strides=strides)
        (y, steps), context = client.ops.read_strided.forward(view)
        assert (y.numpy() == seen * seen).all() and (view.numpy() == seen).all()
        assert (steps.numpy() == view.strides).all() and y.strides == (shape[1], 1)
        grad = np.random.rand(*shape).astype(np.float32)
        (gx,) = context.backward(client.tensor(grad), None)
        assert gx.strides == (shape[1], 1)
        assert np.allclose(gx.numpy(), 2 * grad * seen)
    shared = np.from_dlpack(view) if x.device == "cpu" else seen
    assert (shared == seen).all()


def test_strides_of_a_contiguous_view_are_none(client):
    x = client.tensor(X)
    assert client.ops.gelu(x.view((4, 6), strides=(6, 1))).shape == (4, 6)
    assert client.ops.gelu(x.view((1, 6), strides=(99, 1))).shape == (1, 6)
    assert client.ops.gelu(x.view((0, 6), strides=(7, 7))).shape == (0, 6)


def test_strided_views_elsewhere_are_refused(client):
    x = client.tensor(X)
    turned = x.view((6, 4), strides=(1, 6))
    with pytest.raises(opd.InvalidArgument, match=r"x is float32 \[6, 4\] with strides \[1, 6\], expected a contig"):
        client.ops.gelu(turned)
    with pytest.raises(opd.InvalidArgument, match="cannot write to a view with strides"):
        turned.write(np.zeros((6, 4), np.float32))
    with pytest.raises(opd.InvalidArgument, match="1001 elements between its columns"):
        client.ops.read_strided(client.tensor(np.zeros(3000, np.float32)).view((1, 2), strides=(1, 1001)))


def test_in_place_each_element_once(client):
    x = client.tensor(X)
    client.ops.flip_sign(x.view((4, 3), strides=(6, 2)))
    expected = X.reshape(4, 6).copy()
    expected[:, ::2] *= -1
    assert (x.numpy() == expected.reshape(-1)).all()
    for strides in ((0, 1), (2, 1), (3, 2)):
        with pytest.raises(opd.InvalidArgument, match="whose elements overlap"):
            client.ops.flip_sign(x.view((2, 4), strides=strides))


def test_products_take_rows_or_columns(client):
    a, b = np.random.rand(6, 4).astype(np.float32), np.random.rand(4, 6).astype(np.float32)
    flat_a, flat_b = client.tensor(a.reshape(-1)), client.tensor(b.reshape(-1))
    columns = flat_a.view((4, 6), strides=(1, 4))
    for right, strides, expected in (
        (flat_b.view((6, 3), strides=(1, 6)), None, a.T @ b.T[:, :3]),
        (flat_b.view((6, 4), strides=(4, 1)), None, a.T @ b.reshape(6, 4)),
        (flat_b.view((6, 2), strides=(4, 1), offset=1), None, a.T @ b.reshape(6, 4)[:, 1:3]),
    ):
        assert np.allclose(client.ops.strided_product(columns, right).numpy(), expected, atol=1e-5)
    with pytest.raises(opd.InvalidArgument, match="expected its rows, or its columns, one after the other"):
        client.ops.strided_product(columns, flat_b.view((6, 2), strides=(4, 2)))


@pytest.mark.parametrize(
    "shape, strides, said",
    [
        ([2, 3], [-3, 1], "in dimension 0 is negative"),
        ([2, -3], [3, 1], "in dimension 1 is negative"),
        ([2, 3], [1], "expected an array of 2"),
        ([2, 3], [1, 2, 3], "expected an array of 2"),
        ([2, 3], [1, "x"], "element 1 is a string"),
        ([2, 3], [1, 2**62], "span 2"),
        ([2, 3], [2**47, 2**47], "span 2"),
        ([2, 3], [22, 1], "do not lie in a tensor of 24"),
        ([2**40, 2], [0, 24], "do not lie in a tensor of 24"),
    ],
)
def test_what_does_not_lie_in_its_tensor_is_refused(daemon, shape, strides, said):
    with Raw(daemon.socket) as raw:
        raw.make(1, "float32", [24], X.tobytes())
        with pytest.raises(RpcError, match=said):
            raw.call("tensor_view", 2, 1, 0, shape, strides)
        with pytest.raises(RpcError, match="never made|no tensor"):
            raw.call("tensor_info", 2)


def test_views_of_views_lie_in_what_these_span(daemon):
    with Raw(daemon.socket) as raw:
        raw.make(1, "float32", [24], X.tobytes())
        assert raw.call("tensor_view", 2, 1, 4, [3, 2], [4, 2])["strides"] == [4, 2]
        assert raw.call("tensor_info", 2)["bytes"] == 4 * 11
        raw.call("tensor_view", 3, 2, 0, [11])
        with pytest.raises(RpcError, match="do not lie in a tensor of 11"):
            raw.call("tensor_view", 4, 2, 0, [12])
        assert "strides" not in raw.call("tensor_info", 3)
        with pytest.raises(RpcError, match="expected contiguous tensors"):
            raw.call("tensor_copy", 2, 3)


def test_descriptions_have_strides(daemon):
    with Raw(daemon.socket) as raw:
        raw.make(1, "float32", [24], X.tobytes())
        raw.call("tensor_view", 2, 1, 0, [4, 6], [1, 4])
        plan = raw.call("plan", "read_strided", [["float32", [4, 6], [1, 4]]], {})
        assert plan["outputs"][0] == ["float32", [4, 6]]
        raw.call("prepare", 1, "forward", "read_strided", [["float32", [4, 6], [1, 4]]], {})
        raw.call("call", 1, [2, 3, 4])
        read = np.frombuffer(raw.call("tensor_read", 3, 0), np.float32).reshape(4, 6)
        assert (read == X.reshape(6, 4).T ** 2).all()
        raw.make(5, "float32", [4, 6], X.tobytes())
        with pytest.raises(RpcError, match="expected float32 .4, 6. with strides .1, 4. as what was prepared"):
            raw.call("call", 1, [5, 6, 7])


def test_kernels_end_where_the_last_element_does(client):
    if client.tensor(X).device != "cpu":
        pytest.skip("bounds are the CPU device's")
    x = client.tensor(X)
    with pytest.raises(opd.KernelFault, match="read of 'x'"):
        client.ops.strided_outside(x.view((12,), strides=(2,)))


def test_strided_views_outlive_an_upgrade(daemon, client):
    x = client.tensor(X)
    turned = x.view((4, 6), strides=(1, 4))
    _, context = client.ops.read_strided.forward(turned)
    client.upgrade()
    (gx,) = context.backward(client.tensor(np.ones((4, 6), np.float32)), None)
    assert np.allclose(gx.numpy(), 2 * X.reshape(6, 4).T)
    assert (turned.numpy() == X.reshape(6, 4).T).all() and turned.strides == (1, 4)
    assert (client.ops.read_strided(turned)[0].numpy() == X.reshape(6, 4).T ** 2).all()


def test_gradients_are_proved_of_strided_inputs():
    command = [Path(PROGRAM).parent / "opctl", "check", "--grad", KERNELS / "read_strided.cu"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "gradients  ok" in done.stdout, done.stdout + done.stderr
