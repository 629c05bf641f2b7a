"""Audit of tokens with the largest noisy probability: one record reverses the public distribution.

Each trial is one step of the real mechanism over one record, or over nobody. Without a sampled
record the prompt is the public one, sure of token 0; the record is sure of token 1. This pair
attains the sensitivity, so the token itself is the best test.
"""

import numpy as np

from dpsynth_assets.attacks.audits.audit import Audit, AuditKind, Bug, Finding
from dpsynth_assets.attacks.audits.statistics import audit_event_counts, event_curve
from dpsynth_assets.privacy.noisy_probabilities import (
    NoisyProbabilities,
    noisy_probabilities_event,
)
from dpsynth_assets.privacy.units import NeighboringRelation

TRIALS = 2_000
SAMPLING, NOISE_MULTIPLIER = 0.5, 0.7
RELATION = NeighboringRelation.ADD_REMOVE
EXTREME = 50.0


def mechanism(noise_multiplier: float, steps: int) -> NoisyProbabilities:
    """One subset of one example over two tokens."""
    return NoisyProbabilities(
        subsets=1,
        examples_per_subset=1,
        sampling_probability=SAMPLING,
        noise_multiplier=noise_multiplier,
        steps=steps,
        top_k=2,
        relation=RELATION,
    )


def tokens(drawing: NoisyProbabilities, records: int) -> np.ndarray:
    """(steps,) tokens of all steps of a mechanism over `records` equal records."""
    import torch

    public = torch.tensor([EXTREME, -EXTREME])
    drawn = []
    while drawing.steps_left:
        (subset,) = drawing.draw(records)
        row = -public if len(subset) else public
        drawn.append(drawing.select(row.unsqueeze(0), public))
    return np.array(drawn)


def _measure(noise_multiplier: float = NOISE_MULTIPLIER) -> Finding:
    hits, alarms = (
        int((tokens(mechanism(noise_multiplier, TRIALS), records) == 1).sum()) for records in (1, 0)
    )
    claimed = noisy_probabilities_event(
        sampling_probability=SAMPLING,
        noise_multiplier=NOISE_MULTIPLIER,
        steps=1,
        relation=RELATION,
    )
    return Finding.of(audit_event_counts(hits, alarms, TRIALS, event_curve([claimed])))


AUDITS = (
    Audit(
        name="noisy-probabilities",
        mechanism="token with the largest noisy mean probability",
        events=("poisson_gaussian",),
        claim="A step's token tells neighbours apart no better than one sampled Gaussian.",
        measure="true-positive rate",
        kind=AuditKind.STATISTICAL,
        observe=_measure,
        planted={Bug.HALVED_NOISE: lambda: _measure(NOISE_MULTIPLIER / 2)},
    ),
)
