"""What kernels print comes to the client that called, in order, before the reply."""

import ctypes
import os
import re
import signal
import sys

import numpy as np
import pytest
from libopd import LIBRARY
from libopd import Client as LibraryClient
from operators import put_kernels
from raw import Raw, find_roles
from upgrades import upgrade

import opd
from conftest import DEVICE, eventually, in_threads

MOST = 64 << 10  # bytes of a request
LINE = "talk: line {} of {:.2f}, {}%\n"
TALK = r"""
//! op      talk(Tensor x, *, int lines=1, int first=0, bool stuck=False, bool bad=False) -> Tensor y
//! dtypes  float32
//! shape   x [N]
//! shape   y [N]
//! example x=[4]
//
//! forward
//!   kernel talk
//!   grid   1
//!   block  1
//! backward grad_x
//!   kernel talk_back
//!   grid   1
//!   block  1

__global__ void talk(const float *x, float *y, int N, int lines, int first, bool stuck, bool bad)
{
    volatile const float *p = x;
    for (int i = 0; i < N; i++)
        y[i] = x[i];
    for (int i = 0; i < lines; i++)
        printf("talk: line %d of %.2f, %s%%\n", first + i, x[0], N > 2 ? "many" : "few");
    while (stuck)
        if (p[0] == 12345.0f)
            break;
    if (bad)
        y[0] = p[1ll << 44];
}

__global__ void talk_back(const float *grad_y, float *grad_x, int N)
{
    printf("back\n");
    for (int i = 0; i < N; i++)
        grad_x[i] = grad_y[i];
}
"""
# As many threads as elements print.
CROWD = r"""
//! op      crowd(Tensor x) -> Tensor y
//! dtypes  float32
//! shape   x [N]
//! shape   y [N]
//! example x=[4]
//
//! forward
//!   kernel crowd

#include <cstdio>

__global__ void crowd(const float *x, float *y, int64_t N)
{
    CUDA_KERNEL_LOOP(i, N) {
        y[i] = x[i];
        printf("%d of the crowd\n", (int)i);
    }
}
"""
needs_library = pytest.mark.unsanitized("Python cannot load a sanitizer's library")
# The driver hands over what was printed once the kernel has ended.
cpu_only = pytest.mark.skipif(DEVICE != "cpu", reason="on a GPU it is lost with the process")


def lines(n, first=0, x=1.0, what="many"):
    return "".join(LINE.format(first + i, x, what) for i in range(n))


@pytest.fixture(scope="module")
def daemon(start_shared, tmp_path_factory):
    return start_shared("--kernels", put_kernels(tmp_path_factory.mktemp("printf"), talk=TALK, crowd=CROWD))


@pytest.fixture
def client(daemon):
    with daemon.connect() as client:
        yield client


@pytest.fixture
def x(client):
    return client.tensor(np.ones(3, np.float32))


def test_it_is_there_when_the_call_returns(client, x, capsys):
    for i in range(4):  # from the second on it is prepared
        client.ops.talk(x, lines=2).numpy()
        assert capsys.readouterr().out == lines(2), i
    client.ops.talk(client.tensor(np.full(1, 7.5, np.float32)), first=3).numpy()
    assert capsys.readouterr().out == lines(1, 3, 7.5, "few")
    _, ctx = client.ops.talk.forward(x, lines=0)
    ctx.backward(x)[0].numpy()
    client.ops.talk(x, debug=True).numpy()
    assert capsys.readouterr().out == "back\n" + lines(1)


def test_in_the_order_of_the_calls(client, x, capsys):
    with client.batch():
        for i in range(20):
            client.ops.talk(x, first=i)
    assert capsys.readouterr().out == lines(20)
    with client.capture() as graph:
        client.ops.talk(x, first=0)
        client.ops.talk(x, first=1)
    assert capsys.readouterr().out == lines(2)
    for _ in range(3):
        graph.replay()
        assert capsys.readouterr().out == lines(2)


def test_a_request_prints_no_more_than_there_is_room_for(client, x, capsys):
    n = 5000
    client.ops.talk(x, lines=n).numpy()
    out, all = capsys.readouterr().out, lines(n)
    cut = out.rindex("\n... ")
    assert out[:cut] == all[:MOST] and len(out[:cut]) == MOST
    assert out[cut:] == f"\n... {len(all) - MOST} bytes more were dropped\n"
    client.ops.talk(x).numpy()
    assert capsys.readouterr().out == lines(1)


def test_threads_do_not_mix_their_lines(client, capsys):
    n = 2000
    client.ops.crowd(client.tensor(np.ones(n, np.float32))).numpy()
    assert sorted(capsys.readouterr().out.splitlines()) == sorted(f"{i} of the crowd" for i in range(n))


def test_the_log_has_it(daemon, client, x):
    client.ops.talk(x, lines=1000, first=987654000).numpy()
    assert eventually(lambda: "talk prints: ... " in daemon.read_log())
    logged = re.findall(r"info broker: talk prints: talk: line (9876540\d\d) of 1.00, many%", daemon.read_log())
    assert [int(n) - 987654000 for n in logged] == list(range(len(logged))) and 50 < len(logged) <= 100


def test_a_fault_does_not_take_it_along(client, x, capsys):
    client.ops.talk(x).numpy()
    with pytest.raises(opd.KernelFault):
        client.ops.talk(x, lines=3, bad=True).numpy()
    assert capsys.readouterr().out == lines(1) + lines(3)  # once, though the CPU looks for the line again
    client.ops.talk(x, lines=2).numpy()
    assert capsys.readouterr().out == lines(2)


