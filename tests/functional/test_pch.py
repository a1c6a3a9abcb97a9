"""Precompiled headers of NVRTC: shared by compilers, kept over restarts, and never the cause of anything but speed.

Compilers alone, without a daemon and a GPU; what each did with its precompiled header is in its log. And GCC's.
"""

import ctypes
import itertools
import os
import signal
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor

import pytest

from compiler_process import Compiler
from conftest import PROGRAM
from raw import eventually

KERNEL = """
template <class T> __global__ void k(T *x) { x[threadIdx.x] *= T(FACTOR); }
"""


numbers = itertools.count(100)


def text(factor=None, includes="#include <cuda_pipeline.h>\n"):
    return includes + KERNEL.replace("FACTOR", str(factor or next(numbers)))


class Logged(Compiler):
    """make(source) compiles and tells, in one word, what became of the precompiled header."""

    def __init__(self, folder, **options):
        self.path = folder / f"log-{os.urandom(4).hex()}"
        with open(self.path, "w") as log:
            super().__init__(PROGRAM, log=log, **options)

    def compile(self, source, expr, **other):
        try:
            return super().compile(source, expr, **other)
        except ConnectionError as error:
            raise ConnectionError(f"{error}; its log ends:\n{self.path.read_text()[-4000:]}") from None

    def make(self, source, **other):
        self.result = self.compile(source, **{"expr": "k<scalar_t>", **other})
        assert self.result["code"] == 0, self.result["message"] + self.result["log"]
        assert self.result["log"] == ""
        assert not self.result["cached"], "compile something that nobody has compiled"
        self.compile("", "", kind="identity")  # answered when what was made before has been published
        return self.path.read_text().rsplit(".cu: precompiled header ", 1)[1].splitlines()[0]

    def image(self, source, **other):
        self.make(source, **other)
        return self.result["image"]


def refuses_fixed_addresses():
    """personality() may be forbidden in a container; each process then has its own."""
    addr_no_randomize = 0x0040000
    child = os.fork()
    if child == 0:
        os._exit(ctypes.CDLL(None).personality(addr_no_randomize) == -1)
    return os.waitpid(child, 0)[1] != 0


needs_addresses = pytest.mark.skipif(refuses_fixed_addresses(), reason="needs processes with the same addresses")
def shared(test):
    return pytest.mark.unsanitized("needs processes with the same addresses")(needs_addresses(test))


@pytest.fixture
def start(tmp_path):
    """start(**options): a compiler, with a cache of the test's own."""
    cache, started = tmp_path / "cache", []
    cache.mkdir()

    def start(**options):
        started.append(Logged(tmp_path, **{"cache": cache, **options}))
        return started[-1]

    with Compiler(PROGRAM) as asked:
        said = asked.compile("", "", kind="identity")
    if said["code"]:
        pytest.skip(said["message"])
    if "headers " not in said["compiler"]:
        pytest.skip("NVIDIA's headers are not installed")
    yield start
    for compiler in started:
        compiler.close()


def kept(tmp_path):
    return sorted((tmp_path / "cache").rglob("*.pch*"))


@shared
def test_one_for_all_compilers_and_those_to_come(start, tmp_path):
    first, other = start(), start()
    assert [first.make(text()) for _ in range(2)] == ["made", "used"]
    assert other.make(text()) == "used" and len(kept(tmp_path)) == 1
    first.close(), other.close()
    later = start()
    assert later.make(text()) == "used"
    # Another folder, dtype and file have the same, another architecture and another include their own.
    assert later.make(text(), folder=str(tmp_path), file="y.cu", prelude="using scalar_t = int;\n") == "used"
    assert [later.make(text(), target="sm_80") for _ in range(2)] == ["made", "used"]
    for includes in ("#include <cuda_pipeline.h>\n#include <cuda_fp8.h>\n", "#include <cub/cub.cuh>\n", ""):
        assert [later.make(text(None, includes)) for _ in range(2)] == ["made", "used"]
    assert [later.make(text(), kind="syntax") for _ in range(2)] == ["made", "used"]
    assert len(kept(tmp_path)) == 6


def test_images_are_the_same(start):
    compiler = start()
    without = start(env={"TMPDIR": "/nonexistent"})
    made = compiler.image(text(2), cache="")
    assert made == compiler.image(text(2), cache="")  # and used
    assert without.image(text(2)) == made and without.make(text()) == "not used"


def test_randomized_addresses_keep_it_to_the_process(start, tmp_path):
    for _ in range(2):
        compiler = start(randomized=True)
        assert [compiler.make(text()) for _ in range(2)] == ["made", "used"]
    assert not kept(tmp_path)


