"""Modules for operators that have parameters, or are used as layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from operator import index
from typing import Any, Literal, Optional, Union, get_args

import torch
from torch import Tensor, nn

from ._ops import ops

Pair = Union[int, tuple[int, int]]
Mode = Literal["half_pixel", "align_corners", "asymmetric"]


# --- what constructors are given


def _read(
    what: str, value: Any, wanted: str, convert: Callable[[Any], Any], or_pair: bool = True
) -> Any:
    """`convert` raises TypeError or ValueError; this says of what. `what`: layer and argument."""
    try:
        if not or_pair or isinstance(value, (str, bytes)) or not hasattr(value, "__len__"):
            return convert(value)
        if len(value) != 2:
            raise ValueError
        return convert(value[0]), convert(value[1])
    except (TypeError, ValueError) as e:
        raise type(e)(f"{what} is {value!r}, expected {wanted}") from None


def _to_int(value: Any, least: int = 1) -> int:
    if isinstance(value, bool):
        raise TypeError
    number = index(value)
    if number < least:
        raise ValueError
    return number


def _to_factor(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError
    number = index(value) if hasattr(value, "__index__") else float(value)
    if not 0 < number < math.inf:
        raise ValueError
    return number


def _read_int(what: str, value: Any) -> int:
    number: int = _read(what, value, "an int above 0", _to_int, or_pair=False)
    return number


def _read_pair(what: str, value: Pair, least: int = 1) -> tuple[int, int]:
    wanted = f"an int or a pair of ints {'above 0' if least else 'of at least 0'}"
    got = _read(what, value, wanted, lambda v: _to_int(v, least))
    return got if isinstance(got, tuple) else (got, got)


# --- layers


class DepthwiseConv2d(nn.Module):
    """One filter for each channel: Conv2d with groups=in_channels.

    Input [N, C, H, W]; weight [C, 1, KH, KW], bias [C]. kernel_size, stride and padding: a number
    or a pair.
    """

    def __init__(
        self,
        in_channels: int,
        kernel_size: Pair = 3,
        stride: Pair = 1,
        padding: Pair = 0,
        bias: bool = False,
        device: Any = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        super().__init__()
        self.in_channels = _read_int("DepthwiseConv2d: in_channels", in_channels)
        self.kernel_size = _read_pair("DepthwiseConv2d: kernel_size", kernel_size)
        self.stride = _read_pair("DepthwiseConv2d: stride", stride)
        self.padding = _read_pair("DepthwiseConv2d: padding", padding, least=0)
        shape = (self.in_channels, 1, *self.kernel_size)
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        if bias:
            self.bias = nn.Parameter(torch.empty(self.in_channels, device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform in (-s, s), s = 1 / sqrt(C * KH * KW)."""
        bound = 1 / math.sqrt(self.in_channels * math.prod(self.kernel_size))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, input: Tensor) -> Any:
        return ops.depthwise_conv2d(
            input, self.weight, self.bias, stride=self.stride, padding=self.padding
        )

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"padding={self.padding}, bias={self.bias is not None}"
        )


class LLTM(nn.Module):
    """A recurrent cell: an LSTM without forget gate, whose candidate goes through an ELU.

    forward(input [B, I], (old_h, old_cell) [B, S]) gives (new_h, new_cell).
    weights [3 S, S + I] for (old_h, input): input gate, output gate, candidate; bias [3 S].
    """

    def __init__(
        self,
        input_features: int,
        state_size: int,
        device: Any = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        super().__init__()
        self.input_features = _read_int("LLTM: input_features", input_features)
        self.state_size = _read_int("LLTM: state_size", state_size)
        shape = (3 * self.state_size, self.input_features + self.state_size)
        self.weights = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(3 * self.state_size, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform in (-s, s), s = 1 / sqrt(S)."""
        bound = 1 / math.sqrt(self.state_size)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, input: Tensor, state: tuple[Tensor, Tensor]) -> Any:
        return ops.lltm(input, self.weights, self.bias, *state)

    def extra_repr(self) -> str:
        return f"{self.input_features}, {self.state_size}"


class UpsampleBilinear2d(nn.Module):
    """Resizes [N, C, H, W], to `size` or by `scale_factor`, either a number or a pair; down too.

    mode  where a pixel's value lies: "half_pixel" (PyTorch's align_corners=False),
          "align_corners" (its align_corners=True), "asymmetric" (TensorFlow 1)
    """

    def __init__(
        self,
        size: Optional[Pair] = None,
        scale_factor: Union[float, tuple[float, float], None] = None,
        mode: Mode = "half_pixel",
    ) -> None:
        super().__init__()
        if (size is None) == (scale_factor is None):
            raise ValueError("UpsampleBilinear2d: expected one of size and scale_factor")
        if mode not in get_args(Mode):
            raise ValueError(
                f"UpsampleBilinear2d: mode is {mode!r}, expected one of {', '.join(get_args(Mode))}"
            )
        self.size = self.scale_factor = None
        if size is not None:
            wanted = "an int or a pair of ints above 0"
            self.size = _read("UpsampleBilinear2d: size", size, wanted, _to_int)
        else:
            wanted = "a number or a pair of numbers above 0"
            self.scale_factor = _read(
                "UpsampleBilinear2d: scale_factor", scale_factor, wanted, _to_factor
            )
        self.mode: Mode = mode

    def forward(self, input: Tensor) -> Any:
        return ops.upsample_bilinear2d(
            input, size=self.size, scale=self.scale_factor, mode=self.mode
        )

    def extra_repr(self) -> str:
        what = f"size={self.size}" if self.size is not None else f"scale_factor={self.scale_factor}"
        return f"{what}, mode={self.mode!r}"


class PCLLoss(nn.Module):
    """The loss of proposal cluster learning, a scalar; differentiable in pcl_probs.

    pcl_probs [N, C]; labels, cls_loss_weights, gt_assignment [N]; pc_labels, pc_probs, pc_count,
    img_cls_loss_weights [P]; im_labels [C]; for N proposals, C classes (0 is background), P
    clusters.
    """

    def forward(
        self,
        pcl_probs: Tensor,
        labels: Tensor,
        cls_loss_weights: Tensor,
        gt_assignment: Tensor,
        pc_labels: Tensor,
        pc_probs: Tensor,
        pc_count: Tensor,
        img_cls_loss_weights: Tensor,
        im_labels: Tensor,
    ) -> Any:
        return ops.pcl_loss(
            pcl_probs,
            labels,
            cls_loss_weights,
            gt_assignment,
            pc_labels,
            pc_probs,
            pc_count,
            img_cls_loss_weights,
            im_labels,
        )
