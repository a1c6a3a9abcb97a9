"""One connection: socket, message ids, replies, time-outs, shared memory's fds.

Sending never waits for a reply, and never blocks without also reading: a daemon whose
replies nobody reads stops reading too. One lock serves all threads.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
import weakref
from array import array
from collections import deque
from collections.abc import Sequence
from typing import Any, Callable, Optional

from . import _fds, _wire
from ._reply import Batch, Driver, FdReply, Reply
from ._told import Told
from .errors import (
    ConnectionLost,
    DeadlineExceeded,
    InvalidArgument,
    ProtocolError,
    from_wire,
)

CHUNK = 1 << 15  # bytes read at once
_DONTWAIT = socket.MSG_DONTWAIT
SEND = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
_FLAGS = (SEND,)
_MANY = 10_000  # ids given up in one message
_KEPT = 1000  # notifications that nobody has waited for
_BRING = ("tensor_export", "plan_export", "version_page")  # their replies may bring a descriptor
_TOGETHER = 16  # calls of a batch that go together, while the daemon is at work on those before
_process = os.getpid()


class Outgoing:
    """Messages on their way. They are queued before anything of them goes, and how much has gone is noted by
    C: wherever a signal's exception comes, the rest goes with the next request."""

    __slots__ = ("file", "messages", "sent")

    def __init__(self, message: bytes, file: Optional[_fds.File] = None) -> None:
        self.messages = [message]
        self.file = file  # its descriptor goes with the first byte
        self.sent: Optional[list[int]] = None  # none is added from here on


