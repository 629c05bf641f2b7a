"""Audit of the joint vector mean: orthogonal canaries make one release many independent trials.

Canary i is the clip bound times unit vector i in every block; half of the coordinates belong to
canaries that took part. Bugs are the real mechanism with other noise or neighbours.
"""

import numpy as np

from dpsynth_assets.attacks.audits.audit import Audit, AuditKind, Bug, Finding
from dpsynth_assets.attacks.audits.statistics import audit_scores, event_curve
from dpsynth_assets.privacy.units import NeighboringRelation
from dpsynth_assets.privacy.vector_mean import (
    release_vector_mean,
    stacked_l2_sensitivity,
    vector_mean_event,
)

CANARIES = 500
RELEASES = 6
L2_BOUNDS = (1.0, 2.0, 2.0, 2.0)
NOISE_MULTIPLIER = 1.0
RELATION = NeighboringRelation.ADD_REMOVE


def _canaries(first: int, sign: float) -> np.ndarray:
    """(CANARIES, L, d) vectors at their bounds along coordinates `first`, `first` + 1 and on."""
    vectors = np.zeros((CANARIES, len(L2_BOUNDS), 2 * CANARIES))
    index = np.arange(CANARIES)
    vectors[index, :, first + index] = sign * np.array(L2_BOUNDS)
    return vectors


def _scores(noise_std: float, *, replaced: bool) -> np.ndarray:
    """(2, CANARIES) correlations of coordinates with their canary: it took part, it did not.

    Where it was replaced, another record points the opposite way.
    """
    vectors = _canaries(0, 1.0)
    if replaced:
        vectors = np.concatenate([vectors, _canaries(CANARIES, -1.0)])
    released = release_vector_mean(
        vectors,
        l2_bounds=L2_BOUNDS,
        noise_std=noise_std,
        records=CANARIES,
        relation=RELATION,
    )
    return (np.array(L2_BOUNDS) @ released.value).reshape(2, CANARIES)


def _measure(noise_multiplier: float = NOISE_MULTIPLIER, *, replaced: bool = False) -> Finding:
    """Tests RELEASES releases of relative noise `noise_multiplier` against the claimed event."""
    sensitivity = stacked_l2_sensitivity(l2_bounds=L2_BOUNDS, records=CANARIES, relation=RELATION)
    noise_std = noise_multiplier * sensitivity
    scores = [_scores(noise_std, replaced=replaced) for _ in range(RELEASES)]
    with_record, without = np.concatenate(scores, axis=1)
    claimed = vector_mean_event(
        noise_std=NOISE_MULTIPLIER * sensitivity,
        l2_bounds=L2_BOUNDS,
        records=CANARIES,
        relation=RELATION,
    )
    return Finding.of(audit_scores(with_record, without, event_curve([claimed])))


def _calibrated_for_one_block() -> Finding:
    """Planted: noise for the largest block alone, as if the others were not released with it."""
    return _measure(NOISE_MULTIPLIER * max(L2_BOUNDS) / float(np.linalg.norm(L2_BOUNDS)))


AUDITS = (
    Audit(
        name="vector-mean",
        mechanism="means of bounded vectors with joint discrete Gaussian noise",
        events=("gaussian",),
        claim="All blocks together tell neighbours apart no better than one Gaussian event.",
        measure="true-positive rate",
        kind=AuditKind.STATISTICAL,
        observe=_measure,
        planted={
            Bug.HALVED_NOISE: lambda: _measure(NOISE_MULTIPLIER / 2),
            Bug.WRONG_RELATION: lambda: _measure(replaced=True),
            Bug.SEPARATE_CALIBRATION: _calibrated_for_one_block,
        },
    ),
)
