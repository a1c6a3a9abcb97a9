"""An edit is served however it is saved, and whatever happens to files and folders around it."""

import os
import shutil
import signal
import subprocess
import time
import uuid

import pytest

from conftest import PATIENCE
from edits import SETTLE, broken, make_site, put, scale, site, until  # noqa: F401

GONE = 0.3  # seconds after which a file is gone for good


def in_place(path, text):
    path.write_text(text)


def in_place_without_truncating(path, text):
    with open(path, "r+") as file:
        file.write(text)
        file.truncate()


def rename_over(path, text):
    put(path, text)


def rename_from_elsewhere(path, text):
    new = path.parent.parent / "elsewhere"
    new.write_text(text)
    os.replace(new, path)


def vim(path, text):
    """Its backup dance, with the file that it tries whether it may create one."""
    path.with_name("4913").touch()
    path.with_name("4913").unlink()
    backup = path.with_name(path.name + "~")
    path.rename(backup)
    with open(path, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    path.chmod(0o644)
    backup.unlink()


def vim_backupcopy(path, text):
    backup = path.with_name(path.name + "~")
    shutil.copy2(path, backup)
    path.write_text(text)
    backup.unlink()


def emacs(path, text):
    """A lock that leads nowhere, an auto-save, the old file as the backup."""
    lock = path.with_name(".#" + path.name)
    lock.symlink_to("user@host.4711:1700000000")
    auto = path.with_name(f"#{path.name}#")
    auto.write_text(text[: len(text) // 2])
    path.rename(path.with_name(path.name + "~"))
    path.write_text(text)
    lock.unlink()
    auto.unlink()


def copy_over(path, text):
    new = path.parent.parent / "elsewhere"
    new.write_text(text)
    subprocess.run(["cp", "-p", new, path], check=True)


def unlink_and_write(path, text):
    path.unlink()
    path.write_text(text)


def same_second_same_size(path, text):
    """Neither its size nor its time tells."""
    before = path.stat()
    path.write_text(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size


WAYS = [
    in_place,
    in_place_without_truncating,
    rename_over,
    rename_from_elsewhere,
    vim,
    vim_backupcopy,
    emacs,
    copy_over,
    unlink_and_write,
    same_second_same_size,
]


def test_every_way_to_save(site):
    """Each is one edit, and none fails."""
    path = site.path("scale.cu")
    for version, way in enumerate(WAYS, start=2):
        factor = (version + 1) % 10
        way(path, scale(factor))
        result = site.await_value(factor)
        assert (way.__name__, result.version) == (way.__name__, version)
    kinds = [(e["kind"], e.get("version")) for e in site.events()]
    assert kinds == [("reloaded", v) for v in range(2, len(WAYS) + 2)]
    assert site.outcomes() == [("scale", "serving", v) for v in range(2, len(WAYS) + 2)]


@pytest.mark.skipif(not shutil.which("vim"), reason="needs vim")
def test_the_real_vim(site):
    command = ["vim", "-Nes", "-u", "NONE", "-c", "%s/x\\[i\\] . 2/x[i] * 3/", "-c", "wq"]
    subprocess.run([*command, str(site.path("scale.cu"))], stdin=subprocess.DEVNULL, timeout=PATIENCE)
    assert site.await_value(3).version == 2


def test_slowly_in_pieces(site):
    """What is half written is not served, and its failure is forgotten with the whole."""
    text = scale(3)
    size = len(text) // 7 + 1
    with open(site.path("scale.cu"), "w") as file:
        for start in range(0, len(text), size):
            file.write(text[start : start + size])
            file.flush()
            for _ in range(4):
                assert site.run().value in (2, 3)
                time.sleep(0.02)
    result = site.await_value(3)
    assert site.versions()[0] == (result.version, "serving")
    site.call("reload")
    assert not site.run().warnings
    with site.caller() as another:
        assert not another.run().warnings


def test_twenty_files_by_git(make_site):
    names = [f"op{i}" for i in range(20)]
    site = make_site({f"{name}.cu": scale(i + 1, name) for i, name in enumerate(names)})

    def git(*args):
        identity = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "core.hooksPath=/"]
        subprocess.run(["git", *identity, *args], cwd=site.folder, check=True, timeout=PATIENCE,
                       env={**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"})  # fmt: skip

    git("init", "-q", "-b", "one")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    git("checkout", "-q", "-b", "two")
    for i, name in enumerate(names):
        put(site.path(f"{name}.cu"), scale(i + 101, name))
    site.call("reload")
    git("commit", "-q", "-a", "-m", "two")
    mark = site.mark()
    git("checkout", "-q", "one")
    for i, name in enumerate(names):
        assert site.await_value(i + 1, name).version == 3
    told = [(e["kind"], e["op"], e["version"]) for e in site.events(mark)]
    assert sorted(told) == sorted(("reloaded", name, 3) for name in names)


def test_a_new_file(site):
    site.save("more.cu", scale(5, "more"))
    until(lambda: site.has("more"), bool)
    assert site.run("more").value == 5
    assert [(e["kind"], e["op"], e["version"]) for e in site.events()] == [("reloaded", "more", 1)]


def test_a_deleted_file(site):
    generation = site.call("status")["generation"]
    site.path("scale.cu").unlink()
    event = site.await_event("withdrawn", "scale")
    assert event["file"].endswith("scale.cu")
    assert site.fail("forward", "scale", [site.one()], {}, [99], {}).code == "not_found"
    assert site.fail("op_info", "scale").code == "not_found"
    assert not site.has("scale")
    assert site.call("status")["generation"] > generation
    site.save("scale.cu", scale(3))
    until(lambda: site.has("scale"), bool)
    assert site.await_value(3).version == 2


def test_reload_waits_until_a_file_is_gone(site):
    """Its answer is of the files as they are, not of what may yet come back."""
    site.path("scale.cu").unlink()
    assert site.outcomes() == [("scale", "withdrawn", 0)]
    assert not site.has("scale")
    assert site.outcomes() == []


def test_reload_waits_until_a_file_is_empty_for_good(site):
    site.path("scale.cu").write_text("")
    assert site.outcomes() == [("scale", "failed", 0)]
    assert site.run().value == 2


def test_a_link_that_leads_nowhere_any_more(site):
    path = site.path("scale.cu")
    path.unlink()
    path.symlink_to(path.parent / "nowhere")
    assert site.outcomes() == [("scale", "withdrawn", 0)]
    assert site.outcomes() == []


def test_gone_for_a_moment(site):
    path = site.path("scale.cu")
    away = site.root / "away"
    while True:
        mark, began = site.mark(), time.monotonic()
        path.rename(away)
        for _ in range(5):
            assert site.run().value == 2
        away.rename(path)
        if time.monotonic() - began < GONE / 2:
            break
        site.call("reload")  # the machine was busy, and that no moment: once more
        assert site.await_value(2)
    version = site.run().version
    time.sleep(SETTLE)
    assert site.run().version == version
    assert site.events(mark) == []


def test_files_that_are_no_operators(site):
    for name in ("scale.cu~", ".scale.cu.swp", ".#scale.cu", "#scale.cu#", "4913", "notes.txt"):
        (site.folder / name).write_text(scale(7))
    (site.folder / ".hidden.cu").write_text(scale(7))
    time.sleep(SETTLE)
    assert site.events() == []
    assert site.run().version == 1


def test_files_that_cannot_be_read(site):
    """A folder, a pipe, a link to nothing and an endless file, all named as operators."""
    (site.folder / "folder.cu").mkdir()
    os.mkfifo(site.folder / "pipe.cu")
    (site.folder / "nowhere.cu").symlink_to("/nowhere/nothing.cu")
    (site.folder / "zero.cu").symlink_to("/dev/zero")
    (site.folder / "huge.cu").write_text("//" * (1 << 20))
    (site.folder / "nul.cu").write_bytes(scale(7, "nul").encode() + b"\0")
    (site.folder / "latin.cu").write_bytes(scale(8, "latin").encode() + b"// \xe9\n")
    until(lambda: site.has("latin"), bool)
    assert site.run("latin").value == 8
    site.save("scale.cu", scale(3))
    assert site.await_value(3).version == 2
    failed = {e["file"].rsplit("/")[-1]: e["message"] for e in site.events() if e["kind"] == "failed"}
    assert failed.keys() >= {"folder.cu", "pipe.cu", "huge.cu", "nul.cu"}, failed
    for name, message in failed.items():
        assert name in message


def test_a_folder_renamed_away_and_back(site):
    away = site.root / "away"
    site.folder.rename(away)
    until(lambda: "is not there" in site.daemon.read_log(), bool)
    time.sleep(SETTLE)
    assert site.run().value == 2
    assert [e for e in site.events() if e["kind"] == "withdrawn"] == []
    put(away / "scale.cu", scale(3))
    away.rename(site.folder)
    assert site.await_value(3).version == 2
    site.save("scale.cu", scale(4))  # is it watched again?
    assert site.await_value(4).version == 3


def test_a_folder_replaced_by_another(site):
    other = site.root / "other"
    other.mkdir()
    put(other / "scale.cu", scale(5))
    put(other / "more.cu", scale(6, "more"))
    site.folder.rename(site.root / "away")
    other.rename(site.folder)
    assert site.await_value(5).version == 2
    until(lambda: site.has("more"), bool)
    put(site.root / "away" / "scale.cu", scale(9))  # it is no longer ours
    site.save("scale.cu", scale(7))
    assert site.await_value(7).version == 3


def test_a_folder_deleted_and_made_again(site):
    shutil.rmtree(site.folder)
    time.sleep(SETTLE)
    site.folder.mkdir()
    site.save("scale.cu", scale(4))
    until(lambda: site.has("scale"), bool)  # its file may have been missed before its folder was
    assert site.await_value(4)


def test_a_link_whose_target_is_edited(make_site):
    site = make_site({"elsewhere/real.cu": scale(2), "elsewhere/other.cu": scale(7)})
    link = site.path("linked.cu")
    link.symlink_to(site.path("elsewhere/real.cu"))
    until(lambda: site.has("scale"), bool)
    assert site.run().value == 2
    site.save("elsewhere/real.cu", scale(3))
    assert site.await_value(3).version == 2
    site.path("elsewhere/real.cu").write_text(scale(4))
    assert site.await_value(4).version == 3
    new = site.folder / ".new"
    new.symlink_to(site.path("elsewhere/other.cu"))
    new.rename(link)
    assert site.await_value(7).version == 4
    site.save("elsewhere/other.cu", scale(8))
    assert site.await_value(8).version == 5


def test_a_burst_is_one_edit(site):
    salt = uuid.uuid4().hex  # no text of this is in the cache
    texts = [scale(3 + i) + f"// {salt}\n" for i in range(40)]
    os.kill(site.daemon.pid, signal.SIGSTOP)  # for the daemon they come at once, however slow we are
    for text in texts:
        put(site.path("scale.cu"), text)
    os.kill(site.daemon.pid, signal.SIGCONT)
    assert site.await_value(42).version == 2
    assert [(e["kind"], e["version"]) for e in site.events()] == [("reloaded", 2)]


def test_an_edit_while_another_compiles(site):
    """The last one counts, also where those before it are under way or fail."""
    salt = uuid.uuid4().hex
    for factor in (3, "no_such_name", 4, 5):
        put(site.path("scale.cu"), scale(factor) + f"// {salt}\n")
        time.sleep(0.06)
    assert site.await_value(5)
    site.call("reload")
    result = site.run()
    assert (result.value, result.warnings) == (5, [])
    assert site.versions()[0] == (result.version, "serving")


def test_an_edit_taken_back(site):
    site.save("scale.cu", scale(3) + f"// {uuid.uuid4().hex}\n")
    time.sleep(0.01)  # it is seen, and compiles
    site.save("scale.cu", scale(2))
    site.call("reload")
    assert (site.run().value, site.run().version) == (2, 1)
    site.save("scale.cu", scale("no_such_name"))
    site.await_event("failed", "scale")
    mark = site.mark()
    site.save("scale.cu", scale(2))
    assert site.await_event("reloaded", "scale", mark)["version"] == 1
    with site.caller() as another:
        assert (another.run().version, another.run().warnings) == (1, [])


def test_nothing_changes_by_touching(site):
    path = site.path("scale.cu")
    os.utime(path)
    put(path, path.read_text())
    time.sleep(SETTLE)
    assert site.outcomes() == []
    assert site.events() == []
    assert site.versions() == [(1, "serving")]


def test_an_operator_renamed_in_its_file(site):
    site.save("scale.cu", scale(3, "stretch"))
    until(lambda: site.has("stretch"), bool)
    assert site.run("stretch").value == 3
    site.await_event("withdrawn", "scale")
    assert not site.has("scale")


def test_an_operator_renamed_by_an_edit_that_fails(site):
    """Nothing changes: the old name goes when the new one serves."""
    site.save("scale.cu", scale("no_such_name", "stretch"))
    event = site.await_event("failed")
    assert "no_such_name" in event["message"]
    time.sleep(SETTLE)
    assert site.run().value == 2
    site.save("scale.cu", scale(3, "stretch"))
    until(lambda: site.has("stretch"), bool)
    until(lambda: site.has("scale"), lambda there: not there)
    assert site.run("stretch").value == 3


def test_a_file_renamed(site):
    site.path("scale.cu").rename(site.path("other.cu"))
    site.save("other.cu", scale(3))
    until(lambda: site.call("op_info", "scale")["file"], lambda f: f.endswith("other.cu"))
    assert site.await_value(3)
    assert "withdrawn" not in [e["kind"] for e in site.events()]


@pytest.mark.parametrize("winner", ["later/scale.cu", "kernels/zzz.cu"])
def test_a_clash_and_its_end(make_site, winner):
    """Of two files of one operator the later folder's serves, else the later name."""
    site = make_site({"kernels/scale.cu": scale(2)}, folders=("kernels", "later"))
    assert site.run().value == 2
    site.save(winner, scale(3))
    assert site.await_value(3).version == 2
    site.save("kernels/scale.cu", scale(4))  # it does not count now
    time.sleep(SETTLE)
    assert site.run().version == 2
    site.path(winner).unlink()
    assert site.await_value(4).version == 3
    site.save("kernels/scale.cu", scale(5))
    assert site.await_value(5).version == 4


def test_a_clash_that_leaves_a_broken_file(make_site):
    """What served goes on, and it is told once."""
    site = make_site({"kernels/scale.cu": broken(), "later/scale.cu": scale(3)},
                     folders=("kernels", "later"))  # fmt: skip
    assert site.run().value == 3
    site.path("later/scale.cu").unlink()
    site.await_event("failed", "scale")
    site.save("more.cu", scale(5, "more"))  # all files are looked at again
    until(lambda: site.has("more"), bool)
    time.sleep(SETTLE)
    assert [e["kind"] for e in site.events() if e["op"] == "scale"] == ["failed"]
    assert site.run().value == 3
    site.save("kernels/scale.cu", scale(4))
    assert site.await_value(4)
