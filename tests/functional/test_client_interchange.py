"""Tensors in place for other libraries, and theirs for the daemon: DLPack, __array__,
__cuda_array_interface__."""

import gc
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import opd
from conftest import DEVICE, ROOT
from raw import eventually

pytestmark = pytest.mark.unsanitized("of the client in Python")

TORCH = {"bool": torch.bool, "uint8": torch.uint8, "int8": torch.int8, "int16": torch.int16,
         "int32": torch.int32, "int64": torch.int64, "float16": torch.float16,
         "bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}  # fmt: skip
on_cpu = pytest.mark.skipif(DEVICE != "cpu", reason="NumPy takes memory of the host")
on_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
SHAPES = [[], [1], [7], [2, 3, 5], [3, 0, 2], [2, 1, 3]]


def draw(shape, dtype="float32"):
    numbers = np.random.default_rng(3).integers(0, 2 if dtype == "bool" else 100, shape)
    return np.asarray(numbers).astype("float32" if dtype == "bfloat16" else dtype)


def count_maps():
    with open("/proc/self/maps") as file:
        return sum("opd-chunk" in line for line in file)


def used(client):
    client.synchronize()
    return sum(d["memory_used"] for d in client.status()["devices"])


@on_cpu
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [d for d in TORCH if d != "bfloat16"])
def test_numpy_takes_the_memory(client, dtype, shape):
    x = draw(shape, dtype)
    t = client.tensor(x)
    array = np.from_dlpack(t)
    assert array.dtype == x.dtype and array.shape == x.shape
    np.testing.assert_array_equal(array, x)
    if x.size:
        t.write(x[..., ::-1] if x.ndim else x + x)
        np.testing.assert_array_equal(array, t.numpy())
        assert array.flags.writeable
        array[...] = 1
        assert (t.numpy() == 1).all()


@on_cpu
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", TORCH)
def test_torch_takes_the_memory(client, dtype, shape):
    t = client.tensor(draw(shape, dtype), dtype=dtype)
    taken = torch.from_dlpack(t)
    assert taken.dtype == TORCH[dtype] and list(taken.shape) == shape
    np.testing.assert_array_equal(taken.float().numpy(), t.numpy().astype(np.float32))
    if taken.numel():
        taken.fill_(1)
        assert (t.numpy().astype(np.float32) == 1).all()


@on_cpu
def test_memory_is_the_consumer_s_until_it_is_done(client):
    gc.collect()
    before, maps = used(client), count_maps()
    t = client.tensor(draw([1000]))
    array = np.from_dlpack(t)
    assert count_maps() == maps + 1
    view = array[10:20]
    t.free()
    del t, array
    gc.collect()
    for _ in range(5):
        client.tensor(np.zeros(1000, np.float32))
    np.testing.assert_array_equal(view, draw([1000])[10:20])
    assert used(client) > before
    del view
    gc.collect()
    assert eventually(lambda: used(client) == before)
    assert count_maps() == maps


@on_cpu
def test_capsule_that_nobody_takes(client):
    gc.collect()
    before, maps = used(client), count_maps()
    t = client.tensor(draw([1000]))
    for version in (None, (0, 8), (1, 0), (1, 3)):
        capsule = t.__dlpack__(max_version=version)
        assert f"dltensor{'_versioned' if version and version[0] else ''}" in repr(capsule)
        del capsule
    t.free()
    assert used(client) == before and count_maps() == maps


@on_cpu
def test_a_consumer_that_refuses_says_why(client):
    """NumPy has no bfloat16; it drops the capsule while its exception is on the way."""
    gc.collect()
    before, maps = used(client), count_maps()
    t = client.tensor(draw([1000]), "bfloat16")
    with pytest.raises((RuntimeError, BufferError), match="dtype"):
        np.from_dlpack(t)
    t.free()
    assert used(client) == before and count_maps() == maps


@on_cpu
def test_capsules_that_wait(client):
    """One that its user holds, or that was taken, is kept whatever becomes of others."""
    t = client.tensor(draw([1000]))
    held = [t.__dlpack__() for _ in range(3)]
    taken = np.from_dlpack(t)
    t.__dlpack__()
    t.free()
    arrays = [torch.from_dlpack(capsule) for capsule in held]
    for array in (taken, *arrays):
        np.testing.assert_array_equal(np.asarray(array), draw([1000]))


