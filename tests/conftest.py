"""A real daemon for tests: `daemon`, shared by the session, and `start_daemon()` for tests
that need their own.

$OPD_TEST_DEVICE  the device, else cpu
$OPD_BIN          the daemon, else build/opd
$OPD_TEST_SPARE   --spare of daemons that name none; else theirs
$OPD_CXX          the host's compiler; tests/quick-c++.sh is not for tests that are marked as_shipped
"""

import gc
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "client" / "python"))

import opd  # noqa: E402

os.environ["XDG_CONFIG_HOME"] = "/nonexistent"  # no opd.conf of who runs the tests
os.environ.pop("OPD_KERNELS", None)
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(ROOT / "build" / "test-inductor"))  # no other tree's

PROGRAM = os.environ.get("OPD_BIN", str(ROOT / "build" / "opd"))
DEVICE = os.environ.get("OPD_TEST_DEVICE", "cpu")
SANITIZED = any(word in Path(PROGRAM).read_bytes() for word in (b"__asan_init", b"__tsan_init"))
CACHE = ROOT / "build" / "test-cache"
QUICK_CXX = str(ROOT / "tests" / "quick-c++.sh")
PATIENCE = 120  # seconds for what must come: it comes in far less, but on a slow machine beside others
TEST_SECONDS = 600

# The shell's & and nohup have us ignore these, and what we start would: a program that is run takes
# over what is ignored, but not what is handled.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)


class Daemon:
    """build/opd on a socket in a folder of its own, or where it is told, until stop()."""

    def __init__(self, *options, device=DEVICE, program=PROGRAM, socket=None, as_shipped=False):
        self.environment = as_for_users() if as_shipped else None
        self.folder = Path(tempfile.mkdtemp(prefix="opd-test-"))
        self.socket = str(socket or self.folder / "opd.sock")
        self.log = self.folder / "opd.log"
        command = [program, "--socket", self.socket, "--device", device, "--cache", str(CACHE)]
        command += ["--keep", "5"]  # after one that a test has killed nobody comes, but in test_keeper.py
        if "OPD_TEST_SPARE" in os.environ and "--spare" not in options:
            command += ["--spare", os.environ["OPD_TEST_SPARE"]]
        self.process = None
        try:
            self._start([*command, *options])
        except BaseException:
            if self.process:
                self.process.kill()
                self.process.wait()
            shutil.rmtree(self.folder)
            raise

    def connect(self, **options):
        return opd.connect(self.socket, start=False, **options)

    def read_log(self):
        return self.log.read_text(errors="replace")

    def alive(self):
        return self.process.poll() is None

    def stop(self, seconds=PATIENCE):
        """Ends it as a user would; AssertionError if that fails or leaves something behind."""
        family = find_family(self.pid)
        self.process.terminate()
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = f"still running {seconds} s after SIGTERM"
        left = await_end(family)
        for pid, _ in left:
            os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()
        assert status == 0, f"the daemon ended with {status}; its log:\n{shorten(self.read_log())}"
        assert not left, f"processes left: {left}; the log:\n{shorten(self.read_log())}"
        assert not os.path.exists(self.socket), "the daemon left its socket"
        self.clear()

    def clear(self):
        """After its end, which the test may have brought about: its folder goes, unless a
        sanitizer found something in one of its processes."""
        assert not (report := find_report(self.read_log())), report
        shutil.rmtree(self.folder)

    def start_again(self):
        """On the same socket, where somebody has killed its process."""
        self.process.wait(PATIENCE)
        self.process.stdout.close()
        self._start(self.process.args)

    def _start(self, command):
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env=self.environment,
            )
        self.pid = self.process.pid
        self.ready = self._await_ready(PATIENCE)

    def _await_ready(self, seconds):
        end = time.monotonic() + seconds
        out = b""
        while not out.endswith(b"\n"):
            left = end - time.monotonic()
            ready, _, _ = select.select([self.process.stdout], [], [], max(left, 0))
            data = os.read(self.process.stdout.fileno(), 4096) if ready else b""
            if not data:
                why = "ended" if ready else f"is not ready after {seconds} s"
                raise AssertionError(f"the daemon {why}; its log:\n{self.read_log()}")
            out += data
        assert out.startswith(b"ready: " + self.socket.encode()), out
        return out.decode()


