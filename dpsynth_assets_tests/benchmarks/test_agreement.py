"""Agreement leaves out what has no class or cluster; sizes count every record once."""

import numpy as np
import pytest
from dp_kmeans.agreement import (
    agreement,
    score_clusterings,
)


def test_finer_clusters_are_homogeneous_and_not_complete():
    classes = np.repeat([0, 1], 8)
    finer = agreement(classes, np.arange(16) // 4)
    assert finer.homogeneity == pytest.approx(1)
    assert finer.completeness == pytest.approx(0.5)
    coarser = agreement(np.arange(16) // 4, classes)
    assert (coarser.homogeneity, coarser.completeness) == pytest.approx((0.5, 1))
    assert coarser.v_measure == pytest.approx(finer.v_measure)


def test_records_without_a_class_or_a_cluster_do_not_count():
    classes, clusters = np.array([0, 0, 1, 1]), np.array([0, 0, 1, 1])
    longer = agreement(np.append(classes, [-1, 0]), np.append(clusters, [1, -1]))
    assert longer == agreement(classes, clusters)
    assert longer.v_measure == pytest.approx(1)


def test_one_class_alone_has_no_agreement_to_measure():
    assert agreement(np.zeros(5, dtype=int), np.arange(5)) is None


def test_scores_hold_the_numbers_of_the_published_table():
    truth = np.repeat(np.arange(4), 60)
    coarse = np.where(np.arange(240) < 239, truth // 2, 5)
    labels = [str(value // 2) for value in truth]
    exact, merged = score_clusterings(
        {"k-means": truth, "public": coarse}, labels, reference="k-means"
    )
    assert (exact.clusters, exact.usable_clusters, exact.largest_share) == (4, 0, 0.25)
    assert exact.with_reference.v_measure == pytest.approx(1)
    assert (merged.clusters, merged.usable_clusters) == (2, 2)  # a cluster of one is none
    assert merged.sizes.tolist() == [120, 119, 1]
    assert merged.with_reference.homogeneity < 0.6
    assert merged.with_labels.v_measure > 0.9


def test_without_a_reference_or_labels_only_sizes_are_left_and_none_is_printed():
    (scores,) = score_clusterings({"public": np.array([0, 0, 1])}, ["", "", ""], reference="none")
    assert (scores.with_labels, scores.with_reference) == (None, None)
    assert scores.sizes.tolist() == [2, 1]
    assert "sizes" not in repr(scores)
