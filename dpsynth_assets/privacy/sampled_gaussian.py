"""One step of a Gaussian release over a random sample: its Rényi divergence and its PLD.

Letters: q sampling probability, m records of one unit, σ noise multiplier, s_k the shift that
happens with probability w_k. The pair is Σ_k w_k N(s_k, σ²) against N(0, σ²), on a line.

Why a line and equal records are the worst case: the records x_1..x_m of a unit lie in the unit
ball, and a step is a mixture over the drawn subsets S of N(x_S, σ²), x_S their sum, against
N(0, σ²); all other records shift both alike. Each f-divergence of the two, either way round, is
E F(Σ_S w_S L_S) with F convex, w_S >= 0 and L_S jointly lognormal of mean one whose
log-covariances are ⟨x_S, x_S'⟩ / σ² <= |S| |S'| / σ². By Kahane's convexity inequality (Kahane
1986) it is largest where every covariance is: all records equal, the shift Binomial(m, q). For
the same reason a shift may only be replaced by a larger one.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dpsynth_assets.privacy.events import PoissonGaussianEvent, TruncatedPoissonGaussianEvent

MAXIMUM_POINTS = 200_000
"""Points of one quadrature; σ far below 0.1 is charged as if nothing were sampled instead."""

TAIL = 10.0
"""Standard deviations kept of every Gaussian: what lies beyond has probability 8e-24."""

QUADRATURE_ERROR = 1e-12
"""Error of a log-moment, absolute and relative: float64 rounding alone."""

_TABLE = 4096
_NEWTON_STEPS = 4
_UP = 1.0 + 1e-12


def some_record(sampling_probability: float, records: int) -> float:
    """Computes the probability 1 − (1 − q)^m that any of m records is drawn, rounded up."""
    if sampling_probability == 1.0:
        return 1.0
    return min(1.0, -math.expm1(records * math.log1p(-sampling_probability)) * _UP)


def sampled_divergence(probability: float, noise_multiplier: float, order: float) -> float:
    """Bounds D_α of (1 − q) N(0, σ²) + q N(1, σ²) from N(0, σ²), by quadrature of its α-th moment.

    The trapezoid rule converges exponentially on an analytic integrand. This one is analytic up to
    the zeros of the mixture at height ±πσ²; on a line at height a <= πσ² it is at most e^(a²/2σ²)
    times its real values, so a step of h costs a relative e^(a²/2σ² − 2πa/h) < 1e-20 below.
    dp_accounting's series agrees at whole orders, and diverges at some others.

    Args:
        probability: q in (0, 1].
        noise_multiplier: σ > 0.
        order: α > 1.

    Returns:
        The divergence, rounded up; inf where the quadrature would take too many points.

    **Source** Mironov, Talwar, Zhang 2019, Theorems 4 and 5: this direction is the larger one.
    """
    q, sigma = min(1.0, probability * _UP), noise_multiplier
    step = min(sigma / 2.0, sigma**2 / 3.0)
    if order > MAXIMUM_POINTS * step:
        return math.inf
    # Up to constants the integrand lies below a mixture of N(k, σ²), 0 <= k <= α + 1.
    points = np.arange(-TAIL * sigma, order + 1.0 + TAIL * sigma, step)
    with np.errstate(divide="ignore"):
        mixture = np.logaddexp(np.log1p(-q), math.log(q) + (points - 0.5) / sigma**2)
    exponents = order * mixture - (points / sigma) ** 2 / 2.0
    largest = float(exponents.max())
    total = float(np.exp(exponents - largest).sum()) * step / (sigma * math.sqrt(2.0 * math.pi))
    log_moment = max(0.0, largest + math.log(total))
    return (log_moment + QUADRATURE_ERROR * (1.0 + log_moment)) / (order - 1.0)


def poisson_step_pld(event: PoissonGaussianEvent, gap: float) -> Any:
    """Builds the PLD of one step of Poisson-sampled Gaussian releases.

    **Privacy** Add/remove: the pair of the module docstring. Replaced, m = 1: by advanced joint
    convexity (Balle, Barthe, Gaboardi 2018, Theorem 2) the hockey stick is that of N(x, σ²) from
    a mixture of N(0, σ²) and N(x', σ²). Seen from N(x, σ²) the log-covariances of the mixture are
    |x|², |x − x'|² and ⟨x, x − x'⟩ over σ², all largest at x = −x': shifts of 1 against −1. For
    m > 1 some record is drawn with probability 1 − (1 − q)^m; given which ones, the same argument
    holds for their sums, of length at most m.
    """
    from scipy.stats import binom

    sigma, q = event.noise_multiplier, event.sampling_probability
    records = event.max_records_per_unit
    if event.replaced:
        return _replaced_pld(sigma / records, some_record(q, records), gap)
    shifts = np.arange(records + 1)
    return mixture_pld(sigma, shifts, binom.pmf(shifts, records, q), gap)


def _replaced_pld(noise_multiplier: float, sampling_probability: float, gap: float) -> Any:
    """dp_accounting's replace-one pair: q N(1, σ²) + (1 − q) N(0, σ²) against −1 instead of 1.

    Its sensitivity is that of one record's contribution, not of the replacement (which moves the
    sum by twice as much): `conformance/test_library_traps.py` holds it to a quadrature.
    """
    import dp_accounting
    from dp_accounting.pld import privacy_loss_distribution

    return privacy_loss_distribution.from_gaussian_mechanism(
        float(noise_multiplier),
        value_discretization_interval=gap,
        sampling_prob=float(sampling_probability),
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE,
    )


def truncated_step_pld(event: TruncatedPoissonGaussianEvent, gap: float) -> Any:
    """Builds the PLD of one step with samples cut to a random subset.

    **Privacy** A sample that is cut may trade one record for another, hence dp_accounting's
    mixture with a pair of sensitivity two. It is stated for the larger of two neighbours; the
    larger one of n declared records may have n or n + 1, and neither case dominates the other: the
    PLD connects the dots of the larger divergence, which again is convex in e^ε.

    **Source** Chua et al. 2024, Scalable DP-SGD: Shuffling vs. Poisson Subsampling.
    """
    from dp_accounting.pld import privacy_loss_distribution

    plds = [
        privacy_loss_distribution.from_truncated_subsampled_gaussian_mechanism(
            records,
            float(event.sampling_probability),
            event.max_batch_size,
            float(event.noise_multiplier),
            value_discretization_interval=gap,
        )
        for records in (event.records, event.records + 1)
    ]
    remove, add = (
        _larger_pmf([getattr(pld, name).to_dense_pmf() for pld in plds], gap)
        for name in ("_pmf_remove", "_pmf_add")
    )
    return privacy_loss_distribution.PrivacyLossDistribution(remove, add)


def _larger_pmf(pmfs: Sequence[Any], gap: float) -> Any:
    from dp_accounting.pld import pld_pmf

    lowest = min(pmf._lower_loss for pmf in pmfs)
    highest = max(pmf._lower_loss + pmf.size - 1 for pmf in pmfs)
    deltas = np.maximum(*(_divergences(pmf, lowest, highest, gap) for pmf in pmfs))
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(gap, lowest, highest, deltas)


def _divergences(pmf: Any, lowest: int, highest: int, gap: float) -> np.ndarray:
    """Hockey-stick divergence δ_i = p_∞ + Σ_{j>i} p_j (1 − e^(ε_i − ε_j)) at each grid point."""
    from scipy.signal import lfilter

    masses = np.zeros(highest - lowest + 1)
    start = pmf._lower_loss - lowest
    masses[start : start + pmf.size] = pmf._probs
    above = np.concatenate([[0.0], masses[:0:-1]])
    shrink = math.exp(-gap)
    neighbour = lfilter([shrink], [1.0, -shrink], above)  # Σ p_j e^(ε_i − ε_j), from the top
    deltas = (pmf._infinity_mass + np.cumsum(above) - neighbour)[::-1]
    return np.minimum.accumulate(np.clip(deltas, 0.0, 1.0))


def mixture_pld(noise_std: float, shifts: np.ndarray, probabilities: np.ndarray, gap: float) -> Any:
    """Builds the PLD of Σ_k w_k N(s_k, σ²) against N(0, σ²), in both directions.

    The same pair as dp_accounting's `from_mixture_gaussian_mechanism`, vectorised over the grid:
    seconds become tenths of one.

    Args:
        noise_std: σ > 0, in the units of the shifts.
        shifts: (K,) non-negative and ascending, not all zero.
        probabilities: (K,) of each shift.
        gap: Spacing of privacy losses.

    Returns:
        A pessimistic PLD whose `remove` direction has the mixture above.
    """
    from dp_accounting.pld import privacy_loss_distribution

    pair = _MixturePair(noise_std, shifts, probabilities)
    remove, add = pair.pmf(gap, mixture_above=True), pair.pmf(gap, mixture_above=False)
    return privacy_loss_distribution.PrivacyLossDistribution(remove, add)


class _MixturePair:
    """The privacy loss ln Σ_k w_k e^((2 s_k x − s_k²) / 2σ²), increasing in x, and its inverse."""

    def __init__(self, noise_std: float, shifts: np.ndarray, probabilities: np.ndarray) -> None:
        happens = np.asarray(probabilities, dtype=float) > 0
        self.sigma = float(noise_std)
        self.shifts = np.asarray(shifts, dtype=float)[happens]
        self.weights = np.asarray(probabilities, dtype=float)[happens]
        self.low, self.high = -TAIL * self.sigma, self.shifts[-1] + TAIL * self.sigma

    def loss(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Privacy loss at each point, and its derivative there."""
        exponents = np.log(self.weights) + self.shifts * (points[:, None] - self.shifts / 2.0) / (
            self.sigma**2
        )
        largest = exponents.max(axis=1)
        terms = np.exp(exponents - largest[:, None])
        total = terms.sum(axis=1)
        return largest + np.log(total), terms @ self.shifts / total / self.sigma**2

    def points_at(self, losses: np.ndarray) -> np.ndarray:
        """Inverts the loss: a table, then Newton's method within its cell.

        An error here lowers δ by its square, far below what reading a PLD keeps back.
        """
        grid = np.linspace(self.low, self.high, _TABLE + 1)
        cells = np.clip(np.searchsorted(self.loss(grid)[0], losses), 1, _TABLE)
        low, high = grid[cells - 1], grid[cells]
        points = (low + high) / 2.0
        for _ in range(_NEWTON_STEPS):
            value, slope = self.loss(points)
            points = np.clip(points - (value - losses) / np.maximum(slope, 1e-300), low, high)
        return points

    def deltas(self, epsilons: np.ndarray, *, mixture_above: bool) -> np.ndarray:
        """Hockey-stick divergence at each ε, of the mixture from N(0, σ²) or the other way."""
        from scipy.special import log_ndtr

        sign = 1.0 if mixture_above else -1.0  # the loss exceeds ε right, or left, of a point
        points = self.points_at(sign * epsilons)
        plain = log_ndtr(-sign * points / self.sigma)
        parts = log_ndtr(sign * (self.shifts - points[:, None]) / self.sigma)
        mixture = np.exp(parts) @ self.weights
        if mixture_above:
            deltas = mixture - np.exp(epsilons + plain)
        else:
            with np.errstate(divide="ignore"):
                deltas = np.exp(plain) - np.exp(epsilons + np.log(mixture))
        return np.minimum.accumulate(np.clip(deltas, 0.0, 1.0))

    def pmf(self, gap: float, *, mixture_above: bool) -> Any:
        """Connects the dots between the divergences on a grid that reaches all but the tails."""
        from dp_accounting.pld import pld_pmf

        ends = self.loss(np.array([self.low, self.high if mixture_above else -self.low]))[0]
        first, last = (ends[0], ends[1]) if mixture_above else (-ends[1], -ends[0])
        lowest, highest = math.floor(first / gap), math.ceil(last / gap)
        epsilons = np.arange(lowest, highest + 1) * gap
        deltas = self.deltas(epsilons, mixture_above=mixture_above)
        return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(gap, lowest, highest, deltas)
