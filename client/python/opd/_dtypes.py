"""Arrays of the host <-> dtype, shape and bytes of a tensor. numpy is imported when first used.

bfloat16 is ml_dtypes' where that is installed; without it, arrays of bfloat16 are float32
on this side, rounded to nearest even on the way to the daemon.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from ._protocol import DTYPES

if TYPE_CHECKING:
    import numpy as np


class HostArray(NamedTuple):
    dtype: str
    shape: tuple[int, ...]
    data: memoryview  # contiguous bytes


def check_dtype(dtype: Any) -> str:
    """The daemon's name for "float32", np.float32, np.dtype("float32") or torch.float32; and for
    what NumPy understands: "f4", "half", float, which is float64."""
    name = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", None)
    if name is None:
        name = getattr(dtype, "name", None) or str(dtype).rpartition(".")[2]
    known = name if name in DTYPES else _ask_numpy(dtype)
    if known not in DTYPES:
        raise TypeError(f"dtype {name} is not one of {', '.join(DTYPES)}")
    return str(known)


def _ask_numpy(dtype: Any) -> Optional[str]:
    try:
        import numpy as np

        return None if dtype is None else np.dtype(dtype).name
    except (ImportError, TypeError, ValueError):
        return None


def need_numpy() -> None:
    """Raises ImportError, with what to do, where the package was not installed with what it needs."""
    try:
        import numpy  # noqa: F401
    except ImportError as e:
        raise ImportError(f"opd needs NumPy for tensors ({e}): pip install numpy") from None


def check_shape(shape: Any) -> list[int]:
    from operator import index

    return [index(n) for n in (shape if isinstance(shape, Sequence) else (shape,))]


def to_host(value: Any, dtype: Any = None) -> HostArray:
    """An array, torch tensor, scalar or nested list, as bytes; its own dtype unless one is given.

    Raises TypeError if that dtype cannot hold the values' kind (floats in int32), or the
    daemon has none such.
    """
    need_numpy()
    import numpy as np

    wanted = None if dtype is None else check_dtype(dtype)
    if type(value).__module__.partition(".")[0] == "torch":
        if str(value.dtype) == "torch.bfloat16" and wanted in (None, "bfloat16"):
            bits = value.detach().cpu().contiguous().view(sys.modules["torch"].int16).numpy()
            return _host("bfloat16", bits)
        if str(value.dtype) == "torch.bfloat16":
            value = value.float()
        value = value.detach().cpu().numpy()
    if hasattr(type(value), "__dlpack__") and not hasattr(type(value), "__array__"):
        value = np.from_dlpack(value)
    array = np.asarray(value)
    wanted = wanted or check_dtype(array.dtype)
    if wanted == "bfloat16":
        return _host(wanted, _to_bfloat16(array))
    target = np.dtype(wanted)
    if not _fits(array, target, isinstance(value, np.ndarray)):
        raise TypeError(f"cannot make {wanted} of {array.dtype}; convert the array first")
    return _host(wanted, array.astype(target, copy=False))


def from_host(data: Any, dtype: str, shape: Sequence[int]) -> np.ndarray[Any, Any]:
    """The array of these bytes, which it may share."""
    need_numpy()
    import numpy as np

    if dtype != "bfloat16":
        return np.ndarray(shape, dtype, data)
    bits: np.ndarray[Any, Any] = np.ndarray(shape, np.uint16, data)
    ml_bfloat16 = _ml_bfloat16()
    if ml_bfloat16 is not None:
        return bits.view(ml_bfloat16)
    wide: np.ndarray[Any, Any] = np.zeros(shape, np.uint32)
    np.left_shift(bits, np.uint32(16), out=wide, dtype=np.uint32)
    return wide.view(np.float32)


def _host(dtype: str, array: np.ndarray[Any, Any]) -> HostArray:
    import numpy as np

    flat = np.ascontiguousarray(array).reshape(-1)
    return HostArray(dtype, array.shape, flat.view(np.uint8).data)


def _fits(array: np.ndarray[Any, Any], target: np.dtype[Any], is_array: bool) -> bool:
    """Widening and narrowing within a kind; Python's own numbers may also become a wider kind's."""
    import numpy as np

    if np.can_cast(array.dtype, target, "same_kind") or array.dtype.name == "bfloat16":
        return True
    return not is_array and array.dtype.kind in "iu" and target.kind in "iu"


def _ml_bfloat16() -> Optional[Any]:
    try:
        import ml_dtypes
    except ImportError:
        return None
    return ml_dtypes.bfloat16


def _to_bfloat16(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The bits, as uint16; rounds to nearest even, keeps NaNs NaN."""
    import numpy as np

    if array.dtype.name == "bfloat16":
        return array.view(np.uint16)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"cannot make bfloat16 of {array.dtype}; convert the array first")
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32).reshape(array.shape)
    upper = bits >> np.uint32(16)
    rounded = (bits + (np.uint32(0x7FFF) + (upper & np.uint32(1)))) >> np.uint32(16)
    quiet_nan = upper | np.uint32(0x40)
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(is_nan, quiet_nan, rounded).astype(np.uint16)
