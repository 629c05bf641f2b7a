"""Audits of (p, r)-secret protection: success of explicit attacks against the claimed bound r.

The accountant is tested exactly; the clustering by as many trials as it has clusters, each with
a secret of its own in one record, or with nobody.
"""

from functools import lru_cache

import numpy as np

from dpsynth_assets.attacks.audits.accountants import THRESHOLDS, Mixture, point
from dpsynth_assets.attacks.audits.audit import Audit, AuditKind, Bug, Finding
from dpsynth_assets.attacks.audits.statistics import audit_event_counts
from dpsynth_assets.privacy.directed_rounding import declared
from dpsynth_assets.privacy.events import MixtureGaussianEvent
from dpsynth_assets.privacy.secret_clustering import NoisyClusters, SecretClustering
from dpsynth_assets.privacy.secret_noise import SecretSampling, secret_noise_std
from dpsynth_assets.privacy.secret_protection import gaussian_posterior, posterior_of_events

PRIOR = 1e-2
ROUNDS = MixtureGaussianEvent(
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
    one = np.zeros(int(ROUNDS.shifts[-1]) + 1)
    one[np.array(ROUNDS.shifts, dtype=int)] = ROUNDS.probabilities
    total = np.ones(1)
    for _ in range(ROUNDS.steps):
        total = np.convolve(total, one)
    std = ROUNDS.noise_std * np.sqrt(ROUNDS.steps)
    present = Mixture(np.arange(len(total)), total, std)
    return _attained_posterior(present, point(0.0, std))


def _rounds(claimed: float) -> Finding:
    return Finding(claimed=claimed, observed=_noisy_sum(), note=f"at a prior of {declared(PRIOR)}")


def _mean_shift() -> Finding:
    """Planted: the mixture of shifts replaced by one Gaussian at its mean (errata B-004.6)."""
    mean = float(np.dot(ROUNDS.shifts, ROUNDS.probabilities))
    mu = mean / ROUNDS.noise_std * np.sqrt(ROUNDS.steps)
    return _rounds(gaussian_posterior(float(mu), PRIOR))


def _clustering(noise_std: float) -> SecretClustering:
    """Centres on the unit circle, so that a record at its centre moves count and sum by one."""
    return SecretClustering(
        public_centres=_directions(),
        public_counts=np.full(CLUSTERS, PUBLIC_COUNT),
        l2_bound=1.0,
        sampling=SAMPLING,
        noise_std=noise_std,
        iterations=1,
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
        prior=PRIOR,
        posterior=POSTERIOR,
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


AUDITS = (
    Audit(
        name="secret-clustering",
        mechanism="clusters moved by sampled private records",
        events=("mixture_gaussian",),
        claim="Counts and centres together reveal a secret no more often than r.",
        kind=AuditKind.STATISTICAL,
        observe=_clusters,
        planted={
            # Each of count and sum moves by 1, and σ for a move of 1 was put on both.
            Bug.SEPARATE_CALIBRATION: lambda: _clusters(1.0 / np.sqrt(2.0)),
            Bug.HALVED_NOISE: lambda: _clusters(0.5),
        },
    ),
    Audit(
        name="secret-posterior",
        mechanism="accountant of secret protection",
        events=("mixture_gaussian",),
        claim="No attack of prior p finds a secret more often than the reported r.",
        measure="probability of success",
        observe=lambda: _rounds(posterior_of_events([ROUNDS], PRIOR)),
        planted={Bug.MEAN_SHIFT: _mean_shift},
    ),
)
