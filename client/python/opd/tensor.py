"""A tensor that lives in the daemon."""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import operator
from collections.abc import Sequence
from struct import unpack
from typing import TYPE_CHECKING, Any, Callable, Optional

from . import _dlpack
from ._array import Array, DType, find_dtype
from ._reply import Reply
from ._dtypes import check_dtype, check_shape, from_host, need_numpy, to_host
from ._export import Export, dlpack_device
from ._link import Kind, Link
from ._native import native
from ._protocol import DTYPES
from ._spec import suggest
from .errors import InvalidArgument, NotFound

if TYPE_CHECKING:
    import numpy as np


class PureBase:
    """What opd_native.Tensor is."""

    __slots__ = ("_kind", "_link", "_reply", "_wire")

    _link: Link
    _wire: Optional[bytes]  # the id as MessagePack; None: freed
    _kind: Optional[Kind]  # None: not known yet
    _reply: Optional[Reply]  # that is to tell of the tensor, or that it could not be made

    def __del__(self) -> None:
        try:
            wire = self._wire
        except AttributeError:  # a signal has ended the making
            return
        if wire is not None:
            (self._kind or self._link.conn).drop(wire)


if TYPE_CHECKING or native is None:
    Base = PureBase
else:
    Base = native.Tensor


if TYPE_CHECKING:
    from ._shipped import Methods
else:
    Methods = object


