"""Audits of two other token mechanisms: medians and the public-token test.

Medians: the real mechanism draws a token for each batch and reports γ; the likelihoods of that
token under the batch and under its neighbours are computed here, independently of the kernel's
tensor code.

Public-token test: one transcript of AboveThreshold, named before any run. A record makes every
early distance small and the last one large: "near" seven times, then "far", is the answer that
betrays it most. Batches are independent trials of one real test.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from dpsynth_assets.attacks.audits.audit import (
    ADD_REMOVE,
    REPLACE_ONE,
    Audit,
    Bug,
    Finding,
    audit_event_counts,
    pure_curve,
)
from dpsynth_assets.privacy.batch_terms import BatchTerms
from dpsynth_assets.privacy.clipping import clip_logits
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.median import MedianTokenMechanism
from dpsynth_assets.privacy.sparse_vector import PublicTokenTest
from dpsynth_assets.privacy.token_selection import NextLogits, PrivateTokenMeter

if TYPE_CHECKING:
    import torch

BOUND, MEDIAN_TEMPERATURE, VOCABULARY = 6.0, 1.5, 7
SIZES = tuple(range(10))
BATCHES_A_SIZE = 12
NEIGHBOURS = 12

Gamma = Callable[[np.ndarray], tuple[int, float]]
"""(n, V) logits of a batch to a token and the γ reported for it."""


def _record(generator: np.random.Generator) -> np.ndarray:
    if generator.random() < 0.3:
        return np.where(generator.random(VOCABULARY) < 0.5, 50.0, -50.0)
    return generator.normal(0, 6 if generator.random() < 0.5 else 2, VOCABULARY)


def _batches(generator: np.random.Generator) -> list[np.ndarray]:
    """Lists (n, V) logits, n = 0, 1, …: rows around a topic, some close together and some not."""
    return [
        _record(generator) + generator.normal(0, generator.random(), (size, VOCABULARY))
        for size in SIZES
        for _ in range(BATCHES_A_SIZE)
    ]


def _neighbour(
    generator: np.random.Generator, rows: np.ndarray, relation: NeighboringRelation
) -> np.ndarray:
    if relation is REPLACE_ONE:
        if not len(rows):
            return rows
        changed = rows.copy()
        changed[generator.integers(len(rows))] = _record(generator)
        return changed
    if len(rows) and generator.random() < 0.5:
        return np.delete(rows, generator.integers(len(rows)), axis=0)
    return np.vstack([rows, _record(generator)])


def _log_probabilities(rows: np.ndarray) -> np.ndarray:
    """(V,) log softmax(median / τ) of (n, V) logits; an empty batch has median 0."""
    edges = np.full((1, VOCABULARY), BOUND)
    scores = (
        np.median(np.vstack([-edges, clip_logits(rows, BOUND), edges]), axis=0) / MEDIAN_TEMPERATURE
    )
    return scores - np.logaddexp.reduce(scores)


def _kernel_gamma(relation: NeighboringRelation) -> Gamma:
    """Draws with the mechanism of the kernel, as generation does."""
    import torch

    mechanism = MedianTokenMechanism(
        clip_bound=BOUND, temperature=MEDIAN_TEMPERATURE, relation=relation
    )

    def gamma(rows: np.ndarray) -> tuple[int, float]:
        logits = torch.as_tensor(rows).reshape(-1, VOCABULARY)
        batch_of_row = torch.zeros(len(rows), dtype=torch.int64)
        meter = PrivateTokenMeter(1, 1)
        tokens, bounds = mechanism.select(NextLogits(logits, batch_of_row, np.array([0])), meter)
        return int(tokens[0]), float(bounds[0])

    return gamma


def _printed_gamma(rows: np.ndarray) -> tuple[int, float]:
    """Planted: Definition 4 with the middle pair of an even batch as its box (B-000.4).

    Reported for the token whose printed γ is smallest; odd and tiny batches stay correct.
    """
    if len(rows) < 4 or len(rows) % 2:
        return _kernel_gamma(REPLACE_ONE)(rows)
    clipped = np.sort(clip_logits(rows, BOUND), axis=0) / MEDIAN_TEMPERATURE
    left, right = clipped[len(rows) // 2 - 1], clipped[len(rows) // 2]
    median, normaliser = (left + right) / 2, np.logaddexp.reduce
    gamma = np.maximum(
        right - median - normaliser(left) + normaliser(median),
        median - left + normaliser(right) - normaliser(median),
    )
    return int(np.argmin(gamma)), float(gamma.min())


def _excess(gamma: Gamma, relation: NeighboringRelation) -> Finding:
    """Measures how far |log P(x) − log P'(x)| rises above the reported γ; 0 where it never does."""
    generator = np.random.default_rng(11)  # public inputs; the draw itself has no seed
    worst = 0.0
    for rows in _batches(generator):
        token, bound = gamma(rows)
        own = _log_probabilities(rows)[token]
        for _ in range(NEIGHBOURS):
            other = _log_probabilities(_neighbour(generator, rows, relation))[token]
            worst = max(worst, abs(own - other) - bound)
    return Finding(claimed=0.0, observed=worst)


