"""Weights of charges under the adaptive filter: exact ρ, and sampled events kept as they are.

ρ adds, and its conversion to ε may use the best order each time it is read, since zCDP bounds the
Rényi divergence at all orders at once. A sampled Gaussian (DP-SGD) has no such line: its divergence
is small at low orders and explodes at high ones. The best order may be picked afterwards only to
read what a finished, fixed set of releases cost. A filter admits releases that follow from earlier
outputs, which is sound at an order chosen beforehand (Feldman and Zrnic 2021, Theorem 3.1): picked
afterwards, it would depend on the outputs. So sampled events and ρ meet at the one order that the
budget fixes.
"""

import json
import math
from collections import Counter
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache

from dpsynth_assets.privacy import accounting
from dpsynth_assets.privacy.events import (
    Event,
    GaussianEvent,
    PoissonGaussianEvent,
    event_from_json,
    event_to_json,
    flatten,
    is_post_processing,
)
from dpsynth_assets.privacy.ledger.terms import ZCDP, canonical_json
from dpsynth_assets.privacy.renyi import float_up, is_zcdp, zcdp_epsilon

RHO_GRID_BITS = 2200
"""ρ is summed in whole units of 2⁻²²⁰⁰, each charge rounded up.

A plain `Fraction` sum is exact but its denominator grows with every distinct noise multiplier
(a product of squares), so that a long ledger becomes unusable. The smallest ρ of any event with
float parameters exceeds 2⁻²¹⁶⁰, so no charge is lost and none loses more than rounding up.
"""


@dataclass(frozen=True)
class Parts:
    """One event, taken apart.

    Attributes:
        units: ρ of its zCDP parts in grid units, rounded up.
        sampled: Canonical JSON of its parts whose divergence sampling lowers.
    """

    units: int
    sampled: tuple[str, ...]


@dataclass
class FilterSum:
    """Everything charged to one cohort, in the terms in which the adaptive filter adds.

    Attributes:
        units: Sum of ρ of zCDP events, in grid units.
        sampled: How often each sampled event was charged, by canonical JSON.
    """

    units: int = 0
    sampled: Counter[str] = field(default_factory=Counter)

    def add(self, event_json: str, times: int = 1) -> None:
        """Charges one event, or the same event several times."""
        parts = parts_of(event_json)
        self.units += times * parts.units
        for sampled in parts.sampled:
            self.sampled[sampled] += times

    def plus(self, event_json: str | None) -> "FilterSum":
        """The sum after one more charge; this one stays as it is."""
        total = FilterSum(self.units, self.sampled.copy())
        if event_json is not None:
            total.add(event_json)
        return total

    def epsilon(self, delta: float) -> float:
        """ε at `delta` of everything charged, by the best order, rounded up.

        **Privacy** A reading, never compared with a budget: where later releases followed from
        earlier ones, what is guaranteed is the budget that the filter kept (docs/privacy.md).
        """
        if not self.sampled:
            return zcdp_epsilon_of_units(self.units, delta)
        events = self._events()
        return math.inf if events is None else accounting.epsilon_of(events, delta, ZCDP)

    def filter_epsilon(self, delta: float, budget_epsilon: float) -> float:
        """ε at `delta` that the filter of this budget compares with it, rounded up.

        With zCDP charges only this is `epsilon`: the order is fixed where ρ of the whole budget
        is read best, and a smaller ρ fits at that order exactly when it fits at its own.

        **Privacy** Valid for releases chosen after seeing earlier ones, for a budget that was not:
        whoever raises ε because of what was released chooses the order, too.

        **Source** Feldman and Zrnic 2021, Theorem 3.1; Whitehouse et al. 2023 for all of zCDP.
        """
        if not self.sampled:
            return zcdp_epsilon_of_units(self.units, delta)
        events = self._events()
        if events is None:
            return math.inf
        return accounting.filter_epsilon(events, delta, budget_epsilon)

    def _events(self) -> list[Event] | None:
        """The sum as few events: all of ρ as one Gaussian; None where ρ exceeds every float."""
        events = [
            _repeated(event_json, count) for event_json, count in sorted(self.sampled.items())
        ]
        rho = float_up(Fraction(self.units, 1 << RHO_GRID_BITS))
        if math.isinf(rho):
            return None
        return [*events, _gaussian_of(rho)] if rho else events


def rho_units(event: Event) -> int:
    """ρ of `event` in grid units, rounded up: a positive charge is never zero."""
    rho = event.rho
    return -((-rho.numerator << RHO_GRID_BITS) // rho.denominator)


# Most entries repeat an earlier event, so parsing is paid once for each text.
@lru_cache(maxsize=4096)
def parts_of(event_json: str) -> Parts:
    """Takes one event apart into ρ and sampled events."""
    atoms = flatten(event_from_json(json.loads(event_json)))
    sampled = [atom for atom in atoms if not is_zcdp(atom)]
    units = sum(rho_units(atom) for atom in atoms if is_zcdp(atom))
    return Parts(units, tuple(canonical_json(event_to_json(atom)) for atom in sampled))


@lru_cache(maxsize=4096)
def is_free(event_json: str) -> bool:
    """Says whether an event is post-processing, which is recorded and charges nothing."""
    return is_post_processing(event_from_json(json.loads(event_json)))


@lru_cache(maxsize=4096)
def epsilon_alone(event_json: str, delta: float, accountant: str) -> float:
    """ε at `delta` of one release on its own, rounded up."""
    event = event_from_json(json.loads(event_json))
    return accounting.epsilon_of_fixed([event], delta, accountant)


@lru_cache(maxsize=1024)
def zcdp_epsilon_of_units(units: int, delta: float) -> float:
    """ε at `delta` of a sum of charges, rounded up; no charge at all costs exactly nothing."""
    if units == 0:
        return 0.0
    rho = float_up(Fraction(units, 1 << RHO_GRID_BITS))
    return math.inf if math.isinf(rho) else zcdp_epsilon(rho, delta)


def _repeated(event_json: str, count: int) -> Event:
    event = event_from_json(json.loads(event_json))
    if not isinstance(event, PoissonGaussianEvent):
        raise TypeError(f"Expected a sampled event, got {type(event).__name__}.")
    return replace(event, steps=event.steps * count)


def _gaussian_of(rho: float) -> GaussianEvent:
    """A Gaussian event whose ρ is at least `rho`, and hardly more."""
    noise_multiplier = 1.0 / math.sqrt(2.0 * rho)
    while (event := GaussianEvent(noise_multiplier=noise_multiplier)).rho < Fraction(rho):
        noise_multiplier = math.nextafter(noise_multiplier, 0.0)
    return event
