"""Audits of the accountant: no ε it reports may be below what an explicit attack attains.

For any event S, P(S) > e^ε Q(S) + δ refutes (ε, δ)-DP. Here S is "the number exceeds x" and both
probabilities are computed, not sampled, so an attained ε is a proof. Planted bugs are accountants
of papers and libraries that report less than the attack attains.

Shape letters: K components of a mixture, M thresholds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpsynth_assets.attacks.audits.audit import Audit, Bug, Finding
from dpsynth_assets.privacy.accounting import ACCOUNTANTS, epsilon_of, privacy_profile
from dpsynth_assets.privacy.events import (
    BoundedRangeEvent,
    Event,
    GaussianEvent,
    PoissonGaussianEvent,
    PureEvent,
)
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.histogram import NoisyHistogram

THRESHOLDS = 20_001


@dataclass(frozen=True)
class Mixture:
    """Σ_k weights_k · N(shifts_k, std²), the distribution of an attacker's number.

    Attributes:
        shifts: (K,) means.
        weights: (K,) probabilities.
        std: Standard deviation of every component.
    """

    shifts: np.ndarray
    weights: np.ndarray
    std: float

    def tail(self, thresholds: np.ndarray) -> np.ndarray:
        """(M,) probabilities of exceeding each of (M,) thresholds."""
        from scipy import stats

        scaled = (np.asarray(thresholds)[:, None] - self.shifts) / self.std
        return stats.norm.sf(scaled) @ self.weights


def point(shift: float, std: float) -> Mixture:
    """One Gaussian."""
    return Mixture(np.array([shift]), np.ones(1), std)


def binomial_mixture(trials: int, probability: float, step: float, std: float) -> Mixture:
    """A sum that moves by `step` for each of Binomial(trials, probability) sampled steps."""
    from scipy import stats

    counts = np.arange(trials + 1)
    return Mixture(counts * step, stats.binom.pmf(counts, trials, probability), std)


def attained_epsilon(likely: np.ndarray, rare: np.ndarray, delta: float) -> float:
    """Finds the largest ε that some outcome of known (M,) probabilities proves; at least 0."""
    proven = (likely > delta) & (rare > 0)
    return float(np.log((likely[proven] - delta) / rare[proven]).max(initial=0.0))


def tail_epsilon(present: Mixture, absent: Mixture, delta: float) -> float:
    """Finds the largest ε that a threshold on a fine grid proves between two mixtures."""
    reach = 10 * max(present.std, absent.std)
    edges = np.concatenate([present.shifts, absent.shifts])
    thresholds = np.linspace(edges.min() - reach, edges.max() + reach, THRESHOLDS)
    return attained_epsilon(present.tail(thresholds), absent.tail(thresholds), delta)


def shuffled_epsilon(noise_multiplier: float, steps: int, delta: float) -> float:
    """Finds the ε that one epoch of shuffled batches attains; a lower bound on its true ε.

    The other records' gradients point away from the target's, so every sum of a batch is the
    same but the target's: higher by 2, or by 1 where a null record has its place. The attacker
    looks at the largest of the T noisy sums.

    **Source** Chua et al. 2024, How Private are DP-SGD Implementations?, Theorem 4.1.
    """
    from scipy import stats

    thresholds = np.linspace(-10.0, 12.0, THRESHOLDS) * max(1.0, noise_multiplier)
    below = stats.norm.cdf(thresholds / noise_multiplier) ** (steps - 1)

    def tail(shift: float) -> np.ndarray:
        return 1.0 - below * stats.norm.cdf((thresholds - shift) / noise_multiplier)

    return attained_epsilon(tail(2.0), tail(1.0), delta)


def binomial_epsilon(eta: float, count: int, delta: float) -> float:
    """Finds the ε that `count` two-valued η-bounded-range outcomes attain, losses ±η/2.

    Each outcome has probability p = 1/(1 + e^(−η/2)) with the record and 1 − p without it: a
    randomised response of ε = η/2, whose log-likelihood ratio ranges over η.
    """
    from scipy import stats

    likely = 1.0 / (1.0 + np.exp(-eta / 2.0))
    at_least = np.arange(count + 1) - 1
    return attained_epsilon(
        stats.binom.sf(at_least, count, likely), stats.binom.sf(at_least, count, 1 - likely), delta
    )


def counts_delta(noise_std: float, shifts: Sequence[int], epsilon: float) -> float:
    """Sums δ(ε) of integers that move by `shifts` under discrete Gaussian noise, one by one.

    Args:
        noise_std: σ of P(k) ∝ exp(−k²/(2σ²)).
        shifts: How far each integer moves, > 0.
        epsilon: ε >= 0.

    Returns:
        Σ (P(x) − e^ε Q(x))₊ over all integer vectors x, grouped by their log-likelihood ratio.
    """
    reach = math.ceil(12.0 * noise_std)
    values = np.arange(-reach, reach + 1)
    noise = np.exp(-(values**2) / (2.0 * noise_std**2))
    noise /= noise.sum()
    distribution = np.ones(1)
    for shift in shifts:
        spread = np.zeros(2 * reach * shift + 1)
        spread[::shift] = noise
        distribution = np.convolve(distribution, spread)
    products = np.arange(len(distribution)) - len(distribution) // 2
    losses = (sum(shift**2 for shift in shifts) + 2.0 * products) / (2.0 * noise_std**2)
    kept = losses > epsilon
    return float((distribution[kept] * -np.expm1(epsilon - losses[kept])).sum())


DELTA = 1e-5
COUNTED = tuple(
    (noise_std, rounds, records, relation)
    for noise_std in (1.0, 1.5, 3.0, 10.0)
    for rounds, records in ((1, 1), (1, 3), (4, 1))
    for relation in (NeighboringRelation.ADD_REMOVE, NeighboringRelation.REPLACE_ONE)
)
"""σ, releases, records of a unit and relation of the noisy counts whose δ is summed exactly."""

LEAST_DELTA = 1e-12
"""Smaller δ are not compared: what is kept back for rounding would hide any difference."""


def reported_epsilon(*events: Event) -> float:
    """The smallest ε that any of our accountants reports: each of them must hold."""
    return min(epsilon_of(events, DELTA, accountant) for accountant in ACCOUNTANTS)


def _attacked(claimed: float, present: Mixture, absent: Mixture) -> Finding:
    """Compares a reported ε with what a threshold attains between two mixtures."""
    return Finding(claimed=claimed, observed=tail_epsilon(present, absent, DELTA))


def _library_epsilon(event: Any, **settings: Any) -> float:
    """ε of an event of the library by its own Rényi accountant."""
    from dp_accounting.rdp import RdpAccountant

    return float(RdpAccountant(**settings).compose(event).get_epsilon(DELTA))


def _replaced_gaussian(claimed: float) -> Finding:
    """A replaced record moves a sum by √2; σ = 1."""
    return _attacked(claimed, point(math.sqrt(2.0), 1.0), point(0.0, 1.0))


def _library_replace_one() -> Finding:
    """Planted: the library's Rényi accountant, whose replace-one mode changes nothing."""
    import dp_accounting

    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    event = dp_accounting.GaussianDpEvent(1.0)
    return _replaced_gaussian(_library_epsilon(event, neighboring_relation=relation))


