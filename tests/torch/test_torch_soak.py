"""A short soak of edits under training loops; training_soak.py is the long one. Its loops rest between steps: what
they wait for is compilers."""

import os
import warnings

import pytest
from torch_fixtures import TORCH_DEVICES
from training_soak import Soak

import opd


@pytest.mark.own_card
@pytest.mark.skipif(os.environ.get("OPD_ISOLATED") == "1", reason="all calls run in the daemon")
@pytest.mark.parametrize("device", TORCH_DEVICES)
def test_edits_under_training_loops(device):
    soak = Soak(device, rest=0.02)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", opd.ReloadWarning)
            soak.run(40, judge_daemon=False, replace_daemon=False)
    finally:
        soak.close()
