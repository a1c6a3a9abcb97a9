"""The memory of a lane by hand, and clients that make their calls or replays by it."""

import ctypes
import mmap
import os
import signal
import struct
import threading
from contextlib import contextmanager

from conftest import DEVICE
from raw import Raw, find_roles, make_memfd

IDLE, AWAITED, SLEPT_ON, DONE = range(4)
AT, SIZE = 64, 4096  # of the lane in its memory
ENTRY, SLOT, SERIAL, ASLEEP, REFUSED = 64, 72, 80, 128, 132
REFUSAL = object()


class Entries:
    """A lane's memory, in `memory`, its `bell`, and the `number` of the last entry."""

    def get(self, at):
        return ctypes.c_uint32.from_buffer(self.memory, AT + at).value

    def put(self, at, value, type=ctypes.c_uint32):
        """By one store; struct.pack_into() writes zeros first."""
        type.from_buffer(self.memory, AT + at).value = value

    def fill(self, request, armed):
        slot, serial = armed
        self.put(0, AWAITED)
        self.put(ENTRY + 4, request)
        self.put(SLOT, slot)
        self.put(SERIAL, serial, ctypes.c_uint64)
        self.number = (self.number + 1) & 0xFFFFFFFF
        self.put(ENTRY, self.number)
        if self.get(ASLEEP):
            os.eventfd_write(self.bell, 1)


class Lane(Entries, Raw):
    """A client with a lane, by which it replays graphs."""

    method = "replay"

    def __init__(self, path):
        super().__init__(path)
        fd = make_memfd(SIZE)
        self.call("shm_open", 9, SIZE, fds=[fd])
        self.memory = mmap.mmap(fd, SIZE)
        os.close(fd)
        self.number = 0
        self.open()

    def open(self):
        self.bell = os.eventfd(0, os.EFD_NONBLOCK)
        self.call("lane_open", 9, AT, DEVICE, fds=[self.bell])

    def close(self):
        super().close()
        os.close(self.bell)

    def record(self, id, op, inputs, outputs):
        capture(self, id, (op, inputs, outputs))

    def again(self, id):
        """By a request."""
        return self.call("replay", id)

    def arm(self, id):
        """By a replay that goes by the socket."""
        self.armed = self.again(id).get("lane")
        return self.armed

    def enter(self, armed=None):
        """Puts an entry; the number of its reply."""
        self.msgid += 1
        self.fill(self.msgid, armed or self.armed)
        return self.msgid

    def end(self, sent):
        """None: it is told; REFUSAL; or the reply's result or error."""
        for _ in range(20000):
            if self.get(0) == DONE:
                self.put(0, IDLE)
                return None
            if self.get(REFUSED) == self.number:
                return REFUSAL
            try:
                kind, id, error, result = self.receive(0.001)
            except TimeoutError:
                continue
            assert (kind, id) == (1, sent)
            return error or result
        raise AssertionError("nothing was told")

    def run(self, armed=None):
        return self.end(self.enter(armed))

    def read(self, id):
        """The next reply is this one's: none was left."""
        sent = self.request("tensor_read", id, 0)
        kind, replied, error, result = self.receive()
        assert (kind, replied, error) == (1, sent, None), (replied, sent, error)
        return struct.unpack("4f", result)


class CallLane(Lane):
    """The same, of prepared calls."""

    method = "call"

    def record(self, id, op, inputs, outputs):
        infos = [self.call("tensor_info", each) for each in inputs]
        self.call("prepare", id, "forward", op, [[info["dtype"], info["shape"]] for info in infos], {})
        self.__dict__.setdefault("ids", {})[id] = [*inputs, *outputs]
        self.again(id)

    def again(self, id):
        return self.call("call", id, self.ids[id])

    def arm(self, id):
        self.again(id)
        self.armed = self.call("lane_call", id, self.ids[id]).get("lane")
        return self.armed


def fours(x):
    return struct.pack("4f", x, x, x, x)


def capture(raw, graph, *calls, **options):
    raw.call("graph_begin", graph, options)
    for op, inputs, outputs in calls:
        raw.call("forward", op, inputs, {}, outputs)
    raw.call("graph_end", graph)


@contextmanager
def late(pid):
    """What is waited for meanwhile takes the executor longer than a client waits for a word."""
    executor = find_roles(pid, "executor")[0]
    os.kill(executor, signal.SIGSTOP)
    timer = threading.Timer(0.3, os.kill, (executor, signal.SIGCONT))
    timer.start()
    yield
    timer.join()
