"""What opd compiles for the CPU: functions in place of the C library's, and 16 bits."""

import math
import platform
import re

import numpy as np
import pytest

from conftest import DEVICE

pytestmark = [pytest.mark.as_shipped, pytest.mark.unsanitized("of what kernels work out")]

FUNCTIONS = {
    "exp": np.exp, "expm1": np.expm1, "log": np.log, "log1p": np.log1p, "tanh": np.tanh,
    "asin": np.arcsin, "acos": np.arccos, "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "erfc": np.vectorize(math.erfc, otypes=[np.float64]),
}  # fmt: skip

OPERATOR = """\
//! op      my_{0}(Tensor x) -> Tensor y
//! dtypes  float32 float64
//! shape   x [...S]
//! shape   y [...S]
//! example x=[100]
//! forward
//!   kernel k
//!   bind   n = numel(x)
__global__ void k(const scalar_t *x, scalar_t *y, int n)
{{
    CUDA_KERNEL_LOOP(i, n) y[i] = sizeof x[i] == 4 ? {0}f(x[i]) : {0}(x[i]);
}}
"""


@pytest.fixture
def client(start_daemon, tmp_path):
    for name in FUNCTIONS:
        text = OPERATOR.format(name)
        (tmp_path / f"my_{name}.cu").write_text(text)
    return start_daemon("--kernels", str(tmp_path)).connect()


def inputs():
    """Floats of every size and both signs, more of them between -2 and 2, and what is special."""
    some = np.arange(0, 1 << 32, 40009, dtype=np.uint64).astype(np.uint32).view(np.float32)
    special = [0.0, -0.0, 1, -1, 0.5, -0.5, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3.4e38, -3.4e38]
    near = np.linspace(-2, 2, 50001, dtype=np.float32)
    large = np.linspace(-110, 110, 50001, dtype=np.float32)
    return np.concatenate([some, np.float32(special), near, large])


def find_worst(got, exact, dtype):
    """In units in the last place, and where."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(dtype)
        unit = np.spacing(np.abs(rounded)).astype(np.float64)
        same = (np.isnan(got) & np.isnan(exact)) | (got == rounded)
        error = np.where(same, 0, np.abs(got - exact) / unit)
    error = np.where(np.isnan(error), np.inf, error)
    return error.max(), np.argmax(error)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_errors_in_last_places(client, name):
    x = inputs()
    got = client.ops[f"my_{name}"](client.tensor(x)).numpy().astype(np.float64)
    with np.errstate(all="ignore"):
        exact = FUNCTIONS[name](x.astype(np.float64))
    error, at = find_worst(got, exact, np.float32)
    most = 3 if DEVICE == "cpu" else 4  # CUDA's manual says so of its erfcf
    assert error < most, f"{name}({x[at]}) is {got[at]}, expected {exact[at]}"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_errors_in_last_places_of_double(client, name):
    """Beside the C library's, which errs by less than 1."""
    rng = np.random.default_rng(1)
    some = rng.integers(0, 1 << 64, 20000, np.uint64).view(np.float64)
    special = [0.0, -0.0, 1, -1, 0.5, np.inf, -np.inf, np.nan, 5e-324, -5e-324, 1.7e308, -1.7e308, 709.78, -745.1]
    x = np.concatenate([some, special, *(rng.uniform(-n, n, 20000) for n in (1, 3, 30, 750))])
    got = client.ops[f"my_{name}"](client.tensor(x)).numpy()
    with np.errstate(all="ignore"):
        exact = FUNCTIONS[name](x)
    error, at = find_worst(got, exact, np.float64)
    assert error <= 5, f"{name}({x[at]}) is {got[at]}, expected {exact[at]}"
    assert np.array_equal(np.signbit(got[got == 0]), np.signbit(exact[got == 0]))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="reads the machine's code")
def test_a_choice_between_16_bit_values_is_vectorised(start_daemon):
    """Compilers know what becomes of the 0 in `x < 0 ? 0 : x`, and may branch around its rounding."""
    with start_daemon(device="cpu").connect() as client:
        kernels = client._conn.call("op_code", "relu", "sass", {"dtype": "float16"})
    assert kernels
    for kernel in kernels:
        assert re.search("punpcklwd|pmovzxwd|vcvtph2ps", kernel["text"]), kernel["text"]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="reads the machine's code")
@pytest.mark.parametrize("name", ["sigmoid", "tanh", "gelu", "acos", "elu"])
def test_functions_of_double_are_not_called_one_by_one(start_daemon, name):
    with start_daemon(device="cpu").connect() as client:
        kernels = client._conn.call("op_code", name, "sass", {"dtype": "float64"})
    assert kernels
    for kernel in kernels:
        assert not re.search(r"(?:call|jmp) .*<(?!__tls_get_addr)\w+@plt>", kernel["text"]), kernel["text"]


@pytest.mark.parametrize("row", [64, 59, 96])
def test_halves_are_converted_as_ieee_says(start_daemon, row):
    """Of every value, whether many are converted at once, none, or the first of a row."""
    every = np.arange(65536 // row * row, dtype=np.uint32).astype(np.uint16).view(np.float16).reshape(-1, row)
    factors = np.float16([1, -1, 0.3333, 3, 1e-3, 5.96e-8, 1.5, 60000])  # also to what is subnormal, or infinite
    with np.errstate(all="ignore"), start_daemon(device="cpu").connect() as client:
        for shift in range(len(factors)):
            by = np.resize(np.roll(factors, shift), row)
            expected = (every.astype(np.float32) * by.astype(np.float32)).astype(np.float16)
            found = client.ops.mul(every, by).numpy()
            wrong = (found.view(np.uint16) != expected.view(np.uint16)) & ~(np.isnan(found) & np.isnan(expected))
            assert not wrong.any(), (every[wrong][:5], found[wrong][:5], expected[wrong][:5])
