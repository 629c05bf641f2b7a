"""A privately trained downstream model is scored beside the corpora, from its latest release."""

import json

import dagster as dg
import numpy as np
import polars as pl
import pytest
import torch

from dpsynth_assets.methods.dataset_plan import stage_request
from dpsynth_assets.methods.inputs import PrivateInputs
from dpsynth_assets.methods.planning import plan_dataset
from dpsynth_assets.models.classifiers import new_label_classifier, save_label_classifier
from dpsynth_assets.orchestration.assets.evaluation import evaluation_definitions
from dpsynth_assets.orchestration.assets.scoring import model_keys, report_table, score_models
from dpsynth_assets.orchestration.resources.stores import ReleaseStore
from dpsynth_assets.report.render import render_report
from dpsynth_assets_tests.end_to_end.conftest import private_spec

LABELS = ("billing", "delivery")
MODEL = {"steps": 2, "expected_batch_size": 8, "task": "classification"}


@pytest.fixture
def spec(tmp_path, monkeypatch):
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    return private_spec(
        tmp_path,
        public_facts={"labels": {"label": list(LABELS)}, "records": 100},
        budget={"epsilon": 60.0, "delta": 1e-5, "rounds": 3},
        cluster_histogram=None,
        methods=[
            {"method": "dp_fine_tuning", "settings": {"steps": 2, "expected_batch_size": 8}},
            {"method": "downstream_fine_tuning", "settings": MODEL},
        ],
        evaluation={"references": False},
        schedule=None,
    )


@pytest.fixture
def plan(spec):
    return plan_dataset(spec)


@pytest.fixture
def releases(tmp_path):
    return ReleaseStore.at(str(tmp_path / "releases"))


class HeldOut:
    """Held-out records whose label is the sign of their first coordinate."""

    def read_internal(self, dataset, split, *, with_embeddings):
        assert (dataset, split) == ("letters", "held_out")
        embeddings = np.eye(4, dtype=np.float32)[[0, 0, 0, 1]] * [[1], [1], [-1], [1]]
        records = pl.DataFrame({"text": ["a"] * 4, "label": [LABELS[i] for i in (0, 0, 1, 1)]})
        return PrivateInputs(records=records, embeddings=embeddings.astype(np.float32))


@pytest.fixture
def release(spec, plan, ledger, releases, tmp_path):
    """Releases a classifier that answers `billing` where weight * coordinate is not negative."""
    method = plan.method("downstream_fine_tuning")

    def release(name, weight, *, finished=True):
        request = stage_request(spec, method, method.plan.stages[0], release=name)
        reservation = ledger.reserve(request, plan.budget, plan.releases)
        if not finished:
            return
        model = new_label_classifier(4, 2)
        with torch.no_grad():
            model.weight[0, 0] = weight
        save_label_classifier(model, LABELS, tmp_path / name)
        facts = {"task": "classification"}
        digest, uri = releases.save(reservation.id, facts, None, tmp_path / name)
        ledger.commit(reservation, artifact_digest=digest, artifact_uri=uri)

    return release


@pytest.fixture
def scored(spec, plan, ledger, releases):
    return lambda: score_models(spec, plan, ledger, releases, HeldOut())


def test_the_latest_release_is_tested_on_held_out_records(spec, release, scored):
    release("open", 0.0, finished=False)
    assert scored() == []  # not released yet
    release("first", -1.0)
    [first] = scored()
    release("second", 1.0)
    [second] = scored()
    assert (first["accuracy"], second["accuracy"]) == (0.0, 0.75)
    assert second["guarantee"] == "dp"
    assert 0 < second["epsilon"] <= spec.budget.epsilon
    assert second["delta"] == spec.budget.delta


def test_its_row_stands_in_the_report_without_scores_of_text(release, scored):
    release("first", 1.0)
    [row] = report_table([], scored())
    assert row["accuracy"] == 0.75
    assert row["mauve"] is None
    json.dumps(row)
    report = render_report([row], {"cohort": "letters"}, {}, {})
    assert "downstream_fine_tuning model" in report.html.replace("<wbr>", "")
    assert "0.750" in report.html


def test_the_report_waits_for_the_model_and_for_no_corpus_of_it(spec, plan):
    [key] = model_keys(spec, plan)
    assert key == dg.AssetKey(["letters", "downstream_fine_tuning", "downstream_model"])
    [report] = evaluation_definitions(spec, plan).assets
    assert key in report.asset_deps[report.key]
    assert all("downstream_fine_tuning" not in k.path or k == key for k in report.dependency_keys)
