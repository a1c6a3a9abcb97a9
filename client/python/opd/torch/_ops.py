"""`opd.torch.ops`: every operator of the daemon as a function on torch's tensors."""

from __future__ import annotations

import os
import re
import reprlib
import threading
import time
from collections.abc import Iterator
from functools import partial
from inspect import Signature
from types import FunctionType
from typing import TYPE_CHECKING, Any, Callable, Optional, TypeVar, Union

import torch

from .._spec import OURS, Spec
from ..client import Client
from ..errors import NotFound
from ..tensor import Tensor
from . import _channels_last, _derivatives
from ._daemon import on_refresh
from ._direct import MISS
from ._interface import InterfaceChanged, get_key
from ._lists import ListOperator
from ._register import Operator
from ._schema import takes_device
from ._session import get_session, set_session
from ._shapes import has_symbols

if TYPE_CHECKING:
    from ._shipped import Ops as Shipped
else:
    Shipped = object  # as of client.ops

_F = TypeVar("_F", bound=Callable[..., Any])
_sym_float: Any = torch.sym_float  # it has no types
_operators: dict[str, Operator] = {}  # for each name the registration that is in use
_registered: dict[tuple[str, Any], Operator] = {}  # by name and key; torch forgets none
_functions: dict[str, Any] = {}
_found: set[str] = set()  # those that were looked up, other than by code that is compiled
_lock = threading.RLock()


class Ops(Shipped):
    """Every operator of the daemon is an attribute: `opd.torch.ops.gelu(x, approximate="tanh")`.

    Each is a function with the operator's signature and docstring; `.schema` is the operator in
    PyTorch's words, `.overload` its registration, for torch.library.opcheck and the like. It is
    registered when it is first looked up. An edit that keeps the schema is followed without a
    word; after one that changes it, the next call registers the operator anew.

    Raises the errors of opd.errors, and RuntimeError, as torch does, for arguments that do not fit
    the schema.
    """

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return _find_function(name)

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __dir__(self) -> list[str]:
        return get_session().names()

    def __iter__(self) -> Iterator[str]:
        return iter(dir(self))

    def __len__(self) -> int:
        return len(dir(self))

    def __contains__(self, name: object) -> bool:
        return name in dir(self)

    def __repr__(self) -> str:
        return "<opd.torch.ops>"


ops = Ops()


def use(client: Union[Client, str, None] = None) -> None:
    """Chooses the daemon: of a client, or at a socket's path; None: the default one's.

    The connection is this module's own, opened when an operator is first used.
    """
    with _lock:
        _operators.clear()
        vars(ops).clear()
        set_session(client.socket if isinstance(client, Client) else client)


def refresh(name: Optional[str] = None) -> None:
    """Takes up what changed in an operator's interface now, or in all that were used. Calls do so
    by themselves, except compiled ones, whose error says so."""
    for each in list(_operators) if name is None else [name]:
        get_session().refresh(each)
        _register(get_session().find(each))


def _find_function(name: str) -> Any:
    if not _look_up(name):
        raise AttributeError(_tell_missing(name))
    if torch.compiler.is_compiling():
        return partial(_call_compiled, name)
    _found.add(name)
    _note_found(name)
    return _functions[name]


def _note_found(name: str) -> None:
    """So it is sooner found than by __getattr__(). What code that is being compiled has found first is
    not: torch may begin anew with that, and compares what it meets."""
    if name in _found:
        vars(ops)[name] = _functions[name]


def _assume_constant(function: _F) -> _F:
    """torch.compiler.assume_constant_result(), which imports the whole compiler for that."""
    vars(function)["_dynamo_marked_constant"] = True
    return function


# torch.compile does not look into this, so that an operator may first be used in compiled code;
# nor does it look again when an edit has made another registration: the old one tells.
@_assume_constant
def _look_up(name: str) -> str:
    """The name in torch.ops.opd of an operator as it is now; empty: there is none."""
    operator = _operators.get(name)
    if operator is None or operator.outdated:
        spec = get_session().find_if_any(name)
        if spec is None:
            return ""
        operator = _register(spec)
    return operator.public


