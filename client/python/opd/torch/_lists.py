"""Operators of lists of tensors (`Tensor[]`) as torch's: the daemon runs them, for as many tensors in a launch as it
holds, and they have no gradients."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Optional

import torch

from ..errors import InvalidArgument
from ._derivatives import refuse
from ._dtypes import to_wire
from ._interface import Lengths, nest
from ._register import Operator, as_result, has_tangent, make_empty, requires_grad
from ._session import get_session
from ._shapes import infer
from ._transport import find_device


class Call:
    """What a session needs to know of an operator: for one call, whose tensors stand one after the other."""

    n_saved = 0

    def __init__(self, operator: ListOperator, args: Sequence[Any]) -> None:
        self._operator = operator
        self.name, self.key, self.attr_names = operator.name, operator.key, operator.attr_names
        values, self.attrs = args[: operator.n_inputs], args[operator.n_inputs :]
        lengths = [len(v) if isinstance(v, (list, tuple)) else -1 for v in values]
        n = next((n for n in lengths if n >= 0), 0)
        self.lengths: Lengths = tuple(lengths)
        self.made_lengths: Lengths = tuple(n if info.get("list") else -1 for info in operator.spec.outputs)
        self.tensors: list[Optional[torch.Tensor]] = []
        self.of: list[int] = []  # of each tensor, the input
        for i, value in enumerate(values):
            each = value if lengths[i] >= 0 else [value]
            self.tensors += each
            self.of += [i] * len(each)
        self.mutated = [k for k, i in enumerate(self.of) if i in operator.mutated]
        self.strided: Collection[int] = frozenset(k for k, i in enumerate(self.of) if i in operator.strided)

    @property
    def outdated(self) -> bool:
        return self._operator.outdated

    @outdated.setter
    def outdated(self, value: bool) -> None:
        self._operator.outdated = value

    def run(self) -> list[Any]:
        device = find_device(self.name, self.tensors)
        if device.type == "meta":
            return self.fake()
        self._check_apart()
        made, _ = get_session().forward(self, self.tensors, to_wire(self.attrs), False, device)
        return nest(made, self.made_lengths)

    def fake(self) -> list[Any]:
        outputs, _ = infer(self, self.tensors, self.attrs)
        return nest(make_empty(outputs, find_device(self.name, self.tensors)), self.made_lengths)

    def _check_apart(self) -> None:
        """As the daemon does, which may be given copies: what is changed in place shares no memory with another
        of these, and none with what is read but all of it, at the same place."""
        changed = set(self.mutated)
        spans = sorted(
            (t.data_ptr(), t.data_ptr() + t.nbytes, k not in changed, k)
            for k, t in enumerate(self.tensors)
            if t is not None and t.layout == torch.strided and t.numel() > 0 and t.is_contiguous()
        )
        any_end, any_at, end, at = 0, -1, 0, -1  # the farthest of all, and of what is changed
        for start, stop, _, k in spans:
            other = any_at if k in changed and start < any_end else at if start < end else -1
            if other >= 0 and not self._may_share(k, other, changed):
                raise InvalidArgument(
                    f"{self.name}: {self._label(other)} and {self._label(k)} share memory, and "
                    f"{self._label(other if other in changed else k)} is changed in place; expected memory of its own",
                    op=self.name,
                )
            if stop > any_end:
                any_end, any_at = stop, k
            if k in changed and stop > end:
                end, at = stop, k

    def _may_share(self, k: int, other: int, changed: set[int]) -> bool:
        a, b = self.tensors[k], self.tensors[other]
        assert a is not None and b is not None
        if k in changed and other in changed:
            return False
        return a.data_ptr() == b.data_ptr() and a.nbytes == b.nbytes and self._place(k) == self._place(other)

    def _place(self, k: int) -> int:
        """Its index in the list."""
        return k - self.of.index(self.of[k])

    def _label(self, k: int) -> str:
        name: str = self._operator.spec.inputs[self.of[k]]["name"]
        return f"{name}[{self._place(k)}]" if self._operator.spec.inputs[self.of[k]].get("list") else name


class ListOperator(Operator):
    """A registered operator of lists."""

    def _define_all(self, attrs: list[str]) -> None:
        returns = ", ".join("Tensor[]" if t.get("list") else "Tensor" for t in self.spec.outputs)
        op = self._define(
            "infer",
            f"({', '.join(self._spell_inputs() + attrs)}) -> ({returns})",
            lambda *args: as_result(Call(self, args).run()),
            lambda *args: as_result(Call(self, args).fake()),
        )
        self.infer = op._opoverload

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        values = self._bind(args, kwargs)
        tensors = Call(self, values).tensors
        if any(map(has_tangent, tensors)):
            return self._transform()
        if torch.is_grad_enabled() and any(map(requires_grad, tensors)):
            self._check_gradient(values)
        return self.infer(*values)

    def _transform(self, *args: Any, **kwargs: Any) -> Any:
        raise refuse(
            self, "takes lists of tensors, which torch.func and forward mode do not follow", "give it plain tensors"
        )
