"""(p, r)-secret protection: from dominating pairs to a bound on reconstruction.

An attacker who would guess a secret with probability at most p (the prior) succeeds with
probability at most r = B(p) after the release, where B(p) = sup {P(E) : Q(E) <= p} is the blow-up
function; P is the mechanism on the data with the secret, Q without it. Only this direction is
needed: with candidates k of prior π_k <= p and disjoint guesses E_k, Σ π_k P_k(E_k) <=
Σ π_k B(Q(E_k)) <= B(Σ π_k Q(E_k)) <= B(p), as B is concave and increasing (Hayes et al. 2023,
Theorem 2). By duality B(p) = inf_ε δ_{P|Q}(ε) + e^ε p, so any ε gives an upper bound.

(p, r) points do not compose: two tenths of a secret may each be safe and together reveal it, so
Theorem 3 of the paper is false (errata B-004.3). Dominating pairs compose; B is read off last.
The bound holds at one p: a mechanism may publish the secret verbatim with probability r − p.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from dpsynth_assets.privacy.accounting import composed_pld
from dpsynth_assets.privacy.errors import check_at_least, check_probability
from dpsynth_assets.privacy.events import (
    BoundedRangeEvent,
    DiscreteGaussianEvent,
    DiscreteLaplaceEvent,
    Event,
    GaussianEvent,
    MixtureGaussianEvent,
    PoissonGaussianEvent,
    PureEvent,
    flatten,
)
from dpsynth_assets.privacy.gaussian_dp import compose_mu, dominating_mu
from dpsynth_assets.privacy.pld import DISCRETIZATION

# The blow-up function B(p) = sup {P(E) : Q(E) <= p} of Gaussian mixtures and of compositions.
#
# A mixture event is the pair P = Σ_k P(k) N(shift_k, σ²), Q = N(0, σ²), repeated. Its privacy loss
# grows with the noisy sum x, so the best events are {x > t}: one round has a closed form, and
# δ_{P|Q}(ε) = P(x > t) − e^ε Q(x > t) is exact at ε = loss(t). Compositions convolve losses on a
# grid; every rounding goes up. B is read as inf_ε δ_{P|Q}(ε) + e^ε p.


ROUND_UP = 1.0 + 1e-11
"""Covers the float64 error of closed forms."""

CONVOLUTION_ERROR = 1e-12
"""Added to every B(p) read off a convolution: the float64 error of its Fourier transforms."""

LOSS_REACH = 45.0
"""Losses above ln(1/p) + 45 count as infinite and below −45 as −45; moves B(p) by < T e^−45."""

NOISE_REACH = 9.5
"""Standard deviations of noise looked at: P(N(0, 1) > 9.5) < 1.1e-21."""

GRID_POINTS = 20_000
"""Points of the noise axis, and at least of the loss axis, of one mixture."""

LARGEST_STEP = 1e-3
"""Largest spacing of privacy losses where mixtures are composed among themselves."""

TAIL = 1e-18
"""Probability of rare large counts that is moved to the largest of all."""

_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


def without_tail(distribution: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lists the counts of positive probability and their probabilities, the far tail moved up.

    Args:
        distribution: (m + 1,) probabilities of 0, …, m.

    Returns:
        Ascending counts, and probabilities of a distribution that is stochastically larger than
        `distribution`.
    """
    exceeded = np.cumsum(distribution[::-1])[::-1]
    likely = int(np.count_nonzero(exceeded > TAIL))
    chances = np.array(distribution, dtype=np.float64)
    chances[likely:] = 0.0
    if likely < len(distribution):
        chances[-1] = exceeded[likely]
    kept = np.flatnonzero(chances)
    return kept, np.minimum(chances[kept], 1.0)


def mixture_terms(event: MixtureGaussianEvent) -> tuple[np.ndarray, np.ndarray]:
    """Lists shifts / σ of positive probability; what is missing of 1 goes to the largest."""
    chances = np.array(event.probabilities)
    missing = 1.0 - math.fsum(event.probabilities)
    chances[-1] += missing if missing > 1e-14 else 0.0
    kept = chances > 0
    return np.array(event.shifts)[kept] / event.noise_std, chances[kept]


def mixture_blow_up(event: MixtureGaussianEvent, prior: float) -> float:
    """Computes B(p) of one round in closed form, rounded up: cut where Q(x > t) = p."""
    from scipy.special import ndtr, ndtri

    moves, chances = mixture_terms(event)
    tails = ndtr(ndtri(prior) + moves)
    return min(1.0, math.fsum(chances * tails) * ROUND_UP)


