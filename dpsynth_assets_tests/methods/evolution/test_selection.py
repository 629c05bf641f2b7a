import numpy as np
import pytest

from dpsynth_assets.methods.evolution.population import select, vote_entropy

LABELS = np.array([0, 1, 0, 1, 0])


def test_the_best_of_each_label_survive_and_the_earlier_of_equals():
    votes = np.array([2, -5, 7, -1, 7])  # Negative noisy votes are no error.
    assert select(votes, LABELS, np.array([2, 1])).tolist() == [2, 4, 3]
    assert select(np.zeros(5), LABELS, np.array([9, 1])).tolist() == [0, 2, 4, 1]


def test_a_label_without_candidates_cannot_survive():
    with pytest.raises(ValueError, match="candidates of every label"):
        select(np.zeros(2), np.array([0, 0]), np.array([1, 1]))


@pytest.mark.parametrize(
    ("votes", "bits"), [([4, 4, 4, 4], 2.0), ([9, -2, 0], 0.0), ([-1, -1], 0.0), ([], 0.0)]
)
def test_entropy_counts_positive_votes(votes, bits):
    assert vote_entropy(np.array(votes)) == pytest.approx(bits)
