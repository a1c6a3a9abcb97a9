"""Operators under torch.func, in forward mode, and differentiated again.

What an operator of formulas is differentiated by are operators of the daemon, `NAME.backward` and
`NAME.tangent`: of formulas, too, so all of this is true of them. Of an operator with kernels the file
may say in which of its inputs it is linear (`linear` lines); then its derivatives are made of itself.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Optional

import torch
from torch.autograd import forward_ad

from ..errors import OpdError
from ._dtypes import BY_NAME, Desc, describe_all, parse_inputs, write_inputs
from ._functionalize import call_below, is_around, is_innermost
from ._options import options
from ._session import get_session
from ._vmap import Batch, align, fold, fold_desc, loop, move_to_front, unfold

Maybe = Optional[torch.Tensor]

# The registered operator of a name; _ops.py sets it.
find_operator: Callable[[str], Any]


def refuse(operator: Any, what: str, instead: str) -> OpdError:
    return OpdError(f"opd: {operator.name} {what}; {instead}", op=operator.name)


def refuse_second(operator: Any) -> OpdError:
    return refuse(
        operator,
        "has no second derivative",
        "do not differentiate through its gradient (create_graph=True), write it as formulas, or say "
        "by `linear` lines in which inputs it is linear",
    )


def _refuse_tangent(operator: Any) -> OpdError:
    return refuse(
        operator,
        "has no forward-mode derivative",
        "use torch.autograd.grad, backward() or torch.func.vjp, write it as formulas, or say by "
        "`linear` lines in which inputs it is linear",
    )


# --- calls


@contextlib.contextmanager
def at_version(operator: Any, stamp: torch.Tensor) -> Iterator[None]:
    """Calls of the version that ran forward, by its stamp; under torch.func, which hides that, of
    the one that is served."""
    if type(stamp) is not torch.Tensor or torch._C._functorch.is_functorch_wrapped_tensor(stamp):
        yield
    else:
        with options(version=get_session().find_version(operator.name, int(stamp))):
            yield


def invoke(operator: Any, tensors: Sequence[Maybe], attrs: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    """The operator as users call it."""
    made = operator.overload(*tensors, **dict(zip(operator.attr_arguments, attrs)))
    return made if isinstance(made, tuple) else (made,)


def call(operator: Any, tensors: Sequence[Maybe], attrs: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    """A call under torch.func or with dual tensors."""
    if is_innermost():
        made: tuple[torch.Tensor, ...] = call_below(operator, tensors, lambda below: invoke(operator, below, attrs))
        return made
    if operator.mutated:
        raise refuse(
            operator,
            "changes tensors in place, which forward mode and torch.func, but for functionalize, cannot follow",
            "call it outside of them",
        )
    if is_around():
        raise refuse(
            operator,
            "cannot be followed by torch.func.functionalize around another transform",
            "put functionalize innermost, or leave it out: the operator changes nothing in place",
        )
    made = _apply(operator, tuple(attrs), *tensors)
    return made[: operator.n_outputs]


def pull_derived(
    operator: Any,
    attrs: Sequence[Any],
    grads: Sequence[Maybe],
    inputs: Sequence[Maybe],
    outputs: Sequence[Maybe],
    descs: Sequence[Optional[Desc]],
) -> list[Maybe]:
    """The gradients of an operator of formulas, by NAME.backward. inputs, outputs: those that it reads."""
    present = next((g for g in grads if g is not None), None)
    if present is None:
        return [None] * len(descs)
    given: list[Maybe] = [
        torch.zeros_like(present, dtype=_find_dtype(operator, o, descs)) if g is None else g
        for o, g, floating in zip(operator.spec.outputs, grads, operator.floating)
        if floating
    ]
    given += [inputs[i] for i in operator.read_inputs] + [outputs[i] for i in operator.read_outputs]
    made = iter(invoke(find_operator(f"{operator.name}.backward"), given, attrs))
    found = [next(made) if able else None for able in operator.differentiable]
    return [None if t is None or d is None else _sum_to(t, d.shape) for t, d in zip(found, descs)]


def _find_dtype(operator: Any, output: Any, descs: Sequence[Optional[Desc]]) -> torch.dtype:
    for info, desc in zip(operator.spec.inputs, descs):
        if desc is not None and output["type"] and info["type"] == output["type"]:
            return BY_NAME[desc.dtype]
    return BY_NAME[output["dtypes"][0]]


def _sum_to(t: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Over the dimensions along which a tensor of that shape was repeated."""
    more = t.dim() - len(shape)
    dims = [*range(more), *(more + i for i, n in enumerate(shape) if n == 1 != t.shape[more + i])]
    return (t.sum(dims, keepdim=True) if dims else t).reshape(tuple(shape))


