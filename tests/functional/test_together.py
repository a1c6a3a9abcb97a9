"""Features that know nothing of each other, used together."""

import os

import numpy as np
import pytest

from conftest import DEVICE
from raw import Raw, RpcError, make_memfd

# A saved tensor, and a check that fails where a value is negative.
ROOT = """\
//! op      root(Tensor x) -> Tensor y
//! dtypes  float32
//! shape   x [N]
//! shape   y [N]
//! check   sign : "element {index} is negative"
//! saved   half [N]
//
//! forward
//!   kernel root_forward
//! backward grad_x
//!   kernel root_backward

__global__ void root_forward(const float *x, float *y, float *half, opd::report_t *report,
                             int64_t N)
{
    CUDA_KERNEL_LOOP(i, N) {
        if (!opd::check(report, sign, x[i] >= 0, i))
            continue;
        y[i] = sqrt(x[i]);
        half[i] = 0.5f / y[i];
    }
}

__global__ void root_backward(const float *half, const float *grad_y, float *grad_x, int64_t N)
{
    CUDA_KERNEL_LOOP(i, N)
        grad_x[i] = grad_y[i] * half[i];
}
"""

# Changed in place, with the same check.
ROOT_IN_PLACE = """\
//! op      root_(Tensor(a!) x) -> ()
//! dtypes  float32
//! shape   x [N]
//! check   sign : "element {index} is negative"
//
//! forward
//!   kernel root_in_place

__global__ void root_in_place(float *x, opd::report_t *report, int64_t N)
{
    CUDA_KERNEL_LOOP(i, N) {
        if (opd::check(report, sign, x[i] >= 0, i))
            x[i] = sqrt(x[i]);
    }
}
"""

N = 8
GOOD = np.arange(1, N + 1, dtype=np.float32)
BAD = GOOD.copy()
BAD[3] = -1


@pytest.fixture
def raw(start_daemon, tmp_path):
    (tmp_path / "root.cu").write_text(ROOT)
    (tmp_path / "root_.cu").write_text(ROOT_IN_PLACE)
    with Raw(start_daemon("--kernels", str(tmp_path)).socket) as raw:
        raw.make(1, "float32", [N], GOOD.tobytes())
        raw.make(2, "float32", [N], BAD.tobytes())
        raw.make(3, "float32", [N], np.ones(N, np.float32).tobytes())
        yield raw


def read(raw, id):
    return np.frombuffer(raw.call("tensor_read", id, 0), np.float32)


def wait_error(raw, msgid):
    with pytest.raises(RpcError) as info:
        raw.wait(msgid)
    return info.value


def test_a_context_of_a_forward_that_makes_no_tensor(raw):
    """All outputs go into tensors that are there: the context alone is new."""
    raw.make(4, "float32", [N])
    raw.call("forward", "root", [1], {}, [None], {"into": [4], "context": 1})
    np.testing.assert_allclose(read(raw, 4), np.sqrt(GOOD), rtol=1e-6)
    raw.call("backward", 1, [3], [5])
    np.testing.assert_allclose(read(raw, 5), 0.5 / np.sqrt(GOOD), rtol=1e-6)


def test_and_of_one_that_fails(raw):
    raw.make(4, "float32", [N])
    forward = raw.request("forward", "root", [2], {}, [None], {"into": [4], "context": 1})
    backward = raw.request("backward", 1, [3], [5])
    assert str(wait_error(raw, forward)) == "root: element 3 is negative"
    assert wait_error(raw, backward).code == "not_found"
    assert raw.fail("backward", 1, [3], [6]).code == "not_found"


def test_tensors_in_shared_memory_are_listed(raw):
    if DEVICE != "cpu":
        pytest.skip("a memfd is memory of the CPU")
    fd = make_memfd(4096)
    raw.call("import_open", 1, "cpu", "memfd", b"", 4096, fds=[fd])
    raw.call("import_tensor", 10, 1, 64, "float32", [N])
    raw.call("tensor_view", 11, 10, 2, [3])
    listed = {t["id"]: t for t in raw.call("tensor_list") if t["id"] in (10, 11)}
    assert [listed[k]["bytes"] for k in (10, 11)] == [4 * N, 12]
    assert listed[10]["owner"]


def test_a_failed_check_leaves_into_as_it_was_written(raw):
    raw.make(4, "float32", [N])
    raw.make(5, "float32", [N])
    error = raw.fail("forward", "root", [2], {}, [None], {"into": [4], "saved_into": [5]})
    assert str(error) == "root: element 3 is negative"
    expected = np.where(BAD < 0, 0, np.sqrt(np.abs(BAD)))
    np.testing.assert_allclose(read(raw, 4), expected, rtol=1e-6)
    assert raw.call("tensor_info", 5)["suspect"] is None


