"""What the clients make of the requests about edits and versions, against the fake daemon; and of
a daemon that misbehaves at them. tests/functional/test_reload_clients.py has the real one."""

import json
import os
import queue
import signal
import subprocess
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

import opd
from conftest import PATIENCE
from fake_daemon import COPY, client, fake  # noqa: F401

pytestmark = pytest.mark.unsanitized("of the client in Python")

ROOT = Path(__file__).resolve().parents[2]
OPCTL = Path(os.environ.get("OPD_BIN", ROOT / "build" / "opd")).resolve().parent / "opctl"
FAILED = {"op": "copy", "file": "/k/copy.cu", "version": 3, "state": "failed", "ms": 12.0,
          "message": "copy.cu:7:1: error: no",
          "log": "copy.cu: in copy\ncopy.cu:7:1: error: no\n1 error\n"}  # fmt: skip
SERVED = {**FAILED, "version": 2, "state": "serving", "message": "", "log": ""}


def answer(result):
    return lambda daemon, sock, message: daemon.reply(sock, message, result)


def collect(function, *args, **keywords):
    """What it returns, and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = function(*args, **keywords)
    assert all(w.filename == __file__ for w in caught), [w.filename for w in caught]
    assert all(w.category is opd.ReloadWarning for w in caught)
    return result, [str(w.message) for w in caught]


# ---- reload ----


def test_reload(fake, client):
    assert client.reload() == []
    fake.on["reload"] = answer([SERVED, FAILED, {**FAILED, "op": "", "log": "//! line"}])
    changes, texts = collect(client.reload)
    assert [c["state"] for c in changes] == ["serving", "failed", "failed"]
    assert texts == [
        "copy: this edit is not served:\ncopy.cu: in copy\ncopy.cu:7:1: error: no\n1 error",
        "/k/copy.cu: this edit is not served:\ncopy.cu:7:1: error: no\n//! line",
    ]


def test_the_served_version_is_known_after_a_reload(fake, client):
    copy = client.ops.copy
    assert copy.version == 1
    fake.on["op_list"] = answer([{**COPY, "version": 2, "doc": "New."}])
    client.reload()
    assert copy.version == copy.forward.version == 2
    assert copy.__doc__.startswith("New.")
    fake.on["op_list"] = answer([{**COPY, "version": 7}])
    client.rollback("copy")
    assert copy.version == 7


def test_rollback_and_pin(fake, client):
    assert client.rollback("copy") == 1
    assert client.pin("copy", 1) == 1
    assert client.pin("copy", None) == 2
    assert fake.requests_of("pin") == [("pin", ["copy", 1]), ("pin", ["copy", None])]


def test_versions(fake, client):
    versions = client.ops.copy.versions
    assert [v["version"] for v in versions] == [2, 1]
    assert len(versions) == 2 and versions[0]["state"] == "serving"
    assert repr(versions) == repr(list(versions))


def test_a_call_of_a_version(fake, client):
    x = client.tensor(np.ones(3, np.float32))
    x.copy(version=1)
    x.copy()
    assert [params[4] for _, params in fake.requests_of("forward")] == [{"version": 1}, {}]
    for wrong in (0, -1, 1.0, "1", True):
        with pytest.raises(TypeError, match="'version' must be a number above 0"):
            x.copy(version=wrong)
    assert fake.count("forward") == 2


def test_check(fake, client, tmp_path):
    file = tmp_path / "é.cu"
    file.write_bytes("// é\r\n".encode())
    assert client.check(file)["ok"]
    assert client.check(str(file), targets="cpu", dtypes=("float32", "float64"))["ok"]
    folder = str(tmp_path.resolve())
    assert fake.requests_of("check") == [
        ("check", ["é.cu", folder, "// é\r\n", {}]),
        ("check", ["é.cu", folder, "// é\r\n",
                   {"targets": ["cpu"], "dtypes": ["float32", "float64"]}]),
    ]  # fmt: skip
    with pytest.raises(FileNotFoundError):
        client.check(tmp_path / "none.cu")


# ---- warnings beside results ----


def warn_with(*texts):
    def forward(daemon, sock, message):
        result = daemon.do_forward([], *message[3])
        daemon.reply(sock, message, {**result, "warnings": list(texts)})

    return forward


def test_forward_warns_at_the_users_line(fake, client):
    x = client.tensor(np.ones(3, np.float32))
    assert collect(x.copy)[1] == []
    fake.on["forward"] = warn_with("one", "two")
    assert collect(x.copy)[1] == ["one", "two"]
    assert collect(client.ops.copy.forward, x)[1] == ["one", "two"]


def test_warnings_of_a_batch(fake, client):
    fake.on["forward"] = warn_with("one")

    def batch():
        with client.batch():
            y = x.copy()
            x.copy()
        return y

    def synchronize():
        with client.batch():
            y = x.copy()
            client.synchronize()
        return y

    x = client.tensor(np.ones(3, np.float32))
    y, texts = collect(batch)
    assert texts == ["one", "one"]
    assert collect(synchronize)[1] == ["one"]
    assert y.numpy().tolist() == [1, 1, 1]


def test_warnings_as_errors_leave_the_connection_whole(fake, client):
    fake.on["forward"] = warn_with("one")
    x = client.tensor(np.ones(3, np.float32))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(opd.ReloadWarning, match="one"):
            x.copy()
        with pytest.raises(opd.ReloadWarning, match="one"):
            with client.batch():
                x.copy()
    assert x.numpy().tolist() == [1, 1, 1]


# ---- events ----


def test_events(fake, client):
    assert [e["seq"] for e in client.events()] == [1, 2]
    assert [e["seq"] for e in client.events(1)] == [2]
    assert [params for _, params in fake.requests_of("events")] == [[0], [1]]


def follow_and(then):
    def events(daemon, sock, message):
        daemon.reply(sock, message, daemon.do_events([], *message[3]))
        threading.Thread(target=then, args=(daemon, sock), daemon=True).start()

    return events


def send_three(daemon, sock):
    for n in (3, 4, 5):
        daemon.notify(sock, "something new", n)
        daemon.notify(sock, "event", {"seq": n, "kind": "reloaded"})


def test_following(fake, client):
    fake.on["events"] = follow_and(send_three)
    with client.events(since=1, follow=True) as stream:
        assert [next(stream)["seq"] for _ in range(4)] == [2, 3, 4, 5]
        client.synchronize()  # another connection
    assert list(stream) == []
    assert fake.count("hello") == 2
    assert "closed" in repr(stream)


def test_following_waits_longer_than_the_timeout(fake):
    def later(daemon, sock):
        time.sleep(1.2)
        daemon.notify(sock, "event", {"seq": 3})

    fake.on["events"] = follow_and(later)
    with opd.connect(fake.path, start=False, timeout=1) as client:
        with client.events(2, follow=True) as stream:
            assert next(stream) == {"seq": 3}


def test_closing_ends_a_wait_of_another_thread(fake, client):
    stream = client.events(2, follow=True)
    threading.Timer(0.2, stream.close).start()
    assert list(stream) == []
    stream.close()


def test_an_interrupt_leaves_the_stream_usable(fake, client):
    box = queue.Queue()

    def remember(daemon, sock):
        box.put(sock)

    def interrupt(signum, frame):
        raise KeyboardInterrupt

    fake.on["events"] = follow_and(remember)
    old = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with client.events(2, follow=True) as stream:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            with pytest.raises(KeyboardInterrupt):
                next(stream)
            fake.notify(box.get(timeout=PATIENCE), "event", {"seq": 3})
            assert next(stream) == {"seq": 3}
    finally:
        signal.signal(signal.SIGUSR1, old)


def test_the_daemon_goes_away_while_following(fake, client):
    fake.on["events"] = follow_and(lambda daemon, sock: sock.shutdown(2))
    stream = client.events(2, follow=True)
    with pytest.raises(opd.ConnectionLost, match="hung up"):
        next(stream)


def test_following_that_is_refused(fake, client):
    error = {"code": "unknown_method", "number": 9, "message": "no events"}
    fake.on["events"] = lambda daemon, sock, message: daemon.reply(sock, message, None, error)
    with pytest.raises(opd.ProtocolError, match="no events"):
        client.events(follow=True)


# ---- opctl ----


def opctl(fake, *args):
    return subprocess.run(
        [OPCTL, "--socket", fake.path, *args], stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=PATIENCE, env={**os.environ, "TZ": "UTC"},
    )  # fmt: skip


def test_opctl_reload(fake):
    done = opctl(fake, "reload")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Nothing changed.\n", "")
    fake.on["reload"] = answer([SERVED])
    done = opctl(fake, "reload")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1].split() == ["copy", "2", "serving", "12", "ms", "/k/copy.cu"]
    fake.on["reload"] = answer([SERVED, FAILED])
    done = opctl(fake, "reload")
    assert (done.returncode, done.stderr) == (1, FAILED["log"])
    done = opctl(fake, "--json", "reload")
    assert (done.returncode, done.stderr) == (1, "")
    assert json.loads(done.stdout) == [SERVED, FAILED]


KERNEL = {"kernel": "copy<scalar_t, 0>", "dtype": "float32", "target": "sm_90", "registers": 40,
          "spill_stores": 8, "spill_loads": 16, "shared": 1024, "stack": 0,
          "constant": 400}  # fmt: skip


def test_opctl_check(fake, tmp_path):
    file = tmp_path / "copy.cu"
    file.write_text("// text\n")
    result = {"op": "copy", "ok": True, "errors": [], "warnings": [{"log": "copy.cu:1: warning"}],
              "kernels": [KERNEL, {"kernel": "copy", "dtype": "bool", "target": "cpu"}]}  # fmt: skip
    fake.on["check"] = answer(result)
    done = opctl(fake, "check", str(file), "--target", "sm_90,cpu", "--dtype=float32")
    assert (done.returncode, done.stderr) == (0, "copy.cu:1: warning\n")
    lines = done.stdout.splitlines()
    assert lines[0].split() == "KERNEL DTYPE TARGET REGISTERS SPILLS SHARED STACK".split()
    for word in ("copy<scalar_t, 0>", "40", "24 B (8 stored, 16 loaded)", "1.0 KiB", "0 B"):
        assert word in lines[1]
    assert lines[2].split() == ["copy", "bool", "cpu", "-", "-", "-", "-"]
    assert fake.requests_of("check") == [
        ("check", ["copy.cu", str(tmp_path.resolve()), "// text\n",
                   {"targets": ["sm_90", "cpu"], "dtypes": ["float32"]}]),
    ]  # fmt: skip
    done = opctl(fake, "check", str(file), "--json")
    assert (done.returncode, done.stderr, json.loads(done.stdout)) == (0, "", result)


def test_opctl_check_that_fails(fake, tmp_path):
    file = tmp_path / "copy.cu"
    file.write_text("")
    error = {"message": FAILED["message"], "log": FAILED["log"]}
    header = {"message": "copy.cu:2: unknown directive", "log": "//! dtips\n    ^"}
    result = {"op": "", "ok": False, "errors": [error, error, header, error], "warnings": [], "kernels": []}
    fake.on["check"] = answer(result)
    done = opctl(fake, "check", str(file))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == FAILED["log"] + "copy.cu:2: unknown directive\n//! dtips\n    ^\n"
    assert opctl(fake, "check", str(file), "--json").returncode == 1
    for path in (tmp_path / "none.cu", tmp_path):
        done = opctl(fake, "check", str(path))
        assert (done.returncode, done.stdout) == (2, "")
        assert str(path) in done.stderr


def test_opctl_events(fake):
    event = {"seq": 3, "time": 1704067200.5, "kind": "reloaded", "op": "copy", "version": 2,
             "file": "/k/copy.cu", "ms": 213.0}  # fmt: skip
    failed = {"seq": 4, "time": 1704067201, "kind": "failed", "op": "copy", "file": "/k/copy.cu",
              "message": FAILED["message"], "log": FAILED["log"]}  # fmt: skip
    device = {"seq": 5, "time": 1704067202, "kind": "device", "message": "cpu: restarted"}

    def send(daemon, sock):
        for e in (event, failed, device):
            daemon.notify(sock, "event", e)
        sock.shutdown(2)

    fake.on["events"] = follow_and(send)
    done = opctl(fake, "events")
    assert done.returncode == 3 and "closed" in done.stderr
    assert done.stdout.splitlines()[2:] == [
        "2024-01-01 00:00:00  reloaded     copy version 2, 213 ms, /k/copy.cu",
        "2024-01-01 00:00:01  failed       copy, /k/copy.cu",
        *FAILED["log"].splitlines(),
        "2024-01-01 00:00:02  device       cpu: restarted",
    ]
    done = opctl(fake, "--json", "events", "--follow")
    assert [json.loads(line)["seq"] for line in done.stdout.splitlines()] == [1, 2, 3, 4, 5]
    assert json.loads(done.stdout.splitlines()[3]) == failed


def test_opctl_events_that_end(fake):
    done = opctl(fake, "events", "--no-follow", "--json")
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 2)
    assert fake.requests_of("events") == [("events", [0, {"follow": False}])]
    assert opctl(fake, "events", "--no-follow", "--follow").returncode == 2


def test_opctl_prints_each_event_at_once(fake):
    box = queue.Queue()
    fake.on["events"] = follow_and(lambda daemon, sock: box.put(sock))
    process = subprocess.Popen(
        [OPCTL, "--socket", fake.path, "--json", "events"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert [json.loads(process.stdout.readline())["seq"] for _ in range(2)] == [1, 2]
        fake.notify(box.get(timeout=PATIENCE), "event", {"seq": 3})
        assert json.loads(process.stdout.readline()) == {"seq": 3}
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == -signal.SIGINT
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_opctl_rollback_and_pin(fake):
    done = opctl(fake, "rollback", "copy")
    assert (done.returncode, done.stderr) == (0, "") and "Version 1 is served" in done.stdout
    assert "whatever is edited" in opctl(fake, "pin", "copy", "1").stdout
    assert "Version 2" in opctl(fake, "pin", "copy", "latest").stdout
    assert fake.requests_of("pin") == [("pin", ["copy", 1]), ("pin", ["copy", None])]
    for word in ("0", "1x", "newest", "+1", "99999999999999999999"):
        done = opctl(fake, "pin", "copy", word)
        assert done.returncode == 2 and "expected a number above 0, or 'latest'" in done.stderr
    assert fake.count("pin") == 2


def test_opctl_code(fake):
    listing = [{"kernel": "copy<scalar_t>", "dtype": "float32", "target": "sm_90", "text": "ret;\n"}]
    fake.on["op_code"] = answer(listing)
    done = opctl(fake, "ops", "copy", "--sass", "--dtype", "float32", "--target=sm_90")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "// copy<scalar_t>, float32, sm_90\nret;\n"
    assert json.loads(opctl(fake, "ops", "--ptx", "copy", "--json").stdout) == listing
    assert fake.requests_of("op_code") == [
        ("op_code", ["copy", "sass", {"dtype": "float32", "target": "sm_90"}]),
        ("op_code", ["copy", "ptx", {}]),
    ]
    for wrong in (("--sass",), ("copy", "--sass", "--ptx"), ("copy", "--dtype", "float32")):
        assert opctl(fake, "ops", *wrong).returncode == 2


@pytest.mark.parametrize("result", [None, [], {}, 7, [None], [[]], {"events": 1, "kernels": {}}])
def test_opctl_survives_results_of_another_shape(fake, tmp_path, result):
    file = tmp_path / "copy.cu"
    file.write_text("")
    for method in ("reload", "check", "events", "rollback", "pin", "op_code", "op_info"):
        fake.on[method] = answer(result)
    for args in (("reload",), ("check", str(file)), ("events", "--no-follow"), ("rollback", "a"),
                 ("pin", "a", "1"), ("ops", "a", "--ptx"), ("ops", "a")):  # fmt: skip
        assert opctl(fake, *args).returncode in (0, 1)
