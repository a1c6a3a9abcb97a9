"""CUDA tensors, on the daemon's device that is the same card: no byte is copied.

The daemon opens the allocation in which a tensor lies, by CUDA IPC, and runs kernels in it. An
allocation stays open for later calls until it is seen to have been freed here: its buffer id, which
the driver never gives twice, is compared. This speaks to the driver alone, whose errors are return
codes: the CUDA runtime's last error, which torch reads, is left as it was.

Order: the stream that is current here has done its work before the request is sent, and the reply
has come before a result is returned.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple, Optional

import torch

from .._reply import Batch
from ..errors import InvalidArgument, Unavailable
from ._daemon import Daemon
from ._dtypes import BY_NAME, Desc, describe
from ._transport import Job, finish

_BUFFER_ID, _LEGACY_IPC = 7, 10  # CU_POINTER_ATTRIBUTE_*
_HANDLE_SIZE = 64
_SWEEP = 64  # calls between looks at all open allocations
_MANY_IDS = 1024  # of one allocation
_MANY_OPEN = 512  # allocations; a connection may have 1024


class Range(NamedTuple):
    """An allocation of this process."""

    base: int
    size: int
    buffer_id: int


class Driver:
    """The few functions of libcuda that this needs. A CUDA context is current when they are called."""

    def __init__(self) -> None:
        self._lib = ctypes.CDLL("libcuda.so.1")

    def find_range(self, address: int) -> Optional[Range]:
        """The allocation that holds an address; None if it was freed."""
        base, size, buffer_id = ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_uint64()
        pointer = ctypes.c_uint64(address)
        if self._lib.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), pointer):
            return None
        if self._lib.cuPointerGetAttribute(ctypes.byref(buffer_id), _BUFFER_ID, pointer):
            return None
        return Range(base.value, size.value, buffer_id.value)

    def get_handle(self, range: Range) -> Optional[bytes]:
        """What another process opens the allocation with; None if it cannot be shared so."""
        base, able = ctypes.c_uint64(range.base), ctypes.c_int()
        if self._lib.cuPointerGetAttribute(ctypes.byref(able), _LEGACY_IPC, base):
            return None
        handle = ctypes.create_string_buffer(_HANDLE_SIZE)
        if not able.value or self._lib.cuIpcGetMemHandle(ctypes.byref(handle), base):
            return None
        return handle.raw


class Allocation:
    """One that the daemon has open, and the tensors in it that it knows."""

    def __init__(self, id: int, range: Range) -> None:
        self.id = id
        self.range = range
        self.ids: dict[tuple[int, Desc], int] = {}


class Imports:
    """The allocations that the daemon has open."""

    def __init__(self, daemon: Daemon, device: str, driver: Any) -> None:
        self._daemon = daemon
        self._conn = daemon.conn
        self._device = device
        self._driver = driver
        self._open: dict[int, Allocation] = {}  # by base; the one used last is the last
        self._full: list[Allocation] = []
        self._calls = 0

    def find(self, desc: Desc, address: int, batch: Batch) -> int:
        """The id of the tensor at an address; messages that make it go before the request's."""
        range = self._driver.find_range(address)
        if range is None:
            raise _no_share(address)
        allocation = self._open.get(range.base)
        if allocation is not None and allocation.range != range:
            self.close(allocation)
            allocation = None
        if allocation is None:
            allocation = self._import(range)
        self._open[range.base] = self._open.pop(range.base)
        at = (address - range.base, desc)
        id = allocation.ids.get(at)
        if id is None:
            if len(allocation.ids) == _MANY_IDS:
                self._full.append(allocation)  # the call may need what it has
            id = allocation.ids[at] = self._daemon.new_id()
            params = (id, allocation.id, at[0], desc.dtype, *desc.layout)
            self._conn.send("import_tensor", params, batch=batch)
        return id

    def sweep(self) -> None:
        """Before a call: gives up what is too many; now and then, what was freed here."""
        while self._full:
            self._forget_ids(self._full.pop())
        while len(self._open) > _MANY_OPEN:
            self.close(next(iter(self._open.values())))
        self._calls += 1
        if self._calls % _SWEEP == 0:
            for allocation in list(self._open.values()):
                if self._driver.find_range(allocation.range.base) != allocation.range:
                    self.close(allocation)

    def close(self, allocation: Allocation) -> None:
        del self._open[allocation.range.base]
        self._forget_ids(allocation)
        self._conn.send("free", ("import", [allocation.id]))

    def close_all(self) -> None:
        for allocation in list(self._open.values()):
            self.close(allocation)

    def _import(self, range: Range) -> Allocation:
        handle = self._driver.get_handle(range)
        if handle is None:
            raise _no_share(range.base)
        conn, id = self._conn, self._daemon.new_id()
        params = (id, self._device, "cuda_ipc", handle, range.size)
        try:
            conn.wait(conn.send("import_open", params))
        except BaseException:
            if not conn.closed:  # it may have been opened all the same
                conn.send("free", ("import", [id]))
            raise
        allocation = self._open[range.base] = Allocation(id, range)
        return allocation

    def _forget_ids(self, allocation: Allocation) -> None:
        for id in allocation.ids.values():
            self._conn.discard("tensor", id)
        allocation.ids.clear()


