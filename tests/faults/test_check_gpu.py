"""opctl check --run on a GPU: a file's examples in checked builds, the kernels that the GPU has alone among them, and
whether it gets what the CPU gets."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from conftest import PATIENCE

DEVICE = os.environ.get("OPD_TEST_DEVICE", "cpu")
pytestmark = pytest.mark.skipif(not DEVICE.startswith("cuda"), reason="the CPU's: test_check_run.py")
ROOT = Path(__file__).resolve().parents[2]
OPCTL = Path(os.environ.get("OPD_BIN", ROOT / "build" / "opd")).parent / "opctl"

SOURCE = """\
//! op      pair(Tensor x, *, int by=0) -> Tensor y
//! dtypes  float32 float16
//! shape   x [N]
//! shape   y [N]
//! example x=[1000] by={by}
//! forward
//!   kernel  on_cpu when cpu threads N
//!   kernel  on_gpu otherwise threads N
//! backward grad_x
//!   kernel  back threads N

__global__ void on_cpu(const scalar_t *x, scalar_t *y, int64_t N, int64_t by)
{{
    CUDA_KERNEL_LOOP(i, N) y[i] = x[i];
}}

__global__ void on_gpu(const scalar_t *x, scalar_t *y, int64_t N, int64_t by)
{{
    CUDA_KERNEL_LOOP(i, N) {body} // here
}}

__global__ void back(const scalar_t *grad_y, scalar_t *grad_x, int64_t N, int64_t by)
{{
    CUDA_KERNEL_LOOP(i, N) grad_x[i] = grad_y[i];
}}
"""
LINE = SOURCE[: SOURCE.index("// here")].count("\n") + 1


def run(path, *options):
    """The stages' reports, by their names."""
    command = [OPCTL, "check", "--run", "--json", "--deadline", "60", *options, path]
    done = subprocess.run(command, timeout=2 * PATIENCE, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert done.returncode == (0 if report["ok"] else 1), (report, done.stderr)
    return {stage["stage"]: stage for stage in report["stages"]}


@pytest.fixture
def check(tmp_path):
    def check(body, by, *options, source=SOURCE):
        path = tmp_path / "pair.cu"
        path.write_text(source.format(body=body, by=by))
        return run(path, *options)

    return check


def the_finding(stage):
    assert stage["state"] == "findings", stage
    return stage["findings"][0]


def test_what_only_the_gpu_runs(check):
    """Beside the CPU's stages, which find nothing; without them where they are not wanted."""
    stages = check("y[i] = x[i + by];", 1)
    assert [stage["state"] for stage in stages.values()] == ["ok", "ok", "ok", "findings"]
    found = the_finding(stages[DEVICE])
    assert "out-of-bounds read of 'x': element 1000 of 1000 (float32)" in found["message"]
    assert found["where"] == f"pair.cu:{LINE}" and found["kernel"] == "on_gpu"
    assert found["context"] == "float32, example 1, forward"
    assert list(check("y[i] = x[i + by];", 1, "--device", DEVICE)) == [DEVICE]
    assert list(check("y[i] = x[i + by];", 1, "--device", "cpu", "--dtype", "float16")) == ["guards", "addresses", "races"]


def test_good_ones(check):
    (stage,) = check("y[i] = x[i];", 0, "--device", DEVICE).values()
    assert stage["state"] == "ok" and stage["launches"] == 4, stage


def test_what_nothing_writes(check):
    (stage,) = check("if (i != 7) y[i] = x[i];", 0, "--device", DEVICE).values()
    found = the_finding(stage)
    assert "'y': 1 of 1000 elements depend on what was in memory before, the first is 7" in found["message"]


@pytest.mark.parametrize("options", [(), ("--device", DEVICE)])
def test_what_the_cpu_has_otherwise(check, options):
    """Both values; also where the CPU's stages are not asked for."""
    found = the_finding(check("y[i] = i == 7 ? scalar_t(2) * x[i] : x[i];", 0, *options)[DEVICE])
    told = re.search(r"'y': element 7 is (\S+), on the CPU (\S+) \(float32\); 1 of 1000 elements", found["message"])
    assert told and float(told[1]) == pytest.approx(2 * float(told[2]), 1e-6) != 0, found
    assert found["context"] == "float32, example 1, forward" and found["kernel"] == "on_gpu"
    close = "y[i] = x[i] * scalar_t(1.00001f);"
    assert check(close, 0, "--dtype", "float32", *options)[DEVICE]["state"] == "ok"


def test_gradients_that_the_cpu_has_otherwise(check):
    own = "kernel  back when cpu threads N\n//!   kernel  twice otherwise threads N"
    text = SOURCE.replace("kernel  back threads N", own)
    text += """
__global__ void twice(const scalar_t *grad_y, scalar_t *grad_x, int64_t N, int64_t by)
{{
    CUDA_KERNEL_LOOP(i, N) grad_x[i] = i < 999 ? grad_y[i] : scalar_t(7);
}}
"""
    found = the_finding(check("y[i] = x[i];", 1, "--device", DEVICE, source=text)[DEVICE])
    assert "'grad_x': element 999 is 7, on the CPU " in found["message"] and found["kernel"] == "twice"
    assert found["context"] == "float32, example 1, backward"


@pytest.mark.parametrize("path", sorted((ROOT / "kernels_src").glob("*.cu")), ids=lambda p: p.stem)
def test_the_operators_of_the_tree_pass(path):
    """By the usual deadline, however many cases they have: each has it to itself."""
    (stage,) = run(path, "--deadline", "10", "--device", DEVICE).values()
    assert stage["state"] == "ok", stage


def test_traps(check):
    (stage,) = check("if (i == 3) __trap();", 0, "--device", DEVICE).values()
    assert "__trap()" in the_finding(stage)["message"] and the_finding(stage)["where"] == f"pair.cu:{LINE}"


def test_what_does_not_compile_or_is_not_there(check):
    (stage,) = check("y[i] = nothing;", 0, "--device", DEVICE).values()
    assert stage["state"] == "failed" and "nothing" in stage["log"], stage
    (stage,) = check("y[i] = x[i];", 0, "--device", "cuda:63").values()
    assert stage["state"] == "failed" and "there is no device cuda:63" in stage["message"], stage
