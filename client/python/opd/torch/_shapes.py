"""What an operator gives for fake tensors, whose sizes a compiler may have left open: worked out
here from the operator's rules, with sizes that stay symbols."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Optional

import torch

from .._trees import Arithmetic, Misfit
from ..errors import InvalidArgument
from ._dtypes import Desc, describe_all, to_wire
from ._interface import Lengths, Operator, nest
from ._session import get_session
from ._transport import Maybe, find_device

_torch: Any = torch  # some of it has no types
_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)


def _get_shapes() -> Any:
    """torch's, imported when first needed: it brings all of sympy along."""
    from torch.fx.experimental import symbolic_shapes

    return symbolic_shapes


def _is_known(test: Any) -> bool:
    return bool(_get_shapes().statically_known_true(test))


def guard(test: Any) -> bool:
    """False where that depends on data."""
    shapes = _get_shapes()
    guard = getattr(shapes, "guard_or_false", None) or shapes.guard_size_oblivious  # torch before 2.8
    return bool(guard(test))


def infer(
    operator: Operator, tensors: Sequence[Maybe], attrs: Sequence[Any]
) -> tuple[list[Desc], list[Desc]]:
    """Outputs and saved tensors. What the rules refuse, the daemon explains."""
    session = get_session()
    device = find_device(operator.name, tensors)
    refused = None
    rules = session.find_rules(operator)
    if rules is not None:
        try:
            inputs = describe_all(tensors, operator)
            places = _split_places(nest(inputs, operator.lengths), operator.lengths)
            if places:
                found = [rules.infer(at, attrs, lambda: session.is_cpu(device), Symbols()) for at in places]
                return _join_places([r.outputs for r in found], operator), [Desc(*d) for d in found[0].saved]
        except Misfit as e:
            refused = InvalidArgument(f"{operator.name}: {e}", op=operator.name)
    try:
        plan = session.plan(operator, tensors, to_wire(attrs))
    except _get_shapes().GuardOnDataDependentSymNode:
        raise refused or InvalidArgument(
            f"{operator.name}: the daemon is needed for its shapes, and takes no sizes that depend "
            "on data",
            op=operator.name,
        ) from None
    return list(plan.outputs), list(plan.saved)


def _split_places(values: list[Any], lengths: Lengths) -> list[list[Any]]:
    """What the rules speak of: one tensor of each list. None, where the lists do not go together."""
    if lengths is None:
        return [values]
    counts = {n for n in lengths if n >= 0}
    if len(counts) != 1:
        return []
    return [[v[k] if n >= 0 else v for v, n in zip(values, lengths)] for k in range(counts.pop())]


def _join_places(places: list[Any], operator: Operator) -> list[Desc]:
    columns, lengths = list(zip(*places)), operator.made_lengths
    kept = [c if lengths is not None and lengths[i] >= 0 else c[:1] for i, c in enumerate(columns)]
    return [Desc(*d) for column in kept for d in column]


def has_symbols(values: Iterable[Any]) -> bool:
    """Is one of them open, or in a list among them?"""
    return any(
        _is_open(v) for each in values for v in (each if isinstance(each, (list, tuple)) else [each])
    )


def _is_open(value: Any) -> bool:
    return isinstance(value, _SYMBOLS)


class Symbols(Arithmetic):
    """Of numbers and symbols. Where a result depends on what a symbol is, it becomes an expression,
    not a question; only signs of divisors, powers of two, and conditions on what cannot be worked out
    otherwise are asked for, and so compiled for each answer."""

    def check(self, holds: Any, tell: Callable[[], str]) -> None:
        if not _is_open(holds):
            return super().check(holds, tell)
        try:
            _torch._check(holds, tell)
        except RuntimeError:
            raise Misfit(tell()) from None

    def join(self, a: Any, b: Any) -> Any:
        if not _is_open(a) and not _is_open(b):
            return super().join(a, b)
        for one, other in ((a, b), (b, a)):
            if not _is_open(one) and one == 1:
                return other
        if not _is_known(a == b):
            for one, other in ((a, b), (b, a)):
                if _is_open(one) and guard(one == 1):
                    return other
            self.check(a == b, lambda: f"{a} does not broadcast with {b}")
        return a

    def to_number(self, value: Any) -> Any:
        if isinstance(value, torch.SymBool):
            return _torch.sym_ite(value, 1, 0)
        return value if _is_open(value) else super().to_number(value)

    def to_truth(self, value: Any) -> Any:
        return value if isinstance(value, torch.SymBool) else value != 0

    def negate(self, value: Any) -> Any:
        return _torch.sym_not(value)

    def both(self, a: Any, b: Callable[[], Any]) -> Any:
        return self._combine(a, b, False)

    def either(self, a: Any, b: Callable[[], Any]) -> Any:
        return self._combine(a, b, True)

    def _combine(self, a: Any, b: Callable[[], Any], decides: bool) -> Any:
        """a && b, or a || b, which an `a` that is `decides` decides."""
        known = _decide(a)
        if known is not None:
            return decides if known is decides else self.to_truth(b())
        right = _attempt(lambda: self.to_truth(b()))
        if right is None:  # an error where `a` decides
            return decides if bool(a) is decides else self.to_truth(b())
        if not _is_open(right):
            return decides if right is decides else a
        return a | right if decides else a & right

    def choose(self, test: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
        known = _decide(test)
        if known is None:
            a, b = _attempt(lambda: self.to_number(yes())), _attempt(lambda: self.to_number(no()))
            if a is not None and b is not None:
                return test.__sym_ite__(a, b)
        return yes() if (bool(test) if known is None else known) else no()

    def to_float(self, a: Any) -> Any:
        return _torch.sym_float(a)

    def floor(self, a: Any) -> Any:
        if not _is_open(a):
            return super().floor(a)
        # math.floor() would ask whether a quotient in `a` is exact, and compile for each answer.
        cut = math.trunc(a)
        return cut if _is_known(a >= 0) else cut - _torch.sym_ite(cut > a, 1, 0)

    def quotient(self, a: Any, b: Any) -> Any:
        if not _is_open(a) and not _is_open(b):
            return super().quotient(a, b)
        self.check(b != 0, lambda: "division by zero")
        if not _is_known(b > 0) and not b > 0:
            a, b = -a, -b
        if _is_known(a >= 0):
            return a // b
        return _torch.sym_max(a, 0) // b - _torch.sym_max(-a, 0) // b

    def least(self, a: Any, b: Any) -> Any:
        return _torch.sym_min(a, b) if _is_open(a) or _is_open(b) else super().least(a, b)

    def most(self, a: Any, b: Any) -> Any:
        return _torch.sym_max(a, b) if _is_open(a) or _is_open(b) else super().most(a, b)

    def power(self, a: Any, b: Any) -> Any:
        return a**b if _is_open(a) or _is_open(b) else super().power(a, b)


def _decide(test: Any) -> Optional[bool]:
    """True or false, if it can be told without asking what a symbol is."""
    if not _is_open(test):
        return bool(test)
    if _is_known(test):
        return True
    return False if _is_known(_torch.sym_not(test)) else None


def _attempt(make: Callable[[], Any]) -> Any:
    """None: it is an error, which does not count where it is not used."""
    try:
        return make()
    except Misfit:
        return None
