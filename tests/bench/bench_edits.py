"""How long an edit takes to compile, by what the kernel includes: `make bench-edits`. Needs NVRTC, no GPU.

    bench_edits.py [--target sm_90] [--turns N]

A compiler process as the daemon has it is sent the same kernel with another constant, again and again; a plain kernel
takes turns with each of the others. Milliseconds of one core (a compile keeps one busy from its start to its end), so
that what else the machine does counts less; those of four dtypes together and of g++ are by the clock. NVRTC alone is
the library in this process, with the same text and options and its own precompiled header.
"""

import argparse
import os
import statistics
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests")]

from compiler_process import Compiler  # noqa: E402
from compilers import Nvrtc, find_nvrtc, prelude  # noqa: E402

PROGRAM = os.environ.get("OPD_BIN", str(ROOT / "build" / "opd"))
DTYPES = ["float32", "float16", "bfloat16", "float64"]

PLAIN = """
template <class T> __global__ void k(const T *x, T *y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = x[i] * T(CONSTANT) + T(1);
}
"""
GROUPS = """
namespace cg = cooperative_groups;
template <class T> __global__ void k(const T *x, T *y, int n)
{
    auto tile = cg::tiled_partition<32>(cg::this_thread_block());
    float sum = float(x[cg::this_thread_block().thread_rank()]) * CONSTANT;
    for (int i = 16; i > 0; i /= 2)
        sum += tile.shfl_xor(sum, i);
    y[cg::this_thread_block().thread_rank()] = T(sum);
}
"""
CLUSTER = """
namespace cg = cooperative_groups;
template <class T> __global__ void k(const T *x, T *y, int n)
{
    auto cluster = cg::this_cluster();
    y[threadIdx.x] = x[threadIdx.x] * T(CONSTANT) + T(cluster.block_rank());
}
"""
REDUCE = """
template <class T> __global__ void k(const T *x, T *y, int n)
{
    using Reduce = cub::BlockReduce<float, 128>;
    __shared__ typename Reduce::TempStorage storage;
    float sum = Reduce(storage).Sum(float(x[threadIdx.x]) * CONSTANT);
    if (threadIdx.x == 0)
        y[0] = T(sum);
}
"""
SCAN = """
template <class T> __global__ void k(const T *x, T *y, int n)
{
    using Load = cub::BlockLoad<T, 128, 4, cub::BLOCK_LOAD_TRANSPOSE>;
    using Scan = cub::BlockScan<T, 128>;
    using Store = cub::BlockStore<T, 128, 4, cub::BLOCK_STORE_TRANSPOSE>;
    __shared__ union {
        typename Load::TempStorage load;
        typename Scan::TempStorage scan;
        typename Store::TempStorage store;
    } s;
    T item[4];
    Load(s.load).Load(x, item);
    item[0] *= T(CONSTANT);
    __syncthreads();
    Scan(s.scan).InclusiveSum(item, item);
    __syncthreads();
    Store(s.store).Store(y, item);
}
"""
SORT = """
template <class T> __global__ void k(const T *x, T *y, int n)
{
    using Sort = cub::BlockRadixSort<T, 128, 4>;
    __shared__ typename Sort::TempStorage storage;
    T item[4];
    for (int i = 0; i < 4; i++)
        item[i] = x[threadIdx.x * 4 + i] * T(CONSTANT);
    Sort(storage).Sort(item);
    for (int i = 0; i < 4; i++)
        y[threadIdx.x * 4 + i] = item[i];
}
"""
CASES = [
    ("cuda_fp16, opd's", ["cuda_fp16.h"], PLAIN),
    ("cooperative_groups, opd's", ["cooperative_groups.h"], GROUPS),
    ("cub block_reduce, opd's", ["cub/block/block_reduce.cuh"], REDUCE),
    ("cub block_load, scan, store, opd's",
     ["cub/block/block_load.cuh", "cub/block/block_scan.cuh", "cub/block/block_store.cuh"], SCAN),
    ("cuda_fp8", ["cuda_fp8.h"], PLAIN),
    ("cuda_fp16, mma", ["cuda_fp16.h", "mma.h"], PLAIN),
    ("cuda_pipeline", ["cuda_pipeline.h"], PLAIN),
    ("cooperative_groups", ["cooperative_groups.h"], CLUSTER),
    ("cooperative_groups, cuda_fp16, mma", ["cooperative_groups.h", "cuda_fp16.h", "mma.h"], GROUPS),
    ("cuda/std array, limits, cmath", ["cuda/std/array", "cuda/std/limits", "cuda/std/cmath"],
     PLAIN.replace("T(1)", "T(cuda::std::numeric_limits<float>::max())")),
    ("cub block_radix_sort", ["cub/block/block_radix_sort.cuh"], SORT),
]  # fmt: skip


