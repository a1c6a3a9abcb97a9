"""A connection on which calls of opd_native go by a lane: client/python/native_lane.h says which, and what of it is here."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Optional

from . import _fds
from ._calls import CALL, WORD, CallConnection
from ._native import native
from ._reply import Batch, Reply
from .errors import OpdError

_AT = 64  # of the lane, behind the word
_MOST = 100  # lanes that are opened: executors that end are not for ever
# Requests by which nothing comes to hold a tensor's memory that there is. Of prepared calls Handle.run() knows.
_HARMLESS = {
    "free", "lane_call", "lane_open", "lane_wait", "prepare", "replay", "shm_open", "sync", "tensor_info",
    "tensor_new", "tensor_read", "tensor_write",
}  # fmt: skip


class Begun(Reply):
    """To `lane_wait`: whether what was entered under a number was begun. If not, no reply to that comes."""

    __slots__ = ("conn", "entry")

    def __init__(self, conn: LaneConnection, msgid: int, entry: Reply) -> None:
        super().__init__(msgid, "lane_wait")
        self.conn, self.entry = conn, entry

    def settle(self, result: Any, error: Optional[OpdError]) -> None:
        super().settle(result, error)
        if error is None:
            native.disarm(self.conn.word, result["open"])
            if not result["open"]:
                self.conn.bell = None
        if error is not None or not result["begun"]:
            self.conn.replies.pop(self.entry.msgid, None)


class LaneConnection(CallConnection):
    bell: Optional[_fds.File] = None  # of the lane that is open
    _n_opened = 0

    def send(
        self,
        method: str,
        params: Sequence[Any],
        *,
        fd: Optional[int] = None,
        batch: Optional[Batch] = None,
    ) -> Reply:
        with self.lock:
            if method not in _HARMLESS:
                self.untie()
            return super().send(method, params, fd=fd, batch=batch)

    def close(self, reason: str = "close() was called") -> None:
        super().close(reason)
        if self.closed and self.bell is not None:
            native.disarm(self.word, False)
            self.bell = None

    def untie(self) -> None:
        """Before a request by which something may come to hold the memory of tensors that there are."""
        if self.word is not None:
            native.untie(self.word, self.dropped)

    def _settle(self, msgid: int, error: Any, result: Any) -> None:
        if isinstance(result, dict) and has_views(result):
            self.untie()  # an edit has made them such
        super()._settle(msgid, error, result)

    def _arm(self, handle: Any, args: Sequence[Any], made: Any) -> Optional[tuple[int, int, int]]:
        """What is to be entered for that call with that result: slot, serial, and the version that it runs."""
        try:
            if self.bell is None:
                self._open(made._kind.device)
            ids = [*[tensor._id for tensor in args], *[None] * len(handle.nils), made._id]
            armed = self.call("lane_call", handle.id, ids)
            return (*armed["lane"], armed["version"])
        except (KeyError, OpdError, OSError):
            return None

    def _open(self, device: str) -> None:
        self._n_opened += 1
        try:
            if self._n_opened > _MOST:
                raise OSError("too many lanes have ended")
            bell = _fds.own(os.eventfd, 0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # type: ignore[attr-defined, unused-ignore]
            self.wait(self.send("lane_open", (WORD, _AT, device), fd=bell.fileno()))
            native.open_lane(self.word, bell, bell.fileno())
            self.bell = bell
        except (OpdError, OSError):
            native.open_lane(self.word, None, -1)
            self.untie()
            raise

    def _ask_begun(self, deadline: Optional[float], number: int) -> Begun:
        """Asks whether that entry was begun, and raises only what a signal's handler does."""
        data = self._encode("lane_wait", (number,))
        asked = Begun(self, self._next_msgid, self._keep_reply(deadline, number))
        if self.closed:
            asked.settle(None, self._lost_error(CALL))
        else:
            self._begin(asked, None, data)
        return asked

    def _hear_begun(self, asked: Begun) -> Optional[Reply]:
        """The reply to what was asked about, done; None: it was not begun."""
        self.pump(lambda: asked.done, CALL)
        if asked.error is not None:
            raise asked.entry.error or asked.error
        return self._await(asked.entry) if asked.result["begun"] else None


def has_views(result: dict[str, Any]) -> bool:
    """Does what a reply says of a call make some outputs views of inputs?"""
    return any(of is not None for of in result.get("views", ()))