def composed_blow_up(events: Sequence[Event], prior: float) -> float:
    """Bounds B(p) of a composition of atomic events, one at least with a loss, rounded up.

    Mixtures enter with P as the secret's presence. DP events hold in both directions; where
    their two distributions differ the larger δ is taken.
    """
    pair = _composed_pair(events, prior)

    def bound(epsilon: float) -> float:
        return float(pair.get_delta_for_epsilon(epsilon)) + math.exp(epsilon) * prior

    # Convex in e^ε, hence golden section; every value is a bound.
    low, high = -LOSS_REACH, math.log(1.0 / prior)
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = bound(left), bound(right)
    while high - low > 1e-4:
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = bound(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = bound(right)
    return min(1.0, min(at_left, at_right) * ROUND_UP + CONVOLUTION_ERROR)


def _composed_pair(events: Sequence[Event], prior: float) -> Any:
    """Convolves privacy losses, all on one spacing: the DP events' own, or the finest needed."""
    from dp_accounting.pld import privacy_loss_distribution

    mixtures = [event for event in events if isinstance(event, MixtureGaussianEvent)]
    others = [event for event in events if not isinstance(event, MixtureGaussianEvent)]
    profiles = [_profile(event, prior) for event in mixtures]
    spans = (float(losses[-1] - losses[0]) for losses, _ in profiles)
    step = min([LARGEST_STEP, *(span / GRID_POINTS for span in spans if span > 0)])
    step = DISCRETIZATION if others else step
    pair = composed_pld(others, prior * 1e-3) if others else None
    for event, (losses, deltas) in zip(mixtures, profiles, strict=True):
        part = privacy_loss_distribution.PrivacyLossDistribution(_connect(losses, deltas, step))
        part = part.self_compose(event.steps) if event.steps > 1 else part
        pair = part if pair is None else pair.compose(part)
    return pair


def _profile(event: MixtureGaussianEvent, prior: float) -> tuple[np.ndarray, np.ndarray]:
    """Computes ascending losses of one round and δ_{P|Q}, exact at each of them."""
    from scipy.special import log_ndtr, logsumexp, ndtr

    moves, chances = mixture_terms(event)

    def loss(x: np.ndarray | float) -> np.ndarray:
        exponents = np.multiply.outer(np.asarray(x), moves) - moves**2 / 2.0
        return np.asarray(logsumexp(exponents, axis=-1, b=chances))

    rare = np.cumsum(chances[::-1])[::-1] <= TAIL
    ends = -NOISE_REACH, float(moves[~rare][-1]) + NOISE_REACH
    levels = -LOSS_REACH, math.log(1.0 / prior) + LOSS_REACH
    first, last = (_crossing(loss, level, *ends) for level in levels)
    axis = np.linspace(first, last, GRID_POINTS)
    losses = np.maximum.accumulate(loss(axis))
    deltas = ndtr(moves - axis[:, None]) @ chances - np.exp(losses + log_ndtr(-axis))
    # Never quite 1: the library takes the logarithm of what is left.
    return losses, np.clip(np.minimum.accumulate(deltas), 0.0, 1.0 - 1e-15)


def _crossing(loss: Callable[[float], np.ndarray], level: float, low: float, high: float) -> float:
    """Bisects for where an increasing loss crosses `level`; the nearer end where it does not."""
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (low, middle) if float(loss(middle)) > level else (middle, high)
    return high


def _connect(losses: np.ndarray, deltas: np.ndarray, step: float) -> Any:
    """Connects the dots of a profile on multiples of `step`.

    δ is convex in e^ε and 1 at e^ε = 0, so chords between the points of the profile bound it
    from above; after the last point its value there does.
    """
    from dp_accounting.pld import pld_pmf

    low, high = math.floor(losses[0] / step), math.ceil(losses[-1] / step)
    growth = np.exp(np.arange(low, high + 1) * step)
    chords = np.interp(growth, np.append(0.0, np.exp(losses)), np.append(1.0, deltas))
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
        step, low, high, np.minimum.accumulate(chords)
    )


Adjacency = Literal["reference", "pairwise"]


def gaussian_posterior(mu: float, prior: float) -> float:
    """Computes r = 1 − Φ(Φ⁻¹(1 − p) − μ), rounded up.

    Args:
        mu: μ >= 0 of a μ-GDP mechanism under the secret's own adjacency: a record-level μ times
            the number of records that hold the secret (errata B-004.8).
        prior: p in (0, 1).

    **Source** Wang et al. 2025 (SecPE), Lemma 3.3 [secpe Eq. 4], stated with T(α) = inf P(E),
    which is zero; the trade-off function is 1 − B.
    """
    from scipy.special import ndtr, ndtri

    check_probability("prior", prior)
    if not mu >= 0:
        raise ValueError(f"Expected mu >= 0, got {mu}.")
    return min(1.0, float(ndtr(mu + ndtri(prior))) * ROUND_UP)


