"""Calls that torch.export.draft_export traces: with fake tensors that have a real one beside them, which
it computes with, too, so that sizes that depend on data are known. It takes a tensor that is absent for
one that the call has changed, and one whose mean is as before for one that it has not; so where one is
absent or to be changed, the call is traced alone, and computed here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Optional

import torch

from ._view import PLAIN

_torch: Any = torch  # some of it has no types


def find_drafting(tensors: Sequence[Optional[torch.Tensor]]) -> Optional[Drafting]:
    """What a call with such tensors belongs to; None: to none. Cheap where all are ordinary ones, and no
    mode is on that may take these for constants of what it traces."""
    if not _torch._C._len_torch_dispatch_stack() and all(t is None or type(t) in PLAIN for t in tensors):
        return None
    mode = _torch._guards.detect_fake_mode([t for t in tensors if t is not None])
    return Drafting(mode) if getattr(mode, "propagate_real_tensors", False) else None


class Drafting:
    """A mode of fake tensors that computes."""

    def __init__(self, mode: Any) -> None:
        self._mode = mode

    @contextmanager
    def paused(self) -> Iterator[None]:
        """It traces, and computes nothing."""
        self._mode.propagate_real_tensors = False
        try:
            yield
        finally:
            self._mode.propagate_real_tensors = True

    def give(self, made: Any, compute: Callable[[Sequence[Any]], Sequence[Any]], values: Sequence[Any]) -> None:
        """Puts beside what a call has made what is computed of `values`, where all of these are real: an
        ordinary tensor, a constant of the model, is its own."""
        tensors = [v for v in _flatten(values) if isinstance(v, torch.Tensor)]
        if any(_find_real(t) is None for t in tensors):
            return
        self._mode.propagate_real_tensors = True
        real = [_find_real(v) for v in values]
        with _unset_fake():
            computed = compute(real)
        for fake, tensor in zip(_flatten(made), _flatten(computed)):
            fake.real_tensor = tensor


def _flatten(values: Any) -> list[Any]:
    if not isinstance(values, (list, tuple)):
        return [values]
    return [v for each in values for v in _flatten(each)]


def _find_real(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_find_real(v) for v in value]
    if isinstance(value, torch.Tensor):
        return value if type(value) in PLAIN else getattr(value, "real_tensor", None)
    if not isinstance(value, (torch.SymInt, torch.SymFloat)):
        return value
    dtype = torch.float64 if isinstance(value, torch.SymFloat) else torch.int64
    real = _torch.full((), value, dtype=dtype).real_tensor
    with _unset_fake():
        return real.item()


def _unset_fake() -> Any:
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    return unset_fake_temporarily()
