"""A hundred faults and ten hangs beside clients that work: python tests/faults/endurance.py

Named tensors of --gib GiB hold known bits. --workers client processes compute on tensors of their
own and verify checksums of the named ones, without a pause. Meanwhile one client runs kernels that
fault, of every kind that the device has, and kernels that never end. After each it asks at once for
something good, and the time until that reply is the recovery. At the end every bit is compared, and
descriptors, processes and memory with what they were after the first faults.
"""

import argparse
import os
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from conftest import DEVICE, Daemon, find_family  # noqa: E402
from survival import (  # noqa: E402
    KERNELS, Crowd, Treasure, Watchdog, count_open, faults_of, gpu_memory_used, ping, summary, work,
)

import opd  # noqa: E402

HANG_SECONDS = 0.5  # the deadline of the kernels that hang


def provoke(client, x, kind):
    """Runs a kernel that fails; seconds from its error to the next good reply, and the error."""
    began = time.monotonic()
    try:
        client.ops.fault(x, kind=kind, **({"deadline": HANG_SECONDS} if kind == "hang" else {})).numpy()
    except opd.OpdError as e:
        error = e
    else:
        raise AssertionError(f"{kind}: the kernel ended well")
    wanted = opd.DeadlineExceeded if kind == "hang" else opd.KernelFault
    assert isinstance(error, wanted), f"{kind}: {type(error).__name__}: {error}"
    assert "fault version 1 forward" in str(error) and "kernel fault" in str(error), str(error)
    y = client.tensor(np.arange(64, dtype=np.float32))
    assert np.array_equal(client.ops.fault(y).numpy(), np.arange(64) + 1), f"wrong after {kind}"
    took = time.monotonic() - began - (HANG_SECONDS if kind == "hang" else 0)
    return took, error


def run(args, daemon):
    client = daemon.connect()
    device = client.status()["devices"][0]["name"]
    print(f"{args.gib} GiB of named tensors on {device}, {args.workers} clients", flush=True)
    treasure = Treasure(client, int(args.gib * (1 << 30)), 8, args.seed)
    assert not treasure.verify(client), "wrong before the first fault"

    pingers, crowd = Crowd(), Crowd()
    pingers.add(ping, daemon.socket, None)
    other = len(client.status()["devices"]) > 1
    if other:
        pingers.add(ping, daemon.socket, client.status()["devices"][1]["name"])
    for i in range(args.workers):
        crowd.add(work, daemon.socket, i, treasure.sums, ())
    crowd.await_ready()
    pingers.await_ready()
    kinds = faults_of(device)
    plan = [kinds[i % len(kinds)] for i in range(args.faults)]
    for i in range(args.hangs):
        plan.insert((2 * i + 1) * args.faults // (2 * args.hangs) + i, "hang")
    times, seen, before = [], {}, None
    for i, kind in enumerate(plan):
        x = client.zeros([64])
        took, error = provoke(client, x, kind)
        times.append(took)
        seen.setdefault(kind, str(error).splitlines()[0])
        if i == 4:
            before = (count_open(daemon.pid), len(find_family(daemon.pid)), gpu_memory_used())
        if (i + 1) % 10 == 0:
            print(f"{i + 1:4d} of {len(plan)}: {summary(times)}", flush=True)
    found = crowd.finish()
    reports = pingers.finish()
    lost = treasure.verify(client)
    time.sleep(1)
    after = (count_open(daemon.pid), len(find_family(daemon.pid)), gpu_memory_used())

    print("\n| kind | the error |\n|---|---|")
    for kind, text in sorted(seen.items()):
        print(f"| {kind} | {text} |")
    print(f"\nfrom a fault's request to the next good reply (hangs: less their deadline): {summary(times)}")
    errors = [e for f in found for e in f["errors"]]
    print(f"{len(found)} other clients: {sum(f['replies'] for f in found)} replies, "
          f"{sum(f['wrong'] for f in found)} wrong, {len(errors)} errors; "
          f"longest wait {1e3 * max(f['worst'] for f in found):.0f} ms")
    print(f"longest wait for the broker alone {1e3 * reports[0]['worst']:.0f} ms"
          + (f", for the other of broker and device {1e3 * max(r['worst'] for r in reports):.0f} ms"
             if other else ""))
    print(f"named tensors that changed: {len(lost)} of {len(treasure.sums)}")
    print(f"descriptors, processes, MiB of the GPU: {before} after five faults, {after} at the end")
    assert not lost and not errors and not any(f["wrong"] for f in found), errors[:3]
    # Two more descriptors mean nothing: a connection on its way out.
    assert after[0] <= before[0] + 2 and after[1] <= before[1], "something leaks"
    if before[2] is not None:
        assert after[2] <= before[2] + 64, "GPU memory leaks"
    assert sorted(times)[len(times) // 2] <= args.median, f"median above {args.median} s"
    client.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=8)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--hangs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--median", type=float, default=0.5, help="seconds of recovery allowed")
    parser.add_argument("--device", default=DEVICE, help="with a comma, more than one")
    args = parser.parse_args()
    Watchdog(1500)
    daemon = Daemon("--kernels", str(KERNELS), device=args.device)
    try:
        run(args, daemon)
    except BaseException:
        print(daemon.read_log()[-4000:], file=sys.stderr)
        raise
    daemon.stop()
    print("ok: nothing was lost")


if __name__ == "__main__":
    main()
