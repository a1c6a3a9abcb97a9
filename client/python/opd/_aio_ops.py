"""Operators as functions that are awaited."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Optional

from ._aio_link import AsyncLink
from ._aio_tensor import unwrap, wrap
from ._catalog import Catalog
from ._ops import Ops as _Ops
from ._ops import take_gradient
from .errors import InvalidArgument, NotFound, OpdError


class Context:
    """As opd.Context: what forward() keeps for backward()."""

    def __init__(self, link: AsyncLink, inner: Any) -> None:
        self._link = link
        self._inner = inner

    async def backward(
        self,
        *grads: Any,
        wanted: Optional[Iterable[str]] = None,
        deadline: Optional[float] = None,
        debug: bool = False,
    ) -> tuple[Any, ...]:
        """As opd.Context.backward()."""
        given = [unwrap(grad) for grad in grads]
        options = {"wanted": wanted, "deadline": deadline, "debug": debug}
        made = await self._link.do(self._inner.backward, *given, **options)
        replies = [t._reply for m in made for t in (m if isinstance(m, list) else (m,)) if t is not None]
        infos = replies[0].result if replies else made
        return tuple(wrap(self._link, each) for each in map(take_gradient, made, infos))

    async def free(self) -> None:
        """As opd.Context.free()."""
        await self._link.do(self._inner.free)


class Operator:
    """An operator of the daemon: `await client.ops.gelu(x)`."""

    def __init__(self, ops: Ops, name: str) -> None:
        self._ops = ops
        self.__name__ = name
        inner = ops._inner._functions.get(name)
        if inner is not None:
            self.__doc__, self.__signature__ = inner.__doc__, inner.__signature__
            self.schema: str = inner.schema
            self.version: int = inner.version

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return (await self._ops._run(self.__name__, args, kwargs, keep=False))[0]

    async def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, Context]:
        """The same, and a Context for backward."""
        value, context = await self._ops._run(self.__name__, args, kwargs, keep=True)
        assert context is not None
        return value, context

    def __repr__(self) -> str:
        return f"<opd.aio.Operator {self.__name__}>"


class Ops:
    """Every operator of the daemon is an attribute, as of opd.Ops, to be awaited. What is listed are
    those known since connect() or reload(); one that has come since is found when it is called."""

    def __init__(self, link: AsyncLink, inner: _Ops, catalog: Catalog) -> None:
        self._link = link
        self._inner = inner
        self._catalog = catalog
        link.find_method = lambda name: self[name] if name in self else None
        link.list_methods = lambda: dir(self)

    def __getattr__(self, name: str) -> Operator:
        if name.startswith("__"):
            raise AttributeError(name)
        return Operator(self, name)

    def __getitem__(self, name: str) -> Operator:
        return Operator(self, name)

    def __dir__(self) -> list[str]:
        return sorted(name for name in self._catalog.specs if "." not in name)

    def __iter__(self) -> Iterator[str]:
        return iter(dir(self))

    def __len__(self) -> int:
        return len(dir(self))

    def __contains__(self, name: object) -> bool:
        return name in self._catalog.specs

    async def refresh(self) -> None:
        self._catalog.take_up(self._catalog.read(await self._link.ask("op_list")))

    async def _run(
        self, name: str, args: Sequence[Any], kwargs: dict[str, Any], keep: bool
    ) -> tuple[Any, Optional[Context]]:
        """One call; if the operator turns out to have changed since we asked, a second one."""
        args = [unwrap(value) for value in args]
        kwargs = {key: unwrap(value) for key, value in kwargs.items()}
        spec = self._catalog.specs.get(name)
        try:
            if spec is None:
                raise NotFound(f"the daemon has no operator {name!r}", op=name)
            return await self._run_once(name, args, kwargs, keep)
        except (TypeError, InvalidArgument, NotFound) as e:
            misfit = isinstance(e, OpdError) and e._misfit
            if misfit:
                self._inner._forget(name)
            await self.refresh()
            now = self._catalog.specs.get(name)
            if now is None:
                events = (await self._link.ask("events", 0))["events"]
                raise NotFound(self._catalog.explain_missing(name, events), op=name) from None
            if spec and now.info == spec.info and not misfit:
                raise
        return await self._run_once(name, args, kwargs, keep)

    async def _run_once(
        self, name: str, args: Sequence[Any], kwargs: dict[str, Any], keep: bool
    ) -> tuple[Any, Optional[Context]]:
        spec = self._catalog.specs[name]
        with self._link.collect() as pending:
            made = self._inner._run_once(spec, args, kwargs, keep)
        await self._link.settle(pending)
        if pending.version not in (0, spec.version) and not kwargs.get("version"):
            await self.refresh()
        value, context = made if keep else (made, None)
        return wrap(self._link, value), context and Context(self._link, context)

    def __repr__(self) -> str:
        return f"<opd.aio.Ops of {self._link.link.conn.path}>"
