"""An LLTM learns to repeat a sequence of bits, four steps later.

The recurrent cell of the "Custom C++ and CUDA extensions" tutorial, with the loop over time in the
daemon: one call of lltm_sequence for a whole sequence, one for its backward through time. The cell
alone is opd.torch.LLTM, with the arguments that the tutorial's module has; both give the same.

    PYTHONPATH=client/python python3 examples/lltm.py
"""

import sys

import torch

import opd.torch
from _daemon import serve

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
T, B, STATE, DELAY = 20, 64, 48, 4


class Echo(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = opd.torch.LLTM(1, STATE)
        self.read = torch.nn.Linear(STATE, 1)

    def forward(self, bits):  # [T, B, 1] -> [T, B, 1]
        zero = bits.new_zeros(bits.shape[1], STATE)
        hs, _, _ = opd.torch.ops.lltm_sequence(
            bits, self.cell.weights, self.cell.bias, zero, zero.clone()
        )
        return self.read(hs)

    def step_by_step(self, bits):
        """The same with the loop in Python."""
        state = (bits.new_zeros(bits.shape[1], STATE), bits.new_zeros(bits.shape[1], STATE))
        out = []
        for x in bits:
            state = self.cell(x, state)
            out.append(self.read(state[0]))
        return torch.stack(out)


def make_bits():
    return torch.randint(0, 2, (T, B, 1), device=DEVICE).float()


def main():
    with serve() as client:
        opd.torch.use(client)
        torch.manual_seed(0)
        model = Echo().to(DEVICE)
        print(model)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for step in range(401):
            bits = make_bits()
            said = model(2 * bits - 1)[DELAY:]
            loss = torch.nn.functional.binary_cross_entropy_with_logits(said, bits[:-DELAY])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if step % 50 == 0:
                right = ((said > 0) == (bits[:-DELAY] > 0.5)).float().mean()
                print(f"step {step:3d}: loss {loss.item():.4f}, {100 * right.item():.1f} % of the bits")
        with torch.no_grad():
            bits = 2 * make_bits() - 1
            whole, steps = model(bits), model.step_by_step(bits)
        off = (whole - steps).abs().max().item()
        print(f"one call for the sequence and one for each step differ by {off:.1e} at most")
        if right < 0.99 or off > 1e-4:
            sys.exit("the sequence was not learnt")


if __name__ == "__main__":
    main()