def pull(
    operator: Any,
    attrs: Sequence[Any],
    grads: Sequence[Maybe],
    inputs: Sequence[Maybe],
    kept: Sequence[Maybe],
    descs: Sequence[Optional[Desc]],
    wanted: Sequence[bool],
    stamp: torch.Tensor,
) -> list[Maybe]:
    """The gradients of an operator with kernels. inputs: those that it reads; kept: outputs that it
    reads, and saved tensors."""
    text, sizes = write_inputs(descs)
    tensors = [*grads, *(inputs[i] for i in operator.read_inputs), *kept, stamp]
    made = iter(
        _apply_pullback(operator, tuple(attrs), text, tuple(sizes), tuple(wanted), *tensors)
    )
    return [next(made) if want else None for want in wanted]


def _apply(*args: Any) -> tuple[torch.Tensor, ...]:
    apply: Any = Apply.apply  # it has no types
    made: tuple[torch.Tensor, ...] = apply(*args)
    return made


def _push_all(jvp: Callable[..., Any]) -> Callable[..., Any]:
    """torch calls a jvp with forward mode off, at the levels around it, too: what it adds up would have no
    tangents there. So it is on, and of this level there are none."""

    def take_off(t: Maybe) -> Maybe:
        unpack: Any = forward_ad.unpack_dual  # it has no types
        primal: Maybe = None if t is None else unpack(t, level=0).primal  # compilers enter none
        return primal

    @functools.wraps(jvp)
    def wrapped(ctx: Any, *tangents: Any) -> Any:
        with getattr(forward_ad, "_set_fwd_grad_enabled")(True):
            return jvp(ctx, tuple(map(take_off, ctx.saved_tensors)), *tangents)

    return wrapped


def _apply_pullback(*args: Any) -> tuple[torch.Tensor, ...]:
    apply: Any = Pullback.apply
    made: tuple[torch.Tensor, ...] = apply(*args)
    return made


class Apply(torch.autograd.Function):
    """A call; with an operator of kernels also what its gradient needs."""

    @staticmethod
    def forward(operator: Any, attrs: tuple[Any, ...], *tensors: Maybe) -> Any:
        if any(t is not None and t.is_nested for t in tensors):
            operator.describe((*tensors, *attrs))  # it refuses
        if operator.derivable or not operator.has_backward:
            made = operator.infer(*tensors, *attrs)
        else:
            made = operator.forward(*tensors, *attrs)
        return made if isinstance(made, tuple) else (made,)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        operator, attrs, *tensors = inputs
        n = operator.n_outputs
        ctx.operator, ctx.attrs = operator, attrs
        ctx.n_made = len(output)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(
            *(t for t in output[:n] if not t.is_floating_point()), *output[n:]
        )
        ctx.save_for_backward(*tensors, *output)
        ctx.save_for_forward(*tensors, *output)

    @staticmethod
    def backward(ctx: Any, *grads: Maybe) -> Any:
        operator, n = ctx.operator, ctx.operator.n_inputs
        saved = ctx.saved_tensors
        inputs, made = saved[:n], saved[n:]
        if not operator.has_backward:
            raise refuse(
                operator,
                "has no gradient",
                "give it tensors that need none (detach()), or write one into its file",
            )
        descs = describe_all(inputs, operator)
        needs = ctx.needs_input_grad[2:]
        wanted = [
            bool(need and able and t is not None and t.is_floating_point())
            for need, able, t in zip(needs, operator.differentiable, inputs)
        ]
        given = list(grads[: operator.n_outputs])
        if not any(wanted) or all(g is None for g in given):
            return (None, None, *[None] * n)
        if operator.derivable:
            found = pull_derived(operator, ctx.attrs, given, inputs, made, descs)
        else:
            kept = [made[i] for i in operator.read_outputs] + list(made[operator.n_outputs : -1])
            found = pull(operator, ctx.attrs, given, inputs, kept, descs, wanted, made[-1])
        return (None, None, *(g if want else None for g, want in zip(found, wanted)))

    @staticmethod
    @_push_all
    def jvp(ctx: Any, saved: Sequence[Maybe], _: Any, __: Any, *tangents: Maybe) -> Any:
        operator, n = ctx.operator, ctx.operator.n_inputs
        inputs = saved[:n]
        if operator.derivable:
            made: Iterator[Maybe] = iter(_push_derived(operator, ctx.attrs, inputs, tangents))
        elif operator.linear:
            descs = describe_all(inputs, operator)
            pushed = _push(operator, ctx.attrs, inputs, tangents, descs)
            made = iter([t for t, floating in zip(pushed, operator.floating) if floating])
        else:
            raise _refuse_tangent(operator)
        found = [next(made) if floating else None for floating in operator.floating]
        return tuple(found + [None] * (ctx.n_made - len(found)))

    @staticmethod
    def vmap(info: Any, dims: Any, operator: Any, attrs: Any, *tensors: Maybe) -> Any:
        moved, flags = move_to_front(tensors, dims[2:])

        def run(values: Sequence[Maybe]) -> Any:
            return _apply(operator, attrs, *values)

        return batch_call(operator, info.batch_size, moved, flags, run)