def _classical_gaussian() -> Finding:
    """Planted: σ = √(2 ln(1.25/δ)) / ε used at ε = 15 (errata B-003.1)."""
    target = 15.0
    std = math.sqrt(2.0 * math.log(1.25 / DELTA)) / target
    return _attacked(target, point(1.0, std), point(0.0, std))


def _sampled() -> Finding:
    """Sum of 25 noisy steps, q = 0.1, σ = 5; the event gets its noise as an int, as users do."""
    event = PoissonGaussianEvent(sampling_probability=0.1, noise_multiplier=5, steps=25)
    present = binomial_mixture(25, 0.1, 1.0, 25.0)
    return _attacked(reported_epsilon(event), present, point(0.0, 25.0))


def _library_integer_noise() -> Finding:
    """Planted: the library's Rényi accountant forgets composition where the noise is an int (A.0).

    One sample of the records is released 25 times, which is one release of a fifth of the noise.
    """
    import dp_accounting

    releases = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(5), 25)
    claimed = _library_epsilon(dp_accounting.PoissonSampledDpEvent(0.1, releases))
    return _attacked(claimed, binomial_mixture(1, 0.1, 1.0, 1.0), point(0.0, 1.0))


def _counted(*, continuous: bool = False) -> Finding:
    """The largest ratio of δ of noisy counts, summed over all integers, to what is charged.

    Planted: integer noise priced as `continuous` noise of the same σ, as before 0.2.0.
    """
    ratios = []
    for noise_std, rounds, records, relation in COUNTED:
        event = NoisyHistogram(
            noise="gaussian", scale=noise_std, relation=relation, max_records_per_unit=records
        ).event()
        events: list[Event] = [event] * rounds
        if continuous:
            multiplier = 1.0 / math.sqrt(2.0 * rounds * float(event.rho))
            events = [GaussianEvent(noise_multiplier=multiplier)]
        epsilons = np.linspace(0.1, 6.0, 40).tolist()
        charged = privacy_profile(events, epsilons, "tight")
        shifts = [records] * rounds * relation.records_changed
        exact = np.array([counts_delta(noise_std, shifts, epsilon) for epsilon in epsilons])
        seen = exact > LEAST_DELTA
        ratios.append(float((exact[seen] / np.asarray(charged)[seen]).max()))
    return Finding(claimed=1.0, observed=max(ratios))


