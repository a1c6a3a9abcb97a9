"""torch's dtypes by the daemon's names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

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


def check_dtype(tensor: torch.Tensor) -> str:
    """The daemon's name of its dtype."""
    name = NAMES.get(tensor.dtype)
    if name is None:
        raise InvalidArgument(f"opd has no {tensor.dtype}; it has {', '.join(DTYPES)}")
    if tensor.layout is not torch.strided:
        raise InvalidArgument(f"opd takes dense tensors, not {tensor.layout}; use to_dense()")
    return name


def describe(tensor: torch.Tensor) -> Desc:
    return Desc(check_dtype(tensor), tuple(map(int, tensor.shape)))


def to_wire(attrs: Sequence[Any]) -> list[Any]:
    """Symbolic integers become numbers, as sizes do."""
    return [_to_plain(value) for value in attrs]


def _to_plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_to_plain(v) for v in value]
    if isinstance(value, torch.SymInt):
        return int(value)
    return float(value) if isinstance(value, torch.SymFloat) else value
