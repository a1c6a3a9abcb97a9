"""opd at work: two filters over a picture, forward and backward, on the best device there is.

Starts a daemon on a socket of its own, sends it a picture, smooths it and finds its edges with
depthwise_conv2d, takes the gradient of the edges' energy with respect to picture and filters,
checks all of it against NumPy. Then edits an operator while the daemon serves it, and stops the
daemon.

Run it with `make demo`, or: PYTHONPATH=client/python python3 examples/demo.py
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

import opd

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "examples" / "cat.png"
OUT = ROOT / "build" / "demo"
PAD = 3  # half of the 7 x 7 filters


def make_filters(channels):
    """[2 * channels, 1, 7, 7]: for each channel a Gaussian and a vertical Sobel filter."""
    smooth = np.array([1, 6, 15, 20, 15, 6, 1]) / 64
    slope = np.array([-1, -4, -5, 0, 5, 4, 1]) / 32
    pair = np.stack([np.outer(smooth, smooth), np.outer(smooth, slope)])
    return np.tile(pair, (channels, 1, 1))[:, None].astype(np.float32)


def timed(call, repeat=20):
    """The result of `call`, the time of its first run, and the shortest of the next, both in ms."""
    times = []
    for _ in range(1 + repeat):
        began = time.perf_counter()
        result = call()
        times.append(1e3 * (time.perf_counter() - began))
    return result, times[0], min(times[1:])


def report(what, results, first, warm):
    shapes = ", ".join(str(list(r.shape)) for r in results)
    print(f"{what} -> {shapes}: {first:.0f} ms the first time, then {warm:.2f} ms")


# ---- the same in NumPy, in float64: the sum over the filter's places, each a shifted picture


def windows(x):
    """For each place (kh, kw) of the filter, the picture as that place sees it; zero outside."""
    height, width = x.shape[-2:]
    padded = np.pad(x, ((0, 0), (0, 0), (PAD, PAD), (PAD, PAD)))
    for kh in range(7):
        for kw in range(7):
            yield kh, kw, padded[..., kh : kh + height, kw : kw + width]


def numpy_forward(x, weight):
    return sum(weight[:, 0, kh, kw, None, None] * s.repeat(2, 1) for kh, kw, s in windows(x))


def numpy_backward(x, weight, grad):
    grad_weight = np.zeros_like(weight)
    for kh, kw, shifted in windows(x):
        grad_weight[:, 0, kh, kw] = (grad * shifted.repeat(2, 1)).sum((0, 2, 3))
    # Every pixel went into 49 outputs of two filters: the same sum, the filters turned round.
    turned = weight[:, :, ::-1, ::-1]
    spread = sum(turned[:, 0, kh, kw, None, None] * s for kh, kw, s in windows(grad))
    return spread[:, 0::2] + spread[:, 1::2], grad_weight


def numpy_gelu(x):
    return x / (1 + np.exp(-1.702 * x))


def check(name, got, want, bound=1e-5):
    error = np.linalg.norm(got - want) / np.linalg.norm(want)
    print(f"  {name:<12} off NumPy's in float64 by {error:.1e} of its norm (bound {bound:.0e})")
    if not error <= bound:
        sys.exit(f"demo: {name} is wrong")


# ---- showing it


def to_picture(x):
    """[C, H, W] -> 8-bit pixels; what has both signs is shown around grey."""
    if x.min() < -0.01:
        x = 0.5 + 0.5 * x / np.quantile(np.abs(x), 0.995)
    return (255 * np.clip(x, 0, 1) + 0.5).astype(np.uint8).transpose(1, 2, 0)


def save_pictures(pictures):
    OUT.mkdir(parents=True, exist_ok=True)
    for name, pixels in pictures.items():
        Image.fromarray(pixels).save(OUT / f"{name}.png")
    row = Image.fromarray(np.concatenate(list(pictures.values()), axis=1))
    row.save(OUT / "all.png")
    return row


def preview(row):
    """Two pixels a character: the upper half block's colour and its background."""
    width = min(shutil.get_terminal_size().columns, 200)
    height = max(2, row.height * width // row.width // 2 * 2)
    pixels = np.asarray(row.resize((width, height)))
    for upper, lower in zip(pixels[0::2], pixels[1::2]):
        for pair in zip(upper, lower):
            print("\x1b[38;2;%d;%d;%dm\x1b[48;2;%d;%d;%dm\u2580" % (*pair[0], *pair[1]), end="")
        print("\x1b[0m")


# ---- the demonstration


def run(client):
    picture = np.asarray(Image.open(PICTURE).convert("RGB"), dtype=np.float32) / 255
    picture = np.ascontiguousarray(picture.transpose(2, 0, 1)[None])  # [1, 3, H, W]
    filters = make_filters(3)
    x, w = client.tensor(picture), client.tensor(filters)
    print(f"picture {list(x.shape)}, filters {list(w.shape)}, {x.dtype}, on {x.device}")

    def forward():
        result = client.ops.depthwise_conv2d.forward(x, w, padding=PAD)
        client.synchronize()
        return result

    (y, ctx), first, warm = timed(forward)
    report("depthwise_conv2d forward", [y], first, warm)
    filtered = y.numpy()

    # The edges' energy is half the sum of their squares: its gradient is the edges themselves.
    grad = filtered.copy()
    grad[:, 0::2] = 0
    gy = client.tensor(grad)

    def backward():
        result = ctx.backward(gy, wanted=("input", "weight"))
        client.synchronize()
        return result

    grads, first, warm = timed(backward)
    gx, gw = grads[0].numpy(), grads[1].numpy()
    report("depthwise_conv2d backward", grads[:2], first, warm)

    z, first, warm = timed(lambda: client.ops.gelu(y, approximate="sigmoid"))
    report("gelu forward", [z], first, warm)

    compilers = client.status()["compilers"]
    print(f"kernels: {compilers['compiled']} compiled, {compilers['cache_hits']} from the cache")

    print("checks:")
    x64, w64 = picture.astype(np.float64), filters.astype(np.float64)
    want_gx, want_gw = numpy_backward(x64, w64, grad.astype(np.float64))
    check("output", filtered, numpy_forward(x64, w64))
    check("grad_input", gx, want_gx)
    check("grad_weight", gw, want_gw)
    check("gelu", z.numpy(), numpy_gelu(filtered.astype(np.float64)))

    row = save_pictures(
        {
            "1-input": to_picture(picture[0]),
            "2-smooth": to_picture(filtered[0, 0::2]),
            "3-edges": to_picture(filtered[0, 1::2]),
            "4-gradient": to_picture(gx[0]),
        }
    )
    print("picture, smoothed, edges, gradient of the edges' energy with respect to the picture:")
    if sys.stdout.isatty():
        preview(row)
    print(f"  {OUT / 'all.png'}")


# ---- an edit while it serves


def edit(client, folder):
    """Saves another softplus.cu: what is called next is the new one, with the same tensors."""
    path = Path(folder) / "softplus.cu"
    x = client.tensor(np.linspace(-2, 2, 5, dtype=np.float32))
    before = client.ops.softplus(x).numpy()
    text = path.read_text().replace("/ beta);", "/ beta + 1);", 1)
    path.with_suffix(".new").write_text(text)
    began = time.perf_counter()
    path.with_suffix(".new").rename(path)
    calls = 1
    while np.array_equal(after := client.ops.softplus(x).numpy(), before):
        calls += 1
        if time.perf_counter() - began > 30:
            sys.exit(f"demo: the edit is not served: {client.reload()}")
    took = 1e3 * (time.perf_counter() - began)
    version = client.ops.softplus.version
    print(f"softplus.cu edited: version {version} serves {took:.0f} ms after the file was saved;")
    print(f"  the version before answered the {calls - 1} calls meanwhile")
    check("softplus + 1", after, before.astype(np.float64) + 1)


def start_daemon(folder, socket):
    program = os.environ.get("OPD_BIN", str(ROOT / "build" / "opd"))
    with open(Path(folder) / "opd.log", "wb") as log:
        daemon = subprocess.Popen(
            [program, "--socket", socket, "--kernels", folder], stdout=subprocess.PIPE, stderr=log
        )
    if not daemon.stdout.readline().startswith(b"ready: "):
        sys.exit("demo: the daemon did not start:\n" + (Path(folder) / "opd.log").read_text())
    return daemon


def main():
    with tempfile.TemporaryDirectory(prefix="opd-demo-") as folder:
        shutil.copy(ROOT / "examples" / "softplus.cu", folder)
        daemon = start_daemon(folder, str(Path(folder) / "opd.sock"))
        client = opd.connect(socket=str(Path(folder) / "opd.sock"), start=False)
        try:
            status = client.status()
            for device in status["devices"]:
                print(f"opd {status['version']} serves {device['name']}: {device['model']}")
            run(client)
            edit(client, folder)
        finally:
            client.stop()
            daemon.wait(30)
            daemon.stdout.close()
    print("demo: ok, the daemon is stopped")


if __name__ == "__main__":
    main()
