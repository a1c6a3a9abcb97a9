"""A connection on which calls and replays of opd_native go by a lane: client/python/native_lane.h says which, and what of
it is here."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Optional

from . import _fds
from ._calls import WORD, CallConnection
from ._native import native
from ._reply import Again, Batch, Reply
from .errors import OpdError

_AT = 64  # of the lane, behind the word
_MOST = 100  # lanes that are opened: executors that end are not for ever
_HARMLESS = frozenset(native.HARMLESS.split() if native is not None else ())  # of calls Handle.run() knows


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


class Replays(Again):
    """Those of one graph; `armed`: how it goes into the lane, by opd_native. None: it does not."""

    __slots__ = ("_conn", "armed")

    def __init__(self, conn: LaneConnection) -> None:
        super().__init__("replay", None)
        self._conn = conn
        self.armed: Optional[bytes] = None

    def new_reply(self, number: int = 0) -> Reply:
        return Replayed(self, number)

    def arm(self, slot: int, serial: int) -> None:
        if self._conn.word is not None:
            self.armed = native.arm(self._conn.word, slot, serial)


class Replayed(Reply):
    """To `replay`: the daemon may say that the graph can go by the lane from now on."""

    __slots__ = ("_of",)

    def __init__(self, of: Replays, number: int) -> None:
        Reply.__init__(self, number, "replay")
        self._of = of

    def settle(self, result: Any, error: Optional[OpdError]) -> None:
        if result and "lane" in result:
            self._of.arm(*result["lane"])
        Reply.settle(self, result, error)


class LaneConnection(CallConnection):
    bell: Optional[_fds.File] = None  # of the lane that is open
    _n_opened = 0
    _asked_bell: Optional[_fds.File] = None  # of one that was asked for, should a signal have ended that

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
        if result and isinstance(result, dict) and "views" in result and has_views(result):
            self.untie()  # an edit has made them such
        CallConnection._settle(self, msgid, error, result)

    def _arm(self, handle: Any, args: Sequence[Any], made: Any) -> Optional[tuple[int, int, int]]:
        """What is to be entered for that call with that result: slot, serial, and the version that it runs."""
        try:
            if self.bell is None:
                self._open(made._kind.device)
            ids = [*[tensor._id for tensor in args], *[None] * len(handle.nils), made._id]
            armed = self.call("lane_call", handle.id, ids)
            if "lane" in armed:
                return (*armed["lane"], armed["version"])
            self._ask_open()
        except (OpdError, OSError):
            pass
        return None

    def offer_lane(self, device: str) -> None:
        """Opens one, if it can be and there is none any more."""
        try:
            if self.bell is not None:
                self._ask_open()
            if self.bell is None:
                self._open(device)
        except (OpdError, OSError):
            pass

    def _ask_open(self) -> None:
        """A device's process may have ended, and the lane with it."""
        is_open = self.call("lane_wait", 0)["open"]
        native.disarm(self.word, is_open)
        if not is_open:
            self.bell = None

    def _open(self, device: str) -> None:
        try:
            if self._asked_bell is None or not self.call("lane_wait", 0)["open"]:
                self._n_opened += 1
                if self._n_opened > _MOST:
                    raise OSError("too many lanes have ended")
                bell = _fds.own(os.eventfd, 0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # type: ignore[attr-defined, unused-ignore]
                self._asked_bell = bell
                self.wait(self.send("lane_open", (WORD, _AT, device), fd=bell.fileno()))
            native.open_lane(self.word, self._asked_bell, self._asked_bell.fileno())
            self.bell, self._asked_bell = self._asked_bell, None
        except (OpdError, OSError):
            self._asked_bell = None
            native.open_lane(self.word, None, -1)
            self.untie()
            raise

    def _ask_begun(self, again: Again, number: int) -> Begun:
        """Asks whether that entry was begun, and raises only what a signal's handler does."""
        data = self._encode("lane_wait", (number,))
        asked = Begun(self, self._next_msgid, self._keep_reply(again, number))
        if self.closed:
            asked.settle(None, self._lost_error(again.method))
        else:
            self._begin(asked, None, data)
        return asked

    def _hear_begun(self, asked: Begun) -> Optional[Reply]:
        """The reply to what was asked about, done; None: it was not begun."""
        self.pump(lambda: asked.done, asked.entry.method)
        if asked.error is not None:
            raise asked.entry.error or asked.error
        return self._await(asked.entry) if asked.result["begun"] else None


def find_parts(conn: LaneConnection, again: Again, head: bytes, more: tuple[Any, ...] = ()) -> tuple[Any, ...]:
    """Of a handle or a graph, for opd_native, which has their order in an enum. head: the request, with the number 0, or
    how it begins. more: what a handle has beside it."""
    conn.share_word()
    lock = conn.lock
    return (
        head, again, conn, lock.acquire, lock.release, conn.fileno, conn.replies, conn.inbox.append, conn.word, *more,
    )  # fmt: skip


def has_views(result: dict[str, Any]) -> bool:
    """Does what a reply says of a call make some outputs views of inputs?"""
    return any(of is not None for of in result.get("views", ()))
