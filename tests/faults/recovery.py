"""What a fault and a hang cost others, with a spare and without: python tests/faults/recovery.py

Two daemons with the same load, in turn (--spare chooses one): named tensors of --gib GiB, --clients that run a small kernel
without a pause, and one that runs kernels which fault, or hang until their deadline. After a fault: until its error, which
waits for a second run with checks; until its next good reply; and how long nobody else had a reply. After a hang's deadline:
until the next good reply to anybody, and to that client. Then what happens when, by the daemon's log.

What has been measured is printed as each half ends, also by an interrupt or when --seconds are over.
"""

import argparse
import re
import statistics
import sys
import tempfile
import threading
import time
from bisect import bisect_right
from datetime import datetime
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

    def longest_gap(self, begin, end):
        """Without a reply to any of them."""
        times = [begin, *(t for t in self.replies[-4000:] if begin < t < end), end]
        return max(b - a for a, b in zip(times, times[1:]))

    def first_after(self, moment):
        eventually(lambda: self.errors or (self.replies and self.replies[-1] > moment))
        return self.replies[bisect_right(self.replies, moment)]

    def finish(self):
        self.stop = True
        for thread in self.threads:
            thread.join()
        assert not self.errors, self.errors


def fail(client, kind):
    """When the request was sent, and when its error came."""
    x = client.zeros([64])
    began = time.monotonic()
    try:
        client.ops.fails(x, how=kind, **({"deadline": DEADLINE} if kind == "hang" else {})).numpy()
    except (opd.KernelFault, opd.DeadlineExceeded):
        return began, time.monotonic()
    raise AssertionError(f"{kind}: it ended well")


def serve(client):
    y = client.tensor(np.arange(64, dtype=np.float32))
    assert client.ops.fails(y).numpy()[63] == 64
    return time.monotonic()


class Log:
    """What the daemon said from now on, with when it did, of this clock; to a millisecond."""

    LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) (\w+) broker: (.*)")

    def __init__(self, path):
        self.path, self.at = path, path.stat().st_size

    def moments(self):
        """When the death was known, and when the next one served."""
        text, shift = self.path.read_bytes()[self.at :].decode(errors="replace"), time.time() - time.monotonic()
        known = ready = None
        for stamp, level, said in self.LINE.findall(text):
            when = datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S.%f").timestamp() - shift
            if level == "warn" and re.match(r"device \S+: (?!its spare)", said):
                known = known or when
            elif re.match(r"device \S+ is ready", said) and known:
                ready = ready or when
        return known, ready


COLUMNS = ["fault", "fault, others", "hang, others", "hang"]
STEPS = ["it is known", "the next process serves", "others have a reply", "its error", "its next good reply"]


class House:
    def __init__(self, args, spare):
        self.spare, self.times = spare, {column: [] for column in COLUMNS}
        self.steps = {kind: {step: [] for step in STEPS} for kind in ("fault", "hang")}
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

    def note_steps(self, kind, log, began, *ends):
        """Each from the beginning."""
        known, ready = log.moments()
        if known is None or ready is None:
            return
        for step, moment in zip(STEPS, [known, ready, self.others.first_after(ready), *ends]):
            self.steps[kind][step].append(moment - began)

    def fault(self):
        self.settle()
        log = Log(self.daemon.log)
        began, error = fail(self.client, "fault")
        served = serve(self.client)
        self.times["fault"].append(served - began)
        self.times["fault, others"].append(self.others.longest_gap(began, served))
        self.note_steps("fault", log, began, error, served)

    def hang(self):
        self.settle()
        log = Log(self.daemon.log)
        began, error = fail(self.client, "hang")
        over = began + DEADLINE
        served = serve(self.client)
        self.times["hang"].append(served - over)
        self.times["hang, others"].append(self.others.first_after(over) - over)
        self.note_steps("hang", log, over, error, served)

    def show(self):
        print(f"\n| spare {self.spare}: ms | rounds | median | worst |\n|---|---|---|---|")
        rows = [(column, times) for column, times in self.times.items()]
        for kind, since in (("fault", "request"), ("hang", "deadline")):
            rows += [(f"{kind}: from its {since} until {step}", times) for step, times in self.steps[kind].items()]
        for name, times in rows:
            if times:
                print(f"| {name} | {len(times)} | {1e3 * statistics.median(times):.1f} | {1e3 * max(times):.0f} |")
        sys.stdout.flush()

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
    parser.add_argument("--spare", choices=["off", "auto", "both"], default="both")
    parser.add_argument("--seconds", type=float, default=600, help="that each half may take")
    parser.add_argument("--device", default=DEVICE)
    args = parser.parse_args()
    Watchdog(1500)
    for spare in ["off", "auto"] if args.spare == "both" else [args.spare]:
        began, house = time.monotonic(), House(args, spare)
        end = time.monotonic() + args.seconds
        try:
            for i in range(max(args.faults, args.hangs)):
                if i < args.faults and time.monotonic() < end:
                    house.fault()
                if i < args.hangs and time.monotonic() < end:
                    house.hang()
        finally:
            house.show()
        house.finish()
        medians = "; ".join(f"{name} {1e3 * statistics.median(times):.1f}" for name, times in house.times.items() if times)
        print(f"recovery: spare {spare}: medians in ms: {medians}; {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
