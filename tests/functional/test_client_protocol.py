"""The protocol's documents against the client, and the daemon against broken messages."""

import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from opd import _protocol, _wire, errors

PROTOCOL = Path(__file__).resolve().parents[2] / "protocol"
LETTERS = {
    "s": str, "S": (str, type(None)), "i": int, "b": bytes, "M": dict, "h": int,
    "H": (int, type(None)), "m": str, "a": list, "A": (list, type(None)), "v": object, "n": type(None),
}  # fmt: skip


def read_vectors(name):
    lines = (PROTOCOL / "vectors" / name).read_text().splitlines()
    return [pytest.param(*line.split("\t")[1:], id=line.split("\t")[0]) for line in lines]


def revive(value):
    if isinstance(value, list):
        return [revive(v) for v in value]
    if isinstance(value, dict):
        if set(value) == {"bin"}:
            return bytes.fromhex(value["bin"])
        return {k: revive(v) for k, v in value.items()}
    return value


def test_generated_files_are_fresh():
    subprocess.run([sys.executable, PROTOCOL / "gen_protocol.py", "--check"], check=True)


def test_a_row_that_cannot_be_read_stops_the_generator(tmp_path):
    for path in ("protocol", "server/base", "client/python/opd"):
        (tmp_path / path).mkdir(parents=True)
    for path in ("protocol/gen_protocol.py", "protocol/protocol.def", "protocol/errors.def",
                 "protocol/README.md", "server/base/dtype.def"):  # fmt: skip
        (tmp_path / path).write_bytes((PROTOCOL.parent / path).read_bytes())
    table = tmp_path / "protocol" / "errors.def"
    lines = table.read_text().splitlines()
    table.write_text("\n".join([*lines, 'ERROR(new, twelve, New, "text")']))
    done = subprocess.run([sys.executable, tmp_path / "protocol" / "gen_protocol.py"],
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode != 0
    assert f"errors.def:{len(lines) + 1}:" in done.stderr
    assert not (tmp_path / "client/python/opd/_protocol.py").exists()


@pytest.mark.parametrize("data, value", read_vectors("messages.txt"))
def test_vector(data, value):
    data, message = bytes.fromhex(data), revive(json.loads(value))
    if message[0] == 1:
        for size in (1, 3, len(data)):  # pieces as they come from a socket
            decoder = _wire.Decoder()
            pieces = [data[i : i + size] for i in range(0, len(data), size)]
            got = [reply for piece in pieces for reply in decoder.feed(piece)]
            assert got == [message]
        return
    method, params = message[-2:]
    if message[0] == 0:
        assert _wire.encode_request(message[1], method, params) == data
    else:
        assert _wire.encode_notification(method, params) == data
    letters = _protocol.REQUESTS[method][0].replace("f", "")  # which is no element
    needed = letters.partition("|")[0]
    assert len(needed) <= len(params) <= len(letters.replace("|", ""))
    for letter, param in zip(letters.replace("|", ""), params):
        assert isinstance(param, LETTERS[letter])


def test_hex_in_the_readme():
    """The example there is the vector of that name."""
    text = (PROTOCOL / "README.md").read_text()
    vectors = {p.id: p.values[0] for p in read_vectors("messages.txt")}
    blocks = [b for b in re.findall(r"(?:^    .*\n)+", text, re.M) if b.startswith("    94")]
    found = [re.sub(r"#.*|\s", "", block) for block in blocks]
    assert found == [vectors["tensor_new"], vectors["tensor_new_error"]]


@pytest.mark.parametrize("code", _protocol.ERRORS)
def test_each_error_is_its_class(code):
    error = errors.from_wire({"code": code, "number": 1, "message": "text", "op": "gelu"})
    assert type(error).__name__ == _protocol.ERRORS[code][1]
    assert (error.code, error.op, str(error)) == (code, "gelu", "text")
    assert isinstance(error, errors.OpdError)


@pytest.mark.parametrize("data, why", read_vectors("malformed.txt"))
def test_malformed_message(daemon, data, why):
    """An error or nothing, and the end of the connection; the daemon goes on."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        sock.connect(daemon.socket)
        sock.sendall(bytes.fromhex(data))
        received = b""
        while piece := sock.recv(4096):
            received += piece
    replies = list(_wire.Decoder().feed(received))
    assert [error["code"] for _, _, error, _ in replies] in ([], ["malformed_message"])
    with daemon.connect() as client:
        client.synchronize()


def test_every_request_is_told_by_hello(client):
    told = {name: (m["params"], m["result"]) for name, m in client.info["methods"].items()}
    assert told == _protocol.REQUESTS
    assert client.info["dtypes"] == list(_protocol.DTYPES)
