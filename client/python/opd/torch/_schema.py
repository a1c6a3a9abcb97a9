"""How an operator's arguments are spelled: in torch's schemas, and as client/torch/call.h has them."""

from __future__ import annotations

import keyword
import re
from typing import Any

from .._spec import Spec

_VALUES = ("None", "True", "False")
_WORD = re.compile(  # a name in a schema
    r"(?<= )(?:%s)(?= *[,=)]|$)" % "|".join(w for w in keyword.kwlist if w not in _VALUES)
)
OPEN_INT = re.compile(r"(?<=[ (])int(?=[\[? ])")  # the type in a schema
_LETTERS = {"int": "i", "float": "f", "bool": "b", "str": "s"}


def takes_device(spec: Spec) -> bool:
    """Nothing else says where its results are to be."""
    return not spec.inputs and "device" not in spec.attrs


def spell_arguments(schema: str, takes_device: bool) -> str:
    """What follows the operator's name, with names that torch reads as such."""
    spelled = _WORD.sub(r"\g<0>_", schema[schema.index("(") :])
    if not takes_device:
        return spelled
    arguments, _, returns = spelled.rpartition(") -> ")
    more = ", " if "*" in arguments else "*, " if arguments == "(" else ", *, "
    return f"{arguments}{more}Device? device=None) -> {returns}"


def get_default(described: dict[str, Any]) -> Any:
    default = described.get("default")
    return tuple(default) if isinstance(default, list) else default


def spell_type(attr: dict[str, Any]) -> str:
    text = "SymInt" if attr["type"] == "int" else attr["type"]
    text += f"[{attr['list']}]" if attr["list"] else ""
    return f"{text}{'?' if attr['optional'] else ''}"


def number_words(arguments: str, name: str, words: list[str]) -> str:
    """A schema's arguments, where that one is an int."""

    def spell(match: re.Match[str]) -> str:
        default = match[2] and (match[2] if match[3] is None else f"={words.index(match[3])}")
        return f"int{match[1]} {name}{default or ''}"

    return re.sub(rf"str(\??) {re.escape(name)}(=(?:\"(\w*)\"|'(?:\w*)'|None))?", spell, arguments)


def spell_input(info: dict[str, Any]) -> str:
    """As call.h has it."""
    optional, many = "?" if info["optional"] else "", "*" if info.get("list") else ""
    return optional + many + ("v" if info.get("strided") else "t")


def spell_attr(attr: dict[str, Any]) -> str:
    optional, many = "?" if attr["optional"] else "", "*" if attr["list"] else ""
    return optional + many + ("i" if attr.get("words") else _LETTERS[attr["type"]])
