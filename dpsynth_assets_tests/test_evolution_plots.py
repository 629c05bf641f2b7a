"""Pictures and numbers of an evolution are read off what was released. About 4 s of CPU."""

import numpy as np
import polars as pl
import pytest

from dpsynth_assets.methods.evolution.population import (
    generation_facts,
    random_population,
    voted_frame,
)
from dpsynth_assets.orchestration.assets.stage_metadata import rounds_table
from dpsynth_assets.report.plots import votes_by_rank_plot


@pytest.fixture
def generations():
    rng = np.random.default_rng(0)
    frames = []
    for number in (1, 2, 3):
        texts = tuple("w" * int(length) for length in rng.integers(10 - 3 * number, 11, 12))
        population = random_population(texts, np.arange(12) % 2)
        population = population.with_columns(born=rng.integers(0, number, 12))
        votes = rng.normal(0, 4, 12).round()
        frames.append(
            voted_frame(population, votes, np.array([1, 2, 2, 5]), number, last=number == 3)
        )
    return pl.concat(frames)


def test_negative_votes_can_be_drawn(generations):
    assert votes_by_rank_plot(generations, noise_std=4.0).startswith(b"\x89PNG")


def test_the_table_has_a_line_a_round(generations):
    assert len(rounds_table(generation_facts(generations)).splitlines()) == 5
