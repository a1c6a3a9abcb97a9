"""Tensors of other layouts, dtypes and classes than opd's: the error says which one of whose, and what to do."""

import warnings

import pytest
import torch
from torch.testing import assert_close
from torch_fixtures import device, draw, ops, run_fresh, torch_daemon  # noqa: F401

import opd
import opd.torch


def nest(x, layout):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is a prototype
        return torch.nested.nested_tensor([x[:2], x], layout=layout, device=x.device)


NESTED = r"a nested tensor; expected a plain one: call it with each of {0}.unbind\(\), or with {0}.to_padded_tensor"
UNFIT = {
    "nested": (lambda x: nest(x, torch.strided), NESTED),
    "jagged": (lambda x: nest(x, torch.jagged), NESTED),
    "sparse": (lambda x: x.to_sparse(), r"torch.sparse_coo; expected a dense tensor: {0}.to_dense\(\)"),
    "csr": (lambda x: x.to_sparse_csr(), r"torch.sparse_csr; expected a dense tensor: {0}.to_dense\(\)"),
    "complex": (lambda x: x.to(torch.complex64), r"torch.complex64; expected one of .*view_as_real\({0}\) has"),
    "fp8": (lambda x: x.to(torch.float8_e4m3fn), "torch.float8_e4m3fn; expected one of .*float64$"),
}


@pytest.mark.parametrize("isolated", (False, True))
@pytest.mark.parametrize("kind", UNFIT)
def test_unfit_tensors_are_refused_by_name(ops, draw, kind, isolated):
    make, text = UNFIT[kind]
    x = draw(3, 4, dtype=torch.float32)
    unfit, leaf = make(x), x.clone().requires_grad_()
    wanting = make(x).requires_grad_()
    for _ in range(3):
        ops.gelu(leaf).sum().backward()  # so that calls of plain tensors run here
    with opd.torch.options(isolated=isolated):
        for name, label, call in (
            ("gelu", "x", lambda: ops.gelu(unfit)),
            ("gelu", "x", lambda: torch.ops.opd.gelu(unfit)),
            ("gelu", "x", lambda: ops.gelu(wanting)),
            ("depthwise_conv2d", "weight", lambda: ops.depthwise_conv2d(x[None, None], unfit)),
            ("marks", "x", lambda: ops.marks(unfit)),
            ("step_down", "grad", lambda: ops.step_down(x.clone(), unfit)),
            ("flatten", "self", lambda: ops.flatten(unfit)),
            ("axpys", r"xs\[1\]", lambda: ops.axpys([x.clone(), x.clone()], [x, unfit])),
            ("glus", r"gates\[0\]", lambda: ops.glus([leaf], [wanting], leaf)),
        ):
            with pytest.raises(opd.InvalidArgument, match=f"^{name}: {label} is {text.format(label)}"):
                call()
        # Some of PyTorch's compilers put it into an error of their own.
        with pytest.raises((opd.InvalidArgument, RuntimeError), match=f"gelu: x is {text.format('x').rstrip('$')}"):
            torch.compile(lambda t: ops.gelu(t), backend="eager")(unfit)


@pytest.mark.parametrize("isolated", (False, True))
def test_a_sparse_gradient_is_refused(ops, draw, isolated):
    x = draw(3, 4, dtype=torch.float32).requires_grad_()
    gate = torch.ones_like(x)
    for _ in range(3):
        ops.gelu(x).sum().backward()
        ops.glus([x], [gate], gate)[0][0].sum().backward()
    with opd.torch.options(isolated=isolated):
        for name, y in (("gelu", ops.gelu(x)), ("glus", ops.glus([x], [gate], gate)[0][0])):
            text = f"^{name}: a gradient that came to its backward is torch.sparse_coo; expected a dense tensor: it.to_"
            with pytest.raises(opd.InvalidArgument, match=text):
                y.backward(torch.ones_like(y).to_sparse())


def test_nested_tensors_under_transforms(ops, draw):
    jagged = nest(draw(3, 4), torch.jagged)
    for transform in (torch.vmap, torch.func.grad, torch.func.jacrev):
        with pytest.raises(opd.InvalidArgument, match=f"^gelu: x is {NESTED.format('x')}"):
            transform(lambda t: ops.gelu(t).sum())(jagged)


def test_what_a_nested_tensor_is_told_to_do(ops, draw):
    x = draw(3, 4)
    for layout in (torch.strided, torch.jagged):
        nested = nest(x, layout)
        assert_close([ops.gelu(t) for t in nested.unbind()], [ops.gelu(x[:2]), ops.gelu(x)])
        assert_close(ops.gelu(nested.to_padded_tensor(0.0))[0, :2], ops.gelu(x[:2]))


class Plain(torch.Tensor):
    pass


class Asked(torch.Tensor):
    seen = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


class Refusing(torch.Tensor):
    """Of a class that takes nothing."""

    @staticmethod
    def __new__(cls, x):
        return torch.Tensor._make_wrapper_subclass(cls, x.shape, dtype=x.dtype, device=x.device)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return NotImplemented


class Breaking(Refusing):
    """Of one that takes all, and has a mistake."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*args, 1 + "1")


def test_the_error_of_a_class_is_its_own(ops, draw):
    x = draw(3, 4)
    for call in (lambda: ops.gelu(Breaking(x)), lambda: ops.scales([Breaking(x.float())], torch.tensor(1.0))):
        with pytest.raises(TypeError, match="unsupported operand"):
            call()


def test_classes_of_tensors(ops, draw):
    x = draw(3, 4)
    for _ in range(3):
        made = ops.gelu(x.as_subclass(Plain))
        assert type(made) is Plain
        assert_close(made.as_subclass(torch.Tensor), ops.gelu(x))
        Asked.seen.clear()
        assert type(ops.gelu(x.as_subclass(Asked))) is Asked
        assert any("gelu" in str(func) for func in Asked.seen)
        for call in (lambda: ops.gelu(Refusing(x)), lambda: ops.scales([Refusing(x.float())], torch.tensor(1.0))):
            with pytest.raises(opd.InvalidArgument, match="^(gelu|scales): one of its tensors is a Refusing, whose class"):
                call()


DISTRIBUTED = """
import torch, torch.distributed as dist, opd.torch
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.experimental import local_map
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
x = distribute_tensor(torch.randn(4, 3), init_device_mesh("cpu", (1,)), [Shard(0)])
for given in (x, x.clone().requires_grad_()):
    try:
        opd.torch.ops.gelu(given)
    except opd.InvalidArgument as e:
        assert "gelu: one of its tensors is a DTensor, whose class" in str(e) and "to_local(), or use local_map()" in str(e)
    else:
        raise SystemExit("it was taken")
    local = opd.torch.ops.gelu(given.to_local())
    mapped = local_map(opd.torch.ops.gelu, out_placements=[Shard(0)])(given)
    assert torch.equal(mapped.to_local(), local)
dist.destroy_process_group()
print("done")
"""


def test_a_distributed_tensor(run_fresh):
    assert "done" in run_fresh(DISTRIBUTED)
