"""Memory of this process on its way to the daemon: copied, or lent; other libraries' arrays too."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Optional

from . import _cuda, _dlpack
from ._dtypes import check_dtype, to_host
from ._link import Link
from ._protocol import DTYPES
from .errors import InvalidArgument, OpdError
from .tensor import Tensor, make_tensor, make_zeros


class Memory:
    """Of one client."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._ids = itertools.count(1)  # of imports

    def upload(
        self, data: Any, dtype: Any, name: Optional[str], device: Optional[str]
    ) -> Tensor:
        """Client.tensor()."""
        there = self.take_device_array(data, name, device) if dtype is None else None
        if there is not None:
            return there
        host = to_host(data, dtype)
        with self.link.begin_batch():
            tensor = make_zeros(self.link, host.shape, host.dtype, name, device)
            if len(host.data):
                self.link.write(tensor._id, host.data)
        return tensor

    def import_open(
        self, device: str, kind: str, handle: bytes, size: int, fd: Optional[int] = None
    ) -> int:
        """The import's id. kind "memfd" (with fd) or "cuda_ipc" (with handle)."""
        id = next(self._ids)
        conn = self.link.conn
        conn.wait(conn.send("import_open", (id, device, kind, handle, size), fd=fd))
        return id

    def import_close(self, ids: Sequence[int]) -> None:
        self.link.call("free", "import", list(ids))

    def import_tensor(
        self,
        import_id: int,
        offset: int,
        dtype: str,
        shape: Sequence[int],
        strides: Optional[Sequence[int]] = None,
    ) -> Tensor:
        """A tensor in imported memory: what is written there, either side sees."""
        layout = (list(shape),) if strides is None else (list(shape), list(strides))
        return make_tensor(self.link, "import_tensor", import_id, offset, dtype, *layout)

    def take_device_array(
        self, data: Any, name: Optional[str], device: Optional[str]
    ) -> Optional[Tensor]:
        """A copy of an array in the memory of a GPU, which the daemon reads there. None: it is none."""
        found = _find_device_array(data)
        if found is None:
            return None
        index, capsule, address, dtype, shape, contiguous = found
        here = f"cuda:{index}"
        target = device or self.link.info["default_device"]
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
            tensor = make_zeros(self.link, shape, dtype, name, target)
            with_id = self.import_tensor(import_id, offset, dtype, shape)
            self.link.call("tensor_copy", tensor._live_id(), with_id._live_id())
            with_id.free()
        finally:
            self.import_close([import_id])
        del capsule
        return tensor


def is_device_array(data: Any) -> bool:
    return _find_device_array(data) is not None


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
