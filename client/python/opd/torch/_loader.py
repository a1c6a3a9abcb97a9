"""Plans that are loaded into this process, so that calls of an operator find them (_inproc.py)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Optional

import torch

from ..errors import OpdError
from ._direct import get_direct
from ._dtypes import describe_all
from ._library import Library
from ._options import get_options, is_isolated
from ._session import get_session
from ._stamps import SERIALS
from ._transport import find_device

FORWARD, KEEP, BACKWARD = range(3)  # kinds of kernels
_MANY = 1024


def may_run() -> bool:
    """Whether calls of this thread may run in this process."""
    return not is_isolated(get_options())


class Loader:
    """Of one registered operator."""

    def __init__(self, operator: Any, library: Library, n_inputs: int) -> None:
        self.numbers: dict[int, int] = {}  # of its kernels, by their kinds
        self.not_on_cpu = False  # the daemon has no device for that, so nothing can be loaded
        self._operator, self._library, self._n_inputs = operator, library, n_inputs
        self._refused: set[str] = set()

    def load_forward(
        self, values: Sequence[Any], keep: bool, version: Optional[int]
    ) -> Optional[int]:
        """For calls as the last one of this thread, which was a MISS: a stamp. None: they will be,
        too."""
        options = {"keep": keep} if keep else {}
        return self._load(KEEP if keep else FORWARD, self._describe(values), version, options)

    def _describe(self, values: Sequence[Any]) -> tuple[Any, Any, torch.device]:
        tensors = values[: self._n_inputs]
        descs = describe_all(tensors, self._operator)
        return descs, values[self._n_inputs :], find_device(self._operator.name, tensors)

    def load_backward(
        self,
        descs: Sequence[Any],
        attrs: Sequence[Any],
        device: torch.device,
        stamp: int,
        wanted: Sequence[bool],
        absent: Sequence[bool],
    ) -> None:
        """The same of a backward; of a forward that ran in the daemon, nothing would find it."""
        if stamp < SERIALS:
            return
        options = {"wanted": list(wanted), "grad_absent": list(absent)}
        version = get_session().find_version(self._operator.name, stamp)
        self._load(BACKWARD, (descs, attrs, device), version, options)

    def _load(
        self,
        kind: int,
        what: tuple[Any, Any, torch.device],
        version: Optional[int],
        options: dict[str, Any],
    ) -> Optional[int]:
        key = repr((kind, what, version, options))
        if key in self._refused or not may_run():
            return None
        if version is not None:
            options["version"] = version
        for blas in (True, False):
            with suppress(OSError, OpdError):
                return self._try_load(kind, what, {**options, "blas": blas})
        if len(self._refused) < _MANY:
            self._refused.add(key)
        return None

    def _try_load(
        self, kind: int, what: tuple[Any, Any, torch.device], options: dict[str, Any]
    ) -> Optional[int]:
        session = get_session()
        direction = "backward" if kind == BACKWARD else "forward"
        export = session.export(self._operator, direction, *what, options)
        if export is None:
            self.not_on_cpu = True
            return None
        get_direct(self._library).note(what[2])
        with export:
            return session.load(self._library, self.numbers[kind], export)
