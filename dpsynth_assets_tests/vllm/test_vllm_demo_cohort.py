"""A cohort as large as the demo's, released by vLLM: real processes, one ledger, one charge."""

import json
import os
import subprocess
import sys

import pytest

from dpsynth_assets.privacy.ledger import Ledger

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def release(folder, home):
    """Runs the cohort in a process of its own; gives what it printed."""

    def run(settings=(), place=home, **variables):
        words = [sys.executable, "-m", "dpsynth_assets_tests.vllm.demo_cohort", str(folder)]
        process = subprocess.run(
            [*words, json.dumps(dict(settings))],
            env=os.environ | {"DPSYNTH_HOME": str(place)} | variables,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert process.returncode == 0, process.stderr[-3000:]
        return json.loads(process.stdout.splitlines()[-1])

    return run


@pytest.fixture(scope="module")
def first(release):
    return release()


def test_five_thousand_records_are_released_within_the_budget(first):
    assert (first["records"], first["charges"], first["reused"]) == (5000, 1, False)
    assert first["opened_vllm"]
    assert first["rows"] > 40
    assert 0 < first["epsilon"] <= 15.0
    parameters = first["parameters"]
    assert (parameters["decoder"], parameters["expected_batch_size"]) == ("vllm", 40)
    assert parameters["logit_slack"] > 0
    assert "self_test" not in parameters["rests_on"]  # Rounding is charged instead.


def test_another_process_finds_the_release_and_opens_nothing(first, release):
    again = release()
    assert (again["reused"], again["charges"], again["opened_vllm"]) == (True, 1, False)
    assert (again["text"], again["epsilon"]) == (first["text"], first["epsilon"])


@pytest.mark.parametrize(
    ("variables", "told"),
    [({}, "Expected logit_slack > 0"), ({"VLLM_BATCH_INVARIANT": "1"}, "got a processor")],
)
def test_a_slack_of_zero_is_refused_here_before_a_charge(release, tmp_path, variables, told):
    refused = release({"logit_slack": 0.0}, tmp_path, **variables)["refused"]
    assert told in refused
    assert "\n" not in refused
    assert _charges(tmp_path) == 0


def _charges(home):
    ledger = Ledger(f"sqlite:///{home / 'ledger' / 'ledger.sqlite'}")
    return len(ledger.entries())
