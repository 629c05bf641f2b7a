"""Cost of a plan fixed beforehand: ε of its DP lines, posterior of a secret under all its lines.

A sum of privacy loss distributions is no filter, so whole copies of the plan are charged: as many
as hold every charge so far (docs/privacy.md). The same goes for dominating pairs of secrets.
"""

import json
from collections import Counter
from functools import lru_cache

from dpsynth_assets.privacy import accounting
from dpsynth_assets.privacy.events import Event, MixtureGaussianEvent, event_from_json, flatten
from dpsynth_assets.privacy.ledger.terms import TIGHT, SecretTerms, canonical_json

Charges = Counter[tuple[str, str]]
"""Number of charges of each (asset, canonical event)."""


def is_secret(event: Event, *, entirely: bool = False) -> bool:
    """Says whether some part (or every part) bounds neighbours of a secret only."""
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
