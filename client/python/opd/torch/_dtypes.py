"""torch's dtypes by the daemon's names."""

from __future__ import annotations

import math
from typing import NamedTuple

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

    def __str__(self) -> str:
        return f"{self.dtype}:{','.join(map(str, self.shape))}"


def describe(tensor: torch.Tensor) -> Desc:
    """Sizes that torch.compile made symbolic become numbers: their graph is for these alone."""
    name = NAMES.get(tensor.dtype)
    if name is None:
        raise InvalidArgument(f"opd has no {tensor.dtype}; it has {', '.join(DTYPES)}")
    if tensor.layout is not torch.strided:
        raise InvalidArgument(f"opd takes dense tensors, not {tensor.layout}; use to_dense()")
    return Desc(name, tuple(map(int, tensor.shape)))


def parse(text: str) -> Desc:
    """The reverse of str()."""
    dtype, _, sizes = text.partition(":")
    return Desc(dtype, tuple(map(int, sizes.split(","))) if sizes else ())
