"""Operators of the daemon as operators of torch.library, made from their description alone.

For `gelu` these are, in the namespace `opd`:

    gelu            the schema of its file; made of those below, so that torch differentiates it
    gelu__infer     outputs alone, where no gradient will be asked for
    gelu__forward   outputs, saved tensors, and a stamp of the version that ran: an int64 scalar
    gelu__backward  the wanted gradients, by the version that ran forward

An edit that changes what they depend on makes new ones: gelu__2, gelu__2__infer, and so on. So does
a registration that was interrupted, as torch forgets none of it. A name that is a word of Python,
which is mostly one of torch's schemas, too, has an underscore after it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from types import SimpleNamespace
from typing import Any, Optional

import torch
from torch.autograd import forward_ad

from .._spec import Spec, python_name
from ..errors import OpdError
from . import _derivatives as derivatives
from ._autocast import cast, register_autocast
from ._channels_last import ChannelsLast
from ._direct import MISS
from ._draft import find_drafting
from ._dtypes import BY_NAME, Desc, describe_all, parse_inputs, refuse_class, to_wire, write_inputs
from ._inproc import Kernels, check_capture, go_first, make_kernels
from ._interface import Lengths, get_key
from ._library import DEFAULT_ISOLATED, get_library
from ._onnx import express, is_exported
from ._options import get_options, with_those_of_forward
from ._schema import OPEN_INT, get_default, spell_arguments, spell_type, takes_device
from ._session import get_session
from ._shapes import has_symbols, infer
from ._sharing import check_apart
from ._transport import find_device
from ._view import PLAIN, View
from ._vmap import find_batches, move_to_front, unwrap, wrap

_library: Any = getattr(torch.library, "Library")("opd", "FRAGMENT")  # it has no types

def _find_tags(spec: Spec) -> list[Any]:
    """A launch in another process is no part of a CUDA graph."""
    if not DEFAULT_ISOLATED and get_library() is not None:
        return []
    return [t for t in (getattr(torch.Tag, "cudagraph_unsafe", None),) if t is not None]


# Names in torch.ops.opd, whether what they are for was ever complete or not.
taken: set[str] = set()
HELPERS = ("infer", "forward", "backward", "back")


class Operator:
    """A registered operator. `overload` is the one to call."""

    make_kernels: type[Kernels] = Kernels

    def __init__(self, spec: Spec) -> None:
        self.name = spec.name
        self.spec = spec
        self.kernels: Any = None  # Kernels, or a View; once a call has been made in the daemon
        self.library = _library
        self._tags = _find_tags(spec)
        self.key = get_key(spec)
        self.outdated = False
        self.public = _choose_name(spec)
        self.attr_names = [a["name"] for a in spec.attrs.values()]
        self.lists = " ".join(
            f"{len(spec.inputs) + i}:{name}:{a['type']}:{a['list']}"
            for i, (name, a) in enumerate(spec.attrs.items())
            if a["list"]
        )
        self.mutated = [i for i, t in enumerate(spec.inputs) if t["in_place"]]
        self.strided: Collection[int] = [i for i, t in enumerate(spec.inputs) if t.get("strided")]
        self.differentiable = [bool(t["differentiable"]) for t in spec.inputs]
        self._inputs = spec.inputs
        self.n_inputs, self.n_outputs = len(spec.inputs), len(spec.outputs)
        self.lengths: Lengths = None  # but of a call of lists
        self.made_lengths: Lengths = None
        self.n_saved = len(spec.info["saved"])
        self.read_inputs = [i for i, t in enumerate(spec.inputs) if t["used_backward"]]
        self.read_outputs = [i for i, t in enumerate(spec.outputs) if t["used_backward"]]
        self.has_backward = bool(spec.info["has_backward"]) and not self.mutated
        # How it is differentiated again, and takes batches.
        self.derivable = bool(spec.info.get("derivable"))
        self.linear: list[list[int]] = spec.info.get("linear", [])
        self.batches = find_batches(spec)
        self.broadcasts = bool(spec.info["broadcasts"])
        self.floating = ["float" in o["dtypes"][0] for o in spec.outputs]
        self.attr_arguments = list(spec.attrs)
        self._arguments = [
            (python_name(a), get_default(a)) for a in spec.inputs + spec.info["attrs"]
        ]
        # Results go where the tensors are; where there are none, as with torch's own, to `device`.
        self.takes_device = takes_device(spec)
        if self.takes_device:
            self._arguments.append(("device", None))
        told = spec.info.get("channels_last")
        self.last = ChannelsLast(spec, self._arguments) if told else None
        # An int of torch's is a number, and of a list[2] one number stands for all. What a compiler
        # leaves open goes into an overload of its own, which is tried first.
        schema = spell_arguments(spec.schema, self.takes_device)
        overloads = {"default": schema}
        if OPEN_INT.search(schema):
            overloads = {"SymInt": OPEN_INT.sub("SymInt", schema), **overloads}
        self.open_overload = next(iter(overloads))
        if any(output["view"] for output in spec.outputs):  # then all of them are
            names = [t["name"] for t in spec.inputs]
            self._views = [names.index(output["view"]) for output in spec.outputs]
            call = self._view
            if self.n_inputs == self.n_outputs == 1 and not self.attr_names:
                self.kernels = View(self)
        else:
            attrs = [f"{spell_type(a)} a{i}" for i, a in enumerate(spec.attrs.values())]
            self._define_all([*attrs, "Device? device"] if self.takes_device else attrs)
            call = self._call
        for overload, schema in overloads.items():
            name = self.public if overload == "default" else f"{self.public}.{overload}"
            _library.define(name + schema, tags=self._tags)
            _library.impl(name, call, "CompositeImplicitAutograd")
            _library.impl(name, self._refuse_nested, "CompositeImplicitAutogradNestedTensor")
            transform = call if call == self._view else self._transform
            _library.impl(name, transform, "FuncTorchDynamicLayerFrontMode")
        packet = getattr(torch.ops.opd, self.public)
        self.overload = packet.default
        if call == self._call and get_library() is not None:
            go_first(self, self.overload)
            go_first(self, packet)
        for overload in overloads if call == self._call and not self.mutated and not spec.lists else ():
            register_autocast(_library, getattr(packet, overload), spec)

    # --- what is registered

    def _define_all(self, attrs: list[str]) -> None:
        self.infer = self._define_infer(attrs)
        if self.has_backward:
            self.backward = self._define_backward(attrs)
            self.forward = self._define_forward(attrs)

    def _define_infer(self, attrs: list[str]) -> Any:
        returns = ", ".join(["Tensor"] * self.n_outputs)
        op = self._define(
            "infer",
            f"({', '.join(self._spell_inputs() + attrs)}) -> ({returns})",
            self._run_infer,
            lambda *args: as_result(self._fake(args, False)),
            self._batch_infer,
        )
        return op._opoverload

    def _define_forward(self, attrs: list[str]) -> Any:
        returns = ", ".join(["Tensor"] * (self.n_outputs + self.n_saved + 1))
        op = self._define(
            "forward",
            f"({', '.join(self._spell_inputs() + attrs)}) -> ({returns})",
            self._run_forward,
            lambda *args: (*self._fake(args, True), torch.empty((), dtype=torch.int64, device="cpu")),
        )
        op.register_autograd(self._differentiate, setup_context=self._keep)
        return op._opoverload

    def _define_backward(self, attrs: list[str]) -> Any:
        n = self.n_outputs + len(self.read_inputs) + len(self.read_outputs) + self.n_saved
        tensors = [f"Tensor? t{i}" for i in range(n)]
        rest = ["Tensor stamp", "str inputs", "SymInt[] sizes", "bool[] wanted"]
        op = self._define(
            "backward",
            f"({', '.join(tensors + attrs + rest)}) -> Tensor[]",
            self._run_backward,
            self._fake_backward,
            self._batch_backward,
        )

        def refuse_second(ctx: Any, *grads: Any) -> Any:
            raise derivatives.refuse_second(self)

        op.register_autograd(refuse_second)
        return op._opoverload

    def _define(self, what: str, schema: str, run: Any, fake: Any, batch: Any = None) -> Any:
        mutated = [f"t{i}" for i in self.mutated] if what == "infer" else []
        options: dict[str, Any] = {"tags": self._tags} if self._tags else {}
        op = torch.library.custom_op(
            f"opd::{self.public}__{what}", run, mutates_args=mutated, schema=schema, **options
        )
        op.register_fake(fake)
        refused = batch is None or mutated
        batch = self._refuse_vmap if refused else batch

        def batch_other_way(*args: Any) -> Any:
            level, size, moved, dims = unwrap(args)
            made, made_dims = batch(SimpleNamespace(batch_size=size), dims, *moved)
            if isinstance(made, torch.Tensor):
                return wrap(level, [made], [made_dims])[0]
            return wrap(level, made, made_dims)

        op.register_vmap(batch)
        # For is_grads_batched=True and vectorize=True, which torch does by another vmap.
        _library.impl(f"{self.public}__{what}", batch if refused else batch_other_way, "Batched")
        return op

    def _spell_inputs(self) -> list[str]:
        out = []
        for i, t in enumerate(self._inputs):
            kind = "Tensor(a%d!)" % i if t["in_place"] else "Tensor"
            kind += "[]" if t.get("list") else ""
            out.append(f"{kind}{'?' if t['optional'] else ''} t{i}")
        return out

    # --- the public operator

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        values = self._bind(args, kwargs)
        tensors = self._flatten(values)
        if is_exported(tensors):
            return self._express(values)
        twin = None if self.last is None else self.last.find(args, kwargs)
        if self.last is not None and twin is not None:
            return self.last.call(twin.overload, args, kwargs)
        return self._trace(values, tensors)

    def _flatten(self, values: tuple[Any, ...]) -> Sequence[Any]:
        """The tensors among all arguments, one after the other."""
        return values[: self.n_inputs]

    def _express(self, values: tuple[Any, ...]) -> Any:
        changed = [values[i] for i in self.mutated if values[i] is not None]
        return as_result(self._make_node(values, lambda: self._fake(values, False), changed))

    def _make_node(
        self, values: tuple[Any, ...], make_fake: Callable[[], list[Any]], changed: Sequence[Any]
    ) -> list[Any]:
        arguments = dict(zip((name for name, _ in self._arguments), values))
        return express(self.name, arguments, self.n_inputs, make_fake, changed)

    def _trace(self, values: tuple[Any, ...], tensors: Sequence[Any]) -> Any:
        """The call, by draft_export, too."""
        unusual = self.mutated or any(t is None for t in tensors)
        drafting = find_drafting(tensors) if unusual else None
        if drafting is None:
            try:
                return self._make(values)
            except (NotImplementedError, TypeError) as e:
                refuse_class(self.name, tensors, e)
                raise
        with drafting.paused():
            made = self._make(values)
            drafting.give(made, self._compute, values)
        return made

    def _compute(self, values: Sequence[Any]) -> Sequence[Any]:
        outputs: Sequence[Any] = self._run(values, False)[0]
        return outputs

    def _make(self, values: tuple[Any, ...]) -> Any:
        tensors = values[: self.n_inputs]
        if any(map(has_tangent, tensors)):
            return self._transform(*values)
        if not torch.is_grad_enabled() or not any(map(requires_grad, tensors)):
            return self.infer(*values)
        self._check_gradient(values)
        if not any(map(requires_grad, itertools.compress(tensors, self.differentiable))):
            # Else torch would say of the outputs that they require grad.
            tensors = tuple(t.detach() if requires_grad(t) else t for t in tensors)
            return self.infer(*tensors, *values[self.n_inputs :])
        return as_result(self.forward(*values)[: self.n_outputs])

    def _check_gradient(self, values: Sequence[Any]) -> None:
        """Of a call with tensors that require grad."""
        if self.mutated:
            names = ", ".join(
                self._inputs[i]["name"] for i in self.mutated if values[i] is not None
            )
            raise OpdError(
                f"opd: {self.name} changes {names} in place, which autograd cannot follow; call it "
                "under torch.no_grad()",
                op=self.name,
            )
        if not self.has_backward:
            raise OpdError(
                f"opd: {self.name} has no gradient; call it under torch.no_grad(), or give it "
                "tensors that need none (detach())",
                op=self.name,
            )

    def _transform(self, *args: Any, **kwargs: Any) -> Any:
        """The call under torch.func, or of dual tensors."""
        values = self._bind(args, kwargs)
        if not self.n_inputs:
            return self.infer(*values)
        tensors, attrs = values[: self.n_inputs], values[self.n_inputs :]
        cast_ones = tensors if self.mutated else cast(self.spec, tensors)
        return as_result(derivatives.call(self, cast_ones, attrs))

    def _refuse_vmap(self, *_: Any, **__: Any) -> Any:
        raise derivatives.refuse(
            self,
            "cannot be used under torch.vmap or is_grads_batched=True here",
            "give it the batch as it is, or loop",
        )

    def _batch_infer(self, info: Any, dims: Any, *args: Any) -> Any:
        n, attrs = self.n_inputs, args[self.n_inputs :]
        moved, flags = move_to_front(args[:n], dims[:n])

        def run(values: Any) -> Any:
            made = self.infer(*values, *attrs)
            return made if isinstance(made, tuple) else (made,)

        made, made_dims = derivatives.batch_call(self, info.batch_size, moved, flags, run)
        return (made[0], made_dims[0]) if len(made) == 1 else (made, made_dims)

    def _batch_backward(self, info: Any, dims: Any, *args: Any) -> Any:
        *values, stamp, text, sizes, wanted = args
        n = len(values) - len(self.attr_names)
        tensors, attrs = (*values[:n], stamp), values[n:]
        moved, flags = move_to_front(tensors, (*dims[:n], dims[-4]))

        def run(values: Any, descs: Any) -> Any:
            return self.backward(*values[:-1], *attrs, values[-1], *write_inputs(descs), wanted)

        descs = parse_inputs(text, sizes)
        made, made_dims = derivatives.batch_pull(
            self, info.batch_size, moved, flags, descs, wanted, attrs, run
        )
        return list(made), list(made_dims)

    def label(self, at: int) -> str:
        name: str = self._inputs[at]["name"]
        return name

    def describe(self, values: Sequence[Any]) -> Any:
        return describe_all(values[: self.n_inputs], self)

    def _refuse_nested(self, *args: Any, **kwargs: Any) -> Any:
        """torch calls this where a tensor is nested, which has no shape."""
        self.describe(self._bind(args, kwargs))
        raise AssertionError("no tensor is nested")

    def _view(self, *args: Any, **kwargs: Any) -> Any:
        """A view is torch's own, which it differentiates by itself."""
        values = self._bind(args, kwargs)
        tensors, attrs = values[: self.n_inputs], values[self.n_inputs :]
        if all(type(t) in PLAIN for t in tensors) and not has_symbols(attrs):
            descs: Sequence[Desc] = get_session().plan(self, tensors, to_wire(attrs)).outputs
        else:
            descs = infer(self, tensors, attrs)[0]
        return as_result([tensors[i].reshape(desc.shape) for desc, i in zip(descs, self._views)])

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """All arguments: the dispatcher leaves out those that are equal to their defaults."""
        rest = self._arguments[len(args) :]
        return args + tuple(kwargs.get(name, default) for name, default in rest)

    # --- what the registered operators do

    def _split(self, args: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], torch.device]:
        """Tensors, attributes, and where the results are to be."""
        n = self.n_inputs
        if not self.takes_device:
            return args[:n], args[n:], find_device(self.name, args[:n])
        device = torch.device("cpu" if args[-1] is None else args[-1])
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        return (), args[:-1], device

    def _run_infer(self, *args: Any) -> Any:
        return as_result(self._run(args, False)[0])

    def _run_forward(self, *args: Any) -> Any:
        made, stamp = self._run(args, True)
        return (*made, torch.tensor(stamp, device="cpu"))

    def _run(self, args: Any, keep: bool) -> Any:
        tensors, attrs, device = self._split(args)
        if device.type == "meta":
            return self._fake(args, keep), 0
        if self.mutated:
            check_apart(self.name, tensors, self.mutated)
        kernels = self._get_kernels() if get_session().may_run_here(device) else None
        made = kernels.forward(args, keep) if kernels else MISS
        if made is not MISS:
            return made
        check_capture(self.name, tensors)
        made, stamp = get_session().forward(self, tensors, to_wire(attrs), keep, device)
        again = MISS
        if kernels and kernels.loader.load_forward(args, keep, stamp & 0xFFFFFFFF):
            get_session().unshare(device)
            if not self.mutated:
                # So that all results are of one kind: a product of matrices is of torch's library.
                again = kernels.forward(args, keep)
        return (made, stamp) if again is MISS else again

    def _get_kernels(self) -> Optional[Kernels]:
        if self.kernels is None:
            make_kernels(self, self.spec)
        kernels: Optional[Kernels] = self.kernels
        return kernels

    def _fake(self, args: Any, keep: bool) -> list[torch.Tensor]:
        tensors, attrs, device = self._split(args)
        outputs, saved = infer(self, tensors, attrs)
        return make_empty(outputs + saved if keep else outputs, device)

    def _keep(self, ctx: Any, inputs: Any, output: Any) -> None:
        tensors = inputs[: self.n_inputs]
        outputs, saved = output[: self.n_outputs], output[self.n_outputs : -1]
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(
            *saved, output[-1], *(t for t in outputs if not t.is_floating_point())
        )
        ctx.save_for_backward(
            *(tensors[i] for i in self.read_inputs),
            *(outputs[i] for i in self.read_outputs),
            *saved,
            output[-1],
        )
        ctx.attrs = inputs[self.n_inputs :]
        ctx.options = get_options()
        ctx.inputs, ctx.sizes = write_inputs(describe_all(tensors, self))
        ctx.floating = [t is not None and t.is_floating_point() for t in tensors]

    def _differentiate(self, ctx: Any, *grads: Any) -> Any:
        *kept, stamp = ctx.saved_tensors
        wanted = [
            bool(need and able and floating)
            for need, able, floating in zip(
                ctx.needs_input_grad, self.differentiable, ctx.floating
            )
        ]
        none = (None,) * len(self.attr_names)
        if not any(wanted) or all(grad is None for grad in grads[: self.n_outputs]):
            return (None,) * self.n_inputs + none
        if torch.is_grad_enabled() and (self.derivable or self.linear):
            with with_those_of_forward(ctx.options):
                return self._differentiate_again(ctx, grads, wanted) + none
        with with_those_of_forward(ctx.options):
            gradients = self.backward(
                *grads[: self.n_outputs],
                *kept,
                *ctx.attrs,
                stamp,
                ctx.inputs,
                ctx.sizes,
                wanted,
            )
        made = iter(gradients)
        return tuple(next(made) if want else None for want in wanted) + none

    def _differentiate_again(
        self, ctx: Any, grads: Sequence[Any], wanted: Sequence[bool]
    ) -> tuple[Any, ...]:
        """The same, made of what can be differentiated (create_graph=True)."""
        *kept, stamp = ctx.saved_tensors
        n = len(self.read_inputs)
        descs = parse_inputs(ctx.inputs, ctx.sizes)
        inputs: list[Any] = [None] * self.n_inputs
        outputs: list[Any] = [None] * self.n_outputs
        for i, tensor in zip(self.read_inputs, kept):
            inputs[i] = tensor
        for i, tensor in zip(self.read_outputs, kept[n:]):
            outputs[i] = tensor
        grads, attrs = grads[: self.n_outputs], ctx.attrs
        if self.derivable:
            with derivatives.at_version(self, stamp):
                found = derivatives.pull_derived(self, attrs, grads, inputs, outputs, descs)
        else:
            found = derivatives.pull(self, attrs, grads, inputs, kept[n:], descs, wanted, stamp)
        return tuple(g if want else None for g, want in zip(found, wanted))

    def _run_backward(self, *args: Any) -> Any:
        *values, stamp, inputs, sizes, wanted = args
        grads, rest = values[: self.n_outputs], values[self.n_outputs :]
        descs = parse_inputs(inputs, map(int, sizes))
        read_inputs: list[Any] = [None] * self.n_inputs
        read_outputs: list[Any] = [None] * self.n_outputs
        for i in self.read_inputs:
            read_inputs[i] = rest.pop(0)
        for i in self.read_outputs:
            read_outputs[i] = rest.pop(0)
        saved, attrs = rest[: self.n_saved], rest[self.n_saved :]
        kept = [*(read_inputs[i] for i in self.read_inputs)]
        kept += [*(read_outputs[i] for i in self.read_outputs), *saved]
        kernels, ran = self._get_kernels(), int(stamp)
        made = kernels.backward([*grads, *kept], wanted, ran) if kernels else MISS
        if made is not MISS:
            return made
        check_capture(self.name, grads)
        tensors = (read_inputs, read_outputs, saved, grads)
        attrs = to_wire(attrs)
        made = get_session().vjp(self, tensors, descs, attrs, wanted, ran)
        if kernels:
            absent = [g is None for g in grads]
            device = find_device(self.name, grads)
            kernels.loader.load_backward(descs, attrs, device, ran, wanted, absent)
            again = kernels.backward([*grads, *kept], wanted, ran)
            if again is not MISS:
                get_session().unshare(device)
                return again
        return made

    def _fake_backward(self, *args: Any) -> list[torch.Tensor]:
        *tensors, _, inputs, sizes, wanted = args
        device = find_device(self.name, [t for t in tensors if isinstance(t, torch.Tensor)])
        descs = [d for d, want in zip(parse_inputs(inputs, sizes), wanted) if want and d]
        return make_empty(descs, device)


