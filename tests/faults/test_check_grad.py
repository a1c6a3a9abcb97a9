"""opctl check --grad: what it says of gradients that are wrong, and nothing of those that are right."""

import re

import pytest
from test_check_run import ROOT, findings, line_of, report

RIGHT = (ROOT / "tests" / "faults" / "kernels" / "rms_norm.cu").read_text()
WEIGHT = RIGHT[RIGHT.index("    CUDA_KERNEL_LOOP(c, C) {"):].rsplit("}", 1)[0]
# The sum over rows, an element at a time; and its grid.
EACH = """    CUDA_KERNEL_LOOP(i, rows * C)
        ADD(grad_weight[i % C], acc_t(grad_y[i]) * acc_t(x[i]) * rstd[i / C]);
"""
KERNEL = "kernel rms_norm_backward_weight"
GRID = (KERNEL, f"{KERNEL}\n//!   grid  cdiv(rows * C, 256)")
FLOATS = ("float16 bfloat16 float32 float64", "float32 float64")


def check(folder, *changes, name="trial.cu", text=RIGHT):
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    path = folder / name
    path.write_text(text)
    stages = report(path, "--seed", "3", mode="--grad")
    assert list(stages) == ["gradients"] and stages["gradients"]["state"] in ("ok", "findings"), stages
    return path, [f for _, f in findings(stages)]


def numbers(message):
    found, expected = re.search(r"\] is (\S+?)(?: .*)?, expected ([^\s:]+)", message).groups()
    return float(found), float(expected)


def test_right_gradients_pass(tmp_path):
    """In float64, in float32 alone, and where float64 is float32 inside."""
    assert not check(tmp_path)[1]
    assert not check(tmp_path, ("float16 bfloat16 float32 float64", "float32"))[1]
    assert not check(tmp_path, ("sqrt(sum / C + eps)", "sqrtf(float(sum / C + eps))"))[1]


@pytest.mark.parametrize("gradient, changes, ratio", [
    ("grad_x", [("            rstd[r] * (acc_t", "            2 * rstd[r] * (acc_t")], 2),
    ("grad_x", [("            rstd[r] * (acc_t", "            -rstd[r] * (acc_t")], -1),
    ("grad_x", [(" - dot * acc_t(x[r * C + c])", "")], None),
    ("grad_weight", [("acc_t(x[r * C + c]) * rstd[r];", "acc_t(x[c % rows * C + r]) * rstd[r];")], None),
    ("grad_weight[17]", [("= T(sum)", "= T(c == 17 ? 1.001 * sum : sum)")], 1.001),
    ("grad_x", [FLOATS, ("float32 float64", "float32"), ("        dot *= ", "        dot *= 1.1 * ")], None),
], ids=["factor", "sign", "term", "index", "element", "float32"])  # fmt: skip
def test_wrong_gradients(tmp_path, gradient, changes, ratio):
    path, (only,) = check(tmp_path, *changes)
    assert re.match(r"rms_norm: " + re.escape(gradient), only["message"])
    assert only["message"].endswith("by central differences")
    section = "x" if "grad_x" in gradient else "weight"
    assert only["where"] == line_of(path, f"kernel rms_norm_backward_{section}")
    assert "example 1, backward" in only["context"]
    found, expected = numbers(only["message"])
    assert found != expected and (ratio is None or abs(found / expected - ratio) < 1e-5)


def test_a_gradient_that_reads_no_grad(tmp_path):
    _, (only,) = check(tmp_path, ("acc_t(grad_y[r * C + c]) * acc_t(weight[c])", "acc_t(weight[c])"))
    assert only["message"].endswith("; it is the same whatever grad_y is")


def test_a_gradient_by_definition(tmp_path):
    """It need not be the derivative, but the other one, and the same bits each time."""
    declared = ("backward grad_x", "backward grad_x by definition")
    factor = ("            rstd[r] * (acc_t", "            2 * rstd[r] * (acc_t")
    assert not check(tmp_path, declared, factor)[1]
    _, (only,) = check(tmp_path, declared, factor, ("T(sum)", "T(2 * sum)"))
    assert "grad_weight[" in only["message"] and "by central differences" in only["message"]


