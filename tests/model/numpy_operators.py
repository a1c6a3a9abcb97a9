"""Operators in NumPy. Those of kernels/ are made so that a right result has one value, bit by bit; of
numbers for which it would not, the model says that it cannot tell. `near` ones of the operators that
opd comes with are compared within bounds.
"""

import math

import numpy as np

from model import Refused, Untold

FLOATS = ("float16", "float32", "float64")
ALL = ("bool", "uint8", "int8", "int16", "int32", "int64", *FLOATS, "bfloat16")


def tame(*arrays):
    """Nothing overflows, and no NaN comes of it."""
    for a in arrays:
        if a.dtype.kind == "f" and a.size and not np.abs(a).max() <= 100:
            raise Untold
    return arrays


def plain(*arrays):
    """Fourths up to 16: sums of products are exact in whatever order."""
    for a in arrays:
        if a.size > 4096 or (a.size and not (np.abs(a).max() <= 16 and (a * 4 == np.floor(a * 4)).all())):
            raise Untold
    return arrays


def reduce_to(array, shape):
    """The gradient of what was broadcast."""
    if array.shape == shape:
        return array
    array = array.sum(axis=tuple(range(array.ndim - len(shape))))
    axes = tuple(i for i, n in enumerate(shape) if n == 1)
    array = array.sum(axis=axes, keepdims=True).reshape(shape)
    if (array == 0).any():
        raise Untold  # the sign of zero hangs on the order
    return array


class Operator:
    """Its schema. run() is given arrays and attributes, and returns outputs, saved tensors, and what
    inputs become that are changed in place: {index: array}."""

    inputs = 1
    optional = 0  # so many of the last inputs may be absent
    outputs = 1
    saved = 0
    attrs = {}  # name: default
    dtypes = ("float32", "float64")
    in_place = ()
    view = False
    near = None  # the bound
    backward_reads = None  # names of operands, as "input 0", "output 1"; None: no backward
    version = 1

    def check(self, attrs, *inputs):
        """Of shapes. Refused."""
        if len({a.shape for a in inputs if a is not None}) > 1:
            raise Refused("invalid_argument", "shapes differ")

    def code(self, attrs, *inputs):
        """Of the error with which the device ends it, or None."""


class Relu(Operator):
    dtypes = FLOATS
    backward_reads = ("output 0",)

    def run(self, attrs, x):
        return [np.where(x < 0, x.dtype.type(0), x)], [], {}

    def grads(self, attrs, inputs, outputs, saved, grads):
        return [np.where(outputs[0] <= 0, grads[0].dtype.type(0), grads[0])]


class Add(Operator):
    inputs, dtypes, backward_reads = 2, FLOATS, ()

    def check(self, attrs, *inputs):
        try:
            np.broadcast_shapes(*(a.shape for a in inputs))
        except ValueError:
            raise Refused("invalid_argument", "do not broadcast") from None

    def run(self, attrs, a, b):
        tame(a, b)
        return [a + b], [], {}

    def grads(self, attrs, inputs, outputs, saved, grads):
        wide = plain(grads[0])[0].astype(np.float64)
        return [reduce_to(wide, a.shape).astype(a.dtype) for a in inputs]


class Mul(Add):
    backward_reads = ("input 0", "input 1")

    def run(self, attrs, a, b):
        tame(a, b)
        return [a * b], [], {}

    def grads(self, attrs, inputs, outputs, saved, grads):
        a, b, grad = (v.astype(np.float64) for v in plain(*inputs, grads[0]))
        return [reduce_to(grad * b, a.shape).astype(inputs[0].dtype),
                reduce_to(grad * a, b.shape).astype(inputs[0].dtype)]  # fmt: skip


class Flatten(Operator):
    dtypes, view = ALL, True

    def run(self, attrs, x):
        return [x.reshape(-1)], [], {}


class Grow(Operator):
    dtypes, outputs, in_place = ("int32", "int64", "float32"), 0, (0,)
    attrs = {"by": 1, "rounds": 0}

    def run(self, attrs, x):
        tame(x)
        with np.errstate(over="ignore"):
            return [], [], {0: x + np.array(attrs["by"]).astype(x.dtype)}


