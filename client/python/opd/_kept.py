"""Memory that is shared with the daemon, for large tensors, and used again.

An array of a size that comes again is read into a memfd of its own, which the device has mapped,
and page-locked, before: nothing is copied here, and no page is touched for the first time. The
memory is used again when nobody has the array, nor a view of it, any more. A process that forks
keeps its arrays to itself: their memory becomes private before, and is not used again.

What is written is copied there by several threads, where there are more than a few processors.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from collections import deque
from typing import Any, Optional

import numpy as np

from ._conn import Connection
from ._fds import make_memfd
from ._reply import Reply
from .errors import OutOfMemory

_MOST = 256 << 20  # bytes that a connection keeps,
_MOST_REGIONS = 16  # in as many pieces, each a descriptor of the daemon's
_STEP = 2 << 20
_FIRST_ID = 1 << 40  # others count from 1
_MAP_FIXED = 0x10


class Region:
    """Memory of one array at a time."""

    def __init__(self, id: int, size: int) -> None:
        self.id = id
        self.size = size
        self.file, self._map = make_memfd(size)
        self.ready = False  # it is open there, and all its users are noted
        self.spent = False  # it is an array's for good
        self.users: list[Reply] = []  # the last writes out of it
        self._type = ctypes.c_char * size
        self._lent: Any = lambda: None  # a reference to the buffer that arrays lie in

    @property
    def lent(self) -> bool:
        return self._lent() is not None

    @property
    def free(self) -> bool:
        return not self.lent and all(reply.done for reply in self.users)

    @property
    def address(self) -> int:
        return np.frombuffer(self._map, np.uint8).ctypes.data

    def lend(self, size: int) -> Optional[np.ndarray[Any, Any]]:
        """An array of so many bytes. None: another thread forks, and has seen already what is lent."""
        held: list[bool] = []
        try:
            held.extend(map(_lending.acquire, (False,)))  # so that a signal's exception finds it noted
            if held == [False]:
                return None
            buffer: Any = self._type.from_buffer(self._map)
            array: np.ndarray[Any, Any] = np.frombuffer(buffer, np.uint8, size)
            self._lent = weakref.ref(buffer)
            return array
        finally:
            if held == [True]:
                _lending.release()

    def make_private(self) -> None:
        """What it holds stays; what is written there from now on, no other process sees."""
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *3 * [ctypes.c_int], ctypes.c_long]
        address = self.address
        access, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | _MAP_FIXED
        if libc.mmap(address, self.size, access, flags, self.file.fileno(), 0) != address:
            raise OSError(ctypes.get_errno(), "a child shares the memory of an array")


class Kept:
    """A connection's; the connection is locked."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._regions: list[Region] = []
        self._seen: deque[int] = deque(maxlen=16)  # sizes of late
        self._next_id = _FIRST_ID
        _all.add(self)

    def take(self, size: int) -> Optional[Region]:
        """One that nobody has. None: it is not worth it, or there is no room."""
        size = -(-size // _STEP) * _STEP
        for region in list(self._regions):
            if region.spent or not region.ready:
                self._drop(region)
            elif region.size == size and region.free:
                return region
        if size not in self._seen:
            self._seen.append(size)
            return None
        return self._add(size) if self._make_room(size) else None

    def _drop(self, region: Region) -> None:
        self._conn.discard("shm", region.id)
        self._regions.remove(region)

    def before_fork(self) -> None:
        for region in list(self._regions):
            if region.lent and not region.spent:
                region.spent = True
                region.make_private()

    def after_fork(self) -> None:
        """In the child."""
        self._regions.clear()

    def _make_room(self, size: int) -> bool:
        lent = [region.size for region in self._regions if not region.free]
        if sum(lent) + size > _MOST or len(lent) >= _MOST_REGIONS:
            return False
        for region in list(self._regions):
            kept = sum(region.size for region in self._regions)
            if region.free and (kept + size > _MOST or len(self._regions) >= _MOST_REGIONS):
                self._drop(region)
        return True

    def _add(self, size: int) -> Optional[Region]:
        """None: the daemon has no room for it, or there is no descriptor or memory here."""
        self._next_id += 1
        try:
            region = Region(self._next_id, size)
        except OSError:
            return None
        self._regions.append(region)
        try:
            params = (region.id, size)
            self._conn.wait(self._conn.send("shm_open", params, fd=region.file.fileno()))
        except OutOfMemory:
            return None
        region.ready = True
        return region


_all: weakref.WeakSet[Kept] = weakref.WeakSet()
# Held while a region is lent, and all through a fork: what is lent in the middle of one would be
# shared with the child. Nobody waits for a fork: that may wait for the locks of others.
_lending = threading.RLock()


def _before_fork() -> None:
    _lending.acquire()
    for kept in list(_all):
        kept.before_fork()


def _in_child() -> None:
    for kept in list(_all):
        kept.after_fork()
    _lending.release()


os.register_at_fork(before=_before_fork, after_in_parent=_lending.release, after_in_child=_in_child)
