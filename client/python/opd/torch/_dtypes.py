"""torch's dtypes by the daemon's names."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple, Optional, Protocol

import torch

from .._protocol import DTYPES
from ..errors import InvalidArgument

BY_NAME: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPES}
NAMES: dict[torch.dtype, str] = {dtype: name for name, dtype in BY_NAME.items()}


class Desc(NamedTuple):
    """dtype and shape of a tensor, as requests take them; strides of one that is not contiguous."""

    dtype: str
    shape: tuple[int, ...]
    strides: Optional[tuple[int, ...]] = None

    @property
    def numel(self) -> int:
        """Elements from its first to its last one in memory."""
        if self.strides is None:
            return math.prod(self.shape)
        return 1 + sum((n - 1) * step for n, step in zip(self.shape, self.strides))

    @property
    def nbytes(self) -> int:
        return DTYPES[self.dtype] * self.numel

    @property
    def layout(self) -> tuple[tuple[int, ...], ...]:
        """Its last parameters where requests make it."""
        return (self.shape,) if self.strides is None else (self.shape, self.strides)


class Described(Protocol):
    """An operator, as far as describe_all() asks one."""

    name: str
    strided: Collection[int]  # those of its tensors that are taken as they lie

    def label(self, at: int) -> str: ...


def describe_all(
    tensors: Sequence[Optional[torch.Tensor]], operator: Described
) -> tuple[Optional[Desc], ...]:
    """Raises InvalidArgument, by the operator's name and its tensor's, for what opd takes none of."""
    descs = []
    for i, t in enumerate(tensors):
        try:
            descs.append(None if t is None else describe(t, i in operator.strided))
        except Unfit as e:
            label = operator.label(i)
            raise e.refuse(operator.name, label, label) from None
    return tuple(descs)


class Unfit(InvalidArgument):
    """instead: what to do, with {} where the tensor's name goes."""

    def __init__(self, what: str, instead: str) -> None:
        super().__init__(f"opd takes no tensor that is {what}; {instead.format('it')}")
        self.what, self.instead = what, instead

    def refuse(self, name: str, what: str, it: str) -> InvalidArgument:
        """The same of an operator, and of which tensor of it."""
        return InvalidArgument(f"{name}: {what} is {self.what}; {self.instead.format(it)}", op=name)


def describe(tensor: torch.Tensor, strided: bool = False) -> Desc:
    """Sizes that a compiler leaves open stay so. Raises Unfit."""
    name = NAMES.get(tensor.dtype)
    if name is None or tensor.layout is not torch.strided or tensor.is_nested:
        raise _find_unfit(tensor)
    strides = tuple(tensor.stride()) if strided and not tensor.is_contiguous() else None
    return Desc(name, tuple(tensor.shape), strides)


def _find_unfit(tensor: torch.Tensor) -> Unfit:
    if tensor.is_nested:
        return Unfit(
            "a nested tensor",
            "expected a plain one: call it with each of {0}.unbind(), or with {0}.to_padded_tensor(0.0)",
        )
    if tensor.layout is not torch.strided:
        return Unfit(str(tensor.layout), "expected a dense tensor: {}.to_dense()")
    instead = f"expected one of {', '.join(DTYPES)}"
    if tensor.is_quantized:
        instead += ": {}.dequantize()"
    elif tensor.is_complex():
        instead += ": torch.view_as_real({}) has its parts"
    return Unfit(str(tensor.dtype), instead)


def refuse_class(name: str, tensors: Sequence[Any], error: Exception) -> None:
    """Of a call that a class of tensors has not taken; torch says which, and not what to do. An error that is
    another's, as one of what the class itself runs, stays as it is."""
    plain: Any = torch.Tensor.__torch_dispatch__
    refused = "opd." in str(error) and "handlers returned NotImplemented" in str(error)
    if isinstance(error, TypeError) and not refused:
        return
    for t in tensors:
        kind = type(t)
        if t is None or kind.__torch_dispatch__ == plain or kind.__module__.startswith("torch._subclasses"):
            continue
        how = "its to_local(), or use local_map()" if hasattr(t, "to_local") else "a plain tensor"
        raise InvalidArgument(
            f"{name}: one of its tensors is a {kind.__name__}, whose class takes no such operator; give it {how}",
            op=name,
        ) from error


def write_inputs(descs: Sequence[Optional[Desc]]) -> tuple[str, list[int]]:
    """Descriptions of inputs as torch's operators take them: dtypes and ranks, and all sizes, with the
    strides behind those of what has some, whose rank has an "s"."""
    text = ";".join(
        "" if d is None else f"{d.dtype}:{len(d.shape)}{'' if d.strides is None else 's'}" for d in descs
    )
    return text, [n for d in descs if d is not None for part in d.layout for n in part]


def parse_inputs(text: str, sizes: Iterable[Any]) -> list[Optional[Desc]]:
    """Of "float32:2;;int32:1", where the second is absent, and the sizes of all."""
    rest = iter(sizes)
    descs: list[Optional[Desc]] = []
    for part in text.split(";"):
        if not part:
            descs.append(None)
            continue
        dtype, _, rank = part.partition(":")
        n = int(rank.rstrip("s"))
        shape = tuple(itertools.islice(rest, n))
        descs.append(Desc(dtype, shape, tuple(itertools.islice(rest, n)) if rank[-1] == "s" else None))
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
