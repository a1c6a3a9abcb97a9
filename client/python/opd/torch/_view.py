"""Calls of an operator whose result is a view of its one input, with nothing asked of anybody."""

from __future__ import annotations

from typing import Any

import torch

from ._direct import MISS
from ._interface import Operator
from ._options import DEFAULT, get_options
from ._session import get_session

_is_tracing: Any = torch._C._is_tracing
PLAIN = (torch.Tensor, torch.nn.Parameter)  # and no fake tensors


class View:
    """Calls of a view of one tensor, as _ops.py makes them, past the dispatcher: the shape that was
    planned for such a tensor, and torch's own view."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    def quick(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) != 1 or kwargs or type(args[0]) not in PLAIN:
            return MISS
        if get_options() is not DEFAULT or _is_tracing() or args[0].is_nested:
            return MISS
        shape = get_session().find_view(self._operator, args[0])
        return MISS if shape is None else torch.reshape(args[0], shape)

    def call(self, args: Any, kwargs: Any) -> Any:
        return MISS

    def explain(self, error: RuntimeError) -> Any:
        raise error
