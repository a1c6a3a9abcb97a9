"""Whose compile begins, and which are dropped: between clients, checks, first calls and edits. The
compiler is the host's, which holds what it is told to hold, so nothing here depends on time."""

import os
import signal
import stat

import pytest

from conftest import await_end, find_family, read_stat
from operators import double, double_by, put_kernels
from raw import Raw, eventually, find_roles


TWO_KERNELS = """\
//! op      two(Tensor x) -> Tensor y
//! dtypes  float32
//! shape   x [N]
//! shape   y [N]
//
//! forward
//!   kernel  fails<1>
//!   kernel  held_second

template <int I> __global__ void fails(const float *x, float *y, long long N)
{
    static_assert(I == 0, "it fails");
}

extern "C" __global__ void held_second(const float *x, float *y, long long N)
{
    y[0] = x[0];
}
"""


class Held:
    """Compiles of source("word"), and of a kernel held_word, begin and wait until release("word")."""

    def __init__(self, folder):
        self.folder = folder
        self.cxx = folder / "c++"
        self.cxx.write_text(
            '#!/bin/sh\ncase "$*" in *opd.cpp*) ;; *) exec c++ "$@" ;; esac\n'
            "word=$(grep -v '^//\\|void held_' opd.cpp | grep -o 'held_[a-z0-9]*' | head -n 1)\n"
            f'echo "$word" >> {folder}/begun\n'
            f'while [ "$word" ] && [ ! -e {folder}/go-$word ]; do sleep 0.02; done\n'
            'exec c++ "$@"\n'
        )
        self.cxx.chmod(self.cxx.stat().st_mode | stat.S_IXUSR)

    def source(self, word, factor=2):
        return double_by(f"(float)({factor} - 8 + (int)sizeof(struct held_{word} *))")

    def begun(self):
        path = self.folder / "begun"
        return [w.removeprefix("held_") for w in path.read_text().split()] if path.exists() else []

    def await_begun(self, word, n=1):
        assert eventually(lambda: self.begun().count(word) >= n, 60), self.begun()

    def release(self, word):
        (self.folder / f"go-held_{word}").touch()

    def running(self, daemon):
        """Compilers of held sources, as find_family() has processes."""
        script = os.fsencode(self.cxx)

        def is_held(pid):
            try:
                words = open(f"/proc/{pid}/cmdline", "rb").read().split(b"\0")
            except OSError:
                return False
            return script in words[:2] and any(b"opd.cpp" in w for w in words)

        held = {pid: start for pid, start in find_family(daemon.pid) if is_held(pid)}
        # A child of the script has its command line until it runs a program.
        return [(pid, start) for pid, start in held.items() if parent(pid) not in held]


