"""Every error that a call can raise. All derive from OpdError."""

from __future__ import annotations

from typing import Any, Optional

from ._protocol import ERRORS


class OpdError(Exception):
    """A request that failed.

    code  the error's name on the wire ("invalid_argument"); protocol/README.md lists them
    log   the compiler's output with file and line, or None
    op    the operator it is about, or None
    """

    code = "internal"
    _misfit = False  # of a prepared call: nothing has run, and a plain one may

    def __init__(
        self,
        message: str,
        code: Optional[str] = None,
        log: Optional[str] = None,
        op: Optional[str] = None,
    ) -> None:
        super().__init__(message)
        self.code = code or type(self).code
        self.log = log
        self.op = op

    def __str__(self) -> str:
        message = str(self.args[0]) if self.args else self.code
        return f"{message}\n{self.log.rstrip()}" if self.log else message


class InvalidArgument(OpdError):
    """The request does not fit: the message says what was expected."""

    code = "invalid_argument"


class NotFound(OpdError):
    """No such operator, tensor, context or name."""

    code = "not_found"


class CompileError(OpdError):
    """The kernel does not compile; `.log` has file, line and column."""

    code = "compile_error"


class KernelFault(OpdError):
    """The kernel or its device failed while the request was in flight."""

    code = "kernel_fault"


class DeadlineExceeded(OpdError):
    """The request did not end in its time, or the daemon did not answer in the client's."""

    code = "deadline_exceeded"


class OutOfMemory(OpdError):
    """No memory of that size is free on the device."""

    code = "out_of_memory"


class ConnectionLost(OpdError, ConnectionError):
    """There is no daemon, or no longer. Connect again; named tensors outlive a connection."""

    code = "connection_lost"


class ProtocolError(OpdError):
    """Client and daemon do not understand each other."""

    code = "malformed_message"


class Unavailable(OpdError):
    """The device is absent or has failed, or the daemon is stopping."""

    code = "unavailable"


class InternalError(OpdError):
    """A defect of the daemon."""

    code = "internal"


class ReloadWarning(UserWarning):
    """An edit of a kernel is not served: it failed. What was served before it still is."""


# A row of errors.def without its class here fails at import.
_CLASSES: dict[str, type[OpdError]] = {
    code: globals()[python] for code, (_, python) in ERRORS.items()
}


def count(n: int, noun: str) -> str:
    """`1 gradient`, `2 gradients`."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def make_error(code: str, message: str, op: Optional[str] = None) -> OpdError:
    """The exception for a code."""
    return _CLASSES.get(code, OpdError)(message, code, op=op)


def from_wire(error: Any) -> OpdError:
    """The exception for the error slot of a reply; a code from a newer daemon is an OpdError."""
    if not isinstance(error, dict):
        return ProtocolError(f"the reply's error is {error!r}, expected a map")
    code = str(error.get("code", "internal"))
    made = _CLASSES.get(code, OpdError)(
        str(error.get("message", code)), code, error.get("log"), error.get("op")
    )
    made._misfit = bool(error.get("misfit"))
    return made
