"""A toy generator, toy topics and a toy cohort to fine-tune on."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from mailboxes import public_rows

from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.inputs import PrivateInputs, PublicInputs
from dpsynth_assets.methods.topic_histogram import TopicHistogram
from dpsynth_assets.models.conditional_generator import load_conditional_generator
from dpsynth_assets.models.language_model import load_language_model
from dpsynth_assets.models.topic_model import TopicModel, TopicModelSettings
from dpsynth_assets.privacy.units import NeighboringRelation, PrivacyUnit
from dpsynth_assets_tests.checkpoint_folders import CheckpointFolders
from dpsynth_assets_tests.tiny_models import write_generator, write_language_model

TOPICS = ("harbour", "bakery", "museum")
DIMENSION = 6


class Embedder:
    """Embeds a text on the axis of the topic word it holds."""

    name = "axes"

    def embed(self, texts, progress=None, *, public=False):
        rows = np.full((len(texts), DIMENSION), 1e-3, dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            row[next((k for k, word in enumerate(TOPICS) if word in text), DIMENSION - 1)] = 1.0
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def topic_model():
    return TopicModel(
        embeddings=np.eye(DIMENSION, dtype=np.float32)[: len(TOPICS)],
        keywords=tuple(tuple(f"{word}{n}" for n in range(10)) for word in TOPICS),
        fallback_keywords=tuple(f"common{n}" for n in range(10)),
        threshold=0.5,
        sizes=np.full(len(TOPICS), 10),
        settings=TopicModelSettings(),
        embedder=Embedder.name,
    )


def make_records(count, null=()):
    places = [*TOPICS, "nowhere"]
    return pl.DataFrame(
        {
            "record_id": [f"r{i}" for i in range(count)],
            "unit_id": [f"r{i}" for i in range(count)],
            "text": [
                "" if i in null else f"visit {i} to the {places[i % 4]} was fine"
                for i in range(count)
            ],
            "label": [["x", "y"][i % 2] for i in range(count)],
        }
    )


def make_private(count=40, null=()):
    records = make_records(count, null)
    return PrivateInputs(records=records, embeddings=Embedder().embed(records["text"].to_list()))


def make_terms(**changes):
    settings = {
        "cohort": "visits",
        "relation": NeighboringRelation.ADD_REMOVE,
        "unit": PrivacyUnit(),
        "epsilon": 8.0,
        "delta": 1e-5,
        "accountant": "zcdp",
        "labels": ("x", "y"),
        "label_texts": ("ex", "why"),
        "public_records": 40,
    }
    return CohortTerms(**(settings | changes))


@pytest.fixture(autouse=True)
def _own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="session")
def documents():
    return pl.DataFrame(public_rows(80, seed=0))


@pytest.fixture(scope="session")
def generator(tmp_path_factory):
    folder = tmp_path_factory.mktemp("generator") / "toy"
    return load_conditional_generator(write_generator(folder, width=16, tokens=40), device="cpu")


@pytest.fixture(scope="session")
def language_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("language_model") / "toy"
    return load_language_model(write_language_model(folder, width=16, layers=1), device="cpu")


@pytest.fixture
def public(generator, language_model, documents):
    histogram = TopicHistogram(
        labels=("x", "y"), dp_counts=((9, -2, 3, 1), (1, 12, 2, 0)), noise_std=2.0
    )
    return PublicInputs(
        language_model=language_model,
        conditional_generator=generator,
        topic_model=topic_model(),
        text_embedder=Embedder(),
        topic_histogram=histogram.model_dump(mode="json"),
        public_records=documents,
        seed=3,
    )


@pytest.fixture
def checkpoint(tmp_path):
    return CheckpointFolders(tmp_path / "checkpoint")


@pytest.fixture
def cases():
    """What tests make cohorts of."""
    return SimpleNamespace(
        terms=make_terms,
        private=make_private,
        records=make_records,
        topic_model=topic_model,
        silent=lambda _share, _message: None,
        folder=Path,
    )
