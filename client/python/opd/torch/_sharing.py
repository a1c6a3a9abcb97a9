"""Tensors of one call that share memory, of which some are changed in place."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Optional

import torch

from ..errors import InvalidArgument


def check_apart(name: str, tensors: Sequence[Optional[torch.Tensor]], changed: list[int]) -> None:
    """Two that are changed in place must not share memory, nor one and a part of another that is
    read; the daemon may be given copies. As torch does, this lets those pass of which it is hard to
    tell."""
    present = [
        (i in changed, t)
        for i, t in enumerate(tensors)
        if t is not None and t.layout == torch.strided and t.numel() > 0
    ]
    for (one, a), (other, b) in itertools.combinations(present, 2):
        if not one and not other:
            continue
        same = a.data_ptr() == b.data_ptr() and a.stride() == b.stride()
        shared = a.is_contiguous() and b.is_contiguous() and _overlap(a, b)
        if one and other and (same or shared):
            raise InvalidArgument(
                f"{name}: two of the tensors that it changes in place share memory; give it one "
                "for each",
                op=name,
            )
        if shared and not (same and a.nbytes == b.nbytes):
            raise InvalidArgument(
                f"{name}: a tensor that it changes in place shares a part of its memory with "
                "another; give it a clone() of one",
                op=name,
            )


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.data_ptr() < b.data_ptr() + b.nbytes and b.data_ptr() < a.data_ptr() + a.nbytes
