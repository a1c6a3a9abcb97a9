"""opctl metrics --listen: what Prometheus asks for, and what else may come through a port."""

import contextlib
import http.client
import os
import re
import socket
import subprocess

import pytest
from conftest import PATIENCE, eventually
from test_metrics import read
from test_opctl import OPCTL, USAGE, run


@pytest.fixture
def listen():
    processes = []

    def listen(path, address):
        process = subprocess.Popen([OPCTL, "--socket", path, "metrics", "--listen", address],
                                   stdout=subprocess.PIPE, text=True)
        processes.append(process)
        host, port = re.fullmatch(r"http://(.*):(\d+)/metrics\n", process.stdout.readline()).groups()
        return host.strip("[]"), int(port)

    listen.processes = processes
    yield listen
    for process in processes:
        assert process.poll() is None
        process.terminate()
        process.wait(PATIENCE)


def ask(at, method="GET", path="/metrics"):
    conn = http.client.HTTPConnection(*at, timeout=PATIENCE)
    conn.request(method, path)
    reply = conn.getresponse()
    text = reply.read().decode()
    conn.close()
    return reply, text


def test_a_scrape(daemon, client, listen):
    at = listen(daemon.socket, ":0")
    assert at[0] == "127.0.0.1"
    for path in ("/metrics", "/metrics?x=1"):
        reply, text = ask(at, path=path)
        assert reply.status == 200 and reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert read(text).keys() == read(client.metrics()).keys()
    reply, text = ask(at, "HEAD")
    assert reply.status == 200 and int(reply.headers["Content-Length"]) > 1000 and text == ""
    assert ask(at, path="/")[0].status == 404
    reply, _ = ask(at, "POST")
    assert reply.status == 405 and reply.headers["Allow"] == "GET, HEAD"
    assert eventually(lambda: client.status()["connections"] == 1)  # none is left


def test_what_is_no_request(daemon, listen):
    """It ends by itself, and the next one is answered."""
    at = listen(daemon.socket, "127.0.0.1:0")
    for said in (b"", b"\x00\xff\r\n\r\n", b"GET\r\n\r\n", 9000 * b"x", b"GET /" + 5000 * b"y" + b" HTTP/1.1\r\n\r\n"):
        with socket.create_connection(at, PATIENCE) as s:
            with contextlib.suppress(OSError):  # it may have been closed on us by then
                s.sendall(said)
                s.shutdown(socket.SHUT_WR)
                assert b"200 OK" not in s.recv(1000)
    idle = socket.create_connection(at, PATIENCE)  # says nothing, and is given up
    assert ask(at)[0].status == 200
    assert idle.recv(10) == b""
    idle.close()


def test_who_is_slow_holds_up_nobody(daemon, listen):
    at = listen(daemon.socket, "127.0.0.1:0")
    threads = f"/proc/{listen.processes[0].pid}/task"
    alone = len(os.listdir(threads))
    with contextlib.ExitStack() as slow:

        def visit():
            slow.enter_context(socket.create_connection(at, PATIENCE)).sendall(b"GET /")
            return len(os.listdir(threads)) > alone + 2

        assert eventually(visit)
        assert ask(at)[0].status == 200
    assert eventually(lambda: len(os.listdir(threads)) == alone)


def test_a_daemon_that_comes_and_goes(start_daemon, listen):
    daemon = start_daemon()
    at = listen(daemon.socket, ":0")
    daemon.stop()
    reply, text = ask(at)
    assert reply.status == 503 and "connection_lost" in text


@pytest.mark.parametrize("address, why", [
    ("9105", "wants ADDR:PORT"), (":", "wants ADDR:PORT"), (":70000", "wants ADDR:PORT"), ("::1:80", "wants ADDR:PORT"),
    (":-1", "wants ADDR:PORT"), (70 * "x" + ":1", f"--listen {70 * 'x'}:1: "),
])  # fmt: skip
def test_addresses_that_are_none(daemon, address, why):
    done = run("--socket", daemon.socket, "metrics", "--listen", address)
    assert done.returncode == USAGE and why in done.stderr


def test_a_port_that_is_taken(daemon):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run("--socket", daemon.socket, "metrics", "--listen", f":{taken.getsockname()[1]}")
    assert done.returncode == USAGE and "Address already in use" in done.stderr
    assert run("--socket", daemon.socket, "metrics", "--listen", ":0", "--json").returncode == USAGE
