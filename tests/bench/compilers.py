"""What an edit is compared with: the compilers of opd alone, on the same text with the same options,
and what PyTorch and CuPy offer."""

import ctypes
import glob
import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from compiler_process import common

ROOT = Path(__file__).resolve().parents[2]

# As in server/compiler/nvrtc.c.
NVRTC_OPTIONS = [
    "--std=c++17", "--device-as-default-execution-space", "-lineinfo", "--modify-stack-limit=false",
    "-D_CCCL_META_UNROLL_LIMIT=10",
    "--no-cache",
    "--pch", "--pch-verbose=false", "-diag-suppress=20283",
]  # fmt: skip


def salt():
    """A comment that nobody has seen."""
    return f"// {os.urandom(8).hex()}\n"


def edited(text):
    """The text with another constant, so that the code is one that no cache has seen."""
    assert "1.702" in text
    return text.replace("1.702", f"1.702{int.from_bytes(os.urandom(3), 'big'):08}")


def prelude(dtype):
    table = (ROOT / "server" / "base" / "dtype.def").read_text()
    row = re.search(rf"^DTYPE\({dtype}, *\d+, *\d+, *\"(.*)\", *\"(.*)\"\)", table, re.M)
    return f"using scalar_t = {row[1]};\nusing acc_t = {row[2]};\n"


# ---- NVRTC


def find_nvrtc():
    named = os.environ.get("OPD_NVRTC")
    places = [named] if named else []
    for top in ("/usr/local/cuda/lib64", "/usr/local/cuda-*/lib64"):
        places.append(f"{top}/libnvrtc.so.1[0-9]")
    for top in (os.environ.get("VIRTUAL_ENV", ""), str(ROOT / ".venv"), "/usr/local", "/usr"):
        for package in ("cu13", "cuda_nvrtc"):
            site = f"{top}/lib/python3*/*-packages/nvidia/{package}/lib"
            places.append(f"{site}/libnvrtc.so.1[0-9]")
    found = [path for place in places for path in sorted(glob.glob(place))]
    return found[0] if found else None


class Nvrtc:
    """NVRTC in this process, with its precompiled header warm after the first compile."""

    def __init__(self, target, path):
        for builtins in glob.glob(f"{os.path.dirname(path)}/libnvrtc-builtins.so*"):
            ctypes.CDLL(builtins)
        self.lib = ctypes.CDLL(path)
        self.folder = tempfile.mkdtemp(prefix="opd-bench-pch-")
        include = Path(path).parents[1] / "include"
        options = [*NVRTC_OPTIONS, f"--gpu-architecture={target}", f"--pch-dir={self.folder}"]
        options += [f"-I{include}"] if (include / "cuda_fp16.h").exists() else []
        self.options = (ctypes.c_char_p * len(options))(*[o.encode() for o in options])
        self.common = common().encode()

    def seconds(self, source, dtype, expr):
        """One compile to a cubin."""
        text = '#include "common.cuh"\n#pragma nv_hdrstop\n#line 1 "prelude"\n' + prelude(dtype)
        text += f'\n#line 1 "gelu.cu"\n{source}\n'
        start = time.perf_counter()
        program = ctypes.c_void_p()
        headers = (ctypes.c_char_p * 1)(self.common)
        names = (ctypes.c_char_p * 1)(b"common.cuh")
        self._try("CreateProgram", ctypes.byref(program), text.encode(), b"opd", 1, headers, names)
        self._try("AddNameExpression", program, expr.encode())
        if self.lib.nvrtcCompileProgram(program, len(self.options), self.options):
            size = ctypes.c_size_t()
            self._try("GetProgramLogSize", program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value)
            self._try("GetProgramLog", program, log)
            raise RuntimeError(log.value.decode())
        size = ctypes.c_size_t()
        self._try("GetCUBINSize", program, ctypes.byref(size))
        image = ctypes.create_string_buffer(size.value)
        self._try("GetCUBIN", program, image)
        took = time.perf_counter() - start
        self._try("DestroyProgram", ctypes.byref(program))
        return took

    def close(self):
        shutil.rmtree(self.folder)

    def _try(self, name, *args):
        code = getattr(self.lib, f"nvrtc{name}")(*args)
        if code:
            raise RuntimeError(f"nvrtc{name}: {code}")


