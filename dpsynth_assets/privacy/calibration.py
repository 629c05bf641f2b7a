"""The other direction: how many private tokens, or how much noise, a target ε allows."""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from dpsynth_assets.privacy.accounting import (
    composed_pld,
    epsilon_of,
    pld_epsilon,
    profile_to_pld,
    zcdp_rho,
)
from dpsynth_assets.privacy.bounded_range import (
    PrivacyProfile,
    adaptive_profiles,
    horizon,
    recursion_is_affordable,
)
from dpsynth_assets.privacy.events import BoundedRangeEvent, Event

TIGHT_GAIN = 1.6
"""Sizes the grid: optimal composition allows less than this many times the tokens of zCDP."""

_NOTHING = PrivacyProfile(1.0, np.zeros(2))


def largest_token_count(
    *,
    eta: float,
    target_epsilon: float,
    delta: float,
    accountant: str,
    other_events: Sequence[Event] = (),
) -> int:
    """Finds the largest r with ε of r token draws and `other_events` at most `target_epsilon`.

    Args:
        eta: η > 0 of one token draw (`bounded_range_eta`).
        target_epsilon: ε > 0 for everything together.
        delta: Public δ in (0, 1).
        accountant: `zcdp` or `tight`.
        other_events: What else is released on the same cohort.

    Returns:
        r >= 0; 0 when not even one token fits.
    """
    if not (target_epsilon > 0 and math.isfinite(target_epsilon)):
        raise ValueError(f"Expected 0 < target_epsilon < inf, got {target_epsilon}.")
    if epsilon_of(other_events, delta, accountant) > target_epsilon:
        return 0
    if accountant == "tight" and recursion_is_affordable(
        eta, math.ceil(_zcdp_tokens(eta, target_epsilon, delta)), delta
    ):
        return _tight_tokens(eta, target_epsilon, delta, tuple(other_events))
    return _largest(
        lambda count: _epsilon_with(count, eta, delta, accountant, other_events) <= target_epsilon,
        math.ceil(_zcdp_tokens(eta, target_epsilon, delta)) + 2,
    )


@lru_cache(maxsize=256)
def _tight_tokens(
    eta: float, target_epsilon: float, delta: float, other_events: tuple[Event, ...]
) -> int:
    """Runs the adaptive recursion once: its j-th profile answers for j tokens."""
    others = composed_pld(other_events, delta)
    rho = TIGHT_GAIN * zcdp_rho(target_epsilon, delta)
    profiles: list[PrivacyProfile] = []
    for profile in adaptive_profiles(eta, horizon(rho, delta * 1e-4) + eta):
        if profile.epsilon(delta) > target_epsilon:
            break
        profiles.append(profile if others is not None else _NOTHING)
    ceiling = len(profiles) - 1
    if others is None:
        return ceiling
    return _largest(
        lambda count: _mixed_epsilon(others, profiles[count], delta) <= target_epsilon, ceiling
    )


def _mixed_epsilon(others: Any, profile: PrivacyProfile, delta: float) -> float:
    return pld_epsilon(others.compose(profile_to_pld(profile)), delta)


def _zcdp_tokens(eta: float, target_epsilon: float, delta: float) -> float:
    return 8.0 * zcdp_rho(target_epsilon, delta) / eta**2


def _epsilon_with(
    count: int, eta: float, delta: float, accountant: str, other_events: Sequence[Event]
) -> float:
    tokens = BoundedRangeEvent(eta=eta, count=count)
    return epsilon_of([*other_events, tokens], delta, accountant)


def _largest(fits: Callable[[int], bool], ceiling: int) -> int:
    """Bisects for the largest count in [0, ceiling] that fits; 0 is known to fit."""
    low, high = 0, ceiling + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
