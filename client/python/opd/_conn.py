"""One connection: socket, message ids, replies, time-outs, shared memory's fds.

Sending never waits for a reply, and never blocks without also reading: a daemon whose
replies nobody reads stops reading too. One lock serves all threads.
"""

from __future__ import annotations

import array
import os
import select
import socket
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, Callable, Optional

from . import _wire
from .errors import (
    ConnectionLost,
    DeadlineExceeded,
    InvalidArgument,
    OpdError,
    ProtocolError,
    from_wire,
)

_CHUNK = 1 << 18  # bytes read at once
_MAX_FDS = 16  # of one read
_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0x40000000)
_MANY = 10_000  # ids given up in one message
_KEPT = 1000  # notifications that nobody has waited for


class Batch:
    """Counts replies that nobody waits for, and keeps the first error."""

    def __init__(self) -> None:
        self.pending = 0
        self.warnings: list[str] = []
        self._first: Optional[Reply] = None

    def settle(self, reply: Reply) -> None:
        self.pending -= 1
        self.warnings += reply.warnings
        # Replies may overtake each other; the request that was sent first is the cause of
        # the others' errors.
        if reply.error and (self._first is None or reply.msgid < self._first.msgid):
            self._first = reply

    def raise_first(self) -> None:
        """Raises the first error once."""
        first, self._first = self._first, None
        if first is not None and first.error is not None:
            raise first.error


class Reply:
    """A request that was sent: `done` once it was answered, then with a result or an error."""

    fd: Optional[int] = None  # that came with the result

    def __init__(self, msgid: int, method: str, batch: Optional[Batch]) -> None:
        self.msgid = msgid
        self.method = method
        self.deadline = 0.0  # seconds the daemon may take, where the request says
        self.done = False
        self.result: Any = None
        self.error: Optional[OpdError] = None
        self.warnings: list[str] = []  # what the daemon has to say beside the result
        self._batch = batch
        if batch:
            batch.pending += 1

    def settle(self, result: Any, error: Optional[OpdError]) -> None:
        self.done, self.result, self.error = True, result, error
        if self.method in ("forward", "plan_export") and isinstance(result, dict):
            self.warnings = list(result.get("warnings", ()))
        if self._batch:
            self._batch.settle(self)
            self._batch = None

    def take_fd(self) -> Optional[int]:
        """The descriptor that came with the result, the caller's from now on."""
        fd, self.fd = self.fd, None
        return fd

    def __del__(self) -> None:
        if self.fd is not None:
            os.close(self.fd)


