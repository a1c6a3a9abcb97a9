"""The same small convolutional net with opd's layers and with PyTorch's, on handwritten digits.

Both begin with the same weights and see the same batches, in turns; nothing but the layers differs.
Each epoch prints the mean loss and the time of a step of both. The losses must agree to 4 digits in
every epoch.

Writes build/examples/train.png: losses and times. Needs scikit-learn, whose 1,797 digits of 8 x 8
pixels it reads, and matplotlib.

    PYTHONPATH=client/python python3 examples/train.py
"""

import statistics
import sys
import time

import matplotlib
import torch
from sklearn.datasets import load_digits
from torch import nn

import opd.torch
from _daemon import OUT, serve

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EPOCHS, BATCH, CHANNELS = 6, 50, 16


class Torchs:
    """PyTorch's layers."""

    name = "PyTorch"
    Depthwise = staticmethod(lambda c: nn.Conv2d(c, c, 3, padding=1, groups=c))
    Enlarge = staticmethod(lambda: nn.Upsample(scale_factor=2, mode="bilinear"))
    gelu = staticmethod(lambda x: nn.functional.gelu(x, approximate="tanh"))
    silu = staticmethod(nn.functional.silu)


class Opds:
    """opd's: the same names, parameters and results."""

    name = "opd"
    Depthwise = staticmethod(lambda c: opd.torch.DepthwiseConv2d(c, 3, padding=1, bias=True))
    Enlarge = staticmethod(lambda: opd.torch.UpsampleBilinear2d(scale_factor=2))
    gelu = staticmethod(lambda x: opd.torch.ops.gelu(x, approximate="tanh"))
    silu = staticmethod(lambda x: opd.torch.ops.silu(x))


class Block(nn.Module):
    """Depthwise, then pointwise; added to what came."""

    def __init__(self, layers, channels):
        super().__init__()
        self.gelu = layers.gelu
        self.depthwise = layers.Depthwise(channels)
        self.pointwise = nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        return x + self.pointwise(self.gelu(self.depthwise(x)))


class Net(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.silu = layers.silu
        self.enlarge = layers.Enlarge()
        self.stem = nn.Conv2d(1, CHANNELS, 3, stride=2, padding=1)
        self.blocks = nn.Sequential(Block(layers, CHANNELS), Block(layers, CHANNELS))
        self.head = nn.Linear(CHANNELS * 4 * 4, 10)

    def forward(self, x):
        x = self.blocks(self.silu(self.stem(self.enlarge(x))))
        return self.head(nn.functional.max_pool2d(self.silu(x), 2).flatten(1))


class Run:
    """A net in training, and what is kept of it."""

    def __init__(self, layers, weights=None):
        torch.manual_seed(0)
        self.name = layers.name
        self.net = Net(layers).to(DEVICE)
        if weights:
            self.net.load_state_dict(weights)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=3e-3)
        self.losses, self.seconds = [], []

    def train(self, batches):
        """An epoch: its mean loss, and the median time of a step."""
        for x, y in batches:
            begin = time.perf_counter()
            loss = nn.functional.cross_entropy(self.net(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.losses.append(loss.item())  # waits for the device
            self.seconds.append(time.perf_counter() - begin)
        n = len(batches)
        return statistics.mean(self.losses[-n:]), statistics.median(self.seconds[-n:])

    @torch.no_grad()
    def score(self, x, y):
        return (self.net(x).argmax(1) == y).float().mean().item()


def load():
    """Training and test data: pictures [N, 1, 8, 8] in 0 to 1, and classes [N]."""
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32, device=DEVICE)[:, None] / 16
    y = torch.tensor(digits.target, device=DEVICE)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    train, test = order[:1500], order[1500:]
    return (x[train], y[train]), (x[test], y[test])


def make_batches(x, y, seed):
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed)).to(x.device)
    return [(x[rows], y[rows]) for rows in order.split(BATCH)]


def draw(runs, path):
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    torchs, opds = runs
    left.plot(torchs.losses, linewidth=4, alpha=0.4, label=torchs.name)
    left.plot(opds.losses, linewidth=1, color="black", label=opds.name)
    left.set(xlabel="step", ylabel="loss", yscale="log", title="loss of each batch")
    for run, color in zip(runs, ("C0", "black")):
        times = [1e3 * s for s in run.seconds]
        label = f"{run.name}, median {statistics.median(times):.1f} ms"
        right.plot(times, ".", markersize=3, color=color, label=label)
    right.set(xlabel="step", ylabel="milliseconds", yscale="log", title=f"time of a step, {DEVICE}")
    for axes in (left, right):
        axes.legend()
        axes.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)


def main():
    torch.set_num_threads(1)  # a net this small is slower on more
    torch.backends.cudnn.allow_tf32 = False  # opd computes float32 in float32
    agree = True
    with serve() as client:
        opd.torch.use(client)
        train, test = load()
        torchs = Run(Torchs)
        opds = Run(Opds, torchs.net.state_dict())
        opds.net(test[0][:BATCH]).sum().backward()  # compiles the kernels
        print("epoch   loss: PyTorch      opd   step, ms: PyTorch    opd")
        for epoch in range(EPOCHS):
            batches = make_batches(*train, seed=epoch)
            (loss, seconds), (ours, our_seconds) = torchs.train(batches), opds.train(batches)
            print(f"{epoch:5d}{loss:16.4f}{ours:9.4f}{1e3 * seconds:20.2f}{1e3 * our_seconds:7.2f}")
            agree = agree and abs(ours - loss) < 1e-4 * loss
        scores = [run.score(*test) for run in (torchs, opds)]
    print("right on new digits: " + ", ".join(f"{100 * score:.1f} %" for score in scores))
    draw((torchs, opds), OUT / "train.png")
    print(f"losses and times: {OUT / 'train.png'}")
    if not agree or min(scores) < 0.9:
        sys.exit("the losses are not equal to 4 digits, or the digits were not learnt")


if __name__ == "__main__":
    main()
