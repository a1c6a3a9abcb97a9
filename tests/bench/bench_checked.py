"""What checked builds cost on a GPU: every shipped operator, dtype and direction, checked and as it is: bench_checked.py

The time of a run on the device, as `opctl trace` has it: medians of --turns runs each, in turn. Both must give the same
bits, and the checked one must report nothing; what does not is told below the table, and ends with status 1.
"""

import argparse
import math
import statistics
import sys
import threading
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "functional")]

from conftest import DEVICE, Daemon  # noqa: E402
from raw import Raw, RpcError  # noqa: E402

N = 1 << 24
WAYS = [{}, {"debug": True}]
THREADS = 8
ZEROS = ["pcl_loss"]  # whose floats are numbers of classes, too
RANDOM = np.random.default_rng(0).uniform(-2, 2, 1 << 16)

# What is timed: shapes of the inputs, attributes beside the last example's; of the others that example.
SHAPES = {
    **{name: ([[N]], {}) for name in "acos elu gelu relu sigmoid silu tanh".split()},
    **{name: ([[N], [N]], {}) for name in "add sub mul div mse_loss".split()},
    "adam_step": ([[N]] * 4, {"step": 1}),
    "sgd_step": ([[N]] * 3, {"momentum": 0.9}),
    "softmax": ([[N >> 10, 1 << 10]], {}),
    "layer_norm": ([[N >> 10, 1 << 10], [1 << 10], [1 << 10]], {}),
    "rms_norm": ([[N >> 10, 1 << 10], [1 << 10]], {}),
    "depthwise_conv2d": ([[32, 144, 56, 56], [144, 1, 3, 3], [144]], {"padding": [1, 1]}),
    "upsample_bilinear2d": ([[8, 32, 128, 128]], {"size": [256, 256]}),
    "lltm": ([[256, 512], [1536, 1024], [1536], [256, 512], [256, 512]], {}),
}


def values(dtype, n, zeros):
    """As bytes; of integers zeros, for they may be indices."""
    if zeros or "float" not in dtype:
        return bytes(n * (2 if dtype == "bfloat16" else np.dtype(dtype).itemsize))
    drawn = np.resize(RANDOM, n)
    if dtype == "bfloat16":
        return (drawn.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return drawn.astype(dtype).tobytes()


class Subject(Raw):
    """A connection with the inputs of an operator."""

    def __init__(self, socket, info, dtype, example):
        super().__init__(socket)
        self.info, self.dtype, self.attrs, self.ids = info, dtype, example["attrs"], 0
        self.backward = info["has_backward"] and "float" in dtype
        self.made = []  # (id, dtype, how many elements)
        self.inputs = [[self.put(m) for m in given] if isinstance(given, list) else self.put(given)
                       for given in example["inputs"]]  # fmt: skip

    def new_id(self):
        self.ids += 1
        return self.ids

    def put(self, given):
        if given is None:
            return None
        dtype = self.dtype if given["dtype"] == self.info["dtypes"][0] else given["dtype"]
        self.made.append((self.new_id(), dtype, math.prod(given["shape"])))
        self.call("tensor_new", self.ids, dtype, given["shape"])
        return self.ids

    def fill(self):
        """Anew, for some are changed in place."""
        for id, dtype, n in self.made:
            if n:
                self.call("tensor_write", id, 0, values(dtype, n, self.info["name"] in ZEROS))

    def run(self, way):
        """Forward, and backward where there is one; the ids of what they made."""
        outputs, context = [self.new_id() for _ in self.info["outputs"]], self.new_id()
        options = {**WAYS[way], **({"context": context} if self.backward else {})}
        self.call("forward", self.info["name"], self.inputs, self.attrs, outputs, options)
        if not self.backward:
            return outputs
        wanted = [id and spec["differentiable"] and self.new_id() or None
                  for id, spec in zip(self.inputs, self.info["inputs"])]  # fmt: skip
        self.call("backward", context, outputs, wanted, WAYS[way])  # gradients as the outputs are
        self.call("free", "context", [context])
        return outputs + [id for id in wanted if id]

    def bits(self, way):
        self.fill()
        ids = self.run(way) + [id for id, *_ in self.made]
        return [self.call("tensor_read", id, 0) for id in ids]


def large(info):
    """What is timed, as an example."""
    last = info["examples"][-1]
    if info["name"] not in SHAPES:
        return last
    shapes, attrs = SHAPES[info["name"]]
    return {"attrs": {**last["attrs"], **attrs}, "inputs": [{"dtype": info["dtypes"][0], "shape": shape} for shape in shapes]
            + [None] * (len(info["inputs"]) - len(shapes))}  # fmt: skip


def compare(socket, info, dtype, times):
    """What is wrong, a line each. Compiles what is timed later."""
    for number, example in enumerate(info["examples"], 1):
        with Subject(socket, info, dtype, example) as subject:
            try:
                if subject.bits(0) != subject.bits(1):
                    yield f"{info['name']}, {dtype}, example {number}: other bits"
            except RpcError as error:
                yield f"{info['name']}, {dtype}, example {number}: {error}"
    if times:
        with Subject(socket, info, dtype, large(info)) as subject:
            subject.run(0), subject.run(1)


def compare_all(socket, subjects, times):
    left, wrong = list(reversed(subjects)), []

    def work():
        while left:
            try:
                info, dtype = left.pop()
                wrong.extend(compare(socket, info, dtype, times))
            except Exception as error:
                wrong.append(f"{info['name']}, {dtype}: {error!r}")

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


def seconds(client, daemon, info, dtype, turns):
    """{direction: [of it as it is, checked]}: medians."""
    with client.trace() as trace, Subject(daemon.socket, info, dtype, large(info)) as subject:
        for turn in range(turns):
            for way in (0, 1):
                made = subject.run(way)
                subject.call("free", "tensor", made)
        want = turns * 2 * (1 + subject.backward)
        runs = []
        while len(runs) < want:
            runs += [run for run in trace.read() if run["op"].split(".")[0] == info["name"]]
    found = {}
    for direction in ("forward", "backward"):
        times = [run["seconds"] for run in runs if run["direction"] == direction and run["kernels"]]
        if times:
            found[direction] = [statistics.median(times[0::2]), statistics.median(times[1::2])]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default=DEVICE)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--only", help="operators, with commas between")
    parser.add_argument("--no-times", action="store_true", help="the bits alone, of every example")
    args = parser.parse_args()
    daemon = Daemon("--spare", "off", device=args.device)
    with daemon.connect() as client, Raw(daemon.socket) as raw:
        infos = [i for i in raw.call("op_list") if not args.only or i["name"] in args.only.split(",")]
        subjects = [(info, dtype) for info in infos for dtype in info["dtypes"]]
        wrong = compare_all(daemon.socket, subjects, not args.no_times)
        print("| operator | dtype | forward, µs | checked | backward, µs | checked |\n|---|---|---|---|---|---|")
        for info, dtype in [] if args.no_times else subjects:
            found = seconds(client, daemon, info, dtype, args.turns)
            cells = [f"{found[d][0] * 1e6:.0f} | {found[d][1] / found[d][0]:.2f}" if d in found else "| "
                     for d in ("forward", "backward")]  # fmt: skip
            print(f"| {info['name']} | {dtype} | {' | '.join(cells)} |", flush=True)
    daemon.stop()
    print(f"\n{len(subjects)} operators and dtypes, every example: {len(wrong)} wrong", *wrong, sep="\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
