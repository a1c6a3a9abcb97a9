"""make check-gpu: every test on the GPU and on the CPU; each file of tests is a process, many run at a time.

usage: check_gpu.py [PREFIX...]     those jobs alone whose names begin with one of them

  $DEVICES  "cuda:0 cpu"; the CPU's jobs have its name before theirs
  $JOBS     how many at a time, three quarters of them on the GPU; by default one for each processor that has
            2 GiB of the GPU's memory

A job's output is in build/check-gpu/NAME.log. Tests marked own_card run one after another when the others are done
with the GPU. The last line counts jobs; it ends with 1 if one has failed.
"""

import os
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOGS = ROOT / "build" / "check-gpu"
ISOLATED = "cuda edits layers namespace ops options process structs training".split()  # make torch-isolated has all
FOLDERS = ("functional", "ops", "torch", "reload", "faults")
NO_DEVICE = ["test_check_run", "test_check_grad"]  # the same whatever the device, so run once
DEVICES = os.environ.get("DEVICES", "cuda:0 cpu").split()
SECONDS = 900  # that a job may take
OWN_CARD = "own_card"
MIB_OF_A_JOB = 2048  # a context of the driver's for a daemon and for torch, and what tests put there

# What takes longest begins first, so that nothing is waited for at the end.
LONGEST = (
    "conformance functional/test_gates functional/test_faults ops/test_ops faults/test_check_run "
    "torch/test_torch_shapes functional/test_rerun examples "
    "torch/test_torch_process isolated/test_torch_process torch/test_torch_compile "
    "model functional/test_exports functional/test_upgrade_under_load "
    "functional/test_formula functional/test_graphs"
).split()


class Job:
    def __init__(self, device, name, command, **env):
        self.name = name if device != "cpu" else f"cpu/{name}"
        self.command, self.log = command, LOGS / f"{self.name}.log"
        # Libraries that start a thread for each processor would wait for one another.
        alone = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        self.env = {**os.environ, **alone, "OPD_NO_APT": "1", "OPD_TEST_DEVICE": device, **env}
        self.rank = LONGEST.index(name) if name in LONGEST else len(LONGEST)

    def run(self):
        """Whether it passed, and what it says of itself."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "wb") as log:
            try:
                status = subprocess.run(
                    self.command, cwd=ROOT, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    timeout=SECONDS,
                ).returncode  # fmt: skip
            except subprocess.TimeoutExpired:
                log.write(f"\nran longer than {SECONDS} s and was ended\n".encode())
                status = 1
        lines = self.log.read_text(errors="replace").rstrip().splitlines() or [""]
        return status in (0, 5), lines  # 5: of pytest, no test of this file is chosen


def make_jobs(device):
    """Those that may run together, and those that want the GPU for themselves."""
    shared, own = [], []
    make = ["make", "--no-print-directory", "PREBUILT=1", f"DEVICE={device}", "SECONDS=60"]

    def add(name, path, *marks, **env):
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W",
                   "ignore::pytest.PytestConfigWarning", "-m", " ".join(marks), path]  # fmt: skip
        return Job(device, name, command, **env)

    for folder in FOLDERS:
        for path in sorted((ROOT / "tests" / folder).glob("test_*.py"), key=lambda p: -p.stat().st_size):
            ways = {} if path.stem in NO_DEVICE and device != DEVICES[-1] else {folder: {}}
            if path.stem.removeprefix("test_torch_") in ISOLATED:
                ways["isolated"] = {"OPD_ISOLATED": "1"}
            for way, env in ways.items():
                name = f"{way}/{path.stem}"
                if device == "cpu" or OWN_CARD not in path.read_text():
                    shared.append(add(name, path, **env))
                else:
                    shared.append(add(name, path, "not", OWN_CARD, **env))
                    own.append(add(f"own/{name}", path, OWN_CARD, **env))
    pure = ROOT / "tests" / "functional" / "test_client_prepared.py"
    shared.append(add("pure/test_client_prepared", pure, OPD_PURE="1"))
    targets = ["conformance", "model"] if device == "cpu" else ["conformance", "model", "examples"]
    shared += [Job(device, target, [*make, target]) for target in targets]
    return sorted(shared, key=lambda job: job.rank), own


def count_jobs():
    """At a time: by processors and the smallest GPU's memory."""
    if os.environ.get("JOBS"):
        return int(os.environ["JOBS"])
    at_once = len(os.sched_getaffinity(0))
    try:
        asked = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
        sizes = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
        at_once = min([at_once, *(int(size) // MIB_OF_A_JOB for size in sizes)])
    except (OSError, ValueError, subprocess.CalledProcessError):
        pass
    return max(at_once, 1)


class Report:
    def __init__(self):
        self.lock, self.began = threading.Lock(), time.monotonic()
        self.failed, self.passed = [], 0
        self.tests = {}

    def run(self, job):
        began = time.monotonic()
        passed, lines = job.run()
        with self.lock:
            word = "ok    " if passed else "FAILED"
            print(f"{word} {time.monotonic() - began:4.0f} s  {job.name}: {lines[-1].strip()}", flush=True)
            for number, what in re.findall(r"(\d+) (passed|failed|skipped|error)", lines[-1]):
                self.tests[what] = self.tests.get(what, 0) + int(number)
            if passed:
                self.passed += 1
            else:
                self.failed.append(job)
                print("\n".join(f"    {line}" for line in lines[-40:]), flush=True)

    def finish(self):
        print()
        for job in self.failed:
            print(f"failed: {job.name}, {job.log}")
        tests = ", ".join(f"{number} {what}" for what, number in self.tests.items())
        print(f"tests: {tests or 'none'}; {time.monotonic() - self.began:.0f} s")
        print(f"{self.passed} passed, {len(self.failed)} failed")
        return 1 if self.failed else 0


def main(prefixes):
    report, at_once = Report(), count_jobs()
    chosen = tuple(prefixes) or ("",)
    on_gpu, own, on_cpu = [], [], []
    for device in DEVICES:
        shared, alone = make_jobs(device)
        (on_cpu if device == "cpu" else on_gpu).extend(shared)
        own += alone
    on_gpu, own, on_cpu = ([j for j in jobs if j.name.startswith(chosen)] for jobs in (on_gpu, own, on_cpu))
    if not on_gpu + own + on_cpu:
        print(f"no job's name begins with: {' '.join(prefixes)}")
        return 2
    print(f"{len(on_gpu + own + on_cpu)} jobs, {at_once} at a time", flush=True)
    # One on a GPU is several processes: the tests, daemons, and what these start.
    n_gpu = (3 * at_once + 3) // 4 if on_gpu else 0
    gpu, cpu = ThreadPoolExecutor(max(n_gpu, 1)), ThreadPoolExecutor(max(at_once - n_gpu, 1))
    try:
        running = [gpu.submit(report.run, job) for job in on_gpu]
        rest = [cpu.submit(report.run, job) for job in on_cpu]
        wait(running)
        for job in own:
            report.run(job)
        for each in running + rest:
            each.result()
    except KeyboardInterrupt:
        for pool in (gpu, cpu):
            pool.shutdown(wait=False, cancel_futures=True)
        raise
    return report.finish()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