@pytest.fixture
def held(tmp_path, monkeypatch):
    folder = tmp_path / "held"
    folder.mkdir()
    monkeypatch.setenv("OPD_CXX", str(folder / "c++"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return Held(folder)


@pytest.fixture
def start(start_daemon, tmp_path):
    def start(*options, **sources):
        folder = put_kernels(tmp_path / "kernels", **sources)
        return start_daemon("--kernels", folder, "--cache", "", *options, device="cpu")

    return start


def check(raw, held, word):
    options = {"targets": ["cpu"], "dtypes": ["float32"]}
    return raw.request("check", f"{word}.cu", "", held.source(word), options)


def parent(pid):
    stat = read_stat(pid)
    return int(stat[1]) if stat else 0


def find_children(pids):
    return [child for pid in pids for child, _ in find_family(pid) if child != pid]


def nice(pid):
    """None: it has ended meanwhile."""
    stat = read_stat(pid)
    return stat and int(stat[16])


@pytest.mark.parametrize("compilers", ["1", "2"])
def test_first_call_beside_checks(held, start, compilers):
    """Checks that do not end, of one client on several connections, hold up nobody's first call."""
    daemon = start("--compilers", compilers, double_it=double_by(2))
    with Raw(daemon.socket) as a, Raw(daemon.socket) as b, Raw(daemon.socket) as other:
        for i in range(20):
            check((a, b)[i % 2], held, f"c{i}")
        held.await_begun("c0")
        assert double(other) == 42
        assert len(held.begun()) < 20


def test_what_waits_for_kernels_that_go(held, start, tmp_path):
    """A version that is retired takes its compiles along: who waits runs what is served then."""
    daemon = start(double_it=held.source("old"))
    with Raw(daemon.socket) as raw, Raw(daemon.socket) as other:
        raw.make(1, "float32", [1])
        put_kernels(tmp_path / "kernels", double_it=double_by(3))
        other.call("reload")
        other.call("pin", "double_it", 1)
        waits = raw.request("forward", "double_it", [1], {}, [2])
        held.await_begun("old")
        other.call("pin", "double_it", None)
        assert raw.wait(waits)["version"] == 2


def test_priorities(held, start):
    """What somebody waits for is compiled at the daemon's priority, checks below it."""
    daemon = start(double_it=held.source("call"))
    with Raw(daemon.socket) as a, Raw(daemon.socket) as b:
        checked = check(a, held, "check")
        held.await_begun("check")
        (low,) = held.running(daemon)
        assert nice(low[0]) > nice(daemon.pid)
        b.make(1, "float32", [1])
        called = b.request("forward", "double_it", [1], {}, [2])
        held.await_begun("call")
        (normal,) = [p for p in held.running(daemon) if p != low]
        assert nice(normal[0]) == nice(daemon.pid)
        held.release("check")
        held.release("call")
        assert a.wait(checked)["ok"]
        b.wait(called)


def test_turns_of_checks(held, start):
    """Another client's check is begun, though one has more under way than there are compilers."""
    daemon = start("--compilers", "1")
    with Raw(daemon.socket) as a, Raw(daemon.socket) as b:
        for i in range(5):
            check(a, held, f"a{i}")
        held.await_begun("a0")
        asked = check(b, held, "b")
        held.await_begun("b")
        held.release("b")
        assert b.wait(asked)["ok"]
        assert held.begun() == ["a0", "b"]


def test_compilers_end_that_are_too_many(held, start):
    """One that was started for another client's turn ends after it."""
    daemon = start("--compilers", "1")
    with Raw(daemon.socket) as a, Raw(daemon.socket) as b:
        asked = [check(a, held, "a"), check(b, held, "b")]
        held.await_begun("a")
        held.await_begun("b")
        assert len(find_roles(daemon.pid, "compiler")) == 3  # one has told who it is
        held.release("a")
        held.release("b")
        assert a.wait(asked[0])["ok"] and b.wait(asked[1])["ok"]
        assert eventually(lambda: len(find_roles(daemon.pid, "compiler")) == 2)


def test_of_two_that_are_too_many_one_stays(held, start):
    """Though the daemon hears of both at once."""
    daemon = start("--compilers", "1")
    with Raw(daemon.socket) as a, Raw(daemon.socket) as b:
        asked = [check(a, held, "a"), check(b, held, "b")]
        held.await_begun("a")
        held.await_begun("b")
        before = find_roles(daemon.pid, "compiler")
        os.kill(daemon.pid, signal.SIGSTOP)
        held.release("a")
        held.release("b")
        # They have answered, and wait for more.
        assert eventually(lambda: not find_children(before) and all(read_stat(p)[0] == "S" for p in before))
        os.kill(daemon.pid, signal.SIGCONT)
        assert a.wait(asked[0])["ok"] and b.wait(asked[1])["ok"]
        held.release("c")
        assert a.wait(check(a, held, "c"))["ok"]
        assert eventually(lambda: len(find_roles(daemon.pid, "compiler")) == 2)
        assert set(find_roles(daemon.pid, "compiler")) < set(before)


def test_client_gone(held, start):
    """What only a client that hangs up waits for is dropped: what waits, and what is compiled."""
    daemon = start("--compilers", "2", double_it=held.source("call"))
    with Raw(daemon.socket) as raw:
        with Raw(daemon.socket) as gone:
            for i in range(8):
                check(gone, held, f"c{i}")
            held.await_begun("c0")
            held.await_begun("c1")
        with Raw(daemon.socket) as gone:
            gone.make(1, "float32", [1])
            gone.request("forward", "double_it", [1], {}, [2])
            held.await_begun("call")
        assert eventually(lambda: not held.running(daemon), 60)
        assert "opd_compiles_waiting 0\n" in raw.call("metrics")
        assert raw.call("status")["compilers"]["failed"] == 0
        assert sorted(held.begun()) == ["c0", "c1", "call"]
        held.release("call")
        assert double(raw) == 42


def test_first_of_two_gone(held, start):
    """A compile that two clients wait for goes on when the one that asked first hangs up."""
    daemon = start(double_it=held.source("call"))
    with Raw(daemon.socket) as raw:
        raw.make(1, "float32", [1])
        with Raw(daemon.socket) as gone:
            gone.make(1, "float32", [1])
            gone.request("forward", "double_it", [1], {}, [2])
            held.await_begun("call")
            called = raw.request("forward", "double_it", [1], {}, [2])
            with Raw(daemon.socket) as third:  # answered after the two were begun
                third.call("status")
        held.release("call")
        raw.wait(called)
    assert held.begun() == ["call"]


def test_kernel_that_fails_ends_the_wait(held, start):
    """Of an operator of two kernels one fails: nobody waits for the other any more."""
    daemon = start("--compilers", "2", two=TWO_KERNELS)
    with Raw(daemon.socket) as raw:
        raw.make(1, "float32", [1])
        error = raw.fail("forward", "two", [1], {}, [2])
        assert error.code == "compile_error"
        assert eventually(lambda: not held.running(daemon), 60)


def test_overtaken_edits(held, start, tmp_path):
    """An edit that a later one overtakes is not compiled to its end."""
    daemon = start("--compilers", "1", double_it=double_by(2))
    path = tmp_path / "kernels" / "double_it.cu"

    def save(text):
        new = path.with_name(".new")
        new.write_text(text)
        new.rename(path)

    with Raw(daemon.socket) as raw:
        assert double(raw) == 42
        before = raw.call("status")["compilers"]
        for i in range(4):
            save(held.source(f"e{i}"))
            held.await_begun(f"e{i}")
        save(double_by(3))
        assert [r["state"] for r in raw.call("reload")] == ["serving"]
        assert double(raw, 3) == 63
        assert await_end(held.running(daemon), 60) == []
        after = raw.call("status")["compilers"]
        assert after["compiled"] - before["compiled"] == 1
        assert after["failed"] == before["failed"]


def test_edit_beside_checks(held, start, tmp_path):
    """An edit is served while checks hold every process that they can have."""
    daemon = start("--compilers", "1", double_it=double_by(2))
    with Raw(daemon.socket) as raw, Raw(daemon.socket) as other:
        assert double(raw) == 42
        for i in range(4):
            check(other, held, f"c{i}")
        held.await_begun("c0")
        (tmp_path / "kernels" / "double_it.cu").write_text(double_by(3))
        assert [r["state"] for r in raw.call("reload")] == ["serving"]
        assert double(raw, 3) == 63


def test_call_takes_over_what_is_warmed(held, start):
    """A first call does not wait behind --warm, nor at its priority."""
    sources = {f"a{i}": held.source(f"w{i}").replace("double_it", f"a{i}") for i in range(4)}
    daemon = start("--compilers", "1", "--warm", double_it=held.source("call"), **sources)
    with Raw(daemon.socket) as raw:
        held.await_begun("w0")
        raw.make(1, "float32", [1])
        called = raw.request("forward", "double_it", [1], {}, [2])

        def runs_at_normal():
            return [p for p, _ in held.running(daemon) if nice(p) == nice(daemon.pid)]

        assert eventually(runs_at_normal, 60)
        held.release("call")
        raw.wait(called)