class Connection:
    """Speaks over a connected stream socket, which it owns from here on.

    `timeout`: seconds of silence after which waiting for a reply raises DeadlineExceeded;
    None: for ever. The connection stays usable after that. Every other failure of the
    socket closes it: ConnectionLost, now and for every later call.
    """

    def __init__(self, sock: socket.socket, path: str, timeout: Optional[float]) -> None:
        sock.setblocking(False)
        self.path = path
        self.timeout = timeout
        self.max_message = 1 << 20  # until hello says
        self._sock: Optional[socket.socket] = sock
        self._lost = ""
        self._pid = os.getpid()
        self.lock = threading.RLock()
        self._decoder = _wire.Decoder()
        self._out: deque[tuple[memoryview, Optional[int]]] = deque()  # (bytes, fd)
        self._replies: dict[int, Reply] = {}
        self._notifications: deque[_wire.Notification] = deque(maxlen=_KEPT)
        self._next_msgid = 0
        self._garbage: deque[tuple[str, int]] = deque()
        self._fds: deque[int] = deque()  # that came, for replies not yet read
        _all.add(self)
        weakref.finalize(self, sock.close)  # without it Python complains of a client left open

    @property
    def closed(self) -> bool:
        return self._sock is None

    def send(
        self,
        method: str,
        params: Sequence[Any],
        *,
        fd: Optional[int] = None,
        batch: Optional[Batch] = None,
    ) -> Reply:
        """Sends a request; `fd` must stay open until the reply is done."""
        self._check_process()
        with self.lock:
            self._check_open(method)
            self._next_msgid = msgid = (self._next_msgid + 1) & 0xFFFFFFFF
            data = _wire.encode_request(msgid, method, params)
            if len(data) > self.max_message:
                raise InvalidArgument(
                    f"{method} is a message of {len(data)} bytes, the daemon takes "
                    f"at most {self.max_message}"
                )
            self._send_garbage()
            reply = self._replies[msgid] = Reply(msgid, method, batch)
            self._out.append((memoryview(data), fd))
            self._flush()
            return reply

    def wait(self, reply: Reply) -> Any:
        """The result of a request; raises its error."""
        self.pump(lambda: reply.done, reply.method)
        if reply.error:
            raise reply.error
        return reply.result

    def call(self, method: str, *params: Any) -> Any:
        return self.wait(self.send(method, params))

    def await_notification(self, method: str) -> list[Any]:
        """The parameters of the next one of that method, for which a request has asked."""

        def find() -> Optional[_wire.Notification]:
            return next((n for n in self._notifications if n.method == method), None)

        with self.lock:
            self.pump(lambda: find() is not None, method)
            found = find()
            assert found is not None
            self._notifications.remove(found)
            return found.params

    def keep_notifications(self) -> None:
        """All of them from now on, not only the last ones."""
        with self.lock:
            self._notifications = deque(self._notifications)

    def take_notifications(self, method: str) -> list[list[Any]]:
        """The parameters of those of that method that have come."""
        with self.lock:
            found = [n.params for n in self._notifications if n.method == method]
            self._notifications = deque(
                (n for n in self._notifications if n.method != method),
                self._notifications.maxlen,
            )
        return found

    def pump(self, until: Callable[[], bool], what: str) -> None:
        """Reads replies until `until()` holds."""
        if until():
            return
        self._check_process()
        with self.lock:
            while not until():
                self._check_open(what)
                if not self._exchange_patiently():
                    raise DeadlineExceeded(
                        f"{what}: the daemon at {self.path} sent nothing for {self.timeout:g} s; "
                        "it may still be at work (raise the client's timeout, or close the client)"
                    )

    def discard(self, kind: str, id: int) -> None:
        """Gives an id up with the next request: of a "tensor", "context" or "export". Safe in
        __del__; the request that makes the id may be in flight, or may have failed."""
        if self._sock is not None:
            self._garbage.append((kind, id))

    def close(self, reason: str = "it was closed") -> None:
        """Every reply that is still awaited fails. Does nothing the second time."""
        if self._pid != os.getpid():
            return  # the parent's; its fd goes with this process
        with self.lock:
            if self._sock is None:
                return
            self._lost = reason
            self._sock.close()
            self._sock = None
            self._out.clear()
            self._garbage.clear()
            while self._fds:
                os.close(self._fds.popleft())
            replies, self._replies = self._replies, {}
            for reply in replies.values():
                reply.settle(None, self._lost_error(reply.method))

    def interrupt(self) -> None:
        """Closes, also while another thread waits, which is told that the connection is lost."""
        sock = self._sock
        if sock is not None and self._pid == os.getpid():
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the other side was faster
        self.close()

    def _give_up(self) -> None:
        """After a signal's exception at a point where nobody knows what has gone or come. (Nearly
        all come while poll() waits, which does no harm.)"""
        self.close("a signal came in the middle of a message; connect again")

    def _lost_error(self, what: str) -> ConnectionLost:
        return ConnectionLost(f"{what}: the connection to {self.path} is closed: {self._lost}")

    def _check_open(self, what: str) -> None:
        if self._sock is None:
            raise self._lost_error(what)

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise ConnectionLost(
                f"this client belongs to process {self._pid}, and cannot be used in process "
                f"{os.getpid()}, forked from it; call opd.connect() there"
            )

    def _send_garbage(self) -> None:
        """Queues what discard() noted, as a notification: nobody waits for its reply."""
        while self._garbage:
            ids: dict[str, list[int]] = {}
            for _ in range(min(len(self._garbage), _MANY)):
                kind, id = self._garbage.popleft()
                ids.setdefault(kind, []).append(id)
            for kind, given_up in ids.items():
                self._queue_notification("free", (kind, given_up, {"drop": True}))

    def _queue_notification(self, method: str, params: Sequence[Any]) -> None:
        self._out.append((memoryview(_wire.encode_notification(method, params)), None))

    def _flush(self) -> None:
        """Sends all that is queued, reading too; a failure closes, and so settles the replies."""
        self._write()
        while self._out:
            if not self._exchange_patiently():
                self.close(f"the daemon took nothing for {self.timeout:g} s")

    def _exchange_patiently(self) -> bool:
        """False: silence for the timeout, and for the longest deadline of a request in flight."""
        if self._exchange(self.timeout):
            return True
        longest = max((reply.deadline for reply in self._replies.values()), default=0.0)
        return self._exchange(longest)

    def _exchange(self, patience: Optional[float]) -> bool:
        """Waits for the socket, once, and writes and reads what it can. False: silence."""
        assert self._sock is not None
        poll = select.poll()
        poll.register(self._sock, select.POLLIN | (select.POLLOUT if self._out else 0))
        ready = poll.poll(None if patience is None else patience * 1000)
        if not ready:
            return False
        if self._out:
            self._write()
        if self._sock is not None and ready[0][1] & ~select.POLLOUT:
            self._read()
        return True

    def _write(self) -> None:
        while self._out and self._sock:
            data, fd = self._out[0]
            ancillary = []
            if fd is not None:
                ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
            try:
                n = self._sock.sendmsg([data], ancillary, socket.MSG_NOSIGNAL)
                if n == len(data):
                    self._out.popleft()
                else:
                    self._out[0] = (data[n:], None)  # the fd went with the first byte
            except BlockingIOError:
                return
            except OSError as e:
                self._read_rest(e)
                return
            except BaseException:
                self._give_up()
                raise

    def _read_rest(self, cause: OSError) -> None:
        """After a failed write: the daemon's last words say why it hung up."""
        self._out.clear()
        while self._sock:
            self._read(cause)

    def _read(self, cause: Optional[OSError] = None) -> None:
        try:
            self._read_once(cause)
        except BaseException:
            self._give_up()
            raise

    def _read_once(self, cause: Optional[OSError]) -> None:
        assert self._sock is not None
        try:
            data, fds, _, _ = socket.recv_fds(self._sock, _CHUNK, _MAX_FDS, _CLOEXEC)
            self._fds.extend(fds)
        except BlockingIOError:
            if cause:
                self.close(str(cause))
            return
        except OSError as e:
            return self.close(str(e))
        if not data:
            return self.close("the daemon hung up")
        try:
            for message in self._decoder.feed(data):
                if isinstance(message, _wire.Notification):
                    self._notifications.append(message)
                else:
                    self._settle(message)
        except ProtocolError as e:
            self.close(str(e))

    def _settle(self, response: _wire.Response) -> None:
        reply = self._replies.pop(response.msgid, None)
        if reply is None:
            if response.error is not None:
                # Of no request of ours: the daemon could not read what we sent.
                self.close(str(from_wire(response.error)))
            return
        error = None if response.error is None else from_wire(response.error)
        if error is None and _brings_fd(reply.method, response.result):
            reply.fd = self._fds.popleft() if self._fds else None  # in the order of the replies
        reply.settle(response.result, error)


def _brings_fd(method: str, result: Any) -> bool:
    if method == "tensor_export":
        return bool(result["chunk"])
    return method in ("plan_export", "version_page")


# A child that kept its parent's sockets would keep the parent's tensors, too, after its end.
_all: weakref.WeakSet[Connection] = weakref.WeakSet()


def _after_fork() -> None:
    for conn in list(_all):
        if conn._sock is not None:
            conn._sock.close()


os.register_at_fork(after_in_child=_after_fork)
