"""Events and traces for asyncio."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Callable, Optional, Union

from ._aio_loop import Driver, Pending
from ._events import EventStream, TraceStream


class Stream(AsyncIterator[dict[str, Any]]):
    """What happens, as it comes: `async with client.events(follow=True) as events: async for event in events`.
    Raises ConnectionLost if the daemon goes away; close() ends it. Nothing is read while nobody waits."""

    def __init__(self, open: Callable[[], Union[EventStream, TraceStream]]) -> None:
        self._open: Optional[Callable[[], Union[EventStream, TraceStream]]] = open
        self._inner: Optional[Union[EventStream, TraceStream]] = None
        self._starting = asyncio.Lock()
        self._queue: deque[dict[str, Any]] = deque()

    async def _start(self) -> Optional[Union[EventStream, TraceStream]]:
        """None: it is closed."""
        async with self._starting:
            if self._open is not None:
                inner = await asyncio.to_thread(self._open)
                if self._open is None:  # it was closed meanwhile
                    inner.close()
                    return None
                inner._conn.keep_notifications()
                self._inner, self._open = inner, None
                self._driver = Driver(inner._conn, always=False)
                self._queue.extend(inner._kept[::-1])
        return self._inner

    def _take(self, inner: Union[EventStream, TraceStream]) -> None:
        self._queue.extend(dict(found) for (found,) in inner._conn.take_notifications(inner._method))

    async def __anext__(self) -> dict[str, Any]:
        inner = await self._start()
        while inner is not None and not self._queue:
            self._driver.came.clear()
            self._take(inner)
            if not self._queue:
                inner._conn._check_open(inner._method)
                with self._driver.reading():
                    await self._driver.came.wait()
                inner = self._inner
        if inner is None:
            raise StopAsyncIteration
        return self._queue.popleft()

    async def read(self) -> list[dict[str, Any]]:
        """All that have come and were not given yet; of a trace, all runs whose results are there."""
        inner = await self._start()
        if inner is None:
            return []
        pending = Pending(self._driver.loop)
        inner._conn.send("sync", (), batch=pending)
        with self._driver.reading():
            await pending.done()
        pending.raise_first()
        self._take(inner)
        found = list(self._queue)
        self._queue.clear()
        return found

    async def close(self) -> None:
        self._open = None
        inner, self._inner = self._inner, None
        if inner is not None:
            inner.close()

    async def __aenter__(self) -> Stream:
        await self._start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