def batch_call(
    operator: Any,
    size: int,
    tensors: Sequence[Maybe],
    flags: Sequence[bool],
    run: Callable[[Sequence[Maybe]], Any],
) -> tuple[tuple[torch.Tensor, ...], tuple[Optional[int], ...]]:
    """`run` of a batch: what it makes, and where each has the batch."""
    if operator.broadcasts and operator.batches:
        made = tuple(run(align(tensors, flags)))
        return made, (0,) * operator.n_outputs + (None,) * (len(made) - operator.n_outputs)
    for batch in () if operator.broadcasts else operator.batches:
        folded = fold(batch, size, tensors, flags, batch.inputs)
        places = [*batch.outputs, *batch.saved]
        if folded is None or None in places:
            continue
        made = tuple(run(folded))
        results = [unfold(batch, size, t, p) for t, p in zip(made, places) if p is not None]
        rest = made[len(results) :]  # a stamp
        return (*results, *rest), (0,) * len(results) + (None,) * len(rest)
    stacked = loop(run, size, tensors, flags)
    return tuple(stacked), (0,) * len(stacked)


# --- gradients of operators with kernels


class Pullback(torch.autograd.Function):
    """A backward; `tensors`: the gradients of the outputs, what it reads, and the stamp of forward."""

    @staticmethod
    def forward(
        operator: Any, attrs: Any, text: str, sizes: Any, wanted: Any, *tensors: Maybe
    ) -> Any:
        *rest, stamp = tensors
        return tuple(operator.backward(*rest, *attrs, stamp, text, list(sizes), list(wanted)))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.operator, ctx.attrs, text, sizes, ctx.wanted, *tensors = inputs
        ctx.descs = parse_inputs(text, sizes)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors, *output)

    @staticmethod
    def backward(ctx: Any, *grads: Maybe) -> Any:
        operator, tensors = ctx.operator, ctx.saved_tensors
        if not operator.linear:
            raise refuse_second(operator)
        pulled, inputs, descs, stamp = _split(ctx, tensors)
        made = iter(grads)
        given = [next(made) if want else None for want in ctx.wanted]
        needs = ctx.needs_input_grad[5:]
        with at_version(operator, stamp):
            total = _push(operator, ctx.attrs, inputs, given, descs)
        found = [None] * len(inputs)
        for j in operator.read_inputs if any(g is not None for g in pulled) else ():
            if operator.differentiable[j] and needs[operator.n_outputs + operator.read_inputs.index(j)]:
                found[j] = _pull_other(operator, ctx.attrs, inputs, given, descs, pulled, j, stamp)
        rest = [found[j] for j in operator.read_inputs]
        rest += [None] * (len(tensors) - operator.n_outputs - len(rest))
        return (None,) * 5 + (*total, *rest)

    @staticmethod
    @_push_all
    def jvp(ctx: Any, saved: Sequence[Any], *tangents: Any) -> Any:
        operator, n = ctx.operator, ctx.operator.n_outputs
        if not operator.linear:
            raise _refuse_tangent(operator)
        n_read = n + len(operator.read_inputs) + 1
        tensors, outputs = saved[:n_read], saved[n_read:]
        pulled, inputs, descs, stamp = _split(ctx, tensors)
        moved = dict(zip(operator.read_inputs, tangents[5 + n :]))
        made: list[Maybe] = []
        for i, want in enumerate(ctx.wanted):
            if not want:
                continue
            one = [k == i for k in range(len(descs))]

            def pull_one(grads: Any, values: Any, one: Any = one, i: int = i) -> Any:
                return pull(operator, ctx.attrs, grads, values, (), descs, one, stamp)[i]

            parts = []
            if any(t is not None for t in tangents[5 : 5 + n]):
                parts.append(pull_one(tangents[5 : 5 + n], inputs))
            for j, tangent in moved.items():
                if tangent is not None and not any({i, j} <= set(g) for g in operator.linear):
                    parts.append(pull_one(pulled, [*inputs[:j], tangent, *inputs[j + 1 :]]))
            # torch takes no None beside others.
            made.append(sum(parts[1:], parts[0]) if parts else torch.zeros_like(outputs[len(made)]))
        return tuple(made)

    @staticmethod
    def vmap(info: Any, dims: Any, *args: Any) -> Any:
        operator, attrs, text, sizes, wanted, *tensors = args
        moved, flags = move_to_front(tensors, dims[5:])

        def run(values: Sequence[Maybe], descs: Sequence[Optional[Desc]]) -> Any:
            text, sizes = write_inputs(descs)
            return _apply_pullback(operator, attrs, text, tuple(sizes), wanted, *values)

        descs = parse_inputs(text, sizes)
        return batch_pull(operator, info.batch_size, moved, flags, descs, wanted, attrs, run)


