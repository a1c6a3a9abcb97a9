"""make check-gpu: every test on the GPU, then on the CPU; each file of tests is a process, many run at a time.

usage: check_gpu.py [PREFIX...]     those jobs alone whose names begin with one of them

  $DEVICES  "cuda:0 cpu"; the CPU's jobs have its name before theirs
  $JOBS     how many at a time; by default three for two processors while there are those of a GPU, which wait more
            than they work, as far as each has 2 GiB of a GPU's memory; then one for each processor

A job's output is in build/check-gpu/NAME.log, and why a test failed as soon as it has. Where there are several GPUs, a
job sees one of them as cuda:0, but those that ask for more see all. Tests marked own_card have one for themselves, when
the others are done with it. What a job leaves running ends with it. The last line counts jobs; it ends with 1 if one
has failed. A run that is interrupted tells of those under way what has failed in them.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOGS = ROOT / "build" / "check-gpu"
# Of make torch-isolated.
ISOLATED = "cuda daemons edits in_place layers namespace ops options process structs training".split()
FOLDERS = ("functional", "ops", "torch", "reload", "faults")
NO_DEVICE = ["test_check_run", "test_check_grad"]  # the same whatever the device, so run once
DEVICES = os.environ.get("DEVICES", "cuda:0 cpu").split()
SECONDS = 900  # that a job may take
OWN_CARD, SEVERAL_CARDS = "own_card", "needs two GPUs"  # what files of such tests have in them
MARK = "OPD_CHECK_JOB"  # the variable by which a job's processes are known, and that has conftest.py tell at once
FAILED = "==== failed: "  # with which it begins
MIB_OF_A_JOB = 2048  # a context of the driver's for a daemon and for torch, and what tests put there

# What takes longest begins first, so that nothing is waited for at the end.
LONGEST = (
    "conformance functional/test_lanes functional/test_libopd_lanes functional/test_exports functional/test_spare "
    "functional/test_faults functional/test_keeper torch/test_torch_daemons functional/test_upgrade_under_load "
    "functional/test_graphs isolated/test_torch_daemons functional/test_prepared torch/test_torch_shapes ops/test_ops "
    "functional/test_formula functional/test_client_prepared functional/test_upgrade_memory "
    "functional/test_device_checks functional/test_gates faults/test_check_run examples model functional/test_rerun"
).split()

# A spare is one more context for each daemon, of which the driver makes one at a time: those have them in which
# executors end, and what is read past the broker.
SPARES = ("faults/", "reload/", "model", "examples") + tuple(
    f"functional/test_{name}"
    for name in (
        "faults graphs keeper killed_processes lanes libopd_lanes rerun restart short_executor spare suspect upgrade"
    ).split()
)


class Job:
    alone = several = False  # what of the GPUs it has

    def __init__(self, device, name, command, **env):
        self.on_gpu = device != "cpu"
        self.name = name if self.on_gpu else f"cpu/{name}"
        self.command, self.log = command, LOGS / f"{self.name}.log"
        # Libraries that start a thread for each processor would wait for one another.
        alone = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        self.env = {**os.environ, **alone, "OPD_NO_APT": "1", "OPD_TEST_DEVICE": device, **env}
        if self.on_gpu and not name.removeprefix("own/").startswith(SPARES):
            self.env["OPD_TEST_SPARE"] = "off"
        self.rank = LONGEST.index(name) if name in LONGEST else len(LONGEST)

    def run(self, cards):
        """Whether it passed, and what it says of itself."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        env = {**self.env, MARK: f"{os.getpid()} {self.name}"}
        if cards:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(cards)
        with open(self.log, "wb") as log:
            try:
                status = subprocess.run(
                    self.command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    start_new_session=True, timeout=SECONDS,
                ).returncode  # fmt: skip
            except subprocess.TimeoutExpired:
                log.write(f"\nran longer than {SECONDS} s and was ended\n".encode())
                status = 1
        end_marked(f"{env[MARK]}\0")
        lines = self.log.read_text(errors="replace").rstrip().splitlines() or [""]
        return status in (0, 5), lines  # 5: of pytest, no test of this file is chosen


