"""Two files of one operator: the one that loses is told of, not only in the log."""

import subprocess
from pathlib import Path

import pytest

import opd
from conftest import PROGRAM
from edits import make_site, put, scale, until  # noqa: F401

OPCTL = Path(PROGRAM).parent / "opctl"


def ask_opctl(site, *words):
    command = [OPCTL, "--socket", site.daemon.socket, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done
    return done.stdout + done.stderr


def shadowed(site):
    with site.caller() as caller:  # who was not there when it happened
        outcomes = caller.call("reload")
    return [o for o in outcomes if o["state"] == "shadowed"]


def test_an_edit_of_the_file_that_loses(make_site):
    site = make_site({"a.cu": scale(2), "b.cu": scale(3)})
    loser, winner = str(site.path("a.cu")), str(site.path("b.cu"))
    assert site.run().value == 3 and shadowed(site) == []
    assert site.call("op_info", "scale")["shadowed"] == [loser]
    put(Path(loser), scale(5))
    event = site.await_event("shadowed", "scale")
    assert event["file"] == loser and winner in event["message"]
    (told,) = shadowed(site)
    assert (told["op"], told["file"], told["version"]) == ("scale", loser, 0)
    assert f"{loser} is not served: {winner} gives operator scale too" in ask_opctl(site, "reload")
    assert f"not served  {loser}" in ask_opctl(site, "ops", "scale")
    assert "shadowed" in ask_opctl(site, "events", "--no-follow")
    with site.daemon.connect() as client:
        with pytest.warns(opd.ReloadWarning, match="gives operator scale too"):
            client.reload()
    site.call("upgrade")
    assert [o["file"] for o in shadowed(site)] == [loser]
    assert site.run().value == 3
    Path(winner).unlink()
    assert site.await_value(5)
    assert shadowed(site) == [] and site.call("op_info", "scale")["shadowed"] == []


def test_a_file_of_an_earlier_folder(make_site):
    files = {"first/scale.cu": scale(2), "second/scale.cu": scale(3)}
    site = make_site(files, folders=("first", "second"))
    loser = str(site.path("first/scale.cu"))
    assert site.run().value == 3 and shadowed(site) == []  # as it is meant to be
    put(Path(loser), scale(4))
    assert "last folder wins" in site.await_event("shadowed", "scale")["message"]
    assert [o["file"] for o in shadowed(site)] == [loser]
    Path(loser).unlink()
    until(lambda: shadowed(site), lambda told: told == [])
    assert site.run().value == 3
