"""Stages: which there are, which are free, and which settings each depends on."""

import pytest

from dpsynth_assets.methods.base import priced
from dpsynth_assets.methods.epsvec.shots import public_candidates, read_candidates
from dpsynth_assets.methods.stages import Stage

POOL, SHOTS, NEGATIVES, VECTORS = "candidate_pool", "fixed_shots", "negative_set", "dataset_vectors"
ALL = (POOL, SHOTS, NEGATIVES, VECTORS)


def stages(cases, **changes):
    return {each.name: each for each in cases.method(cases.config(**changes)).stages()}


def settings(cases, stage, **changes):
    method = cases.method(cases.config(**changes), cases.terms(accountant="zcdp"))
    return method.plan(3.0).stage(stage).settings


def test_candidates_and_negatives_read_nothing_private(cases):
    made = stages(cases)
    assert tuple(made) == ALL
    assert [made[name].public for name in ALL] == [True, False, True, False]
    assert made[SHOTS].needs_embeddings
    assert made[VECTORS].after == (SHOTS, NEGATIVES)


def test_a_public_stage_cannot_ask_for_private_inputs():
    with pytest.raises(ValueError, match="read no private data"):
        Stage(name="pool", title="Pool.", make=print, needs_embeddings=True)


def test_public_inputs_are_those_that_settings_use(cases):
    def needs(config):
        return cases.method(config).public_inputs

    assert needs(cases.config()) == {"public_language_model", "text_embedder", "public_corpus"}
    bare = cases.config(use_vectors=False, use_fixed_shots=False)
    assert needs(bare) == {"public_language_model"}
    judged = cases.config(rejection={"judge": "likelihood"})
    assert "public_corpus" in cases.method(judged).writing().reads
    plain = cases.method(cases.config())
    assert plain.writing().reads == plain.public_inputs


def test_candidates_may_be_public_documents_the_same_for_every_label(cases, engine, tmp_path):
    config = cases.config(candidate_source="public_corpus")
    assert "public_corpus" in cases.method(config).public_inputs
    public = cases.public(engine)
    cases.run(tmp_path, config, cases.private(cases.records(20)), public)
    pool = read_candidates(tmp_path / POOL)
    ours = [pool.filter(pool["label"] == label)["text"].to_list() for label in (0, 1)]
    assert ours[0] == ours[1]
    assert len(set(ours[0])) == config.candidates
    assert set(ours[0]) <= set(public.public_records["text"])
    with pytest.raises(ValueError, match="got 8"):
        public_candidates(ours[0], 2, cases.config(kept_shots=9, candidates=20), seed=0)


def test_a_plan_without_any_number_of_records_cannot_tell_differences(cases):
    def refusal(**changes):
        terms = cases.terms(public_records=None)
        return priced(cases.method(cases.config(**changes), terms), 8.0).refusal

    assert refusal() is None  # the histogram of shots counts them
    assert "strength_unit: clip_bound" in refusal(use_fixed_shots=False)
    assert refusal(use_fixed_shots=False, strength_unit="clip_bound") is None
