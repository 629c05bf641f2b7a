"""Rounds of killed runs and launches and a lost ledger; hundreds by the module's own command."""

import json
import subprocess
import sys

import pytest

from dpsynth_assets_tests.chaos.installation import KINDS
from dpsynth_assets_tests.faults.conftest import ROOT

pytestmark = pytest.mark.slow


def test_no_kill_leaves_a_hang_or_pays_twice():
    command = [sys.executable, "-m", "dpsynth_assets_tests.chaos.installation"]
    command += ["--rounds", str(len(KINDS)), "--minutes", "60"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["problems"] == []
    assert told["rounds"] == dict.fromkeys(KINDS, 1)
    assert told["kills"] >= 4
