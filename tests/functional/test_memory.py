"""Backward without a context, results in tensors that are there, and memory that the daemon and a
client share in place."""

import mmap
import os
import socket

import numpy as np
import pytest

from conftest import DEVICE
from raw import Raw, RpcError, eventually, find_roles, make_memfd

# y = x * exp(x + b), z = sum-less second output b-free: 2 * x. Saves e = exp(x + b); backward of x
# reads x, e; backward of b reads y. `b` is optional.
SCALED = """\
//! op      scaled(Tensor x, Tensor? b=None, *, float gain=1.0) -> (Tensor y, Tensor z)
//! dtypes  float32 float64
//! shape   x [...S]
//! shape   b [...S]
//! shape   y [...S]
//! shape   z [...S]
//! saved   e [...S]
//! scratch t [...S]
//! saved   u float64 [3]
//
//! forward
//!   kernel scaled_forward
//!   bind   n = numel(x)
//
//! backward grad_x
//!   kernel scaled_backward_x
//!   bind   n = numel(x)
//! backward grad_b
//!   kernel scaled_backward_b
//!   bind   n = numel(x)

__global__ void scaled_forward(const scalar_t *x, const scalar_t *b, scalar_t *y, scalar_t *z,
                               scalar_t *e, scalar_t *t, double *u, int64_t n, scalar_t gain)
{
    CUDA_KERNEL_LOOP(i, n) {
        if (gain == scalar_t(666))
            y[int64_t(1) << 40] = 1; // a fault
        e[i] = gain * exp(x[i] + (b ? b[i] : scalar_t(0)));
        t[i] = x[i] * e[i];
        y[i] = t[i];
        z[i] = 2 * x[i];
        if (i < 3)
            u[i] = i;
    }
}

__global__ void scaled_backward_x(const scalar_t *x, const scalar_t *e, const scalar_t *grad_y,
                                  const scalar_t *grad_z, scalar_t *grad_x, int64_t n)
{
    CUDA_KERNEL_LOOP(i, n)
        grad_x[i] = grad_y[i] * e[i] * (1 + x[i]) + 2 * grad_z[i];
}

__global__ void scaled_backward_b(const scalar_t *y, const double *u, const scalar_t *grad_y,
                                  scalar_t *grad_b, int64_t n)
{
    CUDA_KERNEL_LOOP(i, n)
        grad_b[i] = grad_y[i] * y[i] * scalar_t(u[1]);
}
"""
N = 1000
SHAPE = [10, 100]


def read_fds(raw, msgid):
    """The result of a request, and the descriptors that came with it."""
    fds = []
    while True:
        data, new, _, _ = socket.recv_fds(raw.sock, 1 << 16, 8)
        fds += new
        raw.unpacker.feed(data)
        for kind, id, error, result in raw.unpacker:
            assert kind == 1
            raw.replies[id] = (error, result)
        if msgid in raw.replies:
            return raw.wait(msgid), fds


def export(raw, id, export_id):
    info, fds = read_fds(raw, raw.request("tensor_export", id, export_id))
    assert len(fds) == (0 if info["chunk"] is None else 1)
    return info, fds[0] if fds else None


@pytest.fixture
def raw(start_daemon, tmp_path):
    (tmp_path / "scaled.cu").write_text(SCALED)
    daemon = start_daemon("--kernels", str(tmp_path))
    with Raw(daemon.socket) as raw:
        raw.daemon = daemon
        yield raw


def draw(seed):
    return np.random.default_rng(seed).uniform(-1, 1, SHAPE).astype(np.float32)


def put(raw, id, array):
    raw.make(id, str(array.dtype), list(array.shape), array.tobytes())


def get(raw, id):
    info = raw.call("tensor_info", id)
    return np.frombuffer(raw.call("tensor_read", id, 0), info["dtype"]).reshape(info["shape"])


def close_to(a, b):
    np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


DESC = ["float32", SHAPE]


