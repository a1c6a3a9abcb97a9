"""What each shipped operator must compute, in PyTorch and float64: the formula, not opd's code.

An operator neither here nor in ELSEWHERE fails test_every_operator_has_a_reference. A row is a
function (inputs, attrs) -> output or tuple of outputs, on float64 tensors that may require gradients, and
cases beside the operator's own examples: (shapes of the inputs, attrs).
"""

import math
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from conftest import DEVICE

as_shipped = pytest.mark.as_shipped


def gelu(x, *, approximate):
    """F.gelu has 1 + erf and 1 + tanh, of which nothing is left on the far left."""
    if approximate == "sigmoid":
        return x / (1 + torch.exp(-1.702 * x))
    if approximate == "tanh":
        return x / (1 + torch.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return x / 2 * torch.special.erfc(-x / math.sqrt(2))


def tanh(x):
    """Its gradient is exact also where y is all but 1, which torch.tanh's, of y, is not."""
    return torch.where(x > 0, 1 - 2 / (1 + torch.exp(2 * x)), 2 / (1 + torch.exp(-2 * x)) - 1)


def sigmoid(x):
    return 1 / (1 + torch.exp(-x))


def depthwise_conv2d(input, weight, bias, *, stride, padding, dilation):
    return F.conv2d(input, weight, bias, stride, padding, dilation, groups=input.shape[1])


def conv_case(input, multiplier, kernel, bias=True, **attrs):
    channels = input[1] * multiplier
    return ([input, [channels, 1, *kernel], [channels] if bias else None], attrs)


def elementwise(function, n_inputs=1, attrs=({},)):
    """Of n inputs of one shape; those of several that broadcast are BROADCASTS."""
    shapes = ([], [1], [7], [13, 17], [2, 3, 5, 7, 11], [4099], [0], [3, 0, 2])
    return function, [([shape] * n_inputs, a) for a in attrs for shape in shapes]


BROADCASTS = [
    (shapes, {})
    for a, b in [
        ([513, 33], [33]), ([513, 33], [513, 1]), ([513, 33], [1, 1]), ([64, 264], [264]),
        ([64, 264], [64, 1]), ([2, 3, 4, 8], [3, 1, 1]), ([2, 3, 5, 7], [2, 1, 5, 1]),
        ([4, 1, 6], [5, 1]), ([20011], []), ([1000, 3], [3]), ([1, 1, 9], [8, 1, 1]), ([3, 1], [3, 0]),
        ([0, 5], [5]), ([1], [4, 1]), ([2, 1, 3, 1, 2, 1, 2], [2, 3, 1, 2, 1, 3, 1]),
    ]
    for shapes in ([a, b], [b, a])
]


# Sizes by which a GPU has other kernels; a CPU, which compiles anew for each, has every one in one dtype alone.
CONVOLVED = [
    conv_case([2, 3, 56, 56], 1, (51, 5), padding=[25, 2]),
    conv_case([2, 3, 40, 56], 1, (5, 51), padding=[2, 25]),
    conv_case([1, 2, 66, 40], 1, (64, 3), padding=[32, 1]),
    conv_case([1, 2, 150, 512], 1, (11, 11), padding=5),
    conv_case([1, 2, 120, 512], 1, (11, 11), padding=5),
    conv_case([2, 300, 4, 128], 1, (1, 3)),
    conv_case([1, 2, 60, 60], 1, (3, 3), padding=1, stride=12),
    conv_case([1, 2, 90, 20], 1, (3, 3), padding=[40, 1], dilation=[40, 1]),
    conv_case([1, 2, 150, 8], 1, (3, 1), padding=[70, 0], dilation=[70, 1]),
    conv_case([1, 4, 140, 300], 1, (21, 1), padding=[10, 0]),
    conv_case([2, 4, 40, 300], 1, (1, 21), padding=[0, 10]),
    conv_case([2, 3, 1, 150], 1, (1, 31), padding=[0, 15]),
    conv_case([2, 2, 5, 64], 2, (1, 15), padding=[0, 7]),
    # The same where rows of inputs and outputs differ, or are of odd length.
    conv_case([2, 3, 1, 150], 1, (1, 8), padding=[0, 4]),
    conv_case([2, 70, 2, 301], 1, (1, 15), padding=[1, 7]),
    conv_case([1, 3, 5, 90], 2, (1, 31), padding=[1, 30]),
    conv_case([16, 3, 1, 190], 1, (1, 15), padding=[0, 7], dilation=[1, 12]),
    conv_case([2, 3, 7, 133], 1, (1, 24), stride=[2, 2]),
    # Large windows with strides and dilations, a row of the window after the other.
    conv_case([2, 3, 60, 150], 1, (11, 11), padding=5, stride=2),
    conv_case([2, 2, 40, 40], 1, (9, 9), padding=8, dilation=2),
    conv_case([1, 2, 50, 60], 2, (8, 31), stride=3),
    conv_case([1, 2, 30, 61], 2, (9, 11), padding=[4, 5], stride=[3, 4], dilation=[2, 6]),
    # Of odd numbers of channels, which lie side by side in channels_last.
    conv_case([3, 301, 15, 14], 1, (3, 3), padding=1),
    conv_case([2, 75, 40, 41], 1, (7, 7), padding=3),
    conv_case([1, 255, 9, 10], 1, (7, 7), padding=3),
    conv_case([4, 33, 50, 51], 1, (5, 4), padding=2, stride=2, dilation=[1, 2]),
    conv_case([2, 70, 45, 45], 1, (3, 3), padding=6, dilation=6),
    # More than are made without shared memory.
    conv_case([2, 48, 56, 56], 1, (3, 3), padding=1),
    conv_case([3, 460, 14, 14], 1, (3, 3), padding=1),
    conv_case([7, 780, 7, 7], 1, (5, 5), padding=2, bias=False),
    conv_case([1, 24, 104, 112], 1, (5, 5), padding=2),
    conv_case([2, 90, 38, 39], 1, (5, 5), padding=2),
    conv_case([2, 66, 65, 64], 2, (3, 3), padding=1, stride=2),
    conv_case([1, 80, 60, 56], 1, (5, 5), padding=4, dilation=2),
    conv_case([1, 60, 200, 203], 1, (3, 3), padding=1, stride=3),
    # Gradients of weights of planes in shared memory: of several images, of rows of one.
    conv_case([9, 47, 25, 25], 1, (3, 3), padding=1),
    conv_case([1, 2, 300, 333], 1, (3, 3), padding=1),
    conv_case([3, 5, 20, 20], 1, (3, 3), padding=6, dilation=6),
    conv_case([2, 3, 40, 37], 2, (7, 7), padding=3, stride=4),
    conv_case([4, 3, 75, 75], 1, (5, 5), padding=2, stride=2),
    conv_case([2, 3, 41, 30], 1, (4, 3), padding=[9, 2], stride=[1, 3], dilation=[5, 1]),
]


def is_wanted(case, dtype):
    """Each way to broadcast is compiled anew for each dtype, which is most of what testing it takes:
    so every one is tested in one dtype of 16 bits, and in one of more."""
    if case in SIZED:
        return DEVICE != "cpu" or SIZED.index(case) % len(BOUNDS) == list(BOUNDS).index(dtype)
    if case not in BROADCASTS:
        return True
    n = BROADCASTS.index(case)
    return (n // 2 + n) % 2 == (dtype in ("bfloat16", "float64"))


def each(dtypes):
    """For parametrize(): where most tests have kernels that are made quickly (tests/quick-c++.sh), those of float32
    are as for users nevertheless."""
    return [pytest.param(name, marks=as_shipped) if name == "float32" else name for name in dtypes]


# Where a function is not defined everywhere: what is made of normal random numbers.
DOMAINS = {
    "acos": lambda x: torch.tanh(x) * 0.95,
    "div": lambda x: x + torch.where(x < 0, -0.5, 0.5),
}


# Where a function is all but constant, so that what is left of it must not be a difference of large
# numbers: x from low to high. Not below -5 in float16, which has no numbers so small.
SATURATED = {name: ((4, 5), (-5, -4), (-12, -8)) for name in ("tanh", "sigmoid", "silu", "gelu", "elu")}


def resize_matrix(n_in, n_out, scale):
    """Rows of weights: what each output takes of the inputs, for src = dst / scale."""
    matrix = torch.zeros(n_out, n_in, dtype=torch.float64)
    for dst in range(n_out):
        src = Fraction(dst) / Fraction(scale)
        low = min(math.floor(src), n_in - 1)
        matrix[dst, low] += 1 - float(src - low)
        matrix[dst, min(low + 1, n_in - 1)] += float(src - low)
    return matrix


def upsample_bilinear2d(input, *, size, scale, mode):
    """Of "asymmetric", which PyTorch has not, ONNX's Resize says: x_original = x_resized / scale."""
    height, width = input.shape[2:]
    if mode == "asymmetric":
        scale = scale or [Fraction(size[0], height), Fraction(size[1], width)]
        size = size or [math.floor(height * scale[0]), math.floor(width * scale[1])]
        rows, columns = (resize_matrix(*a) for a in zip((height, width), size, scale))
        return rows @ input @ columns.T
    if size is None and mode == "align_corners":
        size = [math.floor(n * s) for n, s in zip(input.shape[2:], scale)]
    return F.interpolate(input, size, scale if size is None else None, "bilinear",
                         align_corners=mode == "align_corners")


def lltm(input, weights, bias, old_h, old_cell):
    gates = F.linear(torch.cat([old_h, input], 1), weights, bias)
    input_gate, output_gate, candidate = gates.chunk(3, 1)
    new_cell = old_cell + F.elu(candidate) * torch.sigmoid(input_gate)
    return torch.tanh(new_cell) * torch.sigmoid(output_gate), new_cell


def lltm_sequence(inputs, weights, bias, h0, c0, allow_tf32=False):
    h, c, hs = h0, c0, []
    for input in inputs:
        h, c = lltm(input, weights, bias, h, c)
        hs.append(h)
    nothing = torch.zeros([0, *h0.shape]) * (inputs.sum() + weights.sum() + bias.sum())
    return torch.stack(hs) if hs else nothing, h, c


def lltm_case(*input, state):
    """input: [B, I], or [T, B, I] of a sequence."""
    cells = [input[-2], state]
    return ([list(input), [3 * state, state + input[-1]], [3 * state], cells, cells], {})


RESIZES = [([2, 3, 8, 8], 2), ([1, 2, 9, 12], 0.5), ([1, 2, 9, 12], [0.34, 3.7]), ([1, 3, 7, 5], 2.5),
           ([1, 2, 5, 7], 1.5), ([1, 2, 11, 6], [0.7, 1.3]), ([2, 1, 1, 1], 3),
           ([1, 2, 13, 300], [1, 2]), ([1, 1, 6, 6], 12), ([0, 2, 4, 4], 2)]
SIZES = [([1, 2, 5, 7], [5, 7]), ([1, 2, 5, 7], [5, 8]), ([2, 2, 6, 9], [1, 1]), ([1, 2, 6, 9], [1, 20]),
         ([1, 2, 17, 23], [11, 31]), ([1, 1, 1, 9], [4, 3]), ([1, 2, 3, 700], [7, 601]),
         ([2, 3, 2, 3], [50, 64]), ([1, 1, 100, 90], [7, 11]), ([2, 0, 4, 4], [3, 3]),
         ([3, 7, 8, 16], [16, 32]), ([2, 1, 65, 33], [513, 259]), ([1, 2, 150, 96], [300, 192]),
         ([1, 2, 90, 160], [45, 80]), ([1, 1, 4, 3000], [9, 6000])]


RESIZED = [([shape], {"size": size, "mode": mode}) for shape, size, mode in [
    ([1, 90, 25, 34], [50, 68], "half_pixel"), ([2, 24, 65, 33], [129, 65], "align_corners"),
    ([4, 48, 60, 80], [30, 41], "asymmetric"), ([1, 2, 300, 400], [480, 640], "half_pixel"),
    ([1, 4, 4, 3000], [9, 6000], "align_corners"), ([2, 96, 7, 7], [33, 32], "half_pixel"),
    ([2, 3, 8, 30], [17, 140], "half_pixel"), ([1, 2, 9, 3], [42, 14], "half_pixel"),
    ([3, 3, 40, 64], [20, 33], "half_pixel"), ([1, 1, 3, 1000], [3, 998], "half_pixel"),
    ([1, 2, 3, 1201], [5, 3000], "half_pixel"), ([2, 7, 9, 12], [13, 12], "align_corners")]]
SIZED = CONVOLVED + RESIZED


def rms_norm(input, weight, *, eps):
    n = input * torch.rsqrt((input * input).mean(-1, keepdim=True) + eps)
    return n if weight is None else n * weight


ROWS = ([3, 33], [2, 3, 128], [700, 7], [5, 4099], [0, 4])


REFERENCES = {
    "softmax": (lambda x, *, dim: torch.softmax(x, dim), [([s], {}) for s in (*ROWS, [], [70001])]),
    "layer_norm": (
        lambda x, w, b, *, eps: F.layer_norm(x, x.shape[-1:], w, b, eps),
        [([s, s[-1:], s[-1:]], {"eps": 1e-3}) for s in (*ROWS, [2, 70001])],
    ),
    "rms_norm": (rms_norm, [([s, s[-1:]], {"eps": 1e-5}) for s in ROWS]),
    "mse_loss": (
        lambda x, y, *, reduction: F.mse_loss(*torch.broadcast_tensors(x, y), reduction=reduction),
        [([s, s], {"reduction": r}) for s in ([], [3, 7], [33, 901]) for r in ("none", "sum", "mean")]
        + [([[6, 1, 8], [5, 1]], {})],
    ),
    "sigmoid": elementwise(sigmoid),
    "tanh": elementwise(tanh),
    "relu": elementwise(torch.relu),
    "silu": elementwise(F.silu),
    "acos": elementwise(torch.acos),
    "elu": elementwise(F.elu, attrs=({}, {"alpha": 0.25}, {"alpha": -2})),
    "add": (torch.add, elementwise(torch.add, 2)[1] + BROADCASTS[::3]),
    "mul": (torch.mul, elementwise(torch.mul, 2)[1] + BROADCASTS),
    "sub": (torch.sub, elementwise(torch.sub, 2)[1] + BROADCASTS[::5]),
    "div": (torch.div, elementwise(torch.div, 2)[1] + BROADCASTS[::5]),
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
            # Rows of whole 16-byte blocks, as long as the output's.
            conv_case([2, 3, 10, 24], 1, (3, 3), padding=1),
            conv_case([1, 2, 9, 16], 2, (5, 5), padding=2),
            conv_case([2, 2, 13, 32], 1, (7, 7), padding=[0, 3]),
            conv_case([1, 3, 6, 8], 1, (3, 5), padding=[4, 2]),
            conv_case([2, 3, 7, 16], 1, (4, 1), padding=[1, 0]),
            conv_case([5, 4, 37, 67], 1, (3, 3), padding=1, bias=False),
            # Planes side by side, of odd sizes too, and parts of one.
            conv_case([7, 5, 7, 7], 1, (5, 5), padding=2),
            conv_case([3, 37, 7, 7], 1, (7, 7), padding=3),
            conv_case([3, 5, 14, 14], 1, (5, 5), padding=2),
            conv_case([2, 3, 15, 15], 2, (3, 3), padding=1),
            conv_case([1, 2, 57, 28], 1, (5, 5), padding=[6, 2]),
            conv_case([1, 2, 130, 304], 1, (3, 3), padding=1),
            conv_case([1, 1, 3, 9000], 1, (3, 3), padding=1),
            conv_case([3, 5, 15, 14], 1, (5, 5), padding=2, stride=2),
            conv_case([2, 3, 120, 60], 2, (3, 3), stride=[2, 1]),
            # Tiles of several images, of parts of one, and windows beyond 7 x 7.
            conv_case([9, 2, 28, 28], 1, (5, 5), padding=2),
            conv_case([20, 2, 7, 7], 1, (13, 13), padding=6),
            conv_case([2, 2, 30, 56], 1, (31, 31), padding=15),
            conv_case([1, 2, 140, 72], 1, (5, 3), padding=[2, 0]),
            conv_case([3, 2, 33, 40], 2, (3, 3), stride=2, padding=1),
            conv_case([2, 2, 26, 26], 1, (3, 3), dilation=12, padding=12),
            conv_case([2, 2, 40, 12], 1, (9, 9), stride=3, padding=7),
            conv_case([0, 3, 9, 9], 1, (3, 3)),  # an empty batch
            conv_case([2, 4, 6, 6], 1, (6, 6)),
            *CONVOLVED,
        ],
    ),
    "lltm": (
        lltm,
        [
            lltm_case(1, 1, state=1),
            lltm_case(2, 3, state=40),
            lltm_case(17, 70, state=5),
            lltm_case(33, 1, state=31),
            lltm_case(0, 3, state=4),
            lltm_case(4, 0, state=4),
            lltm_case(2, 3, state=0),
            lltm_case(70, 100, state=200),
            lltm_case(67, 264, state=504),
        ],
    ),
    "lltm_sequence": (
        lltm_sequence,
        [
            lltm_case(1, 1, 1, state=1),
            lltm_case(7, 3, 4, state=5),
            lltm_case(5, 2, 0, state=9),
            lltm_case(3, 0, 4, state=5),
            lltm_case(0, 3, 4, state=5),
            lltm_case(0, 0, 4, state=5),
            lltm_case(3, 2, 4, state=0),
            lltm_case(3, 2, 0, state=0),
            lltm_case(5, 135, 8, state=33),
            lltm_case(2, 3, 8, state=128),
            lltm_case(2, 2, 5, state=132),
        ],
    ),
    "upsample_bilinear2d": (
        upsample_bilinear2d,
        RESIZED
        + [
            ([shape], {how: value, "mode": mode})
            for mode in ("half_pixel", "align_corners", "asymmetric")
            for how, resizes in (("scale", RESIZES), ("size", SIZES))
            for shape, value in resizes
            if shape[1] > 0 or mode == "asymmetric"  # which PyTorch refuses
        ],
    ),
}


