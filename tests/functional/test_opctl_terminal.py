"""opctl on a terminal: tables that fit, colours, and top, which is drawn in place."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time

import numpy as np
import pytest
from conftest import PATIENCE, eventually
from test_opctl import ABSENT, GOOD, OPCTL, run

ENTER, LEAVE = "\x1b[?1049h", "\x1b[?25h\x1b[?1049l"


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, *command, columns=80, rows=24, **env):
        self.master, slave = pty.openpty()
        self.resize(columns, rows)
        self.before = termios.tcgetattr(self.master)
        self.out = ""
        keep = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS", "LINES")}
        self.pid = os.fork()
        if self.pid == 0:
            os.login_tty(slave) if hasattr(os, "login_tty") else self._login(slave)
            os.execve(command[0], [str(word) for word in command],
                      {**keep, "TERM": "xterm", "LC_ALL": "C.UTF-8", **env})
        os.close(slave)

    @staticmethod
    def _login(slave):
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        for fd in range(3):
            os.dup2(slave, fd)

    def resize(self, columns, rows):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self):
        """What there is."""
        try:
            while select.select([self.master], [], [], 0)[0]:
                self.out += os.read(self.master, 65536).decode(errors="replace")
        except OSError:  # it has ended
            pass
        return self.out

    def wait_for(self, pattern, after=0):
        assert eventually(lambda: re.search(pattern, self.read()[after:])), self.out[after:]
        return len(self.out)

    def press(self, keys):
        os.write(self.master, keys.encode())

    def frame(self):
        """The last one that is whole."""
        return self.read().rpartition("\x1b[J")[0].rpartition("\x1b[H")[2]

    def end(self):
        """What it writes to its end, and its exit status, below 0 that of a signal. The terminal is as before."""
        end = time.monotonic() + PATIENCE
        while (ended := os.waitpid(self.pid, os.WNOHANG))[0] == 0 and time.monotonic() < end:
            self.read()
            time.sleep(0.01)
        assert ended[0] == self.pid, self.out
        self.read()
        assert termios.tcgetattr(self.master)[3] == self.before[3]
        os.close(self.master)
        return os.waitstatus_to_exitcode(ended[1])


@pytest.fixture
def opctl(daemon):
    return lambda *args, **options: Terminal(OPCTL, "--socket", daemon.socket, *args, **options)


def plain(text):
    return re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", text).replace("\r", "")


@pytest.mark.parametrize("columns", (40, 80, 200))
def test_tables_fit(opctl, client, columns):
    name = f"kept/日本語/{columns}/" + 50 * "n"
    x = client.tensor(np.ones((2, 3), np.float32), name=name)
    for command in (["ops"], ["status"], ["tensors"], ["top", "--no-follow"], ["ops", "gelu"]):
        terminal = opctl(*command, columns=columns)
        assert terminal.end() == GOOD
        assert "\x1b[1m" in terminal.out  # a head
        for line in plain(terminal.out).splitlines():
            width = len(line) + sum(c in "日本語" for c in line)
            assert width <= columns or " " not in line[12:].strip(), line  # a path is as long as it is
        wide = opctl(*command, "--wide", columns=columns)
        assert wide.end() == GOOD
        if command == ["tensors"]:
            assert ("f32" in terminal.out) and (name in terminal.out) == (columns == 200)
            assert name in wide.out
        if command == ["ops"]:
            assert "bf16" in terminal.out or columns == 40
            assert max(map(len, plain(wide.out).splitlines())) > 100
    x.free()


def test_a_name_is_whole_as_long_as_another_column_can_go(opctl, client):
    x = client.tensor(np.ones(262144, np.float32), name="weights_of_the_layer")
    for columns in (60, 80):
        terminal = opctl("tensors", columns=columns)
        assert terminal.end() == GOOD and "weights_of_the_layer  f32" in terminal.out
    x.free()


def test_colours(daemon, opctl):
    """Where there is a terminal that has them, and nobody is against it."""
    terminal = opctl("status")
    assert terminal.end() == GOOD and re.search("\x1b\\[32mready *\x1b\\[m", terminal.out)
    for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        terminal = opctl("status", **env)
        assert terminal.end() == GOOD and "\x1b" not in terminal.out
    empty = opctl("status", NO_COLOR="")
    assert empty.end() == GOOD and "\x1b[32m" in empty.out
    assert "\x1b" not in run("--socket", daemon.socket, "status").stdout
    wrong = Terminal(OPCTL, "--socket", "/none", "status")
    assert wrong.end() == ABSENT and "\x1b[31mopctl: connection_lost: \x1b[m" in wrong.out


def test_top_in_place(start_daemon):
    """Sorted by keys, drawn anew at another size, and gone on q, as it was before."""
    daemon = start_daemon()
    client = daemon.connect()
    x = client.tensor(np.ones(1000, np.float32))
    for _ in range(3):
        client.ops.gelu(x)
    client.ops.add(x, x)
    terminal = Terminal(OPCTL, "--socket", daemon.socket, "top", columns=100, rows=30)
    terminal.wait_for(r"OPERATOR")
    assert terminal.out.startswith(ENTER)
    terminal.wait_for(r"cpu .*B/s|cuda.*B/s")  # what it copies is measured by now

    def operators():
        rows = plain(terminal.frame()).split("OPERATOR")[-1].split("CLIENT")[0].splitlines()[1:]
        return [row.split()[0] for row in rows if row.strip()]

    terminal.press("n")
    assert eventually(lambda: operators() == ["add", "gelu"])
    terminal.press("r")
    assert eventually(lambda: operators() == ["gelu", "add"])
    terminal.resize(40, 12)
    os.kill(terminal.pid, signal.SIGWINCH)
    assert eventually(lambda: "TIME" not in plain(terminal.frame()))
    lines = plain(terminal.frame()).splitlines()
    assert len(lines) <= 12 and max(map(len, lines)) <= 40
    # A daemon that is slow is told of in its place.
    assert eventually(lambda: plain(terminal.frame()).splitlines()[-1].startswith("q quit"))
    terminal.press("\x1b[Bxq")  # an arrow, what is no key, the end
    assert terminal.end() == GOOD
    client.close()
    assert terminal.out.endswith(LEAVE)


@pytest.mark.parametrize("number", (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGABRT, signal.SIGSEGV))
def test_top_ended_by_a_signal(opctl, number):
    terminal = opctl("top")
    terminal.wait_for("OPERATOR")
    if number == signal.SIGINT:
        terminal.press("\x03")
    else:
        os.kill(terminal.pid, number)
    assert terminal.end() == -number
    assert terminal.out.endswith(LEAVE)


def test_top_is_stopped_and_goes_on(opctl):
    terminal = opctl("top")
    at = terminal.wait_for("OPERATOR")
    terminal.press("\x1a")
    assert eventually(lambda: os.waitpid(terminal.pid, os.WUNTRACED | os.WNOHANG)[0])
    assert LEAVE in terminal.read()[at:]
    at = len(terminal.out)
    os.kill(terminal.pid, signal.SIGCONT)
    terminal.wait_for(re.escape(ENTER) + "(?s:.*)OPERATOR", at)
    # Without a word beforehand, and the shell has set the terminal as it likes it.
    os.kill(terminal.pid, signal.SIGSTOP)
    assert eventually(lambda: os.waitpid(terminal.pid, os.WUNTRACED | os.WNOHANG)[0])
    at = len(terminal.read())
    termios.tcsetattr(terminal.master, termios.TCSANOW, terminal.before)
    os.kill(terminal.pid, signal.SIGCONT)
    terminal.wait_for(re.escape(ENTER) + "(?s:.*)OPERATOR", at)
    terminal.press("q")
    assert terminal.end() == GOOD


def test_top_of_a_daemon_that_ends(start_daemon):
    daemon = start_daemon()
    terminal = Terminal(OPCTL, "--socket", daemon.socket, "top")
    terminal.wait_for("OPERATOR")
    daemon.process.kill()
    daemon.process.wait(PATIENCE)
    assert terminal.end() == ABSENT
    assert "opctl: connection_lost" in plain(terminal.out.rpartition(LEAVE)[2])


def test_top_of_a_daemon_that_hangs(start_daemon):
    daemon = start_daemon()
    terminal = Terminal(OPCTL, "--socket", daemon.socket, "top")
    terminal.wait_for("OPERATOR")
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        terminal.wait_for("does not answer")
        terminal.press("q")
        assert terminal.end() == GOOD
    finally:
        os.kill(daemon.pid, signal.SIGCONT)


def test_top_without_a_terminal_that_can_be_drawn_over(opctl):
    terminal = opctl("top", TERM="dumb")
    terminal.wait_for("OPERATOR")
    os.kill(terminal.pid, signal.SIGTERM)
    assert terminal.end() == -signal.SIGTERM and "\x1b" not in terminal.out