def test_a_gradient_that_depends_on_what_is_wanted(tmp_path):
    """Twice as large where it alone is wanted."""
    _, (only,) = check(tmp_path, ("*grad_weight, int64_t rows,", "*grad_weight, int two, int64_t rows,"),
                       ("= T(sum)", "= T(two ? sum : 2 * sum)"),
                       (KERNEL, f"{KERNEL}\n//!   bind two = wanted(grad_x)"))
    found, expected = numbers(only["message"])
    assert found == 2 * expected
    assert "grad_weight[0] is" in only["message"] and "where only grad_weight is wanted" in only["message"]


@pytest.mark.parametrize("add", ["atomicAdd(&a, T(v))", "a += T(v)"])
def test_the_order_of_threads_shows(tmp_path, add):
    """Also of a single block, and of what is no atomic: each run alone looks right."""
    changes = [FLOATS, GRID, (WEIGHT, EACH), ("template <typename T>", f"#define ADD(a, v) {add}\ntemplate <typename T>")]
    for shape in ("x=[4,10,33]", "x=[7,33]"):
        _, (only,) = check(tmp_path, *changes, ("x=[4,10,33]", shape))
        assert "expected the same bits" in only["message"]
        found, expected = numbers(only["message"].replace(" the same bits as before,", ""))
        assert found != expected and abs(found - expected) < 1e-12 * abs(expected)


LINEAR = """\
//! op      trial(Tensor x, Tensor w, Tensor? b=None, Tensor? i=None) -> (Tensor y, Tensor z)
//! dtypes  float32 float64
//! type    int32 : i
//! shape   x [N]
//! shape   w [N]
//! shape   b [N]
//! shape   i [N]
//! shape   y [N]
//! shape   z [N]
//! linear  x b
//! linear  w b
//! example x=[10] w=[10]
//! example x=[10] w=[10] b=[10] i=[10]
//! example x=[0] w=[0] b=[0]
//! forward
//!   kernel f
//! backward grad_x grad_w grad_b
//!   kernel b
__global__ void f(const scalar_t *x, const scalar_t *w, const scalar_t *b, const int *i, scalar_t *y, scalar_t *z, int N)
{
    CUDA_KERNEL_LOOP(k, N) {
        y[k] = x[k] * w[k] + (b ? b[k] : 0);
        z[k] = i && i[k] ? -y[k] : y[k];
    }
}
__global__ void b(const scalar_t *x, const scalar_t *w, const int *i, const scalar_t *grad_y, const scalar_t *grad_z,
                  scalar_t *grad_x, scalar_t *grad_w, scalar_t *grad_b, int N)
{
    CUDA_KERNEL_LOOP(k, N) {
        scalar_t g = grad_y[k] + (i && i[k] ? -grad_z[k] : grad_z[k]);
        if (grad_x) grad_x[k] = g * w[k];
        if (grad_w) grad_w[k] = g * x[k];
        if (grad_b) grad_b[k] = g;
    }
}
"""


def test_what_is_linear(tmp_path):
    """With what may be absent, integers, two outputs, nothing at all."""
    assert not check(tmp_path, text=LINEAR)[1]
    _, wrong = check(tmp_path, ("x[k] * w[k] +", "x[k] * w[k] + 1 +"), text=LINEAR)
    assert {re.sub(r" y\[0\] .*", "", f["message"]) for f in wrong} == {
        "trial: not linear in x: of 0.75 times one and -1.25 times another",
        "trial: not linear in w: of 0.75 times one and -1.25 times another",
        "trial: not linear in x b: of 0.75 times one and -1.25 times another",
        "trial: not linear in w b: of 0.75 times one and -1.25 times another"}


