"""What an edit takes to its first result on a GPU with its first run checked and without: bench_first_run.py --device cuda:0

From the rename of the file to the first reply of the new version, of two daemons that take turns.
"""

import argparse
import os
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "reload")]

from compilers import edited  # noqa: E402
from conftest import DEVICE, Daemon  # noqa: E402
from edits import Caller, put  # noqa: E402

KERNELS = ROOT / "kernels_src"
WHICH = ["plain", "checked"]
SECONDS = 60


def salted(text):
    """With a comment in every kernel, which the driver's compiler sees too."""
    return re.sub(r"(__global__ [^;{]*\{)", r'\1\n    asm volatile("// " SALT);', text)


def changed(text):
    """Code that neither opd nor the driver has seen."""
    if "1.702" in text:
        return edited(text)
    return text.replace("#include", f'#define SALT "{os.urandom(8).hex()}"\n#include', 1)


# name: shapes of the inputs, attributes
CASES = {
    "gelu": ([[1000]], {}),
    "depthwise_conv2d": ([[1, 8, 56, 56], [8, 1, 3, 3], None], {"padding": [1, 1]}),
}


class Bench:
    def __init__(self, device, name, which, folder):
        self.name, self.path = name, folder / f"{name}.cu"
        self.text = (KERNELS / self.path.name).read_text()
        for header in KERNELS.glob(f"{name.split('_')[0]}*.cuh"):
            put(folder / header.name, salted(header.read_text()))
        put(self.path, changed(self.text))
        options = ["--kernels", str(folder), "--cache", str(folder / "cache"), "--first-run", which]
        self.daemon = Daemon(*options, device=device)
        self.caller = Caller(self.daemon.socket)
        shapes, self.attrs = CASES[name]
        self.inputs = [shape and self.caller.new_id() for shape in shapes]
        for id, shape in zip(self.inputs, shapes):
            if shape:
                self.caller.make(id, "float32", shape, np.ones(shape, "float32").tobytes())
        self.version()

    def version(self):
        """That serves: runs it, and waits for it."""
        y = self.caller.new_id()
        reply = self.caller.call("forward", self.name, self.inputs, self.attrs, [y], {})
        self.caller.call("free", "tensor", [y])
        return reply["version"]

    def edit(self):
        old, new = self.version(), self.path.with_name(".new")
        new.write_text(changed(self.text))
        start = time.perf_counter()
        new.rename(self.path)
        while self.version() == old:
            if time.perf_counter() - start > SECONDS:
                raise TimeoutError(self.daemon.read_log())
            time.sleep(0.0003)
        return time.perf_counter() - start

    def close(self):
        self.caller.close()
        self.daemon.stop()


def measure(device, name, turns):
    with tempfile.TemporaryDirectory(prefix="opd-bench-") as root:
        benches = {}
        for which in WHICH:
            (folder := Path(root) / which).mkdir()
            benches[which] = Bench(device, name, which, folder)
        times = {which: [] for which in WHICH}
        for _ in range(turns + 2):
            for which, bench in benches.items():
                times[which].append(bench.edit())
        for bench in benches.values():
            bench.close()
    return [times[which][2:] for which in WHICH]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default=DEVICE)
    parser.add_argument("--turns", type=int, default=24)
    args = parser.parse_args()
    print("| edit to first result, ms: median (worst) | plain | checked | ratio |\n|---|---|---|---|")
    for name in CASES:
        times = measure(args.device, name, args.turns)
        cells = [f"{1e3 * statistics.median(t):.1f} ({1e3 * max(t):.0f})" for t in times]
        ratio = statistics.median(times[1]) / statistics.median(times[0])
        print(f"| {name}, float32 | {' | '.join(cells)} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