def batch_pull(
    operator: Any,
    size: int,
    tensors: Sequence[Maybe],
    flags: Sequence[bool],
    descs: Sequence[Optional[Desc]],
    wanted: Sequence[bool],
    attrs: Sequence[Any],
    run: Callable[..., Any],
) -> tuple[tuple[torch.Tensor, ...], tuple[int, ...]]:
    """`run` of a batch of backwards, of tensors and their inputs' descriptions."""
    if size == 0:
        like = next(t for t in tensors if t is not None)
        wished = [d for d, want in zip(descs, wanted) if want and d is not None]
        none = tuple(like.new_empty((0, *d.shape), dtype=BY_NAME[d.dtype]) for d in wished)
        return none, (0,) * len(none)
    if operator.derivable and operator.batches:
        return batch_pull_derived(operator, size, tensors, flags, descs, wanted, attrs)
    for batch in () if operator.broadcasts else operator.batches:
        places = _place_pulled(operator, batch)
        made_places = [p for p, want in zip(batch.inputs, wanted) if want]
        folded = fold(batch, size, tensors, flags, places)
        if folded is None or None in made_places:
            continue
        folded_descs = [fold_desc(batch, size, d, p) for d, p in zip(descs, batch.inputs)]
        made = run(folded, folded_descs)
        results = tuple(unfold(batch, size, t, p) for t, p in zip(made, made_places) if p is not None)
        return results, (0,) * len(results)
    stacked = loop(lambda values: run(values, descs), size, tensors, flags)
    return tuple(stacked), (0,) * len(stacked)


def batch_pull_derived(
    operator: Any,
    size: int,
    tensors: Sequence[Maybe],
    flags: Sequence[bool],
    descs: Sequence[Optional[Desc]],
    wanted: Sequence[bool],
    attrs: Sequence[Any],
) -> tuple[tuple[torch.Tensor, ...], tuple[int, ...]]:
    """NAME.backward takes the batch as a dimension more, over which nothing is summed."""
    n, read = operator.n_outputs, operator.read_inputs
    values = align(tensors[:-1], flags[:-1])
    inputs: list[Maybe] = [None] * len(descs)
    outputs: list[Maybe] = [None] * n
    for k, i in enumerate(read):
        inputs[i] = values[n + k]
    for k, i in enumerate(operator.read_outputs):
        outputs[i] = values[n + len(read) + k]
    rank = max(t.dim() for t in values if t is not None) - 1
    batched = [
        None if d is None else Desc(d.dtype, (size, *[1] * (rank - len(d.shape)), *d.shape))
        for d in descs
    ]
    found = pull_derived(operator, attrs, values[:n], inputs, outputs, batched)
    made = tuple(
        g.reshape(size, *d.shape)
        for g, d, want in zip(found, descs, wanted)
        if want and g is not None and d is not None
    )
    return made, (0,) * len(made)