def _sampled_replaced(*, claimed_replaced: bool) -> Finding:
    """Each of four full batches moves by 2 where a record is replaced."""
    event = PoissonGaussianEvent(
        sampling_probability=1.0, noise_multiplier=4.0, steps=4, replaced=claimed_replaced
    )
    return _attacked(reported_epsilon(event), point(8.0, 8.0), point(0.0, 8.0))


def _shuffled_as_poisson() -> Finding:
    """Planted: one epoch of ten shuffled batches, accounted as Poisson (errata B-002.1)."""
    event = PoissonGaussianEvent(sampling_probability=0.1, noise_multiplier=0.7, steps=10)
    return Finding(claimed=reported_epsilon(event), observed=shuffled_epsilon(0.7, 10, DELTA))


def _repeated(event: Event, eta: float) -> Finding:
    """Sixty two-valued outcomes whose log-likelihood ratio ranges over `eta`."""
    return Finding(claimed=reported_epsilon(event), observed=binomial_epsilon(eta, 60, DELTA))


TOKENS = BoundedRangeEvent(eta=0.5, count=60)
PURE = PureEvent(epsilon=0.25, count=60)

AUDITS = (
    Audit.named(
        "accountant-gaussian-releases",
        lambda: _replaced_gaussian(
            reported_epsilon(GaussianEvent(noise_multiplier=1.0 / math.sqrt(2.0)))
        ),
        {
            Bug.WRONG_RELATION: _library_replace_one,
            Bug.CLASSICAL_GAUSSIAN: _classical_gaussian,
        },
    ),
    Audit.named(
        "accountant-noisy-counts",
        _counted,
        {Bug.CONTINUOUS_NOISE: lambda: _counted(continuous=True)},
    ),
    Audit.named(
        "accountant-sampled-gradients",
        _sampled,
        {Bug.INTEGER_NOISE: _library_integer_noise, Bug.SHUFFLED: _shuffled_as_poisson},
    ),
    Audit.named(
        "accountant-replaced-gradients",
        lambda: _sampled_replaced(claimed_replaced=True),
        {Bug.WRONG_RELATION: lambda: _sampled_replaced(claimed_replaced=False)},
    ),
    Audit.named(
        "accountant-token-draws",
        lambda: _repeated(TOKENS, TOKENS.eta),
        {Bug.WRONG_RELATION: lambda: _repeated(TOKENS, 2 * TOKENS.eta)},
    ),
    Audit.named(
        "accountant-pure-releases",
        lambda: _repeated(PURE, 2 * PURE.epsilon),
        {Bug.HALVED_NOISE: lambda: _repeated(PURE, 4 * PURE.epsilon)},
    ),
)
