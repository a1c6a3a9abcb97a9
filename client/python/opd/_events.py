"""Events of the daemon as they come, over a connection of their own."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Any, Optional

from ._conn import Connection
from .errors import ConnectionLost


class EventStream(Iterator[dict[str, Any]]):
    """What Client.events(follow=True) returns: `for event in stream` waits for each.

    Ends when it is closed, here or by another thread; raises ConnectionLost if the daemon goes
    away. After an interrupt it can be read on. `with` closes it.
    """

    def __init__(self, conn: Connection, since: int) -> None:
        self._conn = conn
        reply = conn.call("events", since, {"follow": True})
        self._kept: list[dict[str, Any]] = reply["events"][::-1]
        self._closed = False
        conn.timeout = None

    def __next__(self) -> dict[str, Any]:
        if self._closed:
            raise StopIteration
        if self._kept:
            return self._kept.pop()
        try:
            (event,) = self._conn.await_notification("event")
        except ConnectionLost:
            if self._closed:
                raise StopIteration from None
            raise
        return dict(event)

    def close(self) -> None:
        """Ends the iteration, also while another thread waits in it."""
        self._closed = True
        self._conn.interrupt()

    def __enter__(self) -> EventStream:
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
        return f"<opd.EventStream of {self._conn.path}{', closed' if self._closed else ''}>"
