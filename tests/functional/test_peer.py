"""Whom a client speaks to: this user's daemon, root's, or one that a group of ours was let in to."""

import grp
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

import opd
from conftest import PROGRAM

US, OTHER = 54321, 54322
OPCTL = Path(PROGRAM).parent / "opctl"
SQUAT = """
import os, socket, sys
s = socket.socket(socket.AF_UNIX)
s.bind(sys.argv[1])
os.chmod(sys.argv[1], int(sys.argv[2], 8))
s.listen(8)
print("listens", flush=True)
s.settimeout(60)
print(s.accept()[0].recv(1000), flush=True)
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become others")


@pytest.fixture
def place():
    """Where another user was first, and everyone can enter."""
    folder = Path(tempfile.mkdtemp(prefix="opd-peer-", dir="/tmp"))
    os.chown(folder, OTHER, OTHER)
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def squat(path, mode="777", group=OTHER):
    """Another user's socket; what its first connection sends is printed."""
    squatter = subprocess.Popen(
        ["/usr/bin/python3", "-c", SQUAT, str(path), mode],
        user=OTHER, group=group, extra_groups=[], stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert squatter.stdout.readline() == "listens\n"
    return squatter


def what_it_got(squatter):
    said, _ = squatter.communicate(timeout=60)
    return said


def connect_as(uid, group, path, environment):
    """What opd.connect() of that user says, in a child of ours."""
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = "connected"
        try:
            os.setgroups([group])
            os.setgid(uid or US)
            os.setuid(uid)
            os.environ.clear()
            os.environ.update(environment)
            opd.connect(path, start=False, timeout=5)
        except BaseException as e:
            said = f"{type(e).__name__}: {e}"
        os.write(into, said.encode())
        os._exit(0)
    os.close(into)
    os.waitpid(pid, 0)
    with os.fdopen(out) as file:
        return file.read()


def ask_opctl(folder, path, environment):
    program = shutil.copy(OPCTL, folder / "opctl")  # build/ may be closed to others
    named = ["--socket", path] if path else []
    return subprocess.run(
        [program, *named, "status"],
        user=US, group=US, extra_groups=[], env=environment, capture_output=True, text=True, timeout=60,
    ).stderr  # fmt: skip


@pytest.mark.parametrize("way", ["runtime folder", "OPD_SOCKET", "named"])
@pytest.mark.parametrize("client", ["python", "opctl"])
def test_nothing_is_sent_to_another_user(place, way, client):
    path = str(place / "opd" / "opd.sock")
    os.mkdir(place / "opd")
    os.chown(place / "opd", OTHER, OTHER)
    squatter = squat(path)
    environment = {"XDG_RUNTIME_DIR": str(place)} if way == "runtime folder" else {}
    if way == "OPD_SOCKET":
        environment["OPD_SOCKET"] = path
    named = path if way == "named" else None
    if client == "python":
        said = connect_as(US, US, named, environment)
    else:
        said = ask_opctl(place, named, environment)
    assert f"{path} is served by another user (uid {OTHER})" in said
    assert what_it_got(squatter) == "b''\n"


def test_a_socket_that_was_given_to_a_group_of_ours(place):
    shared = grp.getgrgid(100).gr_gid
    for mode, group, trusted in (("660", shared, True), ("666", OTHER, False)):
        path = str(place / f"{mode}.sock")
        squatter = squat(path, mode, group)
        said = connect_as(US, shared, path, {})
        got = what_it_got(squatter)
        assert ("hello" in got) == trusted, (mode, said)
        assert ("another user" in said) != trusted, (mode, said)


def test_the_default_place_is_nobody_elses_to_give(place):
    shared = grp.getgrgid(100).gr_gid
    os.mkdir(place / "opd")
    os.chown(place / "opd", OTHER, OTHER)
    squatter = squat(str(place / "opd" / "opd.sock"), "660", shared)
    assert "another user" in connect_as(US, shared, None, {"XDG_RUNTIME_DIR": str(place)})
    assert what_it_got(squatter) == "b''\n"


def test_root_is_trusted_and_may_name_anybodys(place, start_daemon):
    daemon = start_daemon("--group", grp.getgrgid(100).gr_name, socket=place / "root" / "opd.sock")
    assert connect_as(US, 100, daemon.socket, {}) == "connected"
    squatter = squat(str(place / "opd.sock"))
    connect_as(0, 100, str(place / "opd.sock"), {})
    assert "hello" in what_it_got(squatter)


def test_a_socket_that_is_not_open_to_us(place, start_daemon):
    daemon = start_daemon(socket=place / "root" / "opd.sock")
    for said in (connect_as(US, US, daemon.socket, {}), ask_opctl(place, daemon.socket, {})):
        assert f"{daemon.socket} is not open to you (Permission denied)" in said
        assert "--group" in said and "no daemon" not in said
