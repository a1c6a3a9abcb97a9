"""Where the daemon's socket is, and starting a daemon there."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import struct
import subprocess
import time
from pathlib import Path
from typing import Optional

from ._places import look_beside
from .errors import ConnectionLost

_GRACE = 1.0  # seconds
_LOG_LINES = 20
_LOG_KEEP = 4 << 20  # a log larger than that is begun anew


class _Daemon(subprocess.Popen[bytes]):
    def __del__(self) -> None:  # Popen's complains of one that lives on
        pass


_children: list[_Daemon] = []  # kept to be waited for, should they end


def default_socket() -> str:
    """$OPD_SOCKET, else $XDG_RUNTIME_DIR/opd/opd.sock, else /tmp/opd-UID/opd.sock."""
    if os.environ.get("OPD_SOCKET"):
        return os.environ["OPD_SOCKET"]
    if os.environ.get("XDG_RUNTIME_DIR"):
        return os.path.join(os.environ["XDG_RUNTIME_DIR"], "opd", "opd.sock")
    return f"/tmp/opd-{os.getuid()}/opd.sock"


def open_socket(path: str, named: bool) -> socket.socket:
    """Connects; raises OSError, or ConnectionLost where it is another user's socket."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(path)
        _check_peer(sock, path, named)
    except BaseException:
        sock.close()
        raise
    return sock


def _check_peer(sock: socket.socket, path: str, named: bool) -> None:
    """Trusted are this user and root; where the caller `named` the path, also whoever has given the
    socket to a group of ours, as --group does; and root may name anybody's."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("iII"))
    uid = struct.unpack("iII", credentials)[1]
    if uid in (0, os.geteuid()) or (named and os.geteuid() == 0):
        return
    place = os.stat(path)
    shared = place.st_uid == uid and place.st_mode & stat.S_IWGRP
    if named and shared and place.st_gid in (os.getegid(), *os.getgroups()):
        return
    raise ConnectionLost(
        f"{path} is served by another user (uid {uid}), and not for a group of yours; nothing was "
        "sent: set OPD_SOCKET to a path of yours"
    )


def connect_socket(path: str, named: bool, start: bool, timeout: float) -> tuple[socket.socket, bool]:
    """A socket connected to the daemon at `path`, started first if `start` and there is none; whether it was.

    Raises ConnectionLost, with the last lines of the daemon's log if it was started and ended.
    """
    try:
        return open_socket(path, named), False
    except ConnectionLost:
        raise
    except PermissionError as e:
        raise ConnectionLost(
            f"{path} is not open to you ({e.strerror}): have yourself let in by the --group of the "
            "daemon there, or set OPD_SOCKET to a path of yours"
        ) from None
    except OSError as e:
        if not start:
            raise ConnectionLost(
                f"no daemon serves at {path} ({e.strerror or e}); start one: opd --socket {path}"
            ) from None
    try:
        return _start_daemon(path, named, timeout), True
    except ConnectionLost:
        raise
    except OSError as e:
        raise ConnectionLost(f"no daemon serves at {path}, and none can be started: {e}") from None


def _start_daemon(path: str, named: bool, timeout: float) -> socket.socket:
    program = _find_program(path)
    log = _log_of(path)
    _make_folder(log.parent)
    with open(log, "ab") as out:
        if out.tell() > _LOG_KEEP:
            out.truncate(0)
        begin = out.tell()
        child = _Daemon(
            [program, "--socket", path],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    _children[:] = [c for c in _children if c.poll() is None] + [child]
    sock = _await_socket(path, named, child, time.monotonic() + timeout)
    if sock is not None:
        return sock
    ended = child.poll()
    how = f"does not serve after {timeout:g} s" if ended is None else f"ended with status {ended}"
    raise ConnectionLost(f"{program} {how}; {tell_log(path, begin)}")


def _await_socket(
    path: str, named: bool, child: _Daemon, end: float
) -> Optional[socket.socket]:
    """Tries until `end`; a child that ended may have lost to another client's, so a bit longer."""
    ended = False
    while time.monotonic() < end:
        try:
            return open_socket(path, named)
        except ConnectionLost:
            raise
        except OSError:
            pass
        if not ended and child.poll() is not None:
            ended = True
            end = min(end, time.monotonic() + _GRACE)
        time.sleep(0.01)
    return None


def _find_program(path: str) -> str:
    given = os.environ.get("OPD_BIN")
    if given:
        found = shutil.which(given)
        if not found:
            raise ConnectionLost(f"no daemon serves at {path}, and OPD_BIN={given} is no program")
        return os.path.abspath(found)
    places = look_beside("bin", "opd")
    for program in places:
        if os.access(program, os.X_OK):
            return str(program)
    found = shutil.which("opd")
    if not found:
        raise ConnectionLost(
            f"no daemon serves at {path}, and there is no opd to start: looked at $OPD_BIN, "
            f"{', '.join(map(str, places))} and $PATH"
        )
    return found


def _make_folder(folder: Path) -> None:
    """Makes the socket's folder; one that another user made beforehand would hold their socket."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid not in (0, os.getuid()):
        raise ConnectionLost(
            f"{folder} belongs to another user; set OPD_SOCKET to a path of yours"
        )


def _log_of(path: str) -> Path:
    return Path(path).with_suffix(".log")


def tell_log(path: str, begin: int = 0) -> str:
    """The last lines of the log of a daemon that a client started at `path`, from that byte on."""
    log = _log_of(path)
    try:
        lines = log.read_bytes()[begin:].decode(errors="replace").splitlines()
    except OSError:
        return f"it has no log at {log}"
    if not lines:
        return f"it has written nothing to {log}"
    return f"the end of {log}:\n" + "\n".join(lines[-_LOG_LINES:])
