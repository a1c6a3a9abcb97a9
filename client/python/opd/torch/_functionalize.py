"""Operators under torch.func.functionalize, which wraps tensors, and has in them what is pending of views and of
changes in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

_KEY: Any = torch._C._functorch.TransformType.Functionalize


def is_innermost() -> bool:
    """Is functionalize the transform that a call meets first?"""
    levels = torch._C._functorch.get_interpreter_stack() or []
    return bool(levels) and levels[-1].key() == _KEY


def is_around() -> bool:
    """Is it one around that?"""
    levels = torch._C._functorch.get_interpreter_stack() or []
    return any(level.key() == _KEY for level in levels[:-1])


def call_below(operator: Any, tensors: Sequence[Any], invoke: Callable[[Sequence[Any]], Any]) -> Any:
    """The call of what it has wrapped. What the operator changes is a copy, which torch's own copy_() then
    puts where it belongs: that knows what else is a view of it."""
    from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
    from torch._subclasses.functional_tensor import FunctorchFunctionalizeAPI

    level: Any = FunctorchFunctionalizeAPI(retrieve_current_functorch_interpreter())  # type: ignore[arg-type]
    below = list(level.unwrap_tensors(tuple(tensors)))
    with level.redispatch_to_next():
        for i in operator.mutated:
            below[i] = _each(torch.clone, below[i])
        made = invoke(below)
    for i in operator.mutated:
        _each(_put, tensors[i], level.wrap_tensors(below[i]))
    return level.wrap_tensors(made)


def _put(tensor: torch.Tensor, changed: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.copy_(changed)


def _each(do: Callable[..., Any], value: Any, *more: Any) -> Any:
    """Of a tensor, of each of a list, or of nothing."""
    if isinstance(value, (list, tuple)):
        return [do(*each) for each in zip(value, *more)]
    return None if value is None else do(value, *more)
