"""`torch.ops.opd`: finds operators of the daemon by itself, as `opd.torch.ops` does."""

from __future__ import annotations

import keyword
from typing import Any

import torch

from ..errors import NotFound
from ._ops import _look_up, _tell_missing
from ._register import HELPERS, taken
from ._session import get_session


class _Namespace(type(torch.ops.opd)):  # type: ignore[misc]
    """Registers an operator when its name, or that of a part, is first asked for."""

    __module__ = type(torch.ops.opd).__module__  # torch names operators by it

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError as e:
            # What is taken is being registered: torch looks for it before it is there.
            if name.startswith("__") or name in taken:
                raise
            public = _find_public(name)
            if not public:
                raise AttributeError(f"{e}: {_tell_missing(name)}") from None
        return getattr(self, public)


def _find_public(name: str) -> str:
    """The name in torch.ops.opd, once it is there, of what `name` asks for; empty: there is none."""
    stem, _, part = name.rpartition("__")
    if stem and part in HELPERS and not _look_up(name):
        whole = _find_public(stem)
        return whole and f"{whole}__{part}"
    if name.endswith("_") and keyword.iskeyword(name[:-1]):
        name = name[:-1]
    public: str = _look_up(name)
    return public


def register(*names: str) -> None:
    """Registers operators with torch now: those named, else all that the daemon has.

    A process calls it once, before torch.jit.load(): TorchScript finds only what is registered.
    What torch.export.load() and torch.ops.opd.NAME need is registered by itself.
    """
    for name in names or get_session().names():
        if not _look_up(name):
            raise NotFound(_tell_missing(name), op=name)


torch.ops.opd.__class__ = _Namespace
