"""Operators in the ONNX model that torch.onnx.export(dynamo=True) makes.

While it takes a program apart, an operator that opd ships and ONNX has nodes for is said in torch's
words, which the exporter knows. Any other becomes one node of the domain `opd`, of its name: give
the runtime a function for it, or torch.onnx.export a custom_translation_table with
torch.ops.opd.NAME.default, or .SymInt where an attribute is a symbol. What an operator changes in
place is a result of its node, behind its own; lists stand there one tensor after the other, and the
attribute `lengths` says how many each input has: -1, it is no list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import OpdError
from ._interface import flatten
from ._session import get_session

_PLAIN = (Tensor, torch.nn.Parameter)


def is_exported(tensors: Sequence[Optional[Tensor]]) -> bool:
    """Is this call one of an exporter's? Cheap where all tensors are ordinary ones."""
    kinds = {type(t) for t in tensors if t is not None}
    return (not kinds or not kinds.issubset(_PLAIN)) and torch.onnx.is_in_onnx_export()


def express(
    name: str,
    arguments: dict[str, Any],
    n_tensors: int,
    make_fake: Callable[[], list[Tensor]],
    changed: Sequence[Tensor] = (),
) -> list[Tensor]:
    """The results of a call, one after the other. n_tensors: of the arguments these are the first;
    make_fake: tensors as it would return; changed: those that it changes in place."""
    form = _FORMS.get(name)
    if form and list(signature(form).parameters) == list(arguments) and not _is_replaced(name):
        said = form(*arguments.values())
        return [said] if isinstance(said, Tensor) else list(said)
    if not hasattr(torch.onnx, "ops"):
        raise OpdError(
            f"opd: ONNX has no node for {name}; give torch.onnx.export a custom_translation_table "
            f"with torch.ops.opd.{name}.default, or use PyTorch 2.8",
            op=name,
        )
    tensors = list(arguments.values())[:n_tensors]
    attrs = {n: v for n, v in list(arguments.items())[n_tensors:] if v is not None}
    lengths = [len(v) if isinstance(v, (list, tuple)) else -1 for v in tensors]
    if max(lengths, default=-1) >= 0:
        tensors, attrs["lengths"] = flatten(tensors, lengths), lengths
    fakes = make_fake()
    makes = [*fakes, *changed]
    if not makes:  # of lists of nothing
        return []
    dtypes, shapes = [t.dtype for t in makes], [t.shape for t in makes]
    make = torch.onnx.ops.symbolic_multi_out
    made = make(f"opd::{name}", tensors, attrs, dtypes=dtypes, shapes=shapes, version=1)
    with torch.no_grad():
        for tensor, new in zip(changed, made[len(fakes) :]):
            tensor.copy_(new)
    return list(made[: len(fakes)])


def _is_replaced(name: str) -> bool:
    """By a file of the user's own, which may compute something else?"""
    return bool(get_session().conn.call("op_info", name)["shadowed"])


# --- in torch's words; the arguments are those of the operators' files


def _gelu(x: Tensor, approximate: str) -> Tensor:
    if approximate == "sigmoid":
        return x * torch.sigmoid(1.702 * x)
    return F.gelu(x, approximate=approximate)


def _depthwise_conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> Tensor:
    return F.conv2d(input, weight, bias, stride, padding, dilation, groups=input.shape[1])


def _upsample_bilinear2d(
    input: Tensor, size: Optional[list[int]], scale: Optional[list[float]], mode: str
) -> Tensor:
    if mode == "asymmetric":
        return _resize_asymmetric(input, size, scale)
    given: Any = {"scale_factor": None if scale is None else tuple(scale), "size": size}
    aligned = mode == "align_corners"
    return F.interpolate(input, mode="bilinear", align_corners=aligned, **given)


def _resize_asymmetric(
    input: Tensor, size: Optional[list[int]], scale: Optional[list[float]]
) -> Tensor:
    make: Any = torch.onnx.ops.symbolic
    floor: Any = torch.sym_int
    if scale is not None:
        size = [floor(n * s) for n, s in zip(input.shape[2:], scale)]
        by = make("Constant", (), {"value_floats": scale}, dtype=torch.float32, shape=[2])
    else:
        by = make("Constant", (), {"value_ints": size}, dtype=torch.int64, shape=[2])
    attrs = {"mode": "linear", "coordinate_transformation_mode": "asymmetric", "axes": [2, 3]}
    inputs = (input, None, by) if scale is not None else (input, None, None, by)
    shape = [*input.shape[:2], *(size or [])]
    resized: Tensor = make("Resize", inputs, attrs, dtype=input.dtype, shape=shape)
    return resized


def _lltm(
    input: Tensor, weights: Tensor, bias: Tensor, old_h: Tensor, old_cell: Tensor
) -> tuple[Tensor, Tensor]:
    gates = F.linear(torch.cat([old_h, input], 1), weights, bias)
    take, give, candidate = gates.chunk(3, 1)
    cell = old_cell + F.elu(candidate) * torch.sigmoid(take)
    return torch.tanh(cell) * torch.sigmoid(give), cell


_FORMS: dict[str, Callable[..., Any]] = {
    "acos": lambda x: torch.acos(x),
    "add": lambda input, other: input + other,
    "depthwise_conv2d": _depthwise_conv2d,
    "div": lambda input, other: input / other,
    "elu": lambda x, alpha: F.elu(x, alpha),
    "gelu": _gelu,
    "layer_norm": lambda input, weight, bias, eps: F.layer_norm(
        input, input.shape[-1:], weight, bias, eps
    ),
    "lltm": _lltm,
    "mse_loss": lambda input, target, reduction: F.mse_loss(input, target, reduction=reduction),
    "mul": lambda input, other: input * other,
    "relu": lambda x: torch.relu(x),
    "rms_norm": lambda input, weight, eps: F.rms_norm(input, input.shape[-1:], weight, eps),
    "sigmoid": lambda x: torch.sigmoid(x),
    "silu": lambda x: F.silu(x),
    "softmax": lambda input, dim: torch.softmax(input, dim),
    "sub": lambda input, other: input - other,
    "tanh": lambda x: torch.tanh(x),
    "upsample_bilinear2d": _upsample_bilinear2d,
}
