"""What the calls of a thread ask of the daemon beside the operator's arguments."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, Optional

import torch

from .._spec import check_deadline, check_debug, check_version
from ..errors import InvalidArgument
from ._library import DEFAULT_ISOLATED, get_library


class Options(NamedTuple):
    deadline: Optional[float] = None
    version: Optional[int] = None
    debug: bool = False
    isolated: Optional[bool] = None  # None: as OPD_ISOLATED says


DEFAULT = Options()


class _Local(threading.local):
    options = DEFAULT


local = _Local()


def get_options() -> Options:
    return local.options


@contextmanager
def options(
    *,
    deadline: Optional[float] = None,
    version: Optional[int] = None,
    debug: Optional[bool] = None,
    isolated: Optional[bool] = None,
) -> Iterator[None]:
    """For this thread's calls of opd.torch.ops and layers inside, and for their backward.

    deadline  seconds after which the daemon gives up: DeadlineExceeded
    version   one of the operator's versions, instead of the one that is served; it must have the
              same arguments, results and saved tensors
    debug     True runs each call alone, waiting for each kernel, to name the one that fails; on a
              GPU in a checked build, which also names tensor, element and line
    isolated  True runs all calls in the daemon, False none. Else the first call of each version,
              with these dtypes, shapes and attributes, runs there, and later ones in this process;
              $OPD_ISOLATED (1 or 0) says otherwise for all. What has a deadline, or is to be
              debugged, always runs in the daemon

    What is not given is as it was outside. Put it around compiled code, not into it.
    """
    if torch.compiler.is_dynamo_compiling():
        torch._dynamo.graph_break(msg="opd.torch.options() is for calls as they are made: put it around compiled code")
    given = Options(
        check_deadline("options", deadline),
        check_version("options", version),
        debug is not None and check_debug("options", debug),
        _check_isolated(isolated),
    )
    outside = get_options()
    inside = Options(
        outside.deadline if deadline is None else given.deadline,
        outside.version if version is None else given.version,
        outside.debug if debug is None else given.debug,
        outside.isolated if isolated is None else given.isolated,
    )
    _set(inside)
    try:
        yield
    finally:
        _set(outside)


def _check_isolated(value: Optional[bool]) -> Optional[bool]:
    if value is not None and not isinstance(value, bool):
        raise InvalidArgument(f"options: isolated is {value!r}, expected True, False or None")
    return value


def is_isolated(asked: Options) -> bool:
    """Whether such calls run in the daemon, all of them."""
    isolated = DEFAULT_ISOLATED if asked.isolated is None else asked.isolated
    return bool(isolated) or asked.debug or asked.deadline is not None


def _set(asked: Options) -> None:
    """For this thread; what runs in the process is told, too."""
    local.options = asked
    library = None if DEFAULT_ISOLATED and asked.isolated is not False else get_library()
    if library is not None:
        library.set_options(is_isolated(asked), asked.version)


@contextmanager
def with_those_of_forward(forward: Options) -> Iterator[None]:
    """In a backward, which may be another thread's: options that it has itself go before."""
    own = get_options()
    isolated = forward.isolated if own.isolated is None else own.isolated
    debug = own.debug or forward.debug
    _set(Options(own.deadline or forward.deadline, None, debug, isolated))
    try:
        yield
    finally:
        _set(own)
