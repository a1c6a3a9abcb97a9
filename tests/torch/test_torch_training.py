"""What torch puts around a model in training: other processes, checkpoints, the profiler."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from ranks import WORLD, Net, train
from torch.profiler import ProfilerActivity, profile
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint
from torch_fixtures import device, draw, ops, torch_daemon  # noqa: F401

import opd
import opd.torch
from opd.torch._library import DEFAULT_ISOLATED

HERE = Path(__file__).parent


# --- several processes


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """trained(socket): what two ranks have made of the net, each in its process; made once."""
    results = {}

    def run(socket):
        if not results:
            folder = tmp_path_factory.mktemp("ranks")
            package = os.path.dirname(os.path.dirname(opd.__file__))
            path = f"{package}:{os.environ.get('PYTHONPATH', '')}"
            env = {**os.environ, "OPD_SOCKET": socket, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
            ranks = [
                subprocess.Popen(
                    [sys.executable, str(HERE / "ranks.py"), str(rank), str(folder)], env=env
                )
                for rank in range(WORLD)
            ]
            assert [rank.wait() for rank in ranks] == [0] * WORLD
            results.update(torch.load(folder / "results.pt"))
        return results

    return run


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_two_ranks_get_where_one_process_gets(ops, torch_daemon, trained, way):
    alone = Net()
    losses = train(alone)
    assert losses[-1] < losses[0]
    got = trained(torch_daemon.socket)[way]
    assert_close(got, dict(alone.state_dict()), rtol=1e-4, atol=1e-6)
    assert not torch.allclose(got["depthwise.weight"], Net().depthwise.weight)


# --- activation checkpoints


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activation_checkpoints(ops, draw, use_reentrant, compiled):
    def block(x, w):
        return x + ops.gelu(ops.depthwise_conv2d(x, w, padding=1), approximate="tanh")

    def model(x, w):
        return checkpoint(block, checkpoint(block, x, w, **how), w, **how)

    how = {"use_reentrant": use_reentrant}
    given = draw(2, 3, 5, 5, grad=True), draw(3, 1, 3, 3, grad=True)
    expected = torch.autograd.grad(block(block(*given), given[1]).sum(), given)
    if compiled:
        torch.compiler.reset()
        model = torch.compile(model, backend="aot_eager")
    model(*given).sum().backward()
    assert_close([t.grad for t in given], list(expected))


# --- the profiler


def test_the_profiler_has_operators_by_name(ops, draw, device):
    """Once for each call, also where none can run in this process: of tensors on the CPU, if the
    daemon serves a GPU alone."""
    x = draw(64, dtype=torch.float32, grad=True)
    ops.gelu(x).sum().backward()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as p:
        ops.gelu(x).sum().backward()
        with torch.no_grad():
            ops.add(x, x)
    events = {e.key: e for e in p.key_averages(group_by_input_shape=True)}
    assert events["opd::gelu"].count == 1 and events["opd::gelu"].input_shapes[0] == [64]
    assert events["opd::gelu"].cpu_time_total > 0
    assert events["opd::add"].input_shapes[:2] == [[64], [64]]
    assert any("gelu" in key and "backward" in key.lower() for key in events)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_the_profiler_has_time_on_the_device(ops, draw, device):
    if torch.device(device).type != "cuda":
        pytest.skip("no tensor on a GPU")
    if DEFAULT_ISOLATED:
        pytest.skip("kernels run in the daemon, which this process's profiler does not see")
    x = draw(1 << 20, dtype=torch.float32)
    for _ in range(3):  # the first call is isolated
        ops.gelu(x)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as p:
        ops.gelu(x)
        torch.cuda.synchronize()
    events = {e.key: e for e in p.key_averages()}
    assert events["opd::gelu"].device_time_total > 0
    assert any("gelu_forward" in key and e.self_device_time_total > 0 for key, e in events.items())
    assert_close(ops.gelu(x, approximate="none"), F.gelu(x))
