"""What every part of a client stands on: its connection, its ids, its batches, its shared memory.

Client, Tensor, Ops and opd.torch import this; it knows none of them.
"""

from __future__ import annotations

import itertools
import math
import os
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import get_ident
from typing import TYPE_CHECKING, Any, Callable, Optional

from . import _start
from ._reply import Batch, Reply
from ._data import Transfer
from ._export import Exports
from ._lanes import LaneConnection
from ._protocol import DTYPES, PROTOCOL
from ._told import HEARS
from ._warn import warn_reload
from .errors import ConnectionLost, ProtocolError

if TYPE_CHECKING:
    import numpy as np

_ENDING = 1.0  # seconds that the socket of a daemon that was killed may outlive it
_COMPILING = 600.0  # seconds of silence, beyond the timeout, while the daemon may compile
_IDS = 64  # made at a time
_LEAST = [[bytes([i]) for i in range(end - 1, end - 1 - _IDS, -1)] for end in (64, 128, 192, 256)]
_WIRES = struct.Struct(_IDS * "9s")
_MANY_KINDS = 4096
_SMALL = 64 << 10  # bytes


class Kind:
    """What tensors have in common; one object for all of a link, so that it is told by identity."""

    __slots__ = ("device", "drop", "dtype", "shape", "strides")

    def __init__(
        self,
        dtype: str,
        shape: tuple[int, ...],
        device: str,
        strides: Optional[tuple[int, ...]],
        drop: Callable[[bytes], None],
    ) -> None:
        self.dtype, self.shape, self.device = dtype, shape, device
        self.strides = strides  # in elements; None: contiguous
        self.drop = drop  # gives up one of that kind

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * DTYPES[self.dtype]

    @property
    def span(self) -> int:
        """Bytes, from the first element to the end of the last one in memory."""
        if self.strides is None:
            return self.nbytes
        return (1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides))) * DTYPES[self.dtype]

    def describe(self) -> tuple[Any, ...]:
        """As requests have it."""
        return (self.dtype, self.shape) if self.strides is None else (self.dtype, self.shape, self.strides)


