"""Kernels whose parameters are structs."""

from pathlib import Path

import numpy as np
import pytest

import opd

BLEND = (Path(__file__).parent.parent / "torch" / "kernels" / "blend.cu").read_text()
FILL = """\
//! op      fill_in(Tensor x, *, int[2] step=[1, 2], float by=1.0) -> Tensor y
//! dtypes  float32
//! shape   x [N]
//! shape   y [N]
//! example x=[4]
//
//! forward
//!   kernel fill_in
BINDS
STRUCT
__global__ void fill_in(P p)
{
    CUDA_KERNEL_LOOP(i, p.N)
        p.y[i] = BODY;
}
"""


def fill(struct, body="p.x[i]", binds=""):
    lines = "".join(f"//!   bind {b}\n" for b in binds.split(";") if b)
    return FILL.replace("BINDS\n", lines).replace("STRUCT", struct).replace("BODY", body)


@pytest.fixture(scope="module")
def serve(start_shared, tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("kernels")
    client = opd.connect(start_shared("--kernels", str(tmp_path)).socket)

    def put(text, name="fill_in"):
        new = tmp_path / ".new"
        new.write_text(text)
        new.rename(tmp_path / f"{name}.cu")
        told = [r for r in client.reload() if r["file"] == str(tmp_path / f"{name}.cu")]
        return told[-1], client

    yield put
    client.close()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_nested_structs_arrays_and_templates(serve, dtype):
    _, client = serve(f"{BLEND}// {dtype}\n", "blend")
    a, b, grad = (np.random.rand(3, 5).astype(dtype) for _ in range(3))
    near = {"rtol": 2e-3 if dtype == "float16" else 1e-6}
    for _ in range(3):
        y, context = client.ops.blend.forward(a, b, gain=[0.5, 2.0], flip=True)
        assert np.allclose(y.numpy(), -(0.5 * a + 2 * b), **near)
        grads = context.backward(client.tensor(grad))
        assert np.allclose(grads[0].numpy(), -0.5 * grad, **near) and np.allclose(grads[1].numpy(), -2 * grad, **near)
        assert context.backward(client.tensor(grad), wanted=["b"])[0] is None
        y, context = client.ops.blend.forward(a)
        assert (y.numpy() == a).all() and context.backward(client.tensor(grad))[1] is None


@pytest.mark.parametrize(
    "struct, body, binds, expected",
    [
        ("struct P { float *y; const float *x; int N; };", "2 * p.x[i]", "", lambda x: 2 * x),
        ("struct P {\n  int N, step[2];\n  float *__restrict__ y, by; const float *x;\n};", "p.x[i] * p.step[1] + p.by", "",
         lambda x: 2 * x + 1),
        ("struct Q { char c; double d; }; struct P { char a; Q q[2]; short N; bool flag{}; float *y; const float *x; };",
         "p.q[1].d + p.q[0].c + p.a + p.x[i]",
         "p.a = 1; p.q[0].c = 2; p.q[0].d = 9; p.q[1].c = 9; p.q[1].d = 0.5; p.flag = 1", None),
        ("struct P { public: int N; struct In { int k; }; In in; float *y; const float *x; P() = default; "
         "__device__ float get(int i) const { return x[i] * in.k; } };", "p.get(i)", "p.in.k = 3", lambda x: 3 * x),
        ("struct P { int N; torch::PackedTensorAccessor32<float, 1> x; float *y; };", "p.x[i] + p.x.size(0)", "",
         lambda x: x + 4),
    ],
)  # fmt: skip
def test_layouts(serve, struct, body, binds, expected):
    told, client = serve(fill(struct, body, binds))
    if expected is None:
        assert "braces" in told["message"]
        told, client = serve(fill(struct.replace("bool flag{}", "bool flag"), body, binds))
        expected = lambda x: x + 3.5  # noqa: E731
    assert told["state"] == "serving", told
    x = np.arange(4, dtype=np.float32)
    assert np.allclose(client.ops.fill_in(x).numpy(), expected(x))


PLAIN = "struct P { float *y; const float *x; int N; };"


COMMON = """\
template <class T> struct Sizes { using index_t = signed char; const T *x; index_t tag; };
struct __align__(16) P : public Sizes<float> {
    typedef int3 index_t;
    index_t odd; float4 by; std::pair<uint64_t, short> pair; uchar2 small; dim3 last; float *y; int N;
};"""


def test_bases_vectors_and_pairs(serve):
    """As a kernel of the field takes them; the compiler checks where each lies, on both devices."""
    binds = "p.tag = 1;p.pair.first = 7;p.pair.second = 8;p.last.x = 1;p.last.y = 2;p.last.z = 3;"
    binds += "".join(f"p.odd.{c} = {i};p.by.{d} = {i}.5;" for i, (c, d) in enumerate(zip("xyz", "xyz")))
    body = "p.x[i] * p.by.z + p.odd.z + p.pair.first + p.pair.second + p.small.y + p.last.y + p.tag"
    text = fill(COMMON, body, binds + "p.by.w = 3.5;p.small.x = 0;p.small.y = N")
    told, client = serve(text)
    assert told["state"] != "failed", told["message"]
    assert client.ops.fill_in(np.float32([1, 2])).numpy().tolist() == [24.5, 27.0]


@pytest.mark.parametrize(
    "struct, binds, said",
    [
        (PLAIN, "p.z = N", "bind of 'p.z', which is no parameter of kernel 'fill_in'"),
        (PLAIN, "p.N = x", "'p.N' of type int, but that is a tensor, expected a pointer"),
        (PLAIN, "p.x = N", "'p.x', a pointer, but 'N' is a number"),
        (PLAIN, "p.N = 0.5", "'p.N' of type int, but '0.5' is a float"),
        (PLAIN, "p.N = N; p.N = N", "'p.N' is bound twice"),
        (PLAIN, "p.N[x] = N", "expected the number of an element"),
        (PLAIN.replace("float *y", "const float *y"), "", "no kernel of this section writes y"),
        (PLAIN.replace("N;", "N, other;"), "", "'p.other', which names no tensor, size, let or attribute"),
        (PLAIN.replace("N;", "N, step[3];"), "", "step[...] needs a number from 0 to 1"),
        (PLAIN.replace("N;", "N, step[2][2];"), "", "expected the end of the line, got '['"),
        (PLAIN.replace("N;", "N, step;"), "", "'p.step', a list of 2, expected a single value: bind p.step = step[0]"),
        (PLAIN.replace("N;", "N; float5 v;"), "", "whose member 'p.v' is of type 'float5'"),
        (PLAIN.replace("N;", "N; int bits : 3;"), "", "cannot be filled in: line 9 has a bit-field"),
        (PLAIN.replace("N;", "N; float **all;"), "", "a pointer to pointers"),
        (PLAIN.replace("N;", "N; int all[M];"), "", "whose array 'p.all' has 'M' elements, expected a number"),
        (PLAIN.replace("N;", "N; int all[1000];"), "", "has '1000' elements, expected a number from 1 to"),
        (PLAIN.replace("struct P", "struct B {}; struct C {}; struct P : B, C"), "", "it has a base that is not known"),
        (PLAIN.replace("struct P", "struct P : std::array<int, 2>"), "", "base 'std::array<int, 2>' is none of this file"),
        (PLAIN.replace("struct P", "struct alignas(double) P"), "", "its alignment is none that is known here"),
        (PLAIN.replace("N;", "N; P self;"), "", "self' is of type 'P'"),
        ("class P;", "", "of type 'P'"),
    ],
)
def test_mistakes(serve, struct, binds, said):
    told, _ = serve(fill(struct, binds=binds))
    assert told["state"] == "failed" and said in told["message"], told["message"]


def test_the_compiler_checks_the_layout(serve):
    packed = "#pragma pack(push, 1)\nstruct P { char c; float *y; const float *x; int N; };\n#pragma pack(pop)"
    told, client = serve(fill(packed, binds="p.c = 1"))
    assert told["state"] == "failed"
    assert "fill_in.cu:11:" in told["message"], told["message"]
    assert "kernel fill_in: 'p.y' is not laid out as the members of its struct say" in told["message"]


def test_values_must_fit(serve):
    told, client = serve(fill("struct P { float *y; const float *x; int N; signed char k; };", binds="p.k = step[0]"))
    with pytest.raises(opd.InvalidArgument, match="'p.k' of fill_in is signed char, value 300 does not fit"):
        client.ops.fill_in(np.ones(4, np.float32), step=[300, 1])
    assert client.ops.fill_in(np.ones(4, np.float32)).numpy().tolist() == [1] * 4


def test_a_fault_names_the_struct(serve):
    told, client = serve(fill(PLAIN, "p.x[i + 1]"))
    if client.tensor(np.ones(1)).device != "cpu":
        pytest.skip("bounds are the CPU device's")
    with pytest.raises(opd.KernelFault, match="read of a tensor in 'p': element 4 of 4"):
        client.ops.fill_in(np.ones(4, np.float32))


HEADER = """\
#pragma once
using real = double;
enum class kind { plain };
template <typename T> struct scaled { const T *x; T *y; real by; kind k; };
template <typename T> __global__ void scale(scaled<T> p, int N)
{
    CUDA_KERNEL_LOOP(i, N)
        p.y[i] = T(FACTOR * p.by * p.x[i]);
}
"""
INCLUDING = """\
#include "{}"
//! op      scale(Tensor x, *, float by=2.0) -> Tensor y
//! dtypes  float32 float64
//! shape   x y [N]
//! example x=[4]
//! forward
//!   kernel scale<scalar_t> threads N
//!     bind p.k = 0
"""


def test_what_a_header_defines(start_daemon, tmp_path):
    """Kernels, structs and names of types, of a header that a header includes: with an error told at the file's
    line that includes it, an edit of it, and after an upgrade."""
    header = tmp_path / "mine.cuh"

    def save(text):
        (tmp_path / ".new").write_text(text)
        (tmp_path / ".new").rename(header)

    save(HEADER.replace("FACTOR", "1"))
    (tmp_path / "all.cuh").write_text('#include "mine.cuh"\n#include "mine.cuh"\n')
    (tmp_path / "scale.cu").write_text(INCLUDING.format("all.cuh"))
    with start_daemon("--kernels", str(tmp_path)).connect() as client:
        x = np.arange(4.0)
        assert np.array_equal(client.ops.scale(x, by=3.0).numpy(), 3 * x)
        save(HEADER.replace("FACTOR", "10"))
        assert client.reload()[-1]["state"] == "serving"
        assert np.array_equal(client.ops.scale(x, by=3.0).numpy(), 30 * x)
        save(HEADER.replace("real by", "real bye"))
        message = client.reload()[-1]["message"]
        assert message.startswith("scale.cu:1: kernel 'scale' has parameter 'p.bye', which names no tensor")
        client.upgrade()
        assert np.array_equal(client.ops.scale(x, by=3.0).numpy(), 30 * x)
