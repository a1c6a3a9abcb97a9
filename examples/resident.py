"""A training run that never leaves the daemon: no PyTorch, no copy of anything but the loss.

A network of two hidden layers learns to tell the points of three spirals apart. Its parameters, its
gradients and Adam's moments are tensors of the daemon; the operators are opd's silu and adam_steps
and two of this folder, linear.cu and cross_entropy.cu. A step is thirteen calls, which are
captured once: each further step is one request. The parameters are named, so they outlive this
client: at the end another one attaches to them and classifies.

    PYTHONPATH=client/python python3 examples/resident.py
"""

import sys

import numpy as np

import opd
from _daemon import serve

WIDTHS = [2, 64, 64, 3]
# A replay takes the numbers of the capture. So late, Adam makes no correction for its start.
LATE = 1_000_000


def make_spirals(rng, n):
    """[3n, 2] points and [3n] classes."""
    t = 0.3 + np.sqrt(rng.random((3, n)))
    angle = 4 * t + 2 * np.pi / 3 * np.arange(3)[:, None] + 0.05 * rng.standard_normal((3, n))
    points = np.stack([t * np.cos(angle), t * np.sin(angle)], -1).reshape(-1, 2)
    return points.astype(np.float32), np.repeat(np.arange(3), n)


class Layer:
    """Two parameters, each with its name, and Adam's state for it."""

    def __init__(self, client, rng, index, inputs, outputs):
        weight = rng.standard_normal((outputs, inputs)) * np.sqrt(2 / inputs)
        arrays = {"weight": weight, "bias": np.zeros(outputs)}
        self.params = [
            client.tensor(a.astype(np.float32), name=f"spiral.{index}.{k}") for k, a in arrays.items()
        ]
        self.moments = [(client.zeros(p.shape), client.zeros(p.shape)) for p in self.params]


def forward(client, params, x):
    """Logits, and the contexts that backward needs."""
    contexts = []
    for i, (weight, bias) in enumerate(params):
        if i:
            x, ctx = client.ops.silu.forward(x)
            contexts.append(ctx)
        x, ctx = client.ops.linear.forward(x, weight, bias)
        contexts.append(ctx)
    return x, contexts


def train_step(client, layers, points, classes, one):
    """The loss, before the step."""
    x, contexts = forward(client, [layer.params for layer in layers], points)
    loss, ctx = client.ops.cross_entropy.forward(x, classes)
    grad = ctx.backward(one, wanted=("logits",))[0]
    grads = []
    for i in reversed(range(len(layers))):
        wanted = ("x", "weight", "bias") if i else ("weight", "bias")
        grad, *own = contexts.pop().backward(grad, wanted=wanted)
        grads = own + grads
        if i:
            grad = contexts.pop().backward(grad)[0]
    params = [p for layer in layers for p in layer.params]
    means, squares = zip(*(m for layer in layers for m in layer.moments))
    client.ops.adam_steps(params, grads, list(means), list(squares), lr=1e-2, step=LATE)
    return loss


def main():
    rng = np.random.default_rng(0)
    with serve() as client:
        points, classes = make_spirals(rng, 300)
        x, target = client.tensor(points), client.tensor(classes)
        one = client.tensor(np.float32(1))
        layers = [
            Layer(client, rng, i, *widths) for i, widths in enumerate(zip(WIDTHS, WIDTHS[1:]))
        ]
        with client.capture() as step:
            loss = train_step(client, layers, x, target, one)
        print(f"step   1: loss {float(loss.numpy()):.4f}")
        for done in range(50, 301, 50):
            with client.batch():  # one request a step, and nobody waits for one
                for _ in range(49 if done == 50 else 50):
                    step.replay()
            print(f"step {done:3d}: loss {float(loss.numpy()):.4f}")

        with opd.connect(socket=client.socket, start=False) as other:
            names = sorted(t["name"] for t in other.tensors())
            print("another client finds", ", ".join(names))
            params = [
                [other.attach(f"spiral.{i}.{k}") for k in ("weight", "bias")]
                for i in range(len(layers))
            ]
            logits, _ = forward(other, params, other.tensor(points))
            right = (logits.numpy().argmax(1) == classes).mean()
        print(f"and tells {100 * right:.1f} % of the points right")
        if right < 0.98:
            sys.exit("the spirals were not learnt")


if __name__ == "__main__":
    main()
