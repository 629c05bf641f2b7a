"""Privacy-loss distributions (PLDs) of single events, all on one grid so that they convolve.

Every PLD here is pessimistic: a loss between two grid points is split over both such that the
probability and the probability under the neighbour stay what they were (connect the dots;
Doroshenko et al. 2022). The split is post-processing undone, so δ only grows, and by a term of
second order in the spacing. dp_accounting always runs in add/remove mode on float() parameters.

**A step over a random sample.** Letters: q sampling probability, m records of one unit, σ noise
multiplier, s_k the shift that happens with probability w_k. The pair is Σ_k w_k N(s_k, σ²) against
N(0, σ²), on a line. Why a line and equal records are the worst case: the records x_1..x_m of a unit
are in the unit ball, and a step is a mixture over the drawn subsets S of N(x_S, σ²), x_S their sum,
against N(0, σ²); all other records shift both alike. Each f-divergence of the two, either way
round, is E F(Σ_S w_S L_S) with F convex, w_S >= 0 and L_S jointly lognormal of mean one whose
log-covariances are ⟨x_S, x_S'⟩ / σ² <= |S| |S'| / σ². By Kahane's convexity inequality (Kahane
1986) it is largest where every covariance is: all records equal, the shift Binomial(m, q). For
the same reason a shift may only be replaced by a larger one.
"""

import math
from functools import lru_cache
from typing import Any

import numpy as np

from dpsynth_assets.privacy.bounded_range import (
    PrivacyProfile,
    bounded_range_profile,
    horizon,
    recursion_is_affordable,
)
from dpsynth_assets.privacy.events import (
    BoundedRangeEvent,
    DiscreteGaussianEvent,
    DiscreteLaplaceEvent,
    Event,
    GaussianEvent,
    PoissonGaussianEvent,
    PureEvent,
)
from dpsynth_assets.privacy.gaussian_dp import integer_gaussian_losses
from dpsynth_assets.privacy.renyi import REACH, float_up, some_record, zcdp_delta

DISCRETIZATION = 2e-4
"""Spacing of privacy losses in every PLD; the error of connect-the-dots is of second order."""

NUMERICAL_DELTA = 1e-13
"""Part of δ kept back for the rounding of Fourier transforms (measured: below 2e-14)."""

NUMERICAL_DELTA_PER_STEP = 1e-18
"""The same for each step of a composition of one event with itself."""

MAXIMUM_LOSS = 300.0
"""Largest privacy loss of one release that a PLD is built for; beyond, zCDP has to do."""

_TAIL = 1e-15
_TABLE = 4096
_NEWTON_STEPS = 4
_UP = 1.0 + 1e-12


def pld_epsilon(pld: Any, delta: float) -> float:
    """Reads ε at δ off a PLD, rounded up; inf where δ is below what floats can resolve."""
    usable = delta - NUMERICAL_DELTA
    if usable <= 0:
        return math.inf
    return max(0.0, float(pld.get_epsilon_for_delta(usable))) * _UP


def pld_delta(pld: Any, epsilon: float) -> float:
    """Reads δ at ε off a PLD, rounded up."""
    return min(1.0, float(pld.get_delta_for_epsilon(float(epsilon))) + NUMERICAL_DELTA)


def pld_is_affordable(event: Event) -> bool:
    """Says whether the losses of one release (all of them, if it only counts) fit on a grid."""
    one_step = float_up(event.rho) / max(1, getattr(event, "steps", 1))
    return horizon(one_step, 1e-22) <= MAXIMUM_LOSS


def event_pld(event: Event, delta: float, discretization: float = DISCRETIZATION) -> Any:
    """Builds the PLD of one event, pessimistic and cached.

    Args:
        event: An atomic event that bounds a record.
        delta: Sets how far a token block's grid reaches, nothing else.
        discretization: Spacing of privacy losses; PLDs of one spacing convolve.

    Raises:
        TypeError: If the event is composed or bounds a secret.
    """
    reach = delta if isinstance(event, BoundedRangeEvent) else None
    return _event_pld(event, reach, discretization)


