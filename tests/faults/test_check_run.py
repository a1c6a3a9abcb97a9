"""opctl check --run on the CPU: what it finds, where, and that it finds nothing where there is nothing. Of a GPU:
test_check_gpu.py."""

import json
import os
import stat
import subprocess
from pathlib import Path

import pytest

from conftest import PATIENCE, TEST_SECONDS, eventually

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("OPD_BIN", ROOT / "build" / "opd"))
OPCTL = PROGRAM.parent / "opctl"
NEEDLESS = {"LD_PRELOAD"}

HEADER = """\
//! op      trial(Tensor x, *, int by=1) -> Tensor y
//! dtypes  float32
//! shape   x [N]
//! shape   y [N]
//! example x=[1000]
//! scratch count int32 [1]
//!
//! forward
//!   zero    count
//!   kernel  trial
//!   grid    cdiv(N, 128)
//!   block   128
//!   shared  512

__global__ void trial(const float *x, float *y, int *count, int N, int by)
{
    __shared__ float s[128];
    extern __shared__ float d[];
    int t = threadIdx.x, i = blockIdx.x * 128 + t;
"""
USE = "    s[t] = d[t] = 0; if (i < N) y[i] = x[i] + s[t] + d[t] + count[0];\n}\n"


def write(folder, body, use=USE):
    path = folder / "trial.cu"
    path.write_text(HEADER + body + use)
    return path


def check(path, *options, mode="--run", **environment):
    env = {k: v for k, v in os.environ.items() if k not in NEEDLESS}
    env.update(environment, OPD_BIN=str(PROGRAM))
    if mode == "--run":
        options = ("--device", "cpu", *options)
    return subprocess.run([OPCTL, "check", mode, path, *options], env=env, timeout=TEST_SECONDS,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True)


def report(path, *options, mode="--run", **environment):
    if "--deadline" not in options:
        options = (*options, "--deadline", str(PATIENCE))
    done = check(path, "--json", *options, mode=mode, **environment)
    assert done.returncode in (0, 1) and not done.stderr, (done.stdout, done.stderr)
    result = json.loads(done.stdout)
    assert result["ok"] == (done.returncode == 0)
    return {stage["stage"]: stage for stage in result["stages"]}


def findings(stages):
    return [(name, f) for name, stage in stages.items() for f in stage["findings"]]


def line_of(path, text):
    return f"{path.name}:{[text in at for at in path.read_text().splitlines()].index(True) + 1}"


def expect(stages, stage, what, *places):
    for name, finding in findings(stages):
        seen = {finding["where"], finding["other"]}
        if name == stage and what in finding["message"] and set(places) <= seen:
            return finding
    raise AssertionError(f"{stage}: {what} at {places}, got {json.dumps(stages, indent=1)}")


def test_overruns_of_tensors(tmp_path):
    path = write(tmp_path, "    if (i < N) y[i] = x[i + by]; // here\n")
    stages = report(path)
    what = "read of 'x': element 1000 of 1000 (float32)"
    expect(stages, "guards", f"out-of-bounds {what}", line_of(path, "// here"))
    expect(stages, "addresses", f"heap-buffer-overflow: {what}", line_of(path, "// here"))


def test_underruns_of_tensors(tmp_path):
    path = write(tmp_path, "    if (i < N) y[i - by] = x[i]; // here\n")
    stages = report(path)
    what = "write of 'y': element -1 of 1000 (float32)"
    expect(stages, "guards", f"out-of-bounds {what}")
    expect(stages, "addresses", f"heap-buffer-overflow: {what}", line_of(path, "// here"))


def test_overruns_of_shared_arrays(tmp_path):
    path = write(tmp_path, "    s[t + by] = 1; // here\n")
    expect(report(path), "addresses", "index 128 out of bounds", line_of(path, "// here"))
    path = write(tmp_path, "    d[t + by] = 1; // here\n")
    expect(report(path), "addresses", "write of shared or local memory", line_of(path, "// here"))


