"""A killed run goes on where it stopped: finished passes are read back, never drawn again."""

import json
from dataclasses import replace

import numpy as np
import pytest

from dpsynth_assets.methods.private_prediction import corpus
from dpsynth_assets_tests.methods.private_prediction.conftest import (
    NAMES,
    Killed,
    MemoryPasses,
    make_planned,
)


@pytest.fixture
def counted_passes(monkeypatch):
    """Counts passes that are really run, and dies at the one named by `dies_at`."""
    state = {"run": 0, "dies_at": None}
    generate = corpus.generate_documents

    def counting(*arguments, **options):
        if state["run"] == state["dies_at"]:
            raise Killed
        state["run"] += 1
        return generate(*arguments, **options)

    monkeypatch.setattr(corpus, "generate_documents", counting)
    return state


def generated(name, cases, model, passes):
    method, plan = make_planned(name, 6.0, batches_per_forward=2)
    private = replace(cases.private(64), passes=passes)
    return cases.release(method, plan, private, cases.clustered(model))


@pytest.mark.parametrize("name", NAMES)
def test_a_killed_run_keeps_its_finished_passes_and_runs_only_the_rest(
    name, cases, language_model, counted_passes
):
    passes = MemoryPasses()
    counted_passes["dies_at"] = 2
    with pytest.raises(Killed):
        generated(name, cases, language_model, passes)
    kept = dict(passes.kept)
    assert sorted(kept) == [0, 1]
    counted_passes.update(run=0, dies_at=None)
    release = generated(name, cases, language_model, passes)
    assert counted_passes["run"] == len(passes.kept) - 2
    assert {number: passes.kept[number] for number in kept} == kept
    written = sum(len(values["documents"]) for values in passes.kept.values())
    assert release.value.facts["rows"] <= written
    drawn = np.sum([values["drawn"] for values in passes.kept.values()], axis=0)
    facts = release.value.facts
    assert [facts["private_tokens"], facts["public_tokens"]] == drawn.tolist()


def test_rows_of_kept_passes_are_the_rows_of_the_corpus(cases, language_model, counted_passes):
    passes = MemoryPasses()
    first = generated("mean_clustered", cases, language_model, passes)
    again = generated("mean_clustered", cases, language_model, passes)
    assert again.value.rows.equals(first.value.rows)
    assert counted_passes["run"] == len(passes.kept)


def test_costs_of_single_tokens_are_read_back_with_their_passes(
    cases, language_model, counted_passes
):
    passes = MemoryPasses()
    counted_passes["dies_at"] = 2
    with pytest.raises(Killed):
        generated("median_clustered", cases, language_model, passes)
    counted_passes.update(run=0, dies_at=None)
    resumed = generated("median_clustered", cases, language_model, passes).value.internal
    places = resumed["token_cost_by_position"]
    assert resumed["ex_post_epsilon_by_batch"][:4].min() > 0  # batches of the two kept passes
    own, total = (places["count"] * places["mean"]).sum(), resumed["ex_post_epsilon_by_batch"].sum()
    assert own <= total + 1e-9  # Batches also bear what they move in the draws of others.
    passes.kept = {number: json.loads(json.dumps(kept)) for number, kept in passes.kept.items()}
    again = generated("median_clustered", cases, language_model, passes).value.internal
    for name, values in places.items():
        assert np.array_equal(again["token_cost_by_position"][name], values)
    assert np.array_equal(again["ex_post_epsilon_by_batch"], resumed["ex_post_epsilon_by_batch"])


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"median_clustered"}))
def test_passes_of_a_planned_event_keep_no_costs(name, cases, language_model):
    passes = MemoryPasses()
    generated(name, cases, language_model, passes)
    assert {key for values in passes.kept.values() for key in values} == {"documents", "drawn"}


# What a killed run drew and did not keep is in no message: it will be drawn anew.


def run(name, cases, model, private, progress, passes=None, **changes):
    settings = {"max_document_tokens": 6, "batches_per_forward": 2}
    if name == "mean_svt":
        settings["max_tokens_per_batch"] = 60
    method, plan = make_planned(name, 5.0, **(settings | changes))
    cases.release(method, plan, replace(private, passes=passes), cases.clustered(model), progress)
    return plan


@pytest.mark.parametrize("name", NAMES)
def test_messages_of_a_killed_pass_are_those_of_any_other_draws(name, cases):
    """Texts that end early or never, many records or none: the same lines, then the kill.

    One batch a pass, which opens no document that might remain unfinished: where its texts end
    decides at which step the pass does.
    """
    heard = []
    for ends, records in ((True, 64), (True, 0), (True, 3), (False, 64)):
        passes, lines = MemoryPasses(), []

        def progress(share, message, passes=passes, lines=lines):
            if passes.kept:
                raise Killed
            lines.append((share, message))

        model, private = cases.model(never_ends=not ends), cases.private(records)
        whole = {"min_tokens_for_new_document": 6, "batches_per_forward": 1}
        with pytest.raises(Killed):
            run(name, cases, model, private, progress, passes, **whole)
        heard.append(lines)
    assert all(lines == heard[0] for lines in heard)
    assert len(heard[0]) > 1  # It moves within a pass.
