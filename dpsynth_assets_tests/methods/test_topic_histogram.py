import math
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from dpsynth_assets.methods.inputs import UNCOUNTED, PrivateInputs, counted_labels
from dpsynth_assets.methods.shared_histograms import TopicCounting, TopicHistogram, project_to_total
from dpsynth_assets.privacy.events import DiscreteGaussianEvent
from dpsynth_assets.privacy.guarantees import NeighboringRelation, PrivacyUnit
from dpsynth_assets.privacy.histogram import NoisyHistogram
from dpsynth_assets_tests.methods.cohorts import made_terms, made_topics, records_of

LABELS = ("good", "bad", "mixed")
TOPICS = 4


def terms(relation=NeighboringRelation.ADD_REMOVE, max_records=1, labels=LABELS):
    unit = PrivacyUnit(column=None if max_records == 1 else "customer", max_records=max_records)
    return made_terms(relation=relation, unit=unit, labels=labels, label_texts=labels)


def counting(of_terms, noise_std=10.0):
    """The mechanism with the paper's noise."""
    return TopicCounting(histogram=of_terms.histogram(noise_std), labels=of_terms.labels)


@pytest.fixture(scope="module")
def model():
    """Topic t is the direction of axis t; what lies along other axes is unclassified."""
    return made_topics(np.eye(TOPICS, 6, dtype=np.float32))


def private_inputs(labels, axes):
    records = records_of(["private words"] * len(axes), labels or [""])
    embeddings = np.eye(6, dtype=np.float32)[np.asarray(axes, dtype=int)]
    return PrivateInputs(records=records, embeddings=embeddings)


@pytest.fixture
def counts_of(model, monkeypatch):
    """The clean counts that reach the noise, which no release shows."""

    def clean_counts(private, of_terms=None):
        seen = []

        def noted(self, counts):
            seen.append(list(counts))
            return release(self, counts)

        release = NoisyHistogram.release
        monkeypatch.setattr(NoisyHistogram, "release", noted)
        counting(of_terms or terms()).release(private, model)
        (counts,) = seen
        return np.array(counts).reshape(-1, model.bins)

    return clean_counts


def test_each_record_is_counted_in_the_cell_of_its_label_and_topic(counts_of):
    private = private_inputs(["good", "good", "bad", "bad", "mixed"], [0, 0, 3, 5, 4])
    expected = np.zeros((3, TOPICS + 1), dtype=int)
    expected[0, 0], expected[1, 3], expected[1, TOPICS], expected[2, TOPICS] = 2, 1, 1, 1
    np.testing.assert_array_equal(counts_of(private), expected)


def test_one_record_moves_one_cell_by_one(counts_of):
    labels, axes = ["good", "bad", "mixed", "bad"], [0, 1, 5, 1]
    whole = counts_of(private_inputs(labels, axes))
    for row in range(4):
        without = counts_of(
            private_inputs(labels[:row] + labels[row + 1 :], axes[:row] + axes[row + 1 :])
        )
        assert np.abs(whole - without).sum() == 1


def test_a_nulled_record_leaves_its_cell_and_enters_none(counts_of):
    private = private_inputs(["good", "bad", "bad"], [0, 1, 1])
    # A blank text has an embedding too, in a topic of its own.
    nulled = private_inputs(["good", "bad", "bad"], [0, 3, 1])
    texts = pl.Series(["private words", "", "private words"])
    nulled = replace(nulled, records=nulled.records.with_columns(text=texts))
    assert np.abs(counts_of(private) - counts_of(nulled)).sum() == 1


def test_undeclared_labels_and_blank_texts_are_not_counted():
    texts, labels = ["one", " ", "three", "\n", "five"], ["x", "x", "y", "y", "z"]
    records = pl.DataFrame({"text": texts, "label": labels})
    assert counted_labels(records, ("y", "x")).tolist() == [1, UNCOUNTED, 0, UNCOUNTED, UNCOUNTED]
    assert counted_labels(records.clear(), ("y", "x")).tolist() == []


def test_without_labels_there_is_one_row_for_all(counts_of):
    counts = counts_of(private_inputs(["", ""], [0, 1]), terms(labels=("",)))
    np.testing.assert_array_equal(counts, [[1, 1, 0, 0, 0]])


def test_an_empty_cohort_still_gets_noise_on_every_cell(model):
    release = counting(terms()).release(private_inputs([], []), model)
    assert np.shape(release.value.dp_counts) == (3, TOPICS + 1)
    assert any(count != 0 for row in release.value.dp_counts for count in row)