def add_last(name, *more):
    """NAME_nhwc: a third of the cases, with dimension 1 of the image as its last, and more."""
    reference, found = REFERENCES[name]

    def run(input, *others, **attrs):
        return reference(input.permute(0, 3, 1, 2), *others, **attrs).permute(0, 2, 3, 1)

    def move(case):
        shapes, attrs = case
        return [[shapes[0][0], *shapes[0][2:], shapes[0][1]], *shapes[1:]], attrs

    moved = [move(case) for case in [*found[::3], *more]]
    SIZED.extend(move(case) for case in found[::3] if case in SIZED)
    REFERENCES[f"{name}_nhwc"] = run, moved


# Channels of several blocks, of parts of one, of odd numbers.
add_last("depthwise_conv2d", conv_case([2, 36, 14, 9], 1, (3, 3), padding=1),
         conv_case([1, 65, 9, 30], 1, (5, 5), padding=2), conv_case([2, 100, 11, 8], 1, (7, 7), padding=3),
         conv_case([1, 72, 13, 17], 1, (3, 3), padding=1, stride=2), conv_case([1, 40, 14, 20], 1, (13, 13), padding=6),
         conv_case([2, 33, 8, 35], 1, (31, 31), padding=15), conv_case([1, 48, 9, 9], 1, (3, 15), padding=[1, 7]),
         conv_case([1, 34, 12, 12], 1, (4, 5), padding=2, dilation=2, stride=2),
         conv_case([2, 96, 56, 56], 1, (3, 3), padding=1), conv_case([1, 100, 40, 41], 1, (7, 7), padding=3),
         conv_case([1, 66, 90, 91], 1, (5, 5), padding=2, stride=2))  # fmt: skip