CORNERS = """\
//! op      trial(Tensor x) -> Tensor y
//! dtypes  float64
//! shape   x [N]
//! shape   y [N]
//! example x=[300]
//! forward
//!   kernel f
//! backward grad_x
//!   kernel b
__global__ void f(const double *x, double *y, int N)
{
    CUDA_KERNEL_LOOP(i, N) {
        double at = i % 2 ? x[i] : 0 * x[i];
        y[i] = fabs(at) + (x[i] > 0.5 ? 3 : 0) + VALUE;
    }
}
__global__ void b(const double *x, const double *grad_y, double *grad_x, int N)
{
    CUDA_KERNEL_LOOP(i, N)
        grad_x[i] = grad_y[i] * ((i % 2 ? x[i] > 0 ? 1 : -1 : 0) + SLOPE);
}
"""


@pytest.mark.parametrize("value, slope, good", [
    ("fabs(x[i] - rint(x[i]))", "(x[i] > rint(x[i]) ? 1 : -1)", True),  # corners and jumps nearby
    ("fmax(x[i], 0.0) + fmin(x[i], 0.0)", "1", True),
    ("fmax(x[i], 0.0) + fmin(x[i], 0.0)", "2", False),
    ("rint(x[i])", "1", False),
    ("log(x[i])", "1 / x[i]", True),  # other inputs are drawn until this is finite
    ("log(x[i])", "1 / fabs(x[i] + 1e-4)", False),
])  # fmt: skip
def test_corners_and_jumps(tmp_path, value, slope, good):
    _, wrong = check(tmp_path, ("VALUE", value), ("SLOPE", slope), text=CORNERS)
    assert good == (not wrong), wrong


def test_outputs_that_are_never_finite(tmp_path):
    _, (only,) = check(tmp_path, ("VALUE", "log(-x[i] * x[i])"), ("SLOPE", "1"), text=CORNERS)
    assert "its outputs are not finite" in only["message"]


def test_nothing_to_prove(tmp_path):
    text = CORNERS.replace("VALUE", "x[i]")
    text = text[:text.index("//! backward")] + text[text.index("__global__"):text.index("__global__ void b")]
    assert not check(tmp_path, text=text)[1]


OUTSIDE = """\
//! op      trial(Tensor x) -> Tensor y
//! dtypes  float32 float64
//! shape   x [N]
//! shape   y [N]
//! example x=[300]
//! forward
//!   kernel f
//! backward grad_x
//!   kernel b
__global__ void f(const scalar_t *x, scalar_t *y, int N)
{
    CUDA_KERNEL_LOOP(i, N)
        y[i] = x[i];
}
__global__ void b(const scalar_t *x, const scalar_t *grad_y, scalar_t *grad_x, int N)
{
    CUDA_KERNEL_LOOP(i, N)
        grad_x[i] = grad_y[i];
}
"""


@pytest.mark.parametrize("old, new, message, kernel", [
    ("grad_x[i] =", "grad_x[i + 20] =", "out-of-bounds write of 'grad_x': element 300 of 300", "b"),
    ("grad_x[i] =", "grad_x[i + i / (N - 1)] =", "out-of-bounds write of 'grad_x': element 300 of 300", "b"),
    ("= grad_y[i]", "= grad_y[i + 1]", "out-of-bounds read of 'grad_y': element 300 of 300", "b"),
    ("        y[i] = x[i]", "        y[i] = x[i + 1]", "out-of-bounds read of 'x': element 300 of 300", "f"),
    ("        y[i] = x[i]", "        y[i - 3] = x[i]", "out-of-bounds write of 'y': element -3 of 300", "f"),
    ("        y[i] = x[i]", "        y[i] = x[i] + (x[i - 1] > 9)", "out-of-bounds read of 'x': element -1 of 300", "f"),
    ("= grad_y[i]", "= grad_y[i] + (grad_y[i - 2] > 9)", "out-of-bounds read of 'grad_y': element -", "b"),
])  # fmt: skip
def test_what_lies_outside(tmp_path, old, new, message, kernel):
    """The place is said, and the proof ends by itself."""
    path, found = check(tmp_path, (old, new), text=OUTSIDE)
    fault = next(f for f in found if message in f["message"])
    assert fault["kernel"] == kernel
    assert fault["context"] == f"float64, example 1, {'forward' if kernel == 'f' else 'backward'}"
    assert fault["where"] == line_of(path, new)
