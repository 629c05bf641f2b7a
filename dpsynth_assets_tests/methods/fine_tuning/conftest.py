"""A toy generator, toy topics and a toy cohort to fine-tune on."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from mailboxes import public_rows

from dpsynth_assets.datasets import PublicDataSpec
from dpsynth_assets.datasets.public_spec import EngineSpec
from dpsynth_assets.methods.inputs import PrivateInputs, PublicInputs, Released, silent
from dpsynth_assets.methods.registry import bound_method
from dpsynth_assets.methods.shared_histograms import TopicHistogram
from dpsynth_assets.methods.stages import FINETUNED_GENERATOR
from dpsynth_assets.models.conditional_generator.generator import load_conditional_generator
from dpsynth_assets.models.language_model import load_language_model
from dpsynth_assets_tests.checkpoint_folders import CheckpointFolders
from dpsynth_assets_tests.methods.cohorts import WordEmbedder, made_terms, made_topics, records_of
from dpsynth_assets_tests.tiny_models import write_generator, write_language_model

TOPICS = ("harbour", "bakery", "museum")
DIMENSION = 6
EMBEDDER = WordEmbedder(TOPICS, DIMENSION)


def topic_model():
    axes = np.eye(len(TOPICS), DIMENSION, dtype=np.float32)
    return made_topics(axes, names=TOPICS, embedder=EMBEDDER.name)


def make_records(count, null=()):
    places = [*TOPICS, "nowhere"]
    texts = [
        "" if i in null else f"visit {i} to the {places[i % 4]} was fine" for i in range(count)
    ]
    return records_of(texts, ("x", "y"))


def make_private(count=40, null=()):
    records = make_records(count, null)
    return PrivateInputs(records=records, embeddings=EMBEDDER.embed(records["text"].to_list()))


make_terms = partial(made_terms, public_records=40)


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
        text_embedder=EMBEDDER,
        topic_histogram=histogram.model_dump(mode="json"),
        public_records=documents,
        seed=3,
    )


LANGUAGE_MODEL = PublicDataSpec(
    name="english", domain="short visits", language_model={"kind": "smollm2"}
)


def terms_over(base=LANGUAGE_MODEL, **changes):
    """Terms over a public base, here one whose generator is its language model."""
    models = {"language_model": base.language_model, "generator": base.conditional_generator}
    return make_terms(**models, domain=base.domain, **changes)


def on_language_model(engine="exact", **settings):
    """The method ctcl over a base whose generator is its language model."""
    small = {"steps": 2, "expected_batch_size": 10, "max_document_tokens": 24, "rows": 12}
    return bound_method("ctcl", small | settings, terms_over(engine=EngineSpec(kind=engine)))


def checked_release(method, public, checkpoint):
    """The stage of a generator, and what it releases where its check passes."""
    stage = method.plan(4.0).stage(FINETUNED_GENERATOR)
    stage.check(public)
    return stage, stage.release(make_private(), public, checkpoint, silent)


def with_released(public, release):
    """Public inputs with the released generator."""
    files = Released(reservation="r", facts=release.value.facts, folder=release.value.files)
    return replace(public, released={FINETUNED_GENERATOR: files})


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
        silent=silent,
    )
