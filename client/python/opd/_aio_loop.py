"""What opd.aio has in place of waiting: an event loop that reads and writes a connection, requests that a task
awaits, and data on its way to and from the daemon."""

from __future__ import annotations

import asyncio
import itertools
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Callable, Optional

from ._conn import Connection
from ._data import Transfer
from ._fds import make_memfd
from ._reply import Batch, Reply

_MOST_SHARED = 32  # memfds of transfers under way; what comes beyond that goes in messages


class Driver:
    """Has the event loop write a connection, and read it: always, or within reading()."""

    def __init__(self, conn: Connection, always: bool) -> None:
        self.loop = asyncio.get_running_loop()
        self.came = asyncio.Event()  # set when something has been read, and at the end
        self._conn = conn
        self._fd = conn.fileno()
        self._n_readers = int(always)
        conn.driver = self
        if always:
            self.loop.add_reader(self._fd, self._read)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """By several tasks at a time, too."""
        self._n_readers += 1
        if not self._conn.closed:
            self.loop.add_reader(self._fd, self._read)
        try:
            yield
        finally:
            self._n_readers -= 1
            if self._n_readers == 0 and not self._conn.closed:
                self.loop.remove_reader(self._fd)

    def _read(self) -> None:
        self._conn.poll()
        self.came.set()

    def want_write(self) -> None:
        self.loop.add_writer(self._fd, self._write)

    def _write(self) -> None:
        if self._conn.write() and not self._conn.closed:
            self.loop.remove_writer(self._fd)

    def stop(self) -> None:
        if not self.loop.is_closed():
            self.loop.remove_reader(self._fd)
            self.loop.remove_writer(self._fd)
            self.came.set()


class Pending(Batch):
    """Requests that one task awaits."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.version = 0  # of the operator that has run
        self.after: list[Callable[[], None]] = []  # called once all are answered
        self._loop = loop
        self._future: Optional[asyncio.Future[None]] = None

    def settle(self, reply: Reply) -> None:
        super().settle(reply)
        if reply.method == "forward" and reply.error is None:
            self.version = reply.result["version"]
        self.finish()

    def finish(self) -> None:
        if self.pending:
            return
        while self.after:
            self.after.pop()()
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def done(self) -> None:
        while self.pending:
            self._future = self._loop.create_future()
            await self._future


class AsyncTransfer(Transfer):
    """Nobody waits for a slot: each transfer that is large has a memfd of its own."""

    def __init__(self, conn: Connection) -> None:
        super().__init__(conn)
        self._new_ids = itertools.count(1)
        self._n_shared = 0

    def write(self, id: int, data: memoryview, batch: Optional[Batch]) -> list[Reply]:
        assert isinstance(batch, Pending)
        if self._is_shared(len(data)):
            shm, shared = self._share(len(data), batch)
            shared[:] = data
            return [self._conn.send("tensor_write", (id, 0, (shm, 0, len(data))), batch=batch)]
        return [
            self._conn.send("tensor_write", (id, at, data[at : at + n].tobytes()), batch=batch)
            for at, n in self._split(len(data))
        ]

    def start_read(self, id: int, offset: int, size: int, pending: Pending) -> Callable[[], Any]:
        """Returns what gives the bytes, once all is answered."""
        if self._is_shared(size):
            shm, shared = self._share(size, pending)
            self._conn.send("tensor_read", (id, offset, size, (shm, 0)), batch=pending)
            return lambda: shared
        replies = [
            self._conn.send("tensor_read", (id, offset + at, n), batch=pending)
            for at, n in self._split(size)
        ]
        return lambda: bytearray().join(reply.result for reply in replies)

    def _is_shared(self, size: int) -> bool:
        return size > self._limit() and self._n_shared < _MOST_SHARED

    def _split(self, size: int) -> list[tuple[int, int]]:
        """Where pieces begin, and how large they are."""
        piece = self._limit()
        return [(at, min(piece, size - at)) for at in range(0, max(size, 1), piece)]

    def _share(self, size: int, pending: Pending) -> tuple[int, mmap.mmap]:
        file, shared = make_memfd(size)
        id = next(self._new_ids)
        self._n_shared += 1

        def end() -> None:
            self._n_shared -= 1
            if not self._conn.closed:
                self._conn.send("free", ("shm", [id]))

        pending.after.append(end)
        with file:
            self._conn.send("shm_open", (id, size), fd=file.fileno(), batch=pending)
        return id, shared
