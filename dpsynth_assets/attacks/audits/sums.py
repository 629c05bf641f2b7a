"""Audits of noisy sums (histograms, joint vector means, votes): one release gives many trials.

Each bin or pair of bins, each candidate that one record gives all its votes to, and each orthogonal
canary is a trial: canary i is the clip bound times unit vector i in every block; half of the
coordinates belong to canaries that took part. Bugs are planted by running the real mechanism with
other settings, noise or neighbours against the claim.
"""

from functools import lru_cache
from typing import Any

import numpy as np

from dpsynth_assets.attacks.audits.accountants import THRESHOLDS, Mixture, point
from dpsynth_assets.attacks.audits.audit import (
    ADD_REMOVE,
    REPLACE_ONE,
    Audit,
    Bug,
    Finding,
    audit_event_counts,
    told_apart,
)
from dpsynth_assets.privacy.directed_rounding import declared
from dpsynth_assets.privacy.events import Event, GaussianEvent, MixtureGaussianEvent
from dpsynth_assets.privacy.guarantees import NeighboringRelation, Release
from dpsynth_assets.privacy.histogram import GaussianVoting, NoiseKind, NoisyHistogram, count_votes
from dpsynth_assets.privacy.secret_clustering import NoisyClusters, SecretClustering
from dpsynth_assets.privacy.secret_noise import SecretSampling, secret_noise_std
from dpsynth_assets.privacy.secret_protection import gaussian_posterior, posterior_of_events
from dpsynth_assets.privacy.vector_mean import VectorMean, stacked_l2_sensitivity

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
    return told_apart(with_record, without, GaussianEvent(noise_multiplier=NOISE_MULTIPLIER))


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
    return told_apart(with_votes, without, claimed or _voting(NOISE_STD).event())


def _spread_votes() -> Finding:
    """Planted: √v for v votes of one record, true only where they go to different candidates."""
    each = GaussianEvent(noise_multiplier=NOISE_STD / np.sqrt(VOTES * ROUNDS))
    return _votes(claimed=each)


# Audits of (p, r)-secret protection: success of explicit attacks against the claimed bound r.
#
# The accountant is tested exactly; the clustering by as many trials as it has clusters, each with
# a secret of its own in one record, or in none.

PRIOR = 1e-2
SECRET_ROUNDS = MixtureGaussianEvent(
    noise_std=1.5, shifts=(0.0, 1.0, 2.0, 4.0), probabilities=(0.5, 0.3, 0.1, 0.1), steps=3
)
"""A secret in three records of which a round samples none, some or all."""

POSTERIOR = 0.1
CLUSTERS = 16_000
PUBLIC_COUNT = 4
SAMPLING = SecretSampling.capped(probability=0.5, max_occurrences=1)


def _attained_posterior(present: Mixture, absent: Mixture) -> float:
    """Finds how often the best threshold is right about the secret, wrong with at most PRIOR."""
    reach = 10 * absent.std
    thresholds = np.linspace(-reach, present.shifts.max() + reach, THRESHOLDS)
    return float(present.tail(thresholds)[absent.tail(thresholds) <= PRIOR].max())


def _noisy_sum() -> float:
    """The attacker adds up the rounds; shifts of the sum are whole numbers here."""
    one = np.zeros(int(SECRET_ROUNDS.shifts[-1]) + 1)
    one[np.array(SECRET_ROUNDS.shifts, dtype=int)] = SECRET_ROUNDS.probabilities
    total = np.ones(1)
    for _ in range(SECRET_ROUNDS.steps):
        total = np.convolve(total, one)
    std = SECRET_ROUNDS.noise_std * np.sqrt(SECRET_ROUNDS.steps)
    present = Mixture(np.arange(len(total)), total, std)
    return _attained_posterior(present, point(0.0, std))


def _rounds(claimed: float) -> Finding:
    return Finding(claimed=claimed, observed=_noisy_sum(), note=f"at a prior of {declared(PRIOR)}")


