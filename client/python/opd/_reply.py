"""Requests that were sent, and what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional, Protocol

from ._fds import File
from .errors import OpdError

_WARN = ("forward", "replay", "plan_export")  # their results may have warnings


class Batch:
    """Counts replies that nobody waits for, and keeps the first error."""

    def __init__(self) -> None:
        self.pending = 0
        self.warnings: list[str] = []
        self._first: Optional[Reply] = None

    def settle(self, reply: Reply) -> None:
        self.pending -= 1
        if reply.warnings:
            self.warnings.extend(reply.warnings)
        # Replies may overtake each other; the request that was sent first is the cause of
        # the others' errors.
        if reply.error and (self._first is None or reply.msgid < self._first.msgid):
            self._first = reply

    def raise_first(self) -> None:
        """Raises the first error once."""
        first, self._first = self._first, None
        if first is not None and first.error is not None:
            raise first.error


class Reply:
    """A request that was sent: `done` once it was answered, then with a result or an error."""

    __slots__ = ("batch", "deadline", "done", "error", "method", "msgid", "result", "warnings")

    def __init__(self, msgid: int, method: str) -> None:
        self.msgid = msgid
        self.method = method
        self.deadline: Optional[float] = None  # seconds the daemon may take, where the request says
        self.done = False
        self.result: Any = None
        self.error: Optional[OpdError] = None
        self.warnings: Sequence[str] = ()  # what the daemon has to say beside the result
        self.batch: Optional[Batch] = None  # that counts it as pending

    def settle(self, result: Any, error: Optional[OpdError]) -> None:
        self.done, self.result, self.error = True, result, error
        if result and self.method in _WARN and isinstance(result, dict):
            self.warnings = result.get("warnings", ())
        if self.batch:
            self.batch.settle(self)
            self.batch = None

    def take_file(self) -> Optional[File]:
        """The descriptor that came with the result, the caller's from now on."""
        return None


class Again:
    """What requests that come again and again have in common: what messages call them, and the seconds that the daemon
    may take."""

    __slots__ = ("deadline", "method")

    def __init__(self, method: str, deadline: Optional[float]) -> None:
        self.method, self.deadline = method, deadline

    def new_reply(self, number: int = 0) -> Reply:
        reply = Reply(number, self.method)
        reply.deadline = self.deadline
        return reply


class FdReply(Reply):
    """One that may bring a descriptor."""

    __slots__ = ("_file",)

    _file: Optional[File]

    def take_file(self) -> Optional[File]:
        file: Optional[File] = getattr(self, "_file", None)
        self._file = None
        return file

    def keep_file(self, file: File) -> None:
        self._file = file


class Driver(Protocol):
    """Of a connection on which nobody waits: it calls poll() and write() when the socket has, or takes, something."""

    def want_write(self) -> None:
        """The socket takes no more now."""

    def stop(self) -> None:
        """The socket is about to be closed."""