@pytest.mark.parametrize("body, what", [
    ("int v = 1 << (t + 31);", "shift exponent 32 is too large"),
    ("int v = 2147483647 - 100 + t;", "signed integer overflow"),
    ("int a[4]; a[0] = 0; int v = a[(t & 7) * by];", "index 4 out of bounds"),
])
def test_undefined_behaviour(tmp_path, body, what):
    path = write(tmp_path, f"    {body} // here\n    if (v == 12345) count[0] = 1;\n",
                 "    if (i < N) y[i] = x[i];\n}\n")
    expect(report(path), "addresses", what, line_of(path, "// here"))


def test_a_missing_syncthreads(tmp_path):
    body = "    s[t] = i < N ? x[i] : 0; // write\n{}    float v = s[127 - t]; // read\n"
    use = "    if (i < N) y[i] = v;\n}\n"
    path = write(tmp_path, body.format(""), use)
    expect(report(path), "races", "data race", line_of(path, "// write"), line_of(path, "// read"))
    stages = report(write(tmp_path, body.format("    __syncthreads();\n"), use))
    assert not findings(stages) and stages["races"]["state"] == "ok"


LOCALS = """    float a, b;
    both(i < N ? x[i] : 0, &a, &b);
    sincosf(a, &a, &b);
    if (i < N) y[i] = a + b;
"""
BOTH = "__device__ __noinline__ void both(float x, float *a, float *b) { *a = x; *b = 2 * x; }\n\n"


def test_local_variables_are_each_thread_s_own(tmp_path):
    """Also where a function gets their addresses; a race beside them is found all the same."""
    path = write(tmp_path, LOCALS)
    path.write_text(path.read_text().replace("__global__", BOTH + "__global__", 1))
    stages = report(path)
    assert not findings(stages) and stages["races"]["state"] == "ok"
    path.write_text(path.read_text().replace("y[i] = a + b;", "y[i] = a + b + s[127 - t]; // race"))
    stages = report(path)
    assert {name for name, _ in findings(stages)} == {"races"}
    expect(stages, "races", "data race", line_of(path, "// race"))


SHARED_16_BIT = """\
//! op      trial(Tensor x) -> Tensor y
//! dtypes  float16 bfloat16 float64
//! shape   x [N]
//! shape   y [N]
//! example x=[256]
//!
//! forward
//!   kernel  trial<scalar_t>
//!   grid    4
//!   block   64
template <typename T> __global__ void trial(const T *x, T *y, int N)
{
    __shared__ T s[64];
    int i = blockIdx.x * 64 + threadIdx.x;
    s[threadIdx.x] = x[i];
    __syncthreads();
    y[i] = s[63 - threadIdx.x];
}
"""


def test_shared_arrays_of_16_bits(tmp_path):
    path = tmp_path / "trial.cu"
    path.write_text(SHARED_16_BIT)
    stages = report(path)
    assert not findings(stages) and stages["races"]["state"] == "ok"
    path.write_text(SHARED_16_BIT.replace("    __syncthreads();\n", ""))
    assert {name for name, _ in findings(report(path))} == {"races"}


def test_an_access_far_away(tmp_path):
    """Each stage tells the same, and ends."""
    path = write(tmp_path, "    if (i < N) y[i] = x[i - 10000000]; // here\n")
    stages = report(path, "--deadline", "60")
    for name in ("guards", "addresses", "races"):
        assert len(stages[name]["findings"]) == 1 and stages[name]["seconds"] < 30
        expect(stages, name, "out-of-bounds read", line_of(path, "// here"))


def test_the_second_barrier_is_missing(tmp_path):
    """In a loop: the first barrier alone does not keep the next round from overtaking."""
    body = """    float v = 0;
    for (int k = 0; k < 4; k++) {{
        s[t] = k; // write
        __syncthreads();
        v += s[(t + 37) % 128]; // read
{}    }}
"""
    use = "    if (i < N) y[i] = v;\n}\n"
    path = write(tmp_path, body.format(""), use)
    expect(report(path), "races", "data race", line_of(path, "// write"), line_of(path, "// read"))
    assert not findings(report(write(tmp_path, body.format("        __syncthreads();\n"), use)))


