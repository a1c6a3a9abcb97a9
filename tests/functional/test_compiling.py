"""What is told of a first compile: to the client whose request waits for it, and to all who follow events."""

import ctypes
import logging
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from libopd import LIBRARY
from libopd import Client as LibraryClient
from operators import double_by, put_kernels
from raw import Raw

from conftest import DEVICE, eventually

pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="holds the host's compiler up")


@pytest.fixture
def daemon(start_daemon, tmp_path, slow_cxx):
    return start_daemon("--cache", "", "--kernels", put_kernels(tmp_path / "kernels", double_it=double_by(2)))


def test_the_wire(daemon, slow_cxx):
    with Raw(daemon.socket) as raw, Raw(daemon.socket) as other, Raw(daemon.socket) as follower:
        follower.call("events", 0, {"follow": True})
        raw.call("hello", "", {"notify": ["compiling", "compiled"]})
        for c in (raw, other):
            c.make(1, "float32", [3])
            c.waiting = c.request("forward", "double_it", [1], {}, [2])
        told = {"op": "double_it", "dtype": "float32", "kernels": 1}
        assert raw.receive() == [2, "compiling", [told]]
        slow_cxx.go.touch()
        kind, method, (compiled,) = raw.receive()
        assert (kind, method) == (2, "compiled") and compiled["ms"] >= 500
        told |= {"kind": "compiled", "version": 1}
        assert told.items() <= compiled.items()
        assert raw.receive()[:3] == [1, raw.waiting, None]
        assert other.receive()[:2] == [1, other.waiting]  # which has not asked to be told
        kind, method, (event,) = follower.receive()
        assert (kind, method) == (2, "event") and told.items() <= event.items()
        raw.call("forward", "double_it", [1], {}, [3])
        raw.make(4, "float32", [5])
        raw.call("forward", "double_it", [4], {}, [5])  # the same kernel
        raw.make(6, "float64", [5])
        waiting = raw.request("forward", "double_it", [6], {}, [7])
        while (message := raw.receive())[1] == "compiling":  # where it takes long
            pass
        method, (compiled,) = message[1:]
        assert (method, compiled["dtype"]) == ("compiled", "float64")
        assert raw.receive()[:3] == [1, waiting, None]
        events = [(e["kind"], e.get("dtype")) for e in raw.call("events")["events"]]
        assert events == [("compiled", "float32"), ("compiled", "float64")]


class Terminal:
    def __init__(self):
        self.written = []

    def write(self, text):
        self.written.append(text)

    def flush(self):
        pass

    def isatty(self):
        return True


def wait_for_it(daemon, slow_cxx, shown):
    """A first call, which goes on when something is shown."""

    def let_go():
        assert eventually(lambda: shown)
        slow_cxx.go.touch()

    with daemon.connect() as client:
        x = client.tensor(np.ones(3))
        thread = threading.Thread(target=let_go)
        thread.start()
        assert client.ops.double_it(x).numpy().tolist() == [2, 2, 2]
        thread.join()


LINE = "opd: compiling double_it for float64 ..."


def test_python(daemon, slow_cxx, monkeypatch, caplog):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    caplog.set_level(logging.INFO, "opd")
    wait_for_it(daemon, slow_cxx, terminal.written)
    assert terminal.written == [LINE, "\r\x1b[K"]
    (record,) = (r for r in caplog.records if r.name == "opd")
    assert record.getMessage().startswith("compiled double_it for float64: 1 kernel, ")


def test_a_notebook(daemon, slow_cxx, monkeypatch):
    shown = []

    class Display:
        def display(self, data, *, raw, display_id):
            assert raw and display_id
            shown.append(data)
            return self

        def update(self, data, *, raw):
            assert raw
            shown.append(data)

    class Shell:
        kernel = None

    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=Shell, display=Display()))
    wait_for_it(daemon, slow_cxx, shown)
    assert shown == [{"text/plain": LINE}, {"text/plain": ""}]


def test_python_without_a_terminal(daemon, slow_cxx, capfd):
    slow_cxx.go.touch()
    with daemon.connect() as client:
        assert client.ops.double_it(client.tensor(np.ones(3))).numpy().tolist() == [2, 2, 2]
    assert capfd.readouterr() == ("", "")


class Compile(ctypes.Structure):
    _fields_ = [("op", ctypes.c_char * 64), ("dtype", ctypes.c_char * 16), ("kernels", ctypes.c_int64),
                ("done", ctypes.c_bool), ("ms", ctypes.c_double)]  # fmt: skip


@pytest.mark.unsanitized("Python cannot load a sanitizer's library")
def test_c(daemon, slow_cxx):
    heard = []

    def note(data, told):
        heard.append((data, told[0].op, told[0].dtype, told[0].kernels, told[0].done, told[0].ms >= 500))
        slow_cxx.go.touch()

    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(Compile))
    on_compile = ctypes.CDLL(LIBRARY).opd_on_compile
    on_compile.restype = ctypes.c_bool
    c = LibraryClient(daemon.socket)
    c.make(1, 1, 1, 1)
    callback = function(note)
    c.done(on_compile(c.client, callback, ctypes.c_void_p(77), ctypes.byref(c.error)))
    c.forward("double_it", [1], [2])
    of = (77, b"double_it", b"float32", 1)
    assert heard == [(*of, False, False), (*of, True, True)]
    c.forward("double_it", [1], [3])
    c.done(on_compile(c.client, function(), None, ctypes.byref(c.error)))
    c.close()
    assert len(heard) == 2
