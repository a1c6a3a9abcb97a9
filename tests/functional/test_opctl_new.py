"""opctl new: a header for a file of kernels, which loads, or what is missing."""

import pytest

from test_opctl import ANSWERED, GOOD, USAGE, run

NORM = """\
#include <torch/extension.h>
namespace a { namespace {
template <typename T>
__global__ void norm_forward(const T *x, const T *gamma, T *y, float *rstd_out, int rows, int cols, float eps)
{
    extern __shared__ float sums[];
    int row = blockIdx.x;
    for (int c = threadIdx.x; c < cols; c += blockDim.x)
        y[row * cols + c] = x[row * cols + c] * gamma[c] / (eps + rstd_out[row]);
}
}
template <typename T>
__global__ void norm_backward(const T *dout, const T *x, const T *gamma, const float *rstd, T *dx, T *dgamma, int rows,
                              int cols)
{
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    for (int r = 0; c < cols && r < rows; r++) {
        atomicAdd(&dgamma[c], dout[r * cols + c] * x[r * cols + c]);
        dx[r * cols + c] = dout[r * cols + c] * gamma[c] * rstd[r];
    }
}
}
void launch() { a::norm_forward<float><<<rows, 256, bytes>>>(x, gamma, y, rstd, rows, cols, eps); }
"""

STEP = """\
__global__ void step(float *w, const float *g, const int *mask, int n, float lr)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && mask[i]) w[i] -= lr * g[i];
}
"""

ADD = """\
__global__ void add(float *x, float *y, float *z, int width, int height)
{
    int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;
    if (c < width && r < height) z[r * width + c] = x[r * width + c] + y[r * width + c];
}
__global__ void other(float *x) { x[0] = 1; }
"""


def new(folder, text, *words, code=GOOD):
    path = folder / "my-op.cu"
    path.write_text(text)
    done = run("new", path, *words)
    assert done.returncode == code, done.stderr
    if code != USAGE:
        assert done.stdout.endswith(text)
    header = done.stdout[: len(done.stdout) - len(text)]
    lines = header.splitlines()
    assert all(line.startswith(("//! ", "// ")) for line in lines[:-1])
    return [" ".join(line[4:].split()) for line in lines if line.startswith("//!")], header, done


def test_forward_and_backward(tmp_path):
    lines, header, done = new(tmp_path, NORM)
    assert lines == [
        "op my_op(Tensor x, Tensor gamma, *, float eps) -> Tensor y",
        "dtypes float32 float64",
        "shape x [rows, cols]",
        "shape gamma [cols]",
        "shape y [rows, cols]",
        "saved rstd_out float32 [rows]",
        "example x=[2,3] gamma=[3] eps=0.5",
        "forward", "kernel a::norm_forward<scalar_t>", "grid rows", "shared 16384",
        "backward grad_x grad_gamma", "kernel a::norm_backward<scalar_t>",
        "bind dout = grad_y", "bind rstd = rstd_out", "bind dx = grad_x", "bind dgamma = grad_gamma",
    ]  # fmt: skip
    assert "// ? The host launches it as norm_forward<float><<<rows,256,bytes>>>\n" in header
    assert "it loads" in done.stderr
    (tmp_path / "made.cu").write_text(done.stdout)
    checked = run("--socket", tmp_path / "none", "check", "--arch", "cpu", tmp_path / "made.cu")
    assert checked.returncode == GOOD, checked.stderr


def test_what_is_changed_in_place(tmp_path):
    lines, _, _ = new(tmp_path, STEP)
    assert lines[:3] == ["op my_op(Tensor(a!) w, Tensor g, Tensor mask, *, float lr) -> ()", "dtypes float32",
                         "type int32 : mask"]


def test_pointers_without_const_and_a_choice(tmp_path):
    lines, header, _ = new(tmp_path, ADD)
    assert lines[0] == "op my_op(Tensor x, Tensor y) -> Tensor z"
    assert "grid cdiv(height, 16), cdiv(width, 16)" in lines and "block 16, 16" in lines
    assert header.startswith("// Not used: other.")
    lines, _, _ = new(tmp_path, ADD, "other")
    assert lines[0] == "op my_op(*, int N) -> Tensor x"


@pytest.mark.parametrize("text, words, code, says", [
    ("struct p { int n; };\n__global__ void f(float *y, p *q) { y[0] = q->n; }\n", (), ANSWERED,
     "q points to p, of which there are no tensors"),
    ("__global__ void f(float **x, float *y, int n) { y[0] = x[0][0]; }\n", (), ANSWERED,
     "parameter 1 is a pointer to pointers"),
    ("int f(int x) { return x; }\n", (), USAGE, "it has no __global__ function"),
    ("__global__ void f(float *y, int n) { y[0] = n; }\n", ("g",), USAGE, "it has no kernel 'g'"),
    ("//! op f(Tensor x) -> Tensor y\n", (), USAGE, "has a header already"),
])  # fmt: skip
def test_what_is_missing(tmp_path, text, words, code, says):
    _, header, done = new(tmp_path, text, *words, code=code)
    assert says in header + done.stderr


def test_any_text_is_taken(tmp_path):
    """Cut anywhere, it ends in order."""
    for n in range(0, len(NORM), 37):
        path = tmp_path / "cut.cu"
        path.write_text(NORM[:n])
        done = run("new", path)
        assert done.returncode in (GOOD, ANSWERED, USAGE), done
    assert run("new", tmp_path / "none.cu").returncode == USAGE
