"""The cache of compiled kernels: what is found there, and what becomes of one that cannot be used."""

import os
import shutil
import subprocess

import pytest

from conftest import PROGRAM, ROOT
from operators import double, double_by, put_kernels
from raw import Raw, eventually
from upgrades import SCALE


def read_compiled(raw):
    return raw.call("status")["compilers"]["compiled"]


@pytest.fixture
def start(start_daemon, tmp_path):
    """start(source, cache): a daemon that serves `double_it`, with a cache of the test's own."""

    def start(source=double_by(2), cache=tmp_path / "cache"):
        kernels = put_kernels(tmp_path / "k", double_it=source)
        return start_daemon("--cache", str(cache), "--kernels", kernels)

    return start


def test_a_warm_cache_compiles_nothing(start):
    daemon = start()
    with Raw(daemon.socket) as raw:
        assert double(raw) == 42
        assert read_compiled(raw) == 1
    daemon.stop()
    daemon = start()
    with Raw(daemon.socket) as raw:
        assert double(raw) == 42
        compilers = raw.call("status")["compilers"]
        assert (compilers["compiled"], compilers["cache_hits"]) == (0, 1)
    daemon.stop()
    daemon = start(double_by(4))
    with Raw(daemon.socket) as raw:
        assert double(raw) == 84 and read_compiled(raw) == 1


def test_an_edited_header_is_compiled_anew(tmp_path, start):
    source = (
        double_by(2).replace("extern", '#include "factor.h"\nextern', 1).replace("* 2", "* TIMES")
    )
    header = tmp_path / "k" / "factor.h"
    header.parent.mkdir()
    for factor in (2, 5, 2):
        header.write_text(f"#define TIMES {factor}\n")
        daemon = start(source)
        with Raw(daemon.socket) as raw:
            assert double(raw) == 21 * factor
            last = read_compiled(raw)
        daemon.stop()
    assert last == 0


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "foreign"])
def test_a_damaged_cache_entry_is_a_miss(tmp_path, start, damage):
    daemon = start()
    with Raw(daemon.socket) as raw:
        double(raw)
    daemon.stop()
    entries = [p for p in (tmp_path / "cache").rglob("*") if p.is_file()]
    assert entries
    for entry in entries:
        data = bytearray(entry.read_bytes())
        if damage == "cut":
            data = data[: len(data) // 2]
        elif damage == "flip":
            data[len(data) // 2] ^= 1
        elif damage == "empty":
            data = b""
        else:
            data = b"#!/bin/sh\n" * 1000
        entry.chmod(0o600)
        entry.write_bytes(data)
    daemon = start()
    with Raw(daemon.socket) as raw:
        assert double(raw) == 42 and read_compiled(raw) == 1
    daemon.stop()
    daemon = start()
    with Raw(daemon.socket) as raw:
        assert double(raw) == 42 and read_compiled(raw) == 0


def serve_without_cache(start, cache):
    """Works all the same, and says so."""
    daemon = start(cache=cache)
    with Raw(daemon.socket) as raw:
        assert double(raw) == 42 and read_compiled(raw) == 1
    assert "cache" in daemon.read_log()
    daemon.stop()


def test_cache_that_cannot_be_made(tmp_path, start):
    (tmp_path / "file").write_text("x")
    serve_without_cache(start, tmp_path / "file" / "cache")


def test_cache_that_is_a_file(tmp_path, start):
    (tmp_path / "file").write_text("x")
    serve_without_cache(start, tmp_path / "file")


@pytest.fixture
def mount(tmp_path):
    """mount(options): a file system of its own; skipped where that is not allowed."""
    folder = tmp_path / "mounted"

    def make(options):
        folder.mkdir(exist_ok=True)
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "none", folder], capture_output=True
        )
        if done.returncode:
            pytest.skip(f"mounting is not allowed: {done.stderr.decode()}")
        return folder

    yield make
    subprocess.run(["umount", "-l", folder], capture_output=True)


def test_read_only_cache(tmp_path, start, request):
    cache = tmp_path / "cache"
    cache.mkdir()
    if os.geteuid() == 0:
        cache = request.getfixturevalue("mount")("ro")
    else:
        cache.chmod(0o500)
    serve_without_cache(start, cache)


def test_full_disk_under_the_cache(start, mount):
    cache = mount("size=4k")
    serve_without_cache(start, cache)
    assert not [p for p in cache.rglob("*") if p.is_file()], "pieces are left"


def test_no_cache(start):
    daemon = start(cache="")
    with Raw(daemon.socket) as raw:
        assert double(raw) == 42 and raw.call("status")["cache"] == ""


def test_warm(tmp_path, start_daemon):
    """The first requests after it find their kernels compiled. (A copy of the program, beside which
    there are few operators.)"""
    program = tmp_path / "build" / "opd"
    program.parent.mkdir()
    shutil.copy2(PROGRAM, program)
    folder = put_kernels(tmp_path / "kernels_src", double_it=double_by(2), scale=SCALE.replace("FACTOR", "1"))
    for part in (ROOT / "kernels_src").glob("opd*.cuh"):
        shutil.copy2(part, folder)
    daemon = start_daemon("--warm", program=str(program))
    with Raw(daemon.socket) as raw:

        def done():
            c = raw.call("status")["compilers"]
            return c["compiled"] + c["cache_hits"]

        # double_it for two dtypes, scale forward and backward
        assert eventually(lambda: done() == 4)
        assert double(raw) == 42
        raw.call("forward", "scale", [1], {}, [3], {"context": 1})
        raw.call("backward", 1, [3], [4])
        assert done() == 4
        assert raw.call("status")["compilers"]["failed"] == 0