@_assume_constant
def _look_up_now(name: str) -> str:
    """As _look_up(), of what the daemon has now: what is compiled stays as it is."""
    get_session().refresh(name)
    public: str = _look_up(name)
    return public


@_assume_constant
def _tell_missing(name: str) -> str:
    return get_session().tell_missing(name)


def _call_compiled(name: str, *args: Any, **kwargs: Any) -> Any:
    public = _look_up_now(name)
    if not public:
        raise NotFound(_tell_missing(name), op=name)
    args, kwargs = _fit(_find_lists(name), args, kwargs)
    if kwargs.get("device") is None and _takes_device(name):
        kwargs["device"] = torch.empty(0).device  # a compiler knows this one's, and no other way
    packet = getattr(torch.ops.opd, public)
    if torch.compiler.is_dynamo_compiling() or has_symbols((*args, *kwargs.values())):
        return getattr(packet, _find_overload(name))(*args, **kwargs)
    return packet.default(*args, **kwargs)


@_assume_constant
def _find_lists(name: str) -> str:
    """The operator's attributes int[N] and float[N], as "1:size:int:2 2:scale:float:2"."""
    return _operators[name].lists if _look_up(name) else ""


@_assume_constant
def _find_overload(name: str) -> str:
    return _operators[name].open_overload if _look_up(name) else "default"


@_assume_constant
def _takes_device(name: str) -> bool:
    return bool(_look_up(name)) and _operators[name].takes_device


