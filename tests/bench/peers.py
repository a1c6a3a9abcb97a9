"""What others have for the same, where they are on the machine: kernels in Triton, CuPy, cuDNN's LSTM.

make_peers(case, backward) gives {name: call}. Outputs are made once, so that all can be captured.
"""

import torch

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None
try:
    import cupy
except ImportError:
    cupy = None

if triton:
    # A row for each program, as Triton's tutorials have it.
    @triton.jit
    def softmax_row(y, x, n, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        row = tl.program_id(0).to(tl.int64) * n
        v = tl.load(x + row + at, mask=at < n, other=float("-inf")).to(tl.float32)
        e = tl.exp(v - tl.max(v, 0))
        tl.store(y + row + at, e / tl.sum(e, 0), mask=at < n)

    @triton.jit
    def layer_norm_row(y, x, w, b, n, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        row = tl.program_id(0).to(tl.int64) * n
        v = tl.load(x + row + at, mask=at < n, other=0.0).to(tl.float32)
        d = tl.where(at < n, v - tl.sum(v, 0) / n, 0.0)
        d = d * tl.rsqrt(tl.sum(d * d, 0) / n + 1e-5)
        d = d * tl.load(w + at, mask=at < n).to(tl.float32) + tl.load(b + at, mask=at < n).to(tl.float32)
        tl.store(y + row + at, d, mask=at < n)


CUPY = {"tanh": "tanh", "add": "add", "sub": "subtract", "mul": "multiply", "div": "divide",
        "add of a row": "add", "mul by a row": "multiply"}  # fmt: skip


def make_lstm(case, backward):
    inputs, _, _, h, c = case.inputs
    lstm = torch.nn.LSTM(inputs.shape[2], h.shape[1], device=inputs.device, dtype=inputs.dtype)
    if not backward:
        return lambda: lstm(inputs, (h[None], c[None]))
    leaves = [t.detach().clone().requires_grad_() for t in (inputs, h[None], c[None])]
    hs, (h, c) = lstm(leaves[0], (leaves[1], leaves[2]))
    outputs, wanted = (hs, h, c), [*leaves, *lstm.parameters()]
    grads = [torch.randn_like(t) for t in outputs]
    return lambda: torch.autograd.grad(outputs, wanted, grads, retain_graph=True)


def make_peers(case, backward):
    x = case.inputs[0]
    if not x.is_cuda:
        return {}
    found = {}
    if case.operator == "lltm_sequence":
        found["cuDNN's LSTM, which has 4 gates to 3"] = make_lstm(case, backward)
    if backward:
        return found
    if triton and case.operator in ("softmax", "layer_norm"):
        kernel = softmax_row if case.operator == "softmax" else layer_norm_row
        m, n = x.shape
        y, block = torch.empty_like(x), triton.next_power_of_2(n)
        warps = max(4, min(16, block // 512))
        found["Triton"] = lambda: kernel[(m,)](y, *case.inputs, n, BLOCK=block, num_warps=warps)
    if cupy and case.operator in CUPY and x.dtype != torch.bfloat16:
        function, arrays = getattr(cupy, CUPY[case.operator]), [cupy.asarray(t) for t in case.inputs]
        out = cupy.empty_like(arrays[0])

        def call():
            with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
                function(*arrays, out=out)

        found["CuPy"] = call
    return found
