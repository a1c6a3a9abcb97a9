"""A short endurance.py: some faults of each kind beside clients that verify every bit."""

import subprocess
import sys
from pathlib import Path


def test_twenty_faults_and_two_hangs():
    script = Path(__file__).with_name("endurance.py")
    options = ["--gib", "0.0625", "--workers", "3", "--faults", "20", "--hangs", "2"]
    done = subprocess.run([sys.executable, script, *options], capture_output=True, text=True, timeout=100)
    print(done.stdout)
    assert done.returncode == 0, done.stderr
    assert "ok: nothing was lost" in done.stdout
