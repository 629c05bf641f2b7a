"""Audit of the noisy coreset: each leaf of a full hash tree is a trial, with a canary or without.

The first coordinates of a canary are small and choose its leaf; the last one, which no hyperplane
looks at, holds nearly all of its length. Made-up records fill the leaves so that all are kept.
"""

import numpy as np
from dp_kmeans.noisy_coreset import CoresetMechanism
from dp_kmeans.noisy_tree import NoisyCoreset

from dpsynth_assets.attacks.audits.audit import (
    Audit,
    AuditKind,
    Bug,
    Finding,
    audit_scores,
    event_curve,
)
from dpsynth_assets.privacy.guarantees import NeighboringRelation

LEVELS = 9
LEAVES = 1 << LEVELS
RELEASES = 10
FILLERS = 80
"""Records of each leaf: ten standard deviations of a count's noise."""

COUNT_NOISE = 8.0
SUM_NOISE = 1.0
STEP = 0.05
"""Size of a coordinate that chooses a leaf."""

RELATION = NeighboringRelation.ADD_REMOVE


def _signs() -> np.ndarray:
    """(LEAVES, LEVELS) sides of each leaf, the first level in the highest bit."""
    places = np.arange(LEVELS)[::-1]
    return np.where(np.arange(LEAVES)[:, None] >> places & 1, 1.0, -1.0)


def _canaries(last: float) -> np.ndarray:
    """(LEAVES / 2, LEVELS + 1) canaries of every other leaf, of length |last| or a little more."""
    chosen = STEP * _signs()[::2]
    return np.column_stack([chosen, np.full(len(chosen), last)])


def fillers() -> np.ndarray:
    """(FILLERS · LEAVES, LEVELS + 1) records next to zero, as many in every leaf."""
    one = np.column_stack([1e-3 * _signs(), np.zeros(LEAVES)])
    return np.repeat(one, FILLERS, axis=0)


def mechanism(noise_share: float = 1.0, l2_bound: float = 1.0) -> CoresetMechanism:
    """A tree that halves and keeps everything, with noise for vectors of length 1."""
    return CoresetMechanism(
        hyperplanes=np.eye(LEVELS, LEVELS + 1),
        count_noise_std=COUNT_NOISE * noise_share,
        sum_noise_std=SUM_NOISE * noise_share / l2_bound,
        branch_count=1.0,
        keep_count=1.0,
        l2_bound=l2_bound,
        relation=RELATION,
    )


def _scores(coreset: NoisyCoreset) -> np.ndarray:
    """(LEAVES / 2, 2) log-likelihood ratios of a canary, up to a map: it took part, it did not."""
    sums = (coreset.points * coreset.weights[:, None])[:, -1]
    return (sums / SUM_NOISE**2 + coreset.weights / COUNT_NOISE**2).reshape(-1, 2)


def _measure(noise_share: float = 1.0, *, replaced: bool = False, l2_bound: float = 1.0) -> Finding:
    """Tests releases of the real mechanism against the event of the accounted one.

    Where a canary was replaced, another record of the same leaf points the opposite way.
    """
    present = _canaries(l2_bound)
    others = np.column_stack([STEP * _signs()[1::2], np.full(LEAVES // 2, -l2_bound)])
    records = np.concatenate([fillers(), present, others] if replaced else [fillers(), present])
    real = mechanism(noise_share, l2_bound)
    scores = np.concatenate([_scores(real.release(records).value) for _ in range(RELEASES)])
    return audit_scores(scores[:, 0], scores[:, 1], event_curve([mechanism().event]))


AUDIT = Audit(
    name="noisy-coreset",
    mechanism="weighted means of the cells of a hash tree with discrete Gaussian noise",
    events=("gaussian",),
    claim="All counts and sums together tell neighbours apart no better than their events.",
    measure="true-positive rate",
    kind=AuditKind.STATISTICAL,
    observe=_measure,
    planted={
        Bug.HALVED_NOISE: lambda: _measure(0.5),
        Bug.WRONG_RELATION: lambda: _measure(replaced=True),
        Bug.UNCLIPPED: lambda: _measure(l2_bound=2.0),
    },
)
