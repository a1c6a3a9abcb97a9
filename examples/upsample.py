"""Bilinear up-sampling as TensorFlow 1.x did it, beside PyTorch's.

TensorFlow 1.x took the source of an output pixel at dst * in / out ("asymmetric"); PyTorch takes
(dst + 0.5) * in / out - 0.5 ("half_pixel"), or with align_corners=True dst * (in - 1) / (out - 1).
A network that was trained with the first and runs with the second sees its picture moved by up to
half a pixel of the small one. upsample_bilinear2d has all three.

Writes build/examples/upsample.png: a crop of the cat scaled by 4 in the first two ways, and their
difference.

    PYTHONPATH=client/python python3 examples/upsample.py
"""

import sys

import numpy as np
import torch
from PIL import Image

import opd.torch
from _daemon import OUT, ROOT, serve

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def tensorflow1(x, scale):
    """tf.compat.v1.image.resize_bilinear(align_corners=False) for [C, H, W], in float64."""

    def along(x, axis):
        n = x.shape[axis]
        source = np.arange(scale * n) * (n / (scale * n))
        low = np.floor(source).astype(int)
        high = np.minimum(low + 1, n - 1)
        part = (source - low).reshape([-1 if a == axis else 1 for a in range(x.ndim)])
        return x.take(low, axis) * (1 - part) + x.take(high, axis) * part

    return along(along(x.astype(np.float64), 1), 2)


def check(name, off, bound):
    print(f"{name}: largest difference {off:.1e}")
    if not off <= bound:
        sys.exit(f"expected at most {bound:.0e}")


def main():
    picture = np.asarray(Image.open(ROOT / "examples" / "cat.png").convert("RGB"), np.float32)
    crop = np.ascontiguousarray((picture / 255)[60:140, 120:220].transpose(2, 0, 1))
    with serve() as client:
        opd.torch.use(client)
        x = torch.from_numpy(crop)[None].to(DEVICE)
        legacy = opd.torch.UpsampleBilinear2d(scale_factor=4, mode="asymmetric")
        print(legacy)
        tensorflow = legacy(x)[0].cpu().numpy()
        modern = opd.torch.ops.upsample_bilinear2d(x, scale=4)[0].cpu().numpy()
        corners = opd.torch.ops.upsample_bilinear2d(x, scale=4, mode="align_corners")[0].cpu()
        interpolate = torch.nn.functional.interpolate
        theirs = interpolate(x, scale_factor=4, mode="bilinear")[0].cpu().numpy()
        aligned = interpolate(x, scale_factor=4, mode="bilinear", align_corners=True)[0].cpu()

    check("asymmetric, and TensorFlow 1.x", np.abs(tensorflow - tensorflow1(crop, 4)).max(), 1e-6)
    check("half_pixel, and PyTorch", np.abs(modern - theirs).max(), 1e-6)
    check("align_corners, and PyTorch", (corners - aligned).abs().max().item(), 5e-6)
    apart = np.abs(tensorflow - modern)
    print(f"asymmetric and half_pixel: up to {apart.max():.2f} of the range apart")

    difference = np.clip(0.5 + 2 * (tensorflow - modern), 0, 1)
    row = np.concatenate([tensorflow, modern, difference], axis=2).transpose(1, 2, 0)
    OUT.mkdir(parents=True, exist_ok=True)
    Image.fromarray((255 * np.clip(row, 0, 1) + 0.5).astype(np.uint8)).save(OUT / "upsample.png")
    print(f"TensorFlow 1.x, PyTorch, difference: {OUT / 'upsample.png'}")


if __name__ == "__main__":
    main()
