import numpy as np
import pytest
from hypothesis import given, strategies as st

from dpsynth_assets.methods.evolution.population import NO_PARENT, Population, shared_out


@given(st.lists(st.floats(-5, 50), min_size=1, max_size=8), st.integers(0, 200))
def test_places_are_shared_out_whole_and_nobody_is_left_out(shares, more):
    total = len(shares) + more
    places = shared_out(total, np.array(shares))
    assert places.sum() == total
    assert places.min() >= 1


def test_shares_are_followed():
    assert shared_out(104, np.array([3.0, 1.0, 0.0, -2.0])).tolist() == [76, 26, 1, 1]
    assert shared_out(7, np.zeros(2), least=0).tolist() == [4, 3]
    with pytest.raises(ValueError, match="population >= 3"):
        shared_out(2, np.ones(3))


def test_variations_know_their_parents_and_their_round():
    first = Population.random(("a", "b", "c"), np.array([0, 1, 1]))
    assert first.parents.tolist() == [NO_PARENT] * 3
    survivors = first.take(np.array([2, 0]))
    grown = survivors.with_variations(("c1", "a1"), np.array([0, 1]), 4)
    assert grown.texts == ("c", "a", "c1", "a1")
    assert grown.labels.tolist() == [1, 0, 1, 0]
    assert grown.parents.tolist() == [0, 1, 0, 1]
    assert grown.born.tolist() == [0, 0, 4, 4]


def test_a_population_survives_a_file():
    population = Population.random(("a", ""), np.array([1, 0])).with_variations(
        ("b",), np.array([1]), 2
    )
    read = Population.from_frame(population.frame())
    assert read.texts == population.texts
    for name in ("labels", "parents", "born"):
        assert getattr(read, name).tolist() == getattr(population, name).tolist()


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="one length"):
        Population(("a",), np.zeros(2), np.zeros(1), np.zeros(1))
