"""A tensor's bytes over a connection: small ones in the message, large ones through a memfd.

The memfd belongs to the connection and is reused: a few slots, so that the daemon copies
one piece while we fill the next. A piece that is larger than a slot can be is sent as
several.
"""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING, Any, Optional

from . import _fds
from ._conn import Connection
from ._native import native
from ._reply import Batch, Reply

if TYPE_CHECKING:
    import numpy as np

    from ._kept import Kept, Region

_IN_MESSAGE = 64 << 10  # bytes up to which data goes in the message
_SLOTS = 4
_THREADS = min(8, len(os.sched_getaffinity(0)) // 2)  # of a large copy
_LEAST_SPREAD = 8 << 20
_LEAST_KEPT = 1 << 20  # what a processor's cache holds costs little to copy
_MIN_SLOT, _MAX_SLOT = 256 << 10, 4 << 20  # larger ones have left the cache when we copy


class Transfer:
    """Moves bytes for one connection; its lock is held by the caller's Client."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._spreads = native is not None and _THREADS > 1  # a device reads faster than one copies
        self._ids = 0
        self._map: Optional[mmap.mmap] = None
        self._slot_size = 0  # also while a slot may have a user that is not noted: an exception leaves it so
        self._users: list[Optional[Reply]] = [None] * _SLOTS
        self._next = 0
        self._kept: Optional[Kept] = None

    def write(self, id: int, data: memoryview, batch: Optional[Batch]) -> list[Reply]:
        """Sends all of `data`, which may be changed afterwards; the replies are not awaited."""
        region = self._take(len(data)) if self._spreads and len(data) >= _LEAST_SPREAD else None
        if region is not None:
            return self._write_kept(region, id, data, batch)
        if len(data) <= self._limit():
            return [self._conn.send("tensor_write", (id, 0, data.tobytes()), batch=batch)]
        self._reserve(len(data))
        slot_size, self._slot_size = self._slot_size, 0
        replies = []
        for offset in range(0, len(data), slot_size):
            piece = data[offset : offset + slot_size]
            slot, start = self._take_slot(slot_size)
            assert self._map is not None
            self._map[start : start + len(piece)] = piece
            params = (id, offset, (self._ids, start, len(piece)))
            reply = self._conn.send("tensor_write", params, batch=batch)
            self._users[slot] = reply
            replies.append(reply)
        self._slot_size = slot_size
        return replies

    def read(self, id: int, offset: int, out: memoryview) -> None:
        """Waits for as many bytes of a tensor as fill `out`."""
        size = len(out)
        if size <= self._limit():
            out[:] = self._conn.call("tensor_read", id, offset, size)
            return
        self._reserve(size)
        slot_size, self._slot_size = self._slot_size, 0
        queue: list[tuple[Reply, int, int, int]] = []  # (reply, slot's start, at, size)
        for at in range(0, size, slot_size):
            if len(queue) == _SLOTS:
                self._copy_out(out, *queue.pop(0))
            n = min(slot_size, size - at)
            slot, start = self._take_slot(slot_size)
            reply = self._conn.send("tensor_read", (id, offset + at, n, (self._ids, start)))
            self._users[slot] = reply
            queue.append((reply, start, at, n))
        for entry in queue:
            self._copy_out(out, *entry)
        self._slot_size = slot_size

    def read_array(self, id: int, offset: int, size: int) -> np.ndarray[Any, Any]:
        """So many bytes of a tensor, awaited."""
        import numpy as np

        data = self._read_kept(id, offset, size) if size >= _LEAST_KEPT else None
        if data is None:
            data = np.empty(size, np.uint8)  # nothing is written twice
            self.read(id, offset, data.data)
        return data

    def _read_kept(self, id: int, offset: int, size: int) -> Optional[np.ndarray[Any, Any]]:
        region = self._take(size)
        data = None if region is None else region.lend(size)
        if region is None or data is None:
            return None
        replies = []
        region.ready = False  # should an exception come, the daemon may still write there
        for at in range(0, size, _MAX_SLOT):
            params = (id, offset + at, min(_MAX_SLOT, size - at), (region.id, at))
            replies.append(self._conn.send("tensor_read", params))
        for reply in replies:
            self._conn.wait(reply)
        region.ready = True
        return data

    def _write_kept(
        self, region: Region, id: int, data: memoryview, batch: Optional[Batch]
    ) -> list[Reply]:
        import numpy as np

        region.users = users = []
        region.ready = False  # should an exception come, not all users are noted

        def send(at: int) -> None:
            params = (id, at, (region.id, at, min(_MAX_SLOT, len(data) - at)))
            users.append(self._conn.send("tensor_write", params, batch=batch))

        source = np.frombuffer(data, np.uint8)
        native.copy(region.address, source.ctypes.data, len(data), _MAX_SLOT, _THREADS, send)
        region.ready = True
        return users

    def _take(self, size: int) -> Optional[Region]:
        from ._kept import Kept

        self._kept = self._kept or Kept(self._conn)
        return self._kept.take(size)

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
            self._map = None

    def _limit(self) -> int:
        return min(_IN_MESSAGE, self._conn.max_message // 2)

    def _copy_out(self, out: memoryview, reply: Reply, start: int, at: int, n: int) -> None:
        self._conn.wait(reply)
        assert self._map is not None
        with memoryview(self._map) as view:
            out[at : at + n] = view[start : start + n]

    def _take_slot(self, size: int) -> tuple[int, int]:
        """A slot that no request uses any more, and where it starts."""
        slot = self._next
        self._next = (slot + 1) % _SLOTS
        self._settle(slot)
        return slot, slot * size

    def _settle(self, slot: int) -> None:
        user, self._users[slot] = self._users[slot], None
        if user is not None:
            # Its error, if any, is for whoever sent it.
            self._conn.pump(lambda: user.done, user.method)

    def _reserve(self, size: int) -> None:
        """Makes slots that hold `size`, or are as large as slots get."""
        wanted = min(max(_MIN_SLOT, 1 << (size - 1).bit_length()), _MAX_SLOT)
        if wanted <= self._slot_size:
            return
        self._slot_size = 0
        for slot in range(_SLOTS):
            self._settle(slot)
        if self._map is not None:  # it may not be open there, or not any more
            self._conn.discard("shm", self._ids)
            self.close()
        self._ids += 1
        file, self._map = _fds.make_memfd(wanted * _SLOTS)
        with file:
            params = (self._ids, wanted * _SLOTS)
            self._conn.wait(self._conn.send("shm_open", params, fd=file.fileno()))
        self._slot_size = wanted
