"""The daemon's operators for PyTorch: tensors of torch in and out, differentiable.

    y = opd.torch.ops.gelu(x, approximate="tanh")

Every operator of the daemon is there, and as torch.ops.opd.gelu, registered with torch.library when
it is first used, so it works under torch.compile, no_grad, inference_mode and autocast. A tensor on
the CPU is computed by the daemon's device `cpu` if it has one, else by its first device; a CUDA
tensor by the daemon's device that is the same card, in place.

The first call of each version, dtypes, shapes and attributes runs in the daemon; later ones in this
process, on torch's current stream, without waiting. options(isolated=True), or OPD_ISOLATED=1, has
all of them run in the daemon, False, or 0, none. A torch older than 2.10 runs all there. What a kernel
on CUDA found wrong is raised by a later call, or by synchronize().

A process has one connection, which its threads take turns on; a forked child opens its own. When
it is lost, the call that finds out raises opd.ConnectionLost, and the next one connects again.
`with options(deadline=60):` is for what client.ops take beside an operator's arguments.

Sizes may stay open, as under torch.compile(dynamic=True), mark_dynamic and torch.export with a Dim.
torch.export.load() finds operators of opd; before torch.jit.load() call register(). In an ONNX model
(torch.onnx.export(dynamo=True)) they are ONNX's own nodes where it has them.

Under autocast, an operator does as PyTorch's of its kind, by the `autocast` line of its file; without
one, floating inputs that must have one dtype get the widest of theirs.

Operators of formulas are differentiated to any order and in forward mode, and work under torch.func;
so do those with `linear` lines in their files. Others have first derivatives, and refuse more by
name. Under torch.vmap a batch is one call where the operator takes it, else a loop.
"""

from ._inproc import synchronize
from ._interface import InterfaceChanged
from ._layers import LLTM, DepthwiseConv2d, PCLLoss, UpsampleBilinear2d
from ._namespace import register
from ._ops import ops, refresh, use
from ._options import options
from ._session import release

__all__ = [
    "LLTM",
    "DepthwiseConv2d",
    "InterfaceChanged",
    "PCLLoss",
    "UpsampleBilinear2d",
    "ops",
    "options",
    "refresh",
    "register",
    "release",
    "synchronize",
    "use",
]
