"""Calls of operators in the daemon: what each would make, and how it is asked for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

import torch

from .._conn import Connection
from .._reply import Batch, Reply
from .._load import followers
from .._shapes import Rules
from .._warn import warn_reload
from ..errors import InvalidArgument, NotFound, OpdError
from ._daemon import Daemon
from ._dtypes import Desc, Unfit, describe, describe_all
from ._interface import InterfaceChanged, Lengths, Operator, flatten, get_key, nest
from ._library import Export, Library, find_library
from ._options import get_options
from ._prepared import Prepared
from ._stamps import note_serial
from ._transport import Job, Maybe, find_device

_COMPILING = 600.0  # seconds that the daemon may take for kernels
_MANY_PLANS = 4096  # kept for an operator
_MANY_PREPARED = 1024  # of backward, and with other options


@dataclass
class Plan:
    """What a call makes, as the daemon worked it out."""

    version: int
    outputs: tuple[Desc, ...]
    saved: tuple[Desc, ...]
    prepared: dict[Any, Prepared] = field(default_factory=dict, compare=False)  # with `keep` and options or not


class Session(Daemon):
    """Calls of operators, for all threads of this process."""

    def __init__(self, socket: Optional[str]) -> None:
        super().__init__(socket)
        self._plans: dict[str, dict[Any, Plan]] = {}
        self._pulls: dict[Any, Prepared] = {}

    def find_rules(self, operator: Operator) -> Optional[Rules]:
        """Those of the version that serves; None: only plan() knows. Raises InterfaceChanged."""
        self._check_interface(operator)
        spec = self.find(operator.name)
        return spec.rules if get_options().version in (None, spec.version) else None

    def plan(self, operator: Operator, tensors: Sequence[Maybe], attrs: Sequence[Any]) -> Plan:
        """dtypes and shapes of what a call would make; nothing runs. Open sizes become numbers."""
        device = find_device(operator.name, tensors)
        with self.lock:
            descs = [
                d and Desc(d.dtype, *(tuple(map(int, part)) for part in d.layout))
                for d in describe_all(tensors, operator)
            ]
            return self._plan(operator, tuple(descs), attrs, device)[0]

    def find_view(self, operator: Operator, tensor: torch.Tensor) -> Optional[tuple[int, ...]]:
        """The shape of the view of a plain tensor; None: the operator is another by now."""
        known = self._plans.setdefault(operator.name, {})
        key = operator, tensor.dtype, tensor.shape, tensor.device
        plan = known.get(key)
        if plan is None and not operator.outdated:
            plan = known[key] = self.plan(operator, [tensor], [])
        return None if plan is None else plan.outputs[0].shape

    def forward(
        self,
        operator: Operator,
        tensors: Sequence[Maybe],
        attrs: Sequence[Any],
        keep: bool,
        device: torch.device,
    ) -> tuple[list[torch.Tensor], int]:
        """Outputs, then with `keep` what backward needs; and the stamp of the version that ran."""
        descs = describe_all(tensors, operator)
        with self.lock:
            plan, was_known = self._plan(operator, descs, attrs, device)
            try:
                return self._forward(operator, plan, tensors, attrs, keep, device)
            except (InvalidArgument, NotFound) as e:
                if not was_known:
                    raise
                self.refresh(operator.name)
                now, _ = self._plan(operator, descs, attrs, device)
                if now == plan and not e._misfit:
                    raise
            return self._forward(operator, now, tensors, attrs, keep, device)

    def vjp(
        self,
        operator: Operator,
        tensors: tuple[Sequence[Maybe], Sequence[Maybe], Sequence[Maybe], Sequence[Maybe]],
        descs: Sequence[Optional[Desc]],
        attrs: Sequence[Any],
        wanted: Sequence[bool],
        stamp: int,
    ) -> list[torch.Tensor]:
        """Gradients of the wanted inputs. tensors: inputs, outputs, saved ones, gradients; stamp:
        forward's."""
        inputs, outputs, saved, grads = tensors
        reads = [*inputs, *outputs, *saved, *grads]
        makes = [Desc(d.dtype, d.shape) for d, want in zip(descs, wanted) if want and d]

        def send(
            ids: list[Optional[int]], made: list[Optional[int]], into: bool, batch: Batch
        ) -> Reply:
            rest = iter(made)
            places = [next(rest) if want else None for want in wanted]
            values = _name_attrs(operator, attrs)
            described = nest(_write_descs(descs), operator.lengths)
            sent = prepared and prepared.call(
                lambda: [*ids, *places],
                lambda: ("vjp", operator.name, described, values, self._with_asked({"version": version, "device": name})),
                *(batch, self._find_deadline(operator)),
            )
            if sent:
                return sent
            options = {"version": version, "inputs": described}
            places = _nest_some(places, operator.lengths)
            if into:
                options["into"] = places
                places = [None] * len(places)
            parts = _split(ids, len(inputs), len(outputs), len(saved))
            kinds = (operator.lengths, operator.made_lengths, None, operator.made_lengths)
            params = (operator.name, *map(_nest_some, parts, kinds), values, places, options)
            return self._send(transport.conn, "vjp", operator, params, batch)

        device = find_device(operator.name, reads)
        with self.lock:
            transport, name = self._transport(device), self._device_name(device)
            version = self.find_version(operator.name, stamp)
            key = (operator.name, version, tuple(descs), tuple(map(_freeze, attrs)), device, _get_asked())
            prepared = None
            if operator.lengths is None:
                prepared = self._find_prepared(self._pulls, key)
            job = Job(reads, (), operator.strided, makes, send)
            try:
                for t in reads:
                    if t is not None:
                        describe(t)
                return transport.run(job)[1]
            except Unfit as e:
                raise e.refuse(operator.name, "a gradient that came to its backward", "it") from None
            except OpdError as e:
                if not e._misfit:
                    raise
            self._pulls.pop(key, None)  # what came meanwhile may have cleared them
            prepared = self._find_prepared(self._pulls, key)
            return transport.run(job)[1]

    def export(
        self,
        operator: Operator,
        direction: str,
        descs: Sequence[Optional[tuple[str, tuple[int, ...]]]],
        attrs: Sequence[Any],
        device: torch.device,
        options: dict[str, Any],
    ) -> Optional[Export]:
        """A plan that this process runs itself; None: not on this device."""
        with self.lock:
            name = self._device_name(device)
            if device.type == "cpu" and name != "cpu":
                return None
            self._take_page(self.link)
            params = (operator.name, direction, descs, _name_attrs(operator, attrs), options)
            reply = self.conn.send("plan_export", (*params[:-1], {**options, "device": name}))
            reply.deadline = _COMPILING
            result = self.conn.wait(reply)
            version = int(result["version"])
            if "version" not in options and version != self.find(operator.name).version:
                self.refresh(operator.name)
            stamp = self._stamps.make(operator.name, version)
            file = reply.take_file()
        for text in reply.warnings:
            warn_reload(text)
        return None if file is None else Export(file, result["slot"], stamp)

    def _forward(
        self,
        operator: Operator,
        plan: Plan,
        tensors: Sequence[Maybe],
        attrs: Sequence[Any],
        keep: bool,
        device: torch.device,
    ) -> tuple[list[torch.Tensor], int]:
        n = len(plan.outputs)

        def send(
            ids: list[Optional[int]], made: list[Optional[int]], into: bool, batch: Batch
        ) -> Reply:
            options: dict[str, Any] = {"device": self._transports[device][0]}
            if get_options().version is not None:
                options["version"] = plan.version
            values = _name_attrs(operator, attrs)

            def describe() -> tuple[Any, ...]:
                descs = nest(_write_descs(describe_all(tensors, operator)), operator.lengths)
                saves = {"saved": True} if keep else {}
                return "forward", operator.name, descs, values, self._with_asked({**options, **saves})

            outputs, saved = nest(made[:n], operator.made_lengths), made[n:]
            given = nest(ids, operator.lengths)
            sent = prepared.call(
                lambda: [*given, *outputs, *saved], describe, batch, self._find_deadline(operator)
            )
            if sent:
                return sent
            if into:
                options["into"], outputs = outputs, [None] * len(outputs)
            if keep:
                options["saved_into" if into else "saved"] = saved
            params = (operator.name, given, values, outputs, options)
            return self._send(transport.conn, "forward", operator, params, batch)

        makes = plan.outputs + plan.saved if keep else plan.outputs
        transport = self._transport(device)
        prepared = self._find_prepared(plan.prepared, (keep, _get_asked()))
        result, made = transport.run(Job(tensors, operator.mutated, operator.strided, makes, send))
        version = int(result["version"])
        if version != plan.version:
            self.refresh(operator.name)
            if not operator.mutated:  # what was done in place is not done again
                self._check_interface(operator)
        return made, self._stamps.make(operator.name, version) if keep else version

    def load(self, library: Library, number: int, export: Export) -> int:
        """Loads a plan into this process: its serial, which what runs it has for a stamp."""
        with self.lock:  # another thread may run the plan, and ask for its version, at once
            serial = library.load(number, export.file.fileno(), export.slot)
            note_serial(serial, export.stamp)
        return serial

    def _send(
        self,
        conn: Connection,
        method: str,
        operator: Operator,
        params: tuple[Any, ...],
        batch: Batch,
    ) -> Reply:
        """A request that runs, whose last parameter is a map of options."""
        self._with_asked(params[-1])
        reply = conn.send(method, params, batch=batch)
        reply.deadline = self._find_deadline(operator)
        return reply

    def _with_asked(self, options: dict[str, Any]) -> dict[str, Any]:
        """With what the thread asks for."""
        asked = get_options()
        if asked.deadline is not None:
            options["deadline"] = asked.deadline
        if asked.debug:
            options["debug"] = True
        return options

    def _find_deadline(self, operator: Operator) -> float:
        """Seconds that the daemon may take."""
        spec = self._catalog.specs.get(operator.name)
        return get_options().deadline or (spec and spec.deadline) or 0.0

    def _find_prepared(self, known: dict[Any, Prepared], key: Any) -> Prepared:
        found = known.get(key)
        if found is None or found.conn is not self.conn:
            if len(known) >= _MANY_PREPARED:
                known.clear()
            found = known[key] = Prepared(self.conn, self.new_id())
        return found

    def _check_interface(self, operator: Operator) -> None:
        """Raises InterfaceChanged if the operator is not as it was registered."""
        if get_key(self.find(operator.name)) != operator.key:
            operator.outdated = True
            raise InterfaceChanged(
                f"{operator.name}: an edit changed what it takes or gives, it is now "
                f"{self.find(operator.name).schema}; call opd.torch.ops.{operator.name} again, and "
                "torch.compiler.reset() where it was compiled",
                op=operator.name,
            )

    def _plan(
        self,
        operator: Operator,
        descs: tuple[Optional[Desc], ...],
        attrs: Sequence[Any],
        device: torch.device,
    ) -> tuple[Plan, bool]:
        """The plan, and whether it was known before and so may be out of date."""
        options: dict[str, Any] = {"device": self._device_name(device)}
        version = get_options().version
        if version is not None:
            options["version"] = version
        known = self._plans.setdefault(operator.name, {})
        key = (operator.key, operator.lengths, descs, tuple(map(_freeze, attrs)), device, version)
        plan = known.get(key)
        if plan is not None:
            return plan, True
        inputs = nest([None if d is None else (d.dtype, *d.layout) for d in descs], operator.lengths)
        try:
            result = self.conn.call(
                "plan", operator.name, inputs, _name_attrs(operator, attrs), options
            )
        except (InvalidArgument, NotFound):
            self.refresh(operator.name)
            self._check_interface(operator)
            raise
        plan = Plan(
            result["version"],
            tuple(Desc(d, tuple(s)) for d, s in flatten(result["outputs"], operator.made_lengths)),
            tuple(Desc(d, tuple(s)) for d, s in result["saved"]),
        )
        if version is not None:
            _check_version(operator, plan)
        elif plan.version != self.find(operator.name).version:
            self.refresh(operator.name)
            known = self._plans.setdefault(operator.name, {})
        self._check_interface(operator)
        if len(known) * (1 + len(descs) // 16) >= _MANY_PLANS:
            known.clear()
        known[key] = plan
        return plan, False

    def _forget_plans(self, name: Optional[str] = None) -> None:
        if name is not None:
            self._plans.pop(name, None)
        else:
            self._plans.clear()
            self._pulls.clear()


def _check_version(operator: Operator, plan: Plan) -> None:
    """For a version that was asked for, whatever is served; its arguments the daemon has checked."""
    if len(plan.saved) != operator.n_saved:
        raise InvalidArgument(
            f"{operator.name}: version {plan.version} has {len(plan.saved)} saved tensors, what "
            f"opd.torch.ops knows has {operator.n_saved}; use client.ops, or roll back",
            op=operator.name,
        )


def _get_asked() -> tuple[Optional[float], bool]:
    """What calls of this thread are to be made with, the version aside."""
    asked = get_options()
    return asked.deadline, asked.debug


def _freeze(value: Any) -> Any:
    return tuple(value) if isinstance(value, (list, tuple)) else value


def _write_descs(descs: Sequence[Optional[Desc]]) -> list[Any]:
    return [None if d is None else (d.dtype, *d.layout) for d in descs]


def _name_attrs(operator: Operator, attrs: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(operator.attr_names, attrs))


def _nest_some(values: Sequence[Any], lengths: Lengths) -> list[Any]:
    """As nest(); a list of which there is nothing is None."""
    made = nest(values, lengths)
    return [None if isinstance(v, list) and all(x is None for x in v) else v for v in made]


def _split(ids: list[Optional[int]], *sizes: int) -> list[list[Optional[int]]]:
    parts, at = [], 0
    for size in sizes:
        parts.append(ids[at : at + size])
        at += size
    return [*parts, ids[at:]]


_current = Session(None)
followers.append(lambda: _current.follow_loaded())


def get_session() -> Session:
    return _current


def set_session(socket: Optional[str]) -> None:
    global _current
    old, _current = _current, Session(None if socket is None else os.path.abspath(socket))
    old.close()
    library = find_library()
    if library is not None:
        library.set_page(-1)


def release() -> None:
    """Gives up the memory that is kept for later calls: shared with the daemon for tensors on the
    CPU, and the daemon's hold on CUDA memory of this process, which the next call takes again."""
    _current.release()


def _after_fork() -> None:
    global _current
    _current = Session(_current._socket)


os.register_at_fork(after_in_child=_after_fork)
