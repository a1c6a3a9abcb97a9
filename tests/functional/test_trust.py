"""Who may connect, and whose kernels are run."""

import grp
import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest

import opd
from conftest import DEVICE, PATIENCE, PROGRAM
from operators import double_by, put_kernels
from raw import Raw

CONNECT = """
import socket, sys
s = socket.socket(socket.AF_UNIX)
try:
    s.connect(sys.argv[1])
except PermissionError:
    sys.exit("no permission")
try:
    s.sendall(b"\\x94\\x00\\x01\\xa6status\\x90")
except BrokenPipeError:
    pass  # it says why before it hangs up
sys.stdout.buffer.write(s.recv(65536))
"""


@pytest.fixture
def place():
    """A folder that every user can enter."""
    folder = Path(tempfile.mkdtemp(prefix="opd-trust-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def connect_as(path, *identity):
    return subprocess.run(
        ["setpriv", *identity, "/usr/bin/python3", "-c", CONNECT, str(path)],
        capture_output=True,
        timeout=PATIENCE,
    )


def start_fails(path, *options):
    result = subprocess.run(
        [PROGRAM, "--socket", str(path), "--device", DEVICE, *options],
        capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert result.returncode == 1 and result.stdout == ""
    return result.stderr


def edit(path, text, mode):
    """At once, as the daemon looks between two steps as well."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.chmod(mode)
    new.rename(path)


def test_a_socket_is_for_its_user_alone(place, start_daemon):
    start_daemon(socket=place / "new" / "opd.sock")
    assert stat.S_IMODE((place / "new").stat().st_mode) == 0o700
    assert stat.S_IMODE((place / "new" / "opd.sock").stat().st_mode) == 0o600


def test_a_group_is_let_in(place, start_daemon):
    group = grp.getgrgid(os.getegid() or 100)
    path = place / "new" / "opd.sock"
    start_daemon("--group", group.gr_name, socket=path)
    for p, mode in ((path, 0o660), (path.parent, 0o750)):
        assert (stat.S_IMODE(p.stat().st_mode), p.stat().st_gid) == (mode, group.gr_gid)
    with Raw(str(path)) as raw:
        raw.make(1, "float32", [1], b"abcd")
        raw.call("upgrade")  # who may connect is the same after it
    if os.geteuid() != 0:  # who else could we be?
        return
    gid = str(group.gr_gid)
    member = ["--reuid", "12345", "--regid", "12345"]
    for identity in (["--reuid", "12345", "--regid", gid, "--clear-groups"], [*member, "--groups", gid]):
        result = connect_as(path, *identity)
        assert b"uptime" in result.stdout, result
    result = connect_as(path, *member, "--clear-groups")
    assert result.stderr == b"no permission\n"
    path.chmod(0o666)
    path.parent.chmod(0o755)
    result = connect_as(path, *member, "--clear-groups")
    assert b"another user" in result.stdout and b"--group" in result.stdout


def test_a_group_that_cannot_enter_is_told_of(place):
    group = grp.getgrgid(os.getegid() or 100)
    (place / "old").mkdir(mode=0o700)
    said = start_fails(place / "old" / "opd.sock", "--group", group.gr_name)
    assert "cannot enter" in said and "chmod g+x" in said
    assert "no group 'nosuchgroup'" in start_fails(place / "s", "--group", "nosuchgroup")


@pytest.mark.parametrize("mode, words", [(0o777, "by everyone"), (0o1777, "chmod go-w")])
def test_a_folder_that_everyone_can_write_is_refused(place, mode, words):
    folder = put_kernels(place / "k", double_it=double_by(2))
    os.chmod(folder, mode)
    said = start_fails(place / "s", "--kernels", folder)
    (line,) = [line for line in said.splitlines() if line.startswith("opd: ")]
    assert folder in line and words in line


def test_a_file_that_everyone_can_write_is_not_served(place, start_daemon):
    folder = put_kernels(place / "k", double_it=double_by(2), other=double_by(3))
    other = Path(folder, "other.cu")
    other.write_text(other.read_text().replace("double_it", "other"))
    other.chmod(0o666)
    daemon = start_daemon("--kernels", folder)
    with daemon.connect() as client:
        assert "double_it" in dir(client.ops) and "other" not in dir(client.ops)
        assert client.ops.double_it([1.0]).numpy().tolist() == [2]
        # The same while it serves: an edit that others could have made, or of a folder of theirs.
        edit(Path(folder, "double_it.cu"), double_by(4), 0o602)
        with pytest.warns(opd.ReloadWarning, match="double_it.cu can be written by everyone"):
            client.reload()
        with pytest.warns(opd.ReloadWarning):  # once more, with the next call
            assert client.ops.double_it([1.0]).numpy().tolist() == [2]
        os.chmod(folder, 0o777)
        edit(Path(folder, "double_it.cu"), double_by(4), 0o644)
        with pytest.warns(opd.ReloadWarning, match=f"{folder} can be written by everyone"):
            client.reload()
        os.chmod(folder, 0o755)
        Path(folder, "double_it.cu").write_text(double_by(5))
        client.reload()
        assert client.ops.double_it([1.0]).numpy().tolist() == [5]
        # What a kernel includes is run as well.
        edit(Path(folder, "part.cuh"), "#define FACTOR 6\n", 0o622)
        text = double_by("FACTOR").replace("extern", '#include "part.cuh"\nextern')
        Path(folder, "double_it.cu").write_text(text)
        with pytest.warns(opd.ReloadWarning, match="part.cuh can be written by everyone"):
            client.reload()


def test_a_folder_of_another_user_is_no_place_for_the_socket(place):
    if os.geteuid() != 0:
        pytest.skip("needs root, to make folders of others")
    (place / "other").mkdir()
    os.chown(place / "other", 12345, -1)
    assert "other belongs to another user (uid 12345)" in start_fails(place / "other" / "s")


def test_files_of_other_users(place, start_daemon):
    if os.geteuid() != 0:
        pytest.skip("needs root, to make files of others")
    folder = put_kernels(place / "k", double_it=double_by(2))
    os.chown(folder, 12345, -1)
    assert "belongs to another user (uid 12345)" in start_fails(place / "s", "--kernels", folder)
    os.chown(folder, 0, 100)
    os.chmod(folder, 0o775)
    said = start_fails(place / "s", "--kernels", folder)
    assert "by its group" in said and "chmod g-w" in said and "--group" in said
    group = grp.getgrgid(100).gr_name
    daemon = start_daemon("--kernels", folder, "--group", group, socket=place / "new" / "s")
    with daemon.connect() as client:
        assert client.ops.double_it([1.0]).numpy().tolist() == [2]
