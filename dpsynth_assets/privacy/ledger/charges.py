"""Cost of charges: under the adaptive filter, and of a plan that was fixed beforehand.

The filter adds exact ρ, and keeps sampled events as they are.

ρ adds, and its conversion to ε may use the best order each time it is read, since zCDP bounds the
Rényi divergence at all orders at once. A sampled Gaussian (DP-SGD) has no such line: its divergence
is small at low orders and explodes at high ones. The best order may be picked afterwards only to
read what a finished, fixed set of releases cost. A filter admits releases that follow from earlier
outputs, which is sound at an order chosen beforehand (Feldman and Zrnic 2021, Theorem 3.1): picked
afterwards, it would depend on the outputs. So sampled events and ρ meet at the one order that the
budget fixes.

A sum of privacy loss distributions is no filter, so of a plan that was fixed beforehand whole
copies are charged: as many as hold every charge so far (docs/privacy.md). The same goes for
dominating pairs of secrets.
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
    MixtureGaussianEvent,
    PoissonGaussianEvent,
    event_from_json,
    event_to_json,
    flatten,
    is_post_processing,
)
from dpsynth_assets.privacy.ledger.schema import TIGHT, ZCDP, SecretTerms, canonical_json
from dpsynth_assets.privacy.renyi import float_up, is_zcdp, zcdp_epsilon

RHO_GRID_BITS = 2200
"""ρ is summed in whole units of 2⁻²²⁰⁰, each charge rounded up.

A plain `Fraction` sum is exact but its denominator grows with every distinct noise multiplier
(a product of squares), so that a long ledger becomes unusable. The smallest ρ of any event with
float parameters exceeds 2⁻²¹⁶⁰, so no charge is lost and none loses more than rounding up.
"""


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
        units, every = parts_of(event_json)
        self.units += times * units
        for sampled in every:
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
        a person who raises ε because of what was released chooses the order, too.

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
def parts_of(event_json: str) -> tuple[int, tuple[str, ...]]:
    """Takes one event apart into ρ and sampled events."""
    atoms = flatten(event_from_json(json.loads(event_json)))
    sampled = [atom for atom in atoms if not is_zcdp(atom)]
    units = sum(rho_units(atom) for atom in atoms if is_zcdp(atom))
    return units, tuple(canonical_json(event_to_json(atom)) for atom in sampled)


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


Charges = Counter[tuple[str, str]]
"""Number of charges of each (asset, canonical event)."""


def is_secret(event: Event, *, entirely: bool = False) -> bool:
    """Says whether some event (or every event) bounds neighbours of a secret only."""
    parts = [isinstance(atom, MixtureGaussianEvent) for atom in flatten(event)]
    return all(parts) if entirely else any(parts)


@lru_cache(maxsize=256)
def plan_copies(plan_json: str) -> Charges:
    """Counts how often a plan holds each (asset, canonical event)."""
    return Counter((asset, canonical_json(event)) for asset, event in json.loads(plan_json))


def plan_rounds(charges: Charges, plan_json: str) -> int:
    """The smallest number of copies of the plan that holds every charge."""
    copies = plan_copies(plan_json)
    return max((-(-count // copies[line]) for line, count in charges.items()), default=0)


@lru_cache(maxsize=256)
def plan_epsilon(plan_json: str, rounds: int, delta: float) -> float:
    """ε at `delta` of the DP lines of `rounds` full copies of a plan, rounded up.

    **Privacy** Lines under secret protection are no part of it: their ε is infinite, so a cohort
    that released one has no DP total at all, and is shown so.
    """
    events = plan_dp_events(plan_json)
    if not events or rounds == 0:
        return 0.0
    return accounting.epsilon_of(events * rounds, delta, TIGHT)


MOST_FURTHER = 1_000
"""Further copies of a plan that are looked for: each look composes all of them."""


@lru_cache(maxsize=256)
def admitted_rounds(plan_json: str, rounds: int, delta: float, budget: float) -> int | None:
    """The most copies of a plan that a budget admits; `rounds` where it admits no further one.

    Returns:
        Their number; None where more than `MOST_FURTHER` may follow.
    """
    if not plan_dp_events(plan_json):
        return rounds

    def fits(copies: int) -> bool:
        return plan_epsilon(plan_json, copies, delta) <= budget

    fitting, step = rounds, 1
    while fits(fitting + step):
        fitting, step = fitting + step, 2 * step
        if fitting - rounds > MOST_FURTHER:
            return None
    while step > 1:
        step //= 2
        if fits(fitting + step):
            fitting += step
    return fitting


def plan_dp_events(plan_json: str) -> tuple[Event, ...]:
    """Events of one copy of a plan that have an ε: all but those that bound a secret only."""
    return tuple(event for event in _plan_events(plan_json) if not is_secret(event))


def plan_posterior(plan_json: str, rounds: int, secret: SecretTerms) -> float:
    """Largest probability of guessing a secret of the first kind after `rounds` full copies."""
    return plan_posteriors(plan_json, rounds, secret)[0]


@lru_cache(maxsize=256)
def plan_posteriors(plan_json: str, rounds: int, secret: SecretTerms) -> tuple[float, ...]:
    """For each promised (p, r), the largest probability of guessing a secret whose prior is p.

    After `rounds` full copies of the plan, rounded up.

    **Privacy** (p, r) points do not compose: two releases may tell more together than the sum of
    their gains (errata B-004.3). Dominating pairs do, so the events of all lines are composed
    first and the prior is applied once; DP lines enter for all records that hold the secret.
    """
    from dpsynth_assets.privacy.secret_protection import posterior_of_events

    events = list(_plan_events(plan_json)) * rounds
    return tuple(
        posterior_of_events(events, prior, occurrences=secret.occurrences) if events else prior
        for prior, _ in secret.bounds
    )


@lru_cache(maxsize=256)
def _plan_events(plan_json: str) -> tuple[Event, ...]:
    lines = json.loads(plan_json)
    return tuple(event_from_json(event) for _, event in lines if event is not None)
