"""A connection to a daemon, with its operators and tensors."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Optional, Union, overload

from ._catalog import Catalog
from ._dtypes import check_dtype, check_shape
from ._events import EventStream, TraceStream
from ._graph import Graph, attach_graph, capture_graph
from ._link import Link, connect_link
from ._load import Source, find_source, forget_loaded, note_loaded
from ._memory import Memory
from ._ops import Ops
from ._warn import warn_reload
from .tensor import Tensor, make_tensor, make_zeros


def connect(
    socket: Optional[str] = None,
    *,
    start: bool = True,
    timeout: Optional[float] = 60.0,
    kernels: Union[str, "os.PathLike[str]", Iterable[Union[str, "os.PathLike[str]"]]] = (),
) -> Client:
    """Connects to the daemon at a socket's path; None: $OPD_SOCKET,
    $XDG_RUNTIME_DIR/opd/opd.sock, /tmp/opd-UID/opd.sock.

    start    starts a daemon there if none serves: $OPD_BIN, this checkout's build/opd or this
             installation's bin/opd, or the opd of $PATH. It outlives us; its log is beside the socket.
    timeout  seconds of silence from the daemon after which a wait raises DeadlineExceeded
             (None: never); a request's own deadline is added
    kernels  a folder of operators, or several: the daemon serves them too from now on, for everybody,
             a running one as well; a ReloadWarning tells of what it does not take

    Raises ConnectionLost if there is no daemon and none can be started, or if it is another user's,
    to whom nothing is sent: trusted are this user and root; at a path that was given, here or by
    $OPD_SOCKET, also whoever has given the socket to a group of ours, as the daemon's --group does;
    and root may name anybody's. ProtocolError if it speaks another protocol.
    """
    client = Client(connect_link(socket, start, timeout))
    try:
        for folder in [kernels] if isinstance(kernels, (str, os.PathLike)) else kernels:
            client._take_changes("kernels_add", os.path.abspath(folder))
    except BaseException:
        client.close()
        raise
    return client


class Client:
    """Made by opd.connect(). Several threads may use one; after a fork the child needs its own.
    A signal's handler may raise, and must not use one: a call may be waiting in it.

    ops   every operator of the daemon, as a function
    info  what the daemon said of itself: version, devices, dtypes, limits
    """

    def __init__(self, link: Link) -> None:
        self.info = link.info
        self._link = link
        self._catalog = Catalog(link)
        self._memory = Memory(link)
        self.ops = Ops(link, self._catalog, self._memory)
        self._conn = link.conn

    @property
    def socket(self) -> str:
        """The path."""
        return self._conn.path

    def tensor(
        self,
        data: Any,
        dtype: Any = None,
        name: Optional[str] = None,
        device: Optional[str] = None,
    ) -> Tensor:
        """Copies an array, torch tensor, scalar or nested list to the daemon. An array of CuPy
        or JAX in the memory of the daemon's GPU is copied there.

        dtype   the data's own if None; bfloat16 may be made of any numbers, other dtypes of
                their kind or a lesser one (not int32 of floats)
        name    the tensor stays after this client, for attach()
        device  "cuda:0"; the daemon's default if None

        Raises TypeError for a dtype the daemon does not have, InvalidArgument for a name in
        use, OutOfMemory.
        """
        return self._memory.upload(data, dtype, name, device)

    def zeros(
        self,
        shape: Any,
        dtype: Any = "float32",
        name: Optional[str] = None,
        device: Optional[str] = None,
    ) -> Tensor:
        """A new tensor of zeros. Raises as tensor() does."""
        return make_zeros(self._link, shape, dtype, name, device)

    def attach(self, name: str) -> Tensor:
        """The tensor that some client made with that name. Raises NotFound."""
        return make_tensor(self._link, "tensor_attach", name)

    def plan(
        self,
        op: str,
        inputs: Sequence[Any],
        attrs: Optional[dict[str, Any]] = None,
        *,
        version: Optional[int] = None,
        device: Optional[str] = None,
    ) -> dict[str, Any]:
        """What a forward would give, without running it: version, outputs and saved tensors
        as (dtype, shape), views (for each output the number of the input that it is a view of,
        or None).

        inputs  (dtype, shape) for each tensor input; None: absent

        Raises what the forward would raise for these.
        """
        return read_plan(self._conn.call("plan", *make_plan(op, inputs, attrs, version, device)))

    def batch(self) -> AbstractContextManager[None]:
        """Requests of this thread inside are sent without waiting, several at a time; the end
        waits, and raises the first error.

        What a failed request was to make does not exist, so later requests that use it fail
        too. Asking a tensor for its shape or its data waits for that one.
        """
        return self._link.begin_batch()

    def capture(self, name: Optional[str] = None) -> AbstractContextManager[Graph]:
        """Runs a block, and records its calls, to run all of them again by one request:

            with client.capture() as graph:
                loss = step(x, target)
            for batch in batches:
                x.write(batch)
                graph.replay()

        A replay takes the same tensors, new ones of the block too, and writes its results into
        them: `loss` is that of the last replay. The graph holds their memory, also of those that
        the block has dropped. What is recorded: operators, backward, zeros() and copies; the
        numbers that a call got stay as they were, and so do tensors that the block made from
        data. tensor.write() to any other is refused. Calls of all threads are recorded.

        An edit of an operator is followed: the next replay runs the new version. Where that does
        not fit any more (results of other shapes), the graph stays on the version that it has, with
        a ReloadWarning.

        name  others can attach_graph() to it, and it stays after this client, as long as the
              daemon: one that is killed keeps named tensors, and no graph

        Raises what the block raises; InvalidArgument for a graph within a graph, for a block that
        uses two devices, or runs nothing.
        """
        return capture_graph(self._link, name)

    def attach_graph(self, name: str) -> Graph:
        """The graph that some client captured with that name. Raises NotFound."""
        return attach_graph(self._link, name)

    def synchronize(self) -> None:
        """Waits until all that this client sent is done; within batch(), raises the first error."""
        self._conn.call("sync")
        if self._link.batch is not None:
            self._link.finish(self._link.batch)

    def status(self) -> dict[str, Any]:
        """Version, devices, memory, requests, compilers: `status` of protocol/README.md."""
        return dict(self._conn.call("status"))

    def metrics(self) -> str:
        """Counters and gauges, in the text that Prometheus reads."""
        return str(self._conn.call("metrics"))

    def tensors(self) -> list[dict[str, Any]]:
        """Every named tensor, and the unnamed ones of this client: dtype, shape, name ..."""
        return list(self._conn.call("tensor_list"))

    def reload(self) -> list[dict[str, Any]]:
        """Makes the daemon look at its kernels' files now, and waits until it has taken them up.

        Returns what changed, one dict for each operator: op, file, version, state ("serving",
        "failed", "withdrawn", "shadowed"), message, log, ms. A ReloadWarning tells of each that
        failed, what was served before it still is; of each file that is "shadowed": another one
        of that operator wins; and of what is "serving" but hardly meant, with a message.
        """
        return self._take_changes("reload")

    def _take_changes(self, *request: Any) -> list[dict[str, Any]]:
        changes = list(self._link.ask(*request))
        self._catalog.update()
        warn_of_changes(changes)
        return changes

    @overload
    def events(
        self, since: int = 0, follow: Literal[False] = False
    ) -> list[dict[str, Any]]: ...

    @overload
    def events(self, since: int = 0, *, follow: Literal[True]) -> EventStream: ...

    def events(
        self, since: int = 0, follow: bool = False
    ) -> Union[list[dict[str, Any]], EventStream]:
        """Reloads, failures, restarts of devices: those after event number `since`, oldest first.

        Each is a dict: seq (its number), time (Unix), kind, and what applies of op, version, file,
        message, log, ms. The daemon keeps the last 1000. With follow, an iterator that gives
        these and then waits for more, on a connection of its own; close() ends it.
        """
        if not follow:
            return list(self._link.ask("events", since)["events"])
        conn = self._link.open_another()
        try:
            return EventStream(conn, since)
        except BaseException:
            conn.close()
            raise

    def trace(self) -> TraceStream:
        """Runs of operators from now on, of all clients, with the time that each took on its device:

            with client.trace() as runs:
                client.ops.gelu(x).numpy()
                for run in runs.read(): print(run["op"], run["seconds"])

        Each is a dict: seq (its number), time (Unix, of its end), op, version, direction
        ("forward", "backward"), device, kernels (launches), queued and seconds (waiting, and on the
        device), client, pid, connection, and error if it failed. read() gives those that have ended,
        iteration waits for more. On a connection of its own; close() ends it, and the measuring.
        """
        conn = self._link.open_another()
        try:
            return TraceStream(conn)
        except BaseException:
            conn.close()
            raise

    def check(
        self,
        path: Union[str, os.PathLike[str]],
        targets: Union[str, Iterable[str], None] = None,
        dtypes: Union[str, Iterable[str], None] = None,
    ) -> dict[str, Any]:
        """Compiles an operator's file without serving it.

        targets  "sm_90", "cpu" (None: those of the daemon's devices)
        dtypes   None: all that the operator has

        Returns a dict: op, ok, errors (each with message and log), warnings, and kernels: what
        each takes, for each dtype and target. `check` of protocol/README.md.
        """
        return dict(self._link.ask("check", *make_check(path, targets, dtypes)))

    def load(
        self,
        source: Union[str, os.PathLike[str]],
        shared: bool = False,
        *,
        name: Optional[str] = None,
        line: Optional[int] = None,
    ) -> Any:
        """Serves an operator from a string, or from a file anywhere; returns it, as client.ops has
        it from now on, by the name in its header:

            scale = client.load('''
            //! op      scale(Tensor x, *, float by = 2.0) -> Tensor y
            //! dtypes  float32 float64
            //! formula y = by * x
            //! example x=[8]
            ''')
            scale([1.0, 2.0], by=3).numpy()

        It is this client's alone, before others of its name, and gone with it; backward still works
        where a Context is kept. Another source of that name is the next version, served when its
        kernels are ready; one that fails changes nothing.

        source  the text, or the path of a file, which is read once: load it again after an edit.
                Its #include "..." are looked up in its folder, those of a text nowhere
        shared  everybody sees it, before a file's of its name
        name    of the file that errors and events tell, and
        line    the number of the text's first line; None: where the text is a literal in the
                program that calls, they are its

        Raises InvalidArgument for a header that is wrong, CompileError, OutOfMemory beyond 256
        operators, OSError.
        """
        text, options = make_load(source, shared, name, line)
        made = self._link.ask("load", text, options)
        self._catalog.refresh()
        note_loaded(self._conn, made["op"], Source(text, options["name"], options["folder"]))
        if made["warnings"]:
            warn_reload(made["warnings"])
        return self.ops[made["op"]]

    def unload(self, op: str) -> None:
        """Withdraws an operator that this client has loaded; one of its name that it was before is
        seen again. Raises NotFound."""
        self._link.ask("unload", op)
        self._catalog.update()
        note_loaded(self._conn, op, None)

    def rollback(self, op: str) -> int:
        """Serves, for every client, the version before the one that is served, until its file is
        edited again. Returns its number; raises NotFound if there is none."""
        version = int(self._link.ask("rollback", op)["version"])
        self._catalog.update()
        return version

    def pin(self, op: str, version: Optional[int]) -> int:
        """Serves, for every client, this version whatever is edited; None: the newest again.
        Returns the number of the version that is served."""
        served = int(self._link.ask("pin", op, version)["version"])
        self._catalog.update()
        return served

    def restart(self, device: str) -> dict[str, Any]:
        """Ends a device's process, for every client, once what was sent to it is done, and starts
        another; tensors stay. Returns the device, as in status(); raises NotFound, Unavailable."""
        return dict(self._link.ask("device_restart", device))

    def copy_speed(self, device: str) -> float:
        """How many bytes in a second a device reads and writes where it copies: what operators
        are held against. The daemon measures it once. Raises NotFound, OutOfMemory."""
        return float(self._link.ask("device_speed", device)["copy"])

    def upgrade(self, path: Union[str, os.PathLike[str], None] = None) -> dict[str, Any]:
        """Replaces the daemon's program, which keeps its socket, connections, tensors, contexts
        and versions, for every client. Requests that come meanwhile are answered late.

        path  the new program (None: where the daemon's own was started from)

        Returns a dict: version, pid, upgrades, seconds, held (seconds in which nothing was begun).
        Raises InvalidArgument for a program that cannot take over, Unavailable where requests
        do not end in time; the daemon then goes on as before.
        """
        options = {} if path is None else {"path": os.path.abspath(path)}
        return dict(self._link.ask("upgrade", options))

    def stop(self) -> None:
        """Ends the daemon, for every client, once the requests in flight are done; and closes."""
        self._conn.call("stop")
        self.close()

    def close(self) -> None:
        """Ends the connection and its unnamed tensors; later calls raise ConnectionLost."""
        self._link.close()
        forget_loaded(self._conn)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("an opd.Client is a connection; each process makes its own by opd.connect()")

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<opd.Client of {self.socket}{', closed' if self._conn.closed else ''}>"


def make_plan(
    op: str,
    inputs: Sequence[Any],
    attrs: Optional[dict[str, Any]],
    version: Optional[int],
    device: Optional[str],
) -> tuple[Any, ...]:
    """The parameters of `plan`."""
    given = [None if i is None else [check_dtype(i[0]), check_shape(i[1])] for i in inputs]
    chosen = {"version": version, "device": device}
    options = {key: value for key, value in chosen.items() if value is not None}
    return op, given, attrs or {}, options


def read_plan(result: dict[str, Any]) -> dict[str, Any]:
    plan = dict(result)
    for key in ("outputs", "saved"):
        plan[key] = [(dtype, tuple(shape)) for dtype, shape in plan[key]]
    return plan


def make_check(
    path: Union[str, os.PathLike[str]],
    targets: Union[str, Iterable[str], None],
    dtypes: Union[str, Iterable[str], None],
) -> tuple[Any, ...]:
    """The parameters of `check`."""
    file = os.path.realpath(path)
    with open(file, encoding="utf-8", newline="") as source:
        text = source.read()
    options = {
        key: [value] if isinstance(value, str) else list(value)
        for key, value in (("targets", targets), ("dtypes", dtypes))
        if value is not None
    }
    folder, name = os.path.split(file)
    return name, folder, text, options


def make_load(
    source: Union[str, os.PathLike[str]], shared: bool, name: Optional[str], line: Optional[int]
) -> tuple[Any, ...]:
    """The parameters of `load`."""
    found = find_source(source, name, line)
    return found.text, {"name": found.name, "folder": found.folder, "shared": shared}


def warn_of_changes(changes: list[dict[str, Any]]) -> None:
    """Tells of what `reload` says that is not served, or hardly meant."""
    for change in changes:
        if change["state"] == "shadowed" or (change["state"] == "serving" and change["message"]):
            warn_reload(change["message"])
        if change["state"] == "failed":
            name = change["op"] or change["file"]
            message, log = change["message"], change.get("log") or ""
            details = log if message in log else f"{message}\n{log}"
            warn_reload(f"{name}: this edit is not served:\n{details.rstrip()}")
