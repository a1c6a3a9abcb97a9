"""What the tests of reloading share: operator files to edit, and a daemon that serves them."""

import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "functional"))

from conftest import PATIENCE  # noqa: E402
from raw import Raw  # noqa: E402

SETTLE = 0.6  # after which what is not noticed will not be

HEAD = """\
//! op      {name}(Tensor x) -> Tensor y
//! dtypes  {dtypes}
//! shape   x [N]
//! shape   y [N]
//! example x=[8]
//
//! forward
//!   kernel  run
"""
BACKWARD = """\
//! backward grad_x
//!   kernel  run_backward
"""
KERNEL = """
extern "C" __global__ void run(const scalar_t *x, scalar_t *y, int N)
{{
    CUDA_KERNEL_LOOP(i, N)
        y[i] = x[i] * {factor};
}}
"""
BACKWARD_KERNEL = """
extern "C" __global__ void run_backward(const scalar_t *grad_y, scalar_t *grad_x, int N)
{{
    CUDA_KERNEL_LOOP(i, N)
        grad_x[i] = grad_y[i] * {factor};
}}
"""


def scale(factor, name="scale", dtypes="float32", before="", backward=False):
    """The text of an operator: y = x * factor, and so its gradient. `before`: its kernels."""
    head = HEAD + BACKWARD if backward else HEAD
    kernels = KERNEL + BACKWARD_KERNEL if backward else KERNEL
    text = head.format(name=name, dtypes=dtypes) + before
    return text + kernels.format(factor=factor)


def broken(name="scale", word="no_such_name"):
    """The same, with a name that there is not."""
    return scale(word, name)


def put(path, text):
    """Saves at once, as most editors do."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.write_text(text)
    new.rename(path)


class Result:
    def __init__(self, reply, values):
        self.version = reply["version"]
        self.warnings = reply.get("warnings", [])
        self.value = float(values[0])
        assert (values == values[0]).all()


class Caller(Raw):
    """A connection with tensors of ones."""

    def __init__(self, path):
        super().__init__(path)
        self.ids = 0
        self.ones = {}

    def new_id(self):
        self.ids += 1
        return self.ids

    def one(self, dtype="float32", n=8):
        if (dtype, n) not in self.ones:
            self.ones[dtype, n] = self.new_id()
            self.make(self.ones[dtype, n], dtype, [n], np.ones(n, dtype).tobytes())
        return self.ones[dtype, n]

    def run(self, op="scale", dtype="float32", n=8, attrs=None, **options):
        """Calls an operator of one input with ones."""
        y = self.new_id()
        x = self.one(dtype, n)
        reply = self.call("forward", op, [x], attrs or {}, [y], options)
        data = self.call("tensor_read", y, 0)
        self.call("free", "tensor", [y])
        return Result(reply, np.frombuffer(data, dtype))

    def versions(self, op="scale"):
        """Newest first: [(2, "serving"), (1, "retired")]."""
        return [(v["version"], v["state"]) for v in self.call("op_info", op)["versions"]]

    def has(self, op):
        return any(o["name"] == op for o in self.call("op_list"))


class Site(Caller):
    """A daemon with its folders of operators, and a connection to it."""

    def __init__(self, start_daemon, root, files, folders, options):
        self.root = root
        self.folder = root / folders[0]
        for folder in folders:
            (root / folder).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            self.save(name, text)
        named = [word for f in folders for word in ("--kernels", str(root / f))]
        self.daemon = start_daemon(*named, *options)
        super().__init__(self.daemon.socket)

    def path(self, name):
        """Of "scale.cu" in the first folder, or of "other/scale.cu"."""
        return self.root / name if "/" in name else self.folder / name

    def save(self, name, text):
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        put(path, text)

    def caller(self):
        return Caller(self.daemon.socket)

    def await_value(self, value, op="scale", **options):
        """Calls until that is what it gives, and returns the whole result."""
        return until(lambda: self.run(op, **options), lambda r: r.value == value)

    def events(self, since=0):
        """What came of edits; that calls had kernels compiled is told beside them."""
        return [e for e in self.call("events", since)["events"] if e["kind"] != "compiled"]

    def await_event(self, kind, op=None, since=0):
        def find():
            for event in self.events(since):
                if event["kind"] == kind and op in (None, event.get("op")):
                    return event

        return until(find, lambda event: event)

    def mark(self):
        """The number of the last event."""
        return self.call("events")["next"]

    def outcomes(self):
        """What reload() tells of, in short."""
        return [(o["op"], o["state"], o["version"]) for o in self.call("reload")]


def until(get, good, seconds=PATIENCE):
    end = time.monotonic() + seconds
    while not good(value := get()):
        assert time.monotonic() < end, f"after {seconds} s still {getattr(value, '__dict__', value)}"
        time.sleep(0.01)
    return value


@pytest.fixture
def make_site(start_daemon, tmp_path):
    """make_site({"scale.cu": text, "other/scale.cu": text}, folders=("kernels",), options=())"""
    sites = []

    def make(files, folders=("kernels",), options=()):
        sites.append(Site(start_daemon, tmp_path, files, folders, options))
        return sites[-1]

    yield make
    for site in sites:
        site.close()
        assert site.daemon.alive(), site.daemon.read_log()


@pytest.fixture
def site(make_site):
    """With one operator that has run: scale, version 1, which multiplies by 2."""
    site = make_site({"scale.cu": scale(2)})
    assert site.run().value == 2
    return site
