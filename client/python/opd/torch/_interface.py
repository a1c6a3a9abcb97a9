"""What an operator takes and gives, as far as its registration with torch depends on it."""

from __future__ import annotations

from typing import Any, Protocol

from .._spec import Spec
from ..errors import OpdError


class InterfaceChanged(OpdError):
    """An edit changed the operator's arguments, results or saved tensors since it was registered."""

    code = "invalid_argument"


class Operator(Protocol):
    """What a session needs to know of a registered operator."""

    name: str
    key: tuple[Any, ...]
    attr_names: list[str]
    mutated: list[int]
    strided: list[int]
    n_saved: int
    outdated: bool  # an edit has made another of it


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
        tuple((i["differentiable"], i["used_backward"], i.get("strided")) for i in spec.inputs),
        tuple((o["used_backward"], o["view"]) for o in spec.outputs),
        spec.shapes,
    )


def _get_autocast_key(info: dict[str, Any]) -> tuple[Any, ...]:
    rules = tuple(info["autocast"].values())
    casts = any(rule != "widest" for rule in rules)
    return (rules, *((i["type"], *(i["dtypes"] if casts else ())) for i in info["inputs"]))