def _choose_name(spec: Spec) -> str:
    """A name in torch.ops.opd that nothing has, with those of its helpers; taken from now on."""
    name = python_name(spec.info).replace(".", "__d_")  # of a derivative
    for serial in itertools.count(1):
        public = name if serial == 1 else f"{name}__{serial}"
        names = {public, *(f"{public}__{what}" for what in HELPERS)}
        if not names & taken:
            break
    taken.update(names)
    return public


def requires_grad(tensor: Optional[torch.Tensor]) -> bool:
    return tensor is not None and tensor.requires_grad


def has_tangent(tensor: Optional[torch.Tensor]) -> bool:
    """Is it a dual tensor of torch.autograd.forward_ad, whose tangent would be lost?"""
    unpack: Any = forward_ad.unpack_dual  # it has no types
    return tensor is not None and forward_ad._current_level >= 0 and unpack(tensor).tangent is not None


def make_empty(descs: Sequence[Desc], device: torch.device) -> list[torch.Tensor]:
    return [torch.empty(d.shape, dtype=BY_NAME[d.dtype], device=device) for d in descs]


def as_result(tensors: Sequence[torch.Tensor]) -> Any:
    """None, one tensor or a tuple: as a torch operator returns them."""
    return tensors[0] if len(tensors) == 1 else tuple(tensors) or None
