"""What autograd applies to a call in torch's own process: forward by the operator's `keep`,
backward by its `back` (_inproc.py), or both in the daemon."""

from __future__ import annotations

from typing import Any, Optional

import torch

from ._options import DEFAULT, get_options, is_isolated, with_those_of_forward
from ._stamps import SERIALS

_grad_enabled = torch.is_grad_enabled
# What torch asks a class for with each call, and would look for in all that it is derived from.
_ASKED = {
    attribute: value
    for base in reversed(torch.autograd.Function.__mro__)
    for attribute, value in vars(base).items()
    if attribute in ("setup_context", "clear_saved_tensors_on_access", "boxed_grads_call")
}


def make_function(kernels: Any) -> Any:
    """What autograd applies to a call: arguments by name, which are no tensors, then the others."""
    keep, back, n, n_inputs = kernels.keep, kernels.back, kernels.n_outputs, kernels.n_inputs

    # Both with the error, if it has been tried without them, and what was unpacked, which is done but once.
    def forward(
        ctx: Any, kwargs: dict[str, Any], *args: Any, error: Optional[BaseException] = None
    ) -> Any:
        try:
            if error:
                raise error
            made = keep(*args, **kwargs)
        except RuntimeError as e:
            made = kernels.keep_elsewhere(e, args, kwargs)
        if n > 1:
            ctx.set_materialize_grads(False)
        ctx.save_for_backward(*kernels.pick(args, made))
        unread = [_describe(t) for t in kernels.find_unread(args)]
        ctx.kept = made[-1], args[n_inputs:], kwargs, unread, get_options()
        return made[0] if n == 1 else made[:n]

    def backward(ctx: Any, *grads: Any, saved: Any = None, error: Optional[BaseException] = None) -> Any:
        needs, saved = ctx.needs_input_grad, ctx.saved_tensors if saved is None else saved
        made = None
        stamp, *_, options = ctx.kept
        if stamp >= SERIALS and not _grad_enabled() and (options is DEFAULT or not is_isolated(options)):
            try:
                if error:
                    raise error
                made = back(*grads, *saved, kernels.mask(needs), stamp)
                made = (made,) if n_inputs == 1 else made
            except RuntimeError as e:
                kernels.explain(e)
        if made is None:
            with with_those_of_forward(options):
                made = _differentiate(kernels, ctx, grads, saved)
        n_more = len(needs) - 1 - n_inputs
        return (None, *made) if n_more <= 0 else (None, *made, *(None,) * n_more)

    name = kernels.operator.name
    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    members.update(_ASKED)
    meta = type(name, (type(torch.autograd.Function),), {})
    function: Any = meta(name, (torch.autograd.Function,), members)
    context = function._backward_cls
    # What its own apply() would find; and no dict for each call.
    members = {"apply": backward, "__slots__": ("kept",)}
    function._backward_cls = type(context.__name__, (context,), members)
    kernels.speed_up(function, backward)
    # torch asks a class by texts that it makes anew, for which Python goes through all that the class's
    # own class is derived from before it looks here; so they are found there at once.
    for asked in ("forward", "_backward_cls", *_ASKED):
        setattr(meta, asked, property({function: getattr(function, asked)}.__getitem__))
    # torch's own apply() looks for torch.func first, which such calls have nothing to do with.
    return super(torch.autograd.Function, function).apply


class _Kept:
    """A context of autograd's, as far as _register.py uses one."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def set_materialize_grads(self, value: bool) -> None:
        pass

    def mark_non_differentiable(self, *tensors: Any) -> None:
        pass


def _describe(tensor: Optional[torch.Tensor]) -> Any:
    return None if tensor is None else (tensor.dtype, tensor.shape, tensor.stride())


def _differentiate(kernels: Any, ctx: Any, grads: tuple[Any, ...], saved: Any) -> Any:
    """As the registered operator does it, with what it would have kept."""
    operator, n = kernels.operator, kernels.n_inputs
    rest = list(saved)
    inputs: list[Any] = [None] * n
    outputs: list[Any] = [torch.empty(0)] * kernels.n_outputs
    for i in kernels.reads:
        inputs[i] = rest.pop(0)
    for i in kernels.read_outputs:
        outputs[i] = rest.pop(0)
    serial, attrs, kwargs, unread, _ = ctx.kept
    for i, described in zip(kernels.unread, unread):
        if described is not None:
            dtype, *layout = described
            inputs[i] = torch.empty_strided(*layout, dtype=dtype, device="meta")
    needs = ctx.needs_input_grad[1 : 1 + n]
    kept = _Kept((*needs, *(False,) * (n - len(needs))))
    stamp = torch.tensor(serial, device="cpu")
    values = kernels.bind((*inputs, *attrs), kwargs)
    operator._keep(kept, values, (*outputs, *rest, stamp))
    return operator._differentiate(kept, *grads)[:n]
