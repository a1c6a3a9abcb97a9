"""Folders of operators: which file is served, and what becomes of one that cannot be."""

import itertools
import os
import subprocess
from pathlib import Path

import opd
import pytest
from conftest import PATIENCE, PROGRAM, eventually

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


def test_folders_of_the_environment(tmp_path, start_daemon, monkeypatch):
    first = put_kernels(tmp_path / "first", double_it=double_by(2))
    second = put_kernels(tmp_path / "second", double_it=double_by(3))
    monkeypatch.setenv("OPD_KERNELS", f"{first}::{second}:{first}")
    with Raw(start_daemon().socket) as raw:
        assert double(raw) == 63
        assert raw.call("status")["kernels"][1:] == [first, second]
    third = put_kernels(tmp_path / "third", double_it=double_by(4))
    with Raw(start_daemon("--kernels", third).socket) as raw:
        assert double(raw) == 84
    monkeypatch.setenv("OPD_KERNELS", f"{first}:/no/such")
    ended = subprocess.run([PROGRAM], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ended.returncode != 0 and "OPD_KERNELS: /no/such: No such file" in ended.stderr


def test_the_users_own_configuration(tmp_path, start_daemon, monkeypatch):
    first = put_kernels(tmp_path / "first", double_it=double_by(2))
    second = put_kernels(tmp_path / "second", double_it=double_by(3))
    (tmp_path / "config" / "opd").mkdir(parents=True)
    own, other = tmp_path / "config" / "opd" / "opd.conf", tmp_path / "other.conf"
    own.write_text(f"# mine\nkernels = {first}\nclient-requests = 7\n")
    other.write_text(f"kernels = {second}\n")
    for name, value in (("XDG_CONFIG_HOME", tmp_path / "config"), ("XDG_CONFIG_HOME", "")):
        monkeypatch.setenv(name, str(value))
        monkeypatch.setenv("HOME", str(tmp_path))
        (tmp_path / ".config").exists() or (tmp_path / ".config").symlink_to("config")
        with Raw(start_daemon().socket) as raw:
            assert double(raw) == 42
            assert raw.call("hello")["limits"]["client_requests"] == 7
    with Raw(start_daemon("--config", other).socket) as raw:
        assert double(raw) == 63
        assert raw.call("hello")["limits"]["client_requests"] != 7
    own.write_text("kernels = /no/such\n")
    ended = subprocess.run([PROGRAM], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ended.returncode != 0 and "opd.conf:1: --kernels: /no/such: No such" in ended.stderr


def test_a_folder_is_added_to_a_daemon_that_serves(tmp_path, start_daemon):
    first = put_kernels(tmp_path / "first", double_it=double_by(2))
    second = put_kernels(tmp_path / "second", double_it=double_by(3), broken="//! op broken(")
    daemon, ids = start_daemon("--kernels", first), itertools.count(1, 2)
    with Raw(daemon.socket) as raw:
        assert double(raw, next(ids)) == 42
        for _ in range(2):
            told = {change["file"]: change for change in raw.call("kernels_add", second)}
            assert told[f"{second}/broken.cu"]["state"] == "failed"
        assert raw.call("status")["kernels"][1:] == [first, second]
        assert double(raw, next(ids)) == 63
        put_kernels(tmp_path / "second", double_it=double_by(4))
        raw.call("reload")
        assert double(raw, next(ids)) == 84
        raw.call("upgrade")
        assert raw.call("status")["kernels"][1:] == [first, second]
        put_kernels(tmp_path / "second", double_it=double_by(5))
        eventually(lambda: double(raw, next(ids)) == 105)  # it is watched
        open_to_all = tmp_path / "open"
        open_to_all.mkdir()
        open_to_all.chmod(0o777)
        for path, message in (
            ("second", "expected a folder's path"),
            (str(tmp_path / "none"), "No such file"),
            (f"{first}/double_it.cu", "is no folder"),
            (str(open_to_all), "can be written by everyone"),
            ("/" + "x" * 5000, "expected a folder's path"),
        ):
            error = raw.fail("kernels_add", path)
            assert error.code == "invalid_argument" and message in str(error)
        assert len(raw.call("status")["kernels"]) == 3
        for i in range(40):
            (tmp_path / str(i)).mkdir()
        while raw.call("status")["kernels"][-1] != str(tmp_path / "28"):
            raw.call("kernels_add", str(tmp_path / str(len(raw.call("status")["kernels"]) - 3)))
        assert "more than 32 folders" in str(raw.fail("kernels_add", str(tmp_path / "39")))


def test_a_folder_of_the_clients(tmp_path, start_daemon):
    folder = put_kernels(tmp_path / "own", double_it=double_by(2))
    daemon = start_daemon()
    with daemon.connect(kernels=folder) as client:
        assert client.tensor([21.0]).double_it().numpy().tolist() == [42.0]
    with daemon.connect(kernels=[Path(folder)]) as client:
        assert client.status()["kernels"][1:] == [folder]
    with pytest.raises(opd.InvalidArgument, match="No such file"):
        daemon.connect(kernels=[tmp_path / "none"])
    other = put_kernels(tmp_path / "other", double_it=double_by(3))
    opctl = [Path(PROGRAM).parent / "opctl", "--socket", daemon.socket, "kernels"]
    done = subprocess.run([*opctl, "add", "other"], cwd=tmp_path, capture_output=True, text=True,
                          timeout=PATIENCE, check=True)
    assert f"{other}/double_it.cu" in done.stdout and "serving" in done.stdout
    done = subprocess.run([*opctl, "ad", "other"], capture_output=True, text=True, timeout=PATIENCE,
                          check=False)
    assert done.returncode == 2 and "expected kernels add DIR" in done.stderr


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