def gaussian_budget(prior: float, posterior: float) -> float:
    """Computes the largest μ with `gaussian_posterior(mu, prior) <= posterior`, rounded down.

    Raises:
        ValueError: Unless 0 < prior < posterior < 1.
    """
    from scipy.special import ndtri

    check_bounds(prior, posterior)
    below = posterior / (ROUND_UP * (1.0 + 1e-12))
    return max(0.0, float(ndtri(below) - ndtri(prior)))


def posterior_of_dp(epsilon: float, delta: float, prior: float, *, adjacency: Adjacency) -> float:
    """Bounds r from (ε, δ)-DP between the secret's neighbours, rounded up.

    Args:
        epsilon: ε >= 0.
        delta: δ in [0, 1].
        prior: p in (0, 1).
        adjacency: `reference`: each candidate dataset neighbours one without the secret.
            `pairwise`: any two candidates are neighbours as well.

    **Privacy** Reference: the blow-up of a pair with δ(ε) = δ in both directions, P(E) <=
    e^ε Q(E) + δ and Q(not E) <= e^ε P(not E) + δ. Pairwise: guess k gives P_k(E_k)(1 − π_k) <=
    e^ε Σ_{l≠k} π_l P_l(E_k) + δ(1 − π_k); divide by 1 − π_k, weigh by π_k <= p and sum over k,
    where Σ_k Σ_{l≠k} π_l P_l(E_k) <= 1 − r.

    **Source** Replaces Lemma C.2 of SecPE [secpe C.2], which an ε-DP mechanism refutes: over 100
    candidates, Q uniform, P_k doubling tenfold on k, success 0.1 > 0.0917 (errata B-004.4).
    """
    check_probability("prior", prior)
    if not (epsilon >= 0 and 0 <= delta <= 1):
        raise ValueError(f"Expected epsilon >= 0 and 0 <= delta <= 1, got {epsilon} and {delta}.")
    shrink = math.exp(-epsilon)  # e^−ε: e^ε overflows
    if adjacency == "reference":
        grown = prior + delta * shrink >= shrink  # e^ε p + δ >= 1
        first = 1.0 if grown else prior / shrink + delta
        return min(1.0, first * ROUND_UP, 1.0 - shrink * (1.0 - delta - prior) / ROUND_UP)
    if adjacency == "pairwise":
        ratio = (prior + (1.0 - prior) * delta * shrink) / ((1.0 - prior) * shrink + prior)
        return min(1.0, ratio * ROUND_UP)
    raise ValueError(f"Expected adjacency 'reference' or 'pairwise', got {adjacency!r}.")


def posterior_of_events(events: Sequence[Event], prior: float, *, occurrences: int = 1) -> float:
    """Bounds r = B(p) of everything released, rounded up; p itself for no events.

    Args:
        events: What was released on one cohort: secret-protected releases as
            `MixtureGaussianEvent`, and releases under DP as their own events.
        prior: p in (0, 1).
        occurrences: m, privacy units (records where the unit is a record) that hold the secret.

    Raises:
        ValueError: If a setting is outside its domain.

    **Privacy** Datasets with and without the secret are m steps of the cohort's neighbouring
    relation apart, so a DP release enters after group privacy (`secret_event`); a mixture
    already counts the secret's records. Each event is a pair (P with, Q without); their product
    dominates any adaptive composition whose events were fixed beforehand (Zhu, Dong, Wang 2022,
    Theorem 10). Mixtures are one-sided and enter as δ_{P|Q}; DP pairs hold in both directions,
    and the larger δ of the two is used. Gaussians alone, and a single mixture of one round,
    have closed forms. Counts with integer Gaussian noise enter as the Gaussian that dominates them.

    **Source** Replaces Theorem 3 of SecPE [secpe Thm. 3] (errata B-004.3).
    """
    check_probability("prior", prior)
    check_at_least(1, occurrences=occurrences)
    atoms = [atom for event in events for atom in flatten(event) if not _is_nothing(atom)]
    pairs = [secret_event(atom, occurrences) for atom in atoms]
    if _tells_all(pairs, prior):
        return 1.0
    mu = compose_mu(shift for pair in pairs if (shift := _certain_shift(pair)) is not None)
    rest = [pair for pair in pairs if _certain_shift(pair) is None]
    if not rest:
        return gaussian_posterior(mu, prior)
    only = rest[0]
    if len(rest) == 1 and mu == 0 and isinstance(only, MixtureGaussianEvent) and only.steps == 1:
        return mixture_blow_up(only, prior)
    if mu > 0:
        rest.append(GaussianEvent(noise_multiplier=1.0 / (mu * ROUND_UP)))
    return composed_blow_up(rest, prior)


