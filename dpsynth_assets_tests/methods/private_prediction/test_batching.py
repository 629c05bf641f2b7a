"""Where a record goes depends on the record alone."""

from collections import Counter
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from dpsynth_assets.methods.base import priced
from dpsynth_assets.methods.inputs import label_indices
from dpsynth_assets.methods.private_prediction.aggregates import MeanUniform
from dpsynth_assets.methods.private_prediction.config import MeanUniformConfig
from dpsynth_assets.methods.private_prediction.declared_batches import (
    BatchCell,
    batch_counts,
    generating_cells,
)
from dpsynth_assets.methods.shared_histograms import (
    ClusterCounting,
    ClusterHistogram,
    assign_clusters,
    count_by_label_and_center,
    select_top_centers,
)
from dpsynth_assets.privacy.batch_terms import pass_rows
from dpsynth_assets.privacy.events import ComposedEvent
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets_tests.methods.private_prediction.conftest import SMALL, hashed, in_slots


def cells_of(*batches):
    """Cells of labels 0, 1, ..., of whose batches so many generate."""
    return [
        BatchCell(label=label, cluster=None, batches=some, generating=generating)
        for label, (some, generating) in enumerate(batches)
    ]


CELLS = cells_of((3, 3), (4, 2))


def assign(records, *, k=1, s=8, cells=CELLS, salt="salt", clusters=None):
    labels = label_indices(records["label"], ("x", "y"))
    return hashed(records, labels, clusters, cells, s=s, k=k, salt=salt)


def counting(terms, noise="laplace", scale=0.02):
    histogram = terms.histogram(scale, noise)
    return ClusterCounting(histogram=histogram, labels=terms.labels, clusters_per_label=2)


def contexts(batches):
    return [batch.contexts for batch in batches]


def changed(before, after):
    return [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]


def assert_moves_one_context(before, after):
    moved = changed(before, after)
    assert len(moved) <= 1
    for batch in moved:
        old, new = Counter(before[batch]), Counter(after[batch])
        assert ((old - new) + (new - old)).total() == 1


@pytest.mark.parametrize("k", [1, 2, 3])
def test_adding_or_nulling_a_record_changes_at_most_one_context_of_one_batch(cases, k):
    records = cases.records(300)
    before = contexts(assign(records, k=k))
    for number in range(40):
        newcomer = cases.records(1, seed=number, first=1000 + number)
        texts = [" " if i == 7 * number else text for i, text in enumerate(records["text"])]
        nulled = records.with_columns(text=pl.Series(texts))
        for neighbour in (pl.concat([records, newcomer]), nulled):
            assert_moves_one_context(before, contexts(assign(neighbour, k=k)))


def test_with_one_example_a_record_always_arrives(cases):
    records = cases.records(300)
    batches = assign(records, cells=cells_of((3, 3), (3, 3)))
    placed = [text for held in contexts(batches) for (text,) in held]
    assert sorted(placed) == sorted(records["text"])


def test_the_batch_of_a_record_does_not_depend_on_n_or_order(cases):
    records = cases.records(200)
    where = {text: batch.index for batch in assign(records) for (text,) in batch.contexts}
    for part in (records[:17], records[100:], records.sample(fraction=0.5, shuffle=True, seed=1)):
        for batch in assign(part):
            assert all(where[text] == batch.index for (text,) in batch.contexts)


def test_another_salt_places_records_otherwise(cases):
    records = cases.records(200)
    assert contexts(assign(records, salt="one")) != contexts(assign(records, salt="two"))


def test_a_second_record_in_a_slot_empties_its_context(cases):
    records = cases.records(60)
    before = contexts(assign(records, k=2, s=4))
    twin = records.filter(pl.col("text") == next(c for b in before for c in b)[0])
    after = contexts(assign(pl.concat([records, twin]), k=2, s=4))
    (batch,) = changed(before, after)
    assert len(after[batch]) == len(before[batch]) - 1


def test_batches_beyond_the_public_limit_do_not_generate_but_keep_their_records(cases):
    records = cases.records(400)
    few, every = assign(records), assign(records, cells=cells_of((3, 3), (4, 4)))
    assert contexts(few) == contexts(every)[:5]


def test_records_without_a_declared_label_are_left_out(cases):
    records = cases.records(50).with_columns(label=pl.lit("unknown"))
    assert all(held == () for held in contexts(assign(records)))


def test_batches_never_show_their_texts(cases):
    records = cases.records(50)
    shown = repr(assign(records))
    assert not any(text in shown for text in records["text"])


HISTOGRAM = ClusterHistogram(
    labels=("x", "y"), centers=((0, 2, 3), (1, 5)), dp_counts=((100, -7, 30), (64, 9))
)


def test_batch_counts_round_released_counts_and_leave_out_small_cells():
    cells = generating_cells(batch_counts(HISTOGRAM, 20), 99)
    assert [(c.label, c.cluster, c.batches, c.generating) for c in cells] == [
        (0, 0, 5, 5),
        (0, 3, 2, 2),
        (1, 1, 3, 3),
    ]


