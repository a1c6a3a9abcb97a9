"""What happens to the daemon meanwhile: upgrades, restarts, edits, and processes that are killed."""

import os
import signal

from numpy_operators import Turn
from conftest import eventually
from raw import find_roles

TURN = """\
//! op      turn(Tensor x) -> Tensor y
//! dtypes  float32
//! shape   x [...S]
//! shape   y [...S]
//! let     n = numel(x)
//! example x=[4]
//
//! forward
//!   kernel turn_forward
//! backward grad_x
//!   kernel turn_backward

__global__ void turn_forward(const scalar_t *x, scalar_t *y, int64_t n)
{
    CUDA_KERNEL_LOOP(i, n)
        y[i] = x[i] * scalar_t(FACTOR);
}

__global__ void turn_backward(const scalar_t *grad_y, scalar_t *grad_x, int64_t n)
{
    CUDA_KERNEL_LOOP(i, n)
        grad_x[i] = grad_y[i] * scalar_t(FACTOR);
}
"""
FACTORS = ["2", "-1", "0.5", "3", "0.25"]  # few: what is compiled once is in the cache


class Chaos:
    """Each event sends its request and is waited for by finish()."""

    def __init__(self, daemon, folder, world, admin, rng, device):
        self.daemon, self.folder, self.world, self.admin, self.rng = daemon, folder, world, admin, rng
        self.device = device
        if admin:
            admin.make(1, "float32", [4])
        self.waiting = []
        self.forgotten = []  # versions that were kept when the round began
        self.factor = FACTORS[0]
        self.counts = {}

    def save(self, factor):
        new = self.folder / "turn.new"
        new.write_text(TURN.replace("FACTOR", factor))
        new.rename(self.folder / "turn.cu")

    def begin(self):
        """Before the daemon starts."""
        self.save(self.factor)
        self.world.turns[1] = Turn(1, self.factor)
        self.world.served.append(1)

    # --- that no client notices

    def calm(self):
        event = self.rng.choices([None, self.upgrade, self.restart], [20, 1, 1])[0]
        self.do(event)

    def upgrade(self):
        self.waiting.append(self.admin.request("upgrade"))

    def restart(self):
        self.waiting.append(self.admin.request("device_restart", self.device))

    # --- that clients may notice

    def choose_storm(self):
        return self.rng.choice([self.kill_executor, self.kill_executor, self.kill_compiler, self.edit, self.edit,
                                self.break_edit, self.roll_back])  # fmt: skip

    def forgives(self, event, error):
        """Besides what is predicted."""
        codes = {self.kill_executor: ["kernel_fault"], self.kill_compiler: ["unavailable"]}
        return error["code"] in codes.get(event, [])

    def kill_executor(self):
        self.kill("executor")

    def kill_compiler(self):
        self.kill("compiler")

    def kill(self, role):
        """And the broker has noticed: what is sent from now on is not given to that process."""
        pids = find_roles(self.daemon.pid, role)
        if pids:
            pid = self.rng.choice(pids)
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it was on its way out
            eventually(lambda: not os.path.exists(f"/proc/{pid}"))

    def use(self):
        """A version is compiled for what the one before it was used for."""
        self.admin.call("forward", "turn", [1], {}, [2])
        self.admin.call("free", "tensor", [2], {"drop": True})

    def edit(self):
        """Served from now on, or from a moment later: either version may run meanwhile."""
        self.use()
        factor = self.rng.choice([f for f in FACTORS if f != self.factor])
        self.save(factor)
        (told,) = self.admin.call("reload")
        assert told["state"] == "serving", told
        version = told["version"]
        self.factor = factor
        known = self.world.turns.get(version)
        assert known is None or str(known.factor) == str(Turn(0, factor).factor), told
        self.world.turns[version] = Turn(version, factor)
        self.world.served.append(version)
        self.world.failed_edit = None
        self.forget()

    def break_edit(self):
        self.use()
        wrong = f"no_such_name_{self.counts['break_edit']}"
        self.save(wrong)
        (told,) = self.admin.call("reload")
        assert told["state"] == "failed", told
        self.world.failed_edit = wrong
        self.factor = None
        self.forget()

    def roll_back(self):
        """Then the file's own version serves again."""
        older = [v for v in self.world.turns if v < self.world.served[-1]]
        if older:
            assert self.admin.call("pin", "turn", max(older)) == {"version": max(older), "pinned": True}
            assert self.admin.call("pin", "turn", None)["version"] == self.world.served[-1]

    def forget(self):
        """The daemon keeps sixteen versions."""
        listed = [v["version"] for v in self.admin.call("op_info", "turn")["versions"]]
        self.forgotten = [v for v in self.world.turns if v not in listed]

    def do(self, event):
        if event:
            self.counts[event.__name__] = self.counts.get(event.__name__, 0) + 1
            event()

    def finish(self):
        for request in self.waiting:
            self.admin.wait(request)
        for version in self.forgotten:
            del self.world.turns[version]
        self.waiting, self.forgotten = [], []
