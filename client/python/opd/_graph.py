"""Calls that are recorded once and run again by one request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Optional

from ._link import Link


class Graph:
    """Made by Client.capture() and Client.attach_graph(): calls on tensors that it holds, in the daemon.

    Dropping the last reference frees it, except a named one, which stays until free().
    """

    def __init__(self, link: Link, id: int) -> None:
        self._link = link
        self._id = id

    def replay(self, *, deadline: Optional[float] = None, debug: bool = False) -> None:
        """Runs all that was recorded again, on the same tensors, by one request.

        deadline  seconds; None: those of all calls together
        debug     each kernel alone, to be sure which one fails

        Within Client.batch() it is sent without waiting. Raises what the calls would raise, and
        InvalidArgument while something is suspect that they read.
        """
        options: dict[str, Any] = {}
        if deadline is not None:
            options["deadline"] = deadline
        if debug:
            options["debug"] = True
        self._link.settle(self._link.send("replay", (self._id, options), deadline))

    def free(self) -> None:
        """Frees it now, and its name."""
        id, self._id = self._id, 0
        if id:
            self._link.request("free", ("graph", [id]))

    def __del__(self) -> None:
        if getattr(self, "_id", 0):
            self._link.conn.discard("graph", self._id)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("an opd.Graph is in the daemon, and is neither pickled nor copied")

    def __repr__(self) -> str:
        return f"<opd.Graph{'' if self._id else ', freed'}>"


@contextmanager
def capture_graph(link: Link, name: Optional[str]) -> Iterator[Graph]:
    """Client.capture()."""
    graph = Graph(link, link.new_id())
    link.request("graph_begin", (graph._id, {} if name is None else {"name": name}))
    try:
        yield graph
    except BaseException:
        link.conn.send("free", ("graph", [graph._id]))
        graph._id = 0
        raise
    link.request("graph_end", (graph._id,))


def attach_graph(link: Link, name: str) -> Graph:
    """Client.attach_graph()."""
    graph = Graph(link, link.new_id())
    link.request("graph_attach", (graph._id, name))
    return graph
