"""Calls that are recorded once and run again by one request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Optional

from ._lanes import Replayed, Replays, find_parts
from ._link import Link
from ._native import native
from ._reply import Reply
from ._warn import warn_reload
from ._wire import pack


class Graph:
    """Made by Client.capture() and Client.attach_graph(): calls on tensors that it holds, in the daemon.

    Dropping the last reference frees it, except a named one, which stays until free().
    """

    def __init__(self, link: Link, id: int) -> None:
        self._link = link
        self._id = id
        self._ended: Optional[Reply] = None  # to graph_end, of what is this client's alone
        self._begin()

    def _begin(self) -> None:
        self._again = Replays(self._link.conn)
        # A replay without options, with the number 0.
        self._data = b"\x94\x00\x00" + pack("replay") + b"\x91" + pack(self._id)
        self._parts: Any = None  # opd_native's, once it is replayed

    _expected = pack((1, 0, None, {}))  # the reply where there is nothing to say

    def replay(self, *, deadline: Optional[float] = None, debug: bool = False) -> None:
        """Runs all that was recorded again, on the same tensors, by one request.

        deadline  seconds; None: those of all calls together
        debug     each kernel alone, to be sure which one fails

        Within Client.batch() it is sent without waiting. Raises what the calls would raise, and
        InvalidArgument while something is suspect that they read.
        """
        if deadline is None and not debug:
            self._run()
            return
        options: dict[str, Any] = {}
        if deadline is not None:
            options["deadline"] = deadline
        if debug:
            options["debug"] = True
        self._link.settle(self._link.send("replay", (self._id, options), deadline))

    def _run(self) -> None:
        link, conn = self._link, self._link.conn
        batch = link.batch if link.batches else None
        if batch is not None:
            conn.send_again(self._data, batch, Replayed(self._again, 0))
            return
        if native is None:
            reply = conn.exchange(self._data, self._expected, self._again)
        else:
            if self._parts is None:
                self._parts = find_parts(conn, self._again, self._data)
            reply = native.replay(self, self._parts)
        if reply is not None:
            self._hear(reply)

    def _hear(self, reply: Reply) -> None:
        if reply.error is not None:
            raise reply.error
        for text in reply.warnings:
            warn_reload(text)

    def _offer(self) -> None:
        """Of opd_native, which has replayed it by requests for a while."""
        ended = self._ended
        if ended is not None and ended.done and ended.error is None:
            self._link.conn.offer_lane(ended.result["device"])

    def free(self) -> None:
        """Frees it now, and its name."""
        id, self._id = self._id, 0
        self._begin()
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
    ended = link.send("graph_end", (graph._id,))
    link.settle(ended)
    graph._ended = None if name is not None else ended


def attach_graph(link: Link, name: str) -> Graph:
    """Client.attach_graph()."""
    graph = Graph(link, link.new_id())
    link.request("graph_attach", (graph._id, name))
    return graph
