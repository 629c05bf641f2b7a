"""Token for token, the engine draws what a slow float64 oracle draws from the same uniforms.

The oracle is written from the papers: one batch, one row, one token at a time; no cache, no
padding, no blocks, whole sequences through a float64 copy of the model. It shares no code with the
mechanisms. Uniforms and integer noise come from seeded streams that both sides read in the same
order. Float32 logits leave a chance of a different choice below 1e-6 a token; with fixed seeds the
outcome is one and the same on every run of a machine.
"""

import math
from collections import Counter

import numpy as np
import pytest
import torch

from dpsynth_assets.methods.private_prediction.aggregates import MeanTokens, TokensBehindTest
from dpsynth_assets.methods.private_prediction.loop import (
    Draws,
    GenerationRules,
    generate_documents,
)
from dpsynth_assets.models.transformers_decoder.decoder import TransformersDecoder
from dpsynth_assets.privacy import softmax_draws, sparse_vector
from dpsynth_assets.privacy.batch_terms import BatchTerms
from dpsynth_assets.privacy.difference_clipping import DifferenceTokenMechanism
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.median import MedianTokenMechanism
from dpsynth_assets.privacy.sparse_vector import PublicTokenTest
from dpsynth_assets.privacy.token_selection import MeanTokenMechanism, PrivateTokenMeter
from dpsynth_assets_tests.tiny_models import random_llama

BOUND, TEMPERATURE, SIZE = 5.3, 1.3, 4
DIFFERENCE_BOUND, TOP_K = 0.7, 9
SIGMA, THETA, PUBLIC_TEMPERATURE = 0.3, 0.9, 1.1
ADD_REMOVE = NeighboringRelation.ADD_REMOVE
BATCHES, VOCABULARY, END, PAD = 5, 67, 1, 2


# --- the oracle -----------------------------------------------------------------------------------


class Streams:
    """Seeded words and Laplace integers, in the order in which they are asked for."""

    def __init__(self, seed):
        self._uniform = np.random.default_rng(seed)
        self._laplace = np.random.default_rng(seed + 1)

    def words(self, size):
        return self._uniform.integers(0, 2**64, size, dtype=np.uint64)

    def laplace(self, values, scale):
        return [value + round(self._laplace.laplace(0.0, scale)) for value in values]


def clip(row):
    return np.maximum(row - row.max() + BOUND, -BOUND)


def log_softmax(row):
    return row - row.max() - math.log(math.fsum(np.exp(row - row.max())))


def draw(scores, streams):
    """The first token at which the running sum of weights exceeds uniform times their total."""
    weights = [math.exp(score - max(scores)) for score in scores]
    target = float(streams.words(1)[0]) * 2.0**-64 * sum(weights)
    reached = 0.0
    for token, weight in enumerate(weights):
        reached += weight
        if reached > target:
            return token
    return len(weights) - 1


class MeanOracle:
    def step(self, rows_of, public, active, streams):
        return [(self.draw(rows, streams), True) for rows in rows_of]

    def draw(self, rows, streams):
        total = np.zeros(VOCABULARY)
        for row in rows:
            total += clip(row)
        return draw(total / (SIZE * TEMPERATURE), streams)


class MedianOracle:
    def step(self, rows_of, public, active, streams):
        return [(draw(self.median(rows) / TEMPERATURE, streams), True) for rows in rows_of]

    def median(self, rows):
        if not len(rows):
            return np.zeros(VOCABULARY)
        return np.median([clip(row) for row in rows], axis=0)


class DifferenceOracle:
    def step(self, rows_of, public, active, streams):
        pairs = zip(rows_of, public, strict=True)
        return [(self.draw(rows, own, streams), True) for rows, own in pairs]

    def draw(self, rows, public, streams):
        floor = sorted(public)[-TOP_K] - 2 * DIFFERENCE_BOUND / SIZE
        support = [token for token in range(VOCABULARY) if public[token] >= floor]
        own = log_softmax(public[support])
        total = np.zeros(len(support))
        for row in rows:
            difference = log_softmax(row[support]) - own
            total += np.clip(difference, -DIFFERENCE_BOUND, DIFFERENCE_BOUND)
        return support[draw((own + total / SIZE) / TEMPERATURE, streams)]


class SvtOracle:
    """AboveThreshold on a lattice of 2^-16/s with integer noise, then the mean's draw."""

    def __init__(self):
        self.thresholds = {}

    def step(self, rows_of, public, active, streams):
        scale = (65536 + 1 + 2) * SIGMA * SIZE
        for batch in active:
            if batch not in self.thresholds:
                theta = math.floor(THETA * SIZE * 65536)
                self.thresholds[batch] = streams.laplace([theta], scale)[0]
        pairs = zip(rows_of, public, strict=True)
        steps = [math.floor(self.distance(*pair) * SIZE * 65536) for pair in pairs]
        noisy = [streams.laplace([value], 2 * scale)[0] for value in steps]
        free = [draw(own / PUBLIC_TEMPERATURE, streams) for own in public]
        chosen = []
        for batch, rows, value, token in zip(active, rows_of, noisy, free, strict=True):
            far = value >= self.thresholds[batch]
            if far:
                del self.thresholds[batch]
            chosen.append((MeanOracle().draw(rows, streams) if far else token, bool(far)))
        return chosen

    def distance(self, rows, public):
        total = sum((np.exp(log_softmax(row)) for row in rows), np.zeros(VOCABULARY))
        return math.fsum(np.abs(total / SIZE - np.exp(log_softmax(public))))


