"""What arrays are used to be asked, of a Tensor: sizes, parts of it, arithmetic, numbers, a few of its values."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Callable, Optional, TypeVar, Union

from ._dtypes import check_dtype
from ._link import Kind, Link
from ._protocol import DTYPES
from .errors import InvalidArgument, OpdError

if TYPE_CHECKING:
    import numpy as np
    from typing_extensions import Self

_SHOWN = 100  # elements of a tensor that repr() shows whole
_EDGE = 3  # of a larger one, at either end


class DType(str):
    """A dtype's name, equal to NumPy's, PyTorch's and ml_dtypes' dtype of that name, too."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str) or other is None:
            return str.__eq__(self, other) is True
        try:
            return str.__eq__(self, check_dtype(other))
        except TypeError:
            return False

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


_dtypes = {name: DType(name) for name in DTYPES}


def find_dtype(name: str) -> DType:
    return _dtypes[name]


_T = TypeVar("_T")
_NUMBERS = (bool, int, float)


def _binary(name: str, swapped: bool = False) -> Callable[[_T, Any], _T]:
    """By the daemon's operator of that name; where it has none, Python goes on as if there were no method."""

    def method(self: Any, other: Any) -> Any:
        function = self._link.find_method(name)
        if function is None or other is None or isinstance(other, (str, bytes)):
            return NotImplemented
        return function(other, self) if swapped else function(self, other)

    return method


def _same(name: str) -> Callable[[Any, object], Any]:
    """The same; where there is no such operator two tensors are equal if they are one, and a tensor and
    numbers are not compared, for False would be taken for what their elements say."""

    def method(self: Any, other: Any) -> Any:
        result = elementwise(self, other)
        numbers = isinstance(other, _NUMBERS) or hasattr(other, "dtype") and not isinstance(other, Array)
        if result is NotImplemented and numbers:
            raise TypeError(
                f"the daemon has no operator {name!r} that compares a tensor's elements; numpy() has them here"
            )
        return result

    elementwise: Callable[[Any, Any], Any] = _binary(name)
    return method