def _mean_shift() -> Finding:
    """Planted: the mixture of shifts replaced by one Gaussian at its mean (errata B-004.6)."""
    mean = float(np.dot(SECRET_ROUNDS.shifts, SECRET_ROUNDS.probabilities))
    mu = mean / SECRET_ROUNDS.noise_std * np.sqrt(SECRET_ROUNDS.steps)
    return _rounds(gaussian_posterior(float(mu), PRIOR))


def _clustering(noise_std: float) -> SecretClustering:
    """Centres on the unit circle, so that a record at its centre moves count and sum by one."""
    return SecretClustering(
        public_centres=_directions(),
        public_counts=np.full(CLUSTERS, PUBLIC_COUNT),
        l2_bound=1.0,
        sampling=SAMPLING,
        noise_std=noise_std,
    )


def _directions() -> np.ndarray:
    angles = np.linspace(0.0, 2.0 * np.pi, CLUSTERS, endpoint=False)
    return np.column_stack([np.cos(angles), np.sin(angles)])


def _scores(clusters: NoisyClusters) -> np.ndarray:
    """Undoes the public merge; adds each noisy count to the noisy sum along its centre."""
    dp_counts = clusters.counts - PUBLIC_COUNT
    weight = PUBLIC_COUNT + np.maximum(dp_counts, 0.0)
    dp_sums = (clusters.centres * weight[:, None] * _directions()).sum(axis=1) - PUBLIC_COUNT
    return dp_counts + dp_sums


@lru_cache(maxsize=1)
def _calibrated_noise() -> float:
    return secret_noise_std(
        count_probabilities=SAMPLING.count_probabilities,
        bounds=[(PRIOR, POSTERIOR)],
        steps=1,
        noise_floor=0.1,
    )


def _clusters(noise_share: float = 1.0) -> Finding:
    """Records sit in every other cluster; the threshold has false-positive rate PRIOR."""
    from scipy.special import ndtri

    noise_std = _calibrated_noise() * noise_share
    released = _clustering(noise_std).release(_directions()[::2]).value
    exceeded = _scores(released) >= -ndtri(PRIOR) * noise_std * np.sqrt(2.0)
    claimed = _clustering(_calibrated_noise()).event

    def curve(rates: np.ndarray) -> np.ndarray:
        return np.array([posterior_of_events([claimed], rate) for rate in rates])

    hits, alarms = int(exceeded[::2].sum()), int(exceeded[1::2].sum())
    return audit_event_counts(hits, alarms, CLUSTERS // 2, curve)


def _histogram_audit(noise: NoiseKind, relation: NeighboringRelation) -> Audit:
    return Audit.named(
        f"histogram-{noise}-{relation}",
        lambda: _histogram(noise, relation),
        {
            Bug.HALVED_NOISE: lambda: _histogram(noise, ADD_REMOVE, claimed_scale=2 * SCALE),
            Bug.WRONG_RELATION: lambda: _histogram(noise, REPLACE_ONE, claimed_relation=ADD_REMOVE),
        },
    )


AUDITS = (
    _histogram_audit("laplace", ADD_REMOVE),
    _histogram_audit("gaussian", REPLACE_ONE),
    Audit.named(
        "vector-mean",
        _vector_mean,
        {
            Bug.HALVED_NOISE: lambda: _vector_mean(NOISE_MULTIPLIER / 2),
            Bug.WRONG_RELATION: lambda: _vector_mean(replaced=True),
            Bug.SEPARATE_CALIBRATION: _calibrated_for_one_block,
        },
    ),
    Audit.named(
        "voting",
        _votes,
        {
            Bug.HALVED_NOISE: lambda: _votes(NOISE_STD / 2),
            Bug.SPREAD_VOTES: _spread_votes,
        },
    ),
    Audit.named(
        "secret-clustering",
        _clusters,
        {
            # Each of count and sum moves by 1, and σ for a move of 1 was put on both.
            Bug.SEPARATE_CALIBRATION: lambda: _clusters(1.0 / np.sqrt(2.0)),
            Bug.HALVED_NOISE: lambda: _clusters(0.5),
        },
    ),
    Audit.named(
        "secret-posterior",
        lambda: _rounds(posterior_of_events([SECRET_ROUNDS], PRIOR)),
        {Bug.MEAN_SHIFT: _mean_shift},
    ),
)
