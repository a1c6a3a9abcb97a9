"""Operators whose `channels_last` line names one for tensors that lie so in memory: it is called on
views of them whose dimension 1 is the last, and what it makes is seen as the other's results.

What it would not take, or takes otherwise, is the first one's, whose errors speak of what was given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .._spec import Spec, python_name
from .._trees import Misfit, parse
from ..errors import OpdError
from ._dtypes import NAMES
from ._options import get_options
from ._session import get_session
from ._shapes import Symbols, guard
from ._transport import find_device

_LAST, _BACK = (0, 2, 3, 1), (0, 3, 1, 2)
_MOST_KNOWN = 4096

# The registered operator of a name, or None; _ops.py sets it.
find_operator: Callable[[str], Any]


def lies_last(tensor: Any) -> bool:
    """Is it no copy to have its dimension 1 last, but one to have it contiguous? False where that
    depends on data."""
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided or tensor.dim() != 4:
        return False
    strides, (n, c, h, w) = tensor.stride(), tensor.shape
    if type(n) is type(c) is type(h) is type(w) is int and c > 1 and h * w > 1:  # then not both
        return strides == (h * w * c, 1, w * c, c) or _lies(tensor, _LAST)
    return _lies(tensor, _LAST) and not _lies(tensor, (0, 1, 2, 3))


def _lies(tensor: torch.Tensor, order: tuple[int, ...]) -> bool:
    """By strides: vmap has no other answer, and what is traced is left alone."""
    sizes, strides, want = tensor.shape, tensor.stride(), 1
    for d in reversed(order):
        if not (_holds(strides[d] == want) or _holds(sizes[d] == 1)):
            return False
        want *= sizes[d]
    return True


def _holds(test: Any) -> bool:
    """torch.jit.trace has sizes that are tensors, of which nothing is known."""
    return test if isinstance(test, bool) else isinstance(test, torch.SymBool) and guard(test)


def _describe_interface(spec: Spec) -> tuple[Any, ...]:
    inputs = [(i["name"], i["optional"], i["in_place"], i["dtypes"]) for i in spec.inputs]
    return inputs, spec.attrs, [(o["name"], o["dtypes"]) for o in spec.outputs]


class ChannelsLast:
    def __init__(self, spec: Spec, arguments: Sequence[tuple[str, Any]]) -> None:
        """arguments: names and defaults of all that a call has."""
        described = spec.info["channels_last"]
        self._op: str = described["op"]
        self._spec, self._arguments = spec, arguments
        self._when = parse(described["when"]) if described["when"] else None
        self._inputs = [(i, python_name(spec.inputs[i])) for i in described["inputs"]]
        self._outputs: list[int] = described["outputs"]
        self._twin: Any = None  # of which is known whether it is alike, and what it takes
        self._alike = False
        self._takes: dict[Any, bool] = {}

    def follow(self, spec: Spec) -> None:
        """An edit that keeps the interface: what it requires may be another."""
        self._spec, self._twin = spec, None

    def find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The operator for a call of these arguments; None: it is the first one's."""
        i, name = self._inputs[0]
        if not lies_last(args[i] if i < len(args) else kwargs.get(name)):
            return None
        if get_options().version is not None or torch.onnx.is_in_onnx_export():
            return None
        twin = find_operator(self._op)
        if twin is None:
            return None
        if twin is not self._twin:
            self._alike = _describe_interface(twin.spec) == _describe_interface(self._spec)
            self._twin, self._takes = twin, {}
        return twin if self._alike and self._takes_all(args, kwargs) else None

    def _takes_all(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        rest = self._arguments[len(args) :]
        if len(args) > len(self._arguments) or not kwargs.keys() <= {name for name, _ in rest}:
            return False
        values = (*args, *(kwargs.get(name, default) for name, default in rest))
        try:
            key = tuple(
                (v.shape, v.dtype, v.device) if isinstance(v, torch.Tensor)
                else tuple(v) if isinstance(v, list) else v
                for v in values
            )  # fmt: skip
            found = self._takes.get(key)
        except TypeError:  # sizes that are open
            return self._ask_rules(values)
        if found is None:
            if len(self._takes) == _MOST_KNOWN:
                self._takes.clear()
            found = self._takes[key] = self._ask_rules(values)
        return found

    def _ask_rules(self, values: tuple[Any, ...]) -> bool:
        rules, n = self._spec.rules, len(self._spec.inputs)
        if rules is None:
            return False
        try:
            device = find_device(self._spec.name, values[:n])
            inputs = [None if t is None else (NAMES.get(t.dtype), tuple(t.shape)) for t in values[:n]]
            given = inputs, values[n:], lambda: get_session().is_cpu(device), Symbols()
            if self._when is not None:
                return rules.holds(self._when, *given)
            rules.infer(*given)
            return True
        except (Misfit, OpdError, RuntimeError, AttributeError, TypeError):
            return False

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given, named = list(args), kwargs.copy()
        for i, name in self._inputs:
            if i < len(given):
                given[i] = _move(given[i], _LAST)
            elif name in named:
                named[name] = _move(named[name], _LAST)
        made = function(*given, **named)
        if len(self._spec.outputs) == 1:
            return _move(made, _BACK)
        return tuple(_move(t, _BACK) if i in self._outputs else t for i, t in enumerate(made))


def _move(value: Any, order: tuple[int, ...]) -> Any:
    return value.permute(order) if isinstance(value, torch.Tensor) else value
