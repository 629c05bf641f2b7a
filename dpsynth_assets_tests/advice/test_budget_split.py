"""Splits of a budget, tried on public text."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import yaml

from dpsynth_assets.advice import budget_split
from dpsynth_assets.advice.budget_split import (
    Choice,
    SplitAdvice,
    StandIns,
    Trial,
    choices_of,
    optimise_split,
)
from dpsynth_assets.cli.advise import _changed, _stand_ins
from dpsynth_assets.datasets import PublicDataSpec
from dpsynth_assets.methods.evolution import AugPe
from dpsynth_assets.metrics.comparison import compare
from dpsynth_assets.metrics.metric import Estimate
from dpsynth_assets_tests.declared import private, written

ROOT = Path(__file__).parents[2]
AUG_PE = {"population": 12, "variations": 2, "iterations": 2, "max_new_tokens": 16}


def declared(*methods, **fields):
    own = {
        "public_facts": {"records": 4000},
        "methods": methods or [{"method": "aug_pe", "settings": AUG_PE}],
    }
    return private(**own | fields)


@pytest.fixture(scope="module")
def stand_ins(toy_folder, tmp_path_factory):
    sys.path.append(str(ROOT / "data" / "demo"))
    import mailboxes

    documents = pl.DataFrame(mailboxes.public_rows(600, 0)).select("text", "label")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPSYNTH_HOME", str(tmp_path_factory.mktemp("home")))
        model = {"kind": "pretrained", "model": str(toy_folder)}
        base = PublicDataSpec(name="letters", language_model=model, clusters={"count": 12})
        yield StandIns.of_base(base, documents)


def estimate(value, spread=0.001):
    return Estimate.around(value, value + spread * np.linspace(-1, 1, 200))


def test_what_scores_is_read_by_no_model_of_the_trial(stand_ins):
    scoring, kept = set(stand_ins.scoring["text"]), set(stand_ins.base.documents["text"])
    assert scoring.isdisjoint(stand_ins.records["text"])
    assert scoring.isdisjoint(kept)
    assert set(stand_ins.records["text"]) <= kept
    assert len(stand_ins.labels) >= 2


def test_stand_ins_are_a_part_of_the_documents_that_a_method_has_to_find(stand_ins):
    kept = stand_ins.base.documents
    others = kept.filter(~pl.col("text").is_in(stand_ins.records["text"].implode()))
    near = stand_ins.score(stand_ins.records["text"].to_list())
    far = stand_ins.score(others["text"].to_list())
    assert compare("energy_distance", ("near", near), ("far", far)).verdict == "better"


def test_too_few_texts_are_refused_in_one_line(stand_ins):
    with pytest.raises(ValueError, match="at least 200 public texts") as refusal:
        StandIns(stand_ins.base.documents.head(150), stand_ins.base)
    assert "\n" not in str(refusal.value)


def test_texts_that_the_model_has_invented_are_no_stand_ins(tmp_path, monkeypatch):
    fields = {"name": "words", "domain": "Letters", "language_model": {"kind": "smollm2"}}
    written(tmp_path / "words.yaml", fields, "PublicData")
    monkeypatch.setenv("DPSYNTH_DATASETS", str(tmp_path))
    with pytest.raises(ValueError, match="--texts"):
        _stand_ins("words", None)
    texts = tmp_path / "texts.csv"
    for frame, told in (({"words": ["a"]}, "a column text"), (None, "a CSV or Parquet file")):
        texts.unlink(missing_ok=True)
        if frame is not None:
            pl.DataFrame(frame).write_csv(texts)
        with pytest.raises(ValueError, match=told):
            _stand_ins("words", texts)
    pl.DataFrame({"text": [f"a letter {n}" for n in range(400)]}).write_csv(texts)
    found = _stand_ins("words", texts)
    assert (found.records.height, found.labels) == (200, ())


def test_the_first_method_that_splits_its_budget_is_taken():
    spec = declared({"method": "mean_uniform"}, {"method": "aug_pe", "name": "votes"})
    assert choices_of(spec).key == "votes"
    with pytest.raises(ValueError, match="nothing to choose"):
        choices_of(spec, "mean_uniform")


def test_structured_records_are_refused():
    spec = declared(structured={"json_schema": {"type": "object"}})
    with pytest.raises(ValueError, match="free text"):
        choices_of(spec)


@pytest.mark.parametrize(
    ("fields", "epsilon"),
    [
        ({}, 20.0),
        ({"public_facts": {}}, 4.0),
        ({"budget": {"epsilon": 4.0, "delta": 1e-6, "rounds": 4}}, 5.0),
        (
            {"privacy_unit": {"column": "who", "max_records": 4}, "columns": {"text": "text"}},
            5.0,
        ),
        ({"public_facts": {"records": 10**5}}, 500.0),
    ],
)
def test_noise_weighs_on_the_stand_ins_as_on_the_records(fields, epsilon):
    spec = declared(**fields)
    texts = SimpleNamespace(records=pl.DataFrame({"text": ["x"] * 800}))
    trials = budget_split._Trials(spec, spec.methods[0], texts, 10)
    assert trials.wanted_epsilon == pytest.approx(epsilon)
    assert trials.epsilon == pytest.approx(min(epsilon, budget_split.LARGEST_EPSILON))


def test_noise_on_counts_is_as_much_smaller_as_the_texts_are_fewer():
    spec = declared({"method": "ctcl"}, topic_histogram={"noise_std": 10.0})
    texts = SimpleNamespace(records=pl.DataFrame({"text": ["x"] * 400}), labels=())
    trials = budget_split._Trials(spec, spec.methods[0], texts, 10)
    _, fields = trials._arguments({})
    assert fields["topic_histogram"]["noise_std"] == pytest.approx(1.0)  # 4,000 records
    _, fields = trials._arguments({("topic_histogram", "noise_std"): 30})
    assert fields["topic_histogram"]["noise_std"] == pytest.approx(3.0)


def test_every_split_runs_once_and_the_declared_one_first(stand_ins, monkeypatch):
    rounds = Choice(place=("settings", "iterations"), splits="rounds", values=(1, 2))
    monkeypatch.setattr(AugPe, "advice", replace(AugPe.advice, splits=(rounds,)))
    spec, told = declared(), []
    found = optimise_split(
        spec, spec.methods[0], stand_ins, rows=24, told=lambda trial, left: told.append(left)
    )
    assert [trial.in_words() for trial in found.trials] == ["as declared", "iterations = 1"]
    assert told == [1, 0]
    assert all(trial.score is not None and trial.rows == 24 for trial in found.trials)
    assert found.best.score.value == min(trial.score.value for trial in found.trials)


def test_a_split_that_the_budget_cannot_pay_is_told_and_passed_over(stand_ins):
    histogram = {"budget_share": 0.02, "clusters_per_label": 2}
    settings = {"expected_batch_size": 4096, "max_batches": 1}
    spec = declared({"method": "mean_clustered", "settings": settings}, cluster_histogram=histogram)
    found = optimise_split(spec, spec.methods[0], stand_ins, rows=24)
    assert all(trial.refusal and trial.score is None for trial in found.trials)
    assert found.advised == {}


@pytest.mark.parametrize(
    ("value", "advised", "told"),
    [(0.02, {("settings", "iterations"): 5}, "Gain"), (0.0299, {}, "Undecided")],
)
def test_only_what_is_better_beyond_chance_is_advised(value, advised, told):
    first = Trial(patch={}, score=estimate(0.03), rows=200)
    noise = 0.03 + 0.001 * np.linspace(1, -1, 200)
    draws = noise - (0.03 - value)
    other = Trial(
        patch={("settings", "iterations"): 5}, score=Estimate.around(value, draws), rows=200
    )
    found = SplitAdvice(
        method="aug_pe",
        epsilon=4.0,
        wanted_epsilon=4.0,
        records=300,
        trials=(first, other),
        best=other,
        beside_declared=budget_split._beside(first, other),
    )
    assert found.advised == advised
    assert found.gain_in_words().startswith(told)


FILE = """\
# Who owns this file.
type: dpsynth_assets.components.PrivateDataset
attributes:
  name: notes
  methods:
    - method: aug_pe  # votes
      name: votes
      settings: {iterations: 3, population: 400}
    - method: mean_clustered
"""


def test_the_written_file_differs_in_the_split_alone(tmp_path):
    file = tmp_path / "notes.yaml"
    file.write_text(FILE)
    patch = {("settings", "iterations"): 5, ("cluster_histogram", "budget_share"): 0.05}
    text = _changed(file, "notes", "votes", patch)
    expected = yaml.safe_load(FILE)
    expected["attributes"]["methods"][0]["settings"]["iterations"] = 5
    expected["attributes"]["cluster_histogram"] = {"budget_share": 0.05}
    assert yaml.safe_load(text) == expected
    assert "# Who owns this file." in text
    assert "# votes" in text
