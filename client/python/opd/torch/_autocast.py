"""What autocast makes of an operator's inputs, by the `autocast` line of its file.

A kernel at the dispatcher's keys for autocast, as torch's own operators have: nobody meets it where
autocast is off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import torch

from .._spec import Spec
from ._dtypes import NAMES

_KEYS = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}
_keyset = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
_keyset = _keyset | torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)

Maybe = Optional[torch.Tensor]


def register_autocast(library: Any, overload: Any, spec: Spec) -> None:
    """`overload`: the operator as users call it, in the namespace of `library`."""
    for device, rule in spec.info["autocast"].items():
        if rule != "widest" or sum(bool(i["type"]) for i in spec.inputs) > 1:
            library.impl(overload, _make_kernel(overload, spec.inputs, device, rule), _KEYS[device])


def cast(spec: Spec, tensors: Sequence[Maybe]) -> Sequence[Maybe]:
    """The inputs as autocast makes them, where its keys are not met: under torch.func."""
    for device, rule in spec.info["autocast"].items():
        present = [t for t in tensors if t is not None and t.device.type == device]
        if present and torch.is_autocast_enabled(device):
            return _apply(spec.inputs, tensors, device, rule)
    return tensors


def _apply(
    inputs: list[dict[str, Any]], tensors: Sequence[Maybe], device: str, rule: str
) -> list[Maybe]:
    if rule == "widest":
        return _widen(inputs, tensors)
    dtype = torch.get_autocast_dtype(device) if rule == "lower" else torch.float32
    return _cast(inputs, tensors, device, dtype)


def _make_kernel(overload: Any, inputs: list[dict[str, Any]], device: str, rule: str) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        n = len(inputs)  # all tensors are before the attributes
        with torch._C._ExcludeDispatchKeyGuard(_keyset):
            tensors = _apply(inputs, args[:n], device, rule)
            return overload(*tensors, *args[n:], **kwargs)

    return run


def _cast(
    inputs: list[dict[str, Any]], tensors: Sequence[Maybe], device: str, dtype: torch.dtype
) -> list[Maybe]:
    def is_cast(t: torch.Tensor, taken: list[str]) -> bool:
        fits = t.is_floating_point() and t.dtype != torch.float64 and NAMES.get(dtype) in taken
        return fits and t.device.type == device

    return [
        t.to(dtype) if t is not None and is_cast(t, info["dtypes"]) else t
        for info, t in zip(inputs, tensors)
    ]


def _widen(inputs: list[dict[str, Any]], tensors: Sequence[Maybe]) -> list[Maybe]:
    """Floating inputs that must have one dtype get the widest of theirs."""
    widest: dict[str, torch.dtype] = {}
    for info, t in zip(inputs, tensors):
        if t is not None and t.is_floating_point() and info["type"]:
            had = widest.get(info["type"], t.dtype)
            widest[info["type"]] = torch.promote_types(had, t.dtype)
    return [
        t.to(widest[info["type"]]) if t is not None and t.is_floating_point() and info["type"] else t
        for info, t in zip(inputs, tensors)
    ]
