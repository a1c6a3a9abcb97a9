"""A daemon that misbehaves on request, for the client's failure paths. What works is tested
with the real one.

It knows hello, sync, tensors of bytes without devices, shared memory, and one operator,
`copy`. `on[method] = function` makes it do something else at that request: the function
gets (daemon, socket, message) and answers or does not.

The fixtures `fake` and `client`, a connection to it, are for import.
"""

from __future__ import annotations

import mmap
import os
import socket
import threading

import msgpack
import pytest

import opd
from conftest import PATIENCE

COPY = {
    "name": "copy", "schema": "copy(Tensor x, *, int[2] times=1) -> Tensor y", "doc": "Copies.",
    "version": 1, "hash": "0" * 16, "file": "copy.cu", "dtypes": ["float32"], "has_backward": False,
    "inputs": [{"name": "x", "optional": False, "in_place": False, "differentiable": False,
                "dtypes": ["float32"], "type": "scalar_t"}],
    "attrs": [{"name": "times", "type": "int", "list": 2, "optional": False, "required": False,
               "default": [1, 1]}],
    "outputs": [{"name": "y", "dtypes": ["float32"], "type": "scalar_t"}], "examples": [],
}  # fmt: skip


class FakeDaemon:
    def __init__(self, path):
        self.path = str(path)
        self.on = {}
        self.requests = []  # (method, params), notifications too
        self.replies = 0
        self.max_message = 1 << 26
        self._memory = {}  # id -> (info, bytearray)
        self._shm = {}
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen()
        self._sockets = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()  # else it may come to accept for the next one, whose descriptor has this number
        self._listener.close()
        for sock in self._sockets:
            sock.close()

    def notify(self, sock, method, *params):
        sock.sendall(msgpack.packb([2, method, params]))

    def reply(self, sock, message, result=None, error=None):
        self.replies += 1
        sock.sendall(msgpack.packb([1, message[1], error, result]))

    def requests_of(self, method):
        return [request for request in self.requests if request[0] == method]

    def count(self, method):
        return len(self.requests_of(method))

    def _accept(self):
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(sock)
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock):
        unpacker = msgpack.Unpacker(max_buffer_size=0)
        fds = []
        while True:
            try:
                data, new, _, _ = socket.recv_fds(sock, 1 << 16, 8)
                fds += new
                if not data:
                    return
                unpacker.feed(data)
                for message in unpacker:
                    self._answer(sock, message, fds)
            except OSError:
                return

    def _answer(self, sock, message, fds):
        method, params = message[-2:]
        self.requests.append((method, params))
        if method in self.on:
            self.on[method](self, sock, message)
            return
        if not hasattr(self, "do_" + method):  # as an older daemon would
            self.reply(sock, message, None, {"code": "unknown_method", "number": 9, "message": method})
            return
        try:
            result = getattr(self, "do_" + method)(fds, *params)
        except KeyError as e:
            error = {"code": "not_found", "number": 2, "message": f"no {e}"}
            if message[0] == 0:
                self.reply(sock, message, None, error)
            return
        if message[0] == 0:
            self.reply(sock, message, result)

    def do_hello(self, fds, client, options):
        return {"protocol": 1, "version": "0", "pid": os.getpid(), "devices": [{"name": "cpu"}],
                "limits": {"max_message": self.max_message}}  # fmt: skip

    def do_op_list(self, fds):
        return [COPY]

    def do_op_info(self, fds, name):
        versions = [{"version": n, "state": "serving" if n == 2 else "retired"} for n in (2, 1)]
        return {**COPY, "versions": versions}

    def do_reload(self, fds):
        return []

    def do_events(self, fds, since=0, options=None):
        events = [{"seq": n, "kind": "reloaded", "op": "copy"} for n in (1, 2) if n > since]
        return {"events": events, "next": 3}

    def do_rollback(self, fds, op):
        return {"version": 1}

    def do_pin(self, fds, op, version):
        return {"version": version or 2, "pinned": version is not None}

    def do_check(self, fds, name, folder, source, options=None):
        return {"op": "copy", "ok": True, "errors": [], "warnings": [], "kernels": []}

    def do_sync(self, fds):
        return None

    def do_tensor_new(self, fds, id, dtype, shape, name, device):
        size = {"uint8": 1, "float32": 4, "float64": 8}[dtype]
        for n in shape:
            size *= n
        info = {"id": id, "dtype": dtype, "shape": shape, "device": "cpu", "name": name}
        self._memory[id] = (info, bytearray(size))
        return info

    def do_tensor_write(self, fds, id, offset, data):
        memory = self._memory[id][1]
        if isinstance(data, list):
            shm, at, size = data
            data = self._shm[shm][at : at + size]
        memory[offset : offset + len(data)] = data

    def do_tensor_read(self, fds, id, offset, size, shm=None):
        data = bytes(self._memory[id][1][offset : offset + size])
        if shm is None:
            return data
        self._shm[shm[0]][shm[1] : shm[1] + size] = data

    def do_free(self, fds, kind, ids, options={}):
        held = {"tensor": self._memory, "shm": self._shm}.get(kind, {})
        for id in ids:
            held.pop(id, None) if options.get("drop") else held.pop(id)

    def do_shm_open(self, fds, id, size):
        fd = fds.pop(0)
        self._shm[id] = mmap.mmap(fd, size)
        os.close(fd)

    def do_forward(self, fds, name, inputs, attrs, outputs, options):
        if name != "copy":
            raise KeyError(name)
        info, data = self._memory[inputs[0]]
        info = dict(info, id=outputs[0])
        self._memory[outputs[0]] = (info, bytearray(data))
        return {"outputs": [info], "context": None, "version": 1}


@pytest.fixture
def fake(tmp_path):
    daemon = FakeDaemon(tmp_path / "fake.sock")
    yield daemon
    daemon.close()


@pytest.fixture
def client(fake):
    with opd.connect(fake.path, start=False, timeout=PATIENCE) as client:
        yield client
