"""What the daemon tells as it happens, over a connection of its own: events, runs."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any, Optional, TypeVar

from ._conn import Connection
from .errors import ConnectionLost

Self = TypeVar("Self", bound="_Stream")


class _Stream(Iterator[dict[str, Any]]):
    _method: str

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._kept: list[dict[str, Any]] = []  # to be given first, the last one first
        self._closed = False
        conn.timeout = None

    def __next__(self) -> dict[str, Any]:
        if self._closed:
            raise StopIteration
        if self._kept:
            return self._kept.pop()
        try:
            (found,) = self._conn.await_notification(self._method)
        except ConnectionLost:
            if self._closed:
                raise StopIteration from None
            raise
        return dict(found)

    def close(self) -> None:
        """Ends the iteration, also while another thread waits in it."""
        self._closed = True
        self._conn.interrupt()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_closed"):
            self.close()

    def __repr__(self) -> str:
        return f"<opd.{type(self).__name__} of {self._conn.path}{', closed' if self._closed else ''}>"


class EventStream(_Stream):
    """What Client.events(follow=True) returns: `for event in stream` waits for each.

    Ends when it is closed, here or by another thread; raises ConnectionLost if the daemon goes
    away. After an interrupt it can be read on. `with` closes it.
    """

    _method = "event"

    def __init__(self, conn: Connection, since: int) -> None:
        reply = conn.call("events", since, {"follow": True})
        super().__init__(conn)
        self._kept = reply["events"][::-1]


class TraceStream(_Stream):
    """What Client.trace() returns: `for run in stream` waits for each run of an operator.

    Ends when it is closed, here or by another thread; raises ConnectionLost if the daemon goes
    away. `with` closes it, after which nothing is measured any more.
    """

    _method = "trace"

    def __init__(self, conn: Connection) -> None:
        conn.keep_notifications()
        conn.call("trace", {"follow": True})
        super().__init__(conn)

    def read(self) -> list[dict[str, Any]]:
        """All that have ended and were not given yet: among them those whose results are there."""
        self._conn.call("sync")
        return [dict(run) for (run,) in self._conn.take_notifications(self._method)]
