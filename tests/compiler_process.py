"""One compiler process of the daemon, without the daemon: what server/compiler/job.h says, from Python."""

import array
import ctypes
import os
import re
import socket
import struct
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEADER = struct.Struct("=IIIIQ")
JOB = ("kind", "target", "common", "prelude", "file", "folder", "source", "expr", "cache", "cache_limit")
RESULT = ("message", "log", "compiler", "text")
ADDR_NO_RANDOMIZE = 0x0040000


def common(name="opd.cuh"):
    """What stands before every operator, its parts in place."""
    text = (ROOT / "kernels_src" / name).read_text()
    return re.sub(r'^#include "(.*)"$', lambda part: common(part[1]), text, flags=re.M)


class Compiler:
    """compile(source, expr) gives the result: its strings, `code` (0: it compiled), `cached`, `ms`, and the image."""

    def __init__(self, program, *, cache="", target="sm_90", env=None, randomized=False, log=None, **job):
        self.job = {"kind": "compile", "target": target, "common": common(),
                    "prelude": "using scalar_t = float;\nusing acc_t = float;\n", "file": "try.cu", "folder": "",
                    "cache": str(cache), "cache_limit": "0", **job}  # fmt: skip
        own, other = socket.socketpair()
        libc = ctypes.CDLL(None)

        def become():
            os.dup2(other.fileno(), 3)
            libc.personality(0 if randomized else ADDR_NO_RANDOMIZE)

        self.process = subprocess.Popen(
            [program, "compiler", "normal", "debug"], preexec_fn=become, close_fds=False,
            stdin=subprocess.DEVNULL, stderr=log, env={**os.environ, **(env or {})},
        )  # fmt: skip
        other.close()
        self.socket = own

    def compile(self, source, expr, **other):
        """ConnectionError: the process has ended."""
        job = {**self.job, "source": source, "expr": expr, **other}
        texts = [job[name].encode() for name in JOB]
        body = b"".join(struct.pack("=I", len(t)) + t + b"\0" for t in texts)
        start = time.perf_counter()
        self.socket.sendall(HEADER.pack(HEADER.size + len(body), 1, 0, 0, 0) + body)
        data, fds = b"", array.array("i")
        while len(data) < HEADER.size or len(data) < HEADER.unpack_from(data)[0]:
            part, ancillary, _, _ = self.socket.recvmsg(1 << 20, socket.CMSG_SPACE(4))
            if not part:
                raise ConnectionError(f"the compiler has ended: {self.process.wait()}")
            data += part
            for _, _, fd in ancillary:
                fds.frombytes(fd)
        result = {"ms": (time.perf_counter() - start) * 1e3, "image": None}
        _, _, result["code"], result["cached"], result["cache_bytes"] = HEADER.unpack_from(data)
        at = HEADER.size
        for name in RESULT:
            (length,) = struct.unpack_from("=I", data, at)
            result[name] = data[at + 4 : at + 4 + length].decode()
            at += 5 + length
        for fd in fds:
            with os.fdopen(fd, "rb") as image:
                image.seek(0)
                result["image"] = image.read()
        return result

    def close(self):
        self.socket.close()
        return self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()
