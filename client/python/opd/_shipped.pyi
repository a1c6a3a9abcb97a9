# The operators of opd, as types. Made by `python -m opd.stubs --shipped`.
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeVar, Union

import opd
from numpy.typing import ArrayLike
from opd import Context, Tensor

T = TypeVar("T")
Value = Union[Tensor, ArrayLike]

class Operator:
    __name__: str
    schema: str
    version: int
    versions: Sequence[dict[str, Any]]

class _acos(Operator):
    """Inverse cosine, elementwise; NaN outside of -1 to 1."""

    def __call__(self, x: Value, *, deadline: float | None = None, version: int | None = None, debug: bool = False) -> Tensor: ...
    def forward(self, x: Value, *, deadline: float | None = None, version: int | None = None, debug: bool = False) -> tuple[Tensor, Context]: ...

class _adam_step(Operator):
    """One step of torch.optim.Adam: param, exp_avg and exp_avg_sq are changed in place.
    step counts from 1; exp_avg and exp_avg_sq are zeros before it.
    decoupled: weight_decay as in torch.optim.AdamW.
    exp_avg and exp_avg_sq of a 16-bit param may be float32, and should be: the square of a
    gradient below 2e-4 is 0 in float16."""

    def __call__(self, param: Value, grad: Value, exp_avg: Value, exp_avg_sq: Value, *, step: int, lr: float = 0.001, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-08, weight_decay: float = 0.0, decoupled: bool = False, maximize: bool = False, deadline: float | None = None, version: int | None = None, debug: bool = False) -> None: ...
    def forward(self, param: Value, grad: Value, exp_avg: Value, exp_avg_sq: Value, *, step: int, lr: float = 0.001, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-08, weight_decay: float = 0.0, decoupled: bool = False, maximize: bool = False, deadline: float | None = None, version: int | None = None, debug: bool = False) -> tuple[None, Context]: ...

class _adam_steps(Operator):
    """One step of torch.optim.Adam for lists of tensors, in as few launches as they fit in:
    params, exp_avgs and exp_avg_sqs are changed in place.
    step counts from 1; exp_avgs and exp_avg_sqs are zeros before it.
    decoupled: weight_decay as in torch.optim.AdamW.
    exp_avgs and exp_avg_sqs of 16-bit params may be float32, and should be: the square of a
    gradient below 2e-4 is 0 in float16."""

    def __call__(self, params: Sequence[Value], grads: Sequence[Value], exp_avgs: Sequence[Value], exp_avg_sqs: Sequence[Value], *, step: int, lr: float = 0.001, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-08, weight_decay: float = 0.0, decoupled: bool = False, maximize: bool = False, deadline: float | None = None, version: int | None = None, debug: bool = False) -> None: ...
    def forward(self, params: Sequence[Value], grads: Sequence[Value], exp_avgs: Sequence[Value], exp_avg_sqs: Sequence[Value], *, step: int, lr: float = 0.001, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-08, weight_decay: float = 0.0, decoupled: bool = False, maximize: bool = False, deadline: float | None = None, version: int | None = None, debug: bool = False) -> tuple[None, Context]: ...

class _add(Operator):
    """input + other, elementwise; shapes broadcast."""

    def __call__(self, input: Value, other: Value, *, deadline: float | None = None, version: int | None = None, debug: bool = False) -> Tensor: ...
    def forward(self, input: Value, other: Value, *, deadline: float | None = None, version: int | None = None, debug: bool = False) -> tuple[Tensor, Context]: ...

class _depthwise_conv2d(Operator):
    """One filter for each channel: conv2d with groups equal to the input's channels.
    The weight may have M filters for each: output channel c then reads input channel c / M."""

    def __call__(self, input: Value, weight: Value, bias: Value | None = None, *, stride: int | Sequence[int] = (1, 1), padding: int | Sequence[int] = (0, 0), dilation: int | Sequence[int] = (1, 1), deadline: float | None = None, version: int | None = None, debug: bool = False) -> Tensor: ...
    def forward(self, input: Value, weight: Value, bias: Value | None = None, *, stride: int | Sequence[int] = (1, 1), padding: int | Sequence[int] = (0, 0), dilation: int | Sequence[int] = (1, 1), deadline: float | None = None, version: int | None = None, debug: bool = False) -> tuple[Tensor, Context]: ...

