"""A tensor that lives in the daemon, for asyncio."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any, Callable, Optional

from ._aio_link import AsyncLink
from ._dtypes import from_host, need_numpy
from ._protocol import DTYPES
from ._spec import suggest
from .tensor import Tensor as _Tensor
from .tensor import to_array

if TYPE_CHECKING:
    import numpy as np


class Tensor:
    """An opd.Tensor, whose requests are awaited: `await x.numpy()`, `await x.gelu()`."""

    __slots__ = ("__weakref__", "_inner", "_link")

    def __init__(self, link: AsyncLink, inner: _Tensor) -> None:
        self._link = link
        self._inner = inner

    @property
    def shape(self) -> tuple[int, ...]:
        return self._inner.shape

    @property
    def strides(self) -> tuple[int, ...]:
        return self._inner.strides

    @property
    def ndim(self) -> int:
        return self._inner.ndim

    @property
    def size(self) -> int:
        return self._inner.size

    @property
    def nbytes(self) -> int:
        return self._inner.nbytes

    @property
    def dtype(self) -> str:
        return self._inner.dtype

    @property
    def device(self) -> str:
        return self._inner.device

    @property
    def name(self) -> Optional[str]:
        return self._inner.name

    async def numpy(self) -> np.ndarray[Any, Any]:
        """As opd.Tensor.numpy()."""
        kind = self._inner._learn()
        return to_array(kind, await self._read(0, kind.span))

    async def read(self, offset: int = 0, count: Optional[int] = None) -> np.ndarray[Any, Any]:
        """As opd.Tensor.read()."""
        offset, count = self._inner._check_range(offset, count)
        if self._inner._learn().strides is not None:
            return (await self.numpy()).reshape(-1)[offset : offset + count]
        size = DTYPES[self.dtype]
        return from_host(await self._read(offset * size, count * size), self.dtype, (count,))

    async def _read(self, offset: int, size: int) -> np.ndarray[Any, Any]:
        need_numpy()
        import numpy as np

        link, id = self._link, self._inner._live_id()
        with link.collect() as pending:
            get = link.transfer.start_read(id, offset, size, pending)
        await link.settle(pending)
        return np.frombuffer(get(), np.uint8)

    async def item(self) -> Any:
        """The only element, as a Python number; ValueError if there are several."""
        return (await self.numpy()).item()

    async def tolist(self) -> Any:
        """As Python's numbers, in lists of lists."""
        return (await self.numpy()).tolist()

    async def write(self, array: Any) -> None:
        """As opd.Tensor.write()."""
        await self._link.do(self._inner.write, array)

    async def view(
        self, *shape: Any, offset: int = 0, strides: Optional[Sequence[int]] = None
    ) -> Tensor:
        """As opd.Tensor.view()."""
        return await make(self._link, self._inner.view, *shape, offset=offset, strides=strides)

    async def reshape(self, *shape: Any) -> Tensor:
        """As opd.Tensor.reshape()."""
        return await make(self._link, self._inner.reshape, *shape)

    async def suspect(self) -> Optional[str]:
        """As opd.Tensor.suspect, which is no method."""
        why = (await self._link.ask("tensor_info", self._inner._live_id()))["suspect"]
        return None if why is None else str(why)

    async def accept(self) -> None:
        """As opd.Tensor.accept()."""
        await self._link.do(self._inner.accept)

    async def free(self) -> None:
        """As opd.Tensor.free()."""
        await self._link.do(self._inner.free)

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        operator = None if name.startswith("_") else self._link.find_method(name)
        if operator is None:
            near = "" if name.startswith("_") else suggest(name, dir(self))
            raise AttributeError(f"a Tensor has no {name!r}, and the daemon no operator of that name{near}")

        def method(*args: Any, **kwargs: Any) -> Awaitable[Any]:
            return operator(self, *args, **kwargs)

        return method

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *self._link.list_methods()})

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        return f"<opd.aio.Tensor{name} {self.dtype} {list(self.shape)} on {self.device}>"


async def make(link: AsyncLink, function: Callable[..., _Tensor], *args: Any, **kwargs: Any) -> Tensor:
    """The tensor that a function of the client that waits makes."""
    return Tensor(link, await link.do(function, *args, **kwargs))


def wrap(link: AsyncLink, value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(wrap(link, each) for each in value)
    return None if value is None else Tensor(link, value)


def unwrap(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [unwrap(each) for each in value]
    return value._inner if isinstance(value, Tensor) else value
