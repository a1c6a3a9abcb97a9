"""Bytes <-> messages of MessagePack-RPC. Pure: no socket, no clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Callable, NamedTuple, Optional, Union

import msgpack

from .errors import ProtocolError

_REQUEST, _RESPONSE, _NOTIFICATION = 0, 1, 2
_MAX_REPLY = 1 << 28  # bytes of one reply that we are willing to hold


class Notification(NamedTuple):
    method: str
    params: list[Any]


pack: Callable[[Any], bytes] = msgpack.Packer().pack


def encode_request(msgid: int, method: str, params: Sequence[Any]) -> bytes:
    return pack((_REQUEST, msgid, method, params))


def encode_notification(method: str, params: Sequence[Any]) -> bytes:
    return pack((_NOTIFICATION, method, params))


_FREE = encode_notification("free", ("tensor", (), {"drop": True}))
_AT = _FREE.index(b"\x90")  # where the array of ids begins


def encode_drop(ids: Sequence[bytes]) -> bytes:
    """Of tensors, whose ids are encoded already."""
    count = b"\xdd" + len(ids).to_bytes(4, "big")
    return _FREE[:_AT] + count + b"".join(ids) + _FREE[_AT + 1 :]


class Decoder:
    """Takes bytes as they come, in pieces of any size, and gives whole messages."""

    def __init__(self) -> None:
        self._unpacker = msgpack.Unpacker(max_buffer_size=_MAX_REPLY)

    def feed(self, data: bytes) -> Iterator[Union[list[Any], Notification]]:
        """A response is a list, as it comes: [1, msgid, error, or None where it succeeded, result]. Raises
        ProtocolError for what is no message of a daemon; the stream is of no use after that."""
        try:
            self._unpacker.feed(data)
            for message in self._unpacker:
                if (
                    type(message) is list
                    and len(message) == 4
                    and message[0] == _RESPONSE
                    and type(message[1]) is int
                ):
                    yield message
                else:
                    yield _check_notification(message)
        except (ValueError, msgpack.UnpackException) as e:
            raise ProtocolError(f"the daemon sent bytes that are no MessagePack: {e}") from e


def _check_notification(message: Any) -> Notification:
    if isinstance(message, list) and len(message) == 3 and message[0] == _NOTIFICATION:
        method, params = message[1:]
        if isinstance(method, str) and isinstance(params, list):
            return Notification(method, params)
    raise ProtocolError(
        f"the daemon sent {str(message)[:80]}, expected [1, msgid, error, result]"
    )