def secret_event(event: Event, occurrences: int) -> Event:
    """Writes an atomic event of one unit as the pair of a secret held by `occurrences` units.

    **Privacy** Distances and log-ratios of m neighbours add up: μ, Laplace sensitivity, η and ε
    grow m-fold. Under Poisson sampling of records that come or go, the number sampled is
    Binomial(m, q) and its shifts at most that (`shift_event` has the proof).
    """
    match event:
        case GaussianEvent():
            multiplier = event.noise_multiplier / (occurrences * ROUND_UP)
            return GaussianEvent(noise_multiplier=multiplier)
        case DiscreteGaussianEvent():
            return replace(event, shift=event.shift * occurrences)
        case DiscreteLaplaceEvent():
            return replace(event, sensitivity=event.sensitivity * occurrences)
        case BoundedRangeEvent():
            return replace(event, eta=event.eta * occurrences)
        case PureEvent():
            return replace(event, epsilon=event.epsilon * occurrences)
        case PoissonGaussianEvent():
            several = replace(event, max_records_per_unit=occurrences * event.max_records_per_unit)
            return several if several.replaced else _sampled_mixture(several)
        case MixtureGaussianEvent():
            return event
    raise TypeError(f"Expected an event whose group privacy is known, got {type(event).__name__}.")


def poisson_binomial(probabilities: Sequence[float] | np.ndarray) -> np.ndarray:
    """Computes the distribution of the number of heads of independent coins.

    Args:
        probabilities: (m,) of heads.

    Returns:
        (m + 1,) probabilities of 0, …, m heads. Every term is a sum of products of positive
        numbers: relative error at most about m · 2^-51.

    Raises:
        ValueError: If a probability is outside [0, 1].
    """
    chances = np.asarray(probabilities, dtype=np.float64).reshape(-1)
    if not ((chances >= 0) & (chances <= 1)).all():
        raise ValueError("Expected probabilities in [0, 1], got one outside.")
    distribution = np.zeros(chances.size + 1)
    distribution[0] = 1.0
    for count, chance in enumerate(chances, start=1):
        distribution[1 : count + 1] = (
            distribution[1 : count + 1] * (1.0 - chance) + distribution[:count] * chance
        )
        distribution[0] *= 1.0 - chance
    return distribution


def check_bounds(prior: float, posterior: float) -> None:
    """Refuses a prior and posterior other than 0 < p < r < 1."""
    if not 0 < prior < posterior < 1:
        raise ValueError(f"Expected 0 < prior < posterior < 1, got {prior} and {posterior}.")


def _sampled_mixture(event: PoissonGaussianEvent) -> MixtureGaussianEvent:
    chances = np.full(event.max_records_per_unit, event.sampling_probability)
    counts, distribution = without_tail(poisson_binomial(chances))
    return MixtureGaussianEvent(
        noise_std=event.noise_multiplier,
        shifts=tuple(counts),
        probabilities=tuple(distribution),
        steps=event.steps,
    )


def _tells_all(pairs: Sequence[Event], prior: float) -> bool:
    """Says whether Gaussian releases of the pairs' ρ would name a secret but for 1e-9.

    1 is always a bound; a composition so far out would take long to convolve.
    """
    from scipy.special import ndtri

    known = (
        BoundedRangeEvent,
        DiscreteGaussianEvent,
        DiscreteLaplaceEvent,
        GaussianEvent,
        PureEvent,
    )
    rho = sum(float(pair.rho) for pair in pairs if isinstance(pair, known))
    return bool(math.sqrt(2.0 * rho) + ndtri(prior) > ndtri(1.0 - 1e-9))


def _is_nothing(event: Event) -> bool:
    return getattr(event, "count", 1) == 0 or getattr(event, "steps", 1) == 0


def _certain_shift(event: Event) -> float | None:
    """μ of an event that is a Gaussian pair, or dominated by one; None for any other."""
    if isinstance(event, GaussianEvent):
        return 1.0 / event.noise_multiplier
    if isinstance(event, DiscreteGaussianEvent):
        return dominating_mu(event)
    if isinstance(event, MixtureGaussianEvent):
        moves, _ = mixture_terms(event)
        return float(moves[0]) * math.sqrt(event.steps) if len(moves) == 1 else None
    return None
