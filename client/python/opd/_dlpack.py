"""DLPack capsules by ctypes: a tensor's memory as NumPy, CuPy, JAX and PyTorch take it."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Sequence
from typing import Any, Optional

from ._protocol import DTYPES

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
_KINDS = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6}
_NAME, _VERSIONED = b"dltensor", b"dltensor_versioned"
_COPIED = 1 << 1  # a flag of versioned capsules


class _Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("index", ctypes.c_int32)]


class _Type(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
    ]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("rank", ctypes.c_int32),
        ("type", _Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [
        ("tensor", _Tensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


class _ManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


# What capsules in use hold, by the address of their struct.
_live: dict[int, tuple[Any, ...]] = {}

# Those capsules of them that nobody may have taken. A destructor could tell, but not one in Python:
# a consumer that refuses a capsule drops it while its exception is on the way, which would be lost.
_offered: dict[int, Any] = {}
_lock = threading.RLock()


def _delete_struct(address: int, live: dict[int, tuple[Any, ...]] = _live) -> None:
    live.pop(address, None)


def _count(capsules: dict[int, Any], at: int) -> int:
    return sys.getrefcount(capsules[at])


_ALONE = _count({0: object()}, 0)  # what it is where nothing else refers to it


def sweep() -> None:
    """Frees what capsules hold that were dropped without being taken."""
    with _lock:
        for at in list(_offered):
            taken = not any(_is_valid(id(_offered[at]), name) for name in (_NAME, _VERSIONED))
            alone = _count(_offered, at) == _ALONE
            if taken or alone:
                del _offered[at]
            if alone and not taken:
                _live.pop(at, None)


_api = ctypes.pythonapi
_capsule_new = _api.PyCapsule_New
_capsule_new.restype = ctypes.py_object
_capsule_new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", _api)
)
_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _api)
)

_delete = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_delete_struct)
_api.Py_IncRef(ctypes.py_object(_delete))  # a consumer's memory may be freed after this module is
_delete_address = ctypes.cast(_delete, ctypes.c_void_p)


def make_capsule(
    holder: Any,
    address: int,
    dtype: str,
    shape: Sequence[int],
    steps: Sequence[int],
    device: tuple[int, int],
    max_version: Optional[tuple[int, int]],
    copied: bool,
) -> Any:
    """`holder` is kept until the consumer is done."""
    sweep()
    rank = len(shape)
    sizes = (ctypes.c_int64 * rank)(*shape)
    strides = (ctypes.c_int64 * rank)(*steps)
    kind = dtype.rstrip("0123456789")
    tensor = _Tensor(
        address or None,
        _Device(*device),
        rank,
        _Type(_KINDS[kind], 8 * DTYPES[dtype], 1),
        sizes,
        strides,
        0,
    )
    managed: Any
    if max_version is not None and max_version[0] >= 1:
        flags = _COPIED if copied else 0
        managed, name = _ManagedVersioned(1, 0, None, _delete_address, flags, tensor), _VERSIONED
    else:
        managed, name = _Managed(tensor, None, _delete_address), _NAME
    at = ctypes.addressof(managed)
    _live[at] = (managed, sizes, strides, holder)
    try:
        capsule = _offered[at] = _capsule_new(at, name, None)
        return capsule
    except BaseException:
        del _live[at]
        raise


class Described:
    """What a foreign capsule is of; its memory lives as long as the capsule does."""

    def __init__(self, capsule: Any) -> None:
        pointer = _get_pointer(id(capsule), _NAME)
        tensor = _Managed.from_address(pointer).tensor
        self.address = (tensor.data or 0) + tensor.offset
        self.shape = tuple(tensor.shape[i] for i in range(tensor.rank))
        names = {number: name for name, number in _KINDS.items()}
        kind = names.get(tensor.type.kind, "unknown")
        self.dtype = kind if kind == "bool" else f"{kind}{tensor.type.bits}"
        step, self.contiguous = 1, tensor.type.lanes == 1
        for i in reversed(range(tensor.rank)):
            if tensor.strides and self.shape[i] != 1 and tensor.strides[i] != step:
                self.contiguous = False
            step *= self.shape[i]


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork)