def test_a_missing_syncwarp(tmp_path):
    body = """    for (int k = 0; k < 3; k++) {{
        s[t] = k; // write
{}        float v = s[t ^ 1]; // read
        if (i < N) y[i] = v;
        __syncwarp();
    }}
}}
"""
    path = write(tmp_path, body.format(""), "")
    expect(report(path), "races", "data race", line_of(path, "// write"), line_of(path, "// read"))
    assert not findings(report(write(tmp_path, body.format("        __syncwarp();\n"), "")))


def test_races_without_barriers(tmp_path):
    """Threads of one block, and threads of neighbours, on a tensor."""
    path = write(tmp_path, "    if (t < 2) y[blockIdx.x] = x[i]; // here\n", "}\n")
    expect(report(path), "races", "write of 'y'", line_of(path, "// here"))
    path = write(tmp_path, "    if (t == 0) count[0] += 1; // here\n    if (i < N) y[i] = x[i];\n", "}\n")
    # Neighbours meet where two threads have blocks at once, which is up to the system.
    told = next((r for r in (report(path) for _ in range(10)) if findings(r)), report(path))
    expect(told, "races", "of 'count'", line_of(path, "// here"))


def test_races_of_the_only_block(tmp_path):
    path = write(tmp_path, "    if (i == 5) y[3] = 1;\n    if (i == 9) y[3] = 2; // here\n", "}\n")
    path.write_text(path.read_text().replace("cdiv(N, 128)", "1"))
    expect(report(path), "races", "write of 'y': element 3", line_of(path, "// here"))


def test_atomics_are_no_races(tmp_path):
    """Also those that are made of a comparison, and where each thread has something to change."""
    body = """    if (i < N) {
        atomicMax(count, t);
        atomicAdd(y + t % 4, x[i]);
        atomicCAS((unsigned *)y + 5, 0u, (unsigned)t);
        atomicInc((unsigned *)y + 6, 1000u);
        if (!opd::check((opd::report_t *)(y + 8), 0, i % 3 == 0, -i))
            atomicAdd((opd::half *)y + 24, opd::half(1));
    }
"""
    path = write(tmp_path, body, "}\n")
    assert not findings(report(path))


def test_what_is_right_passes(tmp_path):
    """Atomics, shuffles, both kinds of shared memory, a last block that reads all the others', and what
    looks like a stage's own words."""
    stages = report(write(tmp_path, """    __shared__ bool last;
    float v = i < N ? x[i] : 0;
    for (int k = 16; k > 0; k /= 2)
        v += __shfl_xor_sync(0xffffffffu, v, k);
    s[t] = v;
    d[t] = v;
    __syncthreads();
    if (i < N) y[i] = s[127 - t] + d[t];
    __threadfence();
    __syncthreads(); // all of the block have written, before one counts it
    if (t == 0)
        last = atomicAdd(count, 1) == int(gridDim.x) - 1;
    __syncthreads();
    if (t == 0)
        printf("error\\tno\\n%d ", last);
    if (last)
        for (int k = t; k < N; k += 128)
            y[k] += 1;
}
""", ""))
    assert not findings(stages)
    assert [s["state"] for s in stages.values()] == ["ok", "ok", "ok"]
    assert all(s["launches"] == 1 for s in stages.values())


LIKE_ADD = ("sub", "mul", "div")  # the same templates over the same examples: add has them in both types


@pytest.mark.parametrize("path", sorted((ROOT / "kernels_src").glob("*.cu")), ids=lambda p: p.stem)
def test_the_operators_of_the_tree_pass(path):
    dtypes = "float32" if path.stem in LIKE_ADD else "float32,bfloat16"
    stages = report(path, "--dtype", dtypes, "--deadline", "60")
    assert not findings(stages)
    assert [s["state"] for s in stages.values()] == ["ok", "ok", "ok"], stages
    text = path.read_text()  # a view has nothing to launch
    assert stages["guards"]["launches"] >= (0 if "//! view" in text else text.count("//! example"))
    assert len({s["launches"] for s in stages.values()}) == 1


