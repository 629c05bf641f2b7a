import numpy as np
import pytest

from dpsynth_assets.methods.evolution.selection import clipped_weights, select, vote_entropy

LABELS = np.array([0, 1, 0, 1, 0])


def test_ranking_keeps_the_best_of_each_label_and_the_earlier_of_equals():
    votes = np.array([2, -5, 7, -1, 7])
    assert select(votes, LABELS, np.array([2, 1]), how="rank").tolist() == [2, 4, 3]


def test_ranking_gives_what_there_is():
    assert select(np.zeros(5), LABELS, np.array([9, 1]), how="rank").tolist() == [0, 2, 4, 1]


def test_negative_noisy_votes_are_no_probabilities_and_no_error():
    # The default population of the published package stops here: "probabilities are not
    # non-negative".
    votes = np.array([-3, 4, 6, -2, -1])
    chosen = select(votes, LABELS, np.array([50, 50]), how="sample", seed=1)
    assert chosen.tolist() == [2] * 50 + [1] * 50


def test_where_no_vote_is_left_everybody_is_as_likely():
    chosen = select(np.full(5, -4), LABELS, np.array([600, 0]), how="sample", seed=2)
    assert np.bincount(chosen, minlength=5)[[0, 2, 4]] == pytest.approx([200] * 3, abs=60)


def test_sampling_is_in_proportion_to_votes_above_the_threshold():
    votes = np.array([11, 0, 14, 0, 9])
    chosen = select(votes, LABELS, np.array([4000, 0]), how="sample", threshold=10.0, seed=3)
    assert np.bincount(chosen, minlength=5)[[0, 2, 4]] / 4000 == pytest.approx(
        [0.2, 0.8, 0], abs=0.04
    )


def test_equal_seeds_draw_alike_and_labels_apart():
    votes, sizes = np.array([5, 5, 5, 5, 5]), np.array([20, 20])
    first = select(votes, LABELS, sizes, how="sample", seed=4)
    assert select(votes, LABELS, sizes, how="sample", seed=4).tolist() == first.tolist()
    assert select(votes, LABELS, sizes, how="sample", seed=5).tolist() != first.tolist()
    assert set(LABELS[first[:20]]) == {0}
    assert set(LABELS[first[20:]]) == {1}


def test_a_label_without_candidates_cannot_survive():
    with pytest.raises(ValueError, match="candidates of every label"):
        select(np.zeros(2), np.array([0, 0]), np.array([1, 1]), how="rank")
    with pytest.raises(ValueError, match="rank or sample"):
        select(np.zeros(2), np.array([0, 0]), np.array([1]), how="best")


def test_weights_are_votes_above_the_threshold():
    assert clipped_weights(np.array([-3, 1, 5]), 2.0).tolist() == [0.0, 0.0, 3.0]


@pytest.mark.parametrize(
    ("votes", "bits"), [([4, 4, 4, 4], 2.0), ([9, -2, 0], 0.0), ([-1, -1], 0.0), ([], 0.0)]
)
def test_entropy_counts_positive_votes(votes, bits):
    assert vote_entropy(np.array(votes)) == pytest.approx(bits)
