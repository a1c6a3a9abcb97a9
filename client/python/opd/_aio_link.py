"""What every part of an opd.aio.Client stands on: a connection whose requests are awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any, Callable, Optional, TypeVar

from ._aio_loop import AsyncTransfer, Driver, Pending
from ._link import Link

_T = TypeVar("_T")


class AsyncLink:
    """For tasks of the event loop in which it was made."""

    def __init__(self, link: Link, close: Callable[[], None]) -> None:
        self.link = link
        self._close = close  # once nobody has this any more
        self.transfer = AsyncTransfer(link.conn)
        link.transfer = self.transfer
        # As those of Link.
        self.find_method: Callable[[str], Optional[Callable[..., Awaitable[Any]]]] = lambda name: None
        self.list_methods: Callable[[], list[str]] = list
        self.loop = Driver(link.conn, always=True).loop

    def __del__(self) -> None:
        loop = getattr(self, "loop", None)
        if loop is not None and not (loop.is_closed() or self.link.conn.closed):
            loop.call_soon_threadsafe(self._close)  # the loop has it still

    @contextmanager
    def collect(self) -> Iterator[Pending]:
        """Requests that are sent inside, where nothing is awaited, are of this Pending."""
        if asyncio.get_running_loop() is not self.loop:
            raise RuntimeError("this opd.aio.Client is another event loop's; connect() in this one")
        pending, thread = Pending(self.loop), get_ident()
        self.link.batches[thread] = pending
        try:
            yield pending
        finally:
            del self.link.batches[thread]
            pending.finish()

    async def settle(self, pending: Pending) -> None:
        await pending.done()
        self.link.finish(pending)

    async def do(self, function: Callable[..., _T], *args: Any, **kwargs: Any) -> _T:
        with self.collect() as pending:
            made = function(*args, **kwargs)
        await self.settle(pending)
        return made

    async def ask(self, method: str, *params: Any) -> Any:
        return (await self.do(self.link.send, method, params)).result
