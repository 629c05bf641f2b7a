"""Tests of a privacy claim from samples: what a counterexample must look like to be believed.

A claim is a curve: the largest true-positive rate any test may reach at a false-positive rate.
An audit draws scores with and without one record and refutes the claim where it proves a rate
above the curve. Each test here refutes a true claim with probability at most its `false_alarm`
(default `FALSE_ALARM`), whatever the scores are, as long as they are independent. A claim that is
not refuted is not proven.
Shape letters: N scores of each side, M false-positive rates, E values of ε.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from dpsynth_assets.attacks.audits.audit import FALSE_ALARM, Finding
from dpsynth_assets.privacy.events import Event

THRESHOLDS = 99
"""Candidate thresholds, quantiles of the first half of the scores."""

EPSILONS = np.concatenate([np.linspace(0.0, 4.0, 81), np.linspace(4.25, 20.0, 64)])
"""Where a claim is read off its privacy profile; fewer points would only make it looser."""

Curve = Callable[[np.ndarray], np.ndarray]
"""(M,) false-positive rates in [0, 1] to (M,) largest true-positive rates; non-decreasing."""


def lower_rate(hits: np.ndarray, trials: int, false_alarm: float) -> np.ndarray:
    """Bounds a probability from below (Clopper-Pearson), wrong with at most `false_alarm`."""
    from scipy import stats

    hits = np.asarray(hits)
    bound = stats.beta.ppf(false_alarm, np.maximum(hits, 1), trials - hits + 1)
    return np.where(hits > 0, bound, 0.0)


def upper_rate(hits: np.ndarray, trials: int, false_alarm: float) -> np.ndarray:
    """Bounds a probability from above (Clopper-Pearson), wrong with at most `false_alarm`."""
    return 1.0 - lower_rate(trials - np.asarray(hits), trials, false_alarm)


def audit_scores(
    with_record: np.ndarray,
    without_record: np.ndarray,
    curve: Curve,
    false_alarm: float = FALSE_ALARM,
) -> Finding:
    """Tests a claim on scores that tend to be higher where the record took part.

    Args:
        with_record: (N,) independent scores of runs with the record.
        without_record: (N',) independent scores of runs without it.
        curve: The claim.
        false_alarm: β in (0, 1).

    Returns:
        The true-positive rate that is proven, against what the claim allows; it passes with
        probability at least 1 − β if the claim holds.

    Raises:
        ValueError: A side has fewer than four scores or a score is NaN.

    **Privacy** The threshold is chosen on the first half of each side, the rates are bounded on
    the second, β/2 each. Where both bounds hold, a true claim implies TPR_low <= TPR <=
    curve(FPR) <= curve(FPR_high), as the curve does not decrease.
    """
    halves = [_halves(scores) for scores in (with_record, without_record)]
    pooled = np.concatenate([first for first, _ in halves])
    thresholds = np.unique(np.quantile(pooled, np.linspace(0.005, 0.995, THRESHOLDS)))
    rates = [_rates(first, thresholds, false_alarm) for first, _ in halves]
    best = thresholds[np.argmax(_probit(rates[0][0]) - _probit(curve(rates[1][1])))]
    low = _rates(halves[0][1], np.array([best]), false_alarm)[0]
    high = _rates(halves[1][1], np.array([best]), false_alarm)[1]
    return _finding(low, high, curve)


def told_apart(present: np.ndarray, absent: np.ndarray, claimed: Event) -> Finding:
    """Tests an event on scores with a record and without it (`audit_scores`)."""
    return audit_scores(present, absent, event_curve([claimed]))


def audit_event_counts(
    hits: int, alarms: int, trials: int, curve: Curve, false_alarm: float = FALSE_ALARM
) -> Finding:
    """Tests a claim on one outcome that was named before any run: its count on either side.

    Args:
        hits: Runs with the record that ended in the outcome.
        alarms: Runs without it that did.
        trials: Independent runs a side.
        curve: The claim.
        false_alarm: β in (0, 1).
    """
    low = lower_rate(np.array([hits]), trials, false_alarm / 2)
    high = upper_rate(np.array([alarms]), trials, false_alarm / 2)
    return _finding(low, high, curve)


def _finding(low: np.ndarray, high: np.ndarray, curve: Curve) -> Finding:
    """What a proven (1,) true-positive rate says of a claim at (1,) bounded false-positive rate."""
    return Finding(
        claimed=float(curve(high)[0]),
        observed=float(low[0]),
        note=f"at a false-positive rate of at most {float(high[0]):.3f}",
    )


def pure_curve(epsilon: float) -> Curve:
    """The trade-off of pure ε-DP."""
    return profile_curve(np.array([epsilon]), np.zeros(1))


def profile_curve(epsilons: np.ndarray, deltas: np.ndarray) -> Curve:
    """The trade-off of (ε, δ(ε))-DP at every given ε together.

    Args:
        epsilons: (E,) values >= 0.
        deltas: (E,) bounds on δ that hold for both orders of the neighbours.

    Returns:
        Each pair bounds the rate by e^ε·rate + δ, and by 1 − e^(−ε)·(1 − δ − rate), which is the
        same inequality for the opposite outcome and the opposite order.
    """
    grown, kept = np.exp(epsilons), np.exp(-np.asarray(epsilons))

    def curve(rates: np.ndarray) -> np.ndarray:
        rates = np.asarray(rates, dtype=np.float64)[..., None]
        above = (grown * rates + deltas).min(axis=-1)
        below = (1.0 - kept * (1.0 - deltas - rates)).min(axis=-1)
        return np.clip(np.minimum(above, below), 0.0, 1.0)

    return curve


def event_curve(events: Sequence[Event]) -> Curve:
    """The trade-off that our own accountant claims for stored events: what the ledger relies on."""
    return profile_curve(EPSILONS, _claimed_deltas(tuple(events)))


@lru_cache(maxsize=64)
def _claimed_deltas(events: tuple[Event, ...]) -> np.ndarray:
    from dpsynth_assets.privacy.accounting import privacy_profile

    deltas = privacy_profile(events, EPSILONS.tolist(), "tight")
    return np.asarray(deltas, dtype=np.float64)


def _halves(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scores = np.asarray(scores, dtype=np.float64).reshape(-1)
    if len(scores) < 4 or np.isnan(scores).any():
        raise ValueError(f"Expected at least 4 scores and no NaN, got {len(scores)} scores.")
    middle = len(scores) // 2
    return scores[:middle], scores[middle:]


def _probit(rates: np.ndarray) -> np.ndarray:
    """Stretches rates so that a gap near 0 or 1 weighs as much as one in the middle."""
    from scipy import stats

    return stats.norm.ppf(np.clip(rates, 1e-9, 1 - 1e-9))


def _rates(
    scores: np.ndarray, thresholds: np.ndarray, false_alarm: float
) -> tuple[np.ndarray, np.ndarray]:
    """Bounds P(score >= threshold) from below and from above, each wrong with β/2 at most."""
    hits = len(scores) - np.searchsorted(np.sort(scores), thresholds, side="left")
    level = false_alarm / 2
    return lower_rate(hits, len(scores), level), upper_rate(hits, len(scores), level)
