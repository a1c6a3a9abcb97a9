"""Operators whose `channels_last` line names one for tensors that lie so in memory: it is called on
views of them whose dimension 1 is the last, and what it makes is seen as the other's results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .._spec import Spec, python_name

_LAST, _BACK = (0, 2, 3, 1), (0, 3, 1, 2)


def lies_last(tensor: Any) -> bool:
    """Is it no copy to have its dimension 1 last, but one to have it contiguous? By strides: vmap has
    no other answer, and what is traced is left alone."""
    if not isinstance(tensor, torch.Tensor) or tensor.dim() != 4 or tensor.is_contiguous():
        return False
    (n, c, h, w), strides = tensor.shape, tensor.stride()
    wanted = ((n, h * w * c), (c, 1), (h, w * c), (w, c))
    return all(size == 1 or stride == want for (size, want), stride in zip(wanted, strides))


class ChannelsLast:
    def __init__(self, spec: Spec) -> None:
        described = spec.info["channels_last"]
        self.op: str = described["op"]
        self._inputs = [(i, python_name(spec.inputs[i])) for i in described["inputs"]]
        self._outputs: list[int] = described["outputs"]
        self._single = len(spec.outputs) == 1

    def takes(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """By the first of its inputs."""
        i, name = self._inputs[0]
        return lies_last(args[i] if i < len(args) else kwargs.get(name))

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given, named = list(args), dict(kwargs)
        for i, name in self._inputs:
            if i < len(given):
                given[i] = _move(given[i], _LAST)
            elif name in named:
                named[name] = _move(named[name], _LAST)
        made = function(*given, **named)
        if self._single:
            return _move(made, _BACK)
        return tuple(_move(t, _BACK) if i in self._outputs else t for i, t in enumerate(made))


def _move(value: Any, order: tuple[int, ...]) -> Any:
    return value.permute(order) if isinstance(value, torch.Tensor) else value