@pytest.mark.parametrize(
    ("relation", "max_records", "sensitivity"),
    [
        (NeighboringRelation.REPLACE_ONE, 1, math.sqrt(2)),
        (NeighboringRelation.ADD_REMOVE, 3, 3.0),
    ],
)
def test_the_price_follows_relation_and_unit(model, relation, max_records, sensitivity):
    declared = terms(relation, max_records)
    event = counting(declared).event()
    assert isinstance(event, DiscreteGaussianEvent)
    assert (event.noise_std, event.shift) == (10.0, max_records)
    assert float(event.rho) == pytest.approx(sensitivity**2 / 200)
    release = counting(declared).release(private_inputs(["good"], [0]), model)
    assert release.cost.event == event


def test_inputs_that_do_not_fit_are_refused_without_private_facts(model):
    whole = private_inputs(["good", "bad"], [0, 1])
    without = PrivateInputs(records=whole.records)
    short = PrivateInputs(records=whole.records, embeddings=whole.embeddings[:1])
    for inputs in (without, short):
        with pytest.raises(ValueError, match="Expected") as caught:
            counting(terms()).release(inputs, model)
        assert "private words" not in str(caught.value)
        assert "2" not in str(caught.value)
    with pytest.raises(ValueError, match="scale"):
        counting(terms(), noise_std=0.5)


def histogram(dp_counts, labels=LABELS):
    return TopicHistogram(
        labels=labels[: len(dp_counts)],
        dp_counts=tuple(tuple(int(n) for n in row) for row in dp_counts),
        noise_std=10.0,
    )


def test_projection_is_the_nearest_point_of_that_total():
    random = np.random.default_rng(0)
    noisy = random.normal(3, 10, size=30)
    nearest = project_to_total(noisy, 90.0)
    assert nearest.min() >= 0
    assert nearest.sum() == pytest.approx(90.0)
    distance = np.linalg.norm(nearest - noisy)
    for _ in range(2000):
        other = np.maximum(nearest + random.normal(0, 0.5, size=30), 0)
        assert np.linalg.norm(other * 90.0 / other.sum() - noisy) >= distance - 1e-9


def test_clean_counts_keep_their_proportions():
    np.testing.assert_allclose(
        histogram([[6, 2], [0, 2]]).proportions(), [[0.6, 0.2], [0, 0.2]], atol=1e-12
    )


@pytest.mark.parametrize("rows", [[[-4, -5], [-1, -2]], [[0, 0], [0, 0]]])
def test_nothing_left_means_uniform(rows):
    np.testing.assert_allclose(histogram(rows).proportions(), 0.25)


def test_allocation_rounds_every_cell_and_label_up_or_down():
    random = np.random.default_rng(2)
    value = histogram(random.integers(0, 300, size=(3, 40)))
    shares = value.proportions()
    for rows in (0, 1, 7, 50, 1000):
        for seed in range(5):
            counts = value.allocate(rows, seed)
            assert counts.sum() == rows
            assert np.abs(counts - rows * shares).max() < 1 + 1e-9
            assert np.abs(counts.sum(axis=1) - rows * shares.sum(axis=1)).max() < 1 + 1e-9


def test_small_cells_get_their_share_over_seeds():
    value = histogram([[50] + [1] * 50])
    total = sum(value.allocate(10, seed) for seed in range(2000))
    assert total[0, 0] == pytest.approx(2000 * 5, rel=1e-9)
    assert total[0, 1:].sum() == 2000 * 5
    assert total[0, 1:].min() > 2000 * 0.1 * 0.6


def test_cells_are_those_of_the_allocation_in_mixed_order():
    value = histogram([[30, 10, 0], [20, 0, 40]])
    cells = value.sample_cells(1000, seed=3)
    counted = np.zeros((2, 3), dtype=int)
    np.add.at(counted, (cells[:, 0], cells[:, 1]), 1)
    np.testing.assert_array_equal(counted, value.allocate(1000, seed=3))
    first = np.bincount(cells[:500, 1] + 3 * cells[:500, 0], minlength=6) / 500
    np.testing.assert_allclose(first, value.proportions().ravel(), atol=0.08)
    np.testing.assert_array_equal(cells, value.sample_cells(1000, seed=3))
    assert not np.array_equal(cells, value.sample_cells(1000, seed=4))
    assert value.sample_cells(0, seed=3).shape == (0, 2)