BATCHES = 20_000
NEAR_ANSWERS = 7
NOISE_SCALE, THRESHOLD = 1.0, 0.5
EXTREME = 50.0


class EqualBatches(PublicTokenTest):
    """The test, asked about batches of equal rows: their one distance is computed once.

    Noise, thresholds and payment, which are on trial, are the test's own for every batch.
    """

    def private_distances(
        self,
        private_logits: "torch.Tensor",
        public_logits: "torch.Tensor",
        batch_of_row: "torch.Tensor",
        active: np.ndarray,
        columns: "torch.Tensor | None" = None,
    ) -> "torch.Tensor":
        """Computes the first batch's distance; see `PublicTokenTest.private_distances`."""
        own, first = batch_of_row == int(active[0]), active[:1]
        distance = super().private_distances(
            private_logits[own], public_logits[:1], batch_of_row[own], first, columns
        )
        return distance.expand(len(active))


def _threshold_test(noise_scale: float) -> PublicTokenTest:
    """With s = 1 a batch holds the record or none: distances 0 and 2, or 1 and 1."""
    batch = BatchTerms(expected_batch_size=1, relation=ADD_REMOVE)
    return EqualBatches(batch=batch, noise_scale=noise_scale, threshold=THRESHOLD)


def _answers_that_betray(test: PublicTokenTest, *, present: bool) -> int:
    """Runs BATCHES batches through the test; counts those that answered near, …, near, far."""
    import torch

    public = torch.tensor([EXTREME, -EXTREME])
    opened = test.open(PrivateTokenMeter(1, BATCHES))
    asking = np.arange(BATCHES)
    far = np.zeros(0, dtype=bool)
    for answer in range(NEAR_ANSWERS + 1):
        asking = asking[~far] if answer else asking
        record = public if answer < NEAR_ANSWERS else -public
        rows = record.repeat(len(asking) if present else 0, 1)
        batch_of_row = torch.from_numpy(asking[: len(rows)])
        publics = public.repeat(len(asking), 1)
        far = opened.needs_private_token(NextLogits(rows, batch_of_row, asking, publics))
    return int(far.sum())


def _transcript(noise_scale: float) -> Finding:
    drawing = _threshold_test(noise_scale)
    hits, alarms = (
        _answers_that_betray(drawing, present=True),
        _answers_that_betray(drawing, present=False),
    )
    curve = pure_curve(_threshold_test(NOISE_SCALE).epsilon)
    return audit_event_counts(hits, alarms, BATCHES, curve)


AUDITS = (
    Audit.named(
        "median-bound",
        lambda: max(
            (_excess(_kernel_gamma(relation), relation) for relation in (ADD_REMOVE, REPLACE_ONE)),
            key=lambda finding: finding.observed,
        ),
        {
            Bug.EVEN_GAMMA: lambda: _excess(_printed_gamma, REPLACE_ONE),
            Bug.WRONG_RELATION: lambda: _excess(_kernel_gamma(ADD_REMOVE), REPLACE_ONE),
        },
    ),
    Audit.named(
        "public-token-test",
        lambda: _transcript(NOISE_SCALE),
        {Bug.HALVED_NOISE: lambda: _transcript(NOISE_SCALE / 2)},
    ),
)