def test_plan_says_what_a_forward_gives(raw):
    plan = raw.call("plan", "scaled", [DESC, None], {})
    assert plan == {
        "version": 1, "outputs": [DESC, DESC], "saved": [DESC, ["float64", [3]]],
        "views": [None, None],
    }  # fmt: skip
    status = raw.call("status")
    assert status["compilers"]["compiled"] + status["compilers"]["cache_hits"] == 0
    assert raw.fail("plan", "scaled", [None], {}).code == "invalid_argument"
    assert "same dtype" in str(raw.fail("plan", "scaled", [DESC, ["float64", SHAPE]], {}))
    assert "b has" in str(raw.fail("plan", "scaled", [DESC, ["float32", [10, 99]]], {}))
    assert raw.fail("plan", "scale", [DESC], {}).code == "not_found"
    assert raw.fail("plan", "scaled", [DESC], {}, {"version": 2}).code == "not_found"
    for bad in (3, [1, 2, 3], ["float32"], ["float32", 3], ["int3", []], ["float32", ["a"]]):
        assert raw.fail("plan", "scaled", [bad], {}).code == "invalid_argument"
    assert raw.fail("plan", "scaled", [DESC, DESC, DESC], {}).code == "invalid_argument"


def test_op_list_tells_what_backward_reads(raw):
    op = raw.call("op_info", "scaled")
    assert op["saved"] == ["e", "u"]
    assert [i["used_backward"] for i in op["inputs"]] == [True, False]
    assert [i["differentiable"] for i in op["inputs"]] == [True, True]
    assert [o["used_backward"] for o in op["outputs"]] == [True, False]


def run_forward(raw, gain=1.5):
    x, b = draw(1), draw(2)
    put(raw, 1, x)
    put(raw, 2, b)
    result = raw.call("forward", "scaled", [1, 2], {"gain": gain}, [3, 4], {"saved": [5, 6]})
    assert [t["id"] for t in result["saved"]] == [5, 6]
    assert result["context"] is None and result["version"] == 1
    return x.astype(np.float64), gain * np.exp(x.astype(np.float64) + b)


def test_saved_tensors_are_the_client_s(raw):
    x, e = run_forward(raw)
    close_to(get(raw, 3), x * e)
    close_to(get(raw, 5), e)
    assert list(get(raw, 6)) == [0, 1, 2]
    assert "context and saved" in str(
        raw.fail("forward", "scaled", [1], {}, [13, 14], {"saved": [15, 16], "context": 1})
    )
    for bad in ([15], [15, 15], [15, 13], [15, 1], [15, None], 7):
        error = raw.fail("forward", "scaled", [1], {}, [13, 14], {"saved": bad})
        assert error.code == "invalid_argument", bad
    raw.call("free", "tensor", [5])
    assert raw.fail("tensor_info", 5).code == "not_found"


def test_vjp_is_backward_of_what_the_client_kept(raw):
    x, e = run_forward(raw)
    gy, gz = draw(3), draw(4)
    put(raw, 7, gy)
    put(raw, 8, gz)
    # b is present, but not read: its shape is told.
    options = {"version": 1, "inputs": [None, DESC]}
    grads = raw.call("vjp", "scaled", [1], [3], [5, 6], [7, 8], {"gain": 1.5}, [9, 10], options)
    assert [g["id"] for g in grads] == [9, 10]
    close_to(get(raw, 9), gy * e * (1 + x) + 2 * gz)
    close_to(get(raw, 10), gy * x * e)
    # Only what is wanted, with zeros for an absent gradient, and without what that does not read.
    grads = raw.call("vjp", "scaled", [1], [None], [5], [7], {"gain": 1.5}, [11, None], options)
    assert grads[1] is None
    close_to(get(raw, 11), gy * e * (1 + x))
    grads = raw.call("vjp", "scaled", [None, 2], [3], [None, 6], [7, None], {}, [None, 12],
                     {"inputs": [DESC]})  # fmt: skip
    close_to(get(raw, 12), gy * x * e)


def test_vjp_checks_what_it_gets(raw):
    run_forward(raw)
    put(raw, 7, draw(3))
    put(raw, 8, draw(3)[:5])
    good = [[1, 2], [3], [5, 6], [7], {}, [20, 21]]

    def refuse(part, value, options=None, code="invalid_argument"):
        params = list(good)
        params[part] = value
        error = raw.fail("vjp", "scaled", *params, options or {})
        assert error.code == code, error
        return str(error)

    assert "e is float32 [5, 100], expected float32 [10, 100]" in refuse(2, [8, 6])
    assert "y is float32 [5, 100]" in refuse(1, [8])
    assert "grad_y is float32 [5, 100]" in refuse(3, [8])
    assert "backward reads y" in refuse(1, [])
    assert "backward reads e" in refuse(2, [None, 6])
    assert "backward reads x" in refuse(0, [None, 2], {"inputs": [DESC]})
    assert "x is missing" in refuse(0, [None, 2])
    refuse(2, [5, 6, 7])
    refuse(5, [20])
    refuse(5, [20, 20])
    refuse(5, [20, 1])
    refuse(2, [5, 99], code="not_found")
    assert "run forward again" in refuse(5, [20, 21], {"version": 9}, "not_found")
    refuse(5, [20, 21], {"inputs": 3})
    assert raw.fail("tensor_info", 20).code == "not_found"


