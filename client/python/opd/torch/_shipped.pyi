# The operators of opd, as types. Made by `python -m opd.stubs --torch --shipped`.
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch._ops import OpOverload

class Operator:
    __name__: str
    schema: str
    overload: OpOverload[..., Any]

class _acos(Operator):
    """Inverse cosine, elementwise; NaN outside of -1 to 1."""

    def __call__(self, x: Tensor) -> Tensor: ...

class _adam_step(Operator):
    """One step of torch.optim.Adam: param, exp_avg and exp_avg_sq are changed in place.
    step counts from 1; exp_avg and exp_avg_sq are zeros before it.
    decoupled: weight_decay as in torch.optim.AdamW.
    exp_avg and exp_avg_sq of a 16-bit param may be float32, and should be: the square of a
    gradient below 2e-4 is 0 in float16."""

    def __call__(self, param: Tensor, grad: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, *, step: int, lr: float = 0.001, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-08, weight_decay: float = 0.0, decoupled: bool = False, maximize: bool = False) -> None: ...

class _adam_steps(Operator):
    """One step of torch.optim.Adam for lists of tensors, in as few launches as they fit in:
    params, exp_avgs and exp_avg_sqs are changed in place.
    step counts from 1; exp_avgs and exp_avg_sqs are zeros before it.
    decoupled: weight_decay as in torch.optim.AdamW.
    exp_avgs and exp_avg_sqs of 16-bit params may be float32, and should be: the square of a
    gradient below 2e-4 is 0 in float16."""

    def __call__(self, params: Sequence[Tensor], grads: Sequence[Tensor], exp_avgs: Sequence[Tensor], exp_avg_sqs: Sequence[Tensor], *, step: int, lr: float = 0.001, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-08, weight_decay: float = 0.0, decoupled: bool = False, maximize: bool = False) -> None: ...

class _add(Operator):
    """input + other, elementwise; shapes broadcast."""

    def __call__(self, input: Tensor, other: Tensor) -> Tensor: ...

class _depthwise_conv2d(Operator):
    """One filter for each channel: conv2d with groups equal to the input's channels.
    The weight may have M filters for each: output channel c then reads input channel c / M."""

    def __call__(self, input: Tensor, weight: Tensor, bias: Tensor | None = None, *, stride: int | Sequence[int] = (1, 1), padding: int | Sequence[int] = (0, 0), dilation: int | Sequence[int] = (1, 1)) -> Tensor: ...

class _depthwise_conv2d_nhwc(Operator):
    """depthwise_conv2d of [N, H, W, C]; output is [N, OH, OW, C*M]. weight is as there."""

    def __call__(self, input: Tensor, weight: Tensor, bias: Tensor | None = None, *, stride: int | Sequence[int] = (1, 1), padding: int | Sequence[int] = (0, 0), dilation: int | Sequence[int] = (1, 1)) -> Tensor: ...

class _div(Operator):
    """input / other, elementwise; shapes broadcast."""

    def __call__(self, input: Tensor, other: Tensor) -> Tensor: ...

class _elu(Operator):
    """alpha * (exp(x) - 1) where x <= 0, else x, elementwise."""

    def __call__(self, x: Tensor, *, alpha: float = 1.0) -> Tensor: ...

class _flatten(Operator):
    """All elements in one dimension, row by row: a view of the same memory, not a copy."""

    def __call__(self_, self: Tensor) -> Tensor: ...

class _gelu(Operator):
    """Gaussian error linear unit, elementwise.
    "sigmoid" is x * sigmoid(1.702 x); "tanh" and "none" (erf) are PyTorch's."""

    def __call__(self, x: Tensor, *, approximate: Literal['sigmoid', 'tanh', 'none'] = 'sigmoid') -> Tensor: ...

class _layer_norm(Operator):
    """(input - mean) / sqrt(variance + eps) * weight + bias along the last dimension, as
    torch.nn.functional.layer_norm."""

    def __call__(self, input: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float = 1e-05) -> Tensor: ...

class _lltm(Operator):
    """One step of long-long-term memory: an LSTM without forget gate, its candidate an ELU.
    gates = [old_h, input] @ weights.T + bias; in thirds: input, output, candidate."""

    def __call__(self, input: Tensor, weights: Tensor, bias: Tensor, old_h: Tensor, old_cell: Tensor) -> tuple[Tensor, Tensor]: ...

class _lltm_sequence(Operator):
    """lltm over T steps from (h0, c0): hs has h of each step, h and c are those of the last.
    Where h goes through a product for each step it is rounded to the dtype first, as in
    lltm step by step: over many steps, weights that amplify do so with 16-bit rounding too.
    allow_tf32: products of float32 on a GPU may be of TF32, which has 10 bits of fraction;
    those that are PyTorch's, in its process, may by its own setting, too."""

    def __call__(self, inputs: Tensor, weights: Tensor, bias: Tensor, h0: Tensor, c0: Tensor, *, allow_tf32: bool = False) -> tuple[Tensor, Tensor, Tensor]: ...

class _mse_loss(Operator):
    """(input - target)^2, its mean or its sum, as torch.nn.functional.mse_loss."""

    def __call__(self, input: Tensor, target: Tensor, *, reduction: Literal['none', 'mean', 'sum'] = 'mean') -> Tensor: ...

class _mul(Operator):
    """input * other, elementwise; shapes broadcast."""

    def __call__(self, input: Tensor, other: Tensor) -> Tensor: ...

