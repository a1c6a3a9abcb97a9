"""What the Python client does when the daemon, or the connection, misbehaves."""

import gc
import os
import signal
import sys
import threading
import time

import msgpack
import numpy as np
import pytest

import opd
from conftest import PATIENCE, in_threads
from fake_daemon import COPY, client, fake  # noqa: F401
from raw import eventually

pytestmark = pytest.mark.unsanitized("of the client in Python")


def hang_up(daemon, sock, message):
    sock.shutdown(2)


def hang(daemon, sock, message):
    pass


def fail(daemon, sock, message):
    error = {"code": "kernel_fault", "number": 4, "message": "bad kernel", "op": "copy"}
    daemon.reply(sock, message, None, error)


def test_no_daemon_says_where_it_looked(tmp_path):
    with pytest.raises(opd.ConnectionLost, match="no daemon serves at .*nobody.sock"):
        opd.connect(str(tmp_path / "nobody.sock"), start=False)


def test_connection_lost_while_waiting(fake, client):
    fake.on["forward"] = hang_up
    x = client.tensor(np.zeros(3, np.float32))
    with pytest.raises(opd.ConnectionLost, match="hung up") as e:
        x.copy()
    assert isinstance(e.value, ConnectionError)
    assert e.value.code == "connection_lost"
    with pytest.raises(opd.ConnectionLost, match="hung up"):
        x.numpy()
    with pytest.raises(opd.ConnectionLost):
        client.synchronize()
    x.__del__()


def test_half_a_reply(fake, client):
    def half(daemon, sock, message):
        sock.sendall(msgpack.packb([1, message[1], None, b"x" * 100])[:50])
        sock.shutdown(2)

    fake.on["sync"] = half
    with pytest.raises(opd.ConnectionLost):
        client.synchronize()


def test_reply_in_single_bytes(fake, client):
    def drip(daemon, sock, message):
        for byte in msgpack.packb([1, message[1], None, {"version": "drip"}]):
            sock.sendall(bytes([byte]))

    fake.on["status"] = drip
    assert client.status() == {"version": "drip"}


@pytest.mark.parametrize(
    "data", [b"\xc1", b"\x01", msgpack.packb([1, 2]), msgpack.packb("hello")]
)
def test_bytes_that_are_no_reply(fake, client, data):
    fake.on["sync"] = lambda daemon, sock, message: sock.sendall(data)
    with pytest.raises(opd.ConnectionLost, match="the daemon sent"):
        client.synchronize()


def test_silence_ends_and_the_late_reply_is_dropped(fake):
    late = []
    with opd.connect(fake.path, start=False, timeout=1) as client:
        x = client.tensor(np.ones(3, np.float32))
        fake.on["sync"] = lambda daemon, sock, message: late.append((sock, message))
        with pytest.raises(opd.DeadlineExceeded, match="nothing for 1 s"):
            client.synchronize()
        fake.reply(*late[0], "late")
        assert x.numpy().tolist() == [1, 1, 1]


def test_a_requests_deadline_adds_to_the_timeout(fake):
    def slow(daemon, sock, message):
        time.sleep(1.2)
        daemon.reply(sock, message, daemon.do_forward([], *message[3]))

    fake.on["forward"] = slow
    with opd.connect(fake.path, start=False, timeout=1) as client:
        x = client.tensor(np.ones(3, np.float32))
        assert x.copy(deadline=PATIENCE).shape == (3,)
        with pytest.raises(opd.DeadlineExceeded):
            x.copy()


def test_hello_that_is_not_answered(fake):
    fake.on["hello"] = hang
    with pytest.raises(opd.DeadlineExceeded):
        opd.connect(fake.path, start=False, timeout=0.2)


def test_another_protocol(fake):
    fake.on["hello"] = lambda daemon, sock, message: daemon.reply(sock, message, {"protocol": 99})
    with pytest.raises(opd.ProtocolError, match="speaks protocol 99"):
        opd.connect(fake.path, start=False)


def test_error_of_a_newer_daemon(fake, client):
    error = {"code": "out_of_luck", "number": 77, "message": "no luck", "log": "line 1\n"}
    fake.on["sync"] = lambda daemon, sock, message: daemon.reply(sock, message, None, error)
    with pytest.raises(opd.OpdError, match="no luck\nline 1") as e:
        client.synchronize()
    assert (e.value.code, e.value.log, e.value.op) == ("out_of_luck", "line 1\n", None)


