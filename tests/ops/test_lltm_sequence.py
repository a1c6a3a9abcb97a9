"""lltm_sequence at the sizes that its kernels are chosen by, beside float64."""

import numpy as np
import pytest
import torch
from conftest import DEVICE
from references import lltm_sequence, relative_error

# (T, B, I, S): a walk through time; tiles of 16 units in all of 32 bits and less, in float32 alone; of 32;
# product and cell apart.
SIZES = {"walk": (9, 3, 5, 128), "walk, part of a warp": (9, 140, 5, 37), "tiles": (3, 70, 16, 264),
         "few rows": (3, 2, 8, 136), "tiles of float32": (3, 70, 12, 996), "large tiles": (2, 250, 8, 1024),
         "large tiles, few units": (2, 6410, 4, 4), "steps": (3, 5, 3, 340), "steps of even rows": (3, 5, 3, 134),
         "steps of odd rows": (3, 5, 3, 133)}  # fmt: skip
BOUNDS = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 1.5e-2}
SHORT = ["walk", "tiles", "few rows", "steps", "steps of odd rows"]
CASES = [("float32", size) for size in SIZES] + [(dtype, size) for dtype in ("float16", "bfloat16") for size in SHORT]


def make(T, B, I, S, dtype="float32"):  # noqa: E741
    generator = torch.Generator().manual_seed(T * B * I * S)
    weights = [3 * S, S + I]
    scales = {tuple(weights): weights[1] ** -0.5}
    given = [torch.randn(shape, generator=generator) * scales.get(tuple(shape), 1)
             for shape in ([T, B, I], weights, [3 * S], [B, S], [B, S])]  # fmt: skip
    return [x.to(getattr(torch, dtype)).float() for x in given]


def upload(client, x, dtype="float32", offset=0):
    padded = torch.cat([torch.zeros(offset), x.flatten()])
    return client.tensor(padded, dtype=dtype).view(list(x.shape), offset=offset)


def to_torch(tensor):
    return torch.from_numpy(tensor.numpy().astype(np.float64))


@pytest.mark.parametrize("dtype, size", CASES)
def test_sizes(client, dtype, size):
    given = make(*SIZES[size], dtype)
    leaves = [x.double().requires_grad_() for x in given]
    expected = lltm_sequence(*leaves)
    grads = [torch.randn(x.shape, generator=torch.Generator().manual_seed(1)) for x in expected]
    slopes = torch.autograd.grad(expected, leaves, [g.double() for g in grads])
    first = None
    for offset in (0, 0, 1):  # the same bits again, and where rows begin at no address of 16 bytes
        tensors = [upload(client, x, dtype, offset) for x in given]
        outputs, ctx = client.ops.lltm_sequence.forward(*tensors)
        found = [to_torch(t) for t in (*outputs, *ctx.backward(*[upload(client, g, dtype) for g in grads]))]
        for k, (a, b) in enumerate(zip(found, (*expected, *slopes))):
            assert relative_error(a, b.detach()) < BOUNDS[dtype], (offset, k)
        alone = [to_torch(t) for t in client.ops.lltm_sequence(*tensors)]  # nothing is kept
        assert all(torch.equal(a, b) for a, b in zip(alone, found))
        if offset == 0:
            assert first is None or all(torch.equal(a, b) for a, b in zip(found, first))
            first = found


@pytest.mark.parametrize("dtype, allow_tf32, size", [
    *(("float32", False, size) for size in ("walk", "tiles", "tiles of float32", "large tiles", "steps")),
    *((dtype, dtype == "float32", size) for dtype in BOUNDS for size in ("walk", "tiles", "steps"))])  # fmt: skip
def test_what_is_not_finite(client, dtype, allow_tf32, size):
    """It reaches what reads it, as it does by multiplying floats."""
    _, *sizes = SIZES[size]
    infinite, computed = make(2, *sizes, dtype), make(2, *sizes, dtype)
    h0, weights = infinite[3], infinite[1]
    h0[0, 5], h0[1, 2], weights[7, 9] = np.inf, np.nan, -np.inf
    h0[2, 3:7] = 6e4 if dtype == "float16" else 1e38 if allow_tf32 else 3.3e38
    # What a GPU makes of 0 / 0 has all bits set, and is not rounded to a number's.
    for x, at in ((computed[3], (0, 5)), (computed[4], (1, 0)), (computed[1], (7, 9))):
        x.view(torch.int32)[at] = 0x7FFFFFFF
    rtol = 2e-2 if dtype != "float32" or allow_tf32 else 1e-4
    for given in infinite, computed:
        tensors = [upload(client, x, dtype) for x in given]
        found = [to_torch(t) for t in client.ops.lltm_sequence(*tensors, allow_tf32=allow_tf32)]
        for a, b in zip(found, lltm_sequence(*given)):
            np.testing.assert_allclose(a.numpy(), b.double().numpy(), rtol, rtol)


@pytest.mark.parametrize("size", ["tiles", "few rows", "tiles of float32", "steps"])
def test_allow_tf32(client, size):
    given = make(*SIZES[size])
    expected = lltm_sequence(*[x.double() for x in given])
    exact = client.ops.lltm_sequence(*map(client.tensor, given))
    for offset in (0, 1):
        allowed = client.ops.lltm_sequence(*[upload(client, x, offset=offset) for x in given], allow_tf32=True)
        for a, b, ref in zip(allowed, exact, expected):
            assert relative_error(to_torch(a), ref) < 2e-3
            assert DEVICE != "cpu" or torch.equal(to_torch(a), to_torch(b))
