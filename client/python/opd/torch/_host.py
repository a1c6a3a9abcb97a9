"""Tensors on the CPU, over memory that is shared with the daemon.

One arena holds a call's tensors, from its start to its end: they are copied in, and results are
copied out to memory of torch's own, so that nothing of a user's ever lies in memory that a
forked child or the daemon shares. It grows to the largest call, within reason, and is used again.
"""

from __future__ import annotations

import ctypes
from typing import Any, Optional

import torch

from .._reply import Batch
from .._fds import make_memfd
from ..errors import InvalidArgument
from ._daemon import Daemon
from ._dtypes import BY_NAME, Desc, describe
from ._transport import Job, finish

_ALIGN = 64
_SMALL = 1 << 20  # bytes up to which one thread copies
_MIN_ARENA = 1 << 20
_MAX_KEPT = 1 << 30  # a larger arena is given back after its call
_MANY_IDS = 1024


class Arena:
    """Shared memory in which slices are given out for one call."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.file, mapped = make_memfd(size)
        # An ordinary tensor on the CPU, whatever mode the first call happens in.
        with torch.inference_mode(False), torch.device("cpu"):
            self._bytes = torch.frombuffer(mapped, dtype=torch.uint8)
        self._address = self._bytes.data_ptr()

    def view(self, at: int, desc: Desc) -> torch.Tensor:
        data = self._bytes[at : at + desc.nbytes].view(BY_NAME[desc.dtype])
        return data.view(desc.shape) if desc.strides is None else data.as_strided(desc.shape, desc.strides)

    def write(self, at: int, desc: Desc, tensor: torch.Tensor) -> None:
        if desc.strides is not None:  # with all that lies between its elements
            tensor = tensor.as_strided((desc.numel,), (1,))
            desc = Desc(desc.dtype, (desc.numel,))
        if desc.nbytes and tensor.untyped_storage().nbytes() == 0:  # torch would copy from there
            raise InvalidArgument(f"a tensor of shape {list(desc.shape)} has no memory: its storage is empty")
        if desc.nbytes <= _SMALL and tensor.is_contiguous():
            ctypes.memmove(self._address + at, tensor.data_ptr(), desc.nbytes)
        elif desc.nbytes:
            self.view(at, desc).copy_(tensor)

    def read(self, at: int, desc: Desc) -> torch.Tensor:
        tensor = torch.empty(desc.shape, dtype=BY_NAME[desc.dtype], device="cpu")
        if desc.nbytes <= _SMALL:
            ctypes.memmove(tensor.data_ptr(), self._address + at, desc.nbytes)
        else:
            tensor.copy_(self.view(at, desc))
        return tensor


class Layout:
    """Where a call's tensors lie in the arena."""

    def __init__(self, job: Job) -> None:
        self.size = 0
        self.reads = [
            None if t is None else self._place_tensor(t, i in job.strided)
            for i, t in enumerate(job.reads)
        ]
        self.makes = [(self._place(desc), desc) for desc in job.makes]

    def _place_tensor(
        self, tensor: torch.Tensor, strided: bool
    ) -> tuple[int, Desc, torch.Tensor]:
        desc = describe(tensor, strided)
        return self._place(desc), desc, tensor

    def _place(self, desc: Desc) -> int:
        at = self.size
        self.size = at + (desc.nbytes + _ALIGN - 1) // _ALIGN * _ALIGN
        return at


class HostTransport:
    """What the two ways have in common: the arena, and that a call which was interrupted leaves it
    to the daemon, which may still be at work in it."""

    def __init__(self, daemon: Daemon, device: str) -> None:
        self._daemon = daemon
        self.conn = daemon.conn
        self._device = device
        self._arena: Optional[Arena] = None
        self._arena_id = 0

    def run(self, job: Job) -> tuple[Any, list[torch.Tensor]]:
        layout = Layout(job)
        arena = self._reserve(layout.size)
        batch = Batch()
        try:
            for read in layout.reads:
                if read is not None:
                    arena.write(*read)
            result = self._send(job, layout, batch)
        except BaseException:
            if batch.pending:
                self.release()
            raise
        for i in job.mutated:
            read = layout.reads[i]
            if read is not None:
                at, desc, tensor = read
                tensor.copy_(arena.view(at, desc))
        made = [arena.read(at, desc) for at, desc in layout.makes]
        if arena.size > _MAX_KEPT:
            self.release()
        return result, made

    def release(self) -> None:
        """The next call makes a new arena."""
        arena, self._arena = self._arena, None
        if arena is not None:
            self._close(self._arena_id)

    def _reserve(self, size: int) -> Arena:
        if self._arena is not None and size <= self._arena.size:
            return self._arena
        self.release()
        rounded = max(_MIN_ARENA, 1 << (size - 1).bit_length())
        arena = Arena(rounded if rounded <= _MAX_KEPT else size)
        try:
            id = self._daemon.new_id()
            self._open(id, arena)
        except BaseException:
            if not self.conn.closed:  # it may have been opened all the same
                self._close(id)
            raise
        finally:
            arena.file.close()  # the mapping goes with the last reference
        self._arena_id, self._arena = id, arena
        return arena

    def _send(self, job: Job, layout: Layout, batch: Batch) -> Any:
        raise NotImplementedError

    def _open(self, id: int, arena: Arena) -> None:
        raise NotImplementedError

    def _close(self, id: int) -> None:
        raise NotImplementedError