def test_includes_and_text(tmp_path):
    (tmp_path / "part.cuh").write_text("__device__ float part(const float *p)\n{\n    return *p;\n}\n")
    path = tmp_path / "trial.cu"
    path.write_text(HEADER.replace("\n\n__global__", '\n\n#include "part.cuh"\n\n__global__')
                    + "    if (i < N) y[i] = part(x + i + by); // here\n" + USE)
    done = check(path, "--seed", "11")
    assert done.returncode == 1
    assert "trial: 1 case, seed 11\n" in done.stdout
    assert "guards     1 finding\n" in done.stdout
    assert "out-of-bounds read of 'x': element 1000 of 1000 (float32)" in done.stdout
    assert "part.cuh:3" in done.stdout


MADE_OF_NOTHING = """\
//! op      trial(Tensor x) -> Tensor y
//! dtypes  float16 float32 int32
//! shape   x [N]
//! shape   y [N]
//! scratch t [N]
//! example x=[1000]
//!
//! forward
//!   kernel  trial
__global__ void trial(const scalar_t *x, scalar_t *t, scalar_t *y, int N)
{
    CUDA_KERNEL_LOOP(i, N) {
        BODY
    }
}
"""


@pytest.mark.parametrize("body, found", [
    ("y[i] = x[i];", None),
    ("y[i] += x[i];", None),  # begins with zeros
    ("if (i != 7) y[i] = x[i];", "'y': 1 of 1000 elements depend on what was in memory before, the first is 7:"),
    ("if (i % 2) y[i] = x[i];", "'y': 500 of 1000 elements depend on what was in memory before, the first is 0:"),
    ("y[i] = x[i] + t[i];", "'y': 1000 of 1000 elements"),
    ("t[i] = x[i]; y[i] = t[i];", None),
    ("extern __shared__ scalar_t s[]; y[i] = i == 3 ? s[0] : x[i];", "'y': 1 of 1000 elements"),
])  # fmt: skip
def test_results_that_nothing_has_written(tmp_path, body, found):
    """Each case runs in memory that held one thing before, and in memory that held another."""
    path = tmp_path / "trial.cu"
    text = MADE_OF_NOTHING.replace("BODY", body)
    path.write_text(text.replace("kernel  trial\n", "kernel  trial\n//!   shared  8\n"))
    told = findings(report(path))
    if not found:
        assert not told
        return
    (only,) = told  # once, for all dtypes
    assert only[0] == "guards" and found in only[1]["message"]
    assert only[1]["where"] == line_of(path, "//!   kernel") and only[1]["kernel"] == "trial"


GATHER = """\
//! op      trial(Tensor x, Tensor at, Tensor from) -> Tensor y
//! dtypes  float32
//! type    int32 int64 : at from
//! shape   x [N]
//! shape   at [M]
//! shape   from [M]
//! shape   y [M]
//! example x=[4] at=[64] from=[64] DATA
//! forward
//!   kernel trial
__global__ void trial(const float *x, const int *at, const int *from, float *y, int M)
{
    CUDA_KERNEL_LOOP(i, M)
        y[i] = x[at[i] + from[i]];
}
"""


@pytest.mark.parametrize("data, element", [
    ("at is [0, 3, 1] from is 0", None),
    ("at in -2..1 from in 2..2", None),
    ("at is i % N from is i == 63 ? M / 64 : 0", 4),  # x has N = 4: the last element's is 3 + 1
    ("at in 0..4 from is 0", 4),  # both ends come
])
def test_examples_that_say_what_is_in_them(tmp_path, data, element):
    path = tmp_path / "trial.cu"
    path.write_text(GATHER.replace("DATA", data).replace("int32 int64", "int32"))
    told = [f for name, f in findings(report(path, "--seed", "5")) if name == "guards"]
    assert bool(told) == (element is not None)
    if told:
        assert f"element {element} of 4 (float32)" in told[0]["message"]


