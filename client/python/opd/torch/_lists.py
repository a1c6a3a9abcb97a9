"""Operators of lists of tensors (`Tensor[]`) as torch's, for as many tensors in a launch as it holds."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Optional

import torch

from ..errors import InvalidArgument
from ._derivatives import invoke, refuse
from ._direct import MISS
from ._dtypes import describe_all, parse_inputs, to_wire, write_inputs
from ._inproc import check_capture
from ._functionalize import call_below, is_innermost
from ._interface import Lengths, flatten, nest
from ._lists_here import ListKernels
from ._options import get_options, with_those_of_forward
from ._register import Operator, as_result, has_tangent, make_empty, requires_grad
from ._session import get_session
from ._shapes import infer
from ._transport import find_device


class Call:
    """What a session needs to know of an operator: for one call, whose tensors stand one after the other."""

    n_saved = 0

    def __init__(self, operator: ListOperator, args: Sequence[Any]) -> None:
        self._operator, self._args = operator, args
        self.name, self.key, self.attr_names = operator.name, operator.key, operator.attr_names
        values, self.attrs = args[: operator.n_inputs], args[operator.n_inputs :]
        lengths = [len(v) if isinstance(v, (list, tuple)) else -1 for v in values]
        n = next((n for n in lengths if n >= 0), 0)
        self.lengths: Lengths = tuple(lengths)
        self.made_lengths: Lengths = tuple(n if info.get("list") else -1 for info in operator.spec.outputs)
        self.tensors: list[Optional[torch.Tensor]] = []
        self.of: list[int] = []  # of each tensor, the input
        for i, value in enumerate(values):
            each = value if lengths[i] >= 0 else [value]
            self.tensors += each
            self.of += [i] * len(each)
        self.mutated = [k for k, i in enumerate(self.of) if i in operator.mutated]
        self.strided: Collection[int] = frozenset(k for k, i in enumerate(self.of) if i in operator.strided)
        self.made_of = [o for o, n in enumerate(self.made_lengths) for _ in range(1 if n < 0 else n)]

    @classmethod
    def of_lengths(cls, operator: ListOperator, lengths: Sequence[int]) -> Call:
        """One of whose tensors no more is known than how many there are."""
        return cls(operator, [None if n < 0 else [None] * n for n in lengths])

    @property
    def outdated(self) -> bool:
        return self._operator.outdated

    @outdated.setter
    def outdated(self, value: bool) -> None:
        self._operator.outdated = value

    def run(self, keep: bool = False) -> list[Any]:
        """Outputs, and with `keep` the stamp of the version that ran."""
        device = find_device(self.name, self.tensors)
        if device.type == "meta":
            return self.fake(keep)
        self._check_apart()
        kernels = self._operator.find_kernels(device)
        found = kernels.forward(self._args, keep) if kernels else MISS
        if found is MISS:
            found = self._run_there(kernels, keep, device)
        made, stamp = nest(found[0], self.made_lengths), found[1]
        return [*made, torch.tensor(stamp, device="cpu")] if keep else made

    def _run_there(self, kernels: Any, keep: bool, device: torch.device) -> Any:
        """In the daemon; those that come again, here."""
        check_capture(self.name, self.tensors)
        made, stamp = get_session().forward(self, self.tensors, to_wire(self.attrs), keep, device)
        if kernels and kernels.loader.load_forward(self._args, keep, stamp & 0xFFFFFFFF):
            get_session().unshare(device)
            again = MISS if self.mutated else kernels.forward(self._args, keep)
            if again is not MISS:
                return again
        return made, stamp

    def fake(self, keep: bool = False) -> list[Any]:
        outputs, _ = infer(self, self.tensors, self.attrs)
        made = nest(make_empty(outputs, find_device(self.name, self.tensors)), self.made_lengths)
        return [*made, torch.empty((), dtype=torch.int64, device="cpu")] if keep else made

    def _check_apart(self) -> None:
        """As the daemon does, which may be given copies: what is changed in place shares no memory with another
        of these, and none with what is read but all of it, at the same place."""
        changed = set(self.mutated)
        spans = sorted(
            (t.data_ptr(), t.data_ptr() + t.nbytes, k not in changed, k)
            for k, t in enumerate(self.tensors)
            if t is not None and t.layout == torch.strided and t.numel() > 0 and t.is_contiguous()
        )
        any_end, any_at, end, at = 0, -1, 0, -1  # the farthest of all, and of what is changed
        for start, stop, _, k in spans:
            other = any_at if k in changed and start < any_end else at if start < end else -1
            if other >= 0 and not self._may_share(k, other, changed):
                raise InvalidArgument(
                    f"{self.name}: {self.label(other)} and {self.label(k)} share memory, and "
                    f"{self.label(other if other in changed else k)} is changed in place; expected memory of its own",
                    op=self.name,
                )
            if stop > any_end:
                any_end, any_at = stop, k
            if k in changed and stop > end:
                end, at = stop, k

    def _may_share(self, k: int, other: int, changed: set[int]) -> bool:
        a, b = self.tensors[k], self.tensors[other]
        assert a is not None and b is not None
        if k in changed and other in changed:
            return False
        return a.data_ptr() == b.data_ptr() and a.nbytes == b.nbytes and self._place(k) == self._place(other)

    def _place(self, k: int) -> int:
        """Its index in the list."""
        return k - self.of.index(self.of[k])

    def label(self, k: int) -> str:
        name: str = self._operator.spec.inputs[self.of[k]]["name"]
        return f"{name}[{self._place(k)}]" if self._operator.spec.inputs[self.of[k]].get("list") else name


class ListOperator(Operator):
    """A registered operator of lists."""

    make_kernels = ListKernels

    def find_kernels(self, device: torch.device) -> Any:
        """None: the daemon runs it."""
        return self._get_kernels() if get_session().may_run_here(device) else None

    def _define_all(self, attrs: list[str]) -> None:
        returns = ", ".join("Tensor[]" if t.get("list") else "Tensor" for t in self.spec.outputs)
        op = self._define(
            "infer",
            f"({', '.join(self._spell_inputs() + attrs)}) -> ({returns})",
            lambda *args: as_result(Call(self, args).run()),
            lambda *args: as_result(Call(self, args).fake()),
        )
        self.infer = op._opoverload
        if self.has_backward:
            self.backward = self._define_backward(attrs)
            self.forward = self._define_forward(attrs)

    def _define_forward(self, attrs: list[str]) -> Any:
        returns = ", ".join(["Tensor[]" if t.get("list") else "Tensor" for t in self.spec.outputs] + ["Tensor"])
        op = self._define(
            "forward",
            f"({', '.join(self._spell_inputs() + attrs)}) -> ({returns})",
            lambda *args: tuple(Call(self, args).run(True)),
            lambda *args: tuple(Call(self, args).fake(True)),
        )
        op.register_autograd(self._differentiate, setup_context=self._keep)
        return op._opoverload

    def _define_backward(self, attrs: list[str]) -> Any:
        """Of tensors one after the other, those of lists too; `lengths` says how many each input has."""
        arguments = ["Tensor?[] grads", "Tensor?[] inputs", "Tensor?[] outputs", *attrs, "Tensor stamp", "int[] lengths"]
        op = self._define(
            "backward",
            f"({', '.join([*arguments, 'str described', 'SymInt[] sizes', 'bool[] wanted'])}) -> Tensor[]",
            self._run_backward,
            self._fake_backward,
        )

        def refuse_second(ctx: Any, *grads: Any) -> Any:
            raise refuse(
                self, "takes lists of tensors, which have no second derivatives", "differentiate without create_graph=True"
            )

        op.register_autograd(refuse_second)
        return op._opoverload

    def _keep(self, ctx: Any, inputs: Any, output: Any) -> None:
        call = Call(self, inputs)
        outputs = flatten(output[:-1], call.made_lengths)
        kept_inputs = [t for t, i in zip(call.tensors, call.of) if i in self.read_inputs]
        kept_outputs = [t for t, o in zip(outputs, call.made_of) if o in self.read_outputs]
        ctx.mark_non_differentiable(output[-1], *(t for t in outputs if not t.is_floating_point()))
        ctx.save_for_backward(*kept_inputs, *kept_outputs, output[-1])
        ctx.n_inputs, ctx.lengths, ctx.made_lengths = len(kept_inputs), call.lengths, call.made_lengths
        ctx.attrs, ctx.options = inputs[self.n_inputs :], get_options()
        ctx.described, ctx.sizes = write_inputs(describe_all(call.tensors, call))
        ctx.floating = [t is not None and t.is_floating_point() for t in call.tensors]
        ctx.kinds = [(t.shape, t.dtype, t.device) for t in outputs]

    def _differentiate(self, ctx: Any, *grads: Any) -> Any:
        *kept, stamp = ctx.saved_tensors
        of = [i for i, n in enumerate(ctx.lengths) for _ in range(1 if n < 0 else n)]
        needs = flatten(ctx.needs_input_grad[: self.n_inputs], ctx.lengths)
        lists = {i for i, need in zip(of, needs) if need}  # all of a list, or nothing of it
        wanted = [bool(i in lists and self.differentiable[i] and f) for i, f in zip(of, ctx.floating)]
        none = (None,) * len(self.attr_names)
        flat: list[Any] = []
        at = iter(ctx.kinds)
        for grad, n in zip(grads, ctx.made_lengths):
            each = [grad] if n < 0 else list(grad or [None] * n)
            absent = all(g is None for g in each)
            kinds = [next(at) for _ in each]
            flat += [
                torch.zeros(kind[0], dtype=kind[1], device=kind[2]) if g is None and not absent else g
                for g, kind in zip(each, kinds)
            ]
        made: Any = iter(())
        if any(wanted) and any(g is not None for g in flat):
            with with_those_of_forward(ctx.options):
                made = iter(
                    self.backward(
                        *(flat, kept[: ctx.n_inputs], kept[ctx.n_inputs :], *ctx.attrs, stamp),
                        *(list(ctx.lengths), ctx.described, ctx.sizes, wanted),
                    )
                )
        else:
            wanted = [False] * len(wanted)
        return (*nest([next(made) if want else None for want in wanted], ctx.lengths), *none)

    def _run_backward(self, grads: Any, kept_inputs: Any, kept_outputs: Any, *args: Any) -> Any:
        *attrs, stamp, lengths, described, sizes, wanted = args
        call = Call.of_lengths(self, lengths)
        rest, rest_outputs = iter(kept_inputs), iter(kept_outputs)
        inputs = [next(rest) if i in self.read_inputs else None for i in call.of]
        outputs = [next(rest_outputs) if o in self.read_outputs else None for o in call.made_of]
        descs = parse_inputs(described, map(int, sizes))
        by_input = [bool(want) for want in self._by_argument(wanted, lengths)]
        given = self._arrange(call, inputs, outputs, grads)
        kernels, ran, device = self._get_kernels(), int(stamp), find_device(self.name, grads)
        made = kernels.backward(given, by_input, ran) if kernels else MISS
        if made is not MISS:
            return made
        check_capture(self.name, grads)
        tensors = (inputs, outputs, (), list(grads))
        made = get_session().vjp(call, tensors, descs, to_wire(attrs), wanted, ran)
        if kernels:
            absent = [g is None or g == [] for g in given[: self.n_outputs]]
            described = nest(descs, call.lengths)
            kernels.loader.load_backward(described, attrs, device, ran, by_input, absent)
            again = kernels.backward(given, by_input, ran)
            if again is not MISS:
                get_session().unshare(device)
                return again
        return made

    def _by_argument(self, values: Sequence[Any], lengths: Sequence[int]) -> list[Any]:
        """Of what is so for all tensors of a list, or for none."""
        return [v if n < 0 else bool(v) and v[0] for v, n in zip(nest(values, lengths), lengths)]

    def _arrange(self, call: Call, inputs: Any, outputs: Any, grads: Any) -> list[Any]:
        """As __back takes them; of gradients that did not come, nothing."""
        each: list[Any] = nest(grads, call.made_lengths)
        each = [[] if isinstance(g, list) and any(t is None for t in g) else g for g in each]
        nested, made = nest(inputs, call.lengths), nest(outputs, call.made_lengths)
        return [*each, *(nested[i] for i in self.read_inputs), *(made[o] for o in self.read_outputs)]

    def _fake_backward(self, grads: Any, *args: Any) -> list[torch.Tensor]:
        *_, described, sizes, wanted = args
        device = find_device(self.name, [t for t in grads if t is not None])
        return make_empty([d for d, want in zip(parse_inputs(described, sizes), wanted) if want and d], device)

    def _flatten(self, values: tuple[Any, ...]) -> Sequence[Any]:
        return Call(self, values).tensors

    def _express(self, values: tuple[Any, ...]) -> Any:
        call = Call(self, values)
        changed = [t for t in (call.tensors[k] for k in call.mutated) if t is not None]
        made = self._make_node(values, lambda: flatten(call.fake(), call.made_lengths), changed)
        return as_result(nest(made, call.made_lengths))

    def describe(self, values: Sequence[Any]) -> Any:
        call = Call(self, values)
        return describe_all(call.tensors, call)

    def _compute(self, values: Sequence[Any]) -> Sequence[Any]:
        return Call(self, values).run()

    def _make(self, values: tuple[Any, ...]) -> Any:
        call = Call(self, values)
        if any(map(has_tangent, call.tensors)):
            return self._transform()
        if not torch.is_grad_enabled() or not any(map(requires_grad, call.tensors)):
            return self.infer(*values)
        self._check_gradient(values)
        if not any(requires_grad(t) and self.differentiable[i] for t, i in zip(call.tensors, call.of)):
            # Else torch would say of the outputs that they require grad.
            plain = nest([None if t is None else t.detach() for t in call.tensors], call.lengths)
            return self.infer(*plain, *call.attrs)
        return as_result(self.forward(*values)[: self.n_outputs])

    def _transform(self, *args: Any, **kwargs: Any) -> Any:
        if is_innermost():
            values = self._bind(args, kwargs)
            tensors, attrs = values[: self.n_inputs], values[self.n_inputs :]
            return as_result(call_below(self, tensors, lambda below: invoke(self, below, attrs)))
        raise refuse(
            self, "takes lists of tensors, which torch.func and forward mode do not follow", "give it plain tensors"
        )
