"""Which version ran a forward, as its backward is told of it.

A daemon that was started anew counts an operator's versions from 1 again, and so does an operator that
is loaded before one of its name. So the version is told by a stamp: the version, and above it a number
of the connection, another one after each load; or the serial of a plan that was loaded in this process.
"""

from __future__ import annotations

import itertools
from contextlib import suppress

from .._catalog import Catalog
from .._conn import Connection
from ..errors import NotFound

_STAMP_BITS = 32
SERIALS = 1 << 62  # stamps from here on are serials of plans

_numbers = itertools.count()
_serials: dict[int, int] = {}  # the stamp of the same version
_hashes: dict[tuple[int, str, int], str] = {}  # of the text behind connection, operator, version


def note_serial(serial: int, stamp: int) -> None:
    _serials[serial] = stamp


class Stamps:
    """Those of one connection, until what it has loaded changes. The caller holds its lock."""

    def __init__(self, conn: Connection, catalog: Catalog) -> None:
        self._number = next(_numbers)
        self._conn, self._catalog = conn, catalog

    def make(self, name: str, version: int) -> int:
        key = (self._number, name, version)
        if key not in _hashes:
            _hashes[key] = self._find_hash(name, version)
        return self._number << _STAMP_BITS | version

    def _find_hash(self, name: str, version: int) -> str:
        spec = self._catalog.find(name)
        if spec is not None and spec.version == version:
            return str(spec.info["hash"])
        versions = self._conn.call("op_info", name)["versions"]
        return next((str(v["hash"]) for v in versions if v["version"] == version), "")

    def find_version(self, name: str, stamp: int) -> int:
        """The version of that stamp; of another connection's, what has the same text."""
        number, version = divmod(_serials.get(stamp, stamp), 1 << _STAMP_BITS)
        if number == self._number:
            return version
        text = _hashes.get((number, name, version))
        with suppress(NotFound):  # of the operator itself
            for each in self._conn.call("op_info", name)["versions"]:
                if each["hash"] == text and each["state"] != "failed":
                    return int(each["version"])
        raise NotFound(
            f"{name}: the daemon was started anew since forward, or another {name} was loaded, and it does "
            "not have the version that ran it; run forward again",
            op=name,
        )
