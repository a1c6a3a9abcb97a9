"""Any language with a MessagePack-RPC library is a client: here Lua, with the packages
lua5.1, lua-mpack and lua-socket of Debian and Ubuntu, and Neovim's library for Python."""

import math
import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from conftest import PATIENCE

pytestmark = pytest.mark.unsanitized("of documents and scripts")

CLIENT = Path(__file__).with_name("client.lua")
NUMBERS = [-3.5, -1.25, 0.25, 2.5, 10.5]  # the library packs whole numbers as integers
PACKAGES = "lua5.1 lua-mpack lua-socket"


def have_lua():
    if not shutil.which("lua5.1"):
        return False
    code = "require('mpack'); require('socket.unix')"
    return subprocess.run(["lua5.1", "-e", code], capture_output=True).returncode == 0


def test_lua(daemon):
    if not have_lua():
        if os.environ.get("OPD_NO_APT"):
            pytest.skip(f"no {PACKAGES}, and $OPD_NO_APT is set")
        pytest.fail(f"install {PACKAGES} (scripts/setup.sh test), or set OPD_NO_APT=1")
    done = subprocess.run(
        ["lua5.1", str(CLIENT), daemon.socket, *map(str, NUMBERS)],
        capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [line.split(" ", 1) for line in done.stdout.splitlines()]
    assert lines[0] == ["protocol", "1"]
    schemas = [text for word, text in lines if word == "op"]
    assert 'gelu(Tensor x, *, str approximate="sigmoid") -> Tensor y' in schemas
    results = [float(text) for word, text in lines if word == "gelu"]
    expected = [x / (1 + math.exp(-1.702 * x)) for x in NUMBERS]
    assert results == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert lines[-1][1].startswith("not_found: ") and "did you mean" in lines[-1][1]


def test_pynvim(daemon):
    rpc = pytest.importorskip("pynvim.msgpack_rpc")
    session = rpc.socket_session(daemon.socket)
    session.error_wrapper = lambda error: LookupError(error["code"], error["message"])
    try:
        assert session.request("hello", "pynvim", {})["protocol"] == 1
        assert {"gelu", "elu"} <= {op["name"] for op in session.request("op_list")}
        n = len(NUMBERS)
        for id, values in (1, NUMBERS), (2, [1.0] * n):
            session.request("tensor_new", id, "float32", [n], None, None)
            session.request("tensor_write", id, 0, struct.pack(f"{n}f", *values))
        session.request("forward", "gelu", [1], {}, [3], {"context": 4})
        session.request("backward", 4, [2], [5])
        s = [1 / (1 + math.exp(-1.702 * x)) for x in NUMBERS]
        slopes = [p + 1.702 * x * p * (1 - p) for x, p in zip(NUMBERS, s)]
        for id, expected in (3, [x * p for x, p in zip(NUMBERS, s)]), (5, slopes):
            data = session.request("tensor_read", id, 0, 4 * n)
            assert struct.unpack(f"{n}f", data) == pytest.approx(expected, rel=1e-4, abs=1e-6)
        with pytest.raises(LookupError, match="not_found.*did you mean"):
            session.request("forward", "gellu", [1], {}, [6])
    finally:
        session.close()
