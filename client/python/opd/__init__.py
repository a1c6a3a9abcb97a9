"""Client of opd, the daemon that compiles and serves GPU operators.

    client = opd.connect()
    x = client.tensor(array)
    y = client.ops.gelu(x, approximate="sigmoid")
    y.numpy()

help(client.ops.NAME) tells of an operator; docs/python.md has the rest.
"""

from typing import Any

from ._events import EventStream, TraceStream
from ._graph import Graph
from ._ops import Context, Ops
from ._version import __version__
from .client import Client, connect
from .errors import (
    CompileError,
    ConnectionLost,
    DeadlineExceeded,
    InternalError,
    InvalidArgument,
    KernelFault,
    NotFound,
    OpdError,
    OutOfMemory,
    ProtocolError,
    ReloadWarning,
    Unavailable,
)
from .tensor import Tensor

__all__ = [
    "Client",
    "CompileError",
    "ConnectionLost",
    "Context",
    "DeadlineExceeded",
    "EventStream",
    "Graph",
    "InternalError",
    "InvalidArgument",
    "KernelFault",
    "NotFound",
    "OpdError",
    "Ops",
    "OutOfMemory",
    "ProtocolError",
    "ReloadWarning",
    "Tensor",
    "TraceStream",
    "Unavailable",
    "__version__",
    "connect",
]


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext opd`: then %%opd and %opd_time are there."""
    from ._notebook import Magics

    Magics(shell)
