"""A connection on which calls go that are prepared (_prepared.py), and replays of graphs (_graph.py).

opd_native does as exchange() (client/python/native_exchange.c), by the methods here.
"""

from __future__ import annotations

import fcntl
import os
import socket
from typing import Any, Optional

from . import _fds
from ._conn import CHUNK, SEND, Connection
from ._native import native
from ._reply import Again, Batch, Reply
from .errors import OpdError

WORD, _PAGE = 2**63 - 1, 4096  # id and size of the shared memory of `word`
CALL = "forward"  # what messages say of a prepared one


class CallConnection(Connection):
    def __init__(self, sock: socket.socket, path: str, timeout: Optional[float]) -> None:
        super().__init__(sock, path, timeout)
        self.word: Any = None  # of opd_native: where calls are told to be done
        self._shares = native is not None  # that is still to be tried
        self._buffer = bytearray(CHUNK)
        self._quick_send, self._quick_recv = sock.send, sock.recv_into

    def send_call(self, data: bytes, batch: Optional[Batch], deadline: Optional[float]) -> Reply:
        """As send_again(), of a `call`."""
        reply = Reply(0, CALL)
        reply.deadline = deadline
        return self.send_again(data, batch, reply)

    def send_again(self, data: bytes, batch: Optional[Batch], reply: Reply) -> Reply:
        """Sends an encoded request whose number is 0 with a number of its own, which the reply is to have, too."""
        self._check_process()
        with self.lock:
            if self._hurry:
                self._check_open(reply.method)
                self._send_garbage()
            if self._sock is None or self._spoilt:
                self._check_open(reply.method)
            self._next_msgid = reply.msgid = msgid = self._next_msgid % 0x7FFFFFFF + 1
            data = b"\x94\x00\xce" + msgid.to_bytes(4, "big") + data[3:]
            self._begin(reply, batch, data, later=batch is not None)
            return reply

    def exchange(self, data: bytes, expected: bytes, again: Again) -> Optional[Reply]:
        """As send_again(), and waits. None: the reply was `expected`, byte for byte; else it is this one,
        done. Where nothing else is in flight the numbers are 0, and then nothing is kept of the
        request, and nothing decoded of a reply that is as expected.
        """
        with self.lock:
            if self._hurry:
                self._collect(again)
            if self.replies or self._owed:
                return self._exchange_slowly(data, again)
            sent, buffer = -1, self._buffer
            buffer[0] = 0
            self._owed = True  # until it comes, wherever a signal ends the wait
            try:
                sent = self._quick_send(data, SEND)  # a page or less goes as a whole, or not at all
                n = self._quick_recv(buffer)
                if n == len(expected) and buffer.startswith(expected):
                    self._owed = False
                    return None
                self.inbox.append(bytes(buffer[:n]))
            except BaseException as e:
                return self._recover(e, sent, data, again)
            return self._hear_first(again, False)

    def _exchange_slowly(self, data: bytes, again: Again) -> Reply:
        """Where something else is in flight, or the socket takes nothing."""
        return self._await(self.send_again(data, None, again.new_reply()))

    def _hear_first(self, again: Again, silence: bool, number: int = 0) -> Reply:
        """The reply to the request with that number, which has gone; silence: nothing has come for the
        timeout."""
        reply = self._keep_reply(again, number)
        if silence and not self._exchange(self._find_longest()):
            raise self._silence(reply.method)
        return self._await(reply)

    def share_word(self) -> None:
        """From now on opd_native waits for calls to be told done in `word`, where the daemon knows how."""
        if not self._shares or self.driver is not None:
            return
        self._shares = False
        try:
            with _fds.own(os.memfd_create, "opd-done", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING) as file:
                fd = file.fileno()
                os.ftruncate(fd, _PAGE)
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
                word = native.share_word(fd)
                self.wait(self.send("shm_open", (WORD, _PAGE), fd=fd))
            self.call("done_word", WORD, 0)
            self.word = word
        except (OpdError, OSError):
            pass
        except BaseException:  # a signal's: tried once more by the next that is prepared
            self.discard("shm", WORD)
            self._shares = True
            raise

    def _make_told(self, version: int) -> Reply:
        """The reply that would have come in place of the word."""
        reply = Reply(0, CALL)
        reply.settle({"version": version}, None)
        return reply

    def _collect(self, again: Again) -> None:
        self._check_process()
        self._check_open(again.method)
        self._send_garbage()

    def _keep_reply(self, again: Again, number: int = 0) -> Reply:
        """For a request with that number, which has gone."""
        self.replies[number] = reply = again.new_reply(number)
        return reply

    def _recover(self, cause: BaseException, sent: int, data: bytes, again: Again) -> Reply:
        """After an exception in exchange()."""
        signalled = not isinstance(cause, OSError)
        if sent < 0 and not signalled:
            self._owed = False
            return self._exchange_slowly(data, again)  # finds out why nothing went
        if signalled and (sent < 0 or self._buffer[0]):
            self._give_up(cause)
        if signalled:
            raise cause
        return self._hear_first(again, isinstance(cause, BlockingIOError))

    def _await(self, reply: Reply) -> Reply:
        self._take_inbox()
        self._told.tell()
        self.pump(lambda: reply.done, reply.method)
        return reply
