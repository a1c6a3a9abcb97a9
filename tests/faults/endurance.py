"""A hundred faults and ten hangs beside clients that work: python tests/faults/endurance.py

Named tensors of --gib GiB hold known bits. --workers client processes compute on tensors of their
own and verify checksums of the named ones, without a pause. Meanwhile one client runs kernels that
fault, of every kind that the device has, and kernels that never end. After each it asks at once for
something good, and the time until that reply is the recovery. At the end every bit is compared, and
descriptors, processes and memory with what they were after the first faults.
"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from survival import (  # noqa: E402
    Crowd, Treasure, Watchdog, compare_stock, eventually_agrees, faults_of, long_lived,
    ping, show_stock, summary, take_stock, work,
)

from conftest import DEVICE  # noqa: E402

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


def plan_of(device, faults, hangs):
    """Every kind in turn, the hangs spread among them."""
    kinds = faults_of(device)
    plan = [kinds[i % len(kinds)] for i in range(faults)]
    for i in range(hangs):
        plan.insert((2 * i + 1) * faults // (2 * hangs) + i, "hang")
    return plan


def run_faults(client, daemon, plan):
    """Seconds of recovery by kind, an error of each kind, and what was held after the first five."""
    times, seen, before = {}, {}, None
    for i, kind in enumerate(plan):
        x = client.zeros([64])
        took, error = provoke(client, x, kind)
        assert x.suspect and "kernel fault" in x.suspect, f"{kind}: what it was writing is not suspect"
        times.setdefault(kind, []).append(took)
        seen.setdefault(kind, str(error).splitlines()[0])
        del x
        if i == min(4, len(plan) - 1):
            before = take_stock(daemon, client)
        if (i + 1) % 10 == 0:
            print(f"{i + 1:4d} of {len(plan)}: {summary(sum(times.values(), []))}", flush=True)
    return times, seen, before


def run(args, daemon):
    client, started = daemon.connect(), time.monotonic()
    devices = [d["name"] for d in client.status()["devices"]]
    print(f"{args.gib:g} GiB of named tensors on {devices[0]}, {args.workers} clients", flush=True)
    treasure = Treasure(client, int(args.gib * (1 << 30)), 8, args.seed)
    assert not treasure.verify(client), "wrong before the first fault"

    pingers, crowd = Crowd(), Crowd()
    for device in [None, *devices[1:2]]:  # the broker alone, and a device that has no faults
        pingers.add(ping, daemon.socket, device)
    for i in range(args.workers):
        crowd.add(work, daemon.socket, i, treasure.sums, ())
    crowd.await_ready()
    pingers.await_ready()
    plan = plan_of(devices[0], args.faults, args.hangs)
    times, seen, before = run_faults(client, daemon, plan)
    after = take_stock(daemon, client)
    found = crowd.finish()
    reports = pingers.finish()
    lost = treasure.verify(client)
    report(times, seen, found, reports, lost, treasure)
    print(f"what was held after {min(5, len(plan))} faults, and at the end:")
    show_stock(before, after)
    hangs = times.get("hang", [])
    faults = [t for kind, took in times.items() if kind != "hang" for t in took]
    print(f"endurance: faults {summary(faults)}; hangs {summary(hangs)}; {sum(f['replies'] for f in found)} replies to "
          f"others, {sum(f['wrong'] for f in found)} wrong, {sum(len(f['errors']) for f in found)} errors; {len(lost)} "
          f"tensors lost; {time.monotonic() - started:.0f} s", flush=True)

    errors = [e for f in found for e in f["errors"]]
    assert not lost, f"named tensors that changed: {lost}"
    assert not errors, f"other clients were told of it: {errors[:3]}"
    assert not any(f["wrong"] for f in found), "other clients got wrong results"
    assert all(f["replies"] for f in found), "a client got no reply at all"
    assert not (grown := compare_stock(before, after)), grown
    assert not (differs := eventually_agrees(daemon, client)), differs
    restarts = client.status()["devices"][0]["restarts"]
    assert restarts == len(plan), f"{restarts} restarts of {len(plan)} faults"
    middle = sorted(sum(times.values(), []))[len(plan) // 2]
    began = time.monotonic()
    client.restart(devices[0])
    allowed = max(args.median, 5 * (time.monotonic() - began))  # a busy machine starts it slowly
    assert middle <= allowed, f"median {middle:.2f} s, allowed are {allowed:.2f} s"
    client.close()


def report(times, seen, found, reports, lost, treasure):
    print("\n| kind | recovery | the error |\n|---|---|---|")
    for kind, text in sorted(seen.items()):
        print(f"| {kind} | {summary(times[kind])} | {text} |")
    print(f"\nlongest wait of the {len(found)} other clients: {1e3 * max(f['worst'] for f in found):.0f} ms")
    print(f"longest wait for the broker: {1e3 * max(r['worst'] for r in reports):.0f} ms")
    print(f"named tensors that changed: {len(lost)} of {len(treasure.sums)}")


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
    with long_lived(args) as daemon:
        run(args, daemon)


if __name__ == "__main__":
    main()
