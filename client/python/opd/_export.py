"""Memory of the daemon's tensors in this process."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import threading
from contextlib import nullcontext
from typing import Any, Optional

from . import _cuda, _dlpack
from ._conn import Connection
from ._fds import File
from .errors import InvalidArgument


class _HostMapping:
    """A chunk of a device whose memory is the host's."""

    def __init__(self, fd: int, size: int) -> None:
        self._map = mmap.mmap(fd, size)
        self._anchor: Any = ctypes.c_char.from_buffer(self._map)
        self.address = ctypes.addressof(self._anchor)

    def close(self) -> None:
        self._anchor = None
        self._map.close()


class _Chunk:
    def __init__(self, serial: int, device: str, fd: int, size: int) -> None:
        self.serial = serial
        self.users = 0
        self.mapping: Any = (
            _HostMapping(fd, size)
            if device == "cpu"
            else _cuda.Mapping(device_index(device), fd, size)
        )


class Export:
    """A tensor's memory in this process. It is the tensor's until close(), whoever frees that."""

    def __init__(self, exports: Exports, id: int) -> None:
        self.device = ""
        self.address = 0
        self.chunk: Optional[_Chunk] = None
        self._exports, self._id = exports, id

    def close(self) -> None:
        id, self._id = self._id, 0
        if id:
            self._exports.release(id, self.chunk, self.device)

    def __del__(self) -> None:
        if getattr(self, "_id", 0):
            self.close()


class Exports:
    """Of one connection: chunks of the daemon's memory that are mapped here."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._ids = itertools.count(1)
        self._chunks: dict[int, _Chunk] = {}
        self._lock = threading.RLock()  # a destructor may come in between

    def open(self, tensor_id: int) -> Export:
        """Waits until what was sent before is done."""
        export = Export(self, next(self._ids))  # from here on dropping it cleans up
        reply = self._conn.send("tensor_export", (tensor_id, export._id))
        info = self._conn.wait(reply)
        export.device = info["device"]
        with reply.take_file() or nullcontext() as file, self._lock:
            if info["chunk"] is not None:
                chunk = self._chunks.get(info["chunk"]) or _map_chunk(info, file)
                export.address = chunk.mapping.address + info["offset"]
                self._chunks[info["chunk"]] = chunk
                chunk.users += 1
                export.chunk = chunk
        return export

    def release(self, id: int, chunk: Optional[_Chunk], device: str) -> None:
        """Also called by consumers' destructors, at any time: nothing is raised."""
        try:
            if chunk is not None and device != "cpu":
                _cuda.synchronize()  # the consumer's kernels may still use it
        except Exception:
            pass
        if chunk is not None:
            with self._lock:
                chunk.users -= 1
                if chunk.users == 0:
                    self._chunks.pop(chunk.serial, None)
                    try:
                        chunk.mapping.close()
                    except Exception:
                        pass  # the process's end unmaps it
        self._conn.discard("export", id)


def _map_chunk(info: dict[str, Any], file: Optional[File]) -> _Chunk:
    if file is None:
        raise InvalidArgument("the daemon sent no descriptor for a tensor's memory")
    return _Chunk(info["chunk"], info["device"], file.fileno(), info["chunk_size"])


def device_index(device: str) -> int:
    return int(device.partition(":")[2] or 0)


def dlpack_device(device: str) -> tuple[int, int]:
    return (_dlpack.CPU, 0) if device == "cpu" else (_dlpack.CUDA, device_index(device))
