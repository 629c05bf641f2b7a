"""Ledgers, stored releases and dataset files of version 0.2.0: what was paid for is found again.

The files in `data/made_by_0_2_0` were written by that version's end-to-end tests. Its runs read
invented records only.
"""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.methods.requests import corpus_request, stage_request
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.releases.store import StoredReleases
from dpsynth_assets.report.label import corpus_label

FOLDER = Path(__file__).with_name("data") / "made_by_0_2_0"
COHORTS = sorted(folder.name for folder in FOLDER.iterdir())
NAMES_OF_INPUTS = {"language_model": "public_language_model"}


@pytest.fixture(params=COHORTS)
def cohort(request, tmp_path, monkeypatch):
    """A dataset file, its plan by this version, and the ledger that the other version charged."""
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    place = tmp_path / "ledger.sqlite"
    shutil.copy(FOLDER / request.param / "ledger.sqlite", place)
    fields = json.loads((FOLDER / request.param / "dataset.json").read_text())
    spec = PrivateDatasetSpec.model_validate(fields)
    return spec, plan_dataset(spec), Ledger(f"sqlite:///{place}")


def asked_again(spec, plan, entry):
    """What this version asks for where that version paid for the entry."""
    _, folder, name = entry.asset.split("/")
    part = next(part for part in plan.parts if part.folder == folder and named(part, name))
    known = entry.parameters
    inputs = {NAMES_OF_INPUTS.get(k, k): v for k, v in (known.get("inputs") or {}).items()}
    inputs |= {k: known[k] for k in ("public_clusters",) if k in known}
    if name not in [stage.name for stage in part.plan.stages]:
        rows = known["rows"]
        return corpus_request(
            spec, part, rows=rows, inputs=inputs, release=entry.release, run_id=""
        )
    stage = part.plan.stage(name)
    return stage_request(spec, part, stage, release=entry.release, inputs=inputs)


def named(part, name):
    return name == "candidate_corpus" or name in [stage.name for stage in part.plan.stages]


def nearly(one, other):
    """Whether two JSON values are equal, numbers up to the last bits that machines differ in."""
    if isinstance(one, float) or isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(nearly(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(nearly, one, other))
    return one == other


def test_the_ledger_verifies_and_still_reads_the_same_spend(cohort):
    spec, plan, ledger = cohort
    assert ledger.verify().ok
    spend = ledger.spend(spec.account, plan.budget)
    assert 0 <= spend.epsilon <= spec.budget.epsilon


def test_every_release_is_asked_for_as_it_was(cohort):
    spec, plan, ledger = cohort
    charges = [entry for entry in ledger.entries() if entry.kind == "reserve"]
    assert charges
    for entry in charges:
        request = asked_again(spec, plan, entry)
        asked = json.loads(json.dumps(dict(request.parameters)))
        words = {k: v for k, v in asked.items() if k not in ("rests_on", "noise")}
        known = {k: v for k, v in entry.parameters.items() if k not in ("rests_on", "noise")}
        assert nearly(words, known), entry.asset
        assert (request.mechanism, request.code_version) == (entry.mechanism, entry.code_version)


def test_a_committed_release_is_used_again_and_nothing_is_charged(cohort):
    spec, plan, ledger = cohort
    entries = ledger.entries()
    committed = {entry.reservation for entry in entries if entry.kind == "commit"}
    before = ledger.spend(spec.account, plan.budget).epsilon
    for entry in entries:
        if entry.kind != "reserve" or entry.reservation not in committed:
            continue
        request = asked_again(spec, plan, entry)
        # Calibrated noise may differ in its last bits from machine to machine; its identity is
        # what was written then.
        same = replace(request, parameters=entry.parameters, event=entry.event)
        assert ledger.preview(same, plan.budget, plan.releases).reused, entry.asset
        assert ledger.reserve(same, plan.budget, plan.releases).reused
    assert ledger.spend(spec.account, plan.budget).epsilon == before


def test_stored_releases_are_the_ones_that_the_ledger_has_sealed(tmp_path):
    store = StoredReleases(FOLDER / "prediction" / "releases")
    shutil.copy(FOLDER / "prediction" / "ledger.sqlite", tmp_path / "ledger.sqlite")
    entries = Ledger(f"sqlite:///{tmp_path / 'ledger.sqlite'}").entries()
    sealed = {e.reservation: e.artifact_digest for e in entries if e.kind == "commit"}
    kept = [path.name for path in (FOLDER / "prediction" / "releases").iterdir()]
    assert len(kept) == 2
    for reservation in kept:
        assert store.digest(reservation) == sealed[reservation]
        facts, rows = store.load(reservation)
        assert "dp_counts" in facts or rows.height


def test_a_label_says_today_what_it_said(tmp_path):
    stated = json.loads((FOLDER / "prediction" / "label.json").read_text())
    shutil.copy(FOLDER / "prediction" / "ledger.sqlite", tmp_path / "ledger.sqlite")
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    label = corpus_label(ledger.entries(), stated["subject"]["reservation"])
    assert label["guarantee"] == stated["guarantee"]
    assert label["method"] == stated["method"]
