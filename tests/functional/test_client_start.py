"""Finding a daemon and starting one, through opd.connect()."""

import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import zipfile
from pathlib import Path

import pytest

import opd
from conftest import DEVICE, PATIENCE, PROGRAM, ROOT, await_end, find_family

pytestmark = pytest.mark.unsanitized("of the client in Python")

CONNECT = """
import sys, opd
with opd.connect(sys.argv[1]) as client:
    print(client.status()["pid"])
"""


@pytest.fixture
def place(monkeypatch):
    """A socket's path in a folder of its own; what serves there at the end is stopped."""
    folder = Path(tempfile.mkdtemp(prefix="opd-test-"))
    path = folder / "deep" / "opd.sock"
    monkeypatch.setenv("OPD_BIN", PROGRAM)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    yield path
    try:
        client = opd.connect(str(path), start=False)
    except opd.ConnectionLost:
        client = None
    if client:
        family = find_family(client.info["pid"])
        client.stop()
        left = await_end(family)
        for pid, _ in left:
            os.kill(pid, signal.SIGKILL)
        assert not left and not path.exists()
    shutil.rmtree(folder)


def make_program(folder, text):
    program = folder / "program"
    program.write_text("#!/bin/sh\n" + text)
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize("path", ["/proc/1/opd.sock", "/dev/null/deep/opd.sock"])
def test_a_place_where_no_socket_can_be(monkeypatch, path):
    monkeypatch.setenv("OPD_BIN", PROGRAM)
    for start in (False, True):
        with pytest.raises(opd.ConnectionLost, match=f"no daemon serves at {path}"):
            opd.connect(path, start=start)


def test_a_daemon_is_started_and_stays(place):
    with opd.connect(str(place)) as client:
        pid = client.info["pid"]
        assert client.status()["socket"] == str(place)
        assert os.getsid(pid) != os.getsid(0)
    with opd.connect(str(place), start=False) as client:
        assert client.info["pid"] == pid
    assert place.with_suffix(".log").exists()


def test_the_default_socket(place, monkeypatch):
    monkeypatch.setenv("OPD_SOCKET", str(place))
    with opd.connect() as client:
        assert client.socket == str(place)


def test_clients_that_start_at_once_get_one_daemon(place):
    path = opd.__path__[0] + "/.."
    clients = [
        subprocess.Popen(
            [sys.executable, "-c", CONNECT, str(place)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )
        for _ in range(4)
    ]
    pids = {c.communicate(timeout=PATIENCE)[0] for c in clients}
    assert [c.returncode for c in clients] == [0] * 4
    assert len(pids) == 1


def test_a_socket_left_by_a_killed_daemon(place):
    with opd.connect(str(place)) as client:
        family = find_family(client.info["pid"])
        os.kill(client.info["pid"], signal.SIGKILL)
    assert not await_end(family)
    with opd.connect(str(place)) as client:
        assert client.info["pid"] != family[0][0]


@pytest.mark.parametrize("start", [True, False])
@pytest.mark.parametrize("times", [1, 3])
def test_a_daemon_that_was_about_to_end(place, times, start):
    """It still takes connections, and says nothing."""
    place.parent.mkdir(mode=0o700)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(place))
    listener.listen()

    def end():
        for left in range(times, 0, -1):
            with listener.accept()[0]:
                if left == 1:
                    place.unlink()
                    listener.close()

    thread = threading.Thread(target=end, daemon=True)
    thread.start()
    if start:
        with opd.connect(str(place)) as client:
            assert client.ops
    else:
        with pytest.raises(opd.ConnectionLost, match=f"no daemon serves at {place}"):
            opd.connect(str(place), start=False)
    thread.join()


def test_a_client_that_started_a_daemon_ends_without_a_warning(place):
    environment = os.environ | {"PYTHONPATH": f"{opd.__path__[0]}/.."}
    run = subprocess.run([sys.executable, "-X", "dev", "-W", "error", "-c", CONNECT, str(place)],
                         env=environment, capture_output=True, text=True)  # fmt: skip
    assert run.returncode == 0 and run.stderr == ""


def test_a_daemon_that_does_not_start_tells_why(place, tmp_path, monkeypatch):
    program = make_program(tmp_path, "echo no such luck >&2; exit 3\n")
    monkeypatch.setenv("OPD_BIN", program)
    with pytest.raises(
        opd.ConnectionLost, match="(?s)ended with status 3.*opd.log.*no such luck"
    ):
        opd.connect(str(place))
    monkeypatch.setenv("OPD_BIN", "/bin/false")  # not what the log has of the one before
    with pytest.raises(opd.ConnectionLost, match="ended with status 1; it has written nothing to"):
        opd.connect(str(place))


def test_a_daemon_that_ends_before_it_serves_tells_why(place, tmp_path, monkeypatch):
    """Its socket is there before its devices are."""
    program = make_program(tmp_path, f'exec {PROGRAM} "$@" --device cuda:77\n')
    monkeypatch.setenv("OPD_BIN", program)
    with pytest.raises(opd.ConnectionLost, match="(?s)opd.log.*cuda:77"):
        opd.connect(str(place))