class Link:
    """Made by connect_link(). Several threads may use one."""

    def __init__(self, conn: LaneConnection, info: dict[str, Any], named: bool) -> None:
        conn.max_message = info["limits"]["max_message"]
        self.conn = conn
        self.info = info  # what the daemon said to hello
        self.exports = Exports(conn)
        # Operators as a tensor's methods; whoever has operators puts these in.
        self.find_method: Callable[[str], Optional[Callable[..., Any]]] = lambda name: None
        self.list_methods: Callable[[], list[str]] = list
        self._named = named
        self.transfer = Transfer(conn)
        self._ids = itertools.count(1)
        # Ids of tensors, to be used from the end; 0 is none.
        self.wires = [b"\xcf" + id.to_bytes(8, "big") for id in range(_IDS - 1, 0, -1)]
        self._blocks = itertools.count(1)  # what comes behind them: block 1 begins with _IDS
        self._kinds: dict[tuple[Any, ...], Kind] = {}
        self.batches: dict[int, Batch] = {}  # of the threads that are in one

    def open_another(self) -> LaneConnection:
        """To the same daemon, which is not started."""
        return _open(self.conn.path, self._named, False, self.conn.timeout)[0]

    def close(self) -> None:
        self.conn.close()
        self.transfer.close()

    def new_id(self) -> int:
        """Of a context or a prepared call."""
        return next(self._ids)

    def new_wire(self) -> bytes:
        """The id of a new tensor, as MessagePack: nine bytes."""
        while True:
            try:
                return self.wires.pop()
            except IndexError:
                self.make_wires()

    def make_wires(self) -> None:
        """Some ids for new tensors."""
        block = next(self._blocks)
        most = b"\xcf" + (block >> 2).to_bytes(7, "big")
        self.wires[:0] = _WIRES.unpack(most + most.join(_LEAST[block & 3]))
        if block & 1:
            self.conn.collect()  # about as many as are made are given up

    def find_kind(
        self, dtype: str, shape: Sequence[int], device: str, strides: Optional[Sequence[int]] = None
    ) -> Kind:
        key = (dtype, tuple(shape), device, None if strides is None else tuple(strides))
        kind = self._kinds.get(key)
        if kind is None:
            if len(self._kinds) >= _MANY_KINDS:
                self._kinds.clear()
            kind = self._kinds[key] = Kind(*key, self.conn.drop)
            if kind.nbytes <= _SMALL:
                kind.drop = self.conn.drop_small
        return kind

    @property
    def batch(self) -> Optional[Batch]:
        """In which this thread is."""
        return self.batches.get(get_ident()) if self.batches else None

    @contextmanager
    def begin_batch(self) -> Iterator[None]:
        """Client.batch()."""
        if self.batch is not None:
            yield
            return
        batch, thread = Batch(), get_ident()
        self.batches[thread] = batch
        try:
            yield
        finally:
            del self.batches[thread]  # nothing is called before it: no signal's exception comes first
            self.conn.pump(lambda: batch.pending == 0, "batch")
        self.finish(batch)

    def finish(self, batch: Batch) -> None:
        """Raises the first error, and tells the warnings."""
        texts, batch.warnings = batch.warnings, []
        try:
            batch.raise_first()
        finally:
            for text in texts:
                warn_reload(text)

    def send(
        self, method: str, params: Sequence[Any], deadline: Optional[float] = None
    ) -> Reply:
        """A request of this thread's batch, if it is in one."""
        reply = self.conn.send(method, params, batch=self.batch)
        reply.deadline = deadline or 0.0
        return reply

    def settle(self, reply: Reply) -> Any:
        """The result; None within a batch, where nobody waits."""
        if self.batch is not None:
            return None
        result = self.conn.wait(reply)
        for text in reply.warnings:
            warn_reload(text)
        return result

    def request(self, method: str, params: Sequence[Any]) -> None:
        self.settle(self.send(method, params))

    def call(self, method: str, *params: Any) -> Any:
        """The result, also in a batch."""
        return self.conn.call(method, *params)

    def ask(self, method: str, *params: Any) -> Any:
        """As call(), where the daemon may have to compile before it answers."""
        reply = self.conn.send(method, params)
        reply.deadline = _COMPILING
        return self.conn.wait(reply)

    def write(self, id: int, data: memoryview) -> None:
        """All elements of a tensor."""
        with self.conn.lock:
            replies = self.transfer.write(id, data, self.batch)
        if self.batch is None:
            for reply in replies:
                self.conn.wait(reply)

    def read_array(self, id: int, offset: int, size: int) -> np.ndarray[Any, Any]:
        """So many bytes of a tensor from `offset` on."""
        with self.conn.lock:
            return self.transfer.read_array(id, offset, size)

    def read(self, id: int, offset: int, out: memoryview) -> None:
        """Fills `out` with a tensor's bytes from `offset` on."""
        with self.conn.lock:
            self.transfer.read(id, offset, out)


def connect_link(socket: Optional[str], start: bool, timeout: Optional[float]) -> Link:
    """As opd.connect() says."""
    named = bool(socket or os.environ.get("OPD_SOCKET"))
    path = os.path.abspath(socket or _start.default_socket())
    return Link(*_open(path, named, start, timeout), named)


def _open(
    path: str, named: bool, start: bool, timeout: Optional[float]
) -> tuple[LaneConnection, dict[str, Any]]:
    """A connection, and what the daemon says to hello.

    One that was killed takes connections until its socket goes with it, after its memory: those end unanswered.
    """
    end = time.monotonic() + _ENDING
    while True:
        opened = _try_to_open(path, named, start, timeout, time.monotonic() >= end)
        if opened:
            return opened
        time.sleep(0.005)


def _try_to_open(
    path: str, named: bool, start: bool, timeout: Optional[float], last: bool
) -> Optional[tuple[LaneConnection, dict[str, Any]]]:
    """None: the daemon has ended meanwhile, and it is not the last time."""
    sock, started = _start.connect_socket(path, named, start, 60.0 if timeout is None else timeout)
    conn = LaneConnection(sock, path, timeout)
    try:
        name = f"python {os.path.basename(sys.argv[0])}"
        info = conn.call("hello", name, {"notify": HEARS})
        if info["protocol"] != PROTOCOL:
            raise ProtocolError(
                f"the daemon at {path} speaks protocol {info['protocol']}, this client {PROTOCOL}; "
                "use the package of the daemon's version"
            )
    except BaseException as e:
        conn.close()
        if not isinstance(e, ConnectionLost):
            raise
        if not last and not started:
            return None
        if not start:
            raise
        raise ConnectionLost(f"{e}; {_start.tell_log(path)}") from None
    return conn, info
