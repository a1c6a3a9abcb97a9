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
    checked = run("--socket", tmp_path / "none", "check", "--target", "cpu", tmp_path / "made.cu")
    assert checked.returncode == GOOD, checked.stderr


CELL = """\
#include <torch/extension.h>
#define ACC(rank) torch::PackedTensorAccessor32<scalar_t, rank, torch::RestrictPtrTraits>
template <typename scalar_t>
__global__ void cell_forward(const ACC(3) gates, const ACC(2) old, const ACC(1) bias, ACC(2) next, ACC(5) blocks,
                             int rate)
{
    const int n = blockIdx.y, c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c < next.size(1)) {
        next[n][c] = gates[n][0][c] + old[n][c] * rate + bias[c];
        blocks[n][c][0][0][0] = next[n][c];
    }
}
"""


RELU = """\
#include "modes.h"
__device__ bool done;
__global__ void reset() { done = false; }
template <typename T, Mode MODE, int vec> __global__ void relu(T *input, const T *bias, int total_count, int hidden)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < total_count * hidden)
        each(input + i, [=] __device__ (T &v) { v = MODE == Mode::LEAKY && v < 0 ? v * bias[i % hidden] : v + vec; });
}
"""


def test_a_kernel_that_takes_tensors_an_enum_and_a_changed_input(tmp_path):
    (tmp_path / "modes.h").write_text(
        "enum class Mode { LEAKY, OTHER };\ntemplate <class T, class F> __device__ void each(T *x, F f) { f(*x); }\n")
    lines, header, done = new(tmp_path, RELU)
    assert lines == [
        "op my_op(Tensor(a!) input, Tensor bias) -> ()", "dtypes float32 float64", "shape input [total_count, hidden]",
        "shape bias [hidden]", "example input=[2,3] bias=[3]", "forward", "kernel relu<scalar_t, Mode(0), 1>",
    ]  # fmt: skip
    assert "// Not used: reset." in header and "// ? Which Mode?\n" in header and "it loads" in done.stderr
    (tmp_path / "made.cu").write_text(done.stdout)
    checked = run("--socket", tmp_path / "none", "check", "--target", "cpu", tmp_path / "made.cu")
    assert checked.returncode == GOOD, checked.stderr


PASS = """\
__device__ bool done;
__global__ void pass_backward(const float *grad_y, float *grad_x, int n)
{
    if (threadIdx.x < n)
        grad_x[threadIdx.x] = grad_y[threadIdx.x];
}
__global__ void reset() { done = false; }
__global__ void pass(const float *x, float *y, int n)
{
    if (threadIdx.x < n)
        y[threadIdx.x] = x[threadIdx.x];
}
"""


def test_a_kernel_that_takes_no_tensors_between_those_that_do(tmp_path):
    lines, header, _ = new(tmp_path, PASS)
    assert [line for line in lines if line.startswith("kernel")] == ["kernel pass", "kernel pass_backward"]
    assert "// Not used: reset." in header


def test_an_accessor_has_its_rank(tmp_path):
    """The result is not only read: its example is planned, and compiled."""
    lines, _, done = new(tmp_path, CELL)
    shapes = [line for line in lines if line.startswith("shape")]
    assert shapes == ["shape gates [N, C, D]", "shape old [N, C]", "shape bias [D]", "shape next [N, C]",
                      "shape blocks [N, C, D, 1, 1]"]  # fmt: skip
    (tmp_path / "made.cu").write_text(done.stdout)
    checked = run("--socket", tmp_path / "none", "check", "--target", "cpu", tmp_path / "made.cu")
    assert checked.returncode == GOOD, checked.stderr


def test_sizes_that_no_accessor_has(tmp_path):
    text = CELL.replace("int rate", "int rows, int cols, int depth, int last").replace("* rate", "* last")
    lines, _, done = new(tmp_path, text)
    assert lines[0].startswith("op my_op(Tensor gates, Tensor old, Tensor bias, *, int last) ->")
    assert "shape gates [rows, cols, depth]" in lines and "example gates=[2,3,4] old=[2,3] bias=[4] last=1" in lines