def _fit(
    lists: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments as torch takes them: one number stands for all of a list."""
    given, named = list(args), dict(kwargs)
    for each in lists.split():
        at, name, kind, n = each.split(":")
        place: Any = given if int(at) < len(given) else named
        key: Any = int(at) if int(at) < len(given) else name
        value = given[key] if place is given else named.get(name)
        if kind == "int" and isinstance(value, (int, torch.SymInt)):
            place[key] = [value] * int(n)
        elif kind == "float" and isinstance(value, (int, float, torch.SymInt, torch.SymFloat)):
            place[key] = [_sym_float(value)] * int(n)
    return tuple(given), named


def _register(spec: Spec) -> Operator:
    """The registration that fits `spec`; made if there is none."""
    with _lock:
        key = (spec.name, get_key(spec))
        operator = _registered.get(key)
        if operator is None:
            operator = _registered[key] = (ListOperator if spec.lists else Operator)(spec)
        elif operator.last is not None:  # which was edited to another and back
            operator.last.follow(spec)
        if spec.name not in _functions:
            _functions[spec.name] = _make_function(spec.name)
        _describe(_functions[spec.name], spec, operator)
        # Last: what is found there is not looked at again, and an interrupt may come anywhere.
        operator.outdated = False
        _operators[spec.name] = operator
        _note_found(spec.name)
        return operator


def _make_function(name: str) -> FunctionType:
    is_dynamo_compiling = torch.compiler.is_dynamo_compiling

    def operator(*args: Any, **kwargs: Any) -> Any:
        if is_dynamo_compiling():
            return _call_compiled(name, *args, **kwargs)
        known = _operators.get(name)
        last = None if known is None else known.last
        if last is not None and not torch.compiler.is_compiling():
            twin = last.find(args, kwargs)
            if twin is not None:
                return last.call(_functions[twin.name], args, kwargs)
        kernels = None if known is None else known.kernels
        if kernels is not None:
            try:
                try:
                    made = kernels.quick(*args, **kwargs)
                    if made is not MISS:
                        return made
                except RuntimeError as e:
                    kernels.explain(e)
                made = kernels.call(args, kwargs)
                if made is not MISS:
                    return made
            except InterfaceChanged:
                pass
        if torch.compiler.is_compiling():
            return _call_compiled(name, *args, **kwargs)
        if not _look_up(name):
            raise NotFound(f"the daemon has no operator {name!r} any more", op=name)
        for attempt in range(2):
            used = _operators[name]
            try:
                return _call(used, args, kwargs)
            except InterfaceChanged:
                if attempt == 1:
                    raise
                refresh(name)
            except RuntimeError as e:
                # Arguments that do not fit the schema: torch tells before the daemon hears of them.
                if f"opd::{used.public}(" not in str(e):
                    raise
                refresh(name)
                if attempt == 1 or _operators[name] is used:
                    raise _make_misfit(name, args, kwargs, e) from None

    # So it is pickled by name.
    operator.__name__, operator.__qualname__ = name, f"ops.{name}"
    operator.__module__ = "opd.torch"
    assert isinstance(operator, FunctionType)
    return operator


def _call(operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if operator.lists:
        args, kwargs = _fit(operator.lists, args, kwargs)
    if operator.takes_device and kwargs.get("device") is None:
        # Asked here, as torch's dispatcher puts the default of a `with torch.device()` aside.
        device = torch.get_default_device()
        kwargs = kwargs if device.type == "cpu" else {**kwargs, "device": device}
    return operator.overload(*args, **kwargs)


def _make_misfit(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], error: RuntimeError
) -> Exception:
    """Says more than torch does of arguments that do not fit the schema."""
    if any(isinstance(value, Tensor) for value in (*args, *kwargs.values())):
        return TypeError(
            f"{name}: opd.torch.ops takes tensors of torch, not an opd.Tensor; use client.ops."
            f"{name}, or torch.from_dlpack() of it"
        )
    spec = get_session().find(name)
    theirs = [*spec.attrs, "device"] if takes_device(spec) else spec.attrs
    ours = [key for key in kwargs if key in OURS and key not in theirs]
    if ours:
        return TypeError(
            f"{name}() has no argument '{ours[0]}' in opd.torch.ops; call it in a block of `with "
            "opd.torch.options(deadline=..., version=..., debug=...)`; tensors are computed where "
            "they are"
        )
    what = _find_misfit(spec, args, kwargs) or re.sub(r"^opd::\w+\(\) ", "", str(error))
    changed = sum(other == name for other, _ in _registered) > 1
    how = "an edit changed it, it is now" if changed else "it is"
    return RuntimeError(f"{name}() {what}; {how} {spec.schema}")


def _find_misfit(spec: Spec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    try:
        tensors = spec.bind(args, kwargs).tensors
    except TypeError as e:
        return str(e).partition("() ")[2]
    for info, value in zip(spec.inputs, tensors):
        for each in value or () if info.get("list") else (value,):
            if each is not None and not isinstance(each, torch.Tensor):
                what = "a list of tensors" if info.get("list") else "a tensor"
                return f"argument '{info['name']}' must be {what}, not {type(each).__name__} {reprlib.repr(each)}"
    return ""


def _describe(function: Any, spec: Spec, operator: Operator) -> None:
    lines = spec.make_doc().split("\n")
    theirs = [*spec.attrs, "device"] if operator.takes_device else spec.attrs
    ours = [f"{name}: " for name in OURS if name not in theirs]
    function.__doc__ = "\n".join(
        line for line in lines if not any(line.startswith(name) for name in ours)
    )
    parameters = [
        p for p in spec.signature.parameters.values() if p.name in theirs or p.name not in OURS
    ]
    function.__signature__ = Signature(
        parameters, return_annotation=spec.signature.return_annotation
    )
    function.schema = spec.schema
    function.overload = operator.overload


def _follow(specs: dict[str, Spec]) -> None:
    """Brings functions up to date, which users may hold."""
    for name, operator in list(_operators.items()):
        spec = specs.get(name)
        if spec and get_key(spec) == operator.key:
            _describe(_functions[name], spec, operator)
            if operator.last is not None:
                operator.last.follow(spec)
        else:
            operator.outdated = True
            vars(ops).pop(name, None)
            del _operators[name]  # what is loaded of it may be served still, to others


on_refresh.append(_follow)


def _find_operator(name: str) -> Operator:
    if not _look_up(name):
        raise NotFound(_tell_missing(name), op=name)
    return _operators[name]


_derivatives.find_operator = _find_operator


_absent: dict[str, float] = {}  # names of which it is known until then that there is no operator


def _find_if_any(name: str) -> Optional[Operator]:
    known = _operators.get(name)
    if known is None or known.outdated:
        if time.monotonic() < _absent.get(name, 0):
            return None
        known = _operators.get(name) if _look_up(name) else None
        if known is None:
            _absent[name] = time.monotonic() + 1
    return known


_channels_last.find_operator = _find_if_any


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork)
