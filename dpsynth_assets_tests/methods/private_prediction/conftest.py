"""A character-level language model with random weights, and cohorts to feed it."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from dpsynth_assets.methods.inputs import PrivateInputs, PublicInputs, silent
from dpsynth_assets.methods.private_prediction.config import MeanUniformConfig
from dpsynth_assets.methods.private_prediction.declared_batches import DeclaredBatches
from dpsynth_assets.methods.private_prediction.loop import GenerationRules
from dpsynth_assets.methods.private_prediction.split_batches import HashedBatches, slot_batches
from dpsynth_assets.methods.registry import get_method
from dpsynth_assets.methods.shared_histograms import ClusterHistogram
from dpsynth_assets.methods.stages import StageRun
from dpsynth_assets.models.decoding.protocol import PROBES
from dpsynth_assets.models.transformers_decoder.decoder import TransformersDecoder
from dpsynth_assets_tests.methods.cohorts import made_terms, records_of
from dpsynth_assets_tests.tiny_models import random_llama

BEGIN, END, PAD = 0, 1, 2
ALPHABET = "abcdefghijklmnopqrstuvwxyz ."
VOCABULARY = 3 + len(ALPHABET)
HISTOGRAM = ClusterHistogram(
    labels=("x", "y"), centers=((0, 2), (1, 3)), dp_counts=((17, 15), (16, 14))
)
NAMES = ("mean_uniform", "mean_clustered", "median_clustered", "mean_svt", "invisible_ink")
"""Methods that decode in batches, each with passes that are kept."""


class Killed(BaseException):
    """Stands for SIGKILL: nothing in the package may catch it."""


class CharacterModel:
    """The part of `LanguageModel` that private prediction needs."""

    end_token_id = END
    pad_token_id = PAD
    vocabulary_size = VOCABULARY

    def __init__(self, never_ends=False):
        self.model = random_llama(VOCABULARY)
        if never_ends:
            self.end_token_id = VOCABULARY + 1
        self.prompts = []

    def encode(self, text):
        return [3 + ALPHABET.index(c) for c in text if c in ALPHABET]

    def decode(self, ids):
        return "".join(ALPHABET[i - 3] for i in ids if i >= 3)

    def prompt_ids(self, label_text, examples, max_example_tokens):
        if not set(examples) & set(PROBES):  # Public ones, which look for a common beginning.
            self.prompts.append(tuple(examples))
        ids = [BEGIN]
        for text in examples:
            ids += [*self.encode(label_text), *self.encode(text)[:max_example_tokens], END]
        return ids + self.encode(label_text)


@pytest.fixture
def language_model():
    return CharacterModel()


@pytest.fixture
def decoder(language_model):
    return TransformersDecoder(language_model.model)


@pytest.fixture
def endless_model():
    return CharacterModel(never_ends=True)


make_terms = partial(
    made_terms, cohort="letters", epsilon=10.0, public_records=64, has_cluster_histogram=True
)


def make_records(count, seed=0, first=0):
    draw = np.random.default_rng(seed)
    texts = ["".join(draw.choice(list(ALPHABET[:26]), 10)) for _ in range(count)]
    return records_of(texts, ("x", "y"), first)


def make_private(count, seed=0):
    embeddings = np.random.default_rng(seed).normal(size=(count, 5)).astype(np.float32)
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    return PrivateInputs(records=make_records(count, seed), embeddings=embeddings)


def make_centers(count=6, seed=9):
    centers = np.random.default_rng(seed).normal(size=(count, 5)).astype(np.float32)
    return centers / np.linalg.norm(centers, axis=1, keepdims=True)


def release(method, plan, private, public, progress=silent):
    """Releases the only stage of a plan."""
    (stage,) = plan.stages
    return method.release(StageRun(stage, private, public, None, progress))


def make_rules(**changes):
    """Rules of the loop over the tokens of `CharacterModel`, whose pad length is 10."""
    settings = {
        "tokens_per_batch": 6,
        "max_document_tokens": 12,
        "min_tokens_for_new_document": 5,
        "end_token_id": 1,
        "pad_token_id": 2,
        "prompt_columns": 10,
    }
    return GenerationRules(**(settings | changes))


SMALL = {
    "expected_batch_size": 8,
    "clip_bound": 2.0,
    "max_batches": 6,
    "max_document_tokens": 8,
    "max_example_tokens": 8,
    "min_tokens_for_new_document": 3,
}
"""Settings of methods that decode in batches."""


def small(name, **changes):
    """Settings of one such method."""
    svt = {"max_tokens_per_batch": 50, "svt_noise_scale": 20.0} if name == "mean_svt" else {}
    return SMALL | svt | changes


def config_of(name, **changes):
    return get_method(name).config_type(**small(name, **changes))


def make_planned(name, epsilon, terms=None, **settings):
    """A method that decodes in batches, and its plan; released counts say how many there are."""
    terms = terms or make_terms(accepts_ex_post=True, public_records=None)
    method = get_method(name)(config_of(name, **settings), terms)
    plan = method.plan(epsilon)
    assert plan.refusal is None
    return method, plan


def make_public(model, **more):
    return PublicInputs(language_model=model, salt="public salt", **more)


def clustered(model, **more):
    """Public inputs with centres and their released histogram."""
    return make_public(
        model, **{"cluster_centers": make_centers(), "cluster_histogram": HISTOGRAM} | more
    )


# Records placed in batches of given cells, without a declared cohort.


def _declared(s, k, **settings):
    config = MeanUniformConfig(expected_batch_size=s, examples_per_context=k, **settings)
    return DeclaredBatches(config=config, terms=None, clustered=False)


def _finds(labels, clusters):
    found = labels, np.full(len(labels), -1) if clusters is None else clusters
    return lambda _: found


def hashed(records, labels, clusters, cells, *, s=8, k=1, salt="salt"):
    """Batches by the keyed hash of the records' ids."""
    batches = HashedBatches(
        declared=_declared(s, k),
        record_cells=_finds(labels, clusters),
        cells=tuple(cells),
        salt=salt,
    )
    return batches.placed(PrivateInputs(records=records))


def in_slots(records, labels, clusters, cells, *, s=4, k=1, max_batches=100):
    """Full batches of records in their public order."""
    private = PrivateInputs(records=records)
    declared = _declared(s, k, max_batches=max_batches, batching="slots")
    finds = _finds(labels, clusters)
    return slot_batches(declared, finds, cells, private).placed(private)


@pytest.fixture
def cases():
    """The makers above: pytest's import mode keeps test modules from importing one another."""
    return SimpleNamespace(
        terms=make_terms,
        records=make_records,
        private=make_private,
        centers=make_centers,
        public=make_public,
        clustered=clustered,
        model=CharacterModel,
        silent=silent,
        release=release,
        end=END,
        vocabulary=VOCABULARY,
    )
