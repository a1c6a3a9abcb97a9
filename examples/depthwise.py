"""A depthwise layer learns a filter from what the filter makes of a picture.

The picture is convolved with a known 5 x 5 filter for each channel. A layer that starts from
random weights sees the picture and the result, and finds the filter by gradient descent: the model
and the loop are plain PyTorch, the layer is opd's.

    PYTHONPATH=client/python python3 examples/depthwise.py
"""

import sys

import numpy as np
import torch
from PIL import Image

import opd.torch
from _daemon import ROOT, serve

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def load_picture():
    """[1, 3, H, W] in 0 to 1."""
    pixels = np.asarray(Image.open(ROOT / "examples" / "cat.png").convert("RGB"), np.float32)
    return torch.from_numpy(pixels / 255).permute(2, 0, 1)[None].contiguous().to(DEVICE)


def make_filters():
    """[3, 1, 5, 5]: an edge finder for red, a blur for green, a sharpener for blue."""
    blur = np.outer([1, 4, 6, 4, 1], [1, 4, 6, 4, 1]) / 256
    edge = np.outer([1, 4, 6, 4, 1], [-1, -2, 0, 2, 1]) / 48
    sharp = -blur
    sharp[2, 2] += 2
    return torch.tensor(np.stack([edge, blur, sharp])[:, None], dtype=torch.float32, device=DEVICE)


def main():
    with serve() as client:
        opd.torch.use(client)
        torch.manual_seed(0)
        picture, filters = load_picture(), make_filters()
        target = torch.nn.functional.conv2d(picture, filters, padding=2, groups=3)
        # Neighbouring pixels are nearly equal, so the filter's directions are learnt at very
        # different speeds; differences of pixels are less alike, and both sides may be seen so.
        step = torch.tensor([[[[1.0, -1.0], [-1.0, 1.0]]]], device=DEVICE).expand(3, 1, 2, 2)
        whiten = lambda x: 8 * torch.nn.functional.conv2d(x, step, groups=3)
        x, want = whiten(picture), whiten(target)[..., 2:-2, 2:-2]

        layer = opd.torch.DepthwiseConv2d(3, kernel_size=5, device=DEVICE)
        print(layer)
        optimizer = torch.optim.LBFGS(layer.parameters(), line_search_fn="strong_wolfe")

        def loss():
            optimizer.zero_grad()
            value = (layer(x) - want).square().mean()
            value.backward()
            return value

        for epoch in range(12):
            value = optimizer.step(loss).item()
            off = (layer.weight - filters).abs().max().item()
            print(f"step {epoch:2d}: loss {value:.2e}, largest error of a weight {off:.1e}")
        if not off < 1e-3:
            sys.exit("the filter was not found")
        print("the filter is found: red's is")
        print(np.array2string(layer.weight[0, 0].detach().cpu().numpy(), precision=3, suppress_small=True))


if __name__ == "__main__":
    main()
