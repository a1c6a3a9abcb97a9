"""sgd_step and adam_step against torch.optim, several steps of each."""

import numpy as np
import pytest
import torch
from references import each

import opd

STEPS = 5
SHAPES = [(1003,), (7, 33), (4096,), (), (0,)]
BOUNDS = {"float64": 1e-13, "float32": 2e-6, "bfloat16": 2e-2, "float16": 2e-3}


def test_one_tensor_for_two_arguments(client):
    """It cannot be two states at once; nor can a part of it."""
    param, grad, both = (client.zeros([8], dtype="float32") for _ in range(3))
    expected = "adam_step: exp_avg and exp_avg_sq are changed in place and share memory"
    for second in (both, both.view([8], offset=0)):
        with pytest.raises(opd.InvalidArgument, match=expected):
            client.ops.adam_step(param, grad, both, second, step=1, lr=0.1)
    whole = client.zeros([12], dtype="float32")
    with pytest.raises(opd.InvalidArgument, match=expected):
        client.ops.adam_step(param, grad, whole.view([8], offset=0), whole.view([8], offset=4), step=1, lr=0.1)
    whole = client.zeros([16], dtype="float32")
    client.ops.adam_step(param, grad, whole.view([8], offset=0), whole.view([8], offset=8), step=1, lr=0.1)
    empty = client.zeros([0], dtype="float32")
    client.ops.adam_step(empty, empty, empty, empty, step=1, lr=0.1)


