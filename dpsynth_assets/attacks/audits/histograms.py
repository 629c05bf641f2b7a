"""Audits of noisy histograms: each bin, or pair of bins, is one trial of the claimed event.

Bugs are planted by running the real mechanism with other settings against the claim.
"""

from collections.abc import Callable, Mapping

import numpy as np

from dpsynth_assets.attacks.audits.audit import Audit, AuditKind, Bug, Finding
from dpsynth_assets.attacks.audits.statistics import audit_scores, event_curve
from dpsynth_assets.privacy.histogram import NoiseKind, histogram_event, release_histogram
from dpsynth_assets.privacy.units import NeighboringRelation

TRIALS = 16_000
SCALE = 1.0
ADD_REMOVE, REPLACE_ONE = NeighboringRelation.ADD_REMOVE, NeighboringRelation.REPLACE_ONE


def _measure(
    noise: NoiseKind,
    relation: NeighboringRelation,
    *,
    claimed_relation: NeighboringRelation | None = None,
    claimed_scale: float = SCALE,
) -> Finding:
    """Tests neighbours under `relation` against the event that the ledger stores.

    A replaced record moves from one bin to another, so its score is the difference of the two.
    """
    with_record, without = ([1, 0], [0, 1]) if relation is REPLACE_ONE else ([1], [0])
    claimed = histogram_event(
        noise=noise, scale=claimed_scale, relation=claimed_relation or relation
    )

    def scores(bins: list[int]) -> np.ndarray:
        released = release_histogram(bins * TRIALS, noise=noise, scale=SCALE, relation=relation)
        ratios = _log_ratio(released.value, noise).reshape(TRIALS, -1)
        return ratios @ np.array([1, -1])[: len(bins)]

    return Finding.of(audit_scores(scores(with_record), scores(without), event_curve([claimed])))


def _log_ratio(dp_counts: np.ndarray, noise: NoiseKind) -> np.ndarray:
    """Says how much likelier each noisy count is from 1 than from 0, up to a linear map."""
    if noise == "laplace":
        return np.abs(dp_counts) - np.abs(dp_counts - 1)
    return dp_counts


def _planted(noise: NoiseKind) -> Mapping[Bug, Callable[[], Finding]]:
    return {
        Bug.HALVED_NOISE: lambda: _measure(noise, ADD_REMOVE, claimed_scale=2 * SCALE),
        Bug.WRONG_RELATION: lambda: _measure(noise, REPLACE_ONE, claimed_relation=ADD_REMOVE),
    }


def _audit(noise: NoiseKind, relation: NeighboringRelation, event: str) -> Audit:
    return Audit(
        name=f"histogram-{noise}-{relation}",
        mechanism=f"histogram with discrete {noise.capitalize()} noise",
        events=(event,),
        claim=f"Under {relation} no test tells neighbours apart better than the event says.",
        measure="true-positive rate",
        kind=AuditKind.STATISTICAL,
        observe=lambda: _measure(noise, relation),
        planted=_planted(noise),
    )


AUDITS = (
    _audit("laplace", ADD_REMOVE, "discrete_laplace"),
    _audit("gaussian", REPLACE_ONE, "discrete_gaussian"),
)
