"""torch's dtypes by the daemon's names."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Optional

import torch

from .._protocol import DTYPES
from ..errors import InvalidArgument

BY_NAME: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPES}
NAMES: dict[torch.dtype, str] = {dtype: name for name, dtype in BY_NAME.items()}


class Desc(NamedTuple):
    """dtype and shape of a tensor, as requests take them."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return DTYPES[self.dtype] * math.prod(self.shape)


def describe(tensor: torch.Tensor) -> Desc:
    """Sizes that a compiler leaves open stay so."""
    name = NAMES.get(tensor.dtype)
    if name is None:
        raise InvalidArgument(f"opd has no {tensor.dtype}; it has {', '.join(DTYPES)}")
    if tensor.layout is not torch.strided:
        raise InvalidArgument(f"opd takes dense tensors, not {tensor.layout}; use to_dense()")
    return Desc(name, tuple(tensor.shape))


def write_inputs(descs: Sequence[Optional[Desc]]) -> tuple[str, list[int]]:
    """Descriptions of inputs as torch's operators take them: dtypes and ranks, and all sizes."""
    text = ";".join("" if d is None else f"{d.dtype}:{len(d.shape)}" for d in descs)
    return text, [n for d in descs if d is not None for n in d.shape]


def parse_inputs(text: str, sizes: Iterable[Any]) -> list[Optional[Desc]]:
    """Of "float32:2;;int32:1", where the second is absent, and the sizes of all."""
    rest = iter(sizes)
    descs: list[Optional[Desc]] = []
    for part in text.split(";"):
        dtype, _, rank = part.partition(":")
        descs.append(Desc(dtype, tuple(itertools.islice(rest, int(rank)))) if part else None)
    return descs


def to_wire(attrs: Sequence[Any]) -> list[Any]:
    """Symbolic integers become numbers, as sizes do."""
    return [_to_plain(value) for value in attrs]


def _to_plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_to_plain(v) for v in value]
    if isinstance(value, torch.SymInt):
        return int(value)
    return float(value) if isinstance(value, torch.SymFloat) else value
