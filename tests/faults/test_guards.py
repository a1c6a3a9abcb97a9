"""Kernels that leave their tensors, or end otherwise than by returning, on the CPU device: the
error names what happened and where, and no other tensor changes."""

import os

import numpy as np
import pytest

import opd
from planted import Planted

pytestmark = pytest.mark.skipif(
    os.environ.get("OPD_TEST_DEVICE", "cpu") != "cpu", reason="a GPU does not name them")

DEEP = """
static __device__ int deep(int n, volatile int *p)
{
    volatile int a[100];
    a[n % 100] = n;
    return n == *p ? 0 : deep(n + 1, p) + a[(n + 1) % 100]; // deep
}
"""
WIDE = """
static __device__ int wide(int n)
{
    volatile char a[60000];
    a[n % 60000] = char(n);
    return n < 0 ? 0 : wide(n + 1) + a[(n + 1) % 60000]; // deep
}
"""

# name -> what stands before the kernel, its line
BODIES = {
    "reads": ("", "y[i] = x[i + by];"),
    "writes": ("", "y[i + by] = x[i];"),
    "loads": ("", "y[i] = __ldg(x + i + by);"),
    "waits": ("", "__syncthreads(); y[i] = x[i + by];"),
    "copies": ("", "if (i == 0) memcpy(y, x + by, N * sizeof *x);"),
    "absent": ("", "y[i] = bias[i];"),
    "divides": ("", "y[i] = scalar_t(float(int(N) / int(by)));"),
    "aborts": ('extern "C" void abort(void);', "if (i == 3) abort();"),
    "exits": ('extern "C" void exit(int);', "if (i == 3) exit(7);"),
    "traps": ("", "if (i == 3) __builtin_trap();"),
    "recurses": (DEEP, "int n = int(by); y[i] = scalar_t(float(deep(1, &n)));"),
    "widens": (WIDE, "y[i] = scalar_t(float(wide(1)));"),
    "quads": ("", "if (i == 0) *(float4 *)y = *(const float4 *)(x + by);"),
    "wild": ("", "y[i] = *(const scalar_t *)(by + i);"),
    "good": ("", "y[i] = x[i];"),
}


planted = Planted("float16 float32 float64 int64", BODIES)
source, line = planted.source, planted.line


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    return planted.write(tmp_path_factory.mktemp("kernels"))


@pytest.fixture
def client(start_daemon, kernels):
    with start_daemon("--kernels", kernels).connect() as client:
        yield client


def fault(client, name, x, **options):
    with pytest.raises(opd.KernelFault) as error:
        getattr(client.ops, name)(x, **options)
    return str(error.value)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64"])
@pytest.mark.parametrize("n", [1, 7, 1000, 1001, 4096, 100003])
def test_one_element_too_far(client, n, dtype):
    x = client.tensor(np.arange(n).astype(dtype))
    assert f": out-of-bounds read of 'x': element {n} of {n} ({dtype}), {line('reads')} in " in (
        fault(client, "reads", x, by=1))
    assert f": out-of-bounds write of 'y': element {n} of {n} ({dtype}), {line('writes')} in " in (
        fault(client, "writes", x, by=1))
    np.testing.assert_array_equal(x.numpy(), np.arange(n).astype(dtype))


@pytest.mark.parametrize("name, line_of", [("loads", "loads"), ("waits", "waits"), ("copies", "copies")])
def test_through_inlined_code_fibers_and_libc(client, name, line_of):
    x = client.tensor(np.arange(1000, dtype="float32"))
    message = fault(client, name, x, by=1)
    assert "out-of-bounds read of 'x': element 1000 of 1000 (float32)" in message
    assert line(line_of) in message


@pytest.mark.parametrize("by", [-100_000, -(1 << 24), 5000, 1 << 20, 30_000_000])
def test_far_outside(client, by):
    x = client.tensor(np.arange(1000, dtype="float32"))
    message = fault(client, "writes", x, by=by)
    assert f"out-of-bounds write of 'y': element {by} of 1000" in message or by > 0
    assert "out-of-bounds write of 'y': element " in message and line("writes") in message
    message = fault(client, "wild", x, by=1 << 46)
    assert "read at address 0x400000000" in message and line("wild") in message


def test_before_the_start(client):
    x = client.tensor(np.arange(1024, dtype="float32"))  # begins at a page
    assert "out-of-bounds read of 'x': element -1 of 1024" in fault(client, "reads", x, by=-1)
    assert "out-of-bounds write of 'y': element -1 of 1024" in fault(client, "writes", x, by=-1)
    x = client.tensor(np.arange(1000, dtype="float32"))  # begins within one
    assert "out-of-bounds write of 'y': element -1 of 1000" in fault(client, "writes", x, by=-1)
    assert np.isnan(client.ops.reads(x, by=-1).numpy()[0])


