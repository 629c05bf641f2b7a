"""Passes in order of their numbers, and what is told of them."""

import itertools
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dpsynth_assets.methods.private_prediction import corpus
from dpsynth_assets.methods.private_prediction.aggregates import MeanUniform
from dpsynth_assets.methods.private_prediction.config import MeanUniformConfig
from dpsynth_assets.methods.private_prediction.declared_batches import BatchCell
from dpsynth_assets.methods.private_prediction.loop import Draws, generate_documents
from dpsynth_assets.methods.private_prediction.passes import PassProgress
from dpsynth_assets.models.transformers_decoder.decoder import TransformersDecoder
from dpsynth_assets.privacy.batch_terms import row_key
from dpsynth_assets_tests.methods.cohorts import MemoryPasses
from dpsynth_assets_tests.methods.private_prediction.conftest import (
    Killed,
    hashed,
    in_slots,
    make_planned,
    make_rules,
)

RULES = make_rules(tokens_per_batch=100, max_document_tokens=20, min_tokens_for_new_document=11)


def test_passes_are_counted_and_shares_never_fall():
    seen = []
    told = PassProgress(8, RULES, lambda share, message: seen.append((share, message)))

    for _ in range(8):
        for _ in range(95):
            told.step()
        told.finish()
    shares = [share for share, _ in seen]
    assert shares == sorted(shares)
    assert len(seen) == 8 * (90 + 1)  # the 90 steps that are certain of each pass, and its end
    assert seen[-1] == (1.0, "8 of 8 passes")


def test_steps_that_draws_decide_on_are_not_told():
    seen = []
    told = PassProgress(2, RULES, lambda share, message: seen.append(message))
    for _ in range(100):
        told.step()
    assert seen[-1] == "0 of 2 passes, 90 steps in progress"
    told.finish()
    assert seen[-1] == "1 of 2 passes"


@pytest.mark.parametrize(
    ("changes", "certain", "most"),
    [
        ({}, 90, 100),
        ({"min_tokens_for_new_document": 1}, 100, 100),
        ({"min_tokens_for_new_document": 101}, 0, 100),
        ({"max_tokens_per_batch": 70}, 70, 70),
        ({"max_tokens_per_batch": 300}, 90, 300),
    ],
    ids=str,
)
def test_steps_of_a_pass_are_bounded_by_its_public_rules(changes, certain, most):
    rules = replace(RULES, **changes)
    assert (rules.certain_steps, rules.most_steps) == (certain, most)


# However many records a batch holds, one of them shares passes with no more than is charged.

END = 1


class JealousContexts:
    """A decoder whose logits say which rows shared a pass: (id of the row, hash of all ids)."""

    def __init__(self, prompts, **_):
        self.rows = [prompt[0] for prompt in prompts]

    def next_logits(self, tokens, _generated):
        assert len(tokens) == len(self.rows)
        mates = float(hash(frozenset(self.rows)) % (1 << 50))
        return torch.tensor([[row, mates] for row in self.rows], dtype=torch.float64).reshape(-1, 2)

    def keep(self, contexts):
        self.rows = [self.rows[row] for row in contexts.tolist()]


def companies(batches, most_rows):
    """For each row what it shared passes with, step after step; batch 0 stops after two steps."""
    seen, owners = {}, {row: owner for owner, batch in enumerate(batches) for row in batch}

    def select(logits):
        rows, batches_of_rows = logits.private.tolist(), logits.batch_of_row.tolist()
        for (row, mates), batch in zip(rows, batches_of_rows, strict=True):
            assert owners[row] == batch
            seen.setdefault(row, []).append(mates)
        return Draws.all_private(np.where(logits.active == 0, END, 7))

    generate_documents(
        SimpleNamespace(open=JealousContexts),
        [[[row] for row in batch] for batch in batches],
        select,
        make_rules(rows_per_pass=most_rows),
        row_keys=[row_key(row) for batch in batches for row in batch],
    )
    return seen


@pytest.mark.parametrize(
    ("sizes", "most_rows"),
    # One overfull batch; a wave of which exactly three quarters go on, which a row more tips over;
    # and one that fits into a pass.
    [((20_000,), 256), ((100, 300), 64), ((30, 20, 50), 128)],
)
@pytest.mark.parametrize("owner", [0, -1])
def test_a_record_more_changes_the_company_of_at_most_a_pass_of_rows(
    monkeypatch, sizes, most_rows, owner
):
    starts = np.cumsum([10, *sizes])
    batches = [list(range(start, start + size)) for start, size in zip(starts, sizes, strict=False)]
    before = companies(batches, most_rows)
    batches[owner] = [*batches[owner], 3]
    after = companies(batches, most_rows)
    changed = [row for row in before if before[row] != after[row]]
    assert 0 < len(changed) <= most_rows


