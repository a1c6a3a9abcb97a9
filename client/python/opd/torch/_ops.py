"""`opd.torch.ops`: every operator of the daemon as a function on torch's tensors."""

from __future__ import annotations

import threading
from inspect import Signature
from types import FunctionType
from typing import Any, Optional

import torch

from .._spec import Spec
from ..errors import NotFound
from ._register import Operator
from ._session import InterfaceChanged, get_key, get_session

_OURS = ("deadline", "version", "device")  # parameters of client.ops that are not the operator's

# For each name the operator as it is now: what compiled code checks, and follows.
_operators: dict[str, Operator] = {}
_registered: dict[tuple[str, Any], Operator] = {}  # by name and key; torch forgets none
_functions: dict[str, Any] = {}
_lock = threading.RLock()


class Ops:
    """Every operator of the daemon is an attribute: `opd.torch.ops.gelu(x, approximate="tanh")`.

    Each is a function with the operator's signature and docstring; `.schema` is the operator in
    PyTorch's words, `.overload` its registration, for torch.library.opcheck and the like. It is
    registered when it is first looked up. An edit that keeps the schema is followed without a
    word; after one that changes it, the next call registers the operator anew.

    Raises the errors of opd.errors, and what torch raises for arguments that do not fit the
    schema.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _find_function(name)

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __dir__(self) -> list[str]:
        return get_session().names()

    def __repr__(self) -> str:
        return "<opd.torch.ops>"


ops = Ops()


def refresh(name: Optional[str] = None) -> None:
    """Takes up what changed in an operator's interface now, or in all that were used. Calls do so
    by themselves, except compiled ones, whose error says so."""
    for each in list(_operators) if name is None else [name]:
        get_session().refresh(each)
        _register(get_session().find(each))


def _find_function(name: str) -> Any:
    if not _look_up(name):
        raise AttributeError(
            f"the daemon has no operator {name!r}; it has {', '.join(get_session().names())}"
        )
    return _functions[name]


# torch.compile does not look into this, so that an operator may first be used in compiled code.
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _look_up(name: str) -> bool:
    if name not in _functions:
        try:
            _register(get_session().find(name))
        except NotFound:
            return False
    return True


def _register(spec: Spec) -> Operator:
    """The registration that fits `spec`; made if there is none."""
    with _lock:
        key = (spec.name, get_key(spec))
        operator = _registered.get(key)
        if operator is None:
            serial = 1 + sum(name == spec.name for name, _ in _registered)
            operator = _registered[key] = Operator(spec, serial)
        _operators[spec.name] = operator
        if spec.name not in _functions:
            _functions[spec.name] = _make_function(spec)
        _describe(_functions[spec.name], spec, operator)
        return operator


def _make_function(spec: Spec) -> FunctionType:
    name = spec.name
    # A parameter whose name is a word of Python has an underscore after it.
    renamed = {p: a["name"] for p, a in spec.attrs.items() if p != a["name"]}

    def operator(*args: Any, **kwargs: Any) -> Any:
        for python_name in renamed:
            if python_name in kwargs:
                kwargs[renamed[python_name]] = kwargs.pop(python_name)
        if torch.compiler.is_compiling():
            return _operators[name].overload(*args, **kwargs)
        try:
            return _operators[name].overload(*args, **kwargs)
        except InterfaceChanged:
            refresh(name)
        return _operators[name].overload(*args, **kwargs)

    operator.__name__ = operator.__qualname__ = name
    operator.__module__ = "opd.torch.ops"
    assert isinstance(operator, FunctionType)
    return operator


def _describe(function: Any, spec: Spec, operator: Operator) -> None:
    lines = spec.make_doc().split("\n")
    ours = [f"{name}: " for name in _OURS if name not in spec.attrs]
    function.__doc__ = "\n".join(
        line for line in lines if not any(line.startswith(name) for name in ours)
    )
    parameters = [
        p for p in spec.signature.parameters.values() if p.name in spec.attrs or p.name not in _OURS
    ]
    function.__signature__ = Signature(
        parameters, return_annotation=spec.signature.return_annotation
    )
    function.schema = spec.schema
    function.overload = operator.overload