def edited(includes, kernel):
    """The text with a constant that nobody has seen."""
    constant = f"1.{int.from_bytes(os.urandom(4), 'big'):010}f"
    return "".join(f"#include <{name}>\n" for name in includes) + kernel.replace("CONSTANT", constant)


def worked(pid):
    """Milliseconds that its threads have run."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e6


def took(compiler, source, broken=False, clock=False, **other):
    """Milliseconds of the processor; by the clock."""
    begun = worked(compiler.process.pid)
    result = compiler.compile(source + ("int broken = ;\n" if broken else ""), "k<scalar_t>", **other)
    if bool(result["code"]) != broken:
        raise RuntimeError(result["message"] + result["log"])
    return result["ms"] if clock else worked(compiler.process.pid) - begun


def least(times):
    return f"{min(times):.0f} | {statistics.median(times):.0f}"


def time_case(start, turns, name, includes, kernel):
    with start() as compiler:
        first = took(compiler, edited(includes, kernel))
    with start() as compiler:
        again = took(compiler, edited(includes, kernel))
        plain, own, told = [], [], []
        took(compiler, edited([], PLAIN)), took(compiler, edited(includes, kernel), broken=True)
        for _ in range(turns):
            plain.append(took(compiler, edited([], PLAIN)))
            own.append(took(compiler, edited(includes, kernel)))
            told.append(took(compiler, edited(includes, kernel), broken=True))
    print(f"| {name} | {first:.0f} | {again:.0f} | {least(own)} | {min(own) / min(plain):.2f} | "
          f"{min(own) - min(plain):+.0f} | {least(told)} |", flush=True)  # fmt: skip


def time_plain(start, turns, target):
    """NVRTC alone compiles four dtypes one after the other, opd in as many compilers."""
    nvrtc = Nvrtc(target, find_nvrtc())
    compilers = [start() for _ in DTYPES]
    preludes = [prelude(dtype) for dtype in DTYPES]
    alone, alone_four, one, four = [], [], [], []

    def one_of_four(compiler, text):
        return took(compiler, edited([], PLAIN), clock=True, prelude=text)

    with ThreadPoolExecutor(len(DTYPES)) as threads:
        for _ in range(turns + 2):
            begun = worked(os.getpid())
            nvrtc.seconds(edited([], PLAIN), DTYPES[0], "k<scalar_t>")
            alone.append(worked(os.getpid()) - begun)
            one.append(took(compilers[0], edited([], PLAIN)))
            alone_four.append(sum(nvrtc.seconds(edited([], PLAIN), dtype, "k<scalar_t>") * 1e3 for dtype in DTYPES))
            four.append(max(threads.map(one_of_four, compilers, preludes)))
    nvrtc.close()
    for compiler in compilers:
        compiler.close()
    print("| a plain kernel | NVRTC alone, ms: least | median | opd: least | median | ratio of the least |\n"
          "|---|---|---|---|---|---|")  # fmt: skip
    for name, theirs, ours in (("float32", alone[2:], one[2:]),
                               (f"four dtypes, on {os.cpu_count()} cores", alone_four[2:], four[2:])):  # fmt: skip
        print(f"| {name} | {least(theirs)} | {least(ours)} | {min(ours) / min(theirs):.2f} |", flush=True)
    print()


def time_host(turns):
    """What a user without a GPU waits for."""
    with Compiler(PROGRAM, target="cpu") as compiler:
        for broken in (False, True):
            whole, syntax = [], []
            for _ in range(turns):
                whole.append(took(compiler, edited([], PLAIN), broken, clock=True))
                syntax.append(took(compiler, edited([], PLAIN), broken, clock=True, kind="syntax"))
            name = "a mistake told" if broken else "a plain kernel"
            print(f"| {name} | {least(whole)} | {least(syntax)} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", default="sm_90")
    parser.add_argument("--turns", type=int, default=11)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="opd-bench-") as cache:

        def start():
            return Compiler(PROGRAM, cache=cache, target=args.target, log=log)

        with open(os.devnull, "w") as log:
            with start() as compiler:
                took(compiler, edited([], PLAIN))
                print(compiler.compile("", "", kind="identity")["compiler"].split(" cubin")[0], "\n")
            time_plain(start, args.turns, args.target)
            print("| the kernel includes | first, ms | after a restart | an edit: least | median "
                  "| of a plain one's | over it | a mistake told: least | median |\n"
                  "|---|---|---|---|---|---|---|---|---|")  # fmt: skip
            for case in CASES:
                time_case(start, args.turns, *case)
    print("\n| g++ | ms: least | median | syntax alone: least | median |\n|---|---|---|---|---|")
    time_host(args.turns)


if __name__ == "__main__":
    main()
