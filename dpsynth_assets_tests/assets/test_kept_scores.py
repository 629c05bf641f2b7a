"""Scores are computed again when anything that they are a function of changed, and else not."""

import dataclasses

import numpy as np
import pytest

from dpsynth_assets.attacks import circumstances
from dpsynth_assets.metrics.evaluation import Evaluation, EvaluationSettings, PrivateReference
from dpsynth_assets.metrics.metric import ScoredSide
from dpsynth_assets.orchestration.assets import kept_scores as subject
from dpsynth_assets.orchestration.resources.stores import Models, SensitiveStore

SETTINGS = EvaluationSettings(max_rows=40, resamples=20)
EMBEDDER = {"name": "tiny", "path": "models/tiny"}


def features(rows, seed):
    return np.random.default_rng(seed).normal(size=(rows, 4)).astype(np.float32)


def reference(canaries=(), **changes) -> PrivateReference:
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


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path))
    return SensitiveStore.at(str(tmp_path / "sensitive"))


def version(settings=SETTINGS, records=None, public=(), manifest=EMBEDDER, models=None) -> str:
    return subject.scores_version(
        settings, records or reference(), list(public), manifest, models or Models()
    )


def test_equal_inputs_are_one_version_and_any_change_is_another(monkeypatch):
    class OwnModels(Models):
        """Opens other models."""

    held_out = reference().held_out
    moved = held_out.features.copy()
    moved[7, 2] += 1e-6
    versions = [
        version(),
        version(settings=dataclasses.replace(SETTINGS, seed=1)),
        version(settings=dataclasses.replace(SETTINGS, max_rows=41)),
        version(settings=dataclasses.replace(SETTINGS, record_schema={"type": "object"})),
        version(settings=dataclasses.replace(SETTINGS, next_word={"width": 8})),
        version(records=reference(source={"texts": ["another", *reference().source.texts[1:]]})),
        version(records=reference(held_out={"labels": ["b", *held_out.labels[1:]]})),
        version(records=reference(held_out={"features": moved})),
        version(records=reference(canaries=["a canary"])),
        version(public=["a public document"]),
        version(manifest=EMBEDDER | {"path": "models/larger"}),
        version(models=OwnModels()),
    ]
    monkeypatch.setattr(subject, "modules_outside", lambda: ["pytest.another_metric"])
    versions.append(version())
    monkeypatch.undo()
    assert version() == versions[0]
    monkeypatch.setattr(circumstances, "circumstances", lambda: "a newer library")
    versions.append(version())
    assert len(set(versions)) == len(versions)


def test_kept_scores_are_those_that_were_computed(store):
    corpus = ScoredSide(
        name="c", texts=["made up"] * 45, labels=["a", "b"] * 22 + ["a"], features=features(45, 3)
    )
    computed = Evaluation(reference=reference(), settings=SETTINGS).scores(corpus)

    def never():
        raise AssertionError("computed again")

    assert subject.KeptScores(store, "letters").scores("d", lambda: computed) == computed
    again = subject.KeptScores(store, "letters").scores("d", never)
    assert again == computed
    assert again.estimates.keys() == computed.estimates.keys()
    for name, estimate in again.estimates.items():
        assert estimate.value == computed.estimates[name].value
        assert np.array_equal(estimate.draws, computed.estimates[name].draws)


def test_other_digests_are_computed_and_what_is_not_asked_for_is_dropped(store):
    scores = Evaluation(reference=reference(), settings=SETTINGS).scores(
        ScoredSide(name="c", texts=["x"], labels=["a"], features=features(1, 0))
    )
    computed = []

    def compute():
        computed.append(1)
        return scores

    first = subject.KeptScores(store, "letters")
    for digest in ("old", "new"):
        first.scores(digest, compute)
    cut = subject.KeptScores(store, "letters")  # no `drop_others`: the evaluation was cut
    cut.scores("new", compute)
    cut.drop_others()
    assert len(computed) == 2
    subject.KeptScores(store, "letters").scores("old", compute)
    assert len(computed) == 3


def test_the_file_is_the_owners_and_a_damaged_one_is_made_anew(store):
    scores = Evaluation(reference=reference(), settings=SETTINGS).scores(
        ScoredSide(name="c", texts=["x"], labels=["a"], features=features(1, 0))
    )
    subject.KeptScores(store, "letters").scores("d", lambda: scores)
    path = store.folder("letters") / subject.FILE
    assert path.stat().st_mode & 0o077 == 0
    for damaged in (path.read_text()[:40], '{"d": {}}'):
        path.write_text(damaged)
        assert subject.KeptScores(store, "letters").scores("d", lambda: scores) == scores
