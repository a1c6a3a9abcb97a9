"""An operator as op_list describes it, and the check of a call against it."""

from __future__ import annotations

import difflib
import keyword
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from inspect import Parameter, Signature
from numbers import Real
from operator import index
from typing import Any, NamedTuple, Optional

from ._shapes import Rules, make_key


# What every call takes beside an operator's arguments, and its type.
OURS = {"deadline": "float", "version": "int", "device": "str", "debug": "bool"}


class Call(NamedTuple):
    tensors: list[Any]  # one for each tensor input, as passed, a list of them where it takes one; None: absent
    attrs: dict[str, Any]  # those that were passed
    deadline: Optional[float]
    device: Optional[str]
    version: Optional[int]  # None: the one that is served
    debug: bool


class Spec:
    def __init__(self, info: dict[str, Any]) -> None:
        self.info = info
        self.name: str = info["name"]
        self.schema: str = info["schema"]
        self.version: int = info["version"]
        self.inputs: list[dict[str, Any]] = info["inputs"]
        self.outputs: list[dict[str, Any]] = info["outputs"]
        self.deadline: Optional[float] = info.get("deadline")
        self.attrs: dict[str, dict[str, Any]] = {python_name(a): a for a in info["attrs"]}
        self.lists = any(t.get("list") for t in self.inputs)
        self.is_method = bool(self.inputs) and not self.inputs[0].get("list")  # of its first argument
        self.signature = self._make_signature()
        parameters = self.signature.parameters.values()
        by_position = Parameter.POSITIONAL_OR_KEYWORD
        self._positional = [p.name for p in parameters if p.kind is by_position]
        self._all = {p.name for p in parameters}
        self._required = {p.name for p in parameters if p.default is Parameter.empty}

    @cached_property
    def rules(self) -> Optional[Rules]:
        """None: the daemon tells none that this client understands."""
        try:
            return Rules(self.info)
        except (KeyError, ValueError):
            return None

    @cached_property
    def shapes(self) -> str:
        return make_key(self.info)

    def bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Call:
        """Raises TypeError, as a Python function does, if the arguments do not fit."""
        values = self._place(args, kwargs)
        tensors = []
        for input in self.inputs:
            value = values.get(python_name(input))
            if value is None and not input["optional"]:
                what = "a list of tensors" if input.get("list") else "a tensor"
                raise TypeError(f"{self.name}() argument '{input['name']}' must be {what}")
            tensors.append(self._check_list(input, value) if input.get("list") else value)
        attrs = {
            attr["name"]: self._check_attr(attr, values[name])
            for name, attr in self.attrs.items()
            if name in values
        }
        # An operator's own attribute of that name goes before ours.
        deadline = None if "deadline" in self.attrs else values.get("deadline")
        device = None if "device" in self.attrs else values.get("device")
        version = None if "version" in self.attrs else values.get("version")
        debug = False if "debug" in self.attrs else values.get("debug", False)
        return Call(
            tensors,
            attrs,
            check_deadline(self.name, deadline),
            device,
            check_version(self.name, version),
            check_debug(self.name, debug),
        )

    def _check_list(self, input: dict[str, Any], value: Any) -> Optional[list[Any]]:
        if value is None:
            return None
        if not isinstance(value, Iterable) or isinstance(value, (str, bytes, dict)) or hasattr(value, "dtype"):
            raise TypeError(
                f"{self.name}() argument '{input['name']}' must be a list of tensors, not {type(value).__name__}"
            )
        tensors = list(value)
        if [t for t in tensors if t is None]:
            raise TypeError(f"{self.name}() argument '{input['name']}' must be a list of tensors, one is None")
        return tensors

    def _place(self, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        """As Signature.bind(), which says what is wrong and takes twenty times as long."""
        values = {**dict(zip(self._positional, args)), **kwargs}
        if (
            len(values) != len(args) + len(kwargs)
            or not values.keys() <= self._all
            or not self._required <= values.keys()
        ):
            try:
                self.signature.bind(*args, **kwargs)
            except TypeError as e:
                near = [suggest(name, self._all) for name in kwargs if name not in self._all]
                raise TypeError(f"{self.name}() {e}{near[0] if near else ''}") from None
        return values

    def make_doc(self) -> str:
        lines = [
            self.info["doc"],
            "",
            self.schema,
            "",
            f"dtypes: {', '.join(self.info['dtypes'])}",
        ]
        for attr in self.attrs.values():
            if attr.get("words"):
                lines.append(f"{attr['name']}: one of {', '.join(attr['words'])}")
        lines.append("deadline: seconds after which the daemon gives up: DeadlineExceeded")
        lines.append("debug: True runs it alone, waiting for each kernel, to name the one that fails")
        lines.append("version: one of .versions, instead of the one that is served")
        return "\n".join(lines).strip()

    def _make_signature(self) -> Signature:
        positional = re.sub(r"\(\w+!?\)", "", re.split(r"[(,]\s*\*\s*,", self.schema)[0])
        parameters = [
            Parameter(
                python_name(input),
                Parameter.POSITIONAL_OR_KEYWORD,
                default=None if input["optional"] else Parameter.empty,
                annotation=_spell_tensor(input),
            )
            for input in self.inputs
        ]
        for name, attr in self.attrs.items():
            before_star = re.search(rf"\b{re.escape(attr['name'])}\b", positional)
            kind = Parameter.POSITIONAL_OR_KEYWORD if before_star else Parameter.KEYWORD_ONLY
            default = Parameter.empty if attr["required"] else _make_default(attr)
            parameters.append(Parameter(name, kind, default=default, annotation=_spell(attr)))
        for name, annotation in OURS.items():
            if name not in self.attrs and not (name == "device" and self.inputs):
                parameters.append(
                    Parameter(
                        name,
                        Parameter.KEYWORD_ONLY,
                        default=False if name == "debug" else None,
                        annotation=annotation if name == "debug" else f"Optional[{annotation}]",
                    )
                )
        parameters.sort(key=lambda p: p.kind)
        kinds = ["list[Tensor]" if o.get("list") else "Tensor" for o in self.outputs]
        many = f"tuple[{', '.join(kinds)}]" if "list[Tensor]" in kinds else "tuple[Tensor, ...]"
        returns = {0: "None", 1: "".join(kinds)}.get(len(kinds), many)
        return Signature(_drop_early_defaults(parameters), return_annotation=returns)

    def _check_attr(self, attr: dict[str, Any], value: Any) -> Any:
        try:
            return _convert(attr, value)
        except TypeError:
            raise TypeError(
                f"{self.name}() argument '{attr['name']}' must be {_spell(attr)}, "
                f"not {type(value).__name__} {value!r}"
            ) from None


def suggest(word: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, names, 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def check_deadline(name: str, deadline: Any) -> Optional[float]:
    if deadline is None:
        return None
    if isinstance(deadline, bool) or not isinstance(deadline, Real) or not float(deadline) > 0:
        raise TypeError(f"{name}() argument 'deadline' must be seconds above 0, not {deadline!r}")
    return float(deadline)


def check_debug(name: str, debug: Any) -> bool:
    if not isinstance(debug, bool):
        raise TypeError(f"{name}() argument 'debug' must be True or False, not {debug!r}")
    return debug


def check_version(name: str, version: Any) -> Optional[int]:
    if version is None:
        return None
    if isinstance(version, bool) or not hasattr(version, "__index__") or index(version) < 1:
        raise TypeError(f"{name}() argument 'version' must be a number above 0, not {version!r}")
    return index(version)


def python_name(described: dict[str, Any]) -> str:
    """Of an input or attribute: a word of Python has an underscore after it."""
    name: str = described["name"]
    return name + "_" if keyword.iskeyword(name) else name


def _spell_tensor(input: dict[str, Any]) -> str:
    text = "Sequence[Tensor]" if input.get("list") else "Tensor"
    return f"Optional[{text}]" if input["optional"] else text


def _spell(attr: dict[str, Any]) -> str:
    text: str = attr["type"]
    if attr["list"]:
        text = f"{text} or {attr['list']} of them"
    return text + " or None" if attr["optional"] else text


def _make_default(attr: dict[str, Any]) -> Any:
    default = attr["default"]
    return tuple(default) if isinstance(default, list) else default


def _drop_early_defaults(parameters: list[Parameter]) -> list[Parameter]:
    """Python allows no positional parameter without a default after one with."""
    needed = False
    out = []
    for parameter in reversed(parameters):
        if parameter.kind is Parameter.POSITIONAL_OR_KEYWORD:
            needed = needed or parameter.default is Parameter.empty
            if needed:
                parameter = parameter.replace(default=Parameter.empty)
        out.append(parameter)
    return out[::-1]


def _convert(attr: dict[str, Any], value: Any) -> Any:
    """The value for the wire; TypeError if it is not of the attribute's type."""
    if value is None:
        if attr["optional"]:
            return None
        raise TypeError
    convert = _CONVERT[attr["type"]]
    if attr["list"] and not isinstance(value, str) and hasattr(value, "__len__"):
        if len(value) != attr["list"]:
            raise TypeError
        return [convert(v) for v in value]
    return convert(value)


def _to_float(value: Any) -> float:
    if not isinstance(value, Real):
        raise TypeError
    return float(value)


def _to_bool(value: Any) -> bool:
    if type(value).__name__ not in ("bool", "bool_"):
        raise TypeError
    return bool(value)


def _to_str(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return str.__str__(value)  # of a class of its own, too: NumPy's, an enum's


_CONVERT = {"int": index, "float": _to_float, "bool": _to_bool, "str": _to_str}
