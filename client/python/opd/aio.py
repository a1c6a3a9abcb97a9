"""opd for asyncio: the names of `opd`, where what asks the daemon is awaited.

    async with opd.aio.connect() as client:
        x = await client.tensor(array)
        y, z = await asyncio.gather(x.gelu(), client.ops.elu(x, alpha=0.5))
        print(await y.numpy())

A request is sent when it is awaited, and nothing waits but the task that awaits it. A task that is
cancelled gives up what its request was to make; the request itself runs to its end.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import get_ident
from typing import TYPE_CHECKING, Any, Callable, Literal, Optional, TypeVar, Union, overload

from . import client as _client
from ._aio_loop import AsyncTransfer, Driver, Pending
from ._aio_stream import Stream
from ._dtypes import from_host, need_numpy
from ._load import Source, note_loaded
from ._memory import Memory, is_device_array
from ._ops import take_gradient
from ._protocol import DTYPES
from ._spec import suggest
from ._warn import warn_reload
from .errors import InvalidArgument, NotFound, OpdError
from .tensor import Tensor as _Tensor
from .tensor import to_array

if TYPE_CHECKING:
    import numpy as np

_T = TypeVar("_T")


class _Memory(Memory):
    def take_device_array(self, data: Any, name: Optional[str], device: Optional[str]) -> None:
        if is_device_array(data):
            raise InvalidArgument("opd.aio takes no array in a GPU's memory; copy it to the host first")


class Tensor:
    """An opd.Tensor, whose requests are awaited: `await x.numpy()`, `await x.gelu()`."""

    __slots__ = ("__weakref__", "_client", "_inner")

    def __init__(self, client: Client, inner: _Tensor) -> None:
        self._client = client
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

        client, id = self._client, self._inner._live_id()
        with client._collect() as pending:
            get = client._transfer.start_read(id, offset, size, pending)
        await client._settle(pending)
        return np.frombuffer(get(), np.uint8)

    async def item(self) -> Any:
        """The only element, as a Python number; ValueError if there are several."""
        return (await self.numpy()).item()

    async def tolist(self) -> Any:
        """As Python's numbers, in lists of lists."""
        return (await self.numpy()).tolist()

    async def write(self, array: Any) -> None:
        """As opd.Tensor.write()."""
        await self._client._do(self._inner.write, array)

    async def view(
        self, *shape: Any, offset: int = 0, strides: Optional[Sequence[int]] = None
    ) -> Tensor:
        """As opd.Tensor.view()."""
        return await self._client._make(self._inner.view, *shape, offset=offset, strides=strides)

    async def reshape(self, *shape: Any) -> Tensor:
        """As opd.Tensor.reshape()."""
        return await self._client._make(self._inner.reshape, *shape)

    async def suspect(self) -> Optional[str]:
        """As opd.Tensor.suspect, which is no method."""
        why = (await self._client._ask("tensor_info", self._inner._live_id()))["suspect"]
        return None if why is None else str(why)

    async def accept(self) -> None:
        """As opd.Tensor.accept()."""
        await self._client._do(self._inner.accept)

    async def free(self) -> None:
        """As opd.Tensor.free()."""
        await self._client._do(self._inner.free)

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        if name.startswith("_") or name not in self._client.ops:
            near = "" if name.startswith("_") else suggest(name, dir(self))
            raise AttributeError(f"a Tensor has no {name!r}, and the daemon no operator of that name{near}")
        operator = self._client.ops[name]

        def method(*args: Any, **kwargs: Any) -> Awaitable[Any]:
            return operator(self, *args, **kwargs)

        return method

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *self._client.ops})

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        return f"<opd.aio.Tensor{name} {self.dtype} {list(self.shape)} on {self.device}>"


