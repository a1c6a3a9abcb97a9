"""A daemon for one example: on a socket of its own, with the operators of this folder too."""

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import opd

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "build" / "examples"  # where the examples put their pictures


@contextlib.contextmanager
def serve(kernels=ROOT / "examples"):
    """A client of a daemon that ends with the block."""
    program = os.environ.get("OPD_BIN", str(ROOT / "build" / "opd"))
    with tempfile.TemporaryDirectory(prefix="opd-example-") as folder:
        socket = os.path.join(folder, "opd.sock")
        log = Path(folder) / "opd.log"
        with open(log, "wb") as err:
            daemon = subprocess.Popen(
                [program, "--socket", socket, "--kernels", str(kernels)],
                stdout=subprocess.PIPE,
                stderr=err,
            )
        if not daemon.stdout.readline().startswith(b"ready: "):
            sys.exit("the daemon did not start:\n" + log.read_text())
        client = opd.connect(socket=socket, start=False)
        try:
            for device in client.status()["devices"]:
                print(f"opd serves {device['name']}: {device['model']}")
            yield client
        finally:
            client.stop()
            daemon.wait(30)
            daemon.stdout.close()