def _place_pulled(operator: Any, batch: Batch) -> list[Optional[int]]:
    read = [batch.inputs[i] for i in operator.read_inputs]
    outputs = [batch.outputs[i] for i in operator.read_outputs]
    return [*batch.outputs, *read, *outputs, *batch.saved, None]


def _split(ctx: Any, tensors: Sequence[Maybe]) -> tuple[Any, list[Maybe], list[Optional[Desc]], Any]:
    """The gradients of the outputs, inputs, descriptions of all inputs, and the stamp."""
    operator = ctx.operator
    descs = ctx.descs
    inputs: list[Maybe] = [None] * len(descs)
    for k, i in enumerate(operator.read_inputs):
        inputs[i] = tensors[operator.n_outputs + k]
    return tensors[: operator.n_outputs], inputs, descs, tensors[-1]


# --- tangents


def _push_derived(
    operator: Any, attrs: Sequence[Any], inputs: Sequence[Maybe], tangents: Sequence[Maybe]
) -> tuple[torch.Tensor, ...]:
    given = [
        torch.zeros_like(x) if t is None and x is not None else t
        for x, t, able in zip(inputs, tangents, operator.differentiable)
        if able
    ]
    return invoke(find_operator(f"{operator.name}.tangent"), [*given, *inputs], attrs)


def _groups(
    operator: Any, given: Sequence[Maybe]
) -> Iterator[tuple[list[int], dict[int, torch.Tensor]]]:
    """The tensors by the groups of inputs in which the operator is linear; each is in one."""
    left = {i: t for i, t in enumerate(given) if t is not None}
    for group in operator.linear:
        own = {i: left.pop(i) for i in group if i in left}
        if own:
            yield group, own
    for i in left:
        name = operator.spec.inputs[i]["name"]
        raise refuse(
            operator,
            f"is not said to be linear in {name}",
            f"detach {name}, or name it in a `linear` line of its file",
        )


def _replace(
    operator: Any,
    inputs: Sequence[Maybe],
    group: Sequence[int],
    own: dict[int, torch.Tensor],
    descs: Sequence[Optional[Desc]],
) -> list[Maybe]:
    """The inputs with those of a group in place of its own; what is missing of it is 0."""
    like = next(iter(own.values()))
    values = list(inputs)
    for i in group:
        desc = descs[i]
        if i in own or desc is None or operator.spec.inputs[i]["optional"]:
            values[i] = own.get(i)
        else:
            values[i] = torch.zeros(desc.shape, dtype=BY_NAME[desc.dtype], device=like.device)
    return values


def _push(
    operator: Any,
    attrs: Sequence[Any],
    inputs: Sequence[Maybe],
    given: Sequence[Maybe],
    descs: Sequence[Optional[Desc]],
) -> list[Maybe]:
    """What the outputs become by tangents of the inputs."""
    total: list[Maybe] = [None] * operator.n_outputs
    for group, own in _groups(operator, given):
        made = invoke(operator, _replace(operator, inputs, group, own, descs), attrs)
        total = [m if t is None else t + m for t, m in zip(total, made)]
    return total


def _pull_other(
    operator: Any,
    attrs: Sequence[Any],
    inputs: Sequence[Maybe],
    given: Sequence[Maybe],
    descs: Sequence[Optional[Desc]],
    pulled: Sequence[Maybe],
    j: int,
    stamp: torch.Tensor,
) -> Maybe:
    """The gradient of input j through what _push() makes of the others."""
    total = None
    one = [k == j for k in range(len(descs))]
    for group, own in _groups(operator, given):
        if j in group:
            continue
        values = _replace(operator, inputs, group, own, descs)
        part = pull(operator, attrs, pulled, values, (), descs, one, stamp)[j]
        assert part is not None
        total = part if total is None else total + part
    return total
