"""Operators that a client of this process has loaded: opd.torch.ops has them, for as long as it has."""

import asyncio
import gc

import pytest
import torch
from torch_fixtures import device, ops, torch_daemon  # noqa: F401

import opd
import opd.aio
import opd.torch


def power(what, name="loaded_op"):
    return f"""\
//! op      {name}(Tensor x) -> Tensor y
//! dtypes  float32
//! formula y = {what}
//! example x=[3]
"""


@pytest.fixture
def client(torch_daemon):
    with torch_daemon.connect() as client:
        yield client


def test_a_clients_own(client, ops, device, torch_daemon):
    ops.relu(torch.ones(2, device=device))  # connected before
    x = torch.tensor([1.0, 3.0], device=device, requires_grad=True)
    client.load(power("x * x"))
    for _ in range(3):  # in the daemon, then in this process
        y = ops.loaded_op(x)
        (grad,) = torch.autograd.grad(y.sum(), x)
        assert y.tolist() == [1, 9] and grad.tolist() == [2, 6]
        assert ops.loaded_op(x.detach()).tolist() == [1, 9]
    y = ops.loaded_op(x)
    client.load(power("x * x * x"))
    assert torch.autograd.grad(y.sum(), x)[0].tolist() == [2, 6]  # of the version that ran
    for _ in range(3):
        assert ops.loaded_op(x).tolist() == [1, 27]
    with torch_daemon.connect() as other:
        other.load(power("x + 1"))  # the last one loaded counts
        for _ in range(3):
            assert ops.loaded_op(x.detach()).tolist() == [2, 4]
    for _ in range(3):
        assert ops.loaded_op(x.detach()).tolist() == [1, 27]
    function = ops.loaded_op
    client.unload("loaded_op")
    with pytest.raises(opd.NotFound, match="no operator 'loaded_op'"):
        function(x)
    client.load(power("-x"))
    for _ in range(3):
        assert function(x.detach()).tolist() == [-1, -3]
    client.close()
    assert "loaded_op" not in ops


def test_one_of_asyncio(ops, device, torch_daemon):
    ops.relu(torch.ones(2, device=device))  # connected before

    async def load():
        async with opd.aio.connect(torch_daemon.socket) as client:
            await client.load(power("x * x", "awaited_op"))
            x = torch.tensor([1.0, 3.0], device=device, requires_grad=True)
            assert torch.autograd.grad(ops.awaited_op(x).sum(), x)[0].tolist() == [2, 6]
            await client.load(power("x + 1", "awaited_op"))
            assert ops.awaited_op(x).tolist() == [2, 4]
            await client.unload("awaited_op")
            assert "awaited_op" not in ops
            await client.load(power("x + 2", "awaited_op"))
        assert "awaited_op" not in ops

    asyncio.run(load())


def test_before_a_served_one(client, ops, device):
    x = torch.tensor([-1.0, 3.0], device=device)
    relu = ops.relu
    for _ in range(3):
        assert relu(x).tolist() == [0, 3]
    client.load(power("x * 2", "relu"))
    for _ in range(3):
        assert relu(x).tolist() == [-2, 6] and ops.relu(x).tolist() == [-2, 6]
    client.unload("relu")
    for _ in range(3):
        assert relu(x).tolist() == [0, 3] and torch.ops.opd.relu(x).tolist() == [0, 3]
    client.load(power("x * 3", "relu"), shared=True)
    for _ in range(3):
        assert relu(x).tolist() == [-3, 9]
    client.close()
    for _ in range(3):
        assert relu(x).tolist() == [0, 3]


def test_a_backward_is_of_what_ran_forward(client, ops, device):
    """Or of nothing, where that is gone: another operator of its name has a version of its number."""
    x = torch.tensor([1.0, 3.0], device=device, requires_grad=True)
    client.load(power("x * x", "swapped_op"))
    y = ops.swapped_op(x)
    client.unload("swapped_op")
    client.load(power("x * x * x", "swapped_op"))
    try:
        assert torch.autograd.grad(y.sum(), x)[0].tolist() == [2, 6]
    except opd.NotFound as e:
        assert "another swapped_op was loaded" in str(e)
    assert torch.autograd.grad(ops.swapped_op(x).sum(), x)[0].tolist() == [3, 27]


def test_a_client_that_is_dropped(ops, device, torch_daemon):
    x = torch.ones(1, device=device)
    torch_daemon.connect().load(power("x + 2", "dropped_op"))
    gc.collect()
    assert "dropped_op" not in ops
    kept = torch_daemon.connect()
    kept.load(power("x + 2", "dropped_op"))
    opd.torch.use(torch_daemon.socket)  # another connection of its own
    assert ops.dropped_op(x).tolist() == [3]
    kept.close()
