"""Calls that the daemon has checked once (`prepare`), so that each one is a short message (`call`).

The first call with some dtypes, shapes and attributes is a plain `forward`; with the second goes a
`prepare`, for which nobody waits; those after its reply run what was prepared.
"""

from __future__ import annotations

from collections.abc import Sequence
from marshal import dumps
from typing import Any, Callable, Optional, Union

from ._calls import CALL
from ._lanes import find_parts, has_views
from ._reply import Again, Reply
from ._link import Kind, Link
from ._native import native
from ._spec import Call, Spec
from ._warn import warn_reload
from ._wire import pack
from .tensor import Tensor, make_known, to_wire

_MANY = 200  # signatures of an operator: beyond that all are forgotten
_NIL = b"\xc0"
_PLAIN = {bool, int, float, str, type(None)}


class Asked:
    """A `prepare` that is not answered yet, or was refused."""

    __slots__ = ("id", "link", "reply")

    reply: Reply

    def __init__(self, link: Link) -> None:
        self.link, self.id = link, link.new_id()

    def __del__(self) -> None:
        if getattr(self, "id", 0):
            self.link.conn.discard("prepared", self.id)


class Handle:
    """A prepared call. run() it with its inputs' ids; give up what it refers to by forgetting it."""

    __slots__ = (
        "_again", "_expected", "_head", "_holds", "_kind", "_link", "_refresh", "_version", "id", "kinds",
        "nils", "parts", "spec",
    )  # fmt: skip

    def __init__(
        self,
        link: Link,
        refresh: Callable[[], None],
        call: Call,
        spec: Spec,
        asked: Asked,
        n_absent: int,
        keep: bool,
    ) -> None:
        plan = asked.reply.result
        self.spec = spec
        self.id, self._link, self._refresh = asked.id, link, refresh
        asked.id = 0  # it is this one's
        self._again = Again(CALL, call.deadline or spec.deadline)
        self._version = call.version or spec.version  # that runs, as far as is known
        device = plan["device"]
        self.kinds: list[Any] = [
            [link.find_kind(dtype, shape, device) for dtype, shape in made]
            if info.get("list")
            else link.find_kind(made[0], made[1], device)
            for info, made in zip(spec.outputs, plan["outputs"])
        ]
        self._holds = keep or has_views(plan)  # memory of what it is called with
        self._kind = self.kinds[0] if len(self.kinds) == 1 and not self._holds and not spec.lists else None
        self.nils = n_absent * _NIL  # behind the ids of inputs, where the absent ones are the last
        # The request up to the ids, with the number 0; and its reply the last time.
        n = len(call.tensors) + len(self.kinds) + keep
        self._head = b"\x94\x00\x00" + pack("call") + b"\x92" + pack(self.id) + b"\xdc" + n.to_bytes(2, "big")
        self._expected = b"?"  # no reply yet: none is so, nor the end of the connection
        kind = self._kind
        dropped = link.conn.dropped if kind and kind.drop == link.conn.drop_small else None
        of_link = (link, link.wires, link.batches)
        self.parts = find_parts(link.conn, self._again, self._head, (kind, self.nils, dropped, *of_link))

    def __del__(self) -> None:
        self._link.conn.discard("prepared", self.id)

    def run(self, inputs: bytes, context: bytes = b"") -> Any:
        """The outputs as an operator returns them. inputs: ids, as MessagePack."""
        link = self._link
        kind = self._kind
        if kind is not None and not link.batches:
            try:
                wire = link.wires.pop()
            except IndexError:
                wire = link.new_wire()
            # As make_known().
            tensor: Tensor = Tensor.__new__(Tensor)
            tensor._link = link
            tensor._wire = wire
            tensor._kind = kind
            tensor._reply = None
            answer = link.conn.exchange(self._head + inputs + wire, self._expected, self._again)
            if answer is not None:
                self._hear(answer, (tensor,))
            return tensor
        if self._holds:
            link.conn.untie()
        wires = [link.new_wire() for _ in self.kinds]
        outputs = [make_known(link, kind, wire) for kind, wire in zip(self.kinds, wires)]
        data = b"".join((self._head, inputs, *wires, context))
        if link.batches:
            batch = link.batch
            if batch is not None:
                reply = link.conn.send_again(data, batch, self._again.new_reply())
                for i, tensor in enumerate(outputs):
                    tensor._reply, tensor._path = reply, ("outputs", i)
                return outputs[0] if len(outputs) == 1 else tuple(outputs) or None
        answer = link.conn.exchange(data, self._expected, self._again)
        if answer is not None:
            self._hear(answer, outputs)
        return outputs[0] if len(outputs) == 1 else tuple(outputs) or None

    def run_lists(self, inputs: bytes, context: bytes = b"") -> Any:
        """The same for an operator of lists: of one that it makes the tensors are a list."""
        link = self._link
        if self._holds:
            link.conn.untie()
        made: list[Any] = [
            [make_known(link, k, link.new_wire()) for k in kind]
            if isinstance(kind, list)
            else make_known(link, kind, link.new_wire())
            for kind in self.kinds
        ]
        data = b"".join((self._head, inputs, *[write_ids(t) for t in made], context))
        flat: list[Tensor] = []
        for i, one in enumerate(made):
            for k, tensor in enumerate(one if isinstance(one, list) else (one,)):
                tensor._path = ("outputs", i, k) if isinstance(one, list) else ("outputs", i)
                flat.append(tensor)
        value = made[0] if len(made) == 1 else tuple(made) or None
        batch = link.batch if link.batches else None
        if batch is not None:
            reply = link.conn.send_again(data, batch, self._again.new_reply())
            for tensor in flat:
                tensor._reply = reply
            return value
        answer = link.conn.exchange(data, self._expected, self._again)
        if answer is not None:
            self._hear(answer, flat)
        return value

    def _hear(self, reply: Reply, outputs: Sequence[Tensor]) -> None:
        """Takes up a reply that is not as expected; raises its error."""
        if reply.error is not None:
            raise reply.error
        result = reply.result
        if "outputs" in result:
            for i, tensor in enumerate(outputs):
                if not self.spec.lists:
                    tensor._path = ("outputs", i)
                tensor._take_up(result)
        elif not reply.warnings:
            self._expected = pack((1, 0, None, result))
        for text in reply.warnings:
            warn_reload(text)
        if result["version"] != self._version:
            self._refresh()