class _pcl_loss(Operator):
    """Loss of proposal cluster learning. The gradient is of pcl_probs alone: of proposal i in
    class labels[i] it is that of its cluster's mean, cluster gt_assignment[i].
    labels, gt_assignment, pc_labels, pc_count and im_labels may be integers or floating;
    labels and pc_labels are whole numbers from 0 to C - 1, gt_assignment from 0 to P - 1.
    The assignment of a background proposal, labels[i] = 0, may be any number, as -1."""

    def __call__(self, pcl_probs: Tensor, labels: Tensor, cls_loss_weights: Tensor, gt_assignment: Tensor, pc_labels: Tensor, pc_probs: Tensor, pc_count: Tensor, img_cls_loss_weights: Tensor, im_labels: Tensor) -> Tensor: ...

class _relu(Operator):
    """The larger of x and 0, elementwise. NaN stays NaN."""

    def __call__(self, x: Tensor) -> Tensor: ...

class _rms_norm(Operator):
    """input / sqrt(mean(input^2) + eps) * weight along the last dimension, as
    torch.nn.functional.rms_norm. eps: without one, the difference between 1 and the next number
    of float32, or float64 for that."""

    def __call__(self, input: Tensor, weight: Tensor | None = None, *, eps: float | None = None) -> Tensor: ...

class _sgd_step(Operator):
    """One step of torch.optim.SGD: param and momentum_buffer are changed in place.
    first: the buffer is set to the gradient, whatever it holds, as PyTorch's first step
    does; without dampening a buffer of zeros does the same.
    The buffer of a 16-bit param may be float32. In float16 a step below param / 2048 is
    lost."""

    def __call__(self, param: Tensor, grad: Tensor, momentum_buffer: Tensor | None = None, *, lr: float, momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False, maximize: bool = False, first: bool = False) -> None: ...

class _sgd_steps(Operator):
    """One step of torch.optim.SGD for lists of tensors, in as few launches as they fit in:
    params and momentum_buffers are changed in place.
    first: each buffer is set to the gradient, whatever it holds, as PyTorch's first step
    does; without dampening a buffer of zeros does the same.
    The buffers of 16-bit params may be float32. In float16 a step below param / 2048 is
    lost."""

    def __call__(self, params: Sequence[Tensor], grads: Sequence[Tensor], momentum_buffers: Sequence[Tensor] | None = None, *, lr: float, momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False, maximize: bool = False, first: bool = False) -> None: ...

class _sigmoid(Operator):
    """1 / (1 + exp(-x)), elementwise."""

    def __call__(self, x: Tensor) -> Tensor: ...

class _silu(Operator):
    """x * sigmoid(x), elementwise."""

    def __call__(self, x: Tensor) -> Tensor: ...

class _softmax(Operator):
    """exp(input) / sum(exp(input)) along the last dimension, as torch.nn.functional.softmax."""

    def __call__(self, input: Tensor, dim: int = -1) -> Tensor: ...

class _sub(Operator):
    """input - other, elementwise; shapes broadcast."""

    def __call__(self, input: Tensor, other: Tensor) -> Tensor: ...

class _tanh(Operator):
    """Hyperbolic tangent, elementwise."""

    def __call__(self, x: Tensor) -> Tensor: ...

class _upsample_bilinear2d(Operator):
    """Bilinear resize of [N, C, H, W] to the size given, or to floor(scale * size).
    mode, as in ONNX: half_pixel and align_corners are PyTorch's align_corners=False and =True,
    asymmetric is src = dst * in / out, or dst / scale where scale is given. An unchanged size gives a copy."""

    def __call__(self, input: Tensor, *, size: int | Sequence[int] | None = None, scale: float | Sequence[float] | None = None, mode: Literal['half_pixel', 'align_corners', 'asymmetric'] = 'half_pixel') -> Tensor: ...

class _upsample_bilinear2d_nhwc(Operator):
    """upsample_bilinear2d of [N, H, W, C]; output is [N, OH, OW, C]."""

    def __call__(self, input: Tensor, *, size: int | Sequence[int] | None = None, scale: float | Sequence[float] | None = None, mode: Literal['half_pixel', 'align_corners', 'asymmetric'] = 'half_pixel') -> Tensor: ...

class Ops:
    def __getitem__(self, name: str) -> Any: ...
    def __iter__(self) -> Iterator[str]: ...
    def __len__(self) -> int: ...
    def __contains__(self, name: object) -> bool: ...

    acos: _acos
    adam_step: _adam_step
    adam_steps: _adam_steps
    add: _add
    depthwise_conv2d: _depthwise_conv2d
    depthwise_conv2d_nhwc: _depthwise_conv2d_nhwc
    div: _div
    elu: _elu
    flatten: _flatten
    gelu: _gelu
    layer_norm: _layer_norm
    lltm: _lltm
    lltm_sequence: _lltm_sequence
    mse_loss: _mse_loss
    mul: _mul
    pcl_loss: _pcl_loss
    relu: _relu
    rms_norm: _rms_norm
    sgd_step: _sgd_step
    sgd_steps: _sgd_steps
    sigmoid: _sigmoid
    silu: _silu
    softmax: _softmax
    sub: _sub
    tanh: _tanh
    upsample_bilinear2d: _upsample_bilinear2d
    upsample_bilinear2d_nhwc: _upsample_bilinear2d_nhwc
