import numpy as np

from dpsynth_assets.methods.evolution.population import (
    NO_PARENT,
    chosen,
    random_population,
    with_variations,
)


def test_variations_know_their_parents_and_their_round():
    first = random_population(("a", "b", "c"), np.array([0, 1, 1]))
    assert first["parent"].to_list() == [NO_PARENT] * 3
    grown = with_variations(chosen(first, np.array([2, 0])), ("c1", "a1"), np.array([0, 1]), 4)
    assert grown["text"].to_list() == ["c", "a", "c1", "a1"]
    assert grown["label"].to_list() == [1, 0, 1, 0]
    assert grown["parent"].to_list() == [0, 1, 0, 1]
    assert grown["born"].to_list() == [0, 0, 4, 4]
