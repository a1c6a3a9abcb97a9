"""What the calls of a thread ask of the daemon beside the operator's arguments."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, Optional

from .._spec import check_deadline, check_debug, check_version


class Options(NamedTuple):
    deadline: Optional[float] = None
    version: Optional[int] = None
    debug: bool = False


_DEFAULT = Options()
_local = threading.local()


def get_options() -> Options:
    found: Options = getattr(_local, "options", _DEFAULT)
    return found


@contextmanager
def options(
    *,
    deadline: Optional[float] = None,
    version: Optional[int] = None,
    debug: Optional[bool] = None,
) -> Iterator[None]:
    """For this thread's calls of opd.torch.ops and layers inside, and for their backward.

    deadline  seconds after which the daemon gives up: DeadlineExceeded
    version   one of the operator's versions, instead of the one that is served; it must have the
              same arguments, results and saved tensors
    debug     True runs each call alone, waiting for each kernel, to name the one that fails

    What is not given is as it was outside. Put it around compiled code, not into it.
    """
    given = Options(
        check_deadline("options", deadline),
        check_version("options", version),
        debug is not None and check_debug("options", debug),
    )
    outside = get_options()
    inside = Options(
        outside.deadline if deadline is None else given.deadline,
        outside.version if version is None else given.version,
        outside.debug if debug is None else given.debug,
    )
    _local.options = inside
    try:
        yield
    finally:
        _local.options = outside


@contextmanager
def with_those_of_forward(forward: Options) -> Iterator[None]:
    """In a backward, which may be another thread's: options that it has itself go before."""
    own = get_options()
    _local.options = Options(own.deadline or forward.deadline, None, own.debug or forward.debug)
    try:
        yield
    finally:
        _local.options = own
