"""Memory of the daemon's tensors in this process."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import threading
from typing import Any, Optional

from . import _cuda, _dlpack
from ._conn import Connection
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
    def __init__(self, device: str, fd: int, size: int) -> None:
        self.users = 0
        self.mapping: Any = (
            _HostMapping(fd, size)
            if device == "cpu"
            else _cuda.Mapping(device_index(device), fd, size)
        )


class Export:
    """A tensor's memory in this process. It is the tensor's until close(), whoever frees that."""

    def __init__(self, exports: Exports, id: int, info: dict[str, Any], chunk: Any) -> None:
        self.device: str = info["device"]
        self._exports, self._id, self._chunk = exports, id, chunk
        self._serial = info["chunk"]
        self.address = chunk.mapping.address + info["offset"] if chunk else 0

    def close(self) -> None:
        id, self._id = self._id, 0
        if id:
            self._exports.release(id, self._serial, self._chunk, self.device)

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
        conn, id = self._conn, next(self._ids)
        reply = conn.send("tensor_export", (tensor_id, id))
        info = conn.wait(reply)
        fd = reply.take_fd()
        try:
            with self._lock:
                chunk = None if info["chunk"] is None else self._find_chunk(info, fd)
        except BaseException:
            conn.discard("export", id)
            raise
        finally:
            if fd is not None:
                os.close(fd)
        return Export(self, id, info, chunk)

    def _find_chunk(self, info: dict[str, Any], fd: Optional[int]) -> _Chunk:
        chunk = self._chunks.get(info["chunk"])
        if chunk is None:
            if fd is None:
                raise InvalidArgument("the daemon sent no descriptor for a tensor's memory")
            chunk = _Chunk(info["device"], fd, info["chunk_size"])
            self._chunks[info["chunk"]] = chunk
        chunk.users += 1
        return chunk

    def release(self, id: int, serial: int, chunk: Optional[_Chunk], device: str) -> None:
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
                    self._chunks.pop(serial, None)
                    try:
                        chunk.mapping.close()
                    except Exception:
                        pass  # the process's end unmaps it
        self._conn.discard("export", id)


def device_index(device: str) -> int:
    return int(device.partition(":")[2] or 0)


def dlpack_device(device: str) -> tuple[int, int]:
    return (_dlpack.CPU, 0) if device == "cpu" else (_dlpack.CUDA, device_index(device))
