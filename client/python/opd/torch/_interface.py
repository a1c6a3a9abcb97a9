"""What an operator takes and gives, as far as its registration with torch depends on it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Optional, Protocol

from .._spec import Spec
from ..errors import OpdError


# How many tensors each argument has, one after the other; -1: one, that is no list. None: there are no lists.
Lengths = Optional[Sequence[int]]


class InterfaceChanged(OpdError):
    """An edit changed the operator's arguments, results or saved tensors since it was registered."""

    code = "invalid_argument"


class Operator(Protocol):
    """What a session needs to know of a registered operator."""

    name: str
    key: tuple[Any, ...]
    attr_names: list[str]
    mutated: list[int]
    strided: Collection[int]
    n_saved: int
    lengths: Lengths  # of inputs
    made_lengths: Lengths  # of outputs
    outdated: bool  # an edit has made another of it

    def label(self, at: int) -> str:
        """The name of one of its tensors."""


def nest(values: Sequence[Any], lengths: Lengths) -> list[Any]:
    """One value for each argument, which of a list is a list."""
    rest = iter(values)
    if lengths is None:
        return list(rest)
    return [next(rest) if n < 0 else [next(rest) for _ in range(n)] for n in lengths]


def flatten(values: Sequence[Any], lengths: Lengths) -> list[Any]:
    """What nest() has made, as it was."""
    if lengths is None:
        return list(values)
    return [v for value, n in zip(values, lengths) for v in ([value] if n < 0 else value)]


def get_key(spec: Spec) -> tuple[Any, ...]:
    """All of an operator that a registration with torch depends on."""
    info = spec.info
    return (
        spec.schema,
        info.get("loaded") == "private",  # before one of its name, whose versions go on
        info["has_backward"],
        _get_autocast_key(info),
        tuple(info["saved"]),
        info.get("derivable"),
        str(info.get("linear")),
        str(info.get("batch")),
        str(info.get("channels_last")),
        tuple((i["differentiable"], i["used_backward"], i.get("strided")) for i in spec.inputs),
        tuple((o["used_backward"], o["view"]) for o in spec.outputs),
        spec.shapes,
    )


def _get_autocast_key(info: dict[str, Any]) -> tuple[Any, ...]:
    rules = tuple(info["autocast"].values())
    casts = any(rule != "widest" for rule in rules)
    return (rules, *((i["type"], *(i["dtypes"] if casts else ())) for i in info["inputs"]))