def as_for_users():
    """The environment, where the host's compiler makes all that it can of kernels."""
    return {name: value for name, value in os.environ.items() if (name, value) != ("OPD_CXX", QUICK_CXX)}


def shorten(log, most=60):
    """The end of a log. What the threads of a kernel have said, each of itself, is there once."""
    lines = []  # [text, how many, all but its numbers]
    for text in log.splitlines():
        words = re.sub(r"\d+", "", text)
        if lines and lines[-1][2] == words:
            lines[-1][1] += 1
        else:
            lines.append([text, 1, words])
    cut = [f"({len(lines) - most} lines before)"] if len(lines) > most else []
    return "\n".join(cut + [text[:500] + (f" ({n} such lines)" if n > 1 else "") for text, n, _ in lines[-most:]])


def find_report(log):
    """The first report of a sanitizer. A signal in a kernel is none: these are part of the tests."""
    for found in re.finditer(r"ERROR: \w+Sanitizer: (\w+)|runtime error:", log):
        report = log[max(found.start() - 200, 0) : found.start() + 10000]
        in_kernel = re.search(r"#\d+ .* (opd_cpu_launch<|in run_main )", report.partition("SUMMARY:")[0])
        if found[1] not in ("SEGV", "BUS", "ILL", "FPE", "ABRT") or not in_kernel:
            return report
    return None


def find_family(pid):
    """The process and its descendants, as (pid, start time): pids are used again."""
    parents = {}
    for entry in os.listdir("/proc"):
        stat = read_stat(int(entry)) if entry.isdigit() else None
        if stat:
            parents[int(entry)] = (int(stat[1]), stat[19])
    family = {pid}
    while True:
        more = {p for p, (parent, _) in parents.items() if parent in family} - family
        if not more:
            return [(p, parents[p][1]) for p in family if p in parents]
        family |= more


def read_stat(pid):
    """The fields of /proc/PID/stat from the state on; None if it ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else fields


def await_end(family, seconds=PATIENCE):
    """Those still alive after that time."""
    end = time.monotonic() + seconds
    while True:
        left = [(p, s) for p, s in family if (stat := read_stat(p)) and stat[19] == s]
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.02)


def eventually(holds, seconds=PATIENCE):
    """Waits until `holds()`, and returns what it last was."""
    end = time.monotonic() + seconds
    while not (value := holds()) and time.monotonic() < end:
        time.sleep(0.02)
    return value


@contextmanager
def beside(run):
    """run(over) in a thread of its own beside the block, which sets `over`, an event, at its end."""
    over = threading.Event()
    thread = threading.Thread(target=run, args=[over])
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def can_compile():
    """Programs in C that use libopd."""
    command = ["cc", "-E", "-x", "c", "-"]
    test = "#include <msgpack.h>\n"
    return shutil.which("cc") and subprocess.run(command, input=test, text=True, capture_output=True).returncode == 0


def in_threads(count, work):
    """Calls work(0), work(1), ... at once, each in a thread of its own. The first error is raised."""
    errors = []

    def run(number):
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.fixture(autouse=True)
def time_limit():
    """A test that hangs fails, with a traceback of where."""

    def expire(signum, frame):
        raise TimeoutError(f"the test took more than {TEST_SECONDS} s")

    signal.signal(signal.SIGALRM, expire)
    signal.alarm(TEST_SECONDS)
    yield
    signal.alarm(0)


@pytest.fixture(autouse=True)
def compiler(request):
    """The host's, of what a test starts; None: what opd finds."""
    if request.node.get_closest_marker("as_shipped") and "OPD_CXX" not in as_for_users():
        request.getfixturevalue("monkeypatch").delenv("OPD_CXX", raising=False)
    return os.environ.get("OPD_CXX")


@pytest.fixture(scope="session")
def _shared():
    daemons = {}  # by the compiler
    yield daemons
    for daemon in daemons.values():
        daemon.stop()


@pytest.fixture
def daemon(_shared, compiler):
    """A running daemon; tests share it, and must leave it alive and without named tensors."""
    if compiler not in _shared:
        _shared[compiler] = Daemon()
    yield _shared[compiler]
    if not _shared[compiler].alive():
        dead = _shared.pop(compiler)
        pytest.fail(f"the daemon died of this test; its log:\n{dead.read_log()}")


