"""Batches of public slots: full, in order, and refused unless places are declared public."""

import numpy as np
import pytest

from dpsynth_assets.methods.base import priced
from dpsynth_assets.methods.private_prediction.aggregates import MeanUniform
from dpsynth_assets.methods.private_prediction.config import MeanUniformConfig
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets_tests.methods.private_prediction.placed import in_slots

CELLS = ((0, None), (1, None))
SETTINGS = {
    "expected_batch_size": 4,
    "clip_bound": 2.0,
    "max_document_tokens": 8,
    "max_example_tokens": 8,
    "min_tokens_for_new_document": 3,
    "batching": "slots",
}


def fill(records, *, s=4, k=1, max_batches=100, clusters=None, cells=CELLS):
    labels = np.array([["x", "y"].index(label) for label in records["label"]])
    return in_slots(records, labels, clusters, cells, s=s, k=k, max_batches=max_batches)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_every_batch_is_full_and_no_record_stands_in_two(cases, k):
    records = cases.records(101)
    batches = fill(records, k=k)
    assert len(batches) == 2 * (50 // (4 * k))
    assert all(len(batch.contexts) == 4 for batch in batches)
    assert all(len(context) == k for batch in batches for context in batch.contexts)
    used = [text for batch in batches for context in batch.contexts for text in context]
    assert len(used) == len(set(used))


def test_records_keep_their_order_within_a_label(cases):
    records = cases.records(40)
    batches = fill(records)
    for label, name in enumerate(("x", "y")):
        texts = [c[0] for b in batches if b.label == label for c in b.contexts]
        assert texts == records.filter(records["label"] == name)["text"].to_list()[: len(texts)]


@pytest.mark.parametrize("k", [1, 2, 3])
def test_nulling_a_record_takes_one_context_out_of_one_batch_and_moves_nothing(cases, k):
    records = cases.records(80)
    whole = fill(records, k=k)
    for row in range(0, 80, 7):
        texts = records["text"].to_list()
        nulled, texts[row] = texts[row], " "
        neighbour = fill(records.with_columns(text=np.array(texts, dtype=object)), k=k)
        assert len(neighbour) == len(whole)
        for one, other in zip(whole, neighbour, strict=True):
            kept = tuple(context for context in one.contexts if nulled not in context)
            assert other.contexts == kept
            assert len(one.contexts) - len(kept) <= 1


def test_clusters_are_filled_each_by_itself(cases):
    records = cases.records(60)
    clusters = np.arange(60) % 3
    batches = fill(records, clusters=clusters, cells=((0, 0), (0, 2), (1, 1)))
    assert {(batch.label, batch.cluster) for batch in batches} == {(0, 0), (0, 2), (1, 1)}


def test_at_most_so_many_batches_are_kept_in_proportion(cases):
    assert len(fill(cases.records(200), max_batches=5)) == 5


def test_a_plan_without_declared_places_refuses(cases):
    config = MeanUniformConfig(**SETTINGS)
    refused = priced(MeanUniform(config, cases.terms()), 20.0)
    assert "public_facts.slots" in refused.refusal
    terms = cases.terms(public_slots=True, relation=NeighboringRelation.ZERO_OUT)
    assert MeanUniform(config, terms).plan(20.0).refusal is None


def test_slots_need_no_histogram_and_generate(cases, language_model):
    terms = cases.terms(public_slots=True, relation=NeighboringRelation.ZERO_OUT)
    method = MeanUniform(MeanUniformConfig(**SETTINGS), terms)
    assert not method.stages()[0].follows_clusters
    public = cases.public(language_model)
    release = cases.release(method, method.plan(20.0), cases.private(40), public)
    assert release.value.facts["batches"] == 2 * (20 // 4)
