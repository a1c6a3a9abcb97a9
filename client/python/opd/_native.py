"""opd_native: the quick path of prepared calls in C (client/python/native.c), and copies by several threads
(copying.c): `native`, None where there is none.

`make` builds it where Python's headers are, and a wheel takes it along. All is done without it, too,
only slower; $OPD_PURE=1 leaves it out.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from pathlib import Path
from typing import Any

from ._places import look_beside

_ABI = 9
_FILE = "opd_native.so"
_NAME = "opd_native"


def _load() -> Any:
    fits = sys.version_info >= (3, 10) and ".abi3.so" in EXTENSION_SUFFIXES
    if os.environ.get("OPD_PURE", "0") != "0" or not fits:
        return None
    for path in look_beside("lib", _FILE):
        if path.exists():
            return _load_from(path)
    return None


def _load_from(path: Path) -> Any:
    loader = ExtensionFileLoader(_NAME, str(path))
    spec = importlib.util.spec_from_file_location(_NAME, path, loader=loader)
    assert spec is not None
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError:  # of another machine, or a sanitizer's
        return None
    return module if getattr(module, "ABI", None) == _ABI else None


native: Any = _load()
