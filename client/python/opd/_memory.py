"""Memory that the daemon and this process share in place, and the requests for it."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Optional

from . import _cuda, _dlpack
from ._dtypes import check_dtype
from ._protocol import DTYPES
from .errors import InvalidArgument, OpdError

if TYPE_CHECKING:
    from .client import Client
    from .tensor import Tensor


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

    def __init__(self, memory: Memory, id: int, info: dict[str, Any], chunk: Any) -> None:
        self.device: str = info["device"]
        self._memory, self._id, self._chunk = memory, id, chunk
        self._serial = info["chunk"]
        self.address = chunk.mapping.address + info["offset"] if chunk else 0

    def close(self) -> None:
        id, self._id = self._id, 0
        if id:
            self._memory._release(id, self._serial, self._chunk, self.device)

    def __del__(self) -> None:
        if getattr(self, "_id", 0):
            self.close()


class Memory:
    """Of one client."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._ids = itertools.count(1)  # of exports, and of imports
        self._chunks: dict[int, _Chunk] = {}
        self._lock = threading.RLock()  # a destructor may come in between

    def export(self, tensor_id: int) -> Export:
        """Waits until what was sent before is done."""
        conn, id = self._client._conn, next(self._ids)
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

    def _release(self, id: int, serial: int, chunk: Optional[_Chunk], device: str) -> None:
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
        self._client._conn.discard("export", id)

    # --- a client's own memory

    def import_open(
        self, device: str, kind: str, handle: bytes, size: int, fd: Optional[int] = None
    ) -> int:
        """The import's id. kind "memfd" (with fd) or "cuda_ipc" (with handle)."""
        id = next(self._ids)
        conn = self._client._conn
        conn.wait(conn.send("import_open", (id, device, kind, handle, size), fd=fd))
        return id

    def import_close(self, ids: Sequence[int]) -> None:
        self._client._conn.call("free", "import", list(ids))

    def import_tensor(self, import_id: int, offset: int, dtype: str, shape: Sequence[int]) -> Tensor:
        """A tensor in imported memory: what is written there, either side sees."""
        id = self._client._new_id()
        params = (id, import_id, offset, dtype, list(shape))
        return self._client._make_tensor(id, "import_tensor", params)

    # --- other libraries' arrays

    def to_dlpack(
        self,
        tensor: Tensor,
        max_version: Optional[tuple[int, int]],
        dl_device: Optional[tuple[int, int]],
        copy: Optional[bool],
    ) -> Any:
        here = dlpack_device(tensor.device)
        wanted = here if dl_device is None else (int(dl_device[0]), int(dl_device[1]))
        if wanted == (_dlpack.CPU, 0) and (copy or here[0] != _dlpack.CPU):
            if copy is False:
                raise BufferError(f"a tensor on {tensor.device} is on the CPU only as a copy")
            data = self._client._read(tensor._live_id(), 0, tensor.nbytes)
            address = ctypes.addressof(ctypes.c_char.from_buffer(data)) if data else 0
            holder: Any = data
        elif wanted != here:
            raise BufferError(f"a tensor on {tensor.device} cannot be given to device {wanted}")
        else:
            source = tensor._copy() if copy else tensor
            holder = self.export(source._live_id())
            address = holder.address
        return _dlpack.make_capsule(
            holder, address, tensor.dtype, tensor.shape, wanted, max_version, bool(copy)
        )

    def to_cuda_interface(self, tensor: Tensor) -> tuple[dict[str, Any], Export]:
        import numpy as np

        export = self.export(tensor._live_id())
        return {
            "shape": tensor.shape,
            "typestr": np.dtype(tensor.dtype).str,
            "data": (export.address, False),
            "strides": None,
            "version": 3,
            "stream": None,  # all that was sent before is done
        }, export

    def take_device_array(
        self, data: Any, name: Optional[str], device: Optional[str]
    ) -> Optional[Tensor]:
        """A copy of an array in the memory of a GPU, which the daemon reads there. None: it is none."""
        found = _find_device_array(data)
        if found is None:
            return None
        index, capsule, address, dtype, shape, contiguous = found
        here = f"cuda:{index}"
        target = device or self._client.info["default_device"]
        advice = "; copy it to the host first"
        if not contiguous:
            raise InvalidArgument("this array is not contiguous; make it so, or copy it to the host")
        if target != here:
            raise InvalidArgument(f"an array on {here} cannot go to the daemon's {target}{advice}")
        try:
            _cuda.enter_context(index)
            _cuda.synchronize()
            handle, size, offset = _cuda.get_ipc_handle(index, address)
        except OpdError as e:
            raise InvalidArgument(
                f"this array's memory cannot be shared with the daemon: {e} (memory of cuMemCreate, "
                f"as of expandable segments and some pools, cannot){advice}"
            ) from None
        import_id = self.import_open(target, "cuda_ipc", handle, size)
        try:
            tensor = self._client.zeros(shape, dtype, name, target)
            with_id = self.import_tensor(import_id, offset, dtype, shape)
            self._client._conn.call("tensor_copy", tensor._live_id(), with_id._live_id())
            with_id.free()
        finally:
            self.import_close([import_id])
        del capsule
        return tensor


def device_index(device: str) -> int:
    return int(device.partition(":")[2] or 0)


def dlpack_device(device: str) -> tuple[int, int]:
    return (_dlpack.CPU, 0) if device == "cpu" else (_dlpack.CUDA, device_index(device))


def _find_device_array(data: Any) -> Optional[tuple[int, Any, int, str, tuple[int, ...], bool]]:
    """Device, what holds the memory, address, dtype, shape, contiguous; None: not on a GPU."""
    if type(data).__module__.partition(".")[0] in ("torch", "opd"):
        return None  # these come over the host, wherever they are
    get_device = getattr(type(data), "__dlpack_device__", None)
    if get_device is None:
        return _read_cuda_interface(data, getattr(data, "__cuda_array_interface__", None))
    kind, index = get_device(data)
    if int(kind) not in (_dlpack.CUDA, _dlpack.CUDA_MANAGED):
        return None
    try:
        capsule = data.__dlpack__(stream=-1)
    except RuntimeError:  # JAX takes -1, which means that nobody waits, for a stream's handle
        capsule = data.__dlpack__()
    seen = _dlpack.Described(capsule)
    if seen.address == 0:
        return None
    dtype = check_dtype(seen.dtype)
    assert DTYPES[dtype]
    return int(index), capsule, seen.address, dtype, seen.shape, seen.contiguous


def _read_cuda_interface(
    data: Any, interface: Any
) -> Optional[tuple[int, Any, int, str, tuple[int, ...], bool]]:
    if not isinstance(interface, dict) or not interface["data"][0]:
        return None
    import numpy as np

    dtype = np.dtype(interface["typestr"])
    shape = tuple(interface["shape"])
    steps = interface.get("strides")
    dense = itertools.accumulate(reversed(shape[1:]), lambda a, b: a * b, initial=dtype.itemsize)
    contiguous = steps is None or tuple(steps) == tuple(dense)[::-1][: len(shape)]
    address = int(interface["data"][0])
    index = _cuda.get_device(address)
    return index, data, address, check_dtype(dtype), shape, contiguous