def test_others_are_bit_for_bit_as_they_were(client):
    random = np.random.default_rng(3)
    expected = [random.integers(0, 256, n, dtype=np.uint8) for n in
                (1, 5, 511, 512, 513, 4095, 4096, 4097, 12288, 100_001) for _ in range(3)]
    others = [client.tensor(bytes_) for bytes_ in expected]
    x = client.tensor(np.arange(999, dtype="float64"))
    for by in (1, -1, 64, 512, 600, -600, 4096, 100_000, -100_000, 1 << 33, -(1 << 36)):
        assert "writes" in fault(client, "writes", x, by=by)
    for tensor, bytes_ in zip(others, expected):
        np.testing.assert_array_equal(tensor.numpy(), bytes_)
    np.testing.assert_array_equal(x.numpy(), np.arange(999.0))


def test_many_tensors_move_and_come_back(client):
    """Memory is given out anew all the time; what kernels see follows it."""
    random = np.random.default_rng(4)
    kept = {}
    for i in range(400):
        n = int(random.integers(1, 30_000))
        values = random.standard_normal(n).astype("float32")
        y = client.ops.good(client.tensor(values))
        if random.random() < 0.5 and kept:
            kept.pop(random.choice(list(kept)))
        kept[i] = (y, values)
    for y, values in kept.values():
        np.testing.assert_array_equal(y.numpy(), values)


def test_more_tensors_than_are_kept_in_sight(client):
    """Mappings of those used least lately are given up, and made again."""
    n = 3000
    with client.batch():
        inputs = [client.tensor(np.full(9, i, "float32")) for i in range(n)]
        outputs = [client.ops.good(x) for x in inputs]
    for i in (0, 1, n // 2, n - 1):
        assert client.ops.good(outputs[i]).numpy().tolist() == [i] * 9
    assert "out-of-bounds read of 'x': element 9 of 9" in fault(client, "reads", inputs[0], by=1)
    assert all(outputs[i].numpy().tolist() == [i] * 9 for i in range(0, n, 97))


def test_an_absent_input_is_named(client):
    x = client.tensor(np.ones(10, "float32"))
    message = fault(client, "absent", x)
    assert ": read through a null pointer: 'bias' is null here" in message
    assert line("absent") in message
    np.testing.assert_array_equal(client.ops.absent(x, x).numpy(), np.ones(10))


@pytest.mark.parametrize("name, what, mark", [
    ("divides", "SIGFPE: integer division by zero", "// here"),
    ("aborts", "SIGABRT: it called abort()", "// here"),
    ("exits", "it called exit(7)", "// here"),
    ("traps", "SIGILL: ", "// here"),
    ("recurses", "stack overflow: a thread of a kernel has 128 KiB", "// deep"),
    ("widens", "stack overflow: a thread of a kernel has 128 KiB", "// deep"),
])
def test_other_ends(client, name, what, mark):
    x = client.tensor(np.arange(1000, dtype="float32"))
    message = fault(client, name, x)
    assert message.startswith(f"{name} version 1 forward, kernel {name} (") and f": {what}" in message
    if mark == "// here":
        assert line(name, mark) in message
    else:  # anywhere in the function that calls itself
        begin, end = source(name)[:source(name).index("{")].count("\n"), int(line(name, mark).split(":")[1])
        assert any(f"{name}.cu:{n} " in message for n in range(begin, end + 1)), message
    np.testing.assert_array_equal(client.ops.good(x).numpy(), np.arange(1000))


def test_a_misaligned_vector(client):
    x = client.tensor(np.arange(16, dtype="float32"))
    assert client.ops.quads(x, by=4).numpy()[:4].tolist() == [4, 5, 6, 7]
    message = fault(client, "quads", x, by=1)
    assert "misaligned" in message and line("quads") in message


def test_a_view_and_many_workers(client):
    """Large launches run on all cores: the fault of one of them is told."""
    n = 1 << 22
    x = client.tensor(np.ones(n, "float32"))
    assert f"element {n} of {n}" in fault(client, "reads", x, by=1)
    np.testing.assert_array_equal(client.ops.good(x).numpy(), np.ones(n))


def test_each_fault_restarts_the_device_once(client):
    x = client.tensor(np.ones(10, "float32"))
    before = client.status()["devices"][0]["restarts"]
    fault(client, "reads", x, by=1)
    client.ops.good(x)
    assert client.status()["devices"][0]["restarts"] == before + 1