@on_cpu
@pytest.mark.parametrize("dtype", ["float32", "int32", "bool"])
def test_jax_takes_the_memory(client, dtype):
    jax = pytest.importorskip("jax")
    x = draw([2, 3], dtype)
    t = client.tensor(x)
    for taken in (jax.numpy.asarray(t), jax.numpy.from_dlpack(t), jax.dlpack.from_dlpack(t)):
        np.testing.assert_array_equal(np.asarray(taken), x)
    there = jax.devices("cpu" if client.info["default_device"] == "cpu" else None)[0]
    np.testing.assert_array_equal(client.tensor(jax.device_put(x, there)).numpy(), x)


@on_cpu
def test_several_chunks_and_many_arrays(client):
    tensors = [client.tensor(draw([1 << 16]) + k) for k in range(200)]
    big = client.zeros([40 << 20], "float32")
    arrays = [np.from_dlpack(t) for t in tensors]
    whole = np.from_dlpack(big)
    for k, array in enumerate(arrays):
        assert array[5] == draw([1 << 16])[5] + k
    assert len({a.ctypes.data for a in arrays}) == 200
    whole[-1] = 3
    assert big.read(offset=(40 << 20) - 1)[0] == 3


@on_cpu
def test_results_are_ready(client):
    x = client.tensor(np.linspace(-3, 3, 1 << 20, dtype=np.float32))
    with client.batch():
        y = x
        for _ in range(10):
            y = client.ops.gelu(y)
        array = np.from_dlpack(y)
        first = array.copy()
    np.testing.assert_array_equal(first, y.numpy())


def test_dlpack_options(client):
    t = client.tensor(draw([4]))
    other = (2, 0) if DEVICE == "cpu" else (2, 7)
    with pytest.raises(BufferError, match="cannot be given to device"):
        t.__dlpack__(dl_device=other)
    host = np.from_dlpack(t, device="cpu", copy=True)
    np.testing.assert_array_equal(host, draw([4]))
    host[:] = 0
    np.testing.assert_array_equal(t.numpy(), draw([4]))
    assert t.__dlpack_device__() == ((1, 0) if DEVICE == "cpu" else (2, int(DEVICE[5:])))
    t.free()
    with pytest.raises(opd.NotFound):
        t.__dlpack__()


@on_cpu
def test_asarray_without_a_copy(client):
    t = client.tensor(draw([4]))
    array = np.asarray(t, copy=False)
    array[0] = 50
    assert t.numpy()[0] == 50
    assert np.asarray(t, "float32", copy=False)[0] == 50
    copy = np.asarray(t)
    copy[0] = 1
    assert t.numpy()[0] == 50
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(t, "float64", copy=False)
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(client.tensor(draw([4]), dtype="bfloat16"), copy=False)
    assert not hasattr(t, "__cuda_array_interface__")


def test_copy_is_a_tensor_of_its_own(client):
    t = client.tensor(draw([2, 3]))
    other = t._copy()
    t.write(np.zeros([2, 3], np.float32))
    np.testing.assert_array_equal(other.numpy(), draw([2, 3]))
    assert other.device == t.device and other.shape == (2, 3)
    assert client.zeros([0])._copy().shape == (0,)


class OnlyDLPack:
    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def test_client_takes_what_has_dlpack(client):
    x = draw([3, 4], "int16")
    t = client.tensor(OnlyDLPack(x))
    assert t.dtype == "int16"
    np.testing.assert_array_equal(t.numpy(), x)
    np.testing.assert_array_equal(client.tensor(client.tensor(x)).numpy(), x)


@on_cpu
def test_array_of_a_gpu_for_a_daemon_without_one(client):
    class OnGpu(OnlyDLPack):
        def __dlpack_device__(self):
            return (2, 0)

    with pytest.raises(opd.InvalidArgument, match="cuda:0 cannot go to the daemon's cpu; copy it"):
        client.tensor(OnGpu(torch.zeros(3)))


def test_plan(client):
    plan = client.plan("gelu", [("float32", (2, 3))], {"approximate": "tanh"})
    assert plan == {
        "version": plan["version"], "outputs": [("float32", (2, 3))], "saved": [], "views": [None]
    }  # fmt: skip
    assert client.plan("flatten", [(np.float16, 5)])["views"] == [0]
    with pytest.raises(opd.InvalidArgument, match="expected one of"):
        client.plan("gelu", [("int32", (2,))])
    with pytest.raises(opd.InvalidArgument, match="missing"):
        client.plan("gelu", [None])


