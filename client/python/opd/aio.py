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
from collections.abc import Awaitable, Generator, Iterable, Sequence
from typing import Any, Callable, Literal, Optional, Union, overload

from . import client as _client
from ._aio_link import AsyncLink
from ._aio_ops import Context, Operator, Ops
from ._aio_stream import Stream
from ._aio_tensor import Tensor, make, unwrap
from ._load import Source, note_loaded
from ._memory import Memory, is_device_array
from ._warn import warn_reload
from .errors import InvalidArgument


class _Memory(Memory):
    def take_device_array(self, data: Any, name: Optional[str], device: Optional[str]) -> None:
        if is_device_array(data):
            raise InvalidArgument("opd.aio takes no array in a GPU's memory; copy it to the host first")


class Client:
    """Made by opd.aio.connect(), for tasks of the event loop in which it was made.

    ops   every operator of the daemon
    info  what the daemon said of itself
    """

    def __init__(self, client: _client.Client) -> None:
        self.info = client.info
        self._client = client
        self._link = AsyncLink(client._link, client.close)
        self.ops = Ops(self._link, client.ops, client._catalog)
        client._memory = client.ops._memory = _Memory(client._link)

    @property
    def socket(self) -> str:
        """The path."""
        return self._client.socket

    async def tensor(
        self, data: Any, dtype: Any = None, name: Optional[str] = None, device: Optional[str] = None
    ) -> Tensor:
        """As opd.Client.tensor(), of arrays in this process' memory."""
        return await make(self._link, self._client.tensor, unwrap(data), dtype, name, device)

    async def zeros(
        self,
        shape: Any,
        dtype: Any = "float32",
        name: Optional[str] = None,
        device: Optional[str] = None,
    ) -> Tensor:
        """As opd.Client.zeros()."""
        return await make(self._link, self._client.zeros, shape, dtype, name, device)

    async def attach(self, name: str) -> Tensor:
        """As opd.Client.attach()."""
        return await make(self._link, self._client.attach, name)

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
        return _client.read_plan(await self._link.ask("plan", *params))

    async def synchronize(self) -> None:
        """As opd.Client.synchronize()."""
        await self._link.ask("sync")

    async def status(self) -> dict[str, Any]:
        """As opd.Client.status()."""
        return dict(await self._link.ask("status"))

    async def metrics(self) -> str:
        """As opd.Client.metrics()."""
        return str(await self._link.ask("metrics"))

    async def tensors(self) -> list[dict[str, Any]]:
        """As opd.Client.tensors()."""
        return list(await self._link.ask("tensor_list"))

    async def reload(self) -> list[dict[str, Any]]:
        """As opd.Client.reload()."""
        changes = list(await self._link.ask("reload"))
        await self.ops.refresh()
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
        return list((await self._link.ask("events", since))["events"])

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
        return dict(await self._link.ask("check", *_client.make_check(path, targets, dtypes)))

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
        made = await self._link.ask("load", text, options)
        await self.ops.refresh()
        await self._note(made["op"], Source(text, options["name"], options["folder"]))
        if made["warnings"]:
            warn_reload(made["warnings"])
        return self.ops[made["op"]]

    async def unload(self, op: str) -> None:
        """As opd.Client.unload()."""
        await self._link.ask("unload", op)
        await self.ops.refresh()
        await self._note(op, None)

    async def _note(self, op: str, source: Optional[Source]) -> None:
        """For opd.torch, which asks the daemon for it, and waits."""
        await asyncio.to_thread(note_loaded, self._client._conn, op, source)

    async def copy_speed(self, device: str) -> float:
        """As opd.Client.copy_speed()."""
        return float((await self._link.ask("device_speed", device))["copy"])

    async def rollback(self, op: str) -> int:
        """As opd.Client.rollback()."""
        return await self._serve("rollback", op)

    async def pin(self, op: str, version: Optional[int]) -> int:
        """As opd.Client.pin()."""
        return await self._serve("pin", op, version)

    async def _serve(self, method: str, *params: Any) -> int:
        version = int((await self._link.ask(method, *params))["version"])
        await self.ops.refresh()
        return version

    async def restart(self, device: str) -> dict[str, Any]:
        """As opd.Client.restart()."""
        return dict(await self._link.ask("device_restart", device))

    async def upgrade(self, path: Union[str, os.PathLike[str], None] = None) -> dict[str, Any]:
        """As opd.Client.upgrade()."""
        options = {} if path is None else {"path": os.path.abspath(path)}
        return dict(await self._link.ask("upgrade", options))

    async def stop(self) -> None:
        """As opd.Client.stop()."""
        await self._link.ask("stop")
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
