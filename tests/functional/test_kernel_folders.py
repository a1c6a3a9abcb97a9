"""Folders of operators: which file is served, and what becomes of one that cannot be."""

import os
from pathlib import Path

import pytest

from operators import double, double_by, put_kernels
from raw import Raw


def test_a_later_folder_wins(tmp_path, start_daemon):
    first = put_kernels(tmp_path / "first", double_it=double_by(2))
    second = put_kernels(tmp_path / "second", renamed=double_by(3))
    daemon = start_daemon("--kernels", first, "--kernels", second)
    with Raw(daemon.socket) as raw:
        assert double(raw) == 63
        ops = [o for o in raw.call("op_list") if o["name"] == "double_it"]
        assert [o["file"] for o in ops] == [f"{second}/renamed.cu"]
        assert raw.call("status")["kernels"][-2:] == [first, second]
    log = daemon.read_log()
    assert f"{second}/renamed.cu replaces {first}/double_it.cu" in log


def test_a_shipped_operator_is_replaced(tmp_path, start_daemon):
    folder = put_kernels(tmp_path / "own", own=double_by(2).replace("double_it(", "gelu(", 1))
    daemon = start_daemon("--kernels", folder)
    with Raw(daemon.socket) as raw:
        assert raw.call("op_info", "gelu")["file"] == f"{folder}/own.cu"
        assert raw.call("op_info", "gelu")["source"] == Path(folder, "own.cu").read_text()


def test_what_does_not_parse_is_not_served(tmp_path, start_daemon):
    folder = put_kernels(
        tmp_path / "own",
        good=double_by(2),
        bad="//! op bad(Tensor x) -> Tensor y\n//! dtyps float32\n",
        binary="",
        huge="// x\n" * 300000,
    )
    Path(folder, "binary.cu").write_bytes(bytes(range(256)) * 10)
    Path(folder, "latin.cu").write_bytes(
        double_by(2).replace("double_it", "latin").encode() + b"// \xe9\n"
    )
    Path(folder, "folder.cu").mkdir()
    Path(folder, ".hidden.cu").write_text("//! nonsense")
    os.mkfifo(Path(folder, "pipe.cu"))
    Path(folder, "dangling.cu").symlink_to("/no/such/file")
    daemon = start_daemon("--kernels", folder)
    log = daemon.read_log()
    assert "not served: bad.cu:2: " in log and "dtypes" in log
    for name in ("binary.cu", "huge.cu", "folder.cu", "dangling.cu", "pipe.cu"):
        assert any("not served" in line and name in line for line in log.splitlines()), (name, log)
    assert ".hidden.cu" not in log
    with Raw(daemon.socket) as raw:
        names = [o["name"] for o in raw.call("op_list")]
        assert "double_it" in names and "bad" not in names and "gelu" in names
        if "latin" in names:
            assert raw.call("op_info", "latin")["source"]
        assert double(raw) == 42


def test_a_byte_order_mark(tmp_path, start_daemon):
    mark = "\ufeff"
    included = double_by("FACTOR").replace('extern "C"', '#include "factor.cuh"\nextern "C"', 1)
    included = included.replace("double_it", "scaled")
    folder = put_kernels(tmp_path / "own", marked=mark + double_by(2), scaled=mark + included)
    Path(folder, "factor.cuh").write_text(mark + "#define FACTOR 3\n")
    daemon = start_daemon("--kernels", folder)
    with Raw(daemon.socket) as raw:
        assert double(raw) == 42
        done = raw.call("check", "marked.cu", folder, mark + double_by(2), {"targets": ["cpu"]})
        assert done["ok"] and done["kernels"], done
        done = raw.call("check", "scaled.cu", folder, mark + included, {"targets": ["cpu"]})
        assert done["ok"] and done["kernels"], done


def test_an_attribute_that_nothing_reads(tmp_path, start_daemon):
    text = double_by(2).replace("Tensor x", "Tensor x, *, float beta=1.0", 1)
    folder = put_kernels(tmp_path / "own", idle=text)
    daemon = start_daemon("--kernels", folder)
    warning = "idle.cu:1: nothing reads the attribute 'beta'"
    with Raw(daemon.socket) as raw:
        assert double(raw) == 42
        assert warning in daemon.read_log()
        done = raw.call("check", "idle.cu", folder, text, {"targets": ["cpu"]})
        assert done["ok"] and [warning in w["log"] for w in done["warnings"]] == [True]
        text = text.replace("//! forward", "//! require beta > 0\n//! forward", 1)
        assert "beta > 0" in text
        done = raw.call("check", "idle.cu", folder, text, {"targets": ["cpu"]})
        assert done["ok"] and done["warnings"] == []