class Prepared:
    """The prepared calls of one operator, `keep`ing a context or not. `quick` has those of them
    that are found by the arguments as they are given: their tensors' kinds, and the rest marshalled."""

    def __init__(self, link: Link, keep: bool, refresh: Callable[[], None]) -> None:
        self._link = link
        self._keep = keep
        self._refresh = refresh  # called when a call has run a version that was not known
        self.quick: dict[Any, Handle] = {}
        self._handles: dict[Any, Union[None, Asked, Handle]] = {}  # None: called once

    def forget(self) -> None:
        self.quick.clear()
        self._handles.clear()

    def find(
        self, spec: Spec, call: Call, inputs: list[Any], args: Any, kwargs: Any
    ) -> Optional[Handle]:
        """What was prepared for such a call; None: it is to be a plain one."""
        flat, kinds = inputs, [guess_kind(t) for t in inputs]
        each = kinds
        if spec.lists:
            flat = [t for value in inputs for t in (value if isinstance(value, list) else (value,))]
            each = [k for kind in kinds for k in (kind if isinstance(kind, tuple) else (kind,))]
        devices = {kind.device for kind in each if kind is not None}
        known = all((kind is None) == (t is None) for kind, t in zip(each, flat))
        if call.debug or not known or len(devices) > 1:
            return None
        key = (*kinds, dumps((call.attrs, call.deadline, call.version, call.device), 2))
        if key not in self._handles:
            if len(self._handles) >= _MANY:
                self.forget()
            self._handles[key] = None
            return None
        found = self._handles[key]
        if found is None:
            self._handles[key] = self._ask(spec, call, kinds, *devices)
            return None
        if isinstance(found, Asked):
            with self._link.conn.lock:  # one thread takes it up
                if self._handles.get(key) is not found or not self._is_answered(found):
                    return None
                self._handles[key] = None  # to be asked for anew, should a signal's exception come here
                n_absent = sum(t is None for t in inputs)
                found = Handle(self._link, self._refresh, call, spec, found, n_absent, self._keep)
                self._handles[key] = found
        if not spec.lists and _is_quick(args, kwargs, inputs):
            self.quick[make_key(args, kwargs)] = found
        return found

    def _ask(
        self, spec: Spec, call: Call, kinds: Sequence[Any], device: Optional[str] = None
    ) -> Asked:
        asked = Asked(self._link)
        descs = [
            [k.describe() for k in kind] if isinstance(kind, tuple) else kind and kind.describe()
            for kind in kinds
        ]
        options = {
            "device": call.device or device,
            "version": call.version,
            "deadline": call.deadline,
            "context": self._keep or None,
        }
        given = {key: value for key, value in options.items() if value is not None}
        params = (asked.id, "forward", spec.name, descs, call.attrs, given)
        asked.reply = self._link.conn.send("prepare", params)
        return asked

    def _is_answered(self, asked: Asked) -> bool:
        """And not refused."""
        if not asked.reply.done:
            self._link.conn.poll()
        return asked.reply.done and asked.reply.error is None


