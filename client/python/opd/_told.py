"""What a daemon tells beside replies, for people: what kernels have printed, and what is being compiled."""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Callable, Optional

from .errors import count

log = logging.getLogger("opd")


class Told:
    """Of one connection, under its lock. hear() only notes; tell() writes, and raises nothing of what
    becomes of that: the calls have run."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._clear: Optional[Callable[[], None]] = None  # takes the line away

    def hear(self, method: str, params: Sequence[Any]) -> bool:
        """False: it is another notification."""
        writers = {"printed": _print, "compiling": self._show, "compiled": _log_compiled}
        write = writers.get(method)
        if write:
            self._waiting.append(lambda: write(*params))
        return write is not None

    def tell(self) -> None:
        """After more has come: the line goes, since the wait that it was for may be over."""
        if self._clear:
            clear, self._clear = self._clear, None
            with suppress(Exception):
                clear()
        while self._waiting:
            try:
                self._waiting.popleft()()
            except Exception as e:
                log.warning("what the daemon told could not be written: %s", e)

    def _show(self, told: Any) -> None:
        line = f"opd: compiling {told['op']} for {told['dtype']} ..."
        self._clear = _show_in_notebook(line) or _show_on_terminal(line)


HEARS = ("printed", "compiling", "compiled")  # what hello asks for


def _print(told: Any) -> None:
    """Where print() does."""
    sys.stdout.write(told["text"].decode("utf-8", "replace"))
    sys.stdout.flush()


def _log_compiled(told: Any) -> None:
    kernels = count(told["kernels"], "kernel")
    log.info("compiled %s for %s: %s, %.0f ms", told["op"], told["dtype"], kernels, told["ms"])


def _show_on_terminal(line: str) -> Optional[Callable[[], None]]:
    out = sys.stderr
    if out is None or not out.isatty():
        return None
    out.write(line)
    out.flush()

    def clear() -> None:
        out.write("\r\x1b[K")
        out.flush()

    return clear


def _show_in_notebook(line: str) -> Optional[Callable[[], None]]:
    shell: Any = sys.modules.get("IPython")
    if shell is None or not hasattr(shell.get_ipython(), "kernel"):
        return None
    shown = shell.display.display({"text/plain": line}, raw=True, display_id=True)
    return lambda: shown.update({"text/plain": ""}, raw=True)
