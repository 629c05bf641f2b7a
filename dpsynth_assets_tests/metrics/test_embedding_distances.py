import numpy as np
import pytest

from dpsynth_assets.metrics.embedding_distances import (
    energy_distance,
    frechet_distance,
    resampled_energy_distances,
)
from dpsynth_assets.metrics.metric import resampled_counts


def rows(seed, count=400, dimension=6):
    rng = np.random.default_rng(seed)
    mixing = rng.standard_normal((dimension, dimension))
    return rng.standard_normal((count, dimension)) @ mixing + rng.standard_normal(dimension)


def test_it_agrees_with_the_matrix_square_root_of_its_definition():
    from scipy.linalg import sqrtm

    first, second = rows(0), rows(1)
    spread, other = np.cov(first.T), np.cov(second.T)
    root = sqrtm(spread @ other).real
    apart = np.square(first.mean(axis=0) - second.mean(axis=0)).sum()
    expected = apart + np.trace(spread + other - 2 * root)
    assert frechet_distance(first, second) == pytest.approx(expected)
    assert frechet_distance(second, first) == pytest.approx(expected)


def test_equal_sets_are_at_no_distance_and_a_shift_is_its_square():
    first = rows(2)
    assert frechet_distance(first, first) == pytest.approx(0, abs=1e-9)
    moved = first + np.array([3.0, 4.0, 0, 0, 0, 0])
    assert frechet_distance(first, moved) == pytest.approx(25.0)


def test_scaling_one_dimension_is_felt():
    narrow = np.random.default_rng(0).standard_normal((200_000, 1))
    distance = frechet_distance(narrow, 3 * narrow)
    assert distance == pytest.approx(4.0, rel=0.02)


def test_fewer_rows_than_dimensions_give_a_number():
    few = np.random.default_rng(0).standard_normal((5, 40))
    assert 0 < frechet_distance(few, rows(1, 100, 40)) < np.inf


# The energy distance orders corpora that MAUVE cannot tell apart.

DRAW = np.random.default_rng(0)


def unit(rows, shift=0.0):
    points = DRAW.normal(size=(rows, 16)) + shift
    return points / np.linalg.norm(points, axis=1, keepdims=True)


def test_it_is_near_zero_for_one_distribution():
    assert abs(energy_distance(unit(400), unit(300))) < 0.02


def test_it_grows_with_the_shift_and_stays_below_four():
    near, far = (energy_distance(unit(200), unit(200, shift)) for shift in (0.5, 5.0))
    assert 0.02 < near < far < 4


def test_it_is_symmetric_and_equals_the_plain_sum():
    p, q = unit(7), unit(5, 1.0)

    def mean(a, b, same):
        pairs = [np.linalg.norm(x - y) for x in a for y in b]
        return sum(pairs) / (len(a) * (len(b) - same))

    plain = 2 * mean(p, q, 0) - mean(p, p, 1) - mean(q, q, 1)
    assert energy_distance(p, q) == pytest.approx(plain)
    assert energy_distance(q, p) == pytest.approx(plain)


def test_resamples_spread_as_other_rows_would():
    generator = np.random.default_rng(2)

    def rows(shift):
        return generator.normal(size=(120, 6)) + shift

    p, q = rows(0.0), rows(0.3)
    counts = [resampled_counts(120, 300, seed) for seed in (1, 2)]
    drawn = resampled_energy_distances(p, q, *counts)
    others = [energy_distance(rows(0.0), rows(0.3)) for _ in range(100)]
    assert 0.6 * np.std(others) < drawn.std() < 1.6 * np.std(others)


def test_doubled_rows_do_not_make_one_distribution_look_like_two():
    """A row drawn twice is at no distance from itself, which must not count as a small spread."""
    generator = np.random.default_rng(4)
    p, q = generator.normal(size=(200, 5)), generator.normal(size=(200, 5))
    drawn = resampled_energy_distances(
        p, q, resampled_counts(200, 400, 1), resampled_counts(200, 400, 2)
    )
    assert abs(drawn.mean() - energy_distance(p, q)) < drawn.std() / 2
