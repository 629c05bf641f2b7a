import numpy as np

from dpsynth_assets.methods.evolution.population import NO_PARENT, Population


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
