"""Made-up cohorts of two labels: what they declare, tables of their records, embeddings."""

import numpy as np
import polars as pl

from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.models.topic_model.model import TopicModel, TopicModelSettings
from dpsynth_assets.privacy.guarantees import NeighboringRelation, PrivacyUnit


def made_terms(**changes):
    """Declared terms of a cohort of the labels x and y."""
    settings = {
        "cohort": "visits",
        "relation": NeighboringRelation.ADD_REMOVE,
        "unit": PrivacyUnit(),
        "epsilon": 8.0,
        "delta": 1e-5,
        "accountant": "zcdp",
        "labels": ("x", "y"),
        "label_texts": ("ex", "why"),
    }
    return CohortTerms(**(settings | changes))


def made_topics(embeddings, threshold=0.5, names=None, **more):
    """A topic model of these unit vectors, ten keywords each."""
    names = names or [f"word{topic}" for topic in range(len(embeddings))]
    return TopicModel(
        embeddings=embeddings,
        keywords=tuple(tuple(f"{name}{n}" for n in range(10)) for name in names),
        fallback_keywords=tuple(f"common{n}" for n in range(10)),
        threshold=threshold,
        sizes=np.full(len(embeddings), 10),
        settings=TopicModelSettings(),
        **more,
    )


class MemoryPasses:
    """Passes in memory, as JSON would keep them."""

    def __init__(self):
        self.kept = {}

    def load(self, number):
        return self.kept.get(number)

    def save(self, number, values):
        self.kept[number] = values


def records_of(texts, labels, first=0):
    """Records r0, r1, ... of these texts, to which the labels are dealt out in turn."""
    names = [f"r{first + row}" for row in range(len(texts))]
    dealt = [labels[row % len(labels)] for row in range(len(texts))]
    columns = {"record_id": names, "unit_id": names, "text": texts, "label": dealt}
    return pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.String))


class WordEmbedder:
    """Embeds a text by how often it has each of the words; further axes stay small."""

    name = "words"

    def __init__(self, words, dimension):
        self.words, self.dimension = words, dimension

    def embed(self, texts, progress=None, *, public=False):
        rows = np.full((len(texts), self.dimension), 1e-3, dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            row[: len(self.words)] += [text.split().count(word) for word in self.words]
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)
