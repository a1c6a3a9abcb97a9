"""Operators that run in torch's own process, on GPUs."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close
from torch_fixtures import ops, torch_daemon  # noqa: F401
from scale_operator import grad_of, scale, write_scale  # noqa: F401

import opd
import opd.torch
from opd.torch._library import find_library
from in_process import gpu, needs_gpu, pytestmark  # noqa: F401


@needs_gpu
def test_streams_and_graphs(ops):
    x = torch.randn(1 << 20, device=gpu[0])
    for _ in range(2):
        ops.gelu(x, approximate="none")
    streams = [torch.cuda.Stream(gpu[0]) for _ in range(3)]
    torch.cuda.synchronize()
    found = []
    for stream in streams:
        with torch.cuda.stream(stream):
            y = x
            for _ in range(10):
                y = ops.gelu(y, approximate="none")
            found.append(y)
    torch.cuda.synchronize()
    for _ in range(10):
        x = F.gelu(x)
    assert all(torch.allclose(y, x, atol=1e-5) for y in found)
    graph, given = torch.cuda.CUDAGraph(), torch.randn(8, 8, device=gpu[0])
    with pytest.raises(opd.InvalidArgument, match="gelu: a CUDA graph .* make it once before"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            ops.gelu(given, approximate="none")
    for _ in range(2):
        ops.gelu(given, approximate="none")
    with torch.cuda.graph(graph):
        made = ops.gelu(ops.gelu(given, approximate="none"), approximate="none")
    for _ in range(3):
        given.copy_(torch.randn(8, 8))
        graph.replay()
        assert_close(made, F.gelu(F.gelu(given)))


def run_lltm(input, weights, bias, old_h, old_cell):
    i, o, c = (torch.cat([old_h, input], 1) @ weights.T + bias).chunk(3, 1)
    cell = old_cell + F.elu(c) * torch.sigmoid(i)
    return torch.tanh(cell) * torch.sigmoid(o), cell


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_products_of_16_bits_into_float32(ops, dtype):
    """Which PyTorch has no function for: by cuBLASLt, on its streams, and captured."""
    sizes = [(64, 128), (768, 384), (768,), (64, 256), (64, 256)]
    given = [(torch.randn(size, device=gpu[0]) * 0.3).to(dtype) for size in sizes]
    close = {"rtol": 2e-2, "atol": 5e-3}

    def check(found, inputs):
        for y, exact in zip(found, run_lltm(*(t.double() for t in inputs))):
            assert y.dtype == dtype
            assert_close(y.double(), exact, **close)

    for _ in range(2):
        check(ops.lltm(*given), given)
    torch.cuda.synchronize()
    streams, found = [torch.cuda.Stream(gpu[0]) for _ in range(3)], []
    for stream in streams:
        with torch.cuda.stream(stream):
            found += [ops.lltm(*given) for _ in range(20)]
    torch.cuda.synchronize()
    for made in found:
        check(made, given)
    leaves = [t.clone().requires_grad_() for t in given]
    exact = [t.double().requires_grad_() for t in given]
    for tensors, function in ((leaves, ops.lltm), (exact, run_lltm)):
        sum(y.double().sum() for y in function(*tensors)).backward()
    for leaf, of in zip(leaves, exact):
        assert (leaf.grad.double() - of.grad).norm() <= 2e-2 * of.grad.norm()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = ops.lltm(*given)
    for _ in range(3):
        given[0].copy_(torch.randn(sizes[0]))
        graph.replay()
        check(made, given)


@needs_gpu
def test_a_captured_version_outlives_edits(scale, tmp_path):
    x = torch.ones(64, device=gpu[0])
    for _ in range(2):
        opd.torch.ops.scale(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = opd.torch.ops.scale(x)
    for factor in range(3, 12):
        write_scale(tmp_path, factor)
        scale.reload()
        for _ in range(2):
            assert_close(opd.torch.ops.scale(x), x * factor)
    graph.replay()
    assert_close(y, x * 2)
    del graph, y


@needs_gpu
@pytest.mark.own_card
def test_edits_take_no_memory_of_the_device(scale, tmp_path):
    x = torch.ones(64, device=gpu[0])
    free = []
    for n in range(60):
        write_scale(tmp_path, n + 3)
        scale.reload()
        for _ in range(2):
            assert_close(opd.torch.ops.scale(x), x * (n + 3))
        torch.cuda.synchronize()
        free.append(torch.cuda.mem_get_info()[0])
    assert free[-1] >= free[15] - (64 << 20)
    assert find_library().count().loaded < 20


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_devices(start_daemon):
    daemon = start_daemon(device="cuda:0,cuda:1")
    opd.torch.use(daemon.socket)
    for _ in range(3):
        for index in (0, 1):
            x = torch.randn(1000, device=f"cuda:{index}", requires_grad=True)
            y = opd.torch.ops.gelu(x, approximate="none")
            assert y.device == x.device
            assert_close(y, F.gelu(x))
            assert_close(grad_of(y, x), grad_of(F.gelu(x), x))
    opd.torch.use(None)