# --- what check and op_code say of operators that are not kernels and dtypes

KERNEL = """\
//! op      twice(Tensor x) -> Tensor y
//! {types}
//! shape   x [N]
//! shape   y [N]
//! example x=[{n}]
//
//! forward
//!   kernel twice_forward

__global__ void twice_forward(const {t} *x, {t} *y, int64_t N)
{{
    CUDA_KERNEL_LOOP(i, N)
        y[i] = 2 * x[i];
}}
"""
VIEW = """\
//! op      line(Tensor(a) x) -> Tensor(a) y
//! dtypes  int32 bool float32
//! shape   x [A, B]
//! shape   y [A * B]
//! view    y x
//! example x=[2,3]
"""
FORMULA = """\
//! op      cube(Tensor x) -> Tensor y
//! dtypes  float32 float64
//! formula y = x * x * x
//! formula grad_x = 3 * x * x * grad_y
"""
MATMUL = """\
//! op      product(Tensor a, Tensor b) -> Tensor y
//! dtypes  float16 float32
//! shape   a [M, K]
//! shape   b [K, N]
//! shape   y [M, N]
//! example a=[2,3] b=[3,4]
//
//! forward
//!   matmul y = a @ b
"""


def check(raw, text, **options):
    result = raw.call("check", "t.cu", "", text, {"targets": ["cpu"], **options})
    assert result["ok"] and not result["errors"], result["errors"]
    return [(k["kernel"], k["dtype"]) for k in result["kernels"]], result["warnings"]


def test_check_of_fixed_types_and_of_other_variables(raw):
    fixed = KERNEL.format(types="type    float64 : x y", t="double", n=4)
    assert check(raw, fixed) == ([("twice_forward", None)], [])
    own = KERNEL.format(types="type    own_t int32 float32 : x y", t="own_t", n=4)
    assert check(raw, own) == ([("twice_forward", d) for d in ("int32", "float32")], [])
    assert check(raw, own, dtypes=["float32"]) == ([("twice_forward", "float32")], [])
    error = raw.fail("check", "t.cu", "", own, {"targets": ["cpu"], "dtypes": ["int64"]})
    assert str(error) == "twice has no dtype 'int64'"


def test_check_of_matmul_and_formulas(raw):
    kernels, warnings = check(raw, MATMUL)
    assert [d for _, d in kernels] == ["float16", "float32"] and not warnings
    assert all(k.startswith("opd::matmul<") for k, _ in kernels)
    kernels, warnings = check(raw, FORMULA + "//! example x=[3]\n")
    assert {k.split("<")[1].split(",")[0] for k, _ in kernels} == {"cube_forward", "cube_backward"}
    assert len(kernels) == 4 and not warnings


@pytest.mark.parametrize(
    "text, note",
    [
        (FORMULA, "it has no example"),
        (KERNEL.format(types="dtypes float32", t="float", n=0), "its examples launch no kernel"),
        (VIEW, "its outputs are views"),
    ],
)
def test_check_with_nothing_to_compile_says_why(raw, text, note):
    kernels, warnings = check(raw, text)
    assert not kernels and len(warnings) == 1 and note in warnings[0]["log"]


def test_code_of_what_has_no_kernels_is_an_error(start_daemon, tmp_path):
    (tmp_path / "line.cu").write_text(VIEW)
    (tmp_path / "cube.cu").write_text(FORMULA + "//! example x=[3]\n")
    with Raw(start_daemon("--kernels", str(tmp_path)).socket) as raw:
        error = raw.fail("op_code", "line", "ptx")
        assert error.code == "invalid_argument" and "its outputs are views" in str(error)
        try:
            code = raw.call("op_code", "cube", "ptx", {"dtype": "float64"})
        except RpcError as error:
            if "NVRTC" not in str(error):
                raise
            pytest.skip(f"no NVRTC here: {error}")
        assert {k["dtype"] for k in code} == {"float64"}
        assert any("cube_backward" in k["kernel"] for k in code)
        assert all(".entry" in k["text"] for k in code)


# --- versions of a formula operator


