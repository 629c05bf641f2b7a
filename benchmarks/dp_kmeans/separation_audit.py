"""Audit of private cuts: each node of a level is a trial, with a canary or without.

Records of a node lie in two groups, apart in both dimensions alike. A canary fills the gap of the
first dimension and evens the groups of the second one out: the two best cuts, equally likely
without it, then lie as far apart as the mechanism's range allows.
"""

import numpy as np
from dp_kmeans.separation import SeparationMechanism

from dpsynth_assets.attacks.audits.audit import (
    Audit,
    AuditKind,
    Bug,
    Finding,
    audit_scores,
    event_curve,
)
from dpsynth_assets.privacy.guarantees import NeighboringRelation

NODES = 40_000
"""Trials, half of them with a canary."""

CUT_RANGE = 2.0
BINS, GROUP = 4, 12
REST = ((0, 0),) * (GROUP - 1) + ((0, 3),) + ((3, 3),) * (GROUP - 1)
"""Bins of a node's other records."""

CANARY = (1, 0)
"""The cut in the middle of the first dimension falls by 1, that of the second one rises by 1."""

OPPOSITE = (3, 2)
"""Moves both the other way."""


def mechanism(cut_range: float = CUT_RANGE) -> SeparationMechanism:
    """Cuts of two dimensions with three places each."""
    return SeparationMechanism(
        depth=1,
        width=2,
        cut_range=cut_range,
        bins=BINS,
        count_noise_std=1.0,
        sum_noise_std=1.0,
        branch_count=1.0,
        keep_count=1.0,
        relation=NeighboringRelation.ADD_REMOVE,
    )


def _nodes(*contents: tuple[tuple[int, int], ...]) -> tuple[np.ndarray, np.ndarray]:
    """(N, 2) bins and (N,) nodes; nodes hold the two contents in turn."""
    owners = [np.repeat(np.arange(first, NODES, 2), len(own)) for first, own in enumerate(contents)]
    found = [np.tile(own, (NODES // 2, 1)) for own in contents]
    return np.concatenate(found), np.concatenate(owners)


def _measure(
    cut_range: float = CUT_RANGE,
    canaries: int = 1,
    without: tuple[tuple[int, int], ...] = REST,
) -> Finding:
    """Tests draws of the real mechanism against the event of the accounted one."""
    real = mechanism(cut_range)
    dimension, _ = real._chosen(
        real._scores(*_nodes((*REST, *(CANARY,) * canaries), without), NODES)
    )
    drawn = dimension.astype(np.float64).reshape(-1, 2)
    claim = event_curve(mechanism().cut_events)
    return audit_scores(drawn[:, 0], drawn[:, 1], claim)


AUDIT = Audit(
    name="separation",
    mechanism="cuts drawn by the exponential mechanism from exact counts",
    events=("bounded_range",),
    claim="The cut of a node tells neighbours apart no better than its event.",
    measure="true-positive rate",
    kind=AuditKind.STATISTICAL,
    observe=_measure,
    planted={
        Bug.HALVED_NOISE: lambda: _measure(2.0 * CUT_RANGE),
        Bug.WRONG_RELATION: lambda: _measure(without=(*REST, OPPOSITE)),
        Bug.UNCLIPPED: lambda: _measure(canaries=3),
    },
)