# ---- the host's compiler

# Keeps the inputs and the arguments of every compile.
SPY = """#!/bin/sh
case " $* " in
*-fsyntax-only* | *" -include "*) ;;
*" opd.cpp "*)
    to=$(mktemp -d "{folder}/job-XXXXXX")
    cp -r . "$to/inputs"
    printf '%s\\n' "$@" >"$to/arguments" ;;
esac
exec c++ "$@"
"""


class HostCompiler:
    """The daemon's own command lines, run again. `run(env)` makes a daemon compile for each dtype."""

    def __init__(self, run):
        self.folder = Path(tempfile.mkdtemp(prefix="opd-bench-cxx-"))
        spy = self.folder / "cxx"
        spy.write_text(SPY.format(folder=self.folder))
        spy.chmod(0o755)
        run({"OPD_CXX": str(spy)})
        self.jobs = {}
        for job in self.folder.glob("job-*"):
            dtype = re.search(r"using scalar_t = (\S+);", (job / "inputs/opd.cpp").read_text())[1]
            self.jobs[dtype] = job

    def seconds(self, source, dtype, expr):
        """One run; the text is the one that the daemon had, but for a comment at its end."""
        del source, expr
        job = self.jobs[re.search(r"scalar_t = (\S+);", prelude(dtype))[1]]
        with open(job / "inputs" / "opd.cpp", "a") as file:
            file.write(salt())
        arguments = (job / "arguments").read_text().splitlines()
        start = time.perf_counter()
        subprocess.run(["c++", *arguments], cwd=job / "inputs", check=True)
        return time.perf_counter() - start

    def close(self):
        shutil.rmtree(self.folder)


# ---- others, on a GPU

PLAIN = """
extern "C" __global__ void gelu(const float *x, float *y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = x[i] / (1.0f + expf(-1.702f * x[i]));
}
"""
WRAPPER = """
#include <torch/extension.h>
torch::Tensor run(torch::Tensor x)
{
    auto y = torch::empty_like(x);
    int n = x.numel();
    gelu<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
    return y;
}
"""


def time_load_inline():
    """Seconds of a build after an edit; the first build is not counted."""
    import torch
    from torch.utils.cpp_extension import load_inline

    x = torch.ones(8, device="cuda")
    for _ in range(2):
        start = time.perf_counter()
        module = load_inline(
            "opd_bench_gelu",
            cpp_sources="torch::Tensor run(torch::Tensor x);" + salt(),
            cuda_sources=edited(PLAIN + WRAPPER),
            functions=["run"],
        )
        module.run(x).sum().item()
        took = time.perf_counter() - start
    return took


def time_cupy():
    import cupy

    x, y = cupy.ones(8, cupy.float32), cupy.zeros(8, cupy.float32)
    start = time.perf_counter()
    kernel = cupy.RawModule(code=edited(PLAIN), options=("--std=c++17",)).get_function("gelu")
    kernel((1,), (256,), (x, y, 8))
    y.get()
    return time.perf_counter() - start


def time_compile_kernel():
    import torch

    x, y = torch.ones(8, device="cuda"), torch.zeros(8, device="cuda")
    start = time.perf_counter()
    kernel = torch.cuda._compile_kernel(edited(PLAIN), "gelu")
    kernel((1, 1, 1), (256, 1, 1), (x, y, 8))
    y.sum().item()
    return time.perf_counter() - start


OTHERS = [
    ("PyTorch `load_inline`, built again", time_load_inline, 1),
    ("PyTorch `torch.cuda._compile_kernel`", time_compile_kernel, 9),
    ("CuPy `RawModule`", time_cupy, 9),
]
