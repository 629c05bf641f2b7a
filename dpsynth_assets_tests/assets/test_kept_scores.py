"""Scores and references are made again when anything that they are a function of changed."""

import dataclasses

import numpy as np
import polars as pl
import pytest

from dpsynth_assets.attacks import circumstances
from dpsynth_assets.metrics.evaluation import Evaluation, EvaluationSettings, PrivateReference
from dpsynth_assets.metrics.metric import ScoredSide
from dpsynth_assets.orchestration.assets import kept_scores as subject
from dpsynth_assets.orchestration.resources.stores import Models, SensitiveStore
from dpsynth_assets.paths import home
from dpsynth_assets_tests.assets.declared_cases import letters

pytestmark = pytest.mark.usefixtures("own_home")

SETTINGS = EvaluationSettings(max_rows=40, resamples=20)
MANIFEST = {"name": "tiny", "path": "models/tiny"}
RECORDS = pl.DataFrame({"text": ["one", "two"], "label": ["a", None]})


class OwnModels(Models):
    """Opens other models."""


@pytest.fixture
def store(tmp_path):
    return SensitiveStore.at(str(tmp_path / "sensitive"))


def features(rows, seed):
    return np.random.default_rng(seed).normal(size=(rows, 4)).astype(np.float32)


def records(canaries=(), **changes) -> PrivateReference:
    """Two sides; a change is of one of them, by its name."""
    sides = {}
    for seed, side in enumerate(("source", "held_out")):
        parts = {
            "texts": [f"{side} letter {row}" for row in range(50)],
            "labels": ["ab"[row % 2] for row in range(50)],
            "features": features(50, seed),
        }
        sides[side] = ScoredSide(**(parts | changes.get(side, {})))
    return PrivateReference(**sides, canaries=canaries)


def of_scores(reference=None, public=(), manifest=MANIFEST, models=None, **settings) -> str:
    return subject.scores_version(
        dataclasses.replace(SETTINGS, **settings),
        reference or records(),
        list(public),
        manifest,
        models or Models(),
    )


def of_reference(manifest=MANIFEST, code="1", models=None, **changes) -> str:
    return subject.reference_version(letters(**changes), manifest, models or Models(), code)


OTHERS = {
    of_scores: [
        {"seed": 1},
        {"max_rows": 41},
        {"record_schema": {"type": "object"}},
        {"next_word": {"width": 8}},
        {"reference": records(source={"texts": ["another", *records().source.texts[1:]]})},
        {"reference": records(held_out={"labels": ["b", *records().held_out.labels[1:]]})},
        {"reference": records(held_out={"features": features(50, 1) + np.eye(50, 4) * 1e-6})},
        {"reference": records(canaries=["a canary"])},
        {"public": ["a public document"]},
    ],
    of_reference: [
        {"code": "2"},
        {"prompt": {"response_start": "Yes:"}},
        {"evaluation": {"reference_rows": 77}},
    ],
}


@pytest.mark.parametrize("version", OTHERS)
def test_equal_inputs_are_one_version_and_any_change_is_another(version, monkeypatch):
    shared = {"manifest": MANIFEST | {"path": "models/larger"}}, {"models": OwnModels()}
    versions = [version(**changes) for changes in ({}, *OTHERS[version], *shared)]
    assert version() == versions[0]
    monkeypatch.setattr(circumstances, "circumstances", lambda: "a newer library")
    versions.append(version())
    if version is of_scores:
        monkeypatch.setattr(subject, "modules_outside", lambda: ["pytest.another_metric"])
        versions.append(version())
    assert len(set(versions)) == len(versions)


def test_any_change_of_a_record_is_another_ceiling():
    changed = [
        RECORDS,
        RECORDS[::-1],
        RECORDS.with_columns(pl.Series("text", ["one", "too"])),
        RECORDS.with_columns(pl.Series("label", ["a", "b"])),
        RECORDS.head(1),
    ]
    versions = {subject.version_with_records("v", records) for records in changed}
    assert len(versions) == len(changed)
    assert subject.version_with_records("v", RECORDS) != subject.version_with_records("w", RECORDS)


# Scores


@pytest.fixture
def scores():
    corpus = ScoredSide(
        name="c", texts=["made up"] * 45, labels=["a", "b"] * 22 + ["a"], features=features(45, 3)
    )
    return Evaluation(reference=records(), settings=SETTINGS).scores(corpus)


def never():
    raise AssertionError("computed again")


def test_kept_scores_are_those_that_were_computed(store, scores):
    assert subject.KeptScores(store, "letters").scores("d", lambda: scores) == scores
    again = subject.KeptScores(store, "letters").scores("d", never)
    assert again == scores
    assert again.estimates.keys() == scores.estimates.keys()
    for name, estimate in again.estimates.items():
        assert estimate.value == scores.estimates[name].value
        assert np.array_equal(estimate.draws, scores.estimates[name].draws)


def test_what_is_not_asked_for_is_dropped_by_an_evaluation_that_ends(store, scores):
    first = subject.KeptScores(store, "letters")
    for digest in ("old", "new"):
        first.scores(digest, lambda: scores)
    cut = subject.KeptScores(store, "letters")  # no `drop_others`: the evaluation was cut
    cut.scores("old", never)
    cut.scores("new", never)
    whole = subject.KeptScores(store, "letters")
    whole.scores("new", never)
    whole.drop_others()
    with pytest.raises(AssertionError):
        subject.KeptScores(store, "letters").scores("old", never)


def test_the_file_is_the_owners_and_a_damaged_one_is_made_anew(store, scores):
    subject.KeptScores(store, "letters").scores("d", lambda: scores)
    path = store.folder("letters") / subject.FILE
    assert path.stat().st_mode & 0o077 == 0
    for damaged in (path.read_text()[:40], '{"d": {}}'):
        path.write_text(damaged)
        assert subject.KeptScores(store, "letters").scores("d", lambda: scores) == scores


# References


def test_the_floor_is_written_once_for_a_version_and_only_the_last_is_kept():
    first = subject.kept_floor("letters", "v", lambda: RECORDS)
    assert subject.kept_floor("letters", "v", never).equals(first)
    assert not subject.kept_floor("letters", "w", lambda: RECORDS[::-1]).equals(first)
    kept = (home().artifacts / "references" / "letters").iterdir()
    assert [path.name for path in kept] == ["w.parquet"]


def test_a_ceiling_is_kept_with_the_version_that_it_was_written_for(store):
    assert not subject.ceiling_is_kept(store, "letters", "v")
    subject.keep_ceiling(store, "letters", "v", RECORDS)
    assert subject.ceiling_is_kept(store, "letters", "v")
    assert not subject.ceiling_is_kept(store, "letters", "w")
    for path in store.folder("letters").iterdir():
        assert path.stat().st_mode & 0o077 == 0, "the digest of private records is the owner's too"
    (store.folder("letters") / f"{subject.CEILING}.parquet").write_bytes(b"PAR1")
    assert not subject.ceiling_is_kept(store, "letters", "v"), "damaged"


def test_a_ceiling_whose_write_was_interrupted_is_written_again(store, monkeypatch):
    subject.keep_ceiling(store, "letters", "v", RECORDS)

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as fault:
        fault.setattr(SensitiveStore, "write_internal", killed)
        with pytest.raises(KeyboardInterrupt):
            subject.keep_ceiling(store, "letters", "w", RECORDS.head(1))
    assert not subject.ceiling_is_kept(store, "letters", "v")
    assert not subject.ceiling_is_kept(store, "letters", "w")
