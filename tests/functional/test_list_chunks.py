"""Kernels that take chunks of many tensors in one launch."""

import numpy as np
import pytest
from lists import same
from operators import put_kernels

import opd


@pytest.fixture(scope="module")
def daemon(start_shared, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lists")
    daemon = start_shared("--kernels", str(folder))
    daemon.kernels = folder
    return daemon



# Kernels that take a table of tensors and of chunks, as those of multi_tensor_apply do.
TABLE = """
constexpr int room[3] = {4, 3, 2}, blocks = 2 * room[0];
#define DEPTH 2
template <int n> struct Table {
    void *addresses[n][room[n - 1]];
    const void *single[room[n - 1]];
    SIZE_T sizes[room[n - 1]];
    unsigned char block_to_tensor[blocks];
    int block_to_chunk[blocks];
    int start_tensor_this_launch;
};
enum Mode : int { SUB, ADD };
template <typename T> struct Step {
    __device__ void operator()(int size, volatile int *count, Table<DEPTH> &t, float by, Mode mode, float *first)
    {
        int at = t.block_to_tensor[blockIdx.x], chunk = t.block_to_chunk[blockIdx.x];
        int64_t n = t.sizes[at] - int64_t(chunk) * size;
        T *out = (T *)t.addresses[0][at] + int64_t(chunk) * size;
        const T *x = (const T *)t.addresses[1][at] + int64_t(chunk) * size;
        const T *scale = (const T *)t.single[at];
        if (threadIdx.x == 0) {
            atomicAdd((int *)count, 1);
            if (chunk == 0) // told of places among all
                atomicAdd(first, float(t.start_tensor_this_launch + at));
        }
        for (int i = threadIdx.x; i < size && i < n; i += blockDim.x)
            out[i] += (mode == ADD ? by : -by) * x[i] * (scale ? *scale : T(1));
    }
};
template <typename T, typename F, typename... Args>
__global__ void apply(int chunk_size, volatile int *count, T tl, F f, Args... args)
{
    f(chunk_size, count, tl, args...);
}
"""
CHUNKS = """
//! op      chunks(Tensor(a!)[] ys, Tensor[] xs, Tensor[]? scales=None, *, float by=2.0, int mode=1) \\
//!           -> (Tensor count, Tensor places)
//! dtypes  float32 float64
//! type    int32 : count
//! type    float32 : places
//! shape   ys xs [...S]
//! shape   scales []
//! shape   count places []
//! example ys=[[4],[25]] xs=[[4],[25]]
//! forward
//!   kernel apply<Table<DEPTH>, Step<scalar_t>, float, Mode, float *> chunks ys xs scales by 10 block 4
//!     bind args = by, mode, places
"""


@pytest.mark.parametrize("size", ("int", "int64_t"))
def test_chunks(client, daemon, size):
    put_kernels(daemon.kernels, chunks=CHUNKS + TABLE.replace("SIZE_T", size))
    client.reload()
    rng = np.random.default_rng(2)
    for sizes in [(7,), (10, 0, 11), (95, 3, 0, 20, 1, 1, 1, 1, 40), (0, 0), ()]:
        ys, xs = ([rng.integers(-9, 10, n).astype(np.float32) for n in sizes] for _ in range(2))
        tensors = [client.tensor(y) for y in ys]
        if not sizes:
            with pytest.raises(opd.OpdError, match="the lists are empty, expected a tensor to make count of"):
                client.ops.chunks(tensors, xs)
            continue
        for mode, scales, by in ((1, None, 3), (0, [np.float32(k) for k in range(len(sizes))], 2)):
            count, places = client.ops.chunks(tensors, xs, scales, by=by, mode=mode)
            assert count.numpy() == sum(-(-n // 10) for n in sizes)
            assert places.numpy() == sum(k for k, n in enumerate(sizes) if n)
            ys = [y + (by if mode else -by) * x * (scales[k] if scales else 1) for k, (y, x) in enumerate(zip(ys, xs))]
            same(tensors, ys)


@pytest.mark.parametrize(
    "old, new, said",
    [
        ("xs scales by 10", "xs by 10", "'tl', which has addresses of 3 lists, but 'chunks' names 2"),
        ("by 10", "over 10", "'over' is not defined here"),
        ("by 10", "block 10", "expected another list, or 'by' and the elements of a block, got 'block'"),
        ("ys xs scales by", "ys xs count by", "'count' is a single tensor, expected a Tensor[]"),
        ("block 4", "grid 4", "'grid' and 'chunks' for one kernel, expected one of them"),
        ("chunks ys", "threads 4 chunks ys", "'chunks' beside 'threads', expected one of them for a kernel"),
        ("by, mode, places", "by", "'args[0]', which names no tensor"),
        ("by, mode, places", "by, mode, places, by", "bind of 'args[3]', which is no parameter"),
        ("by, mode, places", "by, mode, ys", "'args[2]', a list of tensors, of which"),
        ("by, mode, places", "by, mode, by", "'args[2]', a pointer, but 'by' is a number, expected a tensor"),
        ("float *>", "const float *>", "no kernel of this section writes places"),
        ("int block_to_chunk[blocks]", "int block_to_chunk[4]", "whose arrays of tensors, or of blocks, are not"),
        ("SIZE_T sizes", "float sizes", "in which 'chunks' fills 'tl.sizes' of type 'float', expected an array of int"),
        ("room[n - 1]];\n    const", "room[n]];\n    const", "whose arrays of tensors"),
        ("blocks = 2 *", "blocks = -2 *", "expected a number from 1 to"),
        ("int block_to_chunk[blocks];", "", "'tl', which has no array 'block_to_chunk', expected one beside the add"),
        ("Table<DEPTH>, Step<scalar_t>, float, Mode, float *>",
         "int, Step<scalar_t>, float, Mode, float *> bind tl = 1",
         "'chunks', but kernel 'apply' takes no struct with arrays of addresses, block_to"),
        ("T tl, F f, Args... args)", "T tl, T other, F f, Args... args)", "takes more than one struct with arrays of"),
    ],
)
def test_mistakes_of_chunks(client, old, new, said):
    text = CHUNKS + TABLE
    assert old in text
    told = client._link.ask("check", "chunks.cu", "/", text.replace(old, new).replace("SIZE_T", "int"), {})
    assert said in told["errors"][0]["message"]


def test_chunks_that_do_not_plan(client):
    for old, new, said in (
        ("by 10", "by mode", "kernel apply: chunks of 0 elements, expected at least 1"),
        ("block 4", "block 4 when numel(ys) > 9", "kernel apply: its condition holds at some places of the lists only"),
        ("block 4", "block 4 when numel(ys) < 9", "kernel apply: its condition holds at some places of the lists only"),
        ("block 4", "block numel(ys)", "kernel apply: block, shared or template arguments differ between places"),
        ("args = by", "args = numel(ys)", r"kernel apply: 'args\[0\]' differs between \[0\] and \[1\] of the lists"),
        ("SIZE_T", "unsigned char", "kernel apply: 'tl.sizes' has elements of type unsigned char, 300 does not fit"),
        ("shape   ys xs [...S]", "shape ys [N]\n//! shape xs [M]", "at .1.: xs has 25 elements, ys has 300; expected"),
    ):
        text = (CHUNKS + TABLE).replace("[25]] xs=[[4],[25]]", "[300]] xs=[[4],[25]] mode=0")
        if "shape" not in old:
            text = text.replace("xs=[[4],[25]]", "xs=[[4],[300]]")
        text = text.replace(old, new).replace("SIZE_T", "int")
        with pytest.raises(opd.OpdError, match=said):
            client.load(text)
