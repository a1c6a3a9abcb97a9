"""How torch's tensors get to one of the daemon's devices and back: what _session.py asks for, and
_host.py and _cuda.py do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, Optional, Protocol

import torch

from .._calls import CallConnection
from .._conn import Connection
from .._reply import Batch, Reply
from .._warn import warn_reload
from ..errors import InvalidArgument
from ._dtypes import Desc

Maybe = Optional[torch.Tensor]


class Job(NamedTuple):
    """A request that reads and makes tensors. A transport gives it their ids."""

    reads: Sequence[Maybe]
    mutated: Sequence[int]  # positions in reads that it writes, too
    strided: Collection[int]  # those that are taken as they lie; the others are made contiguous
    makes: Sequence[Desc]
    # Ids of reads, ids for what it makes, and whether these are tensors that are there already.
    # The reply is settled within the batch.
    send: Callable[[list[Optional[int]], list[Optional[int]], bool, Batch], Reply]


class Transport(Protocol):
    """Gets torch's tensors to one of the daemon's devices and back, over one connection: what it
    knows by ids is of no use on another."""

    conn: CallConnection

    def run(self, job: Job) -> tuple[Any, list[torch.Tensor]]: ...

    def release(self) -> None: ...


def finish(conn: Connection, batch: Batch, reply: Reply) -> Any:
    """Waits for all of a batch, raises its first error, tells its warnings."""
    conn.pump(lambda: batch.pending == 0, reply.method)
    batch.raise_first()
    for text in batch.warnings:
        warn_reload(text)
    return reply.result


def find_device(name: str, tensors: Sequence[Maybe]) -> torch.device:
    """Where all of them are."""
    found: Optional[torch.device] = None
    for tensor in tensors:
        if tensor is None:
            continue
        if found is None:
            found = tensor.device
        elif tensor.device != found:
            raise InvalidArgument(
                f"{name}: its tensors are on {found} and {tensor.device}, expected one device",
                op=name,
            )
    return found or torch.device("cpu")
