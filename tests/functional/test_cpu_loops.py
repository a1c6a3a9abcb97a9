"""Kernels that are plain loops of elements, which the CPU runs in another way than it runs others:
their threads stay apart whatever a kernel's body does, and nothing but speed tells the difference."""

import numpy as np
import pytest

pytestmark = [pytest.mark.as_shipped, pytest.mark.unsanitized("of what kernels work out")]

HEAD = """\
//! op      {name}(Tensor x) -> Tensor y
//! dtypes  float32
//! shape   x [n]
//! shape   y [n]
//! example x=[100]
//! forward
//!   kernel k
//!   grid   {grid}

__global__ void k({parameters})
{{
    {body}
}}
"""

N = 3001  # whole blocks and a part of one

# As if each thread had the one index; in Python, of float32 x.
BODIES = {
    "a_return": ("CUDA_KERNEL_LOOP(i, n) { if (x[i] < 0) { y[i] = 1; return; } y[i] = 2; }",
                 lambda x: np.where(x < 0, 1, 2)),
    "a_break": ("CUDA_KERNEL_LOOP(i, n) { y[i] = x[i]; if (x[i] < 0) break; y[i] = 3; }",
                lambda x: np.where(x < 0, x, 3)),
    "a_moved_pointer": ("CUDA_KERNEL_LOOP(i, n) { x += i; y[i] = *x; }", lambda x: x),
    "a_sum": ("float sum = 1; CUDA_KERNEL_LOOP(i, n) { sum += x[i]; y[i] = sum; }", lambda x: 1 + x),
    "a_changed_index": ("CUDA_KERNEL_LOOP(i, n) { y[i] = x[i]; i += 5; }", lambda x: x),
    "a_guard": ("if (n < 0) return; CUDA_KERNEL_LOOP(i, n) y[i] = x[i] * 2;", lambda x: x * 2),
    "two_loops": ("CUDA_KERNEL_LOOP(i, n) y[i] = x[i]; CUDA_KERNEL_LOOP(j, n) y[j] *= 2;", lambda x: x * 2),
}  # fmt: skip

PARAMETERS = [
    "const float *x, float *y, int64_t n",
    "const float *__restrict__ x, float *__restrict__ y, int n",
]


@pytest.mark.parametrize("parameters", PARAMETERS)
@pytest.mark.parametrize("grid", ["cdiv(n, 256)", "cdiv(n, 256), 2"])
def test_threads_stay_apart(start_daemon, tmp_path, grid, parameters):
    for name, (body, _) in BODIES.items():
        text = HEAD.format(name=name, grid=grid, parameters=parameters, body=body)
        (tmp_path / f"{name}.cu").write_text(text)
    client = start_daemon("--kernels", str(tmp_path)).connect()
    x = np.random.default_rng(1).standard_normal(N).astype(np.float32)
    for name, (_, expected) in BODIES.items():
        if grid.endswith(", 2") and name == "two_loops":
            continue  # two blocks would both double
        y = client.ops[name](client.tensor(x)).numpy()
        assert np.array_equal(y, expected(x).astype(np.float32)), name


def test_a_function_that_counts_threads(start_daemon, tmp_path):
    body = "CUDA_KERNEL_LOOP(i, n) y[i] = whoami();"
    text = HEAD.format(name="ask", grid="cdiv(n, 256)", parameters=PARAMETERS[0], body=body)
    text += "__device__ float whoami() { return threadIdx.x; }\n"
    text = text.replace("__global__", "__device__ float whoami();\n__global__")
    (tmp_path / "ask.cu").write_text(text)
    client = start_daemon("--kernels", str(tmp_path)).connect()
    y = client.ops.ask(client.tensor(np.zeros(N, np.float32))).numpy()
    assert np.array_equal(y, np.arange(N) % 256)


def test_more_elements_than_threads(start_daemon, tmp_path):
    body = "CUDA_KERNEL_LOOP(i, n) y[i] = x[i] + 1;"
    for at, grid in enumerate(["1", "3", "cdiv(n, 4096)", "100"]):
        text = HEAD.format(name=f"few{at}", grid=grid, parameters=PARAMETERS[0], body=body)
        (tmp_path / f"few{at}.cu").write_text(text)
    client = start_daemon("--kernels", str(tmp_path)).connect()
    for n in (1, 5, 256, 100003):
        x = np.arange(n, dtype=np.float32)
        for at in range(4):
            assert np.array_equal(client.ops[f"few{at}"](client.tensor(x)).numpy(), x + 1)