class Context:
    """As opd.Context: what forward() keeps for backward()."""

    def __init__(self, client: Client, inner: Any) -> None:
        self._client = client
        self._inner = inner

    async def backward(
        self,
        *grads: Any,
        wanted: Optional[Iterable[str]] = None,
        deadline: Optional[float] = None,
        debug: bool = False,
    ) -> tuple[Any, ...]:
        """As opd.Context.backward()."""
        given = [_unwrap(grad) for grad in grads]
        options = {"wanted": wanted, "deadline": deadline, "debug": debug}
        made = await self._client._do(self._inner.backward, *given, **options)
        replies = [t._reply for m in made for t in (m if isinstance(m, list) else (m,)) if t is not None]
        infos = replies[0].result if replies else made
        return tuple(self._client._wrap(tensor) for tensor in map(take_gradient, made, infos))

    async def free(self) -> None:
        """As opd.Context.free()."""
        await self._client._do(self._inner.free)


class Operator:
    """An operator of the daemon: `await client.ops.gelu(x)`."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self.__name__ = name
        inner = client._client.ops._functions.get(name)
        if inner is not None:
            self.__doc__, self.__signature__ = inner.__doc__, inner.__signature__
            self.schema: str = inner.schema
            self.version: int = inner.version

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return (await self._client._run(self.__name__, args, kwargs, keep=False))[0]

    async def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, Context]:
        """The same, and a Context for backward."""
        value, context = await self._client._run(self.__name__, args, kwargs, keep=True)
        assert context is not None
        return value, context

    def __repr__(self) -> str:
        return f"<opd.aio.Operator {self.__name__}>"


class Ops:
    """Every operator of the daemon is an attribute, as of opd.Ops, to be awaited. What is listed are
    those known since connect() or reload(); one that has come since is found when it is called."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Operator:
        if name.startswith("__"):
            raise AttributeError(name)
        return Operator(self._client, name)

    def __getitem__(self, name: str) -> Operator:
        return Operator(self._client, name)

    def __dir__(self) -> list[str]:
        return sorted(name for name in self._client._catalog.specs if "." not in name)

    def __iter__(self) -> Iterator[str]:
        return iter(dir(self))

    def __len__(self) -> int:
        return len(dir(self))

    def __contains__(self, name: object) -> bool:
        return name in self._client._catalog.specs

    def __repr__(self) -> str:
        return f"<opd.aio.Ops of {self._client.socket}>"


