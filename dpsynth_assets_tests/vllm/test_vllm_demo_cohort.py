"""A cohort as large as the demo's, released by vLLM: real processes, one ledger, one charge."""

import json
import os
import subprocess
import sys

import polars as pl
import pytest
from mailboxes import public_rows

from dpsynth_assets import PublicBase, run_method
from dpsynth_assets.methods.private_prediction import decoding, preconditions
from dpsynth_assets.models.vllm_decoder import opening

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


def test_a_self_test_that_passes_stands_in_charge_and_label(folder, tmp_path, monkeypatch):
    """A processor has no such kernels; one thread moves no bit all the same."""
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path))
    monkeypatch.setattr(decoding, "batch_invariant", lambda: True)
    monkeypatch.setattr(preconditions, "require_invariant_kernels", lambda _: None)
    rows = pl.DataFrame(public_rows(200, seed=3)).select("text", label=pl.lit("all"))
    made = run_method(
        "mean_uniform",
        rows,
        PublicBase(
            rows.head(100),
            language_model={"kind": "pretrained", "model": str(folder), "decoder": "vllm"},
        ),
        epsilon=200.0,
        delta=1e-5,
        settings={"expected_batch_size": 20, "max_batches": 2, "logit_slack": 0.0},
        labels=("all",),
        cohort="notes",
        declared={
            "engine": {"kind": "vllm", "cache_gib": 0.5},
            "public_facts": {"records": 200},
        },
    )
    opening.close_decoders()
    charge = next(entry for entry in made.entries if entry.kind == "reserve")
    tested = charge.parameters["rests_on"]["self_test"]
    assert tested["passed"] is True
    assert (tested["device"], tested["dtype"]) == ("cpu", "float32")
    assert tested["engine"].startswith("vllm 0.32.0")
    (line,) = [each for each in made.label["assumptions"] if "self-test" in each]
    assert f"{tested['contexts']} public contexts in {tested['companies']} arrangements" in line
    assert made.corpus.height