def test_what_is_changed_in_place(tmp_path):
    lines, _, _ = new(tmp_path, STEP)
    assert lines[:3] == ["op my_op(Tensor(a!) w, Tensor g, Tensor mask, *, float lr) -> ()", "dtypes float32",
                         "type int32 : mask"]


HOSTED = """\
// A kernel { is a __global__ function }
__global__ void twice(float *x, float *y, int *on, int n) // { x[i] = 0; }
{
    int i = (size_t(blockIdx.x) * blockDim.x) + threadIdx.x;
    // y[i] += x[i]; a __global__ one returns nothing, x[i] = 1
    if (on[i] && i < n) y[i] = 2 * x[i];
}
int main()
{
    for (int i = 0; i < n; i++) x[i] = y[i] = 1;
    twice<<<count(n), 256>>>(x, y, on, n);
}
"""


def test_only_the_kernels_own_code_counts(tmp_path):
    """No comment, nothing of the host's, and 'on[i] &&' is no store."""
    lines, header, _ = new(tmp_path, HOSTED)
    assert lines[0] == "op my_op(Tensor x, Tensor on) -> Tensor y" and "grid" not in header


def test_pointers_without_const_and_a_choice(tmp_path):
    lines, header, _ = new(tmp_path, ADD)
    assert lines[0] == "op my_op(Tensor x, Tensor y) -> Tensor z" and "shape z [height, width]" in lines
    assert "grid cdiv(width, 16), cdiv(height, 16)" in lines and "block 16, 16" in lines
    assert header.startswith("// Not used: other.")
    lines, _, _ = new(tmp_path, ADD, "other")
    assert lines[0] == "op my_op(*, int N) -> Tensor x"


STRUCTS = """\
struct Extent { int rows, cols; };
template <typename T> struct Forward {
    const T *src[2];
    T *__restrict__ dst;
    float *seen;
    Extent size;
    float scale[3];
    int dims[5];
    int2 pad;
    bool flip;
};
template <typename T> struct Backward : public Forward<T> { const T *dout; T *dsrc[2]; };
template <typename T> __global__ void mix_forward(const Forward<T> p)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < p.size.rows * p.size.cols)
        p.dst[i] = p.src[0][i] * T(p.scale[0]) + p.src[1][i] * T(p.scale[1] + p.pad.y + p.dims[4]), p.seen[i] = 1;
}
template <typename T> __global__ void mix_backward(const Backward<T> p)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int k = 0; i < p.size.rows * p.size.cols && k < 2; k++)
        p.dsrc[k][i] = p.dout[i] * T(p.scale[k] + (k ? p.pad.y + p.dims[4] : 0) + p.seen[i] - 1);
}
"""

IMAGES = """\
struct Image { float *data; int width, height; };
__global__ void crop(const Image from, Image to, int left)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < to.width && y < to.height)
        to.data[y * to.width + x] = from.data[y * from.width + x + left];
}
"""


@pytest.mark.parametrize("extra, body, expected", [
    ("", "int i = X, j = Y;\n if (i >= h || j >= w) return;\n y[i * w + j] = x[i * w + j];",
     ["shape y [h, w]", "grid cdiv(h, 16), cdiv(w, 16)", "block 16, 16"]),
    (", int d", "int i = X; int j = Y; int k = blockIdx.z * blockDim.z + threadIdx.z;\n"
                "if (i < w && j < h && k < d) y[(k * h + j) * w + i] = x[i];",
     ["shape y [h, w, d]", "grid cdiv(w, 16), cdiv(h, 16), d", "block 16, 16"]),
    ("", "int i = X, j = Y;\n y[j * w + i] = x[i];", ["grid cdiv(w, 16), cdiv(h, 16)", "block 16, 16"]),
])  # fmt: skip
def test_a_thread_for_each_element_of_a_plane(tmp_path, extra, body, expected):
    """What an index is held below is how many there are of it; where it is not, a question."""
    body = body.replace("X", "blockIdx.x * blockDim.x + threadIdx.x").replace("Y", "blockDim.y * blockIdx.y + threadIdx.y")
    text = f"__global__ void f(const float *x, float *y, int h, int w{extra}) {{\n{body}\n}}\n"
    lines, header, _ = new(tmp_path, text)
    assert [line for line in lines if line in expected] == expected
    assert ("A thread for each of these?" in header) == ("if" not in body)


