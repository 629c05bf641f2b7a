"""A planted corpus: six topics with words of their own, plus words that all share."""

from dataclasses import dataclass

import numpy as np
import pytest

from dpsynth_assets.models.topic_model.fitting import fit_topic_model
from dpsynth_assets.models.topic_model.model import TopicModelSettings

DIMENSION = 24
TOPICS = 6
DOCUMENTS = 600
OWN_WORDS = (
    "river lake boat sail harbour anchor fish tide coast island wave pier",
    "bread oven flour dough cake butter sugar pastry crust baker yeast loaf",
    "engine wheel brake petrol gear tyre clutch garage mirror motor piston bumper",
    "violin concert piano orchestra melody cello opera singer rhythm chorus flute tenor",
    "court judge trial lawyer verdict witness crime jury prison appeal sentence theft",
    "planet rocket orbit moon comet galaxy telescope crater asteroid eclipse nebula mars",
)
SHARED_WORDS = [
    "morning", "people", "letter", "weather", "number",
    "street", "family", "village", "market", "winter",
]  # fmt: skip


def unit(values):
    return (values / np.linalg.norm(values, axis=-1, keepdims=True)).astype(np.float32)


@dataclass
class Corpus:
    texts: list[str]
    embeddings: np.ndarray
    topics: np.ndarray
    directions: np.ndarray

    def embed_words(self, words):
        """A word of a topic lies near the topic's direction; a shared word lies anywhere."""
        rows = []
        for word in words:
            random = np.random.default_rng(sum(ord(c) * 31**i for i, c in enumerate(word)))
            noise = 0.5 * random.normal(size=DIMENSION) / np.sqrt(DIMENSION)
            owner = [t for t in range(TOPICS) if word in OWN_WORDS[t].split()]
            rows.append(noise + (self.directions[owner[0]] if owner else 0))
        return unit(np.array(rows))


@pytest.fixture(scope="package")
def corpus():
    random = np.random.default_rng(7)
    directions = unit(random.normal(size=(TOPICS, DIMENSION)))
    topics = random.integers(TOPICS, size=DOCUMENTS)
    noise = random.normal(size=(DOCUMENTS, DIMENSION)) * 0.4 / np.sqrt(DIMENSION)
    texts = []
    for topic in topics:
        own = random.choice(OWN_WORDS[topic].split(), size=8)
        texts.append(" ".join([*own, *random.choice(SHARED_WORDS, size=8)]).capitalize() + ".")
    return Corpus(texts, unit(directions[topics] + noise), topics, directions)


@pytest.fixture(scope="package")
def settings():
    return TopicModelSettings(dimensions=6, max_topic_share=0.3, min_topics=2, candidates=12)


@pytest.fixture(scope="package")
def model(corpus, settings):
    return fit_topic_model(
        corpus.texts, corpus.embeddings, settings, corpus.embed_words, embedder="planted"
    )
