"""Everything that may go wrong, at random, for a while: python tests/faults/chaos.py --seconds 60

Beside clients that work without a pause: executors, compilers and clients are killed, kernels fault
and hang, operators are edited (some edits broken), the device is restarted and the daemon upgraded in
place, all in an order that --seed repeats. Clients may be told of a fault that was not theirs, of a
lost connection never. Afterwards every named tensor holds what it held, the daemon has as many
descriptors, processes and tensors as before, and its memory has not grown.
"""

import argparse
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "functional"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from conftest import DEVICE, Daemon, find_family  # noqa: E402
from raw import find_roles, read_rss  # noqa: E402
from survival import (  # noqa: E402
    KERNELS, Crowd, Treasure, Watchdog, count_open, faults_of, gpu_memory_used, work,
)

import opd  # noqa: E402

EDITED = """\
//! op      edited(Tensor x) -> Tensor y
//! dtypes  float32
//! shape   x [N]
//! shape   y [N]
//! example x=[64]
//
//! forward
//!   kernel  edited
//!   grid    1

extern "C" __global__ void edited(const float *x, float *y, int N)
{
    CUDA_KERNEL_LOOP(i, N)
        y[i] = x[i] + %s;
}
"""
# What a client may be told while processes are killed at random: its request was the one that ran.
FORGIVEN = ("kernel_fault", "deadline_exceeded", "not_found")


class Chaos:
    def __init__(self, daemon, client, rng):
        self.daemon, self.client, self.rng = daemon, client, rng
        self.device = client.status()["devices"][0]["name"]
        self.number = 0
        self.counts = {}

    def strike(self):
        event = self.rng.choice([
            self.fault, self.fault, self.hang, self.kill_executor, self.kill_compiler,
            self.kill_client, self.edit, self.break_edit, self.restart, self.upgrade,
        ])
        name = event.__name__
        self.counts[name] = self.counts.get(name, 0) + 1
        event()

    def fault(self, kind=None, **options):
        kind = kind or self.rng.choice(faults_of(self.device))
        try:
            self.client.ops.fault(self.client.zeros([64]), kind=kind, **options).numpy()
        except (opd.KernelFault, opd.DeadlineExceeded, opd.NotFound):
            return
        raise AssertionError(f"{kind}: the kernel ended well")

    def hang(self):
        self.fault("hang", deadline=0.3)

    def _kill(self, role):
        pids = find_roles(self.daemon.pid).get(role, [])
        if pids:
            try:
                os.kill(self.rng.choice(pids), signal.SIGKILL)
            except ProcessLookupError:
                pass  # it was on its way out

    def kill_executor(self):
        self._kill("executor")

    def kill_compiler(self):
        self._kill("compiler")

    def kill_client(self):
        """A client that dies in the middle of a message, with work under way."""
        pid = os.fork()
        if pid == 0:
            try:
                client = opd.connect(self.daemon.socket, start=False)
                with client.batch():
                    x = client.tensor(np.ones(100_000, np.float32))
                    for _ in range(20):
                        x = client.ops.gelu(x)
                    client._conn.sock.send(b"\x94\x00\x01\xa7forward")
                    os.kill(os.getpid(), signal.SIGKILL)
            finally:
                os._exit(1)
        os.waitpid(pid, 0)

    def edit(self):
        self.number += 1
        self._save(EDITED % self.number)
        x = np.arange(64, dtype=np.float32)
        for _ in range(20):
            try:
                self.client.reload()
                got = self.client.ops.edited(self.client.tensor(x)).numpy()
                break
            except (opd.KernelFault, opd.DeadlineExceeded, opd.NotFound):
                continue  # something else was killed meanwhile
        assert np.array_equal(got, x + self.number), f"not the edit that was saved: {got[:4]}"

    def break_edit(self):
        self._save(EDITED % "no_such_name")
        assert self.client.reload()[-1]["state"] == "failed"

    def _save(self, text):
        path = self.daemon.kernels / "edited.cu"
        path.with_suffix(".new").write_text(text)
        path.with_suffix(".new").rename(path)

    def restart(self):
        self.client._conn.call("device_restart", self.device)

    def upgrade(self):
        self.client._conn.call("upgrade")


def take_stock(daemon, client):
    client.synchronize()
    return {
        "descriptors": count_open(daemon.pid),
        "processes": len(find_family(daemon.pid)),
        "named tensors": sum(1 for t in client.tensors() if t["name"]),
        "connections": client.status()["connections"],
        "RSS of the broker, MiB": read_rss(daemon.pid) >> 20,
        "GPU memory, MiB": gpu_memory_used(),
    }


def run(args, daemon):
    import warnings

    warnings.simplefilter("ignore", opd.ReloadWarning)
    rng = random.Random(args.seed)
    client = daemon.connect()
    treasure = Treasure(client, args.mib << 20, 8, args.seed)
    chaos = Chaos(daemon, client, rng)
    chaos.edit()
    crowd = Crowd()
    for i in range(args.workers):
        crowd.add(work, daemon.socket, i, treasure.sums, FORGIVEN)
    crowd.await_ready()
    for _ in range(10):
        chaos.strike()
    time.sleep(1)
    before = take_stock(daemon, client)
    end, strikes, told = time.monotonic() + args.seconds, 0, time.monotonic()
    while time.monotonic() < end:
        chaos.strike()
        strikes += 1
        time.sleep(rng.random() * 0.1)
        if time.monotonic() - told > 10:
            told = time.monotonic()
            print(f"{strikes} events, {int(end - told)} s left", flush=True)
    after = take_stock(daemon, client)
    found = crowd.finish()
    lost = treasure.verify(client)
    print(", ".join(f"{name} {n}" for name, n in sorted(chaos.counts.items())))
    errors = [e for f in found for e in f["errors"]]
    print(f"{len(found)} clients: {sum(f['replies'] for f in found)} replies, "
          f"{sum(f['wrong'] for f in found)} wrong, {sum(f['forgiven'] for f in found)} told of a "
          f"failure, {len(errors)} other errors")
    print(f"named tensors that changed: {len(lost)} of {len(treasure.sums)}")
    for what, was in before.items():
        print(f"{what}: {was} -> {after[what]}")
    assert not lost and not errors and not any(f["wrong"] for f in found), (lost, errors[:3])
    assert after["named tensors"] == before["named tensors"]
    assert after["connections"] <= before["connections"]
    assert after["descriptors"] <= before["descriptors"] + 8
    assert after["processes"] <= before["processes"] + 1
    assert after["RSS of the broker, MiB"] <= before["RSS of the broker, MiB"] + 8
    client.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--device", default=DEVICE)
    args = parser.parse_args()
    print(f"chaos: --seed {args.seed}", flush=True)
    Watchdog(args.seconds + 300)
    import tempfile

    with tempfile.TemporaryDirectory(prefix="opd-chaos-") as folder:
        daemon = Daemon("--kernels", str(KERNELS), "--kernels", folder, device=args.device)
        daemon.kernels = Path(folder)
        try:
            run(args, daemon)
        except BaseException:
            print(f"chaos: failed; --seed {args.seed} repeats it", file=sys.stderr)
            print(daemon.read_log()[-6000:], file=sys.stderr)
            raise
        daemon.stop()
    print("ok: nothing was lost")


if __name__ == "__main__":
    main()
