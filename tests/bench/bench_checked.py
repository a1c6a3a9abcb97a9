"""What checked builds cost on a GPU: every shipped operator, dtype and direction, checked and as it is: bench_checked.py

The time of a run on the device, as `opctl trace` has it: medians of --turns runs each, in turn. Both must give the same
bits, and the checked one must report nothing; what does not is told below the table, and ends with status 1.

Where compute-sanitizer is in $PATH or /usr/local/cuda/bin, a daemon runs under its memcheck, and the same calls as they
are take their time there, too. --quick: one dtype of each operator, few turns; about two minutes.
"""

import argparse
import math
import os
import re
import shutil
import statistics
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "functional")]

from conftest import DEVICE, PROGRAM, Daemon  # noqa: E402
from raw import Raw, RpcError  # noqa: E402

SANITIZER = shutil.which("compute-sanitizer", path=f"{os.environ.get('PATH', '')}:/usr/local/cuda/bin")
PLAIN, CHECKED = 0, 1
WAYS = [{}, {"debug": True}]
THREADS = 8
ZEROS = ["pcl_loss"]  # whose floats are numbers of classes, too
RANDOM = np.random.default_rng(0).uniform(-2, 2, 1 << 16)


def shapes(n):
    """What is timed: shapes of the inputs, attributes beside the last example's; of the others that example."""
    return {
        **{name: ([[n]], {}) for name in "acos elu gelu relu sigmoid silu tanh".split()},
        **{name: ([[n], [n]], {}) for name in "add sub mul div mse_loss".split()},
        "adam_step": ([[n]] * 4, {"step": 1}),
        "sgd_step": ([[n]] * 3, {"momentum": 0.9}),
        "softmax": ([[n >> 10, 1 << 10]], {}),
        "layer_norm": ([[n >> 10, 1 << 10], [1 << 10], [1 << 10]], {}),
        "rms_norm": ([[n >> 10, 1 << 10], [1 << 10]], {}),
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


PIECE = 16 << 20  # bytes of a message, of which the daemon takes 64 MiB


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
                data = values(dtype, n, self.info["name"] in ZEROS)
                for at in range(0, len(data), PIECE):
                    self.call("tensor_write", id, at, data[at : at + PIECE])

    def read(self, id):
        size, data = self.call("tensor_info", id)["bytes"], b""
        while len(data) < size:
            data += self.call("tensor_read", id, len(data), min(PIECE, size - len(data)))
        return data

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
        return [self.read(id) for id in ids]


def large(info, n):
    """What is timed, as an example."""
    last = info["examples"][-1]
    if info["name"] not in shapes(n):
        return last
    sizes, attrs = shapes(n)[info["name"]]
    return {"attrs": {**last["attrs"], **attrs}, "inputs": [{"dtype": info["dtypes"][0], "shape": size} for size in sizes]
            + [None] * (len(info["inputs"]) - len(sizes))}  # fmt: skip


def compare(socket, info, dtype, n):
    """What is wrong, a line each. Compiles what is timed later."""
    for number, example in enumerate(info["examples"], 1):
        with Subject(socket, info, dtype, example) as subject:
            try:
                if subject.bits(0) != subject.bits(1):
                    yield f"{info['name']}, {dtype}, example {number}: other bits"
            except RpcError as error:
                yield f"{info['name']}, {dtype}, example {number}: {error}"
    if n:
        with Subject(socket, info, dtype, large(info, n)) as subject:
            subject.run(PLAIN), subject.run(CHECKED)


def compare_all(socket, subjects, n):
    left, wrong = list(reversed(subjects)), []

    def work():
        while left:
            try:
                info, dtype = left.pop()
                wrong.extend(compare(socket, info, dtype, n))
            except Exception as error:
                wrong.append(f"{info['name']}, {dtype}: {error!r}")

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


def seconds(client, daemon, info, dtype, args, ways):
    """{direction: [of each way]}: medians."""
    with client.trace() as trace, Subject(daemon.socket, info, dtype, large(info, args.size)) as subject:
        for _ in range(args.turns):
            for way in ways:
                made = subject.run(way)
                subject.call("free", "tensor", made)
        want = args.turns * len(ways) * (1 + subject.backward)
        runs = []
        while len(runs) < want:
            runs += [run for run in trace.read() if run["op"].split(".")[0] == info["name"]]
    found = {}
    for direction in ("forward", "backward"):
        times = [run["seconds"] for run in runs if run["direction"] == direction and run["kernels"]]
        if times:
            found[direction] = [statistics.median(times[k :: len(ways)]) for k in range(len(ways))]
    return found


def start_sanitized(device):
    """A daemon all of whose processes run under memcheck; None where that is not to be had."""
    if not SANITIZER or not device.startswith("cuda"):
        return None
    folder = Path(tempfile.mkdtemp(prefix="opd-memcheck-"))
    program = folder / "opd"
    program.write_text(f'#!/bin/sh\nexec {SANITIZER} --tool memcheck --target-processes all --log-file {folder}/log '
                       f'{Path(PROGRAM).resolve()} "$@"\n')  # fmt: skip
    program.chmod(0o755)
    try:
        daemon = Daemon("--spare", "off", "--deadline", "120", device=device, program=str(program))
        daemon.memcheck = folder
        return daemon
    except AssertionError as error:
        print(f"no daemon under {SANITIZER}: {error}")
        return None


def stop_sanitized(daemon):
    """Who was started is the tool: the daemon is asked."""
    with daemon.connect() as client:
        client.stop()
    daemon.process.wait(60)
    daemon.process.stdout.close()
    said = (daemon.memcheck / "log").read_text() if (daemon.memcheck / "log").exists() else ""
    kinds = re.compile("ERROR SUMMARY|Program hit|Invalid|Misaligned")
    told = {line.lstrip("= ") for line in said.splitlines() if kinds.search(line)}
    print("\nmemcheck:", *sorted(told), sep="\n")
    shutil.rmtree(daemon.memcheck)
    shutil.rmtree(daemon.folder)


def row(found, beside):
    """Of one operator and dtype: the plain time, and what the others take in times of it."""
    cells = []
    for direction in ("forward", "backward"):
        plain, checked = found.get(direction, (0, 0))
        cells += [f"{plain * 1e6:.0f}", f"{checked / plain:.2f}"] if plain else ["", ""]
        cells += [f"{beside[direction][0] / plain:.1f}"] if plain and direction in beside else [""]
    return " | ".join(cells)


def report(args, subjects, daemon, sanitized):
    print("| operator | dtype | forward, µs | checked | memcheck | backward, µs | checked | memcheck |")
    print("|---|---|---|---|---|---|---|---|")
    for info, dtype in subjects:
        if info["outputs"] and all(output["view"] for output in info["outputs"]):
            continue  # nothing runs
        with daemon.connect() as client:
            found, beside = seconds(client, daemon, info, dtype, args, [PLAIN, CHECKED]), {}
        if sanitized:
            try:
                with sanitized.connect() as client:
                    beside = seconds(client, sanitized, info, dtype, args, [PLAIN])
            except Exception as error:
                print(f"{info['name']}, {dtype}, memcheck: {error!r}")
        print(f"| {info['name']} | {dtype} | {row(found, beside)} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default=DEVICE)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--size", type=int, default=1 << 24, help="elements of what is timed")
    parser.add_argument("--only", help="operators, with commas between")
    parser.add_argument("--quick", action="store_true", help="one dtype of each, of 2^22 elements, three turns")
    parser.add_argument("--no-times", action="store_true", help="the bits alone, of every example")
    args = parser.parse_args()
    if args.quick:
        args.turns, args.size = min(args.turns, 3), min(args.size, 1 << 22)
    daemon = Daemon("--spare", "off", device=args.device)
    with Raw(daemon.socket) as raw:
        infos = [i for i in raw.call("op_list") if not args.only or i["name"] in args.only.split(",")]
    subjects = [(i, dtype) for i in infos for dtype in (i["dtypes"] if not args.quick else
                ["float32"] if "float32" in i["dtypes"] else i["dtypes"][:1])]  # fmt: skip
    wrong = compare_all(daemon.socket, subjects, 0 if args.no_times else args.size)
    if not args.no_times:
        sanitized = start_sanitized(args.device)
        report(args, subjects, daemon, sanitized)
        if sanitized:
            stop_sanitized(sanitized)
    daemon.stop()
    print(f"\n{len(subjects)} operators and dtypes, every example: {len(wrong)} wrong", *wrong, sep="\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