def end_marked(mark):
    """Kills a job's processes, daemons of its tests too: $MARK in their environment begins so."""
    wanted = f"\0{MARK}={mark}".encode()
    found = True
    while found:  # who begins meanwhile comes from one that has not ended yet
        found = False
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if wanted in b"\0" + path.read_bytes():
                    os.kill(int(path.parent.name), signal.SIGKILL)
                    found = True
            except OSError:
                pass  # it has ended, or is somebody else's


def find_cards():
    """The GPUs' names for $CUDA_VISIBLE_DEVICES, and the memory of each in MiB. Empty: there is none."""
    asked = ["nvidia-smi", "--query-gpu=index,memory.total", "--format=csv,noheader,nounits"]
    try:
        lines = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()
        cards = {index.strip(): int(size) for index, size in (line.split(",") for line in lines)}
    except (OSError, ValueError, subprocess.CalledProcessError):
        return {}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return cards
    least = min(cards.values(), default=0)
    return {name: cards.get(name, least) for name in visible.split(",") if name}


class Cards:
    """Which jobs are on which GPU. Each of own_card waits until one is empty, and no others are to come."""

    def __init__(self, names, n_shared):
        self.changed, self.n_shared = threading.Condition(), n_shared
        self.n_jobs = dict.fromkeys(names, 0)

    @contextmanager
    def take(self, job):
        """The names of its own, or of all for one that needs two."""
        with self.changed:
            if job.alone:
                self.changed.wait_for(lambda: self.n_shared == 0 and 0 in self.n_jobs.values())
            else:
                self.n_shared -= 1
            least = min(self.n_jobs, key=self.n_jobs.get)
            taken = list(self.n_jobs) if job.several else [least]
            for name in taken:
                self.n_jobs[name] += 1
        try:
            yield taken
        finally:
            with self.changed:
                for name in taken:
                    self.n_jobs[name] -= 1
                self.changed.notify_all()


def make_jobs(device):
    jobs = []
    make = ["make", "--no-print-directory", "PREBUILT=1", f"DEVICE={device}", "SECONDS=60"]

    def add(name, path, *marks, **env):
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W",
                   "ignore::pytest.PytestConfigWarning", "-m", " ".join(marks), path]  # fmt: skip
        jobs.append(Job(device, name, command, **env))
        jobs[-1].several = SEVERAL_CARDS in path.read_text() and marks != (OWN_CARD,)
        return jobs[-1]

    for folder in FOLDERS:
        for path in sorted((ROOT / "tests" / folder).glob("test_*.py"), key=lambda p: -p.stat().st_size):
            ways = {} if path.stem in NO_DEVICE and device != DEVICES[-1] else {folder: {}}
            if path.stem.removeprefix("test_torch_") in ISOLATED:
                ways["isolated"] = {"OPD_ISOLATED": "1"}
            for way, env in ways.items():
                name = f"{way}/{path.stem}"
                if device == "cpu" or OWN_CARD not in path.read_text():
                    add(name, path, **env)
                else:
                    add(name, path, "not", OWN_CARD, **env)
                    add(f"own/{name}", path, OWN_CARD, **env).alone = True
    for name in ("test_client_prepared", "test_client_replays"):
        add(f"pure/{name}", ROOT / "tests" / "functional" / f"{name}.py", OPD_PURE="1")
    targets = ["conformance", "model"] if device == "cpu" else ["conformance", "model", "examples"]
    jobs += [Job(device, target, [*make, target]) for target in targets]
    return sorted(jobs, key=lambda job: (job.alone, job.rank))


