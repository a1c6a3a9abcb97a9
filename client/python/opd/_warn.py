"""Warnings that point at the user's line, however deep in this package they arise."""

from __future__ import annotations

import contextlib
import sys
import warnings

from .errors import ReloadWarning

_PACKAGE = __name__.partition(".")[0]


def warn_reload(text: str) -> None:
    """One warning, at the line that called into this package."""
    warnings.warn(text, ReloadWarning, stacklevel=_find_level())


def _find_level() -> int:
    """The `stacklevel` for warn_reload(): 1 is itself, and each caller one more.

    The package's outermost frame decides: between two of its own there may be others', such as
    torch's. A `with` block's end is called by contextlib.
    """
    frame = sys._getframe(1)
    level = found = 1
    while True:
        module = str(frame.f_globals.get("__name__", ""))
        ours = module == _PACKAGE or module.startswith(_PACKAGE + ".")
        if ours or (module == contextlib.__name__ and found == level - 1):
            found = level
        if frame.f_back is None:
            return found + 1
        frame = frame.f_back
        level += 1
