"""What each shipped operator must compute, in PyTorch and float64: the formula, not opd's code.

An operator without a row here fails test_every_operator_has_a_reference. A row is a function
(inputs, attrs) -> output or tuple of outputs, on float64 tensors that may require gradients, and
cases beside the operator's own examples: (shapes of the inputs, attrs).
"""

import math

import torch
import torch.nn.functional as F


def gelu(x, *, approximate):
    if approximate == "sigmoid":
        return x / (1 + torch.exp(-1.702 * x))
    return F.gelu(x, approximate=approximate)


def depthwise_conv2d(input, weight, bias, *, stride, padding, dilation):
    return F.conv2d(input, weight, bias, stride, padding, dilation, groups=input.shape[1])


def conv_case(input, multiplier, kernel, bias=True, **attrs):
    channels = input[1] * multiplier
    return ([input, [channels, 1, *kernel], [channels] if bias else None], attrs)


REFERENCES = {
    "flatten": (torch.flatten, [([shape], {}) for shape in ([7], [3, 0, 2], [2] * 5)]),
    "gelu": (
        gelu,
        [
            ([shape], {"approximate": approximate})
            for approximate in ("sigmoid", "tanh", "none")
            for shape in ([], [1], [7], [13, 17], [2, 3, 5, 7, 11], [4099], [0], [3, 0, 2])
        ],
    ),
    "depthwise_conv2d": (
        depthwise_conv2d,
        [
            conv_case([2, 3, 11, 13], 1, (3, 3)),
            conv_case([1, 1, 1, 1], 1, (1, 1)),
            conv_case([2, 5, 17, 7], 1, (3, 3), padding=1),
            conv_case([2, 2, 9, 9], 3, (3, 3), bias=False, padding=1),
            conv_case([1, 7, 31, 29], 1, (7, 7), padding=3),
            conv_case([1, 3, 19, 23], 2, (5, 5), stride=2, padding=2),
            conv_case([2, 3, 13, 11], 1, (3, 3), dilation=2, padding=2),
            conv_case([2, 2, 12, 15], 1, (2, 4), stride=[2, 1], padding=[0, 2], dilation=[1, 3]),
            conv_case([1, 2, 23, 23], 1, (3, 3), stride=5, bias=False),  # stride beyond the kernel
            conv_case([1, 2, 10, 11], 1, (2, 2), stride=[7, 3], padding=1),
            conv_case([1, 2, 5, 5], 1, (3, 3), padding=4),  # padding beyond the kernel
            conv_case([1, 2, 3, 3], 2, (2, 2), padding=5, stride=3),
            conv_case([2, 3, 8, 21], 1, (1, 9), padding=[0, 4]),
            conv_case([2, 3, 21, 8], 1, (9, 1), padding=[4, 0]),
            conv_case([1, 1, 40, 41], 1, (11, 13), padding=[5, 6]),
            conv_case([3, 64, 14, 14], 1, (3, 3), padding=1),
            conv_case([5, 4, 37, 67], 1, (3, 3), padding=1, bias=False),
            conv_case([0, 3, 9, 9], 1, (3, 3)),  # an empty batch
            conv_case([2, 4, 6, 6], 1, (6, 6)),
        ],
    ),
}

BOUNDS = {"float64": 1e-10, "float32": 1e-5, "bfloat16": 2e-2, "float16": 2e-3}


def relative_error(out, ref):
    """||out - ref|| / ||ref||, in float64; 0 where both are empty or zero."""
    assert out.shape == ref.shape, f"shape {tuple(out.shape)}, expected {tuple(ref.shape)}"
    difference = (out.double() - ref.double()).norm().item()
    size = ref.double().norm().item()
    if difference == 0:
        return 0.0
    return difference / size if size > 0 else math.inf
