"""Exact composition of events with others of their kind, so that an accountant meets few.

A list of events becomes blocks: all Gaussians are one Gaussian; equal draws, releases, noisy counts
and sampled steps are one event that says how often it happened.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from dpsynth_assets.privacy.events import (
    BoundedRangeEvent,
    DiscreteGaussianEvent,
    DiscreteLaplaceEvent,
    Event,
    GaussianEvent,
    PoissonGaussianEvent,
    PureEvent,
    TruncatedPoissonGaussianEvent,
    flatten,
)
from dpsynth_assets.privacy.integer_gaussian import dominating_mu, is_smooth
from dpsynth_assets.privacy.renyi import float_up

_REPEATS: dict[Any, str] = {
    PureEvent: "count",
    PoissonGaussianEvent: "steps",
    TruncatedPoissonGaussianEvent: "steps",
    BoundedRangeEvent: "count",
    DiscreteGaussianEvent: "count",
}
"""The events that state how often they happened, and the field that does."""

_UP = 1.0 + 1e-12


def atoms_of(events: Sequence[Event]) -> tuple[Event, ...]:
    """Lists the atomic events of all events, in order."""
    return tuple(atom for event in events for atom in flatten(event))


def total_rho(atoms: Sequence[Event]) -> float:
    """Adds ρ exactly, then rounds up once."""
    return float_up(sum((atom.rho for atom in atoms), Fraction(0)))


def blocks_of(atoms: tuple[Event, ...]) -> tuple[Event, ...]:
    """Merges events that compose exactly, and puts the blocks in an order of their own.

    Gaussians become one; token draws of one η, pure releases of one ε, counts of one integer noise
    and sampled steps of the same kind become one block each. Merged draws are one adaptive block,
    which is also tighter. Counts whose noise is large enough join the Gaussians, as the Gaussian
    that dominates them.
    """
    blocks: list[Event] = []
    counts = _merged_of(DiscreteGaussianEvent, atoms)
    smooth = [block for block in counts if is_smooth(block)]
    rho = total_rho([atom for atom in atoms if _is_gaussian(atom)])
    rho = math.fsum([rho, *(dominating_mu(block) ** 2 / 2.0 for block in smooth)]) * _UP
    if rho > 0:
        noise_multiplier = math.sqrt(1.0 / (2.0 * rho)) / _UP
        blocks.append(GaussianEvent(noise_multiplier=noise_multiplier))
    laplace = [atom for atom in atoms if isinstance(atom, DiscreteLaplaceEvent)]
    laplace.sort(key=lambda atom: (atom.scale, atom.sensitivity))
    blocks += laplace
    for kind in _REPEATS:
        blocks += [block for block in _merged_of(kind, atoms) if block not in smooth]
    return tuple(blocks)


def _is_gaussian(atom: Event) -> bool:
    """Says whether ρ is μ²/2 of the very pair: so too where every record is in every sample."""
    whole = isinstance(atom, PoissonGaussianEvent) and atom.sampling_probability == 1.0
    return whole or isinstance(atom, GaussianEvent)


def _merged_of(kind: type[Any], atoms: Sequence[Event]) -> list[Any]:
    of_kind = [atom for atom in atoms if isinstance(atom, kind) and not _is_gaussian(atom)]
    return _merged(of_kind, _REPEATS[kind])


def _merged(atoms: Sequence[Any], repeats: str) -> list[Any]:
    totals: Counter[Any] = Counter()
    for atom in atoms:
        totals[replace(atom, **{repeats: 1})] += getattr(atom, repeats)
    merged = [replace(one, **{repeats: total}) for one, total in totals.items() if total]
    return sorted(merged, key=lambda event: tuple(vars(event).values()))
