"""A daemon's operators as types, for mypy, Pyright and editors.

    python -m opd.stubs > ops.pyi              # of client.ops
    python -m opd.stubs --torch > ops.pyi      # of opd.torch.ops

The operators that come with opd have theirs in the package. With one's own beside them:

    if TYPE_CHECKING:
        from ops import Client
    client = cast("Client", opd.connect())
    y = client.ops.softplus(x, beta=2.0)

and for PyTorch `ops = cast("Ops", opd.torch.ops)`. A type checker then tells what is misspelt, operator or
attribute. `client.ops["softplus"]` is any operator, unchecked.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator
from inspect import Parameter
from keyword import iskeyword
from typing import Any, Optional

from ._spec import OURS, Spec, python_name
from .client import connect
from .errors import OpdError
from .tensor import Tensor

_HEAD = """\
# The operators of {whose}, as types. Made by `python -m opd.stubs{option}`.
from collections.abc import Iterator, Sequence
from typing import Any, Literal{names}

{imports}
class Operator:
    __name__: str
    schema: str
{members}"""
_OPD = """\
import opd
from numpy.typing import ArrayLike
from opd import Context, Tensor

T = TypeVar("T")
Value = Union[Tensor, ArrayLike]
"""
_OPD_MEMBERS = """\
    version: int
    versions: Sequence[dict[str, Any]]
"""
_TORCH = """\
import torch
from torch import Tensor
from torch._ops import OpOverload
"""
_TORCH_MEMBERS = """\
    overload: OpOverload[..., Any]
"""
_OPS = """
class Ops:
    def __getitem__(self, name: str) -> Any: ...
    def __iter__(self) -> Iterator[str]: ...
    def __len__(self) -> int: ...
    def __contains__(self, name: object) -> bool: ...

"""
_CLIENT = """
class Client(opd.Client):
    ops: Ops  # type: ignore[assignment]
"""
_METHODS = """
class Methods:
    __slots__ = ()
"""


def write(specs: Iterable[Spec], *, torch: bool = False, shipped: bool = False) -> str:
    """The text of a stub. shipped: of those in this package, which are methods of Tensor, too."""
    named = sorted((s for s in specs if _is_name(s.name)), key=lambda s: s.name)
    option = " --torch" * torch + " --shipped" * shipped
    parts = [
        _HEAD.format(
            whose="opd" if shipped else "a daemon",
            option=option,
            names="" if torch else ", TypeVar, Union",
            imports=_TORCH if torch else _OPD,
            members=_TORCH_MEMBERS if torch else _OPD_MEMBERS,
        )
    ]
    parts += [_write_class(spec, torch) for spec in named]
    parts += [_OPS, *(f"    {spec.name}: _{spec.name}\n" for spec in named)]
    if shipped and not torch:
        methods = [s for s in named if s.is_method and s.name not in dir(Tensor)]
        parts += [_METHODS, *(_write_method(spec) for spec in methods)]
    elif not torch:
        parts.append(_CLIENT)
    return "".join(parts)


def _is_name(name: str) -> bool:
    return name.isidentifier() and not iskeyword(name) and not name.startswith("_")


def _write_class(spec: Spec, torch: bool) -> str:
    words = list(_spell_parameters(spec, torch))
    receiver = "self_" if any(word.startswith("self:") for word in words) else "self"
    arguments = ", ".join([receiver, *words])
    returns = _spell_returns(spec, "Tensor")
    doc = re.sub(r'(\\|"(?="|$))', r"\\\1", spec.info["doc"]).replace("\n", "\n    ")
    lines = ["", f"class _{spec.name}(Operator):"]
    lines += [f'    """{doc}"""', ""] if doc else []
    lines += [f"    def __call__({arguments}) -> {returns}: ..."]
    if not torch:
        lines += [f"    def forward({arguments}) -> tuple[{returns}, Context]: ..."]
    return "\n".join([*lines, ""])


def _write_method(spec: Spec) -> str:
    words = list(_spell_parameters(spec, torch=False))[1:]
    arguments = ", ".join(["self: T", *words])
    return f"    def {spec.name}({arguments}) -> {_spell_returns(spec, 'T')}: ...\n"


def _spell_returns(spec: Spec, tensor: str) -> str:
    kinds = [f"list[{tensor}]" if o.get("list") else tensor for o in spec.outputs]
    return "None" if not kinds else kinds[0] if len(kinds) == 1 else f"tuple[{', '.join(kinds)}]"


def _spell_parameters(spec: Spec, torch: bool) -> Iterator[str]:
    types = {name: f"{type} | None" for name, type in OURS.items()}
    types["debug"] = "bool"
    left_out = set(OURS) - spec.attrs.keys() if torch else set()
    if torch and "device" not in spec.attrs:
        types["device"] = "torch.device | str | int | None"
        left_out.discard("device")
    types.update((name, _spell_attr(attr)) for name, attr in spec.attrs.items())
    tensor = "Tensor" if torch else "Value"
    for i in spec.inputs:
        text = f"Sequence[{tensor}]" if i.get("list") else tensor
        types[python_name(i)] = text + " | None" * i["optional"]
    keyword_only = False
    for p in spec.signature.parameters.values():
        if p.name in left_out:
            continue
        if p.kind is Parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            yield "*"
        default = "" if p.default is Parameter.empty else f" = {p.default!r}"
        yield f"{p.name}: {types[p.name]}{default}"


def _spell_attr(attr: dict[str, Any]) -> str:
    words = attr.get("words")
    text = f"Literal[{', '.join(map(repr, words))}]" if words else attr["type"]
    if attr["list"]:
        text = f"{text} | Sequence[{text}]"
    return f"{text} | None" if attr["optional"] else text


def main(arguments: Optional[list[str]] = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m opd.stubs", description="Writes the types of a daemon's operators to stdout."
    )
    parser.add_argument("--socket", help="of the daemon; else as opd.connect() finds it")
    parser.add_argument("--torch", action="store_true", help="those of opd.torch.ops")
    parser.add_argument("--shipped", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    try:
        with connect(chosen.socket) as client:
            specs = [client._catalog.specs[name] for name in client.ops]
    except OpdError as e:
        sys.exit(f"opd.stubs: {e}")
    sys.stdout.write(write(specs, torch=chosen.torch, shipped=chosen.shipped))


if __name__ == "__main__":
    main()
