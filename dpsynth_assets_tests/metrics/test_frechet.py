import numpy as np
import pytest

from dpsynth_assets.metrics.embedding_distances import Moments, frechet_distance


def rows(seed, count=400, dimension=6):
    rng = np.random.default_rng(seed)
    mixing = rng.standard_normal((dimension, dimension))
    return rng.standard_normal((count, dimension)) @ mixing + rng.standard_normal(dimension)


def test_it_agrees_with_the_matrix_square_root_of_its_definition():
    from scipy.linalg import sqrtm

    first, second = Moments.of(rows(0)), Moments.of(rows(1))
    root = sqrtm(first.covariance @ second.covariance).real
    expected = np.square(first.mean - second.mean).sum() + np.trace(
        first.covariance + second.covariance - 2 * root
    )
    assert frechet_distance(first, second) == pytest.approx(expected)
    assert frechet_distance(second, first) == pytest.approx(expected)


def test_equal_sets_are_at_no_distance_and_a_shift_is_its_square():
    first = rows(2)
    assert frechet_distance(Moments.of(first), Moments.of(first)) == pytest.approx(0, abs=1e-9)
    moved = first + np.array([3.0, 4.0, 0, 0, 0, 0])
    assert frechet_distance(Moments.of(first), Moments.of(moved)) == pytest.approx(25.0)


def test_scaling_one_dimension_is_felt():
    narrow = np.random.default_rng(0).standard_normal((200_000, 1))
    distance = frechet_distance(Moments.of(narrow), Moments.of(3 * narrow))
    assert distance == pytest.approx(4.0, rel=0.02)


def test_fewer_rows_than_dimensions_give_a_number():
    few = np.random.default_rng(0).standard_normal((5, 40))
    assert 0 < frechet_distance(Moments.of(few), Moments.of(rows(1, 100, 40))) < np.inf


def test_sets_that_do_not_fit_are_refused_and_nothing_is_shown():
    with pytest.raises(ValueError, match="two rows"):
        Moments.of(np.zeros((1, 4)))
    with pytest.raises(ValueError, match="one dimension"):
        frechet_distance(Moments.of(rows(0)), Moments.of(rows(0, dimension=5)))
    assert "mean" not in repr(Moments.of(rows(0)))