def test_an_own_header_is_never_in_it(start, tmp_path):
    """It is found in the operator's folder, and counts as it is now."""
    compiler, folder = start(), tmp_path / "k"
    folder.mkdir()
    for includes in ('#include "own.cuh"\n', "#include <cuda_fp8.h>\n#include <own.cuh>\n"):
        images = set()
        for factor in (2, 3, 2):
            (folder / "own.cuh").write_text(f"#define OWN {factor}\n")
            images.add(compiler.image(text("OWN", includes), folder=str(folder), cache=""))
        assert len(images) == 2
    # One of NVIDIA's names stands for NVIDIA's header in NVIDIA's.
    (folder / "cuda_fp16.hpp").write_text("#error this is not NVIDIA's\n")
    compiler.make(text("OWN", includes), folder=str(folder))


def test_an_edited_opd_cuh_is_another_one(start):
    compiler, seen = start(), set()
    for factor in (2, 3, 2):
        common = f"template <class T> __device__ T by(T x) {{ return x * {factor}; }}\n"
        source = "#include <cuda_pipeline.h>\n" + KERNEL.replace("T(FACTOR)", "by(T(1))")
        seen.add(compiler.image(source, common=common, cache=""))
    assert len(seen) == 2


def damage(path, how):
    size = path.stat().st_size
    if how == "gone":
        path.unlink()
    elif how == "folder":
        path.unlink()
        path.mkdir()
    elif how == "flip":
        with open(path, "r+b") as file:
            file.seek(size // 2)
            byte = file.read(1)[0]
            file.seek(size // 2)
            file.write(bytes([byte ^ 1]))
    else:
        os.truncate(path, {"empty": 0, "cut": size // 2, "short": size - 1}[how])


def test_a_damaged_one_is_made_anew(start, tmp_path):
    running = start()
    whole = running.image(text(2))
    for how in ("cut", "short", "empty", "flip", "gone", "folder"):
        (path,) = kept(tmp_path)
        damage(path, how)
        later = start()
        assert later.make(text()) == "made", how
        assert later.image(text(2), cache="") == whole
        later.close()
    assert running.image(text(2), cache="") == whole


def test_one_that_is_cut_while_it_is_held(start, tmp_path):
    compiler = start()
    assert [compiler.make(text()) for _ in range(2)] == ["made", "used"]
    damage(*kept(tmp_path), "cut")
    assert [compiler.make(text()) for _ in range(2)] == ["made", "used"]


@shared
def test_many_that_begin_together(start, tmp_path):
    """Each makes it or finds it; what is in the cache is one that is whole."""
    compilers = [start() for _ in range(4)]
    with ThreadPoolExecutor(4) as threads:
        said = list(threads.map(lambda c: c.make(text()), compilers))
    assert set(said) <= {"made", "used"}
    assert start().make(text()) == "used" and len(kept(tmp_path)) == 1


@shared
def test_one_that_is_killed_while_it_makes_one(start, tmp_path):
    compiler = start()
    with ThreadPoolExecutor(1) as thread:
        lost = thread.submit(compiler.make, text())
        while not kept(tmp_path) and not lost.done():
            pass
        compiler.process.send_signal(signal.SIGKILL)
        assert isinstance(lost.exception(), (ConnectionError, type(None)))  # None: it was quicker
    assert [start().make(text()) for _ in (3, 4)] in (["made", "used"], ["used", "used"])


@pytest.fixture
def mount(tmp_path):
    """mount(options): a file system of its own; skipped where that is not allowed."""
    folder = tmp_path / "mounted"

    def make(options):
        folder.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", folder], capture_output=True)
        if done.returncode:
            pytest.skip(f"mounting is not allowed: {done.stderr.decode()}")
        return folder

    yield make
    subprocess.run(["umount", "-l", folder], capture_output=True)


@pytest.mark.parametrize("options", ["ro", "size=4m"])
def test_a_cache_that_takes_none(start, mount, options):
    """Read-only, or full: the process has one of its own, and no piece is left."""
    cache = mount(options)
    compiler = start(cache=cache)
    said = [compiler.make(text()) for _ in (2, 3, 4)]
    assert said[-1] == "used" and "made" in said
    assert not list(cache.rglob("*.pch*"))


def test_a_cache_in_which_others_write(start, tmp_path):
    """NVRTC makes the file by its name, which others could turn to another file: the process has one of its own."""
    (tmp_path / "cache").chmod(0o777)
    assert [start().make(text()) for _ in (2, 3)] == ["made", "made"]
    assert not kept(tmp_path)


def test_macros_that_the_prelude_knows(start):
    """A file's macro counts from its line on, though the include behind it goes first."""
    start().make("#define scalar_t float\n#include <cuda_fp16.h>\n" + text(None, ""), expr="k<float>")


def test_a_temporary_folder_that_is_full(start, mount):
    """NVRTC would be ended by a signal there."""
    compiler = start(env={"TMPDIR": str(mount("size=5m"))})
    assert [compiler.make(text()) for _ in (2, 3)] == ["not used"] * 2


def test_a_limit_that_it_does_not_fit(start, tmp_path):
    compiler = start(cache_limit=str(8 << 20))
    assert [compiler.make(text()) for _ in (2, 3)] == ["made", "used"]
    assert not kept(tmp_path)


def test_an_include_that_must_not_come_first(start):
    """An error among the lines that were put first has the file compiled as it stands."""
    compiler = start()
    source = "#define uint32_t NOTHING_AT_ALL(\n#include <cuda_pipeline.h>\n" + KERNEL
    result = compiler.compile(source, "k<scalar_t>")
    assert result["code"] and "opd(" not in result["log"] and "opd:" not in result["log"]


def test_headers_that_nvrtc_has_in_itself(start, tmp_path):
    """They are unpacked when a file needs one, into the cache, or where that cannot be."""
    compiler = start()
    compiler.make(text(None, ""))
    if "headers its own" not in compiler.result["compiler"]:
        pytest.skip("this NVRTC has none, or is in a toolkit that has them")
    assert not list((tmp_path / "cache").glob("headers-*"))
    compiler.make(text())
    (folder,) = (tmp_path / "cache").glob("headers-*")
    assert (folder / "cuda_fp16.h").exists()
    old = tmp_path / "cache" / "headers-0.0-1"
    old.mkdir()
    os.utime(old, (1, 1))
    compiler.make(text(), cache="")
    start().make(text())
    assert not old.exists() and folder.exists()


def code(result):
    """The machine's, of an image for the CPU."""
    image = result["image"]
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(image[image.index(b"\x7fELF") :])
        file.flush()
        done = subprocess.run(["objdump", "-d", file.name], capture_output=True, text=True, check=True)
    return done.stdout.split("\n", 3)[3]


def test_what_units_for_the_cpu_begin_with(tmp_path):
    """GCC precompiles it after a few; code and messages are the same, and an edited opd.cuh counts at once."""
    kernel = "__global__ void k(float *x) { x[threadIdx.x] = by(x[blockIdx.x]); }\n"
    broken = "__global__ void k(float *x) { x[0] = by(nothing); }\n"

    def common(factor):
        return f"template <class T> T by(T x) {{ return x * {factor}; }}\n"

    with Logged(tmp_path, target="cpu") as compiler, Logged(tmp_path, target="cpu") as fresh:
        if "clang" in compiler.compile("", "", kind="identity")["compiler"]:
            pytest.skip("the host's compiler is clang")
        for _ in range(4):  # the last is answered after that
            compiler.compile(kernel, "k", common=common(2))
        eventually(lambda: "CPU is precompiled" in compiler.path.read_text())
        for factor in (2, 3):
            ours, theirs = (c.compile(kernel, "k", common=common(factor)) for c in (compiler, fresh))
            assert ours["code"] == 0 and code(ours) == code(theirs)
        ours, theirs = (c.compile(broken, "k", common=common(2)) for c in (compiler, fresh))
        assert ours["code"] and (ours["message"], ours["log"]) == (theirs["message"], theirs["log"])
        assert "not precompiled" not in compiler.path.read_text()


HALVES = """
template <class T> __global__ void k(T *f)
{
    const scalar_t *x = (const scalar_t *)f;
    scalar_t *y = (scalar_t *)f, b = ((THEIRS *)f)[1];
    THEIRS a = x[2], c = a * x[3], d = __hadd(x[4], a);
    THEIRS e = __hadd(x[5], b), g(x[6]);
    y[7] = a + c;
    y[8] += d * b + scalar_t(e) * x[9];
    y[10] = x[10] > a || a < b || x[11] != b || b >= scalar_t(0) && x[12] > 0 ? -x[13] : b;
    y[14] = g;
    y[15] = acc_t(x[15]) * 0.5f + 2 * x[16];
}
"""


@pytest.mark.parametrize("include", ["mma.h", "cuda_fp8.h"])
@pytest.mark.parametrize("theirs, ours", [("__half", "half"), ("__nv_bfloat16", "bfloat16")])
def test_nvidias_16_bit_types_are_ours(start, include, theirs, ours):
    """Where a header brings NVIDIA's own: they convert to and from scalar_t, and no operator is in doubt."""
    prelude = f"using scalar_t = opd::{ours};\nusing acc_t = float;\n"
    assert start().image(f"#include <{include}>\n{HALVES.replace('THEIRS', theirs)}", prelude=prelude)