def test_cut_passes_write_what_one_pass_writes(cases):
    model, draw = cases.model(), np.random.default_rng(1)
    batches = [
        [draw.integers(3, cases.vocabulary, draw.integers(2, 11)).tolist() for _ in range(rows)]
        for rows in (3, 9, 0, 4)
    ]
    keys = [row_key(row) for row in range(16)]

    def likeliest(logits):
        rows_of = (logits.private[logits.batch_of_row == int(batch)] for batch in logits.active)
        best = [int(rows.sum(dim=0).argmax()) if len(rows) else 9 for rows in rows_of]
        return Draws.all_private(np.array(best))

    written = [
        generate_documents(
            TransformersDecoder(model.model),
            batches,
            likeliest,
            make_rules(tokens_per_batch=16, rows_per_pass=most_rows, end_token_id=cases.end),
            row_keys=keys,
        )
        for most_rows in (None, 16, 5)
    ]
    assert len(written[0]) >= 4
    assert all(each == written[0] for each in written[1:])


def test_rows_without_names_are_refused_where_passes_are_bounded(cases):
    with pytest.raises(ValueError, match="row_keys"):
        generate_documents(
            TransformersDecoder(cases.model().model), [[[3, 4]]], None, make_rules(rows_per_pass=4)
        )


@pytest.mark.parametrize("records", [None, 64])
def test_no_pass_of_a_run_has_more_rows_than_its_price_says(monkeypatch, cases, records):
    # One batch a label, cut from far more records than it was meant for, and none were declared.
    config = MeanUniformConfig(
        batches_per_label=1,
        batches_per_forward=2,
        expected_batch_size=8,
        clip_bound=1.0,
        max_document_tokens=6,
        min_tokens_for_new_document=5,
        max_example_tokens=10,
    )
    method = MeanUniform(config, cases.terms(public_records=records))
    plan = method.plan(1.5)
    room = method.declared.facts.rows_per_pass
    mechanism, slack = method.mean_mechanism, config.logit_slack
    assert slack * room == pytest.approx(mechanism.batch.slack_of_pass)
    passes, packed = [], TransformersDecoder.open

    def recorded(decoder, prompts, **settings):
        passes.append(len(prompts))
        return packed(decoder, prompts, **settings)

    monkeypatch.setattr(TransformersDecoder, "open", recorded)
    public = cases.public(cases.model())
    release = cases.release(method, plan, cases.private(600), public)
    assert release.cost.event == plan.event == mechanism.event(plan.tokens_per_batch)
    assert sum(passes) == 600
    assert max(passes) <= room < 600


def test_contexts_are_named_by_what_they_are_not_by_where_they_stand(cases):
    cell, records = BatchCell(label=0, cluster=None, batches=2, generating=2), cases.records(40)

    def named(records, k):
        batches = hashed(records, np.zeros(len(records), dtype=int), None, [cell], k=k)
        pairs = (zip(batch.keys, batch.contexts, strict=True) for batch in batches)
        return dict(itertools.chain.from_iterable(pairs))

    for k in (1, 2):
        whole, fewer = named(records, k), named(records[1:], k)
        changed = {key for key, texts in whole.items() if fewer.get(key) != texts}
        assert len(changed | (fewer.keys() - whole.keys())) <= 1
        assert len(whole) > 3
    labels = np.zeros(16, dtype=int)
    slots = in_slots(cases.records(16), labels, None, [(0, None)], k=2, max_batches=2)
    assert len({key for batch in slots for key in batch.keys}) == 8


# A killed run goes on where it stopped: finished passes are read back, never drawn again.


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


@pytest.mark.parametrize("name", ["mean_svt", "median_clustered"])
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
    passes.kept = {number: json.loads(json.dumps(kept)) for number, kept in passes.kept.items()}
    again = generated("median_clustered", cases, language_model, passes).value.internal
    for name, values in places.items():
        assert np.array_equal(again["token_cost_by_position"][name], values)
    assert np.array_equal(again["ex_post_epsilon_by_batch"], resumed["ex_post_epsilon_by_batch"])


def test_passes_of_a_planned_event_keep_no_costs(cases, language_model):
    passes = MemoryPasses()
    generated("mean_svt", cases, language_model, passes)
    assert {key for values in passes.kept.values() for key in values} == {"documents", "drawn"}


# What a killed run drew and did not keep is in no message: it will be drawn anew.


def run(name, cases, model, private, progress, passes=None, **changes):
    settings = {"max_document_tokens": 6, "batches_per_forward": 2}
    if name == "mean_svt":
        settings["max_tokens_per_batch"] = 60
    method, plan = make_planned(name, 5.0, **(settings | changes))
    cases.release(method, plan, replace(private, passes=passes), cases.clustered(model), progress)
    return plan


@pytest.mark.parametrize("name", ["mean_svt", "median_clustered"])
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