def guess_kind(value: Any) -> Any:
    """Of an input, as far as it is known; of a list, of each of its tensors."""
    if isinstance(value, list):
        return tuple([t._guess() for t in value])
    return None if value is None else value._guess()


def write_ids(value: Any) -> bytes:
    """A tensor's id, nil, or those of a list."""
    if not isinstance(value, list):
        return to_wire(value)
    return b"\xdc" + len(value).to_bytes(2, "big") + b"".join([to_wire(t) for t in value])


def _is_quick(
    args: Sequence[Any], kwargs: dict[str, Any], inputs: Sequence[Optional[Tensor]]
) -> bool:
    """Are all tensors given by position, and nothing else, and does marshal tell the rest apart?"""
    given = [t for t in inputs if t is not None]
    plain = all(
        type(v) in _PLAIN or (type(v) in (list, tuple) and {*map(type, v)} <= _PLAIN)
        for v in kwargs.values()
    )
    return plain and len(args) == len(given) and all(a is b for a, b in zip(args, given))


def make_key(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Of Prepared.quick. Raises AttributeError, TypeError or ValueError where there is none."""
    if kwargs:
        return (dumps(kwargs, 2), *[t._kind for t in args])
    if len(args) == 1:
        return args[0]._kind
    return tuple([t._kind for t in args])


def find_quick(
    quick: dict[Any, Handle], args: Sequence[Any], kwargs: dict[str, Any]
) -> Optional[Handle]:
    try:
        return quick.get(make_key(args, kwargs))
    except (AttributeError, TypeError, ValueError):
        return None


def call_prepared(quick: dict[Any, Handle], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What `quick` has for these, run; NotImplemented: there is nothing."""
    try:
        if len(args) == 1 and not kwargs:
            tensor = args[0]
            handle = quick[tensor._kind]
            ids = tensor._wire + handle.nils
        else:
            handle = quick[make_key(args, kwargs)]
            ids = b"".join([tensor._wire for tensor in args]) + handle.nils
    except (AttributeError, KeyError, TypeError, ValueError):
        return NotImplemented
    return handle.run(ids)


call_quick = call_prepared
if native is not None:
    native.set_up(Tensor, call_prepared)
    call_quick = native.call