@lru_cache(maxsize=64)  # a few MB each
def _event_pld(event: Event, delta: float | None, gap: float) -> Any:
    from dp_accounting.pld import privacy_loss_distribution as library

    match event:
        case GaussianEvent():
            return library.from_gaussian_mechanism(
                float(event.noise_multiplier), value_discretization_interval=gap
            )
        case DiscreteGaussianEvent():
            return atoms_to_pld(*integer_gaussian_losses(event), gap)
        case DiscreteLaplaceEvent():
            return library.from_discrete_laplace_mechanism(
                1.0 / float(event.scale),
                event.sensitivity,
                value_discretization_interval=gap,
                use_connect_dots=True,
            )
        case PureEvent():
            return pure_pld(event.epsilon, event.count, gap)
        case PoissonGaussianEvent():
            return _composed(poisson_step_pld(event, gap), event.steps)
        case BoundedRangeEvent() if delta is not None:
            return profile_to_pld(token_profile(event, delta), gap)
    raise TypeError(f"Expected an atomic event, got {type(event).__name__}.")


def _composed(pld: Any, steps: int) -> Any:
    """Composes a PLD with itself; rounding of the transform is charged to δ."""
    truncated = _TAIL + steps * NUMERICAL_DELTA_PER_STEP
    return pld if steps == 1 else pld.self_compose(steps, truncated)


def pure_pld(epsilon: float, count: int, gap: float = DISCRETIZATION) -> Any:
    """Builds the PLD of `count` adaptive pure ε-DP releases: exact, then put on the grid.

    **Privacy** Every pure ε-DP pair is a post-processing of randomized response, whose loss is ε
    with probability p = e^ε / (1 + e^ε), else −ε. So the loss is ε (2 Binomial(count, p) − count).

    **Source** Kairouz, Oh, Viswanath 2015 (optimal homogeneous composition).
    """
    from scipy.stats import binom

    successes = np.arange(count + 1)
    masses = binom.pmf(successes, count, 1.0 / (1.0 + math.exp(-epsilon)))
    return atoms_to_pld(epsilon * (2.0 * successes - count), masses, gap)


def atoms_to_pld(losses: np.ndarray, masses: np.ndarray, gap: float) -> Any:
    """Puts the atoms of a symmetric PLD on the grid, pessimistically.

    Args:
        losses: (A,) privacy losses, ascending.
        masses: (A,) probability of each.
        gap: Spacing of privacy losses.
    """
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

    kept = np.flatnonzero((np.cumsum(masses) > _TAIL) & (np.cumsum(masses[::-1])[::-1] > _TAIL))
    first, last = kept[0], kept[-1]
    beyond = max(0.0, 1.0 - float(masses[first : last + 1].sum()))  # both tails count as infinite
    losses, masses = losses[first : last + 1], masses[first : last + 1]
    left = np.floor(losses / gap)
    share = np.expm1(left * gap - losses) / math.expm1(-gap)
    share = np.clip(share, 0.0, 1.0)
    start = int(left[0])
    bins = (left - start).astype(np.int64)
    grid = np.bincount(bins, masses * (1.0 - share), bins[-1] + 2)
    grid += np.bincount(bins + 1, masses * share, bins[-1] + 2)
    pmf = pld_pmf.DensePLDPmf(gap, start, grid, beyond + _TAIL, True)
    return privacy_loss_distribution.PrivacyLossDistribution(pmf)


def profile_to_pld(profile: PrivacyProfile, gap: float = DISCRETIZATION) -> Any:
    """Turns a privacy profile into a dp_accounting PLD that dominates it (connect the dots).

    **Privacy** Valid for any interleaving of the block with other mechanisms: an interactive
    mechanism is a post-processing of the pair that attains its profile (Vadhan-Zhang 2023).
    """
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution

    end = (len(profile.deltas) - 1) * profile.step
    last = max(1, math.floor(end / gap))
    epsilons = np.arange(last + 1) * gap
    right = profile.delta(epsilons)
    shrink = np.exp(-epsilons[:0:-1])
    left = 1.0 - shrink + shrink * right[:0:-1]  # symmetry: δ(−ε) = 1 − e^(−ε) + e^(−ε) δ(ε)
    deltas = np.clip(np.minimum.accumulate(np.concatenate([left, right])), 0.0, 1.0)
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(gap, -last, last, deltas)
    return privacy_loss_distribution.PrivacyLossDistribution(pmf)


def token_profile(event: BoundedRangeEvent, delta: float) -> PrivacyProfile:
    """Composes token draws optimally, or by zCDP where the recursion would take minutes."""
    if recursion_is_affordable(event.eta, event.count, delta):
        return bounded_range_profile(event.eta, event.count, delta)
    rho = float_up(event.rho)
    step = horizon(rho, delta * 1e-4) / 4000
    return PrivacyProfile(step, np.array([zcdp_delta(rho, i * step) for i in range(4001)]))


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
        self.low, self.high = -REACH * self.sigma, self.shifts[-1] + REACH * self.sigma

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
