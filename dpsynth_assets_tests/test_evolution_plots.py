"""Pictures and numbers of an evolution are read off what was released. About 4 s of CPU."""

import numpy as np
import polars as pl
import pytest

from dpsynth_assets.methods.evolution.population import Population, generation_facts, voted_frame
from dpsynth_assets.orchestration.assets.stage_metadata import round_distances, rounds_table
from dpsynth_assets.report.method_plots import votes_by_rank_plot


class LengthEmbedder:
    """Embeds a text by its length."""

    def embed(self, texts, progress=None, *, public=False):
        del progress
        return np.array([[len(text), 1.0] for text in texts], dtype=np.float32)


@pytest.fixture
def generations():
    rng = np.random.default_rng(0)
    frames = []
    for number in (1, 2, 3):
        texts = tuple("w" * int(length) for length in rng.integers(10 - 3 * number, 11, 12))
        population = Population(
            texts, np.arange(12) % 2, np.full(12, -1), rng.integers(0, number, 12)
        )
        votes = rng.normal(0, 4, 12).round()
        frames.append(
            voted_frame(population, votes, np.array([1, 2, 2, 5]), number, last=number == 3)
        )
    return pl.concat(frames)


def test_negative_votes_can_be_drawn(generations):
    assert votes_by_rank_plot(generations, noise_std=4.0).startswith(b"\x89PNG")


def test_distances_count_survivors_as_often_as_they_survived(generations):
    def of_last(texts):
        embedder = LengthEmbedder()
        public = embedder.embed(texts, public=True)
        return round_distances(generations, public, embedder)[-1]

    alive = generations.filter((pl.col("iteration") == 3) & (pl.col("survived") > 0))
    as_often = [
        text for text, times in alive.select("text", "survived").iter_rows() for _ in range(times)
    ]
    assert len(as_often) == 4
    assert of_last(as_often) == pytest.approx(0.0, abs=1e-9)
    assert of_last([text + "longer" for text in as_often]) == pytest.approx(36.0)
    assert of_last(["one text"]) is None


def test_the_table_has_a_line_a_round(generations):
    facts = {**generation_facts(generations), "frechet_distance": [0.5, None, 0.25]}
    lines = rounds_table(facts).splitlines()
    assert len(lines) == 5
    assert lines[-1].endswith("| 0.250 |")
    assert lines[-2].endswith("|  |")