def test_batch_does_not_deadlock_on_full_buffers(fake, client):
    """Big requests with big replies, none read before the end of the batch."""
    big = b"x" * 50_000
    fake.on["status"] = lambda daemon, sock, message: daemon.reply(sock, message, big)
    with client.batch():
        for _ in range(200):
            client._link.request("status", (big,))
    assert fake.count("status") == 200


def test_batch_raises_the_first_error(fake, client):
    fake.on["forward"] = fail
    x = client.tensor(np.ones(3, np.float32))
    with pytest.raises(opd.KernelFault, match="bad kernel") as e:
        with client.batch():
            y = x.copy()
            client._link.request("tensor_read", (99, 0, 1, None))
    assert e.value.op == "copy"
    with pytest.raises(opd.KernelFault):
        y.shape
    assert "failed" in repr(y)
    client.synchronize()


def test_batch_error_raised_by_synchronize_once(fake, client):
    fake.on["forward"] = fail
    x = client.tensor(np.ones(3, np.float32))
    with client.batch():
        x.copy()
        with pytest.raises(opd.KernelFault):
            client.synchronize()


def test_batch_keeps_the_bodys_exception(fake, client):
    fake.on["forward"] = fail
    x = client.tensor(np.ones(3, np.float32))
    with pytest.raises(ZeroDivisionError):
        with client.batch():
            x.copy()
            1 / 0


def test_connection_lost_in_a_batch(fake, client):
    fake.on["forward"] = hang_up
    x = client.tensor(np.ones(3, np.float32))
    with pytest.raises(opd.ConnectionLost):
        with client.batch():
            for _ in range(1000):
                x.copy()


def test_dropped_tensors_are_freed_with_the_next_request(fake, client):
    for _ in range(10):
        client.tensor(np.ones(3, np.float32)).copy()
    gc.collect()
    client.synchronize()
    client.synchronize()
    freed = [id for _, (kind, ids, _) in fake.requests_of("free") for id in ids if kind == "tensor"]
    assert sorted(freed) == list(range(1, 21))
    assert not fake._memory


def test_ids_that_failed_requests_would_have_made_are_dropped_too(fake, client):
    fake.on["forward"] = fail
    x = client.tensor(np.ones(3, np.float32))
    with pytest.raises(opd.KernelFault):
        x.copy()
    with pytest.raises(opd.KernelFault), client.batch():
        x.copy()
    gc.collect()
    client.synchronize()
    assert x.numpy().tolist() == [1, 1, 1]
    dropped = [id for _, (_, ids, _) in fake.requests_of("free") for id in ids]
    assert dropped and x._id not in dropped


def test_dropping_a_named_tensor_keeps_its_name(fake, client):
    client.tensor(np.ones(3, np.float32), name="w")
    gc.collect()
    client.synchronize()
    assert [params for _, params in fake.requests_of("free")] == [["tensor", [1], {"drop": True}]]


def test_a_forked_child_gets_an_error(fake, client):
    """Also where another thread was waiting for a reply."""
    x = client.tensor(np.ones(3, np.float32))
    read, write = os.pipe()
    held, forked = threading.Event(), threading.Event()

    def hold():
        with client._conn.lock:
            held.set()
            forked.wait(PATIENCE)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(PATIENCE)
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        text = b"no error"
        try:
            x.numpy()
        except opd.ConnectionLost as e:
            text = str(e).encode()
        client.close()
        del x, client
        gc.collect()
        os.write(write, text)
        os._exit(0)
    os.close(write)
    forked.set()
    thread.join()
    assert b"forked" in os.read(read, 1000)
    os.waitpid(pid, 0)
    os.close(read)
    assert x.numpy().tolist() == [1, 1, 1]


def test_message_above_the_daemons_limit_is_not_sent(fake):
    fake.max_message = 1000
    with opd.connect(fake.path, start=False) as client:
        with pytest.raises(opd.InvalidArgument, match="at most 1000"):
            client.attach("w" * 2000)
        # Data goes another way.
        a = np.arange(5000, dtype=np.float32)
        assert np.array_equal(client.tensor(a).numpy(), a)
        for method, params in fake.requests:
            assert len(msgpack.packb(params)) < 1000, method


