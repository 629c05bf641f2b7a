"""The energy distance orders corpora that MAUVE cannot tell apart."""

import numpy as np
import pytest

from dpsynth_assets.metrics.embedding_distances import energy_distance

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


def test_one_row_is_refused():
    with pytest.raises(ValueError, match="two rows"):
        energy_distance(unit(1), unit(5))