def test_results_go_into_tensors_that_are_there(raw):
    x, e = run_forward(raw)
    raw.make(30, "float32", [3, 10, 100])
    raw.call("tensor_view", 31, 30, N, SHAPE)
    put(raw, 7, draw(3))
    result = raw.call("forward", "scaled", [1, 2], {"gain": 1.5}, [None, 32], {"into": [31]})
    assert [t["id"] for t in result["outputs"]] == [31, 32]
    close_to(get(raw, 31), x * e)
    whole = get(raw, 30)
    assert not whole[0].any() and not whole[2].any()
    raw.call("tensor_view", 33, 30, 2 * N, SHAPE)
    grads = raw.call("vjp", "scaled", [1, 2], [31], [5, 6], [7], {}, [33 + 1, None],
                     {"into": [None, 33]})  # fmt: skip
    assert [g["id"] for g in grads] == [34, 33]
    close_to(get(raw, 33), draw(3) * x * e)


def test_into_must_fit_and_stand_apart(raw):
    run_forward(raw)
    put(raw, 8, draw(3)[:5])
    raw.make(30, "float32", [30, 100])
    raw.call("tensor_view", 31, 30, 0, SHAPE)
    raw.call("tensor_view", 32, 30, N - 1, SHAPE)

    def refuse(ids, into):
        error = raw.fail("forward", "scaled", [1], {}, ids, {"into": into})
        assert error.code == "invalid_argument", error
        return str(error)

    assert "expected float32 [10, 100] as the result" in refuse([None, 40], [8])
    assert "lies in the memory of x" in refuse([None, 40], [1])
    assert "another result" in refuse([None, None], [31, 32])
    assert "must be nil" in refuse([41, 40], [31])
    refuse([None, 40], [])
    refuse([None, 40], 3)
    refuse([None, 40], [31, None, None])
    assert raw.fail("tensor_info", 40).code == "not_found"
    assert raw.call("tensor_info", 31)["shape"] == SHAPE


def test_into_counts_as_a_write(raw):
    put(raw, 1, draw(1))
    put(raw, 2, draw(2))
    put(raw, 7, draw(3))
    raw.call("forward", "scaled", [1], {}, [3, 4], {"context": 1})
    raw.call("forward", "scaled", [2], {}, [None, 5], {"into": [3]})
    assert "was written after forward" in str(raw.fail("backward", 1, [None, 7], [8, None]))


def test_failed_request_keeps_the_tensor_it_was_to_fill(raw):
    put(raw, 1, draw(1))
    raw.make(3, "float32", SHAPE)
    error = raw.fail("forward", "scaled", [1], {"gain": 666}, [None, 6], {"into": [3]})
    assert error.code == "kernel_fault"
    assert "scaled" in str(raw.fail("tensor_read", 3, 0))  # nobody knows what is in it
    assert raw.call("tensor_info", 3)["shape"] == SHAPE
    assert raw.fail("tensor_info", 6).code == "not_found"
    raw.call("forward", "scaled", [1], {}, [None, 6], {"into": [3]})
    close_to(get(raw, 3), draw(1) * np.exp(draw(1)))


# --- export


def test_export_shares_the_chunk(raw):
    x = draw(1)
    put(raw, 1, x)
    raw.request("tensor_write", 1, 0, (2 * x).tobytes())
    info, fd = export(raw, 1, 1)
    assert info["device"] == DEVICE and info["size"] == 4 * N
    assert info["offset"] + info["size"] <= info["chunk_size"]
    again, other = export(raw, 1, 2)
    assert again == info
    os.close(other)
    if DEVICE == "cpu":
        with mmap.mmap(fd, info["chunk_size"]) as memory:
            at = info["offset"]
            seen = np.frombuffer(memory, np.float32, N, at).reshape(SHAPE)
            np.testing.assert_array_equal(seen, 2 * x)
            seen[0, 0] = 77
            assert get(raw, 1)[0, 0] == 77
            del seen
    os.close(fd)
    raw.call("free", "export", [1, 2])
    assert raw.fail("free", "export", [1]).code == "not_found"


