"""Requests that come again, which the daemon checks once (`prepare`), so that each one is a short message
(`call`): as ../_prepared.py has it for client.ops, for tensors of torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional

from .._calls import CallConnection
from .._reply import Batch, Reply
from .._wire import pack


class Prepared:
    """A request of one kind over one connection. The first is a plain one; with the second goes a `prepare`,
    for which nobody waits; those after its reply are calls."""

    _reply: Optional[Reply] = None  # to the `prepare`
    _head = b""  # of a call, up to the ids
    _is_known = False

    def __init__(self, conn: CallConnection, id: int) -> None:
        self.conn, self._id = conn, id

    def __del__(self) -> None:
        if self._reply is not None:
            self.conn.discard("prepared", self._id)

    def call(
        self,
        ids: Callable[[], Sequence[Optional[int]]],
        params: Callable[[], tuple[Any, ...]],
        batch: Batch,
        deadline: Optional[float],
    ) -> Optional[Reply]:
        """Sends one; None: a plain one is to be sent. params: of `prepare`, behind the number."""
        if not self._head:
            if self._is_known and self._reply is None:
                self._reply = self.conn.send("prepare", (self._id, *params()))
            self._is_known = True
            if self._reply is None or not self._reply.done or self._reply.error is not None:
                return None
            # The number of the request is 0 here.
            self._head = b"\x94\x00\x00" + pack("call") + b"\x92" + pack(self._id)
        return self.conn.send_call(self._head + pack(ids()), batch, deadline)