class Client:
    """Made by opd.aio.connect(), for tasks of the event loop in which it was made.

    ops   every operator of the daemon
    info  what the daemon said of itself
    """

    def __init__(self, client: _client.Client) -> None:
        self.info = client.info
        self.ops = Ops(self)
        self._client = client
        self._link = client._link
        self._catalog = client._catalog
        self._transfer = AsyncTransfer(client._conn)
        self._link.transfer = self._transfer
        client._memory = client.ops._memory = _Memory(client._link)
        self._loop = Driver(client._conn, always=True).loop

    def __del__(self) -> None:
        loop = getattr(self, "_loop", None)
        if loop is not None and not (loop.is_closed() or self._client._conn.closed):
            loop.call_soon_threadsafe(self._client.close)  # the loop has it still

    @property
    def socket(self) -> str:
        """The path."""
        return self._client.socket

    @contextmanager
    def _collect(self) -> Iterator[Pending]:
        """Requests that are sent inside, where nothing is awaited, are of this Pending."""
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("this opd.aio.Client is another event loop's; connect() in this one")
        pending, thread = Pending(self._loop), get_ident()
        self._link.batches[thread] = pending
        try:
            yield pending
        finally:
            del self._link.batches[thread]
            pending.finish()

    async def _settle(self, pending: Pending) -> None:
        await pending.done()
        self._link.finish(pending)

    async def _do(self, function: Callable[..., _T], *args: Any, **kwargs: Any) -> _T:
        with self._collect() as pending:
            made = function(*args, **kwargs)
        await self._settle(pending)
        return made

    async def _make(self, function: Callable[..., _Tensor], *args: Any, **kwargs: Any) -> Tensor:
        return Tensor(self, await self._do(function, *args, **kwargs))

    async def _ask(self, method: str, *params: Any) -> Any:
        return (await self._do(self._link.send, method, params)).result

    async def _refresh(self) -> None:
        self._catalog.take_up(self._catalog.read(await self._ask("op_list")))

    async def _run(
        self, name: str, args: Sequence[Any], kwargs: dict[str, Any], keep: bool
    ) -> tuple[Any, Optional[Context]]:
        """One call; if the operator turns out to have changed since we asked, a second one."""
        args = [_unwrap(value) for value in args]
        kwargs = {key: _unwrap(value) for key, value in kwargs.items()}
        spec = self._catalog.specs.get(name)
        ops = self._client.ops
        try:
            if spec is None:
                raise NotFound(f"the daemon has no operator {name!r}", op=name)
            return await self._run_once(name, args, kwargs, keep)
        except (TypeError, InvalidArgument, NotFound) as e:
            misfit = isinstance(e, OpdError) and e._misfit
            if misfit:
                ops._forget(name)
            await self._refresh()
            now = self._catalog.specs.get(name)
            if now is None:
                events = (await self._ask("events", 0))["events"]
                raise NotFound(self._catalog.explain_missing(name, events), op=name) from None
            if spec and now.info == spec.info and not misfit:
                raise
        return await self._run_once(name, args, kwargs, keep)

    async def _run_once(
        self, name: str, args: Sequence[Any], kwargs: dict[str, Any], keep: bool
    ) -> tuple[Any, Optional[Context]]:
        spec = self._catalog.specs[name]
        with self._collect() as pending:
            made = self._client.ops._run_once(spec, args, kwargs, keep)
        await self._settle(pending)
        if pending.version not in (0, spec.version) and not kwargs.get("version"):
            await self._refresh()
        value, context = made if keep else (made, None)
        return self._wrap(value), context and Context(self, context)

    def _wrap(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(self._wrap(each) for each in value)
        return None if value is None else Tensor(self, value)

    async def tensor(
        self, data: Any, dtype: Any = None, name: Optional[str] = None, device: Optional[str] = None
    ) -> Tensor:
        """As opd.Client.tensor(), of arrays in this process' memory."""
        return await self._make(self._client.tensor, _unwrap(data), dtype, name, device)

    async def zeros(
        self,
        shape: Any,
        dtype: Any = "float32",
        name: Optional[str] = None,
        device: Optional[str] = None,
    ) -> Tensor:
        """As opd.Client.zeros()."""
        return await self._make(self._client.zeros, shape, dtype, name, device)

    async def attach(self, name: str) -> Tensor:
        """As opd.Client.attach()."""
        return await self._make(self._client.attach, name)

    async def plan(
        self,
        op: str,
        inputs: Sequence[Any],
        attrs: Optional[dict[str, Any]] = None,
        *,
        version: Optional[int] = None,
        device: Optional[str] = None,
    ) -> dict[str, Any]:
        """As opd.Client.plan()."""
        params = _client.make_plan(op, inputs, attrs, version, device)
        return _client.read_plan(await self._ask("plan", *params))

    async def synchronize(self) -> None:
        """As opd.Client.synchronize()."""
        await self._ask("sync")

    async def status(self) -> dict[str, Any]:
        """As opd.Client.status()."""
        return dict(await self._ask("status"))

    async def metrics(self) -> str:
        """As opd.Client.metrics()."""
        return str(await self._ask("metrics"))

    async def tensors(self) -> list[dict[str, Any]]:
        """As opd.Client.tensors()."""
        return list(await self._ask("tensor_list"))

    async def reload(self) -> list[dict[str, Any]]:
        """As opd.Client.reload()."""
        changes = list(await self._ask("reload"))
        await self._refresh()
        _client.warn_of_changes(changes)
        return changes

    @overload
    def events(
        self, since: int = 0, follow: Literal[False] = False
    ) -> Awaitable[list[dict[str, Any]]]: ...

    @overload
    def events(self, since: int = 0, *, follow: Literal[True]) -> Stream: ...

    def events(
        self, since: int = 0, follow: bool = False
    ) -> Union[Awaitable[list[dict[str, Any]]], Stream]:
        """As opd.Client.events(): `await client.events()`, or with follow a Stream."""
        if follow:
            return Stream(lambda: self._client.events(since, follow=True))
        return self._ask_events(since)

    async def _ask_events(self, since: int) -> list[dict[str, Any]]:
        return list((await self._ask("events", since))["events"])

    def trace(self) -> Stream:
        """As opd.Client.trace(): `async with client.trace() as runs`."""
        return Stream(self._client.trace)

    async def check(
        self,
        path: Union[str, os.PathLike[str]],
        targets: Union[str, Iterable[str], None] = None,
        dtypes: Union[str, Iterable[str], None] = None,
    ) -> dict[str, Any]:
        """As opd.Client.check()."""
        return dict(await self._ask("check", *_client.make_check(path, targets, dtypes)))

    async def load(
        self,
        source: Union[str, os.PathLike[str]],
        shared: bool = False,
        *,
        name: Optional[str] = None,
        line: Optional[int] = None,
    ) -> Operator:
        """As opd.Client.load()."""
        text, options = _client.make_load(source, shared, name, line)
        made = await self._ask("load", text, options)
        await self._refresh()
        await self._note(made["op"], Source(text, options["name"], options["folder"]))
        if made["warnings"]:
            warn_reload(made["warnings"])
        return self.ops[made["op"]]

    async def unload(self, op: str) -> None:
        """As opd.Client.unload()."""
        await self._ask("unload", op)
        await self._refresh()
        await self._note(op, None)

    async def _note(self, op: str, source: Optional[Source]) -> None:
        """For opd.torch, which asks the daemon for it, and waits."""
        await asyncio.to_thread(note_loaded, self._client._conn, op, source)

    async def copy_speed(self, device: str) -> float:
        """As opd.Client.copy_speed()."""
        return float((await self._ask("device_speed", device))["copy"])

    async def rollback(self, op: str) -> int:
        """As opd.Client.rollback()."""
        return await self._serve("rollback", op)

    async def pin(self, op: str, version: Optional[int]) -> int:
        """As opd.Client.pin()."""
        return await self._serve("pin", op, version)

    async def _serve(self, method: str, *params: Any) -> int:
        version = int((await self._ask(method, *params))["version"])
        await self._refresh()
        return version

    async def restart(self, device: str) -> dict[str, Any]:
        """As opd.Client.restart()."""
        return dict(await self._ask("device_restart", device))

    async def upgrade(self, path: Union[str, os.PathLike[str], None] = None) -> dict[str, Any]:
        """As opd.Client.upgrade()."""
        options = {} if path is None else {"path": os.path.abspath(path)}
        return dict(await self._ask("upgrade", options))

    async def stop(self) -> None:
        """As opd.Client.stop()."""
        await self._ask("stop")
        await self.close()

    async def close(self) -> None:
        """As opd.Client.close(); tasks that wait get ConnectionLost."""
        self._client.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<opd.aio.Client of {self.socket}{', closed' if self._client._conn.closed else ''}>"


class _Connecting:
    """`await` it, or `async with` it."""

    def __init__(self, open: Callable[[], _client.Client]) -> None:
        self._open = open

    async def _connect(self) -> Client:
        return Client(await asyncio.to_thread(self._open))

    def __await__(self) -> Generator[Any, None, Client]:
        return self._connect().__await__()

    async def __aenter__(self) -> Client:
        self._client = await self
        return self._client

    async def __aexit__(self, *exc: object) -> None:
        await self._client.close()


def connect(
    socket: Optional[str] = None,
    *,
    start: bool = True,
    kernels: Union[str, os.PathLike[str], Iterable[Union[str, os.PathLike[str]]]] = (),
) -> _Connecting:
    """As opd.connect(), to be awaited, or the target of `async with`. Nothing times out by itself:
    asyncio.wait_for() and a request's `deadline` say how long."""

    def open() -> _client.Client:
        client = _client.connect(socket, start=start, kernels=kernels)
        client._catalog.refresh()
        return client

    return _Connecting(open)


def _unwrap(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_unwrap(each) for each in value]
    return value._inner if isinstance(value, Tensor) else value