SQUARE = """\
//! op      square(Tensor x) -> %s
//! dtypes  float32
//! shape   x [N]
//! shape   y [N]%s
//! example x=[5]
//! forward
//!   kernel  square
//! backward grad_x
%s
__global__ void square(const float *x, float *y, float *z, int N)
{
    CUDA_KERNEL_LOOP(i, N) y[i] = x[i] * x[i];
}
__global__ void back(const float *x, float *grad_x, int N)
{
    CUDA_KERNEL_LOOP(i, N) grad_x[i] = 2 * x[i];
}
__global__ void unread(const float *x, const float *grad_y, float *grad_x, int N)
{
    CUDA_KERNEL_LOOP(i, N) grad_x[i] = 2 * x[i];
}
__global__ void chain(const float *x, const float *grad_y, float *grad_x, int N)
{
    CUDA_KERNEL_LOOP(i, N) grad_x[i] = 2 * x[i] * grad_y[i];
}
"""
ONE, TWO = ("Tensor y", ""), ("(Tensor y, Tensor z)", "\n//! shape   z [N]")
FORMULAS = """\
//! op f(Tensor x) -> Tensor y
//! dtypes float32
//! example x=[5]
//! formula y = x * x
//! formula grad_x = %s
"""


@pytest.mark.parametrize("text, warnings", [
    (SQUARE % (*ONE, "//!   kernel  chain"), []),
    (SQUARE % (*ONE, "//!   zero    grad_x"), []),
    (SQUARE % (*ONE, "//!   kernel  back"), ["f.cu:8: no kernel of this section reads grad_y: what it makes is the same"]),
    (SQUARE % (*ONE, "//!   kernel  unread"), ["f.cu:8: no kernel of this section reads grad_y"]),
    (SQUARE % (*TWO, "//!   kernel  back"), ["f.cu:9: no kernel of this section reads grad_y or another gradient"]),
    (SQUARE % (*TWO, "//!   kernel  chain"), ["f.cu:1: nothing reads grad_z: the gradient of z counts for nothing"]),
    (FORMULAS % "2 * x * grad_y", []),
    (FORMULAS % "0", ["f.cu:5: grad_x is not the derivative of the formulas"]),
    (FORMULAS % "2 * x", ["f.cu:5: grad_x is made without the gradient of an output",
                          "f.cu:5: grad_x is not the derivative of the formulas"]),
])  # fmt: skip
def test_a_gradient_that_nothing_reads(tmp_path, daemon, text, warnings):
    text = text if TWO[0] in text else text.replace(", float *z", "")
    with Raw(daemon.socket) as raw:
        done = raw.call("check", "f.cu", str(tmp_path), text, {"targets": ["cpu"]})
    assert done["ok"], done
    told = "\n".join(w["log"] for w in done["warnings"]).splitlines()
    assert len(told) == len(warnings)
    assert all(t.startswith(w) for t, w in zip(told, warnings)), told


def test_a_kernel_that_does_not_compile(tmp_path, start_daemon):
    source = double_by("no_such_name")
    line = next(i for i, text in enumerate(source.splitlines(), 1) if "no_such_name" in text)
    daemon = start_daemon("--kernels", put_kernels(tmp_path / "own", double_it=source))
    with Raw(daemon.socket) as raw:
        raw.make(1, "float32", [1])
        for _ in range(2):
            error = raw.fail("forward", "double_it", [1], {}, [2])
            assert error.code == "compile_error" and error.op == "double_it"
            assert f"double_it.cu:{line}" in str(error) or f"double_it.cu({line})" in str(error)
            assert f"double_it.cu:{line}" in error.log or f"double_it.cu({line})" in error.log
            assert "no_such_name" in error.log
        compilers = raw.call("status")["compilers"]
        assert compilers["failed"] == 1  # once: the same source would fail again
        assert raw.fail("tensor_info", 2).code == "not_found"
        raw.call("forward", "gelu", [1], {}, [2])