# --- the product ----------------------------------------------------------------------------------


BATCH = BatchTerms(expected_batch_size=SIZE, relation=ADD_REMOVE)


MEAN = MeanTokenMechanism(batch=BATCH, clip_bound=BOUND, temperature=TEMPERATURE)


def mean_selector(meter):
    return MeanTokens(tokens=1, mechanism=MEAN).opened(meter)


def median_selector(meter):
    mechanism = MedianTokenMechanism(clip_bound=BOUND, temperature=TEMPERATURE, relation=ADD_REMOVE)
    return lambda logits: Draws.all_private(mechanism.select(logits, meter)[0])


def difference_selector(meter):
    mechanism = DifferenceTokenMechanism(
        clip_bound=DIFFERENCE_BOUND,
        batch=BATCH,
        temperature=TEMPERATURE,
        top_k=TOP_K,
    )
    return MeanTokens(tokens=1, mechanism=mechanism).opened(meter)


def svt_selector(meter):
    behind_test = TokensBehindTest(
        tokens=1,
        mechanism=MEAN,
        test=PublicTokenTest(batch=BATCH, noise_scale=SIGMA, threshold=THETA),
        public_temperature=PUBLIC_TEMPERATURE,
    )
    return behind_test.opened(meter)


PAIRS = [
    pytest.param(mean_selector, MeanOracle, id="mean"),
    pytest.param(median_selector, MedianOracle, id="median"),
    pytest.param(difference_selector, DifferenceOracle, id="difference clipping"),
    pytest.param(svt_selector, SvtOracle, id="public-token test"),
]


def patch_noise(monkeypatch, streams):
    monkeypatch.setattr(softmax_draws, "secure_words", streams.words)
    monkeypatch.setattr(sparse_vector, "discrete_laplace", streams.laplace)


# --- a model through the loop ---------------------------------------------------------------------


RULES = GenerationRules(
    tokens_per_batch=20,
    max_document_tokens=9,
    min_tokens_for_new_document=3,
    end_token_id=END,
    pad_token_id=PAD,
    prompt_columns=12,
    max_tokens_per_batch=32,
)


@pytest.fixture(scope="module")
def model():
    return random_llama(
        VOCABULARY, num_hidden_layers=2, max_position_embeddings=64, initializer_range=0.3
    )


@pytest.mark.parametrize(("selector", "oracle"), PAIRS)
def test_documents_equal_the_oracles_through_a_model(monkeypatch, model, selector, oracle):
    inputs = np.random.default_rng(3)
    prompts = [
        [inputs.integers(3, VOCABULARY, inputs.integers(2, 13)).tolist() for _ in range(count)]
        for count in (4, 0, 7, 1, 4)
    ]
    public = [[3, 4 + batch] for batch in range(BATCHES)]
    patch_noise(monkeypatch, Streams(8))
    meter = PrivateTokenMeter(RULES.tokens_per_batch, BATCHES)
    documents = generate_documents(
        TransformersDecoder(model), prompts, selector(meter), RULES, public_prompts=public
    )
    expected, spent = slow_documents(in_float64(model), prompts, public, oracle(), Streams(8))
    assert [(d.batch, d.tokens, d.private_tokens, d.finished) for d in documents] == expected
    assert meter.spent.tolist() == [spent[batch] for batch in range(BATCHES)]


def in_float64(model):
    """Logits of whole sequences through a float64 copy."""
    import copy

    exact = copy.deepcopy(model).double()

    def logits(prompt, written):
        with torch.no_grad():
            return exact(torch.tensor([prompt + written])).logits[0, -1].numpy()

    return logits


def slow_documents(logits, prompts, public, oracle, streams):
    """Whole sequences, a context at a time; the rules read plainly."""
    written, paid = [[] for _ in prompts], [0] * len(prompts)
    spent, total, documents = Counter(), Counter(), []
    active = list(range(len(prompts)))
    while active:
        rows_of = [[logits(prompt, written[b]) for prompt in prompts[b]] for b in active]
        own = np.array([logits(public[b], written[b]) for b in active])
        retired = []
        chosen = oracle.step(rows_of, own, active, streams)
        for batch, (token, private) in zip(active, chosen, strict=True):
            spent[batch] += private
            total[batch] += 1
            paid[batch] += private
            ended = token == END
            if not ended:
                written[batch].append(token)
            ended = ended or len(written[batch]) == RULES.max_document_tokens
            out = spent[batch] == RULES.tokens_per_batch
            out = out or total[batch] == RULES.max_tokens_per_batch
            if ended or out:
                documents.append((batch, written[batch], paid[batch], ended))
                written[batch], paid[batch] = [], 0
                left = RULES.tokens_per_batch - spent[batch]
                if out or left < RULES.min_tokens_for_new_document:
                    retired.append(batch)
        active = [batch for batch in active if batch not in retired]
    return documents, spent