@pytest.fixture(scope="session")
def start_shared():
    """start_shared(*options): a daemon for many tests, stopped after the last."""
    daemons = []

    def start(*options, **keywords):
        daemons.append(Daemon(*options, **keywords))
        return daemons[-1]

    yield start
    for daemon in daemons:
        daemon.stop()


@pytest.fixture
def client(daemon):
    with daemon.connect() as client:
        yield client


@pytest.fixture
def start_daemon():
    """start_daemon(*options): a daemon of the test's own, stopped after it unless the test did."""
    daemons = []

    def start(*options, **keywords):
        daemons.append(Daemon(*options, **keywords))
        return daemons[-1]

    yield start
    for daemon in daemons:
        if daemon.alive():
            daemon.stop()
        elif daemon.folder.exists():
            daemon.clear()


@pytest.fixture
def slow_cxx(tmp_path, monkeypatch):
    """The host's compiler, which waits until it is told to go on."""

    class Control:
        begun, go = tmp_path / "begun", tmp_path / "go"

    script = tmp_path / "slow-c++"
    script.write_text(
        f'#!/bin/sh\ncase "$*" in *opd.cpp*) ;; *) exec c++ "$@" ;; esac\n'
        f": > {Control.begun}\nwhile [ ! -e {Control.go} ]; do sleep 0.02; done\n"
        'exec c++ "$@"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("OPD_CXX", str(script))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    yield Control
    Control.go.touch()


worst_errors = {}  # (operator, dtype, what): error; a worker of pytest-xdist sends its own at its end


@pytest.fixture
def record_worst():
    """record_worst(operator, dtype, what, error): the worst of each is printed after the run."""

    def record(name, dtype, what, error):
        key = (name, dtype, what)
        worst_errors[key] = max(float(error), worst_errors.get(key, 0.0))  # which a worker can send

    return record


def pytest_configure(config):
    config.addinivalue_line("markers", "own_card: takes much of a GPU, or compares what is taken of it: wants it alone")
    config.addinivalue_line("markers", "unsanitized(why): not of a sanitizer's build, by which `make test` has the others")
    config.addinivalue_line("markers", "in_both(why): there, too, and without: it is held to less there")
    config.addinivalue_line("markers", "as_shipped: of what the compiler makes of kernels: not with quick-c++.sh")
    # Tests that break a file on purpose would bury what else there is. pytest.warns() sees them all the same.
    config.addinivalue_line("filterwarnings", "ignore::opd.ReloadWarning")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    for item in items if SANITIZED else []:
        if mark := item.get_closest_marker("unsanitized"):
            item.add_marker(pytest.mark.skip(reason=mark.args[0]))


def pytest_collection_finish():
    gc.freeze()  # torch and all that is imported is not looked through at each gc.collect() of a test
    gc.set_threshold(50_000, 20, 100)  # what tests import later is seldom looked through: a quarter of torch's time


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report):
    """A job of check_gpu.py may be ended before pytest tells at its end why tests have failed."""
    if report.failed and "OPD_CHECK_JOB" in os.environ:
        print(f"\n==== failed: {report.nodeid}, {report.when}\n{report.longreprtext}", flush=True)


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["worst_errors"] = list(worst_errors.items())


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    for key, worst in getattr(node, "workeroutput", {}).get("worst_errors", []):
        worst_errors[tuple(key)] = max(worst, worst_errors.get(tuple(key), 0.0))


def pytest_terminal_summary(terminalreporter):
    if not worst_errors:
        return
    names = sorted({(name, what) for name, _, what in worst_errors})
    dtypes = ["float64", "float32", "bfloat16", "float16"]
    terminalreporter.write_line("worst error, ||out - ref|| / ||ref||")
    terminalreporter.write_line(f"{'':36}" + "".join(f"{d:>12}" for d in dtypes))
    for name, what in names:
        cells = "".join(f"{worst_errors.get((name, d, what), float('nan')):12.1e}" for d in dtypes)
        terminalreporter.write_line(f"{name + ' ' + what:36}{cells}")