def test_versions_of_a_formula_operator(start_daemon, tmp_path):
    """Asked for by number, pinned, rolled back; and an edit brings the kernels that are in use."""
    path = tmp_path / "cube.cu"
    path.write_text(FORMULA)
    with Raw(start_daemon("--kernels", str(tmp_path)).socket) as raw:
        raw.make(1, "float64", [3], np.array([1, 2, 3], np.float64).tobytes())

        def forward(id, **options):
            reply = raw.call("forward", "cube", [1], {}, [id], options)
            return reply["version"], np.frombuffer(raw.call("tensor_read", id, 0)).tolist()

        assert forward(10, context=1) == (1, [1, 8, 27])
        path.write_text(FORMULA.replace("y = x * x * x", "y = -x * x * x"))
        assert [v["state"] for v in raw.call("reload")] == ["serving"]
        assert forward(11) == (2, [-1, -8, -27])
        assert forward(12, version=1) == (1, [1, 8, 27])
        raw.call("backward", 1, [1], [13])  # of the version that ran forward
        assert np.frombuffer(raw.call("tensor_read", 13, 0)).tolist() == [3, 24, 81]
        raw.call("rollback", "cube")
        assert forward(14) == (1, [1, 8, 27])
        raw.call("pin", "cube", 2)
        assert forward(15) == (2, [-1, -8, -27])
        plan = raw.call("plan", "cube", [["float64", [2, 3]]], {}, {"version": 1})
        assert plan["version"] == 1 and plan["outputs"] == [["float64", [2, 3]]]
        assert plan["saved"] == [] and plan["views"] == [None]
        grads = raw.call("vjp", "cube", [1], [], [], [1], {}, [16])
        assert grads[0]["shape"] == [3]


# --- after a fault

FAULT = """\
//! op      fault(Tensor x) -> Tensor y
//! dtypes  float32
//! shape   x [N]
//! shape   y [N]
//
//! forward
//!   kernel fault_forward

__global__ void fault_forward(const float *x, float *y, int64_t N)
{
    CUDA_KERNEL_LOOP(i, N)
        y[i + (int64_t(1) << 40)] = x[i];
}
"""


def test_checks_of_what_is_run_again_after_a_fault(raw, tmp_path):
    """What was sent behind a request that ends the executor is run by the next one, checks too."""
    (tmp_path / "fault.cu").write_text(FAULT)
    raw.call("reload")
    raw.call("forward", "root", [1], {}, [10])
    raw.fail("forward", "fault", [1], {}, [11])  # compiled now
    sent = [raw.request("forward", "fault", [1], {}, [20])]
    sent += [raw.request("forward", "root", [1 + k % 2], {}, [30 + k]) for k in range(20)]
    assert wait_error(raw, sent[0]).code == "kernel_fault"
    for k, msgid in enumerate(sent[1:]):
        if k % 2:
            assert str(wait_error(raw, msgid)) == "root: element 3 is negative"
        else:
            raw.wait(msgid)
            np.testing.assert_allclose(read(raw, 30 + k), np.sqrt(GOOD), rtol=1e-6)


def test_imports_views_and_writes_in_place_across_a_restart(raw, tmp_path):
    if DEVICE != "cpu":
        pytest.skip("a memfd is memory of the CPU")
    (tmp_path / "line.cu").write_text(VIEW)
    raw.call("reload")
    fd = make_memfd(4096)
    raw.call("import_open", 1, "cpu", "memfd", b"", 4096, fds=[fd])
    raw.call("import_tensor", 10, 1, 64, "float32", [2, N // 2])
    raw.call("tensor_write", 10, 0, GOOD.tobytes())
    raw.call("forward", "line", [10], {}, [11])  # a view of an import
    raw.call("free", "import", [1])
    for _ in range(2):
        raw.call("forward", "root_", [11], {}, [])
        raw.call("device_restart", "cpu")
    expected = GOOD**0.25
    np.testing.assert_allclose(read(raw, 10), expected, rtol=1e-6)
    np.testing.assert_allclose(
        np.frombuffer(os.pread(fd, 4 * N, 64), np.float32), expected, rtol=1e-6
    )
    raw.call("free", "tensor", [10])
    raw.call("device_restart", "cpu")
    np.testing.assert_allclose(read(raw, 11), expected, rtol=1e-6)


def test_an_export_reads_what_it_exports(raw, tmp_path):
    """It is refused for a suspect tensor, whether or not the failure was known when it was sent."""
    (tmp_path / "fault_.cu").write_text(
        FAULT.replace("fault(Tensor x) -> Tensor y", "fault_(Tensor(a!) x) -> ()")
        .replace("//! shape   y [N]\n", "")
        .replace("const float *x, float *y", "float *x")
        .replace("y[i +", "x[i +")
        .replace("fault_forward", "fault_in_place")
    )
    raw.call("reload")
    raw.make(10, "float32", [N], GOOD.tobytes())
    write = raw.request("forward", "fault_", [10], {}, [])
    export = raw.request("tensor_export", 10, 1)
    assert wait_error(raw, write).code == "kernel_fault"
    assert "is suspect" in str(wait_error(raw, export))
    assert "is suspect" in str(raw.fail("tensor_export", 10, 2))
    raw.call("tensor_accept", [10])
    assert raw.call("tensor_export", 10, 1)["size"] == 4 * N