def random(shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def check(tensor, ref, dtype):
    found, ref = tensor.numpy().astype(np.float64), ref.detach().double().numpy()
    assert found.shape == ref.shape
    error = np.linalg.norm(found - ref)
    size = max(np.linalg.norm(ref), 1 if ref.ndim == 0 else 0)  # one number may end near 0
    assert error <= BOUNDS[dtype] * size, f"error {error:.2e}"


class Resident:
    """A parameter in the daemon and its float64 twin in PyTorch, with the same gradients."""

    def __init__(self, client, shape, dtype, optimizer, **options):
        self.client, self.dtype, self.shape = client, dtype, shape
        self.kind = getattr(torch, dtype)
        start = random(shape, 0).to(self.kind)
        self.tensor = client.tensor(start, dtype=dtype)
        self.twin = torch.nn.Parameter(start.double())
        self.optimizer = optimizer([self.twin], **options)

    def buffer(self, dtype=None):
        return self.client.zeros(list(self.shape), dtype=dtype or self.dtype)

    def step(self, n):
        """PyTorch's; returns the gradient for the daemon's."""
        grad = random(self.shape, n + 1).to(self.kind)
        self.twin.grad = grad.double()
        self.optimizer.step()
        return self.client.tensor(grad, dtype=self.dtype)

    def check(self):
        check(self.tensor, self.twin, self.dtype)


@pytest.mark.parametrize("dtype", each(BOUNDS))
@pytest.mark.parametrize("options", (
    {},
    {"weight_decay": 0.1},
    {"momentum": 0.9},
    {"momentum": 0.9, "weight_decay": 0.1, "nesterov": True},
    {"momentum": 0.7, "dampening": 0.3, "maximize": True},
), ids=str)
def test_sgd(client, dtype, options):
    for shape in SHAPES:
        p = Resident(client, shape, dtype, torch.optim.SGD, lr=0.05, **options)
        buffers = [p.buffer()] if "momentum" in options else []
        for n in range(STEPS):
            grad = p.step(n)
            assert client.ops.sgd_step(p.tensor, grad, *buffers, lr=0.05, first=n == 0, **options) is None
            p.check()
        if buffers:
            check(buffers[0], p.optimizer.state[p.twin]["momentum_buffer"], dtype)


def test_sgd_buffer_of_zeros_is_a_first_step(client):
    p = Resident(client, (50,), "float64", torch.optim.SGD, lr=0.05, momentum=0.9)
    buffer = p.buffer()
    for n in range(STEPS):
        client.ops.sgd_step(p.tensor, p.step(n), buffer, lr=0.05, momentum=0.9)
        p.check()


def test_sgd_first_step_ignores_what_the_buffer_held(client):
    param, grad = client.zeros([3]), client.tensor(np.ones(3, np.float32))
    buffer = client.tensor(np.full(3, np.nan, np.float32))
    client.ops.sgd_step(param, grad, buffer, lr=0.5, momentum=0.9, first=True)
    assert param.numpy().tolist() == [-0.5] * 3
    assert buffer.numpy().tolist() == [1] * 3


@pytest.mark.parametrize("dtype", each(BOUNDS))
@pytest.mark.parametrize("decoupled", (False, True))
@pytest.mark.parametrize("options", (
    {},
    {"weight_decay": 0.1},
    {"betas": (0.7, 0.95), "eps": 1e-3, "maximize": True},
), ids=str)
def test_adam(client, dtype, decoupled, options):
    optimizer = torch.optim.AdamW if decoupled else torch.optim.Adam
    options = {"weight_decay": 0.0, **options}
    ours = dict(options)
    if "betas" in ours:
        ours["beta1"], ours["beta2"] = ours.pop("betas")
    for shape in SHAPES:
        p = Resident(client, shape, dtype, optimizer, lr=0.01, **options)
        state = "float32" if dtype == "float16" else dtype
        average, square = p.buffer(state), p.buffer(state)
        for n in range(STEPS):
            client.ops.adam_step(p.tensor, p.step(n), average, square, step=n + 1, lr=0.01,
                                 decoupled=decoupled, **ours)
            p.check()
        check(average, p.optimizer.state[p.twin]["exp_avg"], dtype)
        check(square, p.optimizer.state[p.twin]["exp_avg_sq"], dtype)


@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
def test_16_bit_state(client, dtype):
    """State may have 16 bits as well: exact to what a rounding each step costs."""
    p = Resident(client, (500,), dtype, torch.optim.Adam, lr=0.01)
    average, square = p.buffer(), p.buffer()
    sgd = Resident(client, (500,), dtype, torch.optim.SGD, lr=0.01, momentum=0.9)
    momentum = sgd.buffer("float32")
    for n in range(STEPS):
        client.ops.adam_step(p.tensor, p.step(n), average, square, step=n + 1, lr=0.01)
        client.ops.sgd_step(sgd.tensor, sgd.step(n), momentum, lr=0.01, momentum=0.9)
        p.check()
        sgd.check()


def test_views_that_begin_anywhere(client):
    """Kernels that take 16 bytes at a time must notice, whichever tensor it is."""
    values = [random([64], n).float().numpy() for n in range(4)]
    values[3] = np.abs(values[3])
    results = []
    for odd in (None, 0, 1, 2, 3):
        whole = [client.tensor(np.concatenate([np.zeros(int(k == odd), np.float32), v]))
                 for k, v in enumerate(values)]
        views = [t.view([64], offset=int(k == odd)) for k, t in enumerate(whole)]
        client.ops.adam_step(*views, step=3)
        client.ops.sgd_step(*views[:3], lr=0.1, momentum=0.5)
        results.append([v.numpy() for v in views])
    for result in results[1:]:
        for a, b in zip(result, results[0]):
            assert np.allclose(a, b, rtol=1e-6, atol=1e-7)


def test_errors(client):
    x = client.zeros([4])
    double = client.zeros([4], dtype="float64")
    for call, match in (
        (lambda: client.ops.sgd_step(x, x, lr=0.1, momentum=0.9), "there is no momentum_buffer"),
        (lambda: client.ops.sgd_step(x, x, x, lr=0.1), "but momentum is 0"),
        (lambda: client.ops.sgd_step(x, x, lr=-1), "lr is -1, expected at least 0"),
        (lambda: client.ops.sgd_step(x, x, x, lr=1, momentum=0.9, nesterov=True, dampening=0.5),
         "nesterov with momentum 0.9 and dampening 0.5"),
        (lambda: client.ops.sgd_step(x, x, double, lr=1, momentum=0.9),
         r"momentum_buffer is float64 \[4\], param is float32 \[4\]; expected the same dtype"),
        (lambda: client.ops.sgd_step(x, client.zeros([5]), lr=1), "grad"),
        (lambda: client.ops.adam_step(x, x, double, double, step=1), r"exp_avg is float64 \[4\]"),
        (lambda: client.ops.adam_step(x, x, x, x, step=0), "it counts from 1"),
        (lambda: client.ops.adam_step(x, x, x, x, step=1, beta2=1), "beta2 is 1; expected"),
    ):
        with pytest.raises(opd.InvalidArgument, match=match):
            call()


# --- over lists

LISTS = [*SHAPES, *[(n % 7 + 1, n % 5) for n in range(200)]]  # more than a launch takes


class Residents:
    """Parameters in the daemon and their twins in PyTorch, which takes a step over the list as well."""

    def __init__(self, client, dtype, optimizer, **options):
        self.all = [Resident(client, shape, dtype, torch.optim.SGD, lr=0) for shape in LISTS]
        self.twins = [p.twin for p in self.all]
        self.optimizer = optimizer(self.twins, foreach=True, **options)
        self.params = [p.tensor for p in self.all]

    def buffers(self, dtype=None):
        return [p.buffer(dtype) for p in self.all]

    def step(self, n):
        grads = []
        for i, p in enumerate(self.all):
            grad = random(p.shape, 1000 * n + i).to(p.kind)
            p.twin.grad = grad.double()
            grads.append(p.client.tensor(grad, dtype=p.dtype))
        self.optimizer.step()
        return grads

    def check(self, tensors, refs):
        """All together: of one number the error says little."""
        dtype = self.all[0].dtype
        found = np.concatenate([t.numpy().astype(np.float64).ravel() for t in tensors])
        ref = np.concatenate([r.detach().double().numpy().ravel() for r in refs])
        error = np.linalg.norm(found - ref) / np.linalg.norm(ref)
        assert error <= BOUNDS[dtype], f"error {error:.2e}"
        assert [t.shape for t in tensors] == [tuple(r.shape) for r in refs]


@pytest.mark.parametrize("dtype", each(BOUNDS))
@pytest.mark.parametrize("options", (
    {"weight_decay": 0.1},
    {"momentum": 0.9, "weight_decay": 0.1, "nesterov": True},
), ids=str)
def test_sgd_of_lists(client, dtype, options):
    """As torch.optim.SGD(foreach=True)."""
    p = Residents(client, dtype, torch.optim.SGD, lr=0.05, **options)
    buffers = [p.buffers()] if "momentum" in options else []
    for n in range(2):
        client.ops.sgd_steps(p.params, p.step(n), *buffers, lr=0.05, first=n == 0, **options)
    p.check(p.params, p.twins)
    if buffers:
        p.check(buffers[0], [p.optimizer.state[t]["momentum_buffer"] for t in p.twins])


@pytest.mark.parametrize("dtype", each(BOUNDS))
@pytest.mark.parametrize("decoupled", (False, True))
def test_adam_of_lists(client, dtype, decoupled):
    """As torch.optim.Adam(foreach=True), and AdamW."""
    optimizer = torch.optim.AdamW if decoupled else torch.optim.Adam
    p = Residents(client, dtype, optimizer, lr=0.01, weight_decay=0.1)
    state = "float32" if dtype == "float16" else dtype
    averages, squares = p.buffers(state), p.buffers(state)
    for n in range(2):
        client.ops.adam_steps(p.params, p.step(n), averages, squares, step=n + 1, lr=0.01, weight_decay=0.1,
                              decoupled=decoupled)
    p.check(p.params, p.twins)
    p.check(averages, [p.optimizer.state[t]["exp_avg"] for t in p.twins])
    p.check(squares, [p.optimizer.state[t]["exp_avg_sq"] for t in p.twins])


def test_lists_are_what_single_tensors_are(client):
    """Bit by bit, wherever views begin."""
    shapes = [(64,), (3, 5), (1000,), (0,)]
    for odd in (0, 1):
        sets = []
        for _ in range(2):
            whole = [[client.tensor(np.abs(random([n + odd], k).float().numpy())) for s in shapes
                      for n in [int(np.prod(s))]] for k in range(4)]
            sets.append([[t.view(s, offset=odd) for t, s in zip(ts, shapes)] for ts in whole])
        client.ops.adam_steps(*sets[0], step=3)
        client.ops.sgd_steps(*sets[0][:3], lr=0.1, momentum=0.5)
        for tensors in zip(*sets[1]):
            client.ops.adam_step(*tensors, step=3)
            client.ops.sgd_step(*tensors[:3], lr=0.1, momentum=0.5)
        for a, b in zip(sets[0], sets[1]):
            assert [x.numpy().tobytes() for x in a] == [x.numpy().tobytes() for x in b]


def test_errors_of_lists(client):
    x, y, double = client.zeros([4]), client.zeros([5]), client.zeros([4], dtype="float64")
    for call, match in (
        (lambda: client.ops.sgd_steps([x, y], [x], lr=1), "grads has 1 tensor, params has 2; expected as many"),
        (lambda: client.ops.sgd_steps([x, y], [x, x], lr=1), r"at \[1\]: grads is float32 \[4\], params is float32 \[5\]"),
        (lambda: client.ops.sgd_steps([x, double], [x, x], lr=1),
         r"sgd_steps: params\[1\] has dtype float64, params\[0\] has float32; expected one dtype"),
        (lambda: client.ops.sgd_steps([x, y, x], [x, y, x], lr=1), r"params\[0\] and params\[2\] are changed in place"),
        (lambda: client.ops.sgd_steps([x], [x], momentum=0.9, lr=1), "there are no momentum_buffers"),
        (lambda: client.ops.adam_steps([x], [x], [y], [y], step=0), "it counts from 1"),
    ):
        with pytest.raises(opd.InvalidArgument, match=match):
            call()