class Connection:
    """Speaks over a connected stream socket, which it owns from here on.

    `timeout`: seconds of silence after which waiting for a reply raises DeadlineExceeded;
    None: for ever. The connection stays usable after that. Every other failure of the
    socket closes it: ConnectionLost, now and for every later call.
    """

    def __init__(self, sock: socket.socket, path: str, timeout: Optional[float]) -> None:
        sock.setblocking(True)
        self._sock: Optional[socket.socket] = sock
        self.path = path
        self.timeout = timeout
        self.max_message = 1 << 20  # until hello says
        self._lost = ""
        self._spoilt = False  # it is to be closed: a signal's exception may have ended that, too
        self._pid = _process
        self.driver: Optional[Driver] = None
        self.lock = threading.RLock()
        self._decoder = _wire.Decoder()
        self._out: deque[Outgoing] = deque()
        self.replies: dict[int, Reply] = {}  # that are awaited, by their requests' numbers
        self._owed = False  # the reply to a request whose number is 0
        self._notifications: deque[_wire.Notification] = deque(maxlen=_KEPT)
        self._told = Told()
        self._next_msgid = 0
        self._garbage: list[tuple[str, int]] = []
        self.dropped: list[bytes] = []  # tensors that were given up, as MessagePack
        self._hurry = False  # what was given up goes with the next request, whichever it is
        # As drop(), for a tensor so small that it may wait for some others.
        self.drop_small = self.dropped.append
        self._files: deque[_fds.File] = deque()  # descriptors that came, for replies not yet read
        self._bringing = 0  # replies in flight that may bring one
        self.inbox: deque[bytes] = deque()
        self.fileno = sock.fileno
        _all.add(self)
        weakref.finalize(self, sock.close)  # without it Python complains of a client left open

    @property
    def closed(self) -> bool:
        return self._sock is None

    @property
    def timeout(self) -> Optional[float]:
        return self._timeout

    @timeout.setter
    def timeout(self, seconds: Optional[float]) -> None:
        assert self._sock is not None
        self._timeout = seconds
        # The same, for poll().
        self.patience = -1 if seconds is None else int(min(max(seconds * 1e3, 1), 0x7FFFFFFF))
        # 0 is for ever.
        whole, part = divmod(0 if seconds is None else max(int(seconds * 1e6), 1), 1_000_000)
        value = struct.pack("ll", whole, part)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)

    def send(
        self,
        method: str,
        params: Sequence[Any],
        *,
        fd: Optional[int] = None,
        batch: Optional[Batch] = None,
    ) -> Reply:
        """Sends a request. `fd` stays the caller's, who may close it at once: what waits to be sent has
        a duplicate."""
        self._check_process()
        with self.lock:
            self._check_open(method)
            data = self._encode(method, params)
            msgid = self._next_msgid
            if self._garbage or self.dropped:
                self._send_garbage()
                self._check_open(method)
            brings = method in _BRING
            reply = FdReply(msgid, method) if brings else Reply(msgid, method)
            file = None if fd is None else _fds.own(os.dup, fd)
            self._begin(reply, batch, data, file, brings)
            return reply

    def _begin(
        self,
        reply: Reply,
        batch: Optional[Batch],
        data: bytes,
        file: Optional[_fds.File] = None,
        brings: bool = False,
        later: bool = False,
    ) -> None:
        """Sends a request. That it is awaited and that it is queued come about together: there is no call
        in between, so no signal's exception either. later: the daemon need not begin at once, should it be
        at work; whoever waits for the batch sends what is queued."""
        later = later and len(self.replies) > 0 and self.driver is None
        last = self._out[-1] if later and self._out else None
        out: Any = data
        if last is not None and last.sent is None:
            queue: Callable[[Any], None] = last.messages.append
        else:
            out, queue = Outgoing(data, file), self._out.append
        self.replies[reply.msgid] = reply
        self._bringing += brings
        if batch is not None:
            reply.batch = batch
            batch.pending += 1
        queue(out)
        if not later or (last is not None and len(last.messages) >= _TOGETHER):
            self._flush()

    def _encode(self, method: str, params: Sequence[Any]) -> bytes:
        """A request with the next number."""
        self._next_msgid = msgid = self._next_msgid % 0x7FFFFFFF + 1
        data = _wire.encode_request(msgid, method, params)
        if len(data) > self.max_message:
            raise InvalidArgument(
                f"{method} is a message of {len(data)} bytes, the daemon takes "
                f"at most {self.max_message}"
            )
        return data

    def wait(self, reply: Reply) -> Any:
        """The result of a request; raises its error."""
        self.pump(lambda: reply.done, reply.method)
        if reply.error:
            raise reply.error
        return reply.result

    def call(self, method: str, *params: Any) -> Any:
        return self.wait(self.send(method, params))

    def poll(self) -> None:
        """Reads what has come, without waiting."""
        with self.lock:
            if self._sock is not None:
                self._read(_DONTWAIT)

    def write(self) -> bool:
        """Sends what is queued, as far as the socket takes it. False: there is more."""
        with self.lock:
            self._write()
            return not self._out

    # --- notifications

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
        if self.driver is not None:
            raise RuntimeError(f"{what}: an event loop cannot wait for this; await what opd.aio has for it")
        self._check_process()
        with self.lock:
            while not until():
                self._check_open(what)
                if not self._exchange_patiently():
                    raise self._silence(what)

    def discard(self, kind: str, id: int) -> None:
        """Gives an id up with the next request: of a "tensor", "context" or "export". Safe in
        __del__; the request that makes the id may be in flight, or may have failed."""
        if self._sock is not None:
            self._garbage.append((kind, id))
            self._hurry = True

    def drop(self, id: bytes) -> None:
        """As discard(), of a tensor's id that is encoded already."""
        self.dropped.append(id)
        self._hurry = True

    def collect(self) -> None:
        """Small tensors that were given up go with the next request, too."""
        self._hurry = self._hurry or bool(self.dropped)

    def close(self, reason: str = "close() was called") -> None:
        """Every reply that is still awaited fails. Does nothing the second time."""
        if self._pid != _process:
            return  # the parent's; its fd goes with this process
        with self.lock:
            if self._sock is None:
                return
            self._lost = self._lost or reason  # what a signal's exception ended before
            if self.driver is not None:
                self.driver.stop()
            self._sock.close()
            self._sock = None
            self._out.clear()
            self._garbage.clear()
            self.dropped.clear()
            self._files.clear()
            replies = list(self.replies.values())
            self.replies.clear()  # handles know this dict
            for reply in replies:
                reply.settle(None, self._lost_error(reply.method))

    def interrupt(self) -> None:
        """Closes, also while another thread waits, which is told that the connection is lost."""
        sock = self._sock
        if sock is not None and self._pid == _process:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the other side was faster
        self.close()

    def _give_up(self, cause: Optional[BaseException] = None) -> None:
        """After a signal's exception at a point where nobody knows what has gone or come. (Nearly
        all come while poll() waits, which does no harm.)"""
        what = "memory ran out" if isinstance(cause, MemoryError) else "a signal came"
        self.close(f"{what} in the middle of a message; connect again")

    def _lost_error(self, what: str) -> ConnectionLost:
        return ConnectionLost(f"{what}: the connection to {self.path} is closed: {self._lost}")

    def _silence(self, what: str) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"{what}: the daemon at {self.path} sent nothing for {self.timeout:g} s; "
            "it may still be at work (raise the client's timeout, or close the client)"
        )

    def _check_open(self, what: str) -> None:
        if self._spoilt and self._sock is not None:
            self._give_up()
        if self._sock is None:
            raise self._lost_error(what)

    def _check_process(self) -> None:
        if self._pid != _process:
            raise ConnectionLost(
                f"this client belongs to process {self._pid}, and cannot be used in process "
                f"{_process}, forked from it; call opd.connect() there"
            )

    def _send_garbage(self) -> None:
        """Sends what drop() and discard() noted, as notifications: nobody waits for replies."""
        self._hurry = False  # before the looks at what may come meanwhile
        try:
            if self._out:
                self._flush()
            while self.dropped:
                dropped = self.dropped[:_MANY]
                self._post([Outgoing(_wire.encode_drop(dropped))], self.dropped, len(dropped))
            while self._garbage:
                ids: dict[str, list[int]] = {}
                given_up = self._garbage[:_MANY]
                for kind, id in given_up:
                    ids.setdefault(kind, []).append(id)
                every = [_wire.encode_notification("free", (*of, {"drop": True})) for of in ids.items()]
                self._post(list(map(Outgoing, every)), self._garbage, len(given_up))
        except BaseException:
            self._hurry = True  # a call must not overtake what has not gone
            raise

    def _post(self, out: list[Outgoing], noted: list[Any], n: int) -> None:
        """Sends them, behind all that is queued, for the first n that were noted. As of _begin(), what is
        noted no more is queued."""
        queue = self._out.extend
        del noted[:n]  # more may have come behind them
        if self._sock is not None:  # what was sent before may have found out
            queue(out)
            self._flush()

    def _flush(self) -> None:
        """Sends all that is queued, reading too; a failure closes, and so settles the replies."""
        self._write()
        if self.driver is not None:
            if self._out:
                self.driver.want_write()
            return
        while self._out:
            if not self._exchange_patiently():
                self.close(f"the daemon took nothing for {self.timeout:g} s")

    def _exchange_patiently(self) -> bool:
        """False: silence for the timeout, and for the longest deadline of a request in flight."""
        return self._exchange(self._timeout) or self._exchange(self._find_longest())

    def _find_longest(self) -> float:
        return max((reply.deadline or 0.0 for reply in self.replies.values()), default=0.0)

    def _exchange(self, patience: Optional[float]) -> bool:
        """Waits for the socket, once, and writes and reads what it can. False: silence."""
        assert self._sock is not None
        if self.inbox:  # a signal's exception has come before it was taken
            self._take_inbox()
            return True
        if not self._out and not self._bringing and patience == self._timeout:
            return self._read(0)
        poll = select.poll()
        poll.register(self._sock, select.POLLIN | (select.POLLOUT if self._out else 0))
        ready = poll.poll(None if patience is None else patience * 1000)
        if not ready:
            return False
        if self._out:
            self._write()
        if self._sock is not None and ready[0][1] & ~select.POLLOUT:
            self._read(_DONTWAIT)
        return True

    def _write(self) -> None:
        while self._out and self._sock:
            out = self._out[0]
            if out.sent is None:
                out.sent = []
            data = b"".join(out.messages)[sum(out.sent) :]
            try:
                if out.file is None or out.sent:
                    if data:
                        out.sent.extend(map(self._sock.send, (data,), _FLAGS))
                else:
                    rights = ((socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [out.file.fileno()])),)
                    out.sent.extend(map(self._sock.sendmsg, ((data,),), (rights,), _FLAGS))
            except BlockingIOError:
                return
            except OSError as e:
                self._read_rest(e)
                return
            if out.sent[-1] < len(data):
                continue
            if self._out and self._out[0] is out:  # a signal's handler may have sent, too
                self._out.popleft()

    def _read_rest(self, cause: OSError) -> None:
        """After a failed write: the daemon's last words say why it hung up."""
        self._out.clear()
        while self._sock:
            if not self._read(_DONTWAIT):
                self.close(str(cause))

    def _read(self, flags: int) -> bool:
        """Takes what has come; False: nothing. Without _DONTWAIT it waits, for the timeout, and a
        signal's exception loses nothing: what came is in the inbox before Python looks for signals."""
        assert self._sock is not None
        try:
            if self._bringing:
                self._read_with_files()
            else:
                self.inbox.extend(map(self._sock.recv, (CHUNK,), (flags,)))
        except BlockingIOError:
            return False
        except OSError as e:
            self.close(str(e))
        self._take_inbox()
        self._told.tell()
        return True

    def _read_with_files(self) -> None:
        assert self._sock is not None
        try:
            _fds.receive(self._sock, CHUNK, self.inbox, self._files)
        except OSError:
            raise
        except BaseException as e:
            self._spoilt = self._hurry = True
            self._give_up(e)
            raise

    def _take_inbox(self) -> None:
        try:
            while self.inbox:
                self._take(self.inbox.popleft())
        except ProtocolError as e:
            self.close(str(e))
        except BaseException as e:  # from the popleft() on nobody else has it
            self._spoilt = self._hurry = True
            self._give_up(e)
            raise

    def _take(self, data: bytes) -> None:
        if not data:
            return self.close("the daemon hung up")
        for message in self._decoder.feed(data):
            if isinstance(message, list):
                self._settle(message[1], message[2], message[3])
            elif not self._told.hear(message.method, message.params):
                self._notifications.append(message)

    def _settle(self, msgid: int, error: Any, result: Any) -> None:
        reply = self.replies.pop(msgid, None)
        if msgid == 0:
            self._owed = False
        found = None if error is None else from_wire(error)
        if reply is None:
            # A signal's exception may have ended the wait before anybody could keep a reply for it.
            if found is not None and found.code == "malformed_message":
                self.close(str(found))
            return
        if isinstance(reply, FdReply):
            self._bringing -= 1
            if found is None and _brings_fd(reply.method, result) and self._files:
                reply.keep_file(self._files.popleft())  # in the order of the replies
        reply.settle(result, found)


def _brings_fd(method: str, result: Any) -> bool:
    return method != "tensor_export" or bool(result["chunk"])


# A child that kept its parent's sockets would keep the parent's tensors, too, after its end.
_all: weakref.WeakSet[Connection] = weakref.WeakSet()


def _after_fork() -> None:
    global _process
    _process = os.getpid()
    for conn in list(_all):
        # Of the parent's threads, another one may have held it.
        conn.lock._at_fork_reinit()  # type: ignore[attr-defined, unused-ignore]
        if conn._sock is not None:
            conn._sock.close()


os.register_at_fork(after_in_child=_after_fork)
