"""Lanes in the model: some calls and replays go by one, and are answered as they would be by the socket."""

import mmap
import os
import time
from collections import deque

from comparer import Wrong
from conftest import PATIENCE
from raw import make_memfd
from raw_lane import AT, DONE, IDLE, REFUSED, SIZE, Entries

SHM = 1 << 62  # no draw's
SILENCE = 0.05  # seconds after which it is asked whether an entry was begun


class Lane(Entries):
    """Of a connection of run.py."""

    def __init__(self, connection, device):
        self.connection, self.device = connection, device
        self.memory = self.bell = None
        self.is_open = False
        self.number = 0
        self.graphs = {}  # where each was armed last, by its id
        self.done = deque(maxlen=10)  # what may come again: (method, parameters)

    def open(self):
        """False: there is one, or none is to be had."""
        if self.memory is None:
            fd = make_memfd(SIZE)
            error, _ = self.connection.wait(self.connection.request("shm_open", SHM, SIZE, fds=[fd]))
            self.memory = mmap.mmap(fd, SIZE)
            os.close(fd)
            assert error is None
        bell = os.eventfd(0, os.EFD_NONBLOCK)
        error, _ = self.connection.wait(self.connection.request("lane_open", SHM, AT, self.device, fds=[bell]))
        if error is None:
            self.close_bell()
            self.bell, self.is_open = bell, True
        else:
            os.close(bell)
        return error is None

    def close_bell(self):
        if self.bell is not None:
            os.close(self.bell)
        self.bell = None

    def enter(self, method, params, prediction):
        """The number of its reply; None: it is to go by the socket."""
        expected = prediction.result if prediction.code is None else {}
        if expected is None or set(expected) - {"version"} or (prediction.code and not prediction.late):
            return None
        if not self.is_open:
            self.open()
        armed = None
        if method == "replay" and len(params) == 1:
            armed = self.graphs.pop(params[0], None)
        elif method == "call":
            error, told = self.connection.ask("lane_call", *params)
            if told == {} and self.open():
                error, told = self.connection.ask("lane_call", *params)
            armed = None if error else told.get("lane")
        if armed is None:
            return None
        self.connection.msgid += 1
        self.fill(self.connection.msgid, armed)
        return self.connection.msgid

    def end(self, msgid, prediction):
        """(error, result); None: it has not happened."""
        connection, begun, end = self.connection, None, time.monotonic() + PATIENCE
        asking = time.monotonic() + SILENCE
        while time.monotonic() < end:
            if self.get(0) == DONE:
                self.put(0, IDLE)
                if prediction.code:
                    raise Wrong(f"a lane said that it was done, expected {prediction.why}")
                return None, prediction.result
            if msgid in connection.replies:
                return connection.replies.pop(msgid)
            if self.get(REFUSED) == self.number or begun is False:
                return None
            if begun is None and time.monotonic() > asking:
                _, told = connection.ask("lane_wait", msgid)
                begun, self.is_open = told["begun"], told["open"]
            connection.read_for(0.001)
        raise Wrong("a lane's entry was not told of")