def test_export_holds_the_memory(raw):
    def used():
        return sum(d["memory_used"] for d in raw.call("status")["devices"])

    before = used()
    put(raw, 1, draw(1))
    info, fd = export(raw, 1, 1)
    os.close(fd)
    raw.call("free", "tensor", [1])
    assert used() > before
    raw.call("free", "export", [1])
    assert used() == before
    put(raw, 1, draw(1))
    with Raw(raw.daemon.socket) as other:
        other.make(1, "float32", SHAPE)
        os.close(export(other, 1, 1)[1])
    raw.call("free", "tensor", [1])
    assert eventually(lambda: used() == before)


def test_many_exports_come_in_order(raw):
    ids = range(1, 201)
    for id in ids:
        raw.make(id, "float32", [200 + id])
    sent = [raw.request("tensor_export", id, id) for id in ids]
    fds, results = [], {}
    while len(results) < len(sent):
        data, new, _, _ = socket.recv_fds(raw.sock, 1 << 16, 16)
        fds += new
        raw.unpacker.feed(data)
        for _, msgid, error, result in raw.unpacker:
            assert error is None
            results[msgid] = result
    assert len(fds) == len(sent)
    assert [results[m]["size"] for m in sent] == [4 * (200 + id) for id in ids]
    for fd in fds:
        os.close(fd)


def test_export_refuses(raw):
    raw.make(1, "float32", [2])
    raw.make(2, "float32", [0])
    assert raw.fail("tensor_export", 9, 1).code == "not_found"
    os.close(export(raw, 1, 1)[1])
    assert "in use" in str(raw.fail("tensor_export", 1, 1))
    info, fd = export(raw, 2, 2)
    assert fd is None and info["chunk"] is None and info["size"] == 0
    raw.call("free", "export", [2])


def test_export_of_what_a_failed_request_was_to_make(raw):
    put(raw, 1, draw(1))
    raw.call("forward", "scaled", [1], {}, [3, 4])
    one = raw.request("forward", "scaled", [1], {"gain": 666}, [5, 6])
    two = raw.request("tensor_export", 5, 1)
    for msgid in (one, two):
        with pytest.raises(RpcError):
            raw.wait(msgid)
    assert raw.fail("free", "export", [1]).code == "not_found"


# --- import

on_cpu = pytest.mark.skipif(DEVICE != "cpu", reason="kernels of a GPU cannot use a memfd")


def open_memfd(raw, id, size):
    fd = make_memfd(size)
    raw.call("import_open", id, "cpu", "memfd", b"", size, fds=[fd])
    memory = mmap.mmap(fd, size)
    os.close(fd)
    return memory


@on_cpu
def test_kernels_work_in_a_client_s_memory(raw):
    memory = open_memfd(raw, 1, 64 << 10)
    x = np.frombuffer(memory, np.float32, N, 4).reshape(SHAPE)  # not aligned to 16
    y = np.frombuffer(memory, np.float32, N, 8192 + 12).reshape(SHAPE)
    x[:] = draw(1)
    raw.call("import_tensor", 1, 1, 4, "float32", SHAPE)
    info = raw.call("import_tensor", 2, 1, 8192 + 12, "float32", SHAPE)
    assert info["bytes"] == 4 * N and info["device"] == "cpu"
    raw.call("forward", "scaled", [1], {}, [None, 3], {"into": [2]})
    close_to(y, x * np.exp(x))
    x[:] = draw(2)
    raw.call("forward", "scaled", [1], {}, [None, 4], {"into": [2]})
    close_to(y, x * np.exp(x))
    np.testing.assert_array_equal(get(raw, 1), draw(2))
    assert "client shared" in str(raw.fail("tensor_export", 1, 1))


@on_cpu
def test_gelu_in_memory_of_any_alignment(start_daemon):
    daemon = start_daemon()
    with Raw(daemon.socket) as raw:
        memory = open_memfd(raw, 1, 1 << 16)
        for k in range(1, 9):
            x = np.frombuffer(memory, np.float32, 999, 4 * k)
            x[:] = np.linspace(-3, 3, 999)
            raw.call("import_tensor", 2 * k, 1, 4 * k, "float32", [999])
            raw.call("import_tensor", 2 * k + 1, 1, 8192 + 4 * (9 - k), "float32", [999])
            raw.call("forward", "gelu", [2 * k], {}, [None], {"into": [2 * k + 1]})
            close_to(get(raw, 2 * k + 1), x / (1 + np.exp(-1.702 * x)))


