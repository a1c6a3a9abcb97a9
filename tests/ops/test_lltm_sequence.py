"""lltm_sequence in float32, at the sizes that its kernels are chosen by, beside float64."""

import numpy as np
import pytest
import torch
from conftest import DEVICE
from references import lltm_sequence, relative_error

# (T, B, I, S): a walk through time; tiles of 16 and of 32 units; product and cell apart.
SIZES = {"walk": (9, 3, 5, 128), "walk, part of a warp": (9, 140, 5, 37), "tiles": (3, 70, 12, 996),
         "large tiles": (2, 250, 8, 1024), "large tiles, few units": (2, 6410, 4, 4), "steps": (3, 5, 3, 340),
         "steps of odd rows": (3, 5, 3, 133)}  # fmt: skip


def make(T, B, I, S):  # noqa: E741
    generator = torch.Generator().manual_seed(T * B * I * S)
    weights = [3 * S, S + I]
    scales = {tuple(weights): weights[1] ** -0.5}
    return [torch.randn(shape, generator=generator) * scales.get(tuple(shape), 1)
            for shape in ([T, B, I], weights, [3 * S], [B, S], [B, S])]


def upload(client, x, offset):
    padded = torch.cat([torch.zeros(offset), x.flatten()])
    return client.tensor(padded).view(list(x.shape), offset=offset)


def to_torch(tensor):
    return torch.from_numpy(tensor.numpy().astype(np.float64))


@pytest.mark.parametrize("size", SIZES)
def test_sizes(client, size):
    given = make(*SIZES[size])
    leaves = [x.double().requires_grad_() for x in given]
    expected = lltm_sequence(*leaves)
    grads = [torch.randn(x.shape, generator=torch.Generator().manual_seed(1)) for x in expected]
    slopes = torch.autograd.grad(expected, leaves, [g.double() for g in grads])
    first = None
    for offset in (0, 0, 1):  # the same bits again, and where rows begin at no address of 16 bytes
        outputs, ctx = client.ops.lltm_sequence.forward(*[upload(client, x, offset) for x in given])
        found = [to_torch(t) for t in (*outputs, *ctx.backward(*[client.tensor(g) for g in grads]))]
        for k, (a, b) in enumerate(zip(found, (*expected, *slopes))):
            assert relative_error(a, b.detach()) < 2e-6, (offset, k)
        if offset == 0:
            assert first is None or all(torch.equal(a, b) for a, b in zip(found, first))
            first = found


@pytest.mark.parametrize("size", ["walk", "tiles", "large tiles", "steps"])
def test_what_is_not_finite(client, size):
    """It reaches what reads it, as it does by multiplying floats."""
    _, *sizes = SIZES[size]
    infinite, computed = make(2, *sizes), make(2, *sizes)
    h0, weights = infinite[3], infinite[1]
    h0[0, 5], h0[1, 2], h0[2, 3:7], weights[7, 9] = np.inf, np.nan, 3.4e38, -np.inf
    # What a GPU makes of 0 / 0 has all bits set, and is not rounded to a number's.
    for x, at in ((computed[3], (0, 5)), (computed[4], (1, 0)), (computed[1], (7, 9))):
        x.view(torch.int32)[at] = 0x7FFFFFFF
    for given in infinite, computed:
        found = [to_torch(t) for t in client.ops.lltm_sequence(*map(client.tensor, given))]
        for a, b in zip(found, lltm_sequence(*given)):
            np.testing.assert_allclose(a.numpy(), b.double().numpy(), 1e-4, 1e-4)


@pytest.mark.parametrize("size", ["tiles", "steps"])
def test_allow_tf32(client, size):
    given = make(*SIZES[size])
    expected = lltm_sequence(*[x.double() for x in given])
    exact = client.ops.lltm_sequence(*map(client.tensor, given))
    allowed = client.ops.lltm_sequence(*map(client.tensor, given), allow_tf32=True)
    for a, b, ref in zip(allowed, exact, expected):
        assert relative_error(to_torch(a), ref) < 2e-3
        assert DEVICE != "cpu" or torch.equal(to_torch(a), to_torch(b))
