"""Descriptors that are closed with the object that has them, whatever comes in between.

A signal's exception may come after any call that Python's own code makes, and what that has returned is
lost; a descriptor that is a number leaks so. Here each becomes a file's without Python's code in between.
"""

from __future__ import annotations

import fcntl
import io
import mmap
import os
import socket
from array import array
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import chain, tee
from operator import itemgetter
from typing import Any

_MOST = 16  # of one read
_FLAGS = getattr(socket, "MSG_CMSG_CLOEXEC", 0x40000000) | socket.MSG_DONTWAIT
_SPACE = socket.CMSG_SPACE(_MOST * array("i").itemsize)


class File(io.FileIO):
    """A descriptor, closed with its last reference."""

    def __del__(self) -> None:
        self.close()  # else Python complains, and closes it


def own(make: Callable[..., int], *args: Any) -> File:
    """The descriptor that make(*args) returns."""
    return next(map(File, map(make, *zip(args))))


def receive(sock: socket.socket, size: int, data: deque[bytes], files: deque[File]) -> None:
    """What has come: one piece of data, and the descriptors beside it."""
    came, same = tee(map(sock.recvmsg, (size,), (_SPACE,), (_FLAGS,)))
    messages = chain.from_iterable(map(itemgetter(1), came))
    numbers = chain.from_iterable(map(partial(array, "i"), map(itemgetter(2), messages)))
    files.extend(map(File, numbers))
    data.extend(map(itemgetter(0), same))


def make_memfd(size: int) -> tuple[File, mmap.mmap]:
    """Memory whose size nobody can change, so that neither side can make the other fault."""
    file = own(os.memfd_create, "opd-client", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(file.fileno(), size)
    fcntl.fcntl(file.fileno(), fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return file, mmap.mmap(file.fileno(), size)