FOURS = """\
__global__ void move(const float4 *x, float4 *at, uchar2 *seen, float *by, int n, float dt)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float *to = by + i;
    if (i < n) {
        at[i].x += dt * x[i].x;
        seen[i] = make_uchar2(1, 1);
        *to += x[i].y;
    }
}
"""


def test_vectors_and_a_result_that_another_pointer_writes(tmp_path):
    lines, header, done = new(tmp_path, FOURS)
    assert lines[0] == "op my_op(Tensor x, Tensor(a!) at, *, float dt) -> (Tensor seen, Tensor by)"
    assert "type uint8 : seen" in lines and "example x=[1000,4] at=[1000,4] dt=0.5" in lines
    assert [line for line in lines if line.startswith("shape")] == [
        "shape x [n, 4]", "shape at [n, 4]", "shape seen [n, 2]", "shape by [n]"]
    assert "// ? Is by made, or changed in place: Tensor(a!) by?" in header and "Is seen" not in header
    assert "it loads" in done.stderr


def test_structs_are_their_members(tmp_path):
    """Those of a base too; what forward has made backward only reads, by a pointer to non-const."""
    lines, _, done = new(tmp_path, STRUCTS)
    dims = [f"bind p.dims[{i}] = dims_{i}" for i in range(5)]
    common = ["bind p.src[0] = src_0", "bind p.src[1] = src_1", *dims, "bind p.pad.x = pad_x", "bind p.pad.y = pad_y"]
    values = "".join(f", int dims_{i}" for i in range(5)) + ", int pad_x, int pad_y, bool flip"
    assert lines == [
        f"op my_op(Tensor src_0, Tensor src_1, *, float[3] scale{values}) -> Tensor dst",
        "dtypes float32 float64", "shape src_0 [rows, cols]", "shape src_1 [rows, cols]", "shape dst [rows, cols]",
        "saved seen float32 [rows, cols]",
        "example src_0=[2,3] src_1=[2,3] scale=0.5 dims_0=1 dims_1=1 dims_2=1 dims_3=1 dims_4=1 pad_x=1 pad_y=1 flip=True",
        "forward", "kernel mix_forward<scalar_t>", *common,
        "backward grad_src_0 grad_src_1", "kernel mix_backward<scalar_t>", *common, "bind p.dout = grad_dst",
        "bind p.dsrc[0] = grad_src_0", "bind p.dsrc[1] = grad_src_1",
    ]  # fmt: skip
    (tmp_path / "made.cu").write_text(done.stdout)
    for how in (("--target", "cpu"), ("--grad",)):
        checked = run("--socket", tmp_path / "none", "check", *how, tmp_path / "made.cu")
        assert checked.returncode == GOOD, checked.stdout + checked.stderr


def test_structs_whose_members_have_the_same_names(tmp_path):
    """What only the result's struct has are attributes."""
    lines, _, done = new(tmp_path, IMAGES)
    assert lines[0] == "op my_op(Tensor from_data, *, int left, int to_width, int to_height) -> Tensor to_data"
    assert lines[2:4] == ["shape from_data [from_width, from_height]", "shape to_data [to_width, to_height]"]
    assert lines[-6:] == [f"bind {s}.{m} = {s}_{m}" for s in ("from", "to") for m in ("data", "width", "height")]
    assert "it loads" in done.stderr


