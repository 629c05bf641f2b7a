"""Rows: free, repeatable, as many of each label, steered where and as far as settings say."""

import json

import numpy as np
import pytest

from dpsynth_assets.methods.epsvec.config import SHOTS, VECTORS
from dpsynth_assets.methods.epsvec.shots import SHOTS_FILE
from dpsynth_assets.methods.epsvec.vectors import DatasetVectors
from dpsynth_assets.models.engines.decoder_engine import DecoderEngine
from dpsynth_assets.models.engines.protocol import Provenance
from dpsynth_assets.models.row_rules import TextForm
from dpsynth_assets_tests.methods.test_text_form import DECLARED


@pytest.fixture
def released(cases, engine, tmp_path):
    """A finished run on words: settings, plan and released inputs."""
    config = cases.config(layers=(2, 5))
    private = cases.private(cases.records(40))
    return config, *cases.run(tmp_path / "stages", config, private, cases.public(engine))


def write(cases, released, rows=6, **changes):
    config, _, public = released
    config = type(config).model_validate(config.model_dump() | changes)
    return cases.method(config).write(public, rows, cases.silent)


def test_labels_take_turns_and_rows_have_words(cases, released):
    corpus = write(cases, released, rows=7)
    assert corpus.rows["label"].to_list() == ["x", "y"] * 3 + ["x"]
    assert (corpus.rows["text"].str.len_chars() > 0).all()
    assert corpus.facts["rows"] == 7


def test_released_vectors_are_added_at_the_layers_and_strengths_asked_for(cases, released, engine):
    stored = DatasetVectors.load(released[2].released[VECTORS].folder)
    bounds = dict(zip((2, 5), stored.clip_bounds, strict=True))
    directions = dict(zip((2, 5), stored.directions[1], strict=True))

    def added_by(**settings):
        write(cases, released, **settings)
        return {layer: added @ directions[layer] for layer, added in engine.steering.items()}

    added = added_by(strengths=(0.5,), strength_unit="clip_bound")
    assert added == pytest.approx({layer: 0.5 * bound for layer, bound in bounds.items()})
    added = added_by(strengths=(0.5,))  # of the difference, which two layers share
    assert added == pytest.approx({2: stored.lengths[1, 0] / 4, 5: stored.lengths[1, 1] / 4})
    added = added_by(layers=(5, 2), strengths=(1.0, 2.0), strength_unit="absolute")
    assert added == pytest.approx({5: 1.0, 2: 2.0})
    np.testing.assert_allclose(engine.steering[2], 2 * directions[2])


def test_candidates_and_rows_are_records_of_the_declared_schema(cases, toy_model, tmp_path):
    engine = DecoderEngine(toy_model)
    config = cases.config(use_vectors=False, max_document_tokens=80, max_new_tokens=80)
    terms = cases.terms(json_schema=DECLARED)
    private = cases.private(cases.records(40))
    _, public = cases.run(tmp_path / "s", config, private, cases.public(engine), terms=terms)
    rows = cases.method(config, terms).write(public, 8, cases.silent)
    shots = json.loads((public.released[SHOTS].folder / SHOTS_FILE).read_text())
    texts = [*rows.rows["text"], *(text for each in shots["ranked"] for text in each)]
    assert texts
    assert all(map(TextForm(DECLARED).read, texts))


def test_strengths_that_do_not_fit_the_released_layers_are_refused(cases, released):
    with pytest.raises(ValueError, match="one for each of 2 layers"):
        write(cases, released, layers=None, strengths=(1.0, 2.0, 3.0))


def test_vectors_of_another_model_are_refused(cases, released, engine):
    engine.name = "other"
    with pytest.raises(ValueError, match="Expected the engine to run words"):
        write(cases, released)


def test_prompts_say_what_they_are_made_of(cases, released, engine):
    assert [provenance for _, _, provenance in engine.asked] == (
        [Provenance.PUBLIC, Provenance.RELEASED]
    )
    engine.asked.clear()
    write(cases, released)
    assert {provenance for _, _, provenance in engine.asked} == {Provenance.RELEASED}


def test_private_text_stands_in_no_prompt_that_is_written_from(cases, engine, tmp_path):
    records = cases.records(40).with_columns(text=cases.records(40)["text"] + " brackenbury")
    config = cases.config()
    _, public = cases.run(tmp_path, config, cases.private(records), cases.public(engine))
    cases.method(config).write(public, 4, cases.silent)
    token = engine.language_model.encode("brackenbury")[0]
    assert any(token in text for texts in engine.read for text in texts)
    assert not any(token in prompt for prompts, _, _ in engine.asked for prompt in prompts)


def test_fixed_shots_stand_before_negatives_records_and_rows_alike(cases, released, engine):
    _, _, public = released
    shots = (public.released[SHOTS].folder / "fixed_shots.json").read_text()
    write(cases, released, rows=2)
    (prompt,) = set(engine.asked[-2][0])
    decoded = engine.language_model.decode(prompt)
    assert sum(text in decoded for text in json.loads(shots)["ranked"][0][:2]) == 2
    assert any(text[: len(prompt) - 1] == prompt[1:] for texts in engine.read for text in texts)


def test_more_kept_shots_than_candidates_are_refused(cases, released):
    with pytest.raises(ValueError, match="Keep fewer shots"):
        write(cases, released, kept_shots=9, candidates=100)


def test_a_judge_has_rejected_rows_written_again(cases, released, monkeypatch):
    from dpsynth_assets.methods import rejection_sampling
    from dpsynth_assets.models.judges import Verdict

    class Picky:
        facts = {"judge": "picky"}  # noqa: RUF012

        def judge(self, texts, progress=None):
            return [Verdict("sea" not in text.split(), 1.0) for text in texts]

    monkeypatch.setattr(rejection_sampling, "open_judge", lambda settings, public: Picky())
    judged = {"judge": "likelihood", "rules": (), "rounds": 20}
    corpus = write(cases, released, rows=12, rejection=judged)
    assert corpus.rows["label"].to_list() == ["x", "y"] * 6
    assert not any("sea" in text.split() for text in corpus.rows["text"])
    assert 0 < corpus.facts["acceptance_rate"] <= 1