def test_max_batches_is_shared_in_proportion_and_never_exceeded():
    for limit in range(1, 12):
        cells = generating_cells(batch_counts(HISTOGRAM, 20), limit)
        assert sum(cell.generating for cell in cells) == min(limit, 10)
        assert all(cell.generating <= cell.batches for cell in cells)
    cells = generating_cells(batch_counts(HISTOGRAM, 20), 6)
    assert [cell.generating for cell in cells] == [3, 1, 2]


def test_counts_below_half_a_batch_are_refused_with_a_remedy():
    with pytest.raises(ValueError, match="Lower expected_batch_size"):
        generating_cells(batch_counts(HISTOGRAM, 500), 9)


def test_top_centres_are_the_largest_noisy_counts_of_each_label():
    counts = np.array([[5, 9, -1, 7], [0, 1, 2, 3]])
    assert select_top_centers(counts, 2) == [[1, 3], [2, 3]]


def test_counts_sum_to_the_records_with_label_and_centre():
    labels, clusters = np.array([0, 0, 1, -1, 1]), np.array([2, 2, 0, 1, -1])
    assert count_by_label_and_center(labels, clusters, 2, 3).tolist() == [[0, 0, 2], [1, 0, 0]]


def test_records_go_to_the_nearest_centre_that_their_label_keeps(cases):
    private, centers = cases.private(50), cases.centers()
    labels = np.arange(50) % 3 - 1
    kept = [[0, 4], [1, 2, 5]]
    clusters = assign_clusters(private.embeddings, labels, centers, kept)
    for embedding, label, cluster in zip(private.embeddings, labels, clusters, strict=True):
        if label < 0:
            assert cluster == -1
        else:
            assert cluster == kept[label][int(np.argmax(centers[kept[label]] @ embedding))]


def test_histogram_keeps_both_counts_the_second_after_records_moved_to_kept_centres(cases):
    release = counting(cases.terms()).release(cases.private(400), cases.centers())
    before = np.array(release.value.dp_counts_before)
    assert before.shape == (2, len(cases.centers()))
    assert before.sum(axis=1).tolist() == [200, 200]
    assert select_top_centers(before, 2) == [list(kept) for kept in release.value.centers]
    assert [sum(counts) for counts in release.value.dp_counts] == [200, 200]
    assert ClusterHistogram.model_validate(release.value.model_dump(mode="json")) == release.value


def test_a_nulled_record_is_counted_in_neither_histogram(cases):
    private = cases.private(400)
    texts = ["" if row < 5 else text for row, text in enumerate(private.records["text"])]
    nulled = replace(private, records=private.records.with_columns(text=pl.Series(texts)))
    release = counting(cases.terms()).release(nulled, cases.centers())
    for counts in (release.value.dp_counts_before, release.value.dp_counts):
        assert sum(map(sum, counts)) == 395


@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_histogram_costs_two_histograms_at_the_declared_relation(cases, noise):
    terms = cases.terms(relation=NeighboringRelation.REPLACE_ONE)
    mechanism = counting(terms, noise=noise, scale=10.0)
    release = mechanism.release(cases.private(40), cases.centers())
    planned = mechanism.event()
    assert release.cost.event == planned
    assert isinstance(planned, ComposedEvent)
    once = counting(cases.terms(), noise=noise, scale=10.0).event()
    assert planned.rho > once.rho
    assert len(planned.events) == 2


@pytest.mark.parametrize("copies", [33, 70])
def test_records_of_one_text_share_an_id_and_no_name(copies):
    """Without an id column equal records are kept; however many, they fit into passes."""
    most = 32

    def keys(count):
        records = pl.DataFrame({"record_id": ["same"] * count, "text": ["Thank you."] * count})
        (batch,) = hashed(records, np.zeros(count, dtype=int), None, cells_of((1, 1)))
        return set(batch.keys)

    named, with_one_more = keys(copies), keys(copies + 1)
    assert len(named) == copies
    assert len(with_one_more - named) == 1
    assert max(len(rows) for rows in pass_rows(sorted(named), most)) <= most


# Batches of public slots: full, in order, and refused unless places are declared public.

SLOT_CELLS = ((0, None), (1, None))
SLOTS = MeanUniformConfig(
    **SMALL | {"expected_batch_size": 4, "max_batches": 10, "batching": "slots"}
)


def fill(records, *, s=4, k=1, max_batches=100, clusters=None, cells=SLOT_CELLS):
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
    refused = priced(MeanUniform(SLOTS, cases.terms()), 20.0)
    assert "public_facts.slots" in refused.refusal
    terms = cases.terms(public_slots=True, relation=NeighboringRelation.ZERO_OUT)
    (stage,) = MeanUniform(SLOTS, terms).plan(20.0).stages
    assert not stage.follows_clusters