def test_a_daemon_that_never_serves(place, tmp_path, monkeypatch):
    program = make_program(tmp_path, "echo waiting; exec sleep 2\n")
    monkeypatch.setenv("OPD_BIN", program)
    with pytest.raises(opd.ConnectionLost, match="(?s)does not serve after 0.5 s.*waiting"):
        opd.connect(str(place), timeout=0.5)


def test_no_program(place, monkeypatch):
    monkeypatch.setenv("OPD_BIN", "/nonexistent/opd")
    with pytest.raises(opd.ConnectionLost, match="OPD_BIN=/nonexistent/opd is no program"):
        opd.connect(str(place))


@pytest.mark.skipif(DEVICE != "cpu", reason="one device is enough")
def test_stop(start_daemon):
    daemon = start_daemon()
    client = daemon.connect()
    client.stop()
    assert daemon.process.wait(PATIENCE) == 0
    assert not os.path.exists(daemon.socket)
    with pytest.raises(opd.ConnectionLost):
        client.synchronize()


def test_the_program_of_its_own_installation(tmp_path, monkeypatch):
    """As `make install` and `make dist` lay it out; no $PATH leads there."""
    package = tmp_path / "share" / "opd" / "python" / "opd"
    shutil.copytree(Path(opd.__file__).parent, package)
    program = tmp_path / "bin" / "opd"
    program.parent.mkdir()
    shutil.copy(PROGRAM, program)
    monkeypatch.delenv("OPD_BIN", raising=False)
    code = "from opd._start import _find_program; print(_find_program('opd.sock'))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(package.parent)},
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout == f"{program}\n", done.stderr


@pytest.mark.parametrize("place", [".", "a", "a/b/c/d"])
def test_a_package_near_the_root(tmp_path, place):
    """As `pip install --target /app` puts it: nothing stands so far above it."""
    package = tmp_path / "opd"
    shutil.copytree(Path(opd.__file__).parent, package)
    code = """if True:
        import pathlib, sys
        resolve, root, there = pathlib.Path.resolve, sys.argv[1], sys.argv[2]
        pathlib.Path.resolve = lambda path: pathlib.Path(str(resolve(path)).replace(root, there))
        from opd import _places
        print(*_places.look_beside("bin", "opd"), sep="\\n")
    """
    there = os.path.normpath(f"/{place}")
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), there.rstrip("/")],
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True,
    )  # fmt: skip
    up = [there, *map(str, Path(there).parents), "/", "/", "/", "/"]
    expected = [Path(up[2], "build", "opd"), Path(up[3], "bin", "opd"), Path(up[0], "bin", "opd")]
    assert done.stdout.split() == [*map(str, expected)], done.stderr


BUILT = {  # by where a wheel has it: where make has built it, and where make install has put it
    "bin/opd": ("build/opd", "bin/opd"),
    "bin/opctl": ("build/opctl", "bin/opctl"),
    "lib/libopd.so.0": ("build/libopd.so.0", "lib/libopd.so.0"),
    "lib/libopd_torch.so": ("build/libopd_torch.so", "lib/libopd_torch.so"),
    "lib/opd_native.so": ("build/opd_native.so", "lib/opd_native.so"),
    "include/opd.h": ("client/c/opd.h", "include/opd.h"),
    "share/opd/kernels_src/gelu.cu": ("kernels_src/gelu.cu", "share/opd/kernels_src/gelu.cu"),
}


@pytest.mark.parametrize("place", [0, 1])
def test_a_wheel_takes_along_what_is_built(tmp_path, place):
    """Of this machine's kind then; without it there is a wheel, too, for all."""
    pytest.importorskip("setuptools", minversion="70.1")
    source = tmp_path / ("client/python", "share/opd/python")[place]
    ignore = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "client" / "python", source, ignore=ignore)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    wheels = []
    for built in ({}, BUILT):
        for places in built.values():
            path = tmp_path / places[place]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"GLIBC_2.4 GLIBC_2.17 GLIBC_2.9")
            path.chmod(0o755 if "/opd" in str(path) else 0o644)
        out = tmp_path / f"out-{len(wheels)}"
        subprocess.run([*command, "--wheel-dir", out, source], check=True, timeout=PATIENCE)
        wheels.extend(out.iterdir())
    without, whole = (set(zipfile.ZipFile(wheel).namelist()) for wheel in wheels)
    assert wheels[0].name.endswith("-py3-none-any.whl")
    assert f"-py3-none-manylinux_2_17_{platform.machine()}" in wheels[1].name
    assert {"opd/py.typed", "opd/torch/_inproc.py"} <= without
    data = {name.split(".data/data/")[1]: name for name in whole if ".data/data/" in name}
    assert data.keys() == BUILT.keys()
    assert zipfile.ZipFile(wheels[1]).getinfo(data["bin/opd"]).external_attr >> 16 & 0o111
    modules = {name for name in without if name.startswith("opd/")}
    assert modules == {name for name in whole if name.startswith("opd/")}