PRODUCT = """\
#define TILE 16
#define CEIL_DIV(M, N) (((M) + (N)-1) / (N))
constexpr int WARPS = 4;
__global__ void product(const float *A, const float *B, float *C, int M, int N, int K, float beta)
{
    extern __shared__ float tiles[];
    int row = blockIdx.y * TILE + threadIdx.y, col = blockIdx.x * TILE + threadIdx.x;
    if (row < M && col < N) C[row * N + col] = beta * C[row * N + col] + A[row * K] * B[col];
}
void run(int M, int N, int K)
{
    dim3 blockDim(TILE, TILE), gridDim(CEIL_DIV(N, TILE), CEIL_DIV(M, TILE));
    product<<<gridDim, blockDim, 2 * TILE * TILE * sizeof(float)>>>(A, B, C, M, N, K);
}
template <typename T, typename acc_t> __global__ void rows(const T *x, const T *weight, acc_t *norms, T *y, int cols)
{
    const int row = blockIdx.x;
    for (int c = threadIdx.x; c < cols; c += blockDim.x) y[row * cols + c] = x[row * cols + c] * weight[c];
    if (threadIdx.x == 0) norms[row] = acc_t(cols);
}
void rows_cuda(at::Tensor x)
{
    const int threads = 32 * WARPS;
    const auto n = x.size(0);
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "rows", [&] { rows<scalar_t, float><<<n, threads, 0, stream>>>(x); });
}
template <typename T> __global__ void focal(const T *input, const int64_t *target, T *loss, int nthreads, int classes)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < nthreads) loss[i] = target[i / classes] == i % classes ? input[i] : T(0);
}
void focal_cuda() { focal<scalar_t><<<BLOCKS(n), 512>>>(); }
"""


@pytest.mark.parametrize("kernel, expected", [
    ("product", ["shape A [M, K]", "shape B [K, N]", "shape C [M, N]", "example A=[2,4] B=[4,3] C=[2,3] beta=0.5",
                 "forward", "kernel product", "grid cdiv(N, 16), cdiv(M, 16)", "block 16, 16", "shared 2 * 16 * 16 * 4"]),
    ("rows", ["shape x [N, cols]", "shape weight [cols]", "shape norms [N]", "shape y [N, cols]",
              "example x=[2,3] weight=[3]", "forward", "kernel rows<scalar_t, acc_t>", "grid size(x, 0)",
              "block 128"]),
    ("focal", ["shape input [N, classes]", "shape target [N]", "shape loss [N, classes]", "let nthreads = numel(loss)",
               "example input=[2,3] target=[2]", "forward", "kernel focal<scalar_t> threads nthreads by 512"]),
])  # fmt: skip
def test_the_hosts_launch_is_read(tmp_path, kernel, expected):
    """Through its names for numbers and sizes; of rows there are as many as blocks."""
    lines, _, done = new(tmp_path, PRODUCT, kernel)
    assert lines[-len(expected):] == expected
    (tmp_path / "made.cu").write_text(done.stdout)
    checked = run("--socket", tmp_path / "none", "check", "--target", "cpu", tmp_path / "made.cu")
    assert checked.returncode == GOOD, checked.stderr


PAIRS = """\
__global__ void nearestKernel(const float *x, float *y, int n) { if (threadIdx.x < n) y[threadIdx.x] = x[threadIdx.x]; }
__global__ void blendKernel(const float *x, float *y, int n) { if (threadIdx.x < n) y[threadIdx.x] = 2 * x[threadIdx.x]; }
__global__ void blendGradKernel(const float *grad_y, float *grad_x, int n)
{
    if (threadIdx.x < n) grad_x[threadIdx.x] = 2 * grad_y[threadIdx.x];
}
"""


def test_a_backward_that_is_anothers_by_its_name(tmp_path):
    lines, header, _ = new(tmp_path, PAIRS)
    assert "kernel nearestKernel" in lines and not any(line.startswith("backward") for line in lines)
    assert "// Not used: blendKernel, blendGradKernel." in header
    lines, header, _ = new(tmp_path, PAIRS, "blendKernel,blendGradKernel")
    assert "backward grad_x" in lines and "kernel blendGradKernel" in lines


PICK = """\
enum class Mode { ONE, TWO };
template <typename T, Mode MODE, bool whole_size, int BLOCK> __global__ void pick(const T *x, T *y, int n)
{
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) y[i] = whole_size || MODE == Mode::ONE ? x[i] : T(2);
}
auto choose(bool b) { return b ? pick<float, MODE, SIZED, N> : pick < float, Mode::TWO, false , 128 >; }
"""


def test_template_arguments_are_those_that_the_host_names_first(tmp_path):
    lines, header, done = new(tmp_path, PICK)
    assert lines[-2:] == ["kernel pick<scalar_t, Mode::TWO, false, 128>", "block 128"]
    (tmp_path / "made.cu").write_text(done.stdout)
    checked = run("--socket", tmp_path / "none", "check", "--target", "cpu", tmp_path / "made.cu")
    assert checked.returncode == GOOD, checked.stderr