def count_jobs(cards):
    """At a time while there are those of a GPU, and when there are none: by processors and the GPUs' memory."""
    if os.environ.get("JOBS"):
        return int(os.environ["JOBS"]), int(os.environ["JOBS"])
    processors = len(os.sched_getaffinity(0))
    rooms = sum(size // MIB_OF_A_JOB for size in cards.values())
    return max(min(3 * processors // 2, rooms), 1) if cards else processors, processors


class Report:
    def __init__(self):
        self.lock, self.began = threading.Lock(), time.monotonic()
        self.failed, self.passed = [], 0
        self.tests, self.running = {}, {}

    def run(self, job, cards):
        began = self.running[job] = time.monotonic()
        passed, lines = job.run(cards)
        with self.lock:
            del self.running[job]
            word = "ok    " if passed else "FAILED"
            print(f"{word} {time.monotonic() - began:4.0f} s  {job.name}: {lines[-1].strip()}", flush=True)
            for number, what in re.findall(r"(\d+) (passed|failed|skipped|error)", lines[-1]):
                self.tests[what] = self.tests.get(what, 0) + int(number)
            if passed:
                self.passed += 1
            else:
                self.failed.append(job)
                print("\n".join(f"    {line}" for line in lines[-40:]), flush=True)

    def tell_running(self):
        """Of each job that is under way, what has failed in it."""
        for job, began in list(self.running.items()):
            print(f"under way for {time.monotonic() - began:4.0f} s  {job.name}")
            text = job.log.read_text(errors="replace") if job.log.exists() else ""
            for failure in text.split(FAILED)[1:]:
                print("\n".join(f"    {line}" for line in (FAILED + failure).rstrip().splitlines()[:40]))

    def finish(self):
        print()
        for job in self.failed:
            print(f"failed: {job.name}, {job.log}")
        tests = ", ".join(f"{number} {what}" for what, number in self.tests.items())
        print(f"tests: {tests or 'none'}; {time.monotonic() - self.began:.0f} s")
        print(f"{self.passed} passed, {len(self.failed)} failed")
        return 1 if self.failed else 0


def run_jobs(report, n_gpu, n_cpu, cards, jobs):
    """Those of the GPUs first, n_gpu at a time; then the CPU's, n_cpu at a time."""
    on_gpu = [job for job in jobs if job.on_gpu]
    shared = deque([job for job in on_gpu if not job.alone] + [job for job in jobs if not job.on_gpu])
    alone = deque(job for job in on_gpu if job.alone)
    cards_taken = Cards(cards or [""], len(on_gpu) - len(alone))
    lock = threading.Lock()

    def take(queue, seat):
        with lock:
            return queue.popleft() if queue and (queue[0].on_gpu or seat < n_cpu) else None

    def work(queue, seat):
        while job := take(queue, seat):
            if job.on_gpu:
                with cards_taken.take(job) as taken:
                    report.run(job, taken if len(cards) > 1 else [])
            else:
                report.run(job, [])

    seats = [(shared, seat) for seat in range(max(n_gpu, n_cpu))] + [(alone, seat) for seat in range(len(cards) or 1)]
    list(ThreadPoolExecutor(len(seats)).map(work, *zip(*seats)))  # in no `with`: that would wait for an interrupted run


def interrupt(*_):
    raise KeyboardInterrupt


def main(prefixes):
    cards = find_cards()
    report, (n_gpu, n_cpu) = Report(), count_jobs(cards)
    chosen = tuple(prefixes) or ("",)
    jobs = [job for device in DEVICES for job in make_jobs(device) if job.name.startswith(chosen)]
    if not jobs:
        print(f"no job's name begins with: {' '.join(prefixes)}")
        return 2
    on = f" on {len(cards)} GPUs" if len(cards) > 1 else ""
    at_once = n_gpu if any(job.on_gpu for job in jobs) else n_cpu
    print(f"{len(jobs)} jobs, {at_once} at a time{on}", flush=True)
    signal.signal(signal.SIGTERM, interrupt)
    try:
        run_jobs(report, n_gpu, n_cpu, cards, jobs)
    except KeyboardInterrupt:
        report.tell_running()
        report.finish()
        sys.stdout.flush()
        end_marked(f"{os.getpid()} ")
        os._exit(130)  # threads would begin what is left
    return report.finish()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
