"""What a fault and a hang cost others, with a spare and without: python tests/faults/recovery.py

Two daemons with the same load, in turn: named tensors of --gib GiB, --clients that run a small kernel without a pause, and
one that runs kernels which fault, or hang until their deadline. After a fault: until its next good reply. After a hang's
deadline: until the next good reply to anybody, and to that client.
"""

import argparse
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from survival import KERNELS, Treasure, Watchdog  # noqa: E402

from conftest import DEVICE, Daemon  # noqa: E402
from operators import FAILS, put_kernels  # noqa: E402
from raw import eventually  # noqa: E402

import opd  # noqa: E402

DEADLINE = 0.2


class Others:
    """Clients that work; when each has last had a reply, and when that came which is the first after a moment."""

    def __init__(self, daemon, n):
        self.stop, self.errors, self.replies = False, [], []
        self.threads = [threading.Thread(target=self.work, args=(daemon,)) for _ in range(n)]
        for thread in self.threads:
            thread.start()

    def work(self, daemon):
        try:
            with daemon.connect() as client:
                x = client.tensor(np.ones(256, np.float32))
                while not self.stop:
                    assert client.ops.relu(x).numpy()[0] == 1
                    self.replies.append(time.monotonic())
                    time.sleep(0.001)
        except (opd.OpdError, AssertionError) as error:
            self.errors.append(error)

    def first_after(self, moment):
        eventually(lambda: self.errors or (self.replies and self.replies[-1] > moment))
        return min(t for t in self.replies[-200:] if t > moment)

    def finish(self):
        self.stop = True
        for thread in self.threads:
            thread.join()
        assert not self.errors, self.errors


def fail(client, kind):
    """When the request came back with its error."""
    x = client.zeros([64])
    began = time.monotonic()
    try:
        client.ops.fails(x, how=kind, **({"deadline": DEADLINE} if kind == "hang" else {})).numpy()
    except (opd.KernelFault, opd.DeadlineExceeded):
        return began
    raise AssertionError(f"{kind}: it ended well")


def serve(client):
    y = client.tensor(np.arange(64, dtype=np.float32))
    assert client.ops.fails(y).numpy()[63] == 64
    return time.monotonic()


class House:
    def __init__(self, args, spare):
        self.spare, self.times = spare, {"fault": [], "hang, others": [], "hang": []}
        self.folder = tempfile.TemporaryDirectory()
        kernels = put_kernels(Path(self.folder.name), fails=FAILS)
        options = ["--kernels", kernels, "--kernels", str(KERNELS), "--spare", spare]
        self.daemon = Daemon(*options, device=args.device)
        self.client = self.daemon.connect()
        self.treasure = Treasure(self.client, int(args.gib * (1 << 30)), 8, 1)
        serve(self.client)
        self.others = Others(self.daemon, args.clients)

    def settle(self):
        def ready():
            device = self.client.status()["devices"][0]
            return device["state"] == "ready" and (self.spare == "off" or device["spare"] == "ready")

        assert eventually(ready)
        time.sleep(0.02)

    def fault(self):
        self.settle()
        began = fail(self.client, "fault")
        self.times["fault"].append(serve(self.client) - began)

    def hang(self):
        self.settle()
        over = fail(self.client, "hang") + DEADLINE
        self.times["hang"].append(serve(self.client) - over)
        self.times["hang, others"].append(self.others.first_after(over) - over)

    def finish(self):
        self.others.finish()
        assert not self.treasure.verify(self.client), "named tensors have changed"
        self.client.close()
        self.daemon.stop()
        self.folder.cleanup()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=1)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--hangs", type=int, default=100)
    parser.add_argument("--device", default=DEVICE)
    args = parser.parse_args()
    Watchdog(1500)
    print("| ms, median (worst) | " + " | ".join(["spare", "fault", "hang, others", "hang"]) + " |")
    for spare in ["off", "auto"]:
        house = House(args, spare)
        for i in range(max(args.faults, args.hangs)):
            if i < args.faults:
                house.fault()
            if i < args.hangs:
                house.hang()
        cells = [f"{1e3 * statistics.median(t):.1f} ({1e3 * max(t):.0f})" for t in house.times.values()]
        print(f"| | {spare} | " + " | ".join(cells) + " |", flush=True)
        house.finish()


if __name__ == "__main__":
    main()
