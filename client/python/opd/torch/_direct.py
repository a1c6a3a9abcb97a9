"""Kernels as functions that do not go through torch's dispatcher where that would do nothing for a call
(client/python/native_torch.c, client/torch/direct.h): what must be known of torch for that, found out once."""

from __future__ import annotations

import ctypes
from typing import Any, Optional

import torch
from torch.autograd import forward_ad, profiler

from .._native import native
from ._library import Library

MISS: Any = object()  # a call that is not for here


def return_miss(*_: Any, **__: Any) -> Any:
    return MISS


_SIZE = 184  # of what torch keeps of a tensor, at least
_keys: Any = torch._C._dispatch_keys  # it has no types


def _find_words(address: int, size: int, word: int) -> set[int]:
    """Where, in so many bytes, this one lies."""
    words = (ctypes.c_uint64 * (size // 8)).from_address(address)
    return {8 * i for i, found in enumerate(words) if found == word}


def _find_one(places: list[set[int]]) -> Optional[int]:
    common = set.intersection(*places)
    return common.pop() if len(common) == 1 else None


def _find_names() -> int:
    """The key of tensors with named dimensions; 0 of a torch that has none."""
    try:
        keys: int = torch._C.DispatchKeySet(torch._C._dispatch_key_parse("Named")).raw_repr()
        return keys
    except RuntimeError:
        return 0


def _find_out(library: Library) -> bool:
    """Can it be done with this torch?"""
    plain = torch.empty(2, 3, device="cpu")
    samples = [plain, plain[0], torch.nn.Parameter(plain), torch._neg_view(plain), torch.empty(1, device="meta")]
    size = torch.Tensor.__basicsize__
    at = _find_one([_find_words(id(t), size, t._cdata) for t in samples])
    keys_at = _find_one([_find_words(t._cdata, _SIZE, _keys(t).raw_repr()) for t in samples])
    if at is None or keys_at is None or not library.set_direct(at, keys_at, _find_names()):
        return False
    library.add_plain(_keys(plain).raw_repr())
    native.torch_set_up(
        *library.find_direct(),
        *(torch.Tensor, torch.nn.Parameter, MISS),
        *(vars(forward_ad), vars(profiler)),
    )
    return True


class Direct:
    """Of a library. Without what it needs all calls go by torch."""

    def __init__(self, library: Library) -> None:
        try:
            self._can = native is not None and _find_out(library)
        except (AttributeError, RuntimeError, TypeError):  # of a torch that has something no more
            self._can = False
        self._library = library
        self._devices: set[torch.device] = set()

    def make(
        self,
        number: int,
        layout: str,
        results: str,
        packet: Any,
        words: dict[str, Any],
        other: Any,
        apply: Any = None,
        n_positional: Optional[int] = None,
    ) -> Any:
        """A function that runs a kernel, or `other` where the call is not for it; where that is MISS, it is
        what such a call returns. apply: what a call whose tensors want a gradient goes to, with a dict of
        the arguments by name first; or MISS. None: what they want is no matter. n_positional: arguments
        that come by position, at most; None: all of them."""
        if not self._can:
            return return_miss if other is MISS else other
        arguments = packet._schema.arguments
        names = tuple(a.name for a in arguments)
        defaults = {a.name: a.default_value for a in arguments if a.has_default_value()}
        words = {name: tuple(of) for name, of in words.items()}
        n = len(names) if n_positional is None else n_positional
        return native.torch_kernel(
            *(number, layout.encode(), results.encode(), names, n, defaults, words, other, apply)
        )

    def make_forward(self, function: Any, keep: Any, back: int, *more: Any) -> None:
        """An autograd.Function whose forward and backward are of native_gradient.c, where they can be: in
        front of its own forward, and of the last of what torch_gradient() is given."""
        if self._can:
            context, forward = function._backward_cls, function.forward
            function.forward = native.torch_gradient(context, keep, back, *more[:-1], forward, more[-1])

    def note(self, device: torch.device) -> None:
        """Tensors of that device are plain, too."""
        if self._can and device.type == "cuda" and not self._devices:
            self._devices.add(device)
            self._library.add_plain(_keys(torch.empty(0, device=device)).raw_repr())


_direct: Optional[Direct] = None


def get_direct(library: Library) -> Direct:
    global _direct
    if _direct is None:
        _direct = Direct(library)
    return _direct
