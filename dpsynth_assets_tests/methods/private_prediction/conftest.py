"""A character-level language model with random weights, and cohorts to feed it."""

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.cluster_histogram import ClusterHistogram
from dpsynth_assets.methods.inputs import PrivateInputs, PublicInputs
from dpsynth_assets.models.decoding.protocol import PROBES
from dpsynth_assets.models.transformers_decoder.decoder import TransformersDecoder
from dpsynth_assets.privacy.units import NeighboringRelation, PrivacyUnit

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


class MemoryPasses:
    """Passes in memory, as JSON would keep them."""

    def __init__(self):
        self.kept = {}

    def load(self, number):
        return self.kept.get(number)

    def save(self, number, values):
        self.kept[number] = values


class CharacterModel:
    """The part of `LanguageModel` that private prediction needs."""

    end_token_id = END
    pad_token_id = PAD
    vocabulary_size = VOCABULARY

    def __init__(self, never_ends=False):
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=512,
            initializer_range=0.2,
        )
        self.model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
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


def make_terms(**changes):
    settings = {
        "cohort": "letters",
        "relation": NeighboringRelation.ADD_REMOVE,
        "unit": PrivacyUnit(),
        "epsilon": 10.0,
        "delta": 1e-5,
        "accountant": "zcdp",
        "labels": ("x", "y"),
        "label_texts": ("ex", "why"),
        "public_records": 64,
        "has_cluster_histogram": True,
    }
    return CohortTerms(**(settings | changes))


def make_records(count, seed=0, first=0):
    draw = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "record_id": [f"r{first + i}" for i in range(count)],
            "unit_id": [f"r{first + i}" for i in range(count)],
            "text": ["".join(draw.choice(list(ALPHABET[:26]), 10)) for _ in range(count)],
            "label": [["x", "y"][i % 2] for i in range(count)],
        }
    )


def make_private(count, seed=0):
    embeddings = np.random.default_rng(seed).normal(size=(count, 5)).astype(np.float32)
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    return PrivateInputs(records=make_records(count, seed), embeddings=embeddings)


def make_centers(count=6, seed=9):
    centers = np.random.default_rng(seed).normal(size=(count, 5)).astype(np.float32)
    return centers / np.linalg.norm(centers, axis=1, keepdims=True)


def silent(_share, _message):
    """Reports to nobody."""


def release(method, plan, private, public, progress=silent):
    """Releases the only stage of a plan."""
    (stage,) = plan.stages
    return method.release(stage, private, public, None, progress)


@pytest.fixture
def cases():
    """The makers above: pytest's import mode keeps test modules from importing one another."""
    return SimpleNamespace(
        terms=make_terms,
        records=make_records,
        private=make_private,
        centers=make_centers,
        public=lambda model, **more: PublicInputs(language_model=model, salt="public salt", **more),
        model=CharacterModel,
        silent=silent,
        release=release,
        end=END,
        pad=PAD,
        vocabulary=VOCABULARY,
    )