class DirectTransport(HostTransport):
    """The daemon's CPU device: kernels read and write in the arena itself."""

    def __init__(self, daemon: Daemon, device: str) -> None:
        super().__init__(daemon, device)
        self._ids: dict[tuple[int, Desc], int] = {}  # tensors of the arena

    def _send(self, job: Job, layout: Layout, batch: Batch) -> Any:
        known = len(self._ids)
        try:
            reads = [r and self._id(r[0], r[1], batch) for r in layout.reads]
            made: list[Optional[int]] = [self._id(at, desc, batch) for at, desc in layout.makes]
            return finish(self.conn, batch, job.send(reads, made, True, batch))
        except BaseException:
            for key in list(self._ids)[known:]:  # those may have failed
                self.conn.discard("tensor", self._ids.pop(key))
            raise

    def _id(self, at: int, desc: Desc, batch: Batch) -> int:
        id = self._ids.get((at, desc))
        if id is None:
            id = self._ids[at, desc] = self._daemon.new_id()
            params = (id, self._arena_id, at, desc.dtype, *desc.layout)
            self.conn.send("import_tensor", params, batch=batch)
        return id

    def _reserve(self, size: int) -> Arena:
        if len(self._ids) > _MANY_IDS:
            self._forget_ids()
        return super()._reserve(size)

    def _open(self, id: int, arena: Arena) -> None:
        conn = self.conn
        params = (id, self._device, "memfd", b"", arena.size)
        conn.wait(conn.send("import_open", params, fd=arena.file.fileno()))

    def _close(self, id: int) -> None:
        self._forget_ids()
        self.conn.send("free", ("import", [id]))

    def _forget_ids(self) -> None:
        for id in self._ids.values():
            self.conn.discard("tensor", id)
        self._ids.clear()


class StagedTransport(HostTransport):
    """Another device of the daemon, or memory of its own for each tensor: it copies from the arena and back."""

    def _send(self, job: Job, layout: Layout, batch: Batch) -> Any:
        daemon, conn, shm = self._daemon, self.conn, self._arena_id
        reads: list[Optional[int]] = []
        more: list[Optional[int]] = []  # what those with strides are views of
        for read in layout.reads:
            id = None if read is None else daemon.new_id()
            reads.append(id)
            if read is not None:
                at, desc, _ = read
                shape = desc.shape if desc.strides is None else (desc.numel,)
                whole = id if desc.strides is None else daemon.new_id()
                params = (whole, desc.dtype, shape, None, self._device)
                conn.send("tensor_new", params, batch=batch)
                if whole != id:
                    more.append(whole)
                    conn.send("tensor_view", (id, whole, 0, *desc.layout), batch=batch)
                if desc.nbytes:
                    conn.send("tensor_write", (id, 0, (shm, at, desc.nbytes)), batch=batch)
        made: list[Optional[int]] = [daemon.new_id() for _ in layout.makes]
        reply = job.send(reads, made, False, batch)
        back = [(id, at, desc) for id, (at, desc) in zip(made, layout.makes)]
        for i in job.mutated:
            read = layout.reads[i]
            if read is not None:
                back.append((reads[i], read[0], read[1]))
        for id, at, desc in back:
            if desc.nbytes:
                conn.send("tensor_read", (id, 0, desc.nbytes, (shm, at)), batch=batch)
        ids = [id for id in reads + made + more if id is not None]
        conn.send("free", ("tensor", ids, {"drop": True}), batch=batch)
        return finish(conn, batch, reply)

    def _open(self, id: int, arena: Arena) -> None:
        conn = self.conn
        conn.wait(conn.send("shm_open", (id, arena.size), fd=arena.file.fileno()))

    def _close(self, id: int) -> None:
        self.conn.send("free", ("shm", [id]))