@pytest.mark.parametrize("n", [0, 1, 16384, 16385, 1 << 16, (5 << 20) + 3, (20 << 20) + 1])
def test_data_of_every_size(fake, client, n):
    a = np.arange(n, dtype=np.float32)
    assert np.array_equal(client.tensor(a).numpy(), a)


def test_shared_memory_is_reused_and_not_overwritten_early(fake, client):
    def slow(daemon, sock, message):
        time.sleep(0.01)
        daemon.reply(sock, message, daemon.do_tensor_write([], *message[3]))

    fake.on["tensor_write"] = slow
    with client.batch():
        tensors = [client.tensor(np.full(100_000, i, np.uint8)) for i in range(20)]
    for i, t in enumerate(tensors):
        assert set(t.numpy()) == {i}
    assert fake.count("shm_open") == 1


def test_threads_share_a_client(fake, client):
    def work(value):
        for n in (10, 100_000, 20):
            t = client.tensor(np.full(n, value, np.float32))
            assert (t.copy().numpy() == value).all()

    in_threads(8, work)


def test_an_interrupted_wait_leaves_the_connection_usable(fake, client):
    late, main = [], threading.main_thread().ident

    def interrupt(daemon, sock, message):
        late.append((sock, message))
        while sys._current_frames()[main].f_code.co_name != "_read":
            time.sleep(0.001)  # until the client waits
        signal.pthread_kill(main, signal.SIGINT)

    x = client.tensor(np.ones(3, np.float32))
    fake.on["forward"] = interrupt
    with pytest.raises(KeyboardInterrupt):
        x.copy()
    del fake.on["forward"]
    fake.reply(*late[0], fake.do_forward([], *late[0][1][3]))
    assert x.copy().numpy().tolist() == [1, 1, 1]
    gc.collect()
    client.synchronize()
    assert list(fake._memory) == [x._id]


def test_use_after_close(fake, client):
    x = client.tensor(np.ones(3, np.float32))
    client.close()
    client.close()
    with pytest.raises(opd.ConnectionLost, match="closed"):
        x.numpy()
    with pytest.raises(opd.ConnectionLost, match="closed"):
        client.tensor(1.0)


def test_use_after_free(fake, client):
    x = client.tensor(np.ones(3, np.float32))
    x.free()
    x.free()
    assert repr(x) == "<opd.Tensor, freed>"
    for use in (x.numpy, lambda: x.copy(), lambda: x.write(np.ones(3, np.float32))):
        with pytest.raises(opd.NotFound, match="freed"):
            use()
    assert [params for _, params in fake.requests_of("free")] == [["tensor", [1]]]


def test_an_edited_operator_is_learnt(fake, client):
    """The client asks again when a call does not fit what it knows, and calls once more."""
    x = client.tensor(np.ones(3, np.float32))
    copy = client.ops.copy
    with pytest.raises(TypeError, match=r"copy\(\) got an unexpected keyword argument 'scale'"):
        copy(x, scale=2)
    attr = {"name": "scale", "type": "float", "list": 0, "optional": False, "required": False,
            "default": 1.0}  # fmt: skip
    new = dict(COPY, version=2, attrs=[attr],
               schema="copy(Tensor x, *, float scale=1.0) -> Tensor y")  # fmt: skip
    fake.do_op_list = lambda fds: [new]
    assert copy(x, scale=2).shape == (3,)
    assert copy.version == 2
    assert "scale: 'float' = 1.0" in str(copy.__signature__)


def test_a_forked_child_keeps_no_connection_open(daemon):
    """What the parent had ends with the parent's connection, however long the child lives."""
    with daemon.connect() as watcher:
        parent = daemon.connect()
        before = len(watcher.status()["clients"])
        child = os.fork()
        if child == 0:
            signal.pause()
            os._exit(0)
        try:
            parent.synchronize()
            parent.close()
            gone = eventually(lambda: len(watcher.status()["clients"]) < before)
            assert gone, "the connection is still there"
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
