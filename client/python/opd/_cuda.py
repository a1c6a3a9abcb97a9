"""The few calls of the CUDA driver that a client needs to map the daemon's memory and to share its
own. The driver's, so that no library's own last error is touched."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from .errors import Unavailable

_POSIX_FD, _READ_WRITE, _DEVICE, _ORDINAL = 1, 3, 1, 9


class _Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class _Access(ctypes.Structure):
    _fields_ = [("location", _Location), ("flags", ctypes.c_int)]


class _IpcHandle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]


@functools.lru_cache(maxsize=None)
def _driver() -> Any:
    try:
        cu = ctypes.CDLL("libcuda.so.1")
    except OSError as e:
        raise Unavailable(f"no CUDA driver in this process: {e}") from None
    _check(cu, cu.cuInit(0), "cuInit")
    return cu


def _check(cu: Any, result: int, what: str) -> None:
    if result == 0:
        return
    text = ctypes.c_char_p()
    cu.cuGetErrorString(result, ctypes.byref(text))
    raise Unavailable(f"{what}: {(text.value or b'unknown error').decode()} ({result})")


def _call(name: str, *args: Any) -> None:
    cu = _driver()
    _check(cu, getattr(cu, name)(*args), name)


def enter_context(index: int) -> None:
    """The thread's own context, else the device's primary one, as every library uses it."""
    context = ctypes.c_void_p()
    _call("cuCtxGetCurrent", ctypes.byref(context))
    if context.value:
        return
    device = ctypes.c_int()
    _call("cuDeviceGet", ctypes.byref(device), index)
    _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    _call("cuCtxSetCurrent", context)


def get_device(address: int) -> int:
    """The ordinal of the device on which an address is."""
    ordinal = ctypes.c_int()
    _call(
        "cuPointerGetAttribute", ctypes.byref(ordinal), _ORDINAL, ctypes.c_ulonglong(address)
    )
    return ordinal.value


def synchronize() -> None:
    _call("cuCtxSynchronize")


class Mapping:
    """A chunk of the daemon's in this process, until close()."""

    def __init__(self, index: int, fd: int, size: int) -> None:
        enter_context(index)
        self._size = ctypes.c_size_t(size)
        handle, address = ctypes.c_ulonglong(), ctypes.c_ulonglong()
        _call(
            "cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(fd), _POSIX_FD
        )
        try:
            _call(
                "cuMemAddressReserve",
                ctypes.byref(address), self._size, ctypes.c_size_t(0), ctypes.c_ulonglong(0),
                ctypes.c_ulonglong(0),
            )  # fmt: skip
            self._address = address
            self._map(index, handle)
        finally:
            _call("cuMemRelease", handle)  # the mapping keeps the memory
        self.address = int(address.value)

    def _map(self, index: int, handle: ctypes.c_ulonglong) -> None:
        at, size, zero = self._address, self._size, ctypes.c_ulonglong(0)
        try:
            _call("cuMemMap", at, size, ctypes.c_size_t(0), handle, zero)
            access = _Access(_Location(_DEVICE, index), _READ_WRITE)
            try:
                _call("cuMemSetAccess", at, size, ctypes.byref(access), ctypes.c_size_t(1))
            except BaseException:
                _call("cuMemUnmap", at, size)
                raise
        except BaseException:
            _call("cuMemAddressFree", at, size)
            raise

    def close(self) -> None:
        _call("cuMemUnmap", self._address, self._size)
        _call("cuMemAddressFree", self._address, self._size)


def get_ipc_handle(index: int, address: int) -> tuple[bytes, int, int]:
    """The handle of the allocation in which an address is, its size, and the address's offset."""
    enter_context(index)
    base, size = ctypes.c_ulonglong(), ctypes.c_size_t()
    at = ctypes.c_ulonglong(address)
    _call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), at)
    handle = _IpcHandle()
    _call("cuIpcGetMemHandle", ctypes.byref(handle), base)
    return ctypes.string_at(ctypes.byref(handle), 64), int(size.value), address - int(base.value)
