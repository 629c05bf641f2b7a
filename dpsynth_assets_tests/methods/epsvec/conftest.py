"""A cohort of visits, and an engine whose states are sums of fixed word vectors."""

import dataclasses
from functools import partial
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from dpsynth_assets.methods.epsvec import EpsVec
from dpsynth_assets.methods.epsvec.config import EpsVecConfig
from dpsynth_assets.methods.inputs import PrivateInputs, PublicInputs, Released, silent
from dpsynth_assets.models.engines.protocol import Capability, Engine, Generation
from dpsynth_assets_tests.checkpoint_folders import CheckpointFolders
from dpsynth_assets_tests.methods.cohorts import WordEmbedder, made_terms, records_of

WIDTH, LAYERS = 6, 8
WORDS = ("the", "sea", "was", "calm", "bread", "old", "hall", "quiet", "warm", "we", "paid", "left")
EMBEDDER = WordEmbedder(WORDS, len(WORDS))
SMALL = {
    "candidates": 8,
    "negatives": 8,
    "rows": 6,
    "max_new_tokens": 6,
    "max_document_tokens": 6,
    "clip_documents": 20,
}


class WordModel:
    """Words as tokens; token 0 begins every prompt, token 1 opens a document."""

    begin_token_id, end_token_id, name = 0, 2, "words"

    def __init__(self):
        self.known = ["<begin>", "<open>", "<end>"]

    def encode(self, text):
        for word in text.split():
            if word not in self.known:
                self.known.append(word)
        return [self.known.index(word) for word in text.split()]

    def decode(self, ids):
        return " ".join(self.known[token] for token in ids)

    def read_text(self, ids):
        return self.decode(ids), True

    def prompt_ids(self, label_text, examples, max_example_tokens):
        documents = [
            token for text in examples for token in (1, *self.encode(text)[:max_example_tokens])
        ]
        return [0, *documents, 1, *self.encode(label_text)]


class WordEngine:
    """Every token has a fixed vector a layer; a text's state is their mean."""

    name, layers, width, positions = "words", LAYERS, WIDTH, 4096
    capabilities = frozenset(Capability)
    spent, spent_since = {}, Engine.spent_since

    def __init__(self):
        self.language_model = WordModel()
        self.asked, self.read, self.behind, self.provenances = [], [], [], []

    def generate(self, prompts, sampling, *, provenance, progress=None):
        self.asked.append((list(map(tuple, prompts)), sampling, provenance))
        made = []
        for row in range(len(prompts)):
            draw = np.random.default_rng([sampling.seed, row])
            text = " ".join(draw.choice(WORDS, 5))
            made.append(Generation(text, tuple(self.language_model.encode(text)), True))
        return made

    def hidden_states(self, texts, layers, *, behind=(), provenance="private", progress=None):
        self.read.append([(*behind, *text) for text in texts])
        self.behind.append(len(behind))
        self.provenances.append(provenance)
        table = np.random.default_rng(5).normal(size=(500, LAYERS, self.width))
        means = [
            table[list(t)].mean(axis=0) if len(t) else np.zeros((LAYERS, self.width)) for t in texts
        ]
        return {layer: np.stack(means)[:, layer].astype(np.float32) for layer in layers}

    def steered(self, vectors):
        self.steering = vectors
        return self


def make_records(count, *, null=(), labels=("x", "y")):
    draw = np.random.default_rng(8)
    texts = ["" if i in null else " ".join(draw.choice(WORDS, 5)) for i in range(count)]
    return records_of(texts, labels)


def make_private(records):
    return PrivateInputs(records=records, embeddings=EMBEDDER.embed(records["text"].to_list()))


make_terms = partial(made_terms, accountant="tight", public_records=40)


def make_public(engine=None):
    return PublicInputs(
        language_model=None,
        engine=engine or WordEngine(),
        text_embedder=EMBEDDER,
        public_records=pl.DataFrame({"text": make_records(60)["text"], "label": ""}),
        seed=3,
        salt="salt",
    )


def run_stages(folder, config, private, public, terms=None, target_epsilon=8.0):
    """Runs every stage as the graph would; returns the plan and inputs with all releases."""
    terms = terms or make_terms()
    method = EpsVec(config, terms)
    plan = method.plan(target_epsilon)
    for stage in plan.stages:
        scratch = folder / stage.name
        if stage.make is not None:
            scratch.mkdir(parents=True)
            made = stage.make(public, scratch, silent)
        else:
            release = stage.release(private, public, CheckpointFolders(scratch), silent)
            assert release.cost.event == stage.mechanism.event() == plan.charges[stage.name]
            made = release.value
        done = Released(reservation=stage.name, facts=made.facts, folder=made.files)
        public = dataclasses.replace(public, released={**public.released, stage.name: done})
    return plan, public


@pytest.fixture
def engine():
    return WordEngine()


@pytest.fixture
def cases():
    """What tests make cohorts and runs of."""
    return SimpleNamespace(
        method=lambda config, terms=None: EpsVec(config, terms or make_terms()),
        terms=make_terms,
        records=make_records,
        private=make_private,
        public=make_public,
        config=lambda **changes: EpsVecConfig(**(SMALL | changes)),
        run=run_stages,
        silent=silent,
        embedder=EMBEDDER,
    )