class _div(Operator):
    """input / other, elementwise; shapes broadcast."""

    def __call__(self, input: Value, other: Value, *, deadline: float | None = None, version: int | None = None, debug: bool = False) -> Tensor: ...
    def forward(self, input: Value, other: Value, *, deadline: float | None = None, version: int | None = None, debug: bool = False) -> tuple[Tensor, Context]: ...

class _elu(Operator):
    """alpha * (exp(x) - 1) where x <= 0, else x, elementwise."""

    def __call__(self, x: Value, *, alpha: float = 1.0, deadline: float | None = None, version: int | None = None, debug: bool = False) -> Tensor: ...
    def forward(self, x: Value, *, alpha: float = 1.0, deadline: float | None = None, version: int | None = None, debug: bool = False) -> tuple[Tensor, Context]: ...

class _flatten(Operator):
    """All elements in one dimension, row by row: a view of the same memory, not a copy."""

    def __call__(self_, self: Value, *, deadline: float | None = None, version: int | None = None, debug: bool = False) -> Tensor: ...
    def forward(self_, self: Value, *, deadline: float | None = None, version: int | None = None, debug: bool = False) -> tuple[Tensor, Context]: ...

class _gelu(Operator):
    """Gaussian error linear unit, elementwise.
    "sigmoid" is x * sigmoid(1.702 x); "tanh" and "none" (erf) are PyTorch's."""

    def __call__(self, x: Value, *, approximate: Literal['sigmoid', 'tanh', 'none'] = 'sigmoid', deadline: float | None = None, version: int | None = None, debug: bool = False) -> Tensor: ...
    def forward(self, x: Value, *, approximate: Literal['sigmoid', 'tanh', 'none'] = 'sigmoid', deadline: float | None = None, version: int | None = None, debug: bool = False) -> tuple[Tensor, Context]: ...

class _layer_norm(Operator):
    """(input - mean) / sqrt(variance + eps) * weight + bias along the last dimension, as
    torch.nn.functional.layer_norm."""

    def __call__(self, input: Value, weight: Value | None = None, bias: Value | None = None, *, eps: float = 1e-05, deadline: float | None = None, version: int | None = None, debug: bool = False) -> Tensor: ...
    def forward(self, input: Value, weight: Value | None = None, bias: Value | None = None, *, eps: float = 1e-05, deadline: float | None = None, version: int | None = None, debug: bool = False) -> tuple[Tensor, Context]: ...

class _lltm(Operator):
    """One step of long-long-term memory: an LSTM without forget gate, its candidate an ELU.
    gates = [old_h, input] @ weights.T + bias; in thirds: input, output, candidate."""

    def __call__(self, input: Value, weights: Value, bias: Value, old_h: Value, old_cell: Value, *, deadline: float | None = None, version: int | None = None, debug: bool = False) -> tuple[Tensor, Tensor]: ...
    def forward(self, input: Value, weights: Value, bias: Value, old_h: Value, old_cell: Value, *, deadline: float | None = None, version: int | None = None, debug: bool = False) -> tuple[tuple[Tensor, Tensor], Context]: ...

class _lltm_sequence(Operator):
    """lltm over T steps from (h0, c0): hs has h of each step, h and c are those of the last.
    Where h goes through a product for each step it is rounded to the dtype first, as in
    lltm step by step: over many steps, weights that amplify do so with 16-bit rounding too.
    allow_tf32: products of float32 on a GPU may be of TF32, which has 10 bits of fraction;
    those that are PyTorch's, in its process, may by its own setting, too."""

    def __call__(self, inputs: Value, weights: Value, bias: Value, h0: Value, c0: Value, *, allow_tf32: bool = False, deadline: float | None = None, version: int | None = None, debug: bool = False) -> tuple[Tensor, Tensor, Tensor]: ...
    def forward(self, inputs: Value, weights: Value, bias: Value, h0: Value, c0: Value, *, allow_tf32: bool = False, deadline: float | None = None, version: int | None = None, debug: bool = False) -> tuple[tuple[Tensor, Tensor, Tensor], Context]: ...