class Tensor(Base, Array, Methods):
    """An array on one of the daemon's devices, made by Client.tensor() or by an operator.

    Every operator of the daemon is a method too: `x.gelu(approximate="tanh")` is
    `client.ops.gelu(x, ...)`. Dropping the last reference frees the tensor, except a named
    one, which stays until free(). Within Client.batch(), asking for anything but the
    operators waits for the tensor and raises the error of the request that was to make it.

    `x[2:5]`, `x[3]`, reshape() and T are views, and `x[2:5] = array` writes; `+ - * /` are the
    operators add, sub, mul and div, comparisons lt, le, gt, ge, eq and ne, where the daemon has such;
    without eq, `==` of two tensors tells whether they are one.
    """

    __slots__ = ("__weakref__", "_export", "_name", "_path")

    _path: tuple[Any, ...]  # where in the reply's result it is described; unset where _kind is known
    _name: Optional[str]  # unset where there can be none
    _export: Export  # what __cuda_array_interface__ told of

    def __init__(
        self, link: Link, wire: bytes, reply: Optional[Reply], path: tuple[Any, ...] = ()
    ) -> None:
        self._link = link
        self._wire = wire
        self._kind = None
        self._reply = reply
        self._path = path

    @property
    def shape(self) -> tuple[int, ...]:
        return self._learn().shape

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements from one index of a dimension to the next."""
        kind = self._learn()
        return dense_strides(kind.shape) if kind.strides is None else kind.strides

    @property
    def dtype(self) -> DType:
        """A name of protocol/README.md's dtypes: "float32", "bfloat16", "int64", ...; equal to NumPy's."""
        return find_dtype(self._learn().dtype)

    @property
    def device(self) -> str:
        """ "cpu" or "cuda:0" """
        return self._learn().device

    @property
    def name(self) -> Optional[str]:
        """The name by which other clients can attach(), or None."""
        self._learn()
        return getattr(self, "_name", None)

    @property
    def nbytes(self) -> int:
        return self._learn().nbytes

    def numpy(self) -> np.ndarray[Any, Any]:
        """A copy in this process, once the tensor is computed.

        bfloat16 comes as ml_dtypes.bfloat16 where that package is installed, else as float32.
        """
        kind = self._learn()
        return to_array(kind, self._read(0, kind.span))

    def read(self, offset: int = 0, count: Optional[int] = None) -> np.ndarray[Any, Any]:
        """A 1-D copy of `count` elements (None: the rest) from element `offset` on, row by row."""
        offset, count = self._check_range(offset, count)
        size = DTYPES[self.dtype]
        if self._learn().strides is not None:
            return self.numpy().reshape(-1)[offset : offset + count]
        return from_host(self._read(offset * size, count * size), self.dtype, (count,))

    def write(self, array: Any) -> None:
        """Overwrites all elements; `array` has the tensor's shape and a dtype of its kind."""
        host = to_host(array, self.dtype)
        if host.shape != self.shape:
            raise InvalidArgument(
                f"cannot write shape {list(host.shape)} to a tensor of shape {list(self.shape)}"
            )
        if self._learn().strides is not None:
            raise InvalidArgument("cannot write to a view with strides; write to what it is a view of")
        self._link.write(self._live_id(), host.data)

    def view(self, *shape: Any, offset: int = 0, strides: Optional[Sequence[int]] = None) -> Tensor:
        """A tensor on the same memory from element `offset` on; it may span less of it, not more.
        view(4, 3) is view((4, 3)); one size may be -1, which is what is left. With `strides`, elements
        from one index to the next, not below 0, it is an input of operators that say `strided` of theirs:
        view((4, 3), strides=(1, 4))."""
        try:
            sizes = check_shape(shape[0] if len(shape) == 1 else shape)
            offset = operator.index(offset)
            layout = (sizes,) if strides is None else (sizes, check_shape(strides))
        except TypeError:
            raise TypeError(
                f"view{shape} is no shape of integers; an offset is one too, strides are some, and both "
                "are given by name: view((4, 3), offset=2)"
            ) from None
        if strides is None and -1 in sizes:
            rest = self.view(max(self.size - offset, 0), offset=offset) if offset else self
            return rest.reshape(sizes)
        return make_tensor(self._link, "tensor_view", self._live_id(), offset, *layout)

    @property
    def suspect(self) -> Optional[str]:
        """What failed while it wrote this tensor, so that nobody knows what is in it; else None.

        Reading or using a suspect tensor raises InvalidArgument until write() has written all of it,
        or accept() has taken it as it is.
        """
        self._learn()
        why = self._link.call("tensor_info", self._live_id())["suspect"]
        return None if why is None else str(why)

    def accept(self) -> None:
        """Takes a suspect tensor as it is."""
        self._link.request("tensor_accept", ([self._live_id()],))

    def _copy(self) -> Tensor:
        """A new tensor with the same elements, on the same device."""
        other = make_zeros(self._link, self.shape, self.dtype, None, self.device)
        self._link.request("tensor_copy", (other._live_id(), self._live_id()))
        return other

    def free(self) -> None:
        """Frees the tensor now, and its name. Contexts and views that use its memory keep that."""
        _dlpack.sweep()
        id, self._wire = self._id, None
        if id:
            self._link.request("free", ("tensor", [id]))

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> np.ndarray[Any, Any]:
        if copy is False:
            return self._share(dtype)
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __jax_array__(self) -> Any:
        """For jax.numpy.asarray() and the like: the tensor's own memory, as by __dlpack__()."""
        from jax import dlpack  # type: ignore[import-not-found, unused-ignore]

        return dlpack.from_dlpack(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "an opd.Tensor is in the daemon, and is not pickled nor copied by copy(); use numpy(), "
            "or a name and attach()"
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack_device(self.device)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: Optional[tuple[int, int]] = None,
        dl_device: Optional[tuple[int, int]] = None,
        copy: Optional[bool] = None,
    ) -> Any:
        """The tensor's own memory, for from_dlpack() of NumPy, CuPy, JAX and PyTorch.

        What was sent before is done, so no stream has to wait. The memory lives until the
        consumer is done with it. What the consumer writes there, the tensor holds; backward
        does not notice it. copy=True gives a copy; dl_device=(1, 0) a GPU's tensor on the host.
        """
        here = dlpack_device(self.device)
        wanted = here if dl_device is None else (int(dl_device[0]), int(dl_device[1]))
        if wanted == (_dlpack.CPU, 0) and (copy or here[0] != _dlpack.CPU):
            if copy is False:
                raise BufferError(f"a tensor on {self.device} is on the CPU only as a copy")
            data = bytearray(self._learn().span)
            self._link.read(self._live_id(), 0, memoryview(data))
            address = ctypes.addressof(ctypes.c_char.from_buffer(data)) if data else 0
            holder: Any = data
        elif wanted != here:
            raise BufferError(f"a tensor on {self.device} cannot be given to device {wanted}")
        else:
            if copy and self._learn().strides is not None:
                raise BufferError("a copy of a view with strides is made by numpy()")
            source = self._copy() if copy else self
            holder = self._link.exports.open(source._live_id())
            address = holder.address
        return _dlpack.make_capsule(
            holder, address, self.dtype, self.shape, self.strides, wanted, max_version, bool(copy)
        )

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """For CuPy, Numba and others; the memory is shared as long as this tensor lives."""
        if self.device == "cpu" or self.dtype == "bfloat16":
            raise AttributeError(
                f"a tensor of {self.dtype} on {self.device} has no __cuda_array_interface__"
            )
        import numpy as np

        self._export = self._link.exports.open(self._live_id())
        return {
            "shape": self.shape,
            "typestr": np.dtype(self.dtype).str,
            "data": (self._export.address, False),
            "strides": None if self._learn().strides is None else self._byte_strides(),
            "version": 3,
            "stream": None,  # all that was sent before is done
        }

    def _byte_strides(self) -> tuple[int, ...]:
        return tuple(step * DTYPES[self.dtype] for step in self.strides)

    def _share(self, dtype: Any) -> np.ndarray[Any, Any]:
        import numpy as np

        if self.device != "cpu" or self.dtype == "bfloat16" or np.dtype(dtype or self.dtype) != self.dtype:
            raise ValueError(
                f"a tensor of {self.dtype} on {self.device} cannot become an array of "
                f"{np.dtype(dtype or 'float32') if dtype else 'NumPy'} without a copy"
            )
        return np.from_dlpack(self)

    def __repr__(self) -> str:
        if self._wire is None:
            return "<opd.Tensor, freed>"
        if self._reply is not None and not self._reply.done:
            return "<opd.Tensor, not yet known>"
        if self._reply is not None and self._reply.error is not None:
            return f"<opd.Tensor, failed: {self._reply.error.args[0]}>"
        name = f" {self.name!r}" if self.name else ""
        what = f"opd.Tensor{name} {self.dtype} {list(self.shape)} on {self.device}"
        if self._link.batch is not None:
            return f"<{what}>"
        values = self._show_values()
        return f"<{what}:{chr(10) if chr(10) in values else ' '}{values}>"

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = None if name.startswith("_") else self._link.find_method(name)
        if method is None:
            near = "" if name.startswith("_") else suggest(name, dir(self))
            raise AttributeError(
                f"a Tensor has no {name!r}, and the daemon no operator of that name{near}"
            )
        return functools.partial(method, self)

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *self._link.list_methods()})

    @property
    def _id(self) -> int:
        """0: it was freed."""
        return 0 if self._wire is None else int.from_bytes(self._wire[1:], "big")

    def _live_id(self) -> int:
        if self._wire is None:
            raise NotFound("this tensor was freed", "not_found")
        return self._id

    def _learn(self) -> Kind:
        """What it is. Waits for the reply, and raises its error."""
        if self._reply is not None:
            self._live_id()
            self._take_up(self._link.conn.wait(self._reply))
        assert self._kind is not None
        return self._kind

    def _guess(self) -> Optional[Kind]:
        """What it is, as far as that is known without waiting."""
        reply = self._reply
        if reply is not None and reply.done and reply.error is None:
            self._take_up(reply.result)
        return self._kind

    def _take_up(self, result: Any) -> None:
        kind = self._kind
        if kind is None:
            for step in self._path:
                result = result[step]
            self._kind = self._link.find_kind(
                result["dtype"], result["shape"], result["device"], result.get("strides")
            )
            self._name = result["name"]
        elif "outputs" in result:  # of a prepared call, which an edit has changed
            made = result["outputs"]
            for step in self._path[1:]:
                made = made[step]
            dtype, shape = made
            self._kind = self._link.find_kind(dtype, shape, kind.device)
        self._reply = None

    def _check_range(self, offset: int, count: Optional[int]) -> tuple[int, int]:
        """Of elements to be read."""
        total = math.prod(self.shape)
        count = total - offset if count is None else count
        if not 0 <= offset <= offset + count <= total:
            raise InvalidArgument(
                f"cannot read {count} elements at {offset} of a tensor of {total}"
            )
        return offset, count

    def _read(self, offset: int, size: int) -> np.ndarray[Any, Any]:
        """Bytes."""
        need_numpy()
        return self._link.read_array(self._live_id(), offset, size)