add_last("upsample_bilinear2d", *(([[n, c, h, w]], {"size": size, "mode": mode}) for n, c, h, w, size, mode in [
    (2, 64, 1, 1, [33, 33], "half_pixel"), (1, 40, 3, 2, [70, 31], "half_pixel"),
    (2, 21, 13, 13, [104, 104], "align_corners"), (1, 34, 4, 300, [5, 700], "half_pixel"),
    (1, 48, 30, 20, [13, 11], "asymmetric"), (2, 3, 31, 50, [17, 21], "half_pixel"),
    (1, 3, 9, 14, [20, 33], "align_corners")]))  # fmt: skip

# Operators that no row can describe, and where they are tested.
ELSEWHERE = {"sgd_step": "test_optimizers.py", "adam_step": "test_optimizers.py",
             "sgd_steps": "test_optimizers.py", "adam_steps": "test_optimizers.py",
             "pcl_loss": "test_pcl_loss.py"}

BOUNDS = {"float64": 1e-10, "float32": 1e-5, "bfloat16": 2e-2, "float16": 2e-3}


def relative_error(out, ref):
    """||out - ref|| / ||ref||, in float64; 0 where both are empty or zero."""
    assert out.shape == ref.shape, f"shape {tuple(out.shape)}, expected {tuple(ref.shape)}"
    difference = (out.double() - ref.double()).norm().item()
    size = ref.double().norm().item()
    if difference == 0:
        return 0.0
    return difference / size if size > 0 else math.inf
