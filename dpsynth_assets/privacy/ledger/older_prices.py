"""Entries of older versions, read at the price of what they released.

Before version 0.2.0 whole counts with integer Gaussian noise were charged as continuous noise,
whose tails are lighter: under accountant `tight`, ε was understated (4 % at σ = 1, 0.04 % at 10;
`integer_gaussian`). Entries are never altered. They are read as the integer noise they stand for:
the same σ, the same ρ, the privacy loss of whole counts. A cohort whose plan was fitted to its
budget at the old price may so be found to have spent a little more than it.

Which Gaussian events were counts follows from the name of the asset, as no version gave another
release such a name. σ follows from the multiplier and from the declared relation and unit, which
made it.
"""

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from dpsynth_assets.privacy.events import (
    ComposedEvent,
    DiscreteGaussianEvent,
    Event,
    GaussianEvent,
    event_from_json,
    event_to_json,
)
from dpsynth_assets.privacy.ledger.terms import BudgetTerms, canonical_json, digest

COUNTS = frozenset(
    {"cluster_histogram", "topic_histogram", "fixed_shots", "label_histogram", "population"}
)
"""Last parts of asset names: what releases whole counts, or votes of one each."""

FOLLOWS_FROM_PRICES = frozenset(
    {
        "noise",
        "noise_std",
        "label_noise_std",
        "shots_noise_std",
        "vector_noise_multiplier",
        "noise_multiplier",
        "scale",
        "tokens_per_batch",
    }
)
"""Parameters that a plan finds from its budget: another price finds others."""

_OLD_TYPE = '"gaussian"'


def restated_event(event_json: str, asset: str, terms_json: str) -> str:
    """Reads what one release was charged; itself unless counts were charged as continuous noise.

    Args:
        event_json: The stored event, canonical JSON.
        asset: Name of the asset it was charged for.
        terms_json: Terms of the charge: relation and unit made the multiplier out of σ.
    """
    if _OLD_TYPE not in event_json or asset.rsplit("/", 1)[-1] not in COUNTS:
        return event_json
    return _restated(event_json, terms_json)


# Most entries repeat earlier ones, so parsing is paid once for each text.
@lru_cache(maxsize=4096)
def _restated(event_json: str, terms_json: str) -> str:
    event = _as_counts(event_from_json(json.loads(event_json)), BudgetTerms.from_json(terms_json))
    return canonical_json(event_to_json(event))


@lru_cache(maxsize=256)
def restated_plan(plan_json: str, terms_json: str) -> str:
    """Reads a pinned plan, line by line as `restated_event` does."""
    if _OLD_TYPE not in plan_json:
        return plan_json
    lines = [
        [asset, event and json.loads(restated_event(canonical_json(event), asset, terms_json))]
        for asset, event in json.loads(plan_json)
    ]
    return canonical_json(sorted(lines, key=canonical_json))


def request_but_for_prices(facts: Mapping[str, Any]) -> str:
    """Identity of a release whatever its noise: all of `facts` but the event and what it decided.

    Args:
        facts: What makes up the identity of a request, JSON values; `parameters` as a mapping.
    """
    parameters = {
        name: value
        for name, value in facts["parameters"].items()
        if name not in FOLLOWS_FROM_PRICES
    }
    kept = {name: value for name, value in facts.items() if name != "event"}
    return digest({**kept, "parameters": parameters})


def _as_counts(event: Event, terms: BudgetTerms) -> Event:
    if isinstance(event, ComposedEvent):
        return ComposedEvent(events=tuple(_as_counts(part, terms) for part in event.events))
    if not isinstance(event, GaussianEvent):
        return event
    shift, count = terms.unit.max_records, terms.relation.records_changed
    return DiscreteGaussianEvent(
        noise_std=_noise_std(event.noise_multiplier, shift, count),
        shift=shift,
        count=count,
    )


def _noise_std(multiplier: float, shift: int, count: int) -> float:
    """Finds σ >= 1 again, which was divided by the sensitivity: the shortest decimal that it was.

    The sensitivity is shift √count, rounded up where it was no whole number.
    """
    sensitivity = float(shift)
    if count > 1:
        sensitivity = math.nextafter(shift * math.sqrt(count), math.inf)
    product = multiplier * sensitivity
    for digits in range(1, 18):
        candidate = float(f"{product:.{digits}g}")
        if candidate / sensitivity == multiplier:
            return max(1.0, candidate)
    return max(1.0, math.nextafter(product, 0.0))
