"""A network with opd's gelu as its activation, run eagerly and by torch.compile.

The points of two spirals are told apart by a small network. Nothing but the activation is opd's:
the published extension's x * sigmoid(1.702 x).

    PYTHONPATH=client/python python3 examples/gelu.py
"""

import math
import sys

import torch

import opd.torch
from _daemon import serve

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Gelu(torch.nn.Module):
    def forward(self, x):
        return opd.torch.ops.gelu(x, approximate="sigmoid")


def make_spirals(n):
    """[2n, 2] points and [2n] classes."""
    t = 0.5 + 2.5 * math.pi * torch.rand(n).sqrt()
    arm = torch.stack([t * t.cos(), t * t.sin()], 1) / 8 + 0.01 * torch.randn(n, 2)
    return torch.cat([arm, -arm]).to(DEVICE), torch.arange(2, device=DEVICE).repeat_interleave(n)


def train(points, classes, compiled):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(2, 64), Gelu(), torch.nn.Linear(64, 64), Gelu(), torch.nn.Linear(64, 2)
    ).to(DEVICE)
    run = torch.compile(model, fullgraph=True) if compiled else model
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(300):
        loss = torch.nn.functional.cross_entropy(run(points), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    right = (model(points).argmax(1) == classes).float().mean().item()
    return losses, right


def main():
    with serve() as client:
        opd.torch.use(client)
        torch.manual_seed(1)
        points, classes = make_spirals(500)
        eager, right = train(points, classes, compiled=False)
        print(f"eager:         loss {eager[0]:.3f} -> {eager[-1]:.4f}, {100 * right:.1f} % right")
        compiled, same = train(points, classes, compiled=True)
        print(f"torch.compile: loss {compiled[0]:.3f} -> {compiled[-1]:.4f}, {100 * same:.1f} % right")
        if right < 0.99 or same < 0.99 or abs(eager[9] - compiled[9]) > 1e-3:
            sys.exit("the spirals were not told apart, or differently")


if __name__ == "__main__":
    main()