def test_the_seed_decides(tmp_path):
    """Half of the seeds find what depends on a value."""
    body = "    if (i == 5 && x[0] > 0) y[1000] = 1; // here\n    if (i < N) y[i] = 0;\n"
    path = write(tmp_path, body, "}\n")
    seen = set()
    for seed in range(12):
        stages = report(path, "--seed", str(seed))
        assert bool(findings(stages)) == bool(stages["guards"]["findings"])
        again = report(path, "--seed", str(seed)) if seed < 2 else stages
        assert bool(findings(again)) == bool(findings(stages))
        seen.add(bool(findings(stages)))
        if len(seen) == 2:
            return
    raise AssertionError(f"every seed alike: {seen}")


def test_a_kernel_that_never_ends(tmp_path):
    path = write(tmp_path, "    while (*(volatile const float *)x < 100) ;\n")
    stages = report(path, "--deadline", "0.5")
    assert stages["guards"]["state"] == "failed"
    assert "ended after 0.5 s with 0 of 1 case done" in stages["guards"]["message"]


def test_a_kernel_that_aborts(tmp_path):
    path = write(tmp_path, "    if (t == 3) __trap(); // here\n")
    finding = expect(report(path), "guards", "__trap()")
    assert line_of(path, "// here") in finding["message"]


def test_a_kernel_that_starts_a_process(tmp_path):
    path = write(tmp_path, "    if (t == 0) fork();\n")
    path.write_text(path.read_text().replace("__global__", 'extern "C" int fork(void);\n__global__', 1))
    stages = report(path)
    assert stages["guards"]["state"] == "failed"
    assert "it may start no process" in stages["guards"]["message"]


def test_what_does_not_compile_is_told_once(tmp_path):
    path = write(tmp_path, "    no_such_thing();\n")
    stages = report(path)
    assert list(stages) == ["guards"] and stages["guards"]["state"] == "failed"
    assert "no_such_thing" in stages["guards"]["log"] and "trial.cu:" in stages["guards"]["message"]


def test_a_sanitizer_that_is_not_installed(tmp_path):
    compiler = tmp_path / "c++"
    compiler.write_text('#!/bin/sh\ncase "$*" in\n*print-file-name=libtsan.so*) echo libtsan.so ;;\n'
                        '*) exec g++ "$@" ;;\nesac\n')
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    stages = report(write(tmp_path, ""), OPD_CXX=str(compiler))
    assert stages["races"]["state"] == "skipped" and "libtsan" in stages["races"]["message"]
    assert stages["addresses"]["state"] == "ok"


def test_usage(tmp_path):
    assert check(tmp_path / "none.cu").returncode == 2
    assert check(write(tmp_path, ""), "--seed", "x").returncode == 2
    assert check(write(tmp_path, ""), "--target", "sm_90").returncode == 2
    done = subprocess.run([OPCTL, "check", write(tmp_path, ""), "--seed", "1"], capture_output=True)
    assert done.returncode == 2


def test_an_interrupt_leaves_nothing_behind(tmp_path):
    path = write(tmp_path, "    while (*(volatile const float *)x < 100) ;\n")
    env = dict(os.environ, TMPDIR=str(tmp_path), OPD_BIN=str(PROGRAM))
    process = subprocess.Popen([OPCTL, "check", "--run", path, "--device", "cpu", "--deadline", "60"], env=env,
                               stdout=subprocess.PIPE, text=True)
    assert eventually(lambda: list(tmp_path.glob("opd-trial-*/said")))
    process.terminate()
    assert process.wait(PATIENCE) == 128 + 15
    process.stdout.close()
    assert [p.name for p in tmp_path.iterdir()] == ["trial.cu"]


def test_nothing_is_left_behind(tmp_path):
    done = check(write(tmp_path, "    y[i + by * 5000] = 0;\n"), TMPDIR=str(tmp_path))
    assert done.returncode == 1
    assert [p.name for p in tmp_path.iterdir()] == ["trial.cu"]