class CudaTransport:
    """Tensors of one card."""

    def __init__(
        self, daemon: Daemon, name: str, device: torch.device, driver: Any = None
    ) -> None:
        self._daemon = daemon
        self.conn = daemon.conn
        self._name = name
        self._device = device
        self._index = device.index  # torch takes a number faster than a device
        self._imports = Imports(daemon, name, driver or Driver())
        # Calls that were interrupted while the daemon was at work: their memory is not given back
        # to torch before that is done.
        self._interrupted: list[tuple[Batch, Any]] = []

    def run(self, job: Job) -> tuple[Any, list[torch.Tensor]]:
        self._interrupted = [entry for entry in self._interrupted if entry[0].pending]
        with torch.cuda.device(self._index):
            reads = [
                t if t is None or i in job.strided else t.contiguous() for i, t in enumerate(job.reads)
            ]
            # Memory of these may have been another's on this stream until now, so that what waits
            # for it comes after.
            makes = [
                torch.empty(d.shape, dtype=BY_NAME[d.dtype], device=self._device)
                for d in job.makes
            ]
            if torch.cuda.is_current_stream_capturing():
                raise InvalidArgument(
                    "opd's operators run in another process, and cannot be captured in a CUDA graph"
                )
            torch.cuda.current_stream(self._index).synchronize()
            result = self._send(job, reads, makes)
            for i in job.mutated:
                target, given = job.reads[i], reads[i]
                if target is not None and given is not None and given is not target:
                    target.copy_(given)
        return result, makes

    def release(self) -> None:
        self._imports.close_all()

    def _send(
        self, job: Job, reads: list[Optional[torch.Tensor]], makes: list[torch.Tensor]
    ) -> Any:
        self._imports.sweep()
        batch = Batch()
        empty: list[int] = []
        try:
            ids = [
                None if t is None else self._id(t, batch, empty, i in job.strided)
                for i, t in enumerate(reads)
            ]
            made: list[Optional[int]] = [self._id(t, batch, empty) for t in makes]
            return finish(self.conn, batch, job.send(ids, made, True, batch))
        except BaseException:
            if batch.pending:
                self._interrupted.append((batch, (reads, makes)))
            if not self.conn.closed:
                self._imports.close_all()  # some of its ids may not have come to be
            raise
        finally:
            for id in empty:
                self.conn.discard("tensor", id)

    def _id(
        self, tensor: torch.Tensor, batch: Batch, empty: list[int], strided: bool = False
    ) -> int:
        desc = describe(tensor, strided)
        if desc.nbytes:
            return self._imports.find(desc, tensor.data_ptr(), batch)
        id = self._daemon.new_id()  # it has no address
        empty.append(id)
        params = (id, desc.dtype, desc.shape, None, self._name)
        self.conn.send("tensor_new", params, batch=batch)
        return id


def find_card(index: Optional[int], devices: list[dict[str, Any]]) -> str:
    """The daemon's name for the card that is torch's cuda:index."""
    properties = torch.cuda.get_device_properties(index or 0)
    uuid = str(properties.uuid).lower().removeprefix("gpu-")
    for device in devices:
        if str(device.get("uuid", "")).lower().removeprefix("gpu-") == uuid:
            return str(device["name"])
    served = ", ".join(f"{d['name']} ({d['model']})" for d in devices)
    raise Unavailable(
        f"the daemon does not serve cuda:{index or 0} ({properties.name}, GPU-{uuid}); it serves "
        f"{served}. Start it with --device cuda, or move the tensors"
    )


def _no_share(address: int) -> InvalidArgument:
    return InvalidArgument(
        f"the CUDA memory at {address:#x} cannot be shared with another process: it is of "
        "PyTorch's expandable segments, or of a pool that cuMemCreate or cudaMallocAsync made. Set "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False and backend:native, or give opd a "
        "clone() from such memory, or a tensor on the CPU"
    )