class _mse_loss(Operator):
    """(input - target)^2, its mean or its sum, as torch.nn.functional.mse_loss."""

    def __call__(self, input: Value, target: Value, *, reduction: Literal['none', 'mean', 'sum'] = 'mean', deadline: float | None = None, version: int | None = None, debug: bool = False) -> Tensor: ...
    def forward(self, input: Value, target: Value, *, reduction: Literal['none', 'mean', 'sum'] = 'mean', deadline: float | None = None, version: int | None = None, debug: bool = False) -> tuple[Tensor, Context]: ...

class _mul(Operator):
    """input * other, elementwise; shapes broadcast."""

    def __call__(self, input: Value, other: Value, *, deadline: float | None = None, version: int | None = None, debug: bool = False) -> Tensor: ...
    def forward(self, input: Value, other: Value, *, deadline: float | None = None, version: int | None = None, debug: bool = False) -> tuple[Tensor, Context]: ...

class _pcl_loss(Operator):
    """Loss of proposal cluster learning. The gradient is of pcl_probs alone: of proposal i in
    class labels[i] it is that of its cluster's mean, cluster gt_assignment[i].
    labels, gt_assignment, pc_labels, pc_count and im_labels may be integers or floating;
    labels and pc_labels are whole numbers from 0 to C - 1, gt_assignment from 0 to P - 1.
    The assignment of a background proposal, labels[i] = 0, may be any number, as -1."""

    def __call__(self, pcl_probs: Value, labels: Value, cls_loss_weights: Value, gt_assignment: Value, pc_labels: Value, pc_probs: Value, pc_count: Value, img_cls_loss_weights: Value, im_labels: Value, *, deadline: float | None = None, version: int | None = None, debug: bool = False) -> Tensor: ...
    def forward(self, pcl_probs: Value, labels: Value, cls_loss_weights: Value, gt_assignment: Value, pc_labels: Value, pc_probs: Value, pc_count: Value, img_cls_loss_weights: Value, im_labels: Value, *, deadline: float | None = None, version: int | None = None, debug: bool = False) -> tuple[Tensor, Context]: ...

class _relu(Operator):
    """The larger of x and 0, elementwise. NaN stays NaN."""

    def __call__(self, x: Value, *, deadline: float | None = None, version: int | None = None, debug: bool = False) -> Tensor: ...
    def forward(self, x: Value, *, deadline: float | None = None, version: int | None = None, debug: bool = False) -> tuple[Tensor, Context]: ...

class _rms_norm(Operator):
    """input / sqrt(mean(input^2) + eps) * weight along the last dimension, as
    torch.nn.functional.rms_norm. eps: without one, the difference between 1 and the next number
    of float32, or float64 for that."""

    def __call__(self, input: Value, weight: Value | None = None, *, eps: float | None = None, deadline: float | None = None, version: int | None = None, debug: bool = False) -> Tensor: ...
    def forward(self, input: Value, weight: Value | None = None, *, eps: float | None = None, deadline: float | None = None, version: int | None = None, debug: bool = False) -> tuple[Tensor, Context]: ...

class _sgd_step(Operator):
    """One step of torch.optim.SGD: param and momentum_buffer are changed in place.
    first: the buffer is set to the gradient, whatever it holds, as PyTorch's first step
    does; without dampening a buffer of zeros does the same.
    The buffer of a 16-bit param may be float32. In float16 a step below param / 2048 is
    lost."""

    def __call__(self, param: Value, grad: Value, momentum_buffer: Value | None = None, *, lr: float, momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False, maximize: bool = False, first: bool = False, deadline: float | None = None, version: int | None = None, debug: bool = False) -> None: ...
    def forward(self, param: Value, grad: Value, momentum_buffer: Value | None = None, *, lr: float, momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False, maximize: bool = False, first: bool = False, deadline: float | None = None, version: int | None = None, debug: bool = False) -> tuple[None, Context]: ...

