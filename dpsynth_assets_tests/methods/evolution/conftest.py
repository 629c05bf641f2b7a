"""A toy cohort, a toy embedder and a writer that needs no model."""

from functools import partial

import numpy as np
import pytest

from dpsynth_assets.methods.evolution.config import AugPeConfig
from dpsynth_assets.methods.inputs import PrivateInputs, PublicInputs
from dpsynth_assets_tests.methods.cohorts import WordEmbedder, made_terms, records_of

DIMENSION = 8
WORDS = ("harbour", "bakery", "museum", "garden")


EMBEDDER = WordEmbedder(WORDS, DIMENSION)


class WordApi:
    """Writes words: at random, or one word of a text anew. Remembers what it was asked."""

    def __init__(self):
        self.calls = []

    def random(self, labels, *, seed, progress=None):
        self.calls.append(("random", seed, tuple(labels)))
        rng = np.random.default_rng(seed)
        if progress is not None:
            progress(1.0)
        return [" ".join(rng.choice(WORDS, 3)) + f" {label} {rng.integers(99)}" for label in labels]

    def vary(self, texts, labels, *, degree, seed, progress=None):
        self.calls.append(("vary", seed, tuple(texts)))
        rng = np.random.default_rng(seed)
        if progress is not None:
            progress(1.0)
        varied = []
        for text in texts:
            words = text.split()
            words[int(rng.integers(3))] = str(rng.choice(WORDS))
            varied.append(" ".join([*words[:-1], str(rng.integers(99))]))
        return varied


def make_records(counts, labels=("x", "y")):
    rows = [
        (f"visit to the {WORDS[number % 2]} {number}", label)
        for label, count in zip(labels, counts, strict=True)
        for number in range(count)
    ]
    texts, of_rows = ([row[place] for row in rows] for place in (0, 1))
    return records_of(texts, of_rows or labels)


def make_private(counts=(40, 20), labels=("x", "y")):
    records = make_records(counts, labels)
    embeddings = EMBEDDER.embed(records["text"].to_list())
    return PrivateInputs(records=records, embeddings=embeddings)


make_terms = partial(
    made_terms, accountant="tight", label_texts=("visits by day", "visits by night")
)


def make_config(**changes):
    settings = {"iterations": 3, "population": 6, "variations": 3, "rows": 10}
    return AugPeConfig(**settings | changes)


def make_public(**changes):
    return PublicInputs(language_model=None, text_embedder=EMBEDDER, seed=7, **changes)


@pytest.fixture
def api(monkeypatch):
    writer = WordApi()
    monkeypatch.setattr(
        "dpsynth_assets.methods.evolution.method.open_api", lambda *arguments: writer
    )
    return writer
