"""ε that explicit attacks attain, exactly: thresholds on numbers with distributions in closed form.

For any event S, P(S) > e^ε Q(S) + δ refutes (ε, δ)-DP. Here S is "the number exceeds x" and both
probabilities are computed, not sampled, so an attained ε is a proof.
Shape letters: K components of a mixture, M thresholds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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


def cut_batch_pair(
    records: int, sampling_probability: float, max_batch_size: int, noise_multiplier: float
) -> tuple[Mixture, Mixture]:
    """One noisy sum over a Poisson sample cut to a random subset, with a target and without it.

    The other records count −1 and the target +1, so a target that pushes another record out of a
    full batch moves the sum by 2.
    """
    from scipy import stats

    others = np.arange(records)
    chance = stats.binom.pmf(others, records - 1, sampling_probability)
    kept = np.minimum(1.0, max_batch_size / (others + 1.0))
    without = -np.minimum(others, max_batch_size).astype(np.float64)
    with_target = 1.0 - np.minimum(others, max_batch_size - 1)
    weights = [chance * (1 - sampling_probability * kept), chance * sampling_probability * kept]
    present = Mixture(
        np.concatenate([without, with_target]), np.concatenate(weights), noise_multiplier
    )
    return present, Mixture(without, chance, noise_multiplier)


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