class Trade(Operator):
    inputs, outputs, in_place = 2, 0, (0, 1)
    dtypes = ("uint8", "int16", "int64", "float16", "float64")

    def run(self, attrs, x, y):
        return [], [], {0: y, 1: x}


class Mix(Operator):
    inputs, optional, outputs, saved, attrs = 2, 1, 2, 1, {"k": 1}
    backward_reads = ("output 1",)

    def run(self, attrs, x, b):
        k = x.dtype.type(attrs["k"])
        plain(x, *([] if b is None else [b]))
        return [x * k + (0 if b is None else b), 2 * x], [x + k], {}

    def grads(self, attrs, inputs, outputs, saved, grads):
        plain(saved[0], *grads)
        tame(outputs[1])
        return [grads[0] * saved[0] + 2 * grads[1], grads[0] + outputs[1]]


class Refuse(Operator):
    in_place = (0,)

    def run(self, attrs, x):
        tame(x)
        twice = np.where(x >= 0, 2 * x, x)
        return [twice], [], {0: twice}

    def code(self, attrs, x):
        return "invalid_argument" if (x < 0).any() else None


class Fault(Operator):
    dtypes, attrs, in_place = ("float32",), {"kind": "none"}, (0,)

    def check(self, attrs, x):
        if x.ndim != 1 or len(x) < 64:
            raise Refused("invalid_argument", "expected at least 64 elements")
        if len(x) > 64:
            raise Untold

    def run(self, attrs, x):
        tame(x)
        return [x + 1], [], {0: x}

    def code(self, attrs, x):
        return {"none": None, "hang": "deadline_exceeded"}.get(attrs["kind"], "kernel_fault")


class Turn(Operator):
    """Its file is edited: the factor is the version's."""

    dtypes, backward_reads = ("float32",), ()

    def __init__(self, version, factor):
        self.version, self.factor = version, np.float32(factor)

    def run(self, attrs, x):
        tame(x)
        return [x * self.factor], [], {}

    def grads(self, attrs, inputs, outputs, saved, grads):
        tame(grads[0])
        return [grads[0] * self.factor]


class Near1(Operator):
    """An operator of one input, near to a function of numbers."""

    dtypes = FLOATS

    def __init__(self, function):
        self.function = np.vectorize(function, otypes=[np.float64])
        self.near = 1e-5

    def run(self, attrs, x):
        tame(x)
        self.near = {2: 2e-3, 4: 1e-5, 8: 1e-9}[x.itemsize]
        if x.size > 4096:
            raise Untold
        wide = x.astype(np.float64)
        return [self.function(wide) if x.size else wide], [], {}


class Square(Operator):
    """A formula's, and its derivatives': products of two inputs, or twice those, added up."""

    def __init__(self, *products, times=2):
        self.products, self.times = products, times
        self.inputs = 1 + max(i for pair in products for i in pair)
        self.backward_reads = tuple(f"input {i}" for i in range(self.inputs))

    def check(self, attrs, *inputs):
        if len({a.shape for a in inputs}) > 1:
            raise Untold  # they broadcast

    def run(self, attrs, *inputs):
        plain(*inputs)
        parts = [inputs[i] * inputs[k] for i, k in self.products]
        if len(parts) > 1 and (sum(parts) == 0).any():
            raise Untold  # the sign of zero hangs on the order
        return [self.times * (parts[0] if len(parts) == 1 else sum(parts))], [], {}

    def grads(self, attrs, inputs, outputs, saved, grads):
        plain(*inputs, grads[0])
        made = [np.zeros_like(a) for a in inputs]
        for i, k in self.products:
            made[i] = made[i] + self.times * grads[0] * inputs[k]
            made[k] = made[k] + self.times * grads[0] * inputs[i]
        if any((a == 0).any() for a in made):
            raise Untold
        return made


OPERATORS = {
    "relu": Relu(), "add": Add(), "mul": Mul(), "flatten": Flatten(), "grow": Grow(), "trade": Trade(),
    "mix": Mix(), "refuse": Refuse(), "fault": Fault(),
    "sigmoid": Near1(lambda x: 1 / (1 + math.exp(-x))), "tanh": Near1(math.tanh),
    "square": Square((0, 0), times=1), "square.backward": Square((0, 1)), "square.tangent": Square((0, 1)),
    "square.backward.tangent": Square((0, 3), (1, 2)),
}  # fmt: skip