@pytest.mark.parametrize("index, expected", [
    ("blockIdx.x * THREADS + threadIdx.x", ["kernel f", "block 192"]),
    ("THREADS*blockIdx.x+threadIdx.x", ["kernel f", "block 192"]),
    ("blockIdx.x * blockDim.x + threadIdx.x", ["forward", "kernel f"]),
    ("blockIdx.x * n + threadIdx.x", ["kernel f", "grid N"]),
])  # fmt: skip
def test_a_blocks_size_is_a_constant_of_the_file(tmp_path, index, expected):
    body = f"const int i = {index};\n    if (i < n) y[i] = x[i];"
    kernel = f"__global__ void f(const float *x, float *y, int n)\n{{\n    {body}\n}}\n"
    lines, _, _ = new(tmp_path, "#define THREADS 192\n" + kernel)
    assert lines[-2:] == expected


@pytest.mark.parametrize("text, words, code, says", [
    ("struct P { float *y; int n : 3; };\n__global__ void f(P p) { p.y[0] = p.n; }\n", (), ANSWERED,
     "// ? f: my-op.cu:2: kernel 'f' has parameter 'p' of struct 'P' (line 1), which cannot be filled in"),
    ("__global__ void f(float *y, Absent a) { y[0] = a.n; }\n", (), ANSWERED,
     "// ? f: 'a' is of type 'Absent', which neither this file defines nor opd"),
    ("struct T { void *at[2][24]; int sizes[24]; unsigned char block_to_tensor[320]; int block_to_chunk[320]; };\n"
     "__global__ void f(int chunk_size, T tl) { ((float **)tl.at)[0][0] = 1; }\n", (), ANSWERED,
     "// ? f: 'tl' is a table of tensors; make lists of them, as in 'op f(Tensor(a!)[] xs) -> ()', and 'chunks xs"),
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
    for text, n in [(t, n) for t in (NORM, STRUCTS, PRODUCT) for n in range(0, len(t), 43)]:
        path = tmp_path / "cut.cu"
        path.write_text(text[:n])
        done = run("new", path)
        assert done.returncode in (GOOD, ANSWERED, USAGE), done
    assert run("new", tmp_path / "none.cu").returncode == USAGE


def test_kernels_that_stay_in_a_file_of_their_own(tmp_path):
    (tmp_path / "their").mkdir()
    (tmp_path / "their" / "add.cuh").write_text(ADD)
    text = '#include "their/add.cuh"\nvoid launch() {}\n'
    lines, _, done = new(tmp_path, text)
    assert lines[0] == "op my_op(Tensor x, Tensor y) -> Tensor z" and "it loads" in done.stderr
    assert done.stdout.endswith(text) and ADD not in done.stdout
    (tmp_path / "made.cu").write_text(done.stdout)
    checked = run("--socket", tmp_path / "none", "check", "--target", "cpu", tmp_path / "made.cu")
    assert checked.returncode == GOOD, checked.stderr


GATHER = """\
__global__ void gather_forward(const float *x, const long *row, const long *column, const unsigned *mark, const int *n1,
                               const int *n2, const bool *b1, const bool *b2, unsigned char *kind, double *sum, float *y,
                               int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    y[i] = b1[i] && b2[i] && mark[i] ? x[row[i] + column[i]] * n1[i] * n2[i] : 0;
    kind[i] = 1;
    sum[i] = y[i];
}
__global__ void gather_backward(const long *row, const long *column, unsigned char *kind, const float *grad_y,
                                float *grads, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && kind[i])
        atomicAdd(&grads[row[i] + column[i]], grad_y[i]);
}
__global__ void again_backward(long *row, const float *grad_y, float *grads, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        atomicAdd(&grads[row[i]], grad_y[i]);
}
"""


def test_many_integers_and_what_backward_reads_without_const(tmp_path):
    """A line for each dtype; no gradient of integers; 'grads' in two kernels is the same."""
    lines, _, done = new(tmp_path, GATHER)
    assert [line for line in lines if line.startswith(("type", "saved", "backward", "bind"))] == [
        "type int64 : row column", "type int32 : mark n1 n2", "type bool : b1 b2", "type float64 : sum",
        "saved kind uint8 [n]", "backward grad_x", "bind grads = grad_x", "bind grads = grad_x",
    ]  # fmt: skip
    assert "it loads" in done.stderr
    (tmp_path / "made.cu").write_text(done.stdout)
    checked = run("--socket", tmp_path / "none", "check", "--target", "cpu", tmp_path / "made.cu")
    assert checked.returncode == GOOD, checked.stderr


POOL = """\
__global__ void pool_forward(const int nthreads, const float *bottom_data, const float scale, const int channels,
                             const int height, const int width, const int pooled_height, const int pooled_width,
                             const float *bottom_rois, float *top_data)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < nthreads) {
        int w = i % pooled_width, c = i / pooled_width / pooled_height % channels;
        const float *roi = bottom_rois + i / pooled_width / pooled_height / channels * 5;
        top_data[i] = bottom_data[(((int)roi[0] * channels + c) * height + (int)(roi[2] * scale)) * width + w];
    }
}
"""


def test_regions_of_images(tmp_path):
    lines, _, done = new(tmp_path, POOL)
    assert lines[2:8] == [
        "shape bottom_data [images, channels, height, width]", "shape bottom_rois [rois, 5]",
        "shape top_data [rois, channels, pooled_height, pooled_width]", "let nthreads = numel(top_data)",
        "example bottom_data=[2,2,3,4] bottom_rois=[2,5] scale=0.5 pooled_height=1 pooled_width=1", "forward",
    ]  # fmt: skip
    assert "it loads" in done.stderr


ROWS = """\
__global__ void rows_forward(float *weights, float *values, float *y, int n)
{
    if (threadIdx.x < n)
        y[threadIdx.x] = weights[threadIdx.x] * values[threadIdx.x];
}
__global__ void rows_backward(float *weights, float *values, float *grad_y, float *grad_weights, float *grad_values, int n)
{
    float *to = grad_values + threadIdx.x;
    if (threadIdx.x < n) {
        grad_weights[threadIdx.x] = grad_y[threadIdx.x] * values[threadIdx.x];
        *to = grad_y[threadIdx.x] * weights[threadIdx.x];
    }
}
"""


def test_a_gradient_that_is_written_by_another_pointer(tmp_path):
    lines, _, done = new(tmp_path, ROWS)
    assert lines[0] == "op my_op(Tensor weights, Tensor values) -> Tensor y"
    assert "backward grad_weights grad_values" in lines and "it loads" in done.stderr


TUTORIAL = """\
__global__ void add(float *a, float *b, float *c, int n /* {n} of them, b[0] = first */)
{
    // a[i] += nothing
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}
// add<<<1, 1>>>(a, b, c, 1);
int main()
{
    float a[100], b[100];
    for (int i = 0; i < 100; i++) { a[i] = i; b[i] += 2 * i; }
    add<<<(n + 63) / 64, 64>>>(dev_a, dev_b, dev_c, 100);
}
"""


def test_neither_the_host_nor_a_comment_writes(tmp_path):
    lines, header, _ = new(tmp_path, TUTORIAL)
    assert lines[0] == "op my_op(Tensor a, Tensor b) -> Tensor c"
    assert lines[-2:] == ["grid (n + 63) / 64", "block 64"]
    assert "launches it as add<<<(n+63)/64,64>>>\n" in header


@pytest.mark.parametrize(
    "index",
    [
        "blockIdx.x * (size_t)blockDim.x + threadIdx.x",
        "static_cast<long>(blockIdx.x) * blockDim.x + threadIdx.x",
        "blockDim.x * size_t(blockIdx.x) + threadIdx.x",
        "threadIdx.x + blockIdx.x * BLOCK",
    ],
)
def test_an_index_with_casts_or_the_thread_first(tmp_path, index):
    text = "#define BLOCK 128\n__global__ void f(float *x, long n) { long i = %s; if (i < n) x[i] *= 2; }\n"
    lines, header, _ = new(tmp_path, text % index)
    assert lines[-1] == ("block 128" if "BLOCK" in index else "kernel f")
    assert "A block for each" not in header


def test_the_default_of_a_template_parameter_is_no_block(tmp_path):
    text = "template <int BS = 128> __global__ void f(float *x)\n{ int i = blockIdx.x * BS + threadIdx.x; x[i] = 1; }\n"
    assert "block 1" not in new(tmp_path, text)[0]


MUL = """\
#define TILE 32
__global__ void mul(const float *A, const float *B, float *C, int M, int N, int K)
{
    int row = blockIdx.y * TILE + threadIdx.y, col = blockIdx.x * TILE + threadIdx.x;
    float sum = 0;
    for (int k = 0; row < M && col < N && k < K; k++) sum += A[row * K + k] * B[k * N + col];
    if (row < M && col < N) C[row * N + col] = sum;
}
"""

PLANE = """\
__global__ void mark(float *image, int w, int h, float by)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < w && y < h) image[y * w + x] = x * by;
}
"""


@pytest.mark.unsanitized("a kernel with sanitizers is not loaded by a program with others")
@pytest.mark.parametrize(
    "text, expected",
    [
        (MUL, ["grid cdiv(N, 32), cdiv(M, 32)", "block 32, 32"]),
        (PLANE, ["shape image [h, w]", "grid cdiv(w, 16), cdiv(h, 16)", "block 16, 16"]),
    ],
)
def test_planes_are_covered_along_their_axes(tmp_path, text, expected):
    lines, _, done = new(tmp_path, text)
    assert set(expected) <= set(lines)
    example = next(line for line in lines if line.startswith("example"))
    larger = example.replace("w=1 h=1", "w=70 h=3").replace("h=1 w=1", "h=3 w=70")
    larger = larger.replace("A=[2,4] B=[4,3]", "A=[3,5] B=[5,70]")
    assert larger != example
    path = tmp_path / "made.cu"
    path.write_text(done.stdout.replace(example, larger).replace("op      my_op", "op      made"))
    done = run("check", "--run", "--device", "cpu", path)
    assert done.returncode == GOOD, done.stdout + done.stderr


def test_what_cannot_be_told_is_asked(tmp_path):
    text = """\
__constant__ float weights[5], bias;
__constant__ float known[2] = { 1, 2 };
__global__ void f(const float *x, float *y, int w)
{
    int bx = blockIdx.x, ty = threadIdx.y;
    y[bx * w + ty] = x[bx * w + ty] * weights[ty] + known[0];
}
"""
    _, header, _ = new(tmp_path, text)
    assert "make it a parameter: __constant__ float weights[5], bias\n" in header and "known" not in header
    assert "blocks or threads along y" in header


@pytest.mark.parametrize(
    "host, expected",
    [
        ("int size = 50000, block = 256, blocks = (size + block - 1) / block; f<<<blocks, block>>>(x, size)",
         ["grid (n + 256 - 1) / 256"]),
        ("int n = 8, per = n * 2; f<<<100 / per, 2 * 32>>>(x, n)", ["grid 100 / (n * 2)", "block 2 * 32"]),
        ("dim3 grid = dim3(n / 4, 2); f<<<grid, 64>>>(x, n)", ["grid n / 4, 2", "block 64"]),
    ],
)  # fmt: skip
def test_the_hosts_names_are_followed(tmp_path, host, expected):
    text = "__global__ void f(float *x, int n) { for (int i = blockIdx.x; i < n; i++) x[i] *= 2; }\nvoid launch() { %s; }\n"
    lines, _, _ = new(tmp_path, text % host)
    assert lines[lines.index("kernel f") + 1 :] == expected


def test_indices_before_the_table_have_no_row(tmp_path):
    text = """\
__global__ void look(const int *ids, const float *table, float *out, int tokens_len, int dim)
{
    for (int d = threadIdx.x; d < dim; d += blockDim.x)
        out[blockIdx.x * dim + d] = table[ids[blockIdx.x] * dim + d];
}
"""
    lines, _, _ = new(tmp_path, text)
    assert {"shape ids [tokens_len]", "shape table [tokens_len, dim]"} <= set(lines)
