"""Audits of noisy sums: histograms, joint vector means, votes. One release is many trials.

Each bin or pair of bins, each candidate that one record gives all its votes to, and each orthogonal
canary is a trial: canary i is the clip bound times unit vector i in every block; half of the
coordinates belong to canaries that took part. Bugs are planted by running the real mechanism with
other settings, noise or neighbours against the claim.
"""

from typing import Any

import numpy as np

from dpsynth_assets.attacks.audits.audit import (
    ADD_REMOVE,
    REPLACE_ONE,
    Audit,
    AuditKind,
    Bug,
    Finding,
)
from dpsynth_assets.attacks.audits.statistics import told_apart
from dpsynth_assets.privacy.events import Event, GaussianEvent
from dpsynth_assets.privacy.histogram import GaussianVoting, NoiseKind, NoisyHistogram, count_votes
from dpsynth_assets.privacy.release import Release
from dpsynth_assets.privacy.units import NeighboringRelation
from dpsynth_assets.privacy.vector_mean import (
    VectorMean,
    stacked_l2_sensitivity,
    vector_mean_event,
)

BINS = 16_000
SCALE = 1.0


def _histogram(
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
    claimed = NoisyHistogram(
        noise=noise, scale=claimed_scale, relation=claimed_relation or relation
    ).event()

    def scores(bins: list[int]) -> np.ndarray:
        released = NoisyHistogram(noise=noise, scale=SCALE, relation=relation).release(bins * BINS)
        ratios = _log_ratio(released.value, noise).reshape(BINS, -1)
        return ratios @ np.array([1, -1])[: len(bins)]

    return told_apart(scores(with_record), scores(without), claimed)


def _log_ratio(dp_counts: np.ndarray, noise: NoiseKind) -> np.ndarray:
    """Says how much likelier each noisy count is from 1 than from 0, up to a linear map."""
    if noise == "laplace":
        return np.abs(dp_counts) - np.abs(dp_counts - 1)
    return dp_counts


def _histogram_audit(noise: NoiseKind, relation: NeighboringRelation, event: str) -> Audit:
    return Audit(
        name=f"histogram-{noise}-{relation}",
        mechanism=f"histogram with discrete {noise.capitalize()} noise",
        events=(event,),
        claim=f"Under {relation} no test tells neighbours apart better than the event says.",
        kind=AuditKind.STATISTICAL,
        observe=lambda: _histogram(noise, relation),
        planted={
            Bug.HALVED_NOISE: lambda: _histogram(noise, ADD_REMOVE, claimed_scale=2 * SCALE),
            Bug.WRONG_RELATION: lambda: _histogram(noise, REPLACE_ONE, claimed_relation=ADD_REMOVE),
        },
    )


CANARIES = 500
RELEASES = 6
L2_BOUNDS = (1.0, 2.0, 2.0, 2.0)
NOISE_MULTIPLIER = 1.0


def _canaries(first: int, sign: float) -> np.ndarray:
    """(CANARIES, L, d) vectors at their bounds along coordinates `first`, `first` + 1 and on."""
    vectors = np.zeros((CANARIES, len(L2_BOUNDS), 2 * CANARIES))
    index = np.arange(CANARIES)
    vectors[index, :, first + index] = sign * np.array(L2_BOUNDS)
    return vectors


def release_vector_mean(vectors: np.ndarray, **settings: Any) -> Release[np.ndarray]:
    """Releases the means of (N, L, d) vectors; settings are those of `VectorMean`."""
    mean = VectorMean(dimensions=vectors.shape[2], **settings)
    mean.add(vectors)
    return mean.release()


def _correlations(noise_std: float, *, replaced: bool) -> np.ndarray:
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
        relation=ADD_REMOVE,
    )
    return (np.array(L2_BOUNDS) @ released.value).reshape(2, CANARIES)


def _vector_mean(noise_multiplier: float = NOISE_MULTIPLIER, *, replaced: bool = False) -> Finding:
    """Tests RELEASES releases of relative noise `noise_multiplier` against the claimed event."""
    sensitivity = stacked_l2_sensitivity(l2_bounds=L2_BOUNDS, records=CANARIES, relation=ADD_REMOVE)
    noise_std = noise_multiplier * sensitivity
    scores = [_correlations(noise_std, replaced=replaced) for _ in range(RELEASES)]
    with_record, without = np.concatenate(scores, axis=1)
    claimed = vector_mean_event(
        noise_std=NOISE_MULTIPLIER * sensitivity,
        l2_bounds=L2_BOUNDS,
        records=CANARIES,
        relation=ADD_REMOVE,
    )
    return told_apart(with_record, without, claimed)


def _calibrated_for_one_block() -> Finding:
    """Planted: noise for the largest block alone, as if the others were not released with it."""
    return _vector_mean(NOISE_MULTIPLIER * max(L2_BOUNDS) / float(np.linalg.norm(L2_BOUNDS)))


CANDIDATES = 6_000
ROUNDS, VOTES, NOISE_STD = 2, 6, 9.0


def _voting(noise_std: float) -> GaussianVoting:
    return GaussianVoting(
        noise_std=noise_std, iterations=ROUNDS, votes_per_record=VOTES, relation=ADD_REMOVE
    )


def _totals(voting: GaussianVoting, choices: np.ndarray) -> np.ndarray:
    """(2, CANDIDATES) released votes, summed over the rounds."""
    votes = count_votes(choices, 2 * CANDIDATES, VOTES)
    rounds = [voting.release(votes).value for _ in range(ROUNDS)]
    return np.sum(rounds, axis=0).reshape(2, CANDIDATES)


def _votes(noise_std: float = NOISE_STD, *, claimed: Event | None = None) -> Finding:
    """Tests candidates with a record's votes against candidates without."""
    every_vote = np.repeat(np.arange(CANDIDATES)[:, None], VOTES, axis=1)
    with_votes, without = _totals(_voting(noise_std), every_vote)
    return told_apart(with_votes, without, claimed or _voting(NOISE_STD).event)


def _spread_votes() -> Finding:
    """Planted: √v for v votes of one record, true only where they go to different candidates."""
    each = GaussianEvent(noise_multiplier=NOISE_STD / np.sqrt(VOTES * ROUNDS))
    return _votes(claimed=each)


AUDITS = (
    _histogram_audit("laplace", ADD_REMOVE, "discrete_laplace"),
    _histogram_audit("gaussian", REPLACE_ONE, "discrete_gaussian"),
    Audit(
        name="vector-mean",
        mechanism="means of bounded vectors with joint discrete Gaussian noise",
        events=("gaussian",),
        claim="All blocks together tell neighbours apart no better than one Gaussian event.",
        kind=AuditKind.STATISTICAL,
        observe=_vector_mean,
        planted={
            Bug.HALVED_NOISE: lambda: _vector_mean(NOISE_MULTIPLIER / 2),
            Bug.WRONG_RELATION: lambda: _vector_mean(replaced=True),
            Bug.SEPARATE_CALIBRATION: _calibrated_for_one_block,
        },
    ),
    Audit(
        name="voting",
        mechanism="nearest-neighbour votes with discrete Gaussian noise",
        events=("discrete_gaussian",),
        claim="All rounds together tell neighbours apart no better than their events.",
        kind=AuditKind.STATISTICAL,
        observe=_votes,
        planted={
            Bug.HALVED_NOISE: lambda: _votes(NOISE_STD / 2),
            Bug.SPREAD_VOTES: _spread_votes,
        },
    ),
)
