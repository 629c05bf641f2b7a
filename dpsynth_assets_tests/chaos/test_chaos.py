"""Exactly-once ε under SIGKILL: rounds of two racing writers on each database.

25 rounds let the two die in every pair of phases once; hundreds come by

    DPSYNTH_CHAOS_ROUNDS=200 python -m pytest dpsynth_assets_tests/chaos/test_chaos.py

After every round: what is spent covers what is stored, nothing is stored without a charge before
it, the budget holds, a retry returns the stored bytes and pays nothing, and nothing half-written is
ever taken for a release (`rounds.Chaos.check` and `retry`).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dpsynth_assets_tests.chaos.writers import PHASES

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = int(os.environ.get("DPSYNTH_CHAOS_ROUNDS", "25"))


def chaos(url, folder, rounds=ROUNDS):
    """Runs the rounds in a process of its own, where forking is safe."""
    one_thread = {"OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
    asked = {"url": url, "folder": str(folder), "rounds": rounds, "seed": 1}
    done = subprocess.run(
        [sys.executable, "-m", "dpsynth_assets_tests.chaos.rounds"],
        input=json.dumps(asked),
        env={**os.environ, **one_thread},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=600,
    )
    return json.loads(done.stdout)


@pytest.fixture
def sqlite_url(tmp_path):
    return f"sqlite:///{tmp_path / 'ledger' / 'ledger.sqlite'}"


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite_url", "postgres_url"])
def test_no_kill_loses_a_charge_or_pays_twice(request, tmp_path, record_property, database):
    told = chaos(request.getfixturevalue(database), tmp_path)
    record_property("chaos", json.dumps(told))
    assert told["problems"] == []
    assert sum(told["killed"].values()) == 2 * ROUNDS
    assert set(told["killed"]) == set(PHASES), "some phase was never hit"
    assert min(told["killed"][phase] for phase in PHASES[:-1]) >= ROUNDS // 20
    assert told["refused"] > 0, "the writers never raced for the last of a budget"