@on_cpu
def test_import_through_the_client(client):
    from raw import make_memfd
    import mmap

    fd = make_memfd(8192)
    memory = mmap.mmap(fd, 8192)
    opened = client._memory.import_open("cpu", "memfd", b"", 8192, fd)
    os.close(fd)
    x = np.frombuffer(memory, np.float32, 100)
    x[:] = draw([100])
    t = client._memory.import_tensor(opened, 0, "float32", [100])
    np.testing.assert_array_equal(t.numpy(), x)
    with pytest.raises(opd.InvalidArgument, match="client shared"):
        np.from_dlpack(t)
    client._memory.import_close([opened])
    t.free()


@on_cpu
def test_arrays_outlive_client_and_interpreter(daemon):
    script = f"""
import sys; sys.path.insert(0, {str(ROOT / "client/python")!r})
import numpy as np, opd, torch
client = opd.connect({daemon.socket!r}, start=False)
t = client.tensor(np.arange(5, dtype=np.float32))
array, taken, capsule = np.from_dlpack(t), torch.from_dlpack(t), t.__dlpack__()
client.close()
assert array[3] == 3 and taken[4] == 4
keep = sys.modules["builtins"].keep = [array, taken, capsule]
print("done")
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.stdout == "done\n" and result.returncode == 0, result.stderr
    assert not result.stderr


def test_descriptors_are_not_leaked(client):
    t = client.tensor(draw([10]))

    def share():
        capsule = t.__dlpack__()
        del capsule

    share()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        share()
    assert len(os.listdir("/proc/self/fd")) <= before


# --- on a GPU


@on_gpu
@pytest.mark.parametrize("dtype", TORCH)
def test_torch_takes_the_gpu_s_memory(client, dtype):
    if not torch.cuda.is_available():
        pytest.skip("torch without CUDA")
    t = client.tensor(draw([2, 3], dtype), dtype=dtype)
    taken = torch.from_dlpack(t)
    assert str(taken.device) == DEVICE and taken.dtype == TORCH[dtype]
    np.testing.assert_array_equal(taken.float().cpu().numpy(), t.numpy().astype(np.float32))
    taken.fill_(1)
    torch.cuda.synchronize()
    assert (t.numpy().astype(np.float32) == 1).all()
    t.free()
    assert (taken.float() == 1).all()
    del taken
    torch.cuda.synchronize()
    assert (torch.ones(10, device=DEVICE) + 1).sum().item() == 20


@on_gpu
def test_cupy_both_ways(client):
    cupy = pytest.importorskip("cupy")
    t = client.tensor(draw([20, 30]))
    for taken in (cupy.asarray(t), cupy.from_dlpack(t)):
        np.testing.assert_array_equal(taken.get(), draw([20, 30]))
        taken[0, 0] = 77
        cupy.cuda.Device().synchronize()
        assert t.numpy()[0, 0] == 77
        t.write(draw([20, 30]))
    again = client.tensor(cupy.asarray(draw([4, 5])) * 2)
    np.testing.assert_array_equal(again.numpy(), draw([4, 5]) * 2)
    with pytest.raises(opd.InvalidArgument, match="not contiguous"):
        client.tensor(cupy.asarray(draw([4, 5])).T)


@on_gpu
def test_ipc_import_lives_with_torch_memory(client):
    """Kernels read and write PyTorch's own memory, at any alignment, also after a restart."""
    if not torch.cuda.is_available():
        pytest.skip("torch without CUDA")
    from opd import _cuda

    pool = torch.linspace(-3, 3, 5000, device=DEVICE)
    torch.cuda.synchronize()
    handle, size, offset = _cuda.get_ipc_handle(int(DEVICE[5:]), pool.data_ptr())
    opened = client._memory.import_open(DEVICE, "cuda_ipc", handle, size)
    for k in (0, 1, 2, 3):
        x = client._memory.import_tensor(opened, offset + 4 * k, "float32", [999])
        y = client.ops.gelu(x).numpy()
        expected = pool[k : k + 999].double()
        expected = (expected / (1 + torch.exp(-1.702 * expected))).cpu().numpy()
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
        x.write(np.full(999, k, np.float32))
        assert (pool[k : k + 999] == k).all()
        x.free()
    client._memory.import_close([opened])
    assert (pool[3:1002] == 3).all()
