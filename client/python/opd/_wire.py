"""Bytes <-> messages of MessagePack-RPC. Pure: no socket, no clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Optional, Union

import msgpack

from .errors import ProtocolError

_REQUEST, _RESPONSE, _NOTIFICATION = 0, 1, 2
_MAX_REPLY = 1 << 28  # bytes of one reply that we are willing to hold


class Response(NamedTuple):
    msgid: int
    error: Any  # None: it succeeded
    result: Any


class Notification(NamedTuple):
    method: str
    params: list[Any]


def encode_request(msgid: int, method: str, params: Sequence[Any]) -> bytes:
    return bytes(msgpack.packb((_REQUEST, msgid, method, params)))


def encode_notification(method: str, params: Sequence[Any]) -> bytes:
    return bytes(msgpack.packb((_NOTIFICATION, method, params)))


class Decoder:
    """Takes bytes as they come, in pieces of any size, and gives whole messages."""

    def __init__(self) -> None:
        self._unpacker = msgpack.Unpacker(max_buffer_size=_MAX_REPLY)

    def feed(self, data: bytes) -> Iterator[Union[Response, Notification]]:
        """Raises ProtocolError for what is no message of a daemon; the stream is of no use after that."""
        try:
            self._unpacker.feed(data)
            for message in self._unpacker:
                yield _check_notification(message) or _check_response(message)
        except (ValueError, msgpack.UnpackException) as e:
            raise ProtocolError(f"the daemon sent bytes that are no MessagePack: {e}") from e


def _check_notification(message: Any) -> Optional[Notification]:
    if not isinstance(message, list) or len(message) != 3 or message[0] != _NOTIFICATION:
        return None
    method, params = message[1:]
    if not isinstance(method, str) or not isinstance(params, list):
        return None
    return Notification(method, params)


def _check_response(message: Any) -> Response:
    if (
        not isinstance(message, list)
        or len(message) != 4
        or message[0] != _RESPONSE
        or not isinstance(message[1], int)
    ):
        raise ProtocolError(
            f"the daemon sent {str(message)[:80]}, expected [1, msgid, error, result]"
        )
    return Response(message[1], message[2], message[3])