@cpu_only
def test_nor_does_a_process_that_is_killed(client, x, capsys):
    with pytest.raises(opd.DeadlineExceeded):
        client.ops.talk(x, lines=3, stuck=True, deadline=0.3).numpy()
    assert capsys.readouterr().out == lines(3)


@cpu_only
def test_what_runs_again_has_printed_once(daemon, client, x, capsys):
    client.ops.talk(x, lines=0).numpy()
    executor = find_roles(daemon.pid, "executor")[0]
    with pytest.raises(opd.DeadlineExceeded), client.batch():
        client.ops.talk(x, lines=3, stuck=True, deadline=1.0)
        os.kill(executor, signal.SIGKILL)
    assert capsys.readouterr().out == lines(3)


GAP = re.compile(rb"^\.\.\. \d+ bytes were dropped.*\n|\n?\.\.\. \d+ bytes more.*\n")


def printed(notification):
    """How many bytes, with those that were dropped."""
    told = notification[2][0]
    return len(GAP.sub(b"", told["text"])) + told["dropped"]


def forward(raw, id, n, first):
    return raw.request("forward", "talk", [1], {"lines": n, "first": first}, [id])


def test_each_client_hears_its_own(daemon):
    def talk(number):
        with Raw(daemon.socket) as raw:
            raw.call("hello", f"talker {number}", {"notify": ["printed", "what is to come"]})
            raw.make(1, "float32", [3], np.ones(3, np.float32).tobytes())
            sent = [forward(raw, 2 + i, 2, 100 * number + 2 * i) for i in range(30)]
            for i, id in enumerate(sent):
                kind, method, (told,) = raw.receive()
                assert (kind, method, told["op"], told["dropped"]) == (2, "printed", "talk", 0)
                assert told["text"] == lines(2, 100 * number + 2 * i).encode()
                assert raw.receive()[:3] == [1, id, None]

    in_threads(3, talk)


def test_who_has_not_asked_hears_nothing(daemon):
    with Raw(daemon.socket) as raw:
        raw.make(1, "float32", [3])
        raw.call("forward", "talk", [1], {}, [2])
        assert "expected an array" in str(raw.fail("hello", "", {"notify": "printed"}))
        raw.call("forward", "talk", [1], {}, [3])


def test_who_does_not_read_loses_some_and_is_told_how_much(daemon):
    n, each = 150, 1500

    def in_flight():
        return sum(who["in_flight"] for who in other.call("status")["clients"])

    with Raw(daemon.socket) as raw, Raw(daemon.socket) as other:
        raw.call("hello", "", {"notify": ["printed"]})
        raw.make(1, "float32", [3], np.ones(3, np.float32).tobytes())
        executor = find_roles(daemon.pid, "executor")[0]
        os.kill(executor, signal.SIGSTOP)  # all are in flight before the first has ended
        left = {forward(raw, 2 + i, each, 100000) for i in range(n)}
        all = eventually(lambda: in_flight() == n)
        os.kill(executor, signal.SIGCONT)
        assert all and eventually(lambda: in_flight() == 0)
        heard = 0
        while left:
            message = raw.receive()
            if message[0] == 1:
                left.remove(message[1])
            else:
                heard += printed(message)
        assert heard < n * len(lines(each, 100000))  # what it has not heard of the next one tells
        last = forward(raw, 1000, 1, 100000)
        message = raw.receive()
        assert GAP.sub(b"", message[2][0]["text"]) == lines(1, 100000).encode()
        assert raw.receive()[1] == last
    assert heard + printed(message) == n * len(lines(each, 100000)) + len(lines(1, 100000))


def test_a_stdout_that_takes_nothing(client, x, monkeypatch):
    class Broken:
        def write(self, text):
            raise OSError("no room")

    monkeypatch.setattr(sys, "stdout", Broken())
    assert client.ops.talk(x).numpy().tolist() == [1, 1, 1]
    monkeypatch.setattr(sys, "stdout", None)
    assert client.ops.talk(x).numpy().tolist() == [1, 1, 1]


@needs_library
def test_from_c(daemon):
    heard = []
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    note = function(lambda data, text, size: heard.append((data, ctypes.string_at(text, size).decode())))
    c = LibraryClient(daemon.socket)
    c.make(1, 1, 1, 1)
    c.forward("talk", [1], [2])
    on_print = ctypes.CDLL(LIBRARY).opd_on_print
    on_print.restype = ctypes.c_bool
    c.done(on_print(c.client, note, ctypes.c_void_p(77), ctypes.byref(c.error)))
    for i in range(3):
        c.forward("talk", [1], [3 + i])
        assert heard == [(77, lines(1))] * (i + 1)
    with Raw(daemon.socket) as raw:
        assert any(who["client"].startswith("libopd") for who in raw.call("status")["clients"])
    c.done(on_print(c.client, function(), None, ctypes.byref(c.error)))
    c.forward("talk", [1], [9])
    c.close()
    assert len(heard) == 3


def test_an_upgrade_does_not_forget_who_hears(start_daemon, tmp_path, capsys):
    daemon = start_daemon("--kernels", put_kernels(tmp_path / "kernels", talk=TALK))
    with daemon.connect() as client:
        x = client.tensor(np.ones(3, np.float32))
        client.ops.talk(x).numpy()
        upgrade(daemon)
        client.ops.talk(x, first=1).numpy()
        assert capsys.readouterr().out == lines(2)