def to_array(kind: Kind, data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Of a tensor's bytes, from its first element to its last one in memory."""
    if kind.strides is None:
        return from_host(data, kind.dtype, kind.shape)
    from numpy.lib.stride_tricks import as_strided

    flat = from_host(data, kind.dtype, (kind.span // DTYPES[kind.dtype],))
    steps = [step * flat.itemsize for step in kind.strides]
    return as_strided(flat, kind.shape, steps).copy()


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    steps = itertools.accumulate(reversed(shape[1:]), lambda a, b: a * max(b, 1), initial=1)
    return tuple(steps)[::-1][: len(shape)]


def make_tensor(link: Link, method: str, *params: Any) -> Tensor:
    """Of a request whose first parameter is the new tensor's id."""
    tensor = Tensor(link, link.new_wire(), None)  # from here on dropping it cleans up
    tensor._reply = link.send(method, (tensor._id, *params))
    link.settle(tensor._reply)
    return tensor


def make_known(link: Link, kind: Kind, wire: bytes) -> Tensor:
    """Of a request that is yet to be sent, and known all the same."""
    tensor: Tensor = _new(Tensor)
    tensor._link = link
    tensor._wire = wire
    tensor._kind = kind
    tensor._reply = None
    return tensor


_new = Tensor.__new__


def to_wire(tensor: Optional[Tensor]) -> bytes:
    if tensor is None:
        return b"\xc0"
    if tensor._wire is None:
        tensor._live_id()
    return tensor._wire or b""


def to_ids(tensors: list[Tensor], what: str) -> list[int]:
    wires = [t._wire for t in tensors if t._wire is not None]
    if len(wires) < len(tensors):
        freed = [t._wire for t in tensors].index(None)
        raise NotFound(f"{what}[{freed}] was freed", "not_found")
    return list(unpack(f">{len(wires) * 'xQ'}", b"".join(wires)))


def make_zeros(
    link: Link, shape: Any, dtype: Any, name: Optional[str], device: Optional[str]
) -> Tensor:
    return make_tensor(link, "tensor_new", check_dtype(dtype), check_shape(shape), name, device)


def check_own(link: Link, tensor: Optional[Tensor]) -> Optional[Tensor]:
    if tensor is not None and tensor._link is not link:
        raise InvalidArgument(f"{tensor!r} belongs to another client; attach() to it by name")
    return tensor
