"""Audit of the ex-post bound of median aggregation: γ against every likelihood it must bound.

The real mechanism draws a token for each batch and reports γ; the likelihoods of that token under
the batch and under its neighbours are computed here, independently of the kernel's tensor code.
"""

from collections.abc import Callable

import numpy as np

from dpsynth_assets.attacks.audits.audit import EX_POST, Audit, AuditKind, Bug, Finding
from dpsynth_assets.privacy.clipping import clip_logits
from dpsynth_assets.privacy.median import MedianTokenMechanism
from dpsynth_assets.privacy.token_meter import PrivateTokenMeter
from dpsynth_assets.privacy.units import NeighboringRelation

BOUND, TEMPERATURE, VOCABULARY = 6.0, 1.5, 7
SIZES = tuple(range(10))
BATCHES_A_SIZE = 12
NEIGHBOURS = 12
ADD_REMOVE, REPLACE_ONE = NeighboringRelation.ADD_REMOVE, NeighboringRelation.REPLACE_ONE

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
    scores = np.median(np.vstack([-edges, clip_logits(rows, BOUND), edges]), axis=0) / TEMPERATURE
    return scores - np.logaddexp.reduce(scores)


def _kernel_gamma(relation: NeighboringRelation) -> Gamma:
    """Draws with the mechanism of the kernel, as generation does."""
    import torch

    mechanism = MedianTokenMechanism(clip_bound=BOUND, temperature=TEMPERATURE, relation=relation)

    def gamma(rows: np.ndarray) -> tuple[int, float]:
        logits = torch.as_tensor(rows).reshape(-1, VOCABULARY)
        batch_of_row = torch.zeros(len(rows), dtype=torch.int64)
        meter = PrivateTokenMeter(1, 1)
        tokens, bounds = mechanism.select(logits, batch_of_row, np.array([0]), meter)
        return int(tokens[0]), float(bounds[0])

    return gamma


def _printed_gamma(rows: np.ndarray) -> tuple[int, float]:
    """Planted: Definition 4 with the middle pair of an even batch as its box (B-000.4).

    Reported for the token whose printed γ is smallest; odd and tiny batches stay correct.
    """
    if len(rows) < 4 or len(rows) % 2:
        return _kernel_gamma(REPLACE_ONE)(rows)
    clipped = np.sort(clip_logits(rows, BOUND), axis=0) / TEMPERATURE
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


AUDITS = (
    Audit(
        name="median-bound",
        mechanism="token drawn from the softmax of component-wise medians",
        events=(EX_POST,),
        claim="γ bounds the log-likelihood ratio of the drawn token for every neighbour.",
        measure="excess of the log-likelihood ratio over γ",
        kind=AuditKind.EXACT,
        observe=lambda: max(
            (_excess(_kernel_gamma(relation), relation) for relation in (ADD_REMOVE, REPLACE_ONE)),
            key=lambda finding: finding.observed,
        ),
        planted={
            Bug.EVEN_GAMMA: lambda: _excess(_printed_gamma, REPLACE_ONE),
            Bug.WRONG_RELATION: lambda: _excess(_kernel_gamma(ADD_REMOVE), REPLACE_ONE),
        },
    ),
)