@on_cpu
def test_import_outlives_its_executor(raw):
    memory = open_memfd(raw, 1, 8192)
    x = np.frombuffer(memory, np.float32, N).reshape(SHAPE)
    x[:] = draw(1)
    raw.call("import_tensor", 1, 1, 0, "float32", SHAPE)
    (pid,) = find_roles(raw.daemon.pid, "executor")
    os.kill(pid, 9)
    assert eventually(lambda: find_roles(raw.daemon.pid, "executor") not in ([], [pid]))
    raw.call("forward", "scaled", [1], {}, [2, 3])
    close_to(get(raw, 2), x * np.exp(x))


def maps_of(pid):
    with open(f"/proc/{pid}/maps") as file:
        return sum("opd-test" in line for line in file)


@on_cpu
def test_import_is_unmapped_with_its_last_tensor(raw):
    (pid,) = find_roles(raw.daemon.pid, "executor")
    open_memfd(raw, 1, 8192)
    assert maps_of(pid) == 1
    raw.call("import_tensor", 1, 1, 0, "float32", SHAPE)
    raw.call("tensor_view", 2, 1, 4, [10])
    raw.call("free", "import", [1])
    raw.call("free", "tensor", [1])
    assert maps_of(pid) == 1
    assert raw.fail("import_tensor", 3, 1, 0, "float32", SHAPE).code == "not_found"
    raw.call("free", "tensor", [2])
    assert eventually(lambda: maps_of(pid) == 0)
    open_memfd(raw, 1, 8192)
    raw.call("free", "import", [1])
    assert maps_of(pid) == 0
    with Raw(raw.daemon.socket) as other:
        open_memfd(other, 1, 8192)
        other.call("import_tensor", 1, 1, 0, "float32", SHAPE)
    assert eventually(lambda: maps_of(pid) == 0)


@on_cpu
def test_import_refuses(raw):
    fd, loose = make_memfd(4096), make_memfd(4096, seal=False)

    def refuse(*params, fds=(), code="invalid_argument"):
        error = raw.fail("import_open", *params, fds=fds)
        assert error.code == code, error
        return str(error)

    assert "no file descriptor" in refuse(1, "cpu", "memfd", b"", 4096)
    assert "sealed" in refuse(1, "cpu", "memfd", b"", 4096, fds=[loose])
    assert "4096 bytes" in refuse(1, "cpu", "memfd", b"", 4097, fds=[fd])
    refuse(1, "cpu", "memfd", b"", -1, fds=[fd])
    refuse(1, "cpu", "memfd", 7, 4096, fds=[fd])
    refuse(1, "cuda:7", "memfd", b"", 4096, fds=[fd], code="not_found")
    assert "memory of CUDA" in refuse(1, "cpu", "cuda_ipc", b"\0" * 64, 4096)
    assert "expected 'cuda_ipc' or 'memfd'" in refuse(1, "cpu", "dmabuf", b"", 4096)
    raw.call("import_open", 1, "cpu", "memfd", b"", 4096, fds=[fd])
    assert "in use" in refuse(1, "cpu", "memfd", b"", 4096, fds=[fd])
    os.close(fd)
    os.close(loose)
    for offset, dtype, shape in ((1, "float32", [1]), (-4, "float32", [1]), (4096, "float32", [1]),
                                 (8, "float64", [512]), (0, "float32", [1 << 40]),
                                 (0, "float3", [1]), (1 << 62, "int8", [1])):  # fmt: skip
        error = raw.fail("import_tensor", 1, 1, offset, dtype, shape)
        assert error.code == "invalid_argument", error
    assert raw.call("import_tensor", 1, 1, 4096, "float32", [0])["bytes"] == 0
    raw.call("import_tensor", 2, 1, 4095, "uint8", [1])
    assert raw.fail("free", "import", [2]).code == "not_found"
    assert raw.call("sync") is None


def test_wrong_kind_for_a_gpu(raw):
    if DEVICE == "cpu":
        pytest.skip("needs a GPU")
    fd = make_memfd(4096)
    assert "cannot use a memfd" in str(
        raw.fail("import_open", 1, DEVICE, "memfd", b"", 4096, fds=[fd])
    )
    os.close(fd)
    assert raw.fail("import_open", 1, DEVICE, "cuda_ipc", b"\1" * 64, 4096).code != "internal"
    assert raw.fail("import_open", 1, DEVICE, "cuda_ipc", b"\1" * 63, 4096).code == "invalid_argument"
    assert raw.fail("import_tensor", 1, 1, 0, "float32", [1]).code == "not_found"
