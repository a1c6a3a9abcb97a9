"""A batch of calls: one call where the operator takes the batch itself, else one after the other.

Formulas, and operators whose shapes begin with `...S`, take it as a dimension more. Others have it in
a dimension that a `batch` line of their file names: 3 times [8, C, H, W] is one [24, C, H, W].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional

import torch

from .._spec import Spec
from ._dtypes import Desc

Maybe = Optional[torch.Tensor]
Places = Sequence[Optional[int]]  # of each tensor: the dimension that takes the batch


class Batch(NamedTuple):
    """A way to take a batch: `folds` into a dimension of each tensor, or is one more before it."""

    folds: bool
    inputs: Places
    outputs: Places
    saved: Places


def find_batches(spec: Spec) -> list[Batch]:
    return [
        Batch(b["folds"], b["inputs"], b["outputs"], b["saved"]) for b in spec.info.get("batch", [])
    ]


def move_to_front(
    tensors: Sequence[Maybe], dims: Sequence[Optional[int]]
) -> tuple[list[Maybe], list[bool]]:
    """The batch as first dimension, and which tensors have one."""
    flags = [d is not None for d in dims]
    moved = [t if t is None or d is None else t.movedim(d, 0) for t, d in zip(tensors, dims)]
    return moved, flags


def align(tensors: Sequence[Maybe], flags: Sequence[bool]) -> list[Maybe]:
    """The batch before all dimensions that broadcast."""
    present = [(t, f) for t, f in zip(tensors, flags) if t is not None]
    rank = max(t.dim() - f for t, f in present)
    return [
        t.reshape(t.shape[0], *[1] * (rank - t.dim() + 1), *t.shape[1:]) if t is not None and f else t
        for t, f in zip(tensors, flags)
    ]


def fold(
    batch: Batch, size: int, tensors: Sequence[Maybe], flags: Sequence[bool], places: Places
) -> Optional[list[Maybe]]:
    """The tensors with the batch where it goes; None: one of them has no place for it, or it is of
    nothing, and would leave nothing of the size that it is folded into."""
    if batch.folds and size == 0:
        return None
    folded: list[Maybe] = []
    for t, batched, place in zip(tensors, flags, places):
        if t is not None and batched and place is None:
            return None
        if t is None or place is None:
            folded.append(t)
            continue
        if not batched:
            t = t.expand(size, *t.shape)
        if batch.folds:
            k = place if place >= 0 else place + t.dim() - 1
            t = t.movedim(0, k).flatten(k, k + 1)
        folded.append(t)
    return folded


def unfold(batch: Batch, size: int, t: torch.Tensor, place: int) -> torch.Tensor:
    if not batch.folds:
        return t
    k = place if place >= 0 else place + t.dim()
    shape = (*t.shape[:k], size, t.shape[k] // size, *t.shape[k + 1 :])
    return t.reshape(shape).movedim(k, 0)


def fold_desc(batch: Batch, size: int, desc: Optional[Desc], place: Optional[int]) -> Optional[Desc]:
    if desc is None or place is None:
        return desc
    if not batch.folds:
        return Desc(desc.dtype, (size, *desc.shape))
    shape = list(desc.shape)
    shape[place] *= size
    return Desc(desc.dtype, tuple(shape))


def loop(
    run: Callable[..., Sequence[torch.Tensor]],
    size: int,
    tensors: Sequence[Maybe],
    flags: Sequence[bool],
) -> list[torch.Tensor]:
    if size == 0:  # then a call of zeros tells the shapes
        zeros = [t.new_zeros(t.shape[1:]) if t is not None and f else t for t, f in zip(tensors, flags)]
        return [t.new_empty((0, *t.shape)) for t in run(zeros)]
    made = [
        run([t[k] if t is not None and f else t for t, f in zip(tensors, flags)]) for k in range(size)
    ]
    return [torch.stack(parts) for parts in zip(*made)]


# --- torch.autograd.grad(is_grads_batched=True) and torch.autograd.functional have a vmap of their own


def is_batched(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and torch._C._functorch.is_legacy_batchedtensor(value)


_remove: Any = getattr(torch, "_remove_batch_dim")
_MAX_LEVELS = 64


def _find_level(values: Sequence[Any]) -> int:
    """The innermost level at which one of them is batched. torch counts levels for each thread, and
    autograd has threads of its own: so each is tried. One that is not there gives the size 0."""
    batched = [v for v in values if is_batched(v)]
    for level in range(_MAX_LEVELS, 0, -1):
        if any(_remove(v, level, 0, 0).shape[0] for v in batched):
            return level
    raise AssertionError("no tensor is batched")


def unwrap(values: Sequence[Any]) -> tuple[int, int, list[Any], list[Optional[int]]]:
    """Its level, the size of the batch, and the tensors with it as first dimension."""
    level = _find_level(values)
    moved = list(values)
    dims: list[Optional[int]] = [None] * len(values)
    size = 0
    for i, v in enumerate(values):
        if is_batched(v):
            found = _remove(v, level, 0, 0)
            if found.shape[0]:
                moved[i], dims[i], size = found, 0, found.shape[0]
    return level, size, moved, dims


def wrap(level: int, made: Sequence[torch.Tensor], dims: Sequence[Optional[int]]) -> list[torch.Tensor]:
    add: Any = getattr(torch, "_add_batch_dim")
    return [t if d is None else add(t, d, level) for t, d in zip(made, dims)]
