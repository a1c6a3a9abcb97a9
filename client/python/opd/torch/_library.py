"""libopd_torch: the C library that runs operators in torch's own process (client/torch/opd_torch.h).

Where it is not to be had, which is said once, all runs in the daemon.
"""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Optional

from .._fds import File
from .._places import look_beside

_ABI = 3
_NAME = "libopd_torch.so"
_U32 = ctypes.c_uint32

# OPD_ISOLATED: 1, all runs in the daemon; 0, nothing does; else each first call.
DEFAULT_ISOLATED: Optional[bool] = {"1": True, "0": False}.get(os.environ.get("OPD_ISOLATED", ""))


class Count(NamedTuple):
    loaded: int  # plans that calls find
    retired: int  # that an edit has replaced, and whose work may not be done


class Export:
    """A plan with its kernels, in a memfd, and the stamp of its version; in a `with` block."""

    def __init__(self, file: File, slot: int, stamp: int) -> None:
        self.file, self.slot, self.stamp = file, slot, stamp

    def __enter__(self) -> Export:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


class Library:
    def __init__(self, path: Path) -> None:
        self._c: Any = ctypes.CDLL(str(path))
        if self._c.opd_torch_abi() != _ABI:
            raise OSError(f"{path} is of another version of opd than {__file__}")
        for name in ("start", "register", "load", "set_page", "synchronize", "tell_last"):
            getattr(self._c, f"opd_torch_{name}").restype = ctypes.c_char_p
        self._c.opd_torch_register.argtypes = [
            *(ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p),
            *(_U32, _U32, _U32, _U32, ctypes.c_char_p, ctypes.POINTER(ctypes.c_int)),
        ]
        self._c.opd_torch_load.argtypes = [
            *(ctypes.c_int, ctypes.c_int, _U32, ctypes.POINTER(ctypes.c_uint64)),
        ]
        self._c.opd_torch_set_direct.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_uint64]
        self._c.opd_torch_set_direct.restype = ctypes.c_bool
        self._c.opd_torch_add_plain.argtypes = [ctypes.c_uint64]
        self._c.opd_torch_start.argtypes = [ctypes.c_bool]
        self._c.opd_torch_set_options.argtypes = [ctypes.c_bool, _U32]
        self._c.opd_torch_set_alone.argtypes = [ctypes.c_bool]
        self._c.opd_torch_set_page.argtypes = [ctypes.c_int, ctypes.POINTER(ctypes.c_bool)]
        error = self._c.opd_torch_start(bool(DEFAULT_ISOLATED))
        if error:
            raise OSError(error.decode())

    def register(
        self,
        name: str,
        schema: str,
        kind: int,
        op: str,
        layout: str,
        sizes: tuple[int, int, int],
        mutated: int,
        reads: bytes,
    ) -> int:
        """The number of a kernel, for opd::NAME, which it makes. Raises OSError: it must do without."""
        number = ctypes.c_int()
        error = self._c.opd_torch_register(
            *(name.encode(), schema.encode(), kind, op.encode(), layout.encode(), *sizes, mutated, reads),
            ctypes.byref(number),
        )
        if error:
            raise OSError(error.decode())
        return number.value

    def load(self, number: int, fd: int, slot: int) -> int:
        """The plan in a memfd, for the last call of this thread that found none: its serial. Raises
        OSError: it cannot run here."""
        serial = ctypes.c_uint64()
        error = self._c.opd_torch_load(number, fd, slot, ctypes.byref(serial))
        if error:
            raise OSError(error.decode())
        return serial.value

    def set_direct(self, tensor_at: int, keys_at: int, of_names: int) -> bool:
        made: bool = self._c.opd_torch_set_direct(tensor_at, keys_at, of_names)
        return made

    def add_plain(self, keys: int) -> None:
        self._c.opd_torch_add_plain(keys)

    def find_direct(self) -> list[int]:
        """The addresses of what opd_native calls."""
        names = "call", "wrap", "is_plain", "is_grad_enabled"
        functions = [getattr(self._c, f"opd_torch_{name}") for name in names]
        return [ctypes.cast(f, ctypes.c_void_p).value or 0 for f in functions]

    def set_options(self, isolated: bool, version: Optional[int]) -> None:
        """For this thread."""
        self._c.opd_torch_set_options(isolated, version or 0)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Calls of this thread that do not ask whether the daemon is there."""
        self._c.opd_torch_set_alone(True)
        try:
            yield
        finally:
            self._c.opd_torch_set_alone(False)

    def set_page(self, fd: int) -> None:
        """The daemon's page of versions; -1: there is none any more. Raises OSError."""
        same = ctypes.c_bool()
        error = self._c.opd_torch_set_page(fd, ctypes.byref(same))
        if error:
            raise OSError(error.decode())

    def synchronize(self) -> str:
        """What kernels found wrong; empty: nothing."""
        error: Optional[bytes] = self._c.opd_torch_synchronize()
        return (error or b"").decode()

    def tell_last(self) -> str:
        told: bytes = self._c.opd_torch_tell_last()
        return told.decode()

    def count(self) -> Count:
        loaded, retired = ctypes.c_uint(), ctypes.c_uint()
        self._c.opd_torch_count(ctypes.byref(loaded), ctypes.byref(retired))
        return Count(loaded.value, retired.value)


def _find() -> Path:
    places = look_beside("lib", _NAME)
    given = os.environ.get("OPD_TORCH_LIB")
    for path in [Path(given)] if given else places:
        if path.exists():
            return path
    raise OSError(
        f"there is no {_NAME}: `make` builds it, `pip install client/python` after that takes it along; "
        f"looked at {', '.join(map(str, places))}"
    )


def _load() -> Optional[Library]:
    try:
        return Library(_find())
    except OSError as e:
        warnings.warn(
            f"opd.torch runs all operators in the daemon, which takes longer: {e}", stacklevel=3
        )
        return None


_tried = False
_library: Optional[Library] = None


def get_library() -> Optional[Library]:
    """Loaded when first asked for. None: all runs in the daemon."""
    global _tried, _library
    if not _tried:
        _tried = True
        _library = _load()
    return _library


def find_library() -> Optional[Library]:
    """If it is loaded."""
    return _library