class Array:
    """The part of Tensor that stands on the rest of it."""

    __slots__ = ()
    __array_priority__ = 1000  # NumPy's array + tensor is ours

    if TYPE_CHECKING:
        _link: Link

        @property
        def shape(self) -> tuple[int, ...]: ...
        @property
        def dtype(self) -> DType: ...
        @property
        def strides(self) -> tuple[int, ...]: ...
        def _learn(self) -> Kind: ...
        def numpy(self) -> np.ndarray[Any, Any]: ...
        def write(self, array: Any) -> None: ...
        def read(self, offset: int = 0, count: Optional[int] = None) -> np.ndarray[Any, Any]: ...
        def view(
            self, *shape: Any, offset: int = 0, strides: Optional[Sequence[int]] = None
        ) -> Self: ...

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """How many elements."""
        return math.prod(self.shape)

    @property
    def T(self) -> Self:
        """The dimensions in reverse, as a view: one with strides, where more than one of them is larger
        than 1, which operators take that say `strided`, and numpy()."""
        shape = self.shape[::-1]
        if self._learn().strides is None and (sum(n > 1 for n in shape) <= 1 or 0 in shape):
            return self.view(shape)
        return self.view(shape, strides=self.strides[::-1])

    def reshape(self, *shape: Any) -> Self:
        """A view of all elements in another shape; one size may be -1, which is what is left."""
        sizes = [operator.index(n) for n in (shape[0] if _is_sizes(shape) else shape)]
        rest = math.prod(n for n in sizes if n != -1)
        if sizes.count(-1) == 1 and rest > 0 and self.size % rest == 0:
            sizes[sizes.index(-1)] = self.size // rest
        if min(sizes, default=0) < 0 or math.prod(sizes) != self.size:
            raise InvalidArgument(
                f"cannot reshape {list(self.shape)} to {list(shape[0]) if _is_sizes(shape) else list(shape)}; "
                f"expected {self.size} elements, with one size of -1 at most"
            )
        if self._learn().strides is not None:
            raise InvalidArgument("cannot reshape a view with strides; reshape what it is a view of")
        return self.view(sizes)

    def __getitem__(self, key: Any) -> Self:
        """A view of a part that lies in one piece: x[3], x[2:5], x[3, 2:5]."""
        keys = list(key) if isinstance(key, tuple) else [key]
        if keys and keys[-1] is Ellipsis:
            keys.pop()
        shape = list(self.shape)
        offset, steps = 0, self.strides
        while keys and not isinstance(keys[0], slice):
            n = shape.pop(0) if shape else None
            i = _to_index(keys.pop(0), n, len(self.shape))
            offset += i * steps[0]
            steps = steps[1:]
        if keys and shape:
            first = keys.pop(0)
            start, stop, step = first.indices(shape[0])
            if step != 1:
                raise IndexError(
                    f"the step of a slice is {step}, expected 1: a part of a tensor is a view in one piece; "
                    "others are of numpy()"
                )
            offset += start * steps[0]
            shape[0] = max(stop - start, 0)
        if any(k != slice(None) for k in keys) or len(keys) >= len(shape) + (not shape):
            raise IndexError(
                f"{key!r} is no part in one piece of a tensor of shape {list(self.shape)}: indices come "
                "first, then one slice; others are of numpy()"
            )
        strides = None if self._learn().strides is None else steps
        return self.view(shape, offset=0 if 0 in shape else offset, strides=strides)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Writes a part, broadcast as NumPy does: x[3] = 0, x[2:5] = array."""
        import numpy as np

        part = self[key]
        part.write(np.broadcast_to(value, part.shape))

    __add__, __radd__ = _binary("add"), _binary("add", swapped=True)
    __sub__, __rsub__ = _binary("sub"), _binary("sub", swapped=True)
    __mul__, __rmul__ = _binary("mul"), _binary("mul", swapped=True)
    __truediv__, __rtruediv__ = _binary("div"), _binary("div", swapped=True)
    __lt__, __le__ = _binary("lt"), _binary("le")
    __gt__, __ge__ = _binary("gt"), _binary("ge")
    __eq__, __ne__ = _same("eq"), _same("ne")
    __hash__ = object.__hash__

    def __contains__(self, value: Any) -> bool:
        """Whether an element is equal to it."""
        if isinstance(value, Array):
            value = value.numpy()
        return bool((self.numpy() == value).any())

    def __neg__(self) -> Self:
        negative: Self = self * -1  # type: ignore[operator, unused-ignore]
        return negative

    def item(self) -> Any:
        """The only element, as a Python number; ValueError if there are several."""
        return self.numpy().item()

    def __bool__(self) -> bool:
        return bool(self.numpy())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if "int" not in self.dtype:
            raise TypeError(f"a tensor of {self.dtype} is no index")
        return operator.index(self.item())

    def tolist(self) -> Any:
        """As Python's numbers, in lists of lists."""
        return self.numpy().tolist()

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a tensor of rank 0 has no len()")
        return self.shape[0]

    def __iter__(self) -> Iterator[Self]:
        return (self[i] for i in range(len(self)))

    def _show_values(self) -> str:
        """A few, as NumPy prints them; why not, where they cannot be had."""
        import numpy as np

        try:
            if self.size <= _SHOWN or self._learn().strides is not None:
                return np.array2string(self.numpy(), separator=", ", threshold=_SHOWN)
            ends = np.concatenate((self.read(0, _EDGE), self.read(self.size - _EDGE)))
        except OpdError as e:
            return e.args[0] if e.args else e.code
        text = np.array2string(ends, separator=", ", max_line_width=10**6)[1:-1].split(", ")
        return f"[{', '.join(text[:_EDGE])}, ..., {', '.join(text[_EDGE:])}]"


def _is_sizes(shape: tuple[Any, ...]) -> bool:
    return len(shape) == 1 and isinstance(shape[0], Sequence)


def _to_index(key: Any, n: Optional[int], rank: int) -> int:
    try:
        if isinstance(key, bool):  # a mask, to NumPy
            raise TypeError
        i = operator.index(key)
    except TypeError:
        raise IndexError(
            f"{key!r} is no index of a tensor: views are made by integers and one slice, else use numpy()"
        ) from None
    if n is None:
        raise IndexError(f"too many indices for a tensor of rank {rank}")
    if not -n <= i < n:
        raise IndexError(f"index {i} is out of a dimension of {n}")
    return i + n if i < 0 else i


__all__ = ["Array", "DType", "find_dtype"]