class _sgd_steps(Operator):
    """One step of torch.optim.SGD for lists of tensors, in as few launches as they fit in:
    params and momentum_buffers are changed in place.
    first: each buffer is set to the gradient, whatever it holds, as PyTorch's first step
    does; without dampening a buffer of zeros does the same.
    The buffers of 16-bit params may be float32. In float16 a step below param / 2048 is
    lost."""

    def __call__(self, params: Sequence[Value], grads: Sequence[Value], momentum_buffers: Sequence[Value] | None = None, *, lr: float, momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False, maximize: bool = False, first: bool = False, deadline: float | None = None, version: int | None = None, debug: bool = False) -> None: ...
    def forward(self, params: Sequence[Value], grads: Sequence[Value], momentum_buffers: Sequence[Value] | None = None, *, lr: float, momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False, maximize: bool = False, first: bool = False, deadline: float | None = None, version: int | None = None, debug: bool = False) -> tuple[None, Context]: ...

class _sigmoid(Operator):
    """1 / (1 + exp(-x)), elementwise."""

    def __call__(self, x: Value, *, deadline: float | None = None, version: int | None = None, debug: bool = False) -> Tensor: ...
    def forward(self, x: Value, *, deadline: float | None = None, version: int | None = None, debug: bool = False) -> tuple[Tensor, Context]: ...

class _silu(Operator):
    """x * sigmoid(x), elementwise."""

    def __call__(self, x: Value, *, deadline: float | None = None, version: int | None = None, debug: bool = False) -> Tensor: ...
    def forward(self, x: Value, *, deadline: float | None = None, version: int | None = None, debug: bool = False) -> tuple[Tensor, Context]: ...

class _softmax(Operator):
    """exp(input) / sum(exp(input)) along the last dimension, as torch.nn.functional.softmax."""

    def __call__(self, input: Value, dim: int = -1, *, deadline: float | None = None, version: int | None = None, debug: bool = False) -> Tensor: ...
    def forward(self, input: Value, dim: int = -1, *, deadline: float | None = None, version: int | None = None, debug: bool = False) -> tuple[Tensor, Context]: ...

class _sub(Operator):
    """input - other, elementwise; shapes broadcast."""

    def __call__(self, input: Value, other: Value, *, deadline: float | None = None, version: int | None = None, debug: bool = False) -> Tensor: ...
    def forward(self, input: Value, other: Value, *, deadline: float | None = None, version: int | None = None, debug: bool = False) -> tuple[Tensor, Context]: ...

class _tanh(Operator):
    """Hyperbolic tangent, elementwise."""

    def __call__(self, x: Value, *, deadline: float | None = None, version: int | None = None, debug: bool = False) -> Tensor: ...
    def forward(self, x: Value, *, deadline: float | None = None, version: int | None = None, debug: bool = False) -> tuple[Tensor, Context]: ...

class _upsample_bilinear2d(Operator):
    """Bilinear resize of [N, C, H, W] to the size given, or to floor(scale * size).
    mode, as in ONNX: half_pixel and align_corners are PyTorch's align_corners=False and =True,
    asymmetric is src = dst * in / out, or dst / scale where scale is given. An unchanged size gives a copy."""

    def __call__(self, input: Value, *, size: int | Sequence[int] | None = None, scale: float | Sequence[float] | None = None, mode: Literal['half_pixel', 'align_corners', 'asymmetric'] = 'half_pixel', deadline: float | None = None, version: int | None = None, debug: bool = False) -> Tensor: ...
    def forward(self, input: Value, *, size: int | Sequence[int] | None = None, scale: float | Sequence[float] | None = None, mode: Literal['half_pixel', 'align_corners', 'asymmetric'] = 'half_pixel', deadline: float | None = None, version: int | None = None, debug: bool = False) -> tuple[Tensor, Context]: ...

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

class Methods:
    __slots__ = ()
    def acos(self: T, *, deadline: float | None = None, version: int | None = None, debug: bool = False) -> T: ...
    def adam_step(self: T, grad: Value, exp_avg: Value, exp_avg_sq: Value, *, step: int, lr: float = 0.001, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-08, weight_decay: float = 0.0, decoupled: bool = False, maximize: bool = False, deadline: float | None = None, version: int | None = None, debug: bool = False) -> None: ...
    def add(self: T, other: Value, *, deadline: float | None = None, version: int | None = None, debug: bool = False) -> T: ...
    def depthwise_conv2d(self: T, weight: Value, bias: Value | None = None, *, stride: int | Sequence[int] = (1, 1), padding: int | Sequence[int] = (0, 0), dilation: int | Sequence[int] = (1, 1), deadline: float | None = None, version: int | None = None, debug: bool = False) -> T: ...
    def div(self: T, other: Value, *, deadline: float | None = None, version: int | None = None, debug: bool = False) -> T: ...
    def elu(self: T, *, alpha: float = 1.0, deadline: float | None = None, version: int | None = None, debug: bool = False) -> T: ...
    def flatten(self: T, *, deadline: float | None = None, version: int | None = None, debug: bool = False) -> T: ...
    def gelu(self: T, *, approximate: Literal['sigmoid', 'tanh', 'none'] = 'sigmoid', deadline: float | None = None, version: int | None = None, debug: bool = False) -> T: ...
    def layer_norm(self: T, weight: Value | None = None, bias: Value | None = None, *, eps: float = 1e-05, deadline: float | None = None, version: int | None = None, debug: bool = False) -> T: ...
    def lltm(self: T, weights: Value, bias: Value, old_h: Value, old_cell: Value, *, deadline: float | None = None, version: int | None = None, debug: bool = False) -> tuple[T, T]: ...
    def lltm_sequence(self: T, weights: Value, bias: Value, h0: Value, c0: Value, *, allow_tf32: bool = False, deadline: float | None = None, version: int | None = None, debug: bool = False) -> tuple[T, T, T]: ...
    def mse_loss(self: T, target: Value, *, reduction: Literal['none', 'mean', 'sum'] = 'mean', deadline: float | None = None, version: int | None = None, debug: bool = False) -> T: ...
    def mul(self: T, other: Value, *, deadline: float | None = None, version: int | None = None, debug: bool = False) -> T: ...
    def pcl_loss(self: T, labels: Value, cls_loss_weights: Value, gt_assignment: Value, pc_labels: Value, pc_probs: Value, pc_count: Value, img_cls_loss_weights: Value, im_labels: Value, *, deadline: float | None = None, version: int | None = None, debug: bool = False) -> T: ...
    def relu(self: T, *, deadline: float | None = None, version: int | None = None, debug: bool = False) -> T: ...
    def rms_norm(self: T, weight: Value | None = None, *, eps: float | None = None, deadline: float | None = None, version: int | None = None, debug: bool = False) -> T: ...
    def sgd_step(self: T, grad: Value, momentum_buffer: Value | None = None, *, lr: float, momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0, nesterov: bool = False, maximize: bool = False, first: bool = False, deadline: float | None = None, version: int | None = None, debug: bool = False) -> None: ...
    def sigmoid(self: T, *, deadline: float | None = None, version: int | None = None, debug: bool = False) -> T: ...
    def silu(self: T, *, deadline: float | None = None, version: int | None = None, debug: bool = False) -> T: ...
    def softmax(self: T, dim: int = -1, *, deadline: float | None = None, version: int | None = None, debug: bool = False) -> T: ...
    def sub(self: T, other: Value, *, deadline: float | None = None, version: int | None = None, debug: bool = False) -> T: ...
    def tanh(self: T, *, deadline: float | None = None, version: int | None = None, debug: bool = False) -> T: ...
    def upsample_bilinear2d(self: T, *, size: int | Sequence[int] | None = None, scale: float | Sequence[float] | None = None, mode: Literal['half_pixel', 'align_corners', 'asymmetric'] = 'half_pixel', deadline: float | None = None, version: int | None = None, debug: bool = False) -> T: ...
