"""From accounting events to (ε, δ): a Rényi filter and a tight accountant for fixed plans.

`zcdp` adds Rényi divergences (exact ρ where every release is zCDP) and converts once; its filter
is valid when later releases are chosen from earlier outputs. `tight` convolves privacy-loss
distributions (PLD), composes token draws optimally and Gaussians exactly; it is valid for a plan
that was fixed beforehand. All results are rounded up.

Events first become blocks, so that an accountant meets few: all Gaussians are one Gaussian; equal
draws, releases, noisy counts and sampled steps are one event that says how often it happened.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

from dpsynth_assets.privacy.bounded_range import bounded_range_epsilon, recursion_is_affordable
from dpsynth_assets.privacy.errors import check_at_least, check_delta
from dpsynth_assets.privacy.events import (
    BoundedRangeEvent,
    DiscreteGaussianEvent,
    DiscreteLaplaceEvent,
    Event,
    GaussianEvent,
    PoissonGaussianEvent,
    PureEvent,
    flatten,
    is_post_processing,
)
from dpsynth_assets.privacy.gaussian_dp import (
    compose_mu,
    dominating_mu,
    gaussian_delta,
    gaussian_epsilon,
    integer_gaussian_delta,
    integer_gaussian_epsilon,
    is_smooth,
)
from dpsynth_assets.privacy.pld import (
    DISCRETIZATION,
    event_pld,
    pld_delta,
    pld_epsilon,
    pld_is_affordable,
)
from dpsynth_assets.privacy.renyi import (
    ORDERS,
    delta_at_order,
    epsilon_at_order,
    filter_order,
    float_up,
    is_zcdp,
    refuse_secrets,
    renyi_divergence,
    renyi_epsilon,
    zcdp_delta,
    zcdp_epsilon,
)

_REPEATS: dict[Any, str] = {
    PureEvent: "count",
    PoissonGaussianEvent: "steps",
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


ACCOUNTANTS = ("zcdp", "tight")

PROFILE_DELTA = 1e-12
"""Smallest δ that the profile of a token block resolves."""

NEARLY = 1.0 + 1e-4
"""Most by which the dominating Gaussian of counts may exceed their own loss and replace it."""


def epsilon_of(
    events: Sequence[Event],
    delta: float,
    accountant: str,
    *,
    discretization: float = DISCRETIZATION,
) -> float:
    """Computes ε of the composition of `events` at δ = `delta`, rounded up; 0 for no events.

    Args:
        events: What was released on one cohort, in any order.
        delta: Public δ in (0, 1).
        accountant: `zcdp` or `tight`.
        discretization: Spacing of privacy losses; a coarser one is faster and reads higher.

    Raises:
        ValueError: If the accountant is unknown, δ is outside (0, 1), or an event bounds a secret
            instead of a record: protection of secrets is never summed with ε.
    """
    check_delta(delta)
    atoms = _checked_atoms(events, accountant)
    if accountant == "zcdp":
        return _zcdp_epsilon(atoms, float(delta))
    blocks = blocks_of(atoms)
    return _tight_epsilon(blocks, float(delta), float(discretization)) if blocks else 0.0


def epsilon_of_fixed(events: Sequence[Event], delta: float, accountant: str) -> float:
    """Computes the smaller of two bounds on a composition that was fixed beforehand, rounded up.

    Besides `epsilon_of`: the pure releases by basic composition, added to the rest. zCDP is loose
    for few pure releases (a 0.1-DP histogram reads 0.43 at δ = 1e-6), and both bounds hold at once
    for one release or any fixed set. Not a filter: a cohort's running total is `epsilon_of`.
    """
    whole = epsilon_of(events, delta, accountant)
    atoms = atoms_of(events)
    pure = _pure_epsilon(atoms)
    if not pure:
        return whole
    rest = [atom for atom in atoms if not isinstance(atom, DiscreteLaplaceEvent | PureEvent)]
    split = float_up(pure + Fraction(epsilon_of(rest, delta, accountant)))
    return min(whole, split)


def filter_epsilon(events: Sequence[Event], delta: float, budget_epsilon: float) -> float:
    """Computes ε at the one order that the filter of a budget compares at, rounded up.

    A release is admitted iff the reading that includes it is at most `budget_epsilon`. Where all
    events are zCDP this is the zCDP reading: it is within the budget exactly when the reading at
    the budget's one order is.

    Raises:
        ValueError: As `epsilon_of`, or if the budget is not positive and finite.

    **Privacy** Rényi divergences at one order that was fixed beforehand add up even where each
    release and its parameters depend on earlier outputs (Feldman and Zrnic 2021); the order
    depends on the public budget alone. `epsilon_of`, which picks an order or convolves
    PLDs after the fact, is no filter once an event is sampled.
    """
    check_delta(delta)
    order = filter_order(budget_epsilon, delta)
    atoms = _checked_atoms(events, "zcdp")
    if all(is_zcdp(atom) for atom in atoms):
        return _zcdp_epsilon(atoms, float(delta))
    divergence = math.fsum(renyi_divergence(block, order) for block in blocks_of(atoms))
    return epsilon_at_order(divergence, order, delta)


def privacy_profile(
    events: Sequence[Event], epsilons: Iterable[float], accountant: str
) -> list[float]:
    """Computes δ of the composition at each ε >= 0, rounded up."""
    blocks = blocks_of(_checked_atoms(events, accountant))
    return [_delta_of(blocks, float(epsilon), accountant) for epsilon in epsilons]


def composed_pld(
    events: Sequence[Event], delta: float, discretization: float = DISCRETIZATION
) -> Any | None:
    """Convolves the PLDs of all events; None when there are none."""
    pld = None
    for block in blocks_of(_checked_atoms(events, "tight")):
        part = event_pld(block, float(delta), discretization)
        pld = part if pld is None else pld.compose(part)
    return pld


def _zcdp_epsilon(atoms: tuple[Event, ...], delta: float) -> float:
    """Converts the exact sum of ρ, or Rényi divergences where sampling makes them smaller."""
    unsampled = zcdp_epsilon(total_rho(atoms), delta)
    if all(is_zcdp(atom) for atom in atoms):
        return unsampled
    return min(unsampled, _renyi_epsilon(blocks_of(atoms), delta))


@lru_cache(maxsize=4096)
def _renyi_epsilon(blocks: tuple[Event, ...], delta: float) -> float:
    return renyi_epsilon(blocks, delta)


@lru_cache(maxsize=4096)
def _tight_epsilon(blocks: tuple[Event, ...], delta: float, discretization: float) -> float:
    """Reads the PLD of a composition, or a single block exactly."""
    ceiling = _zcdp_epsilon(blocks, delta)
    if len(blocks) == 1 and (exact := _block_epsilon(blocks[0], delta)) is not None:
        return min(exact, ceiling)
    ceiling = min(ceiling, _dominating_epsilon(blocks, delta))
    if _is_nearly_gaussian(blocks) or not all(pld_is_affordable(block) for block in blocks):
        return ceiling
    reading = pld_epsilon(composed_pld(blocks, delta, discretization), delta)
    if all(isinstance(block, DiscreteLaplaceEvent | PureEvent) for block in blocks):
        reading = min(reading, float_up(_pure_epsilon(blocks)))
    # A block alone is read off another grid: never report less for more releases.
    alone = (_tight_epsilon((block,), delta, discretization) for block in blocks if len(blocks) > 1)
    return max(min(reading, ceiling), *alone, 0.0)


def _block_epsilon(block: Event, delta: float) -> float | None:
    if isinstance(block, GaussianEvent):
        return gaussian_epsilon(_mu(block), delta)
    if isinstance(block, DiscreteGaussianEvent):
        if not pld_is_affordable(block):
            return _dominating_epsilon((block,), delta)
        return integer_gaussian_epsilon(block, delta)
    if isinstance(block, BoundedRangeEvent):
        if not recursion_is_affordable(block.eta, block.count, delta):
            return zcdp_epsilon(float_up(block.rho), delta)
        return bounded_range_epsilon(block.eta, block.count, delta)
    return None


def _delta_of(blocks: tuple[Event, ...], epsilon: float, accountant: str) -> float:
    check_at_least(0, epsilon=epsilon)
    if not blocks:
        return 0.0
    ceiling = _zcdp_delta(blocks, epsilon)
    if accountant == "zcdp":
        return ceiling
    if len(blocks) == 1 and isinstance(gaussian := blocks[0], GaussianEvent):
        return gaussian_delta(_mu(gaussian), epsilon)
    mu = gaussian_mu_of(blocks)
    if mu is not None:
        ceiling = min(ceiling, gaussian_delta(mu, epsilon))
    if not all(pld_is_affordable(block) for block in blocks):
        return ceiling
    if len(blocks) == 1 and isinstance(counts := blocks[0], DiscreteGaussianEvent):
        return min(ceiling, integer_gaussian_delta(counts, epsilon))
    if _is_nearly_gaussian(blocks):
        return ceiling
    return min(ceiling, pld_delta(_profile_pld(blocks), epsilon))


@lru_cache(maxsize=16)
def _profile_pld(blocks: tuple[Event, ...]) -> Any:
    return composed_pld(blocks, PROFILE_DELTA)


def _zcdp_delta(blocks: tuple[Event, ...], epsilon: float) -> float:
    unsampled = zcdp_delta(total_rho(blocks), epsilon)
    if all(is_zcdp(block) for block in blocks):
        return unsampled
    readings = (
        delta_at_order(divergence, order, epsilon)
        for order, divergence in zip(ORDERS, _divergences(blocks), strict=True)
    )
    return min(unsampled, *readings)


@lru_cache(maxsize=64)
def _divergences(blocks: tuple[Event, ...]) -> tuple[float, ...]:
    """Adds up Rényi divergences at each of `ORDERS`: the same for every ε of a profile."""
    return tuple(math.fsum(renyi_divergence(block, order) for block in blocks) for order in ORDERS)


def gaussian_mu_of(events: Sequence[Event]) -> float | None:
    """Computes μ of the Gaussian pair that dominates a composition, rounded up.

    Exactly that of Gaussian releases; integer noise on counts enters as the Gaussian that
    dominates it (`gaussian_dp.dominating_mu`).

    Returns:
        μ >= 0; None where a summand is neither, or dominated by no known Gaussian.
    """
    atoms = atoms_of(events)
    if not all(isinstance(atom, GaussianEvent | DiscreteGaussianEvent) for atom in atoms):
        return None
    mus = [
        dominating_mu(block) if isinstance(block, DiscreteGaussianEvent) else _mu(block)
        for block in blocks_of(atoms)
        if isinstance(block, GaussianEvent | DiscreteGaussianEvent)
    ]
    return compose_mu(mus) if all(math.isfinite(mu) for mu in mus) else None


def _dominating_epsilon(blocks: tuple[Event, ...], delta: float) -> float:
    mu = gaussian_mu_of(blocks)
    return math.inf if mu is None else gaussian_epsilon(mu, delta)


def _is_nearly_gaussian(blocks: tuple[Event, ...]) -> bool:
    """Says whether the dominating Gaussian is so close that no loss distribution reads lower."""
    mu = gaussian_mu_of(blocks)
    return mu is not None and mu <= math.sqrt(2.0 * total_rho(blocks)) * NEARLY


def _mu(event: GaussianEvent) -> float:
    return 1.0 / event.noise_multiplier * _UP


def _pure_epsilon(atoms: Sequence[Event]) -> Fraction:
    """Basic composition of the pure events among `atoms`, exact."""
    laplace = (atom.epsilon for atom in atoms if isinstance(atom, DiscreteLaplaceEvent))
    pure = (atom.count * Fraction(atom.epsilon) for atom in atoms if isinstance(atom, PureEvent))
    return sum(laplace, Fraction(0)) + sum(pure, Fraction(0))


def _checked_atoms(events: Sequence[Event], accountant: str) -> tuple[Event, ...]:
    if accountant not in ACCOUNTANTS:
        raise ValueError(f"Expected accountant in {ACCOUNTANTS}, got {accountant!r}.")
    atoms = atoms_of(events)
    refuse_secrets(atoms)
    return atoms


def epsilon_with_inputs(
    charges: Sequence[Event], delta: float, accountant: str, budget_epsilon: float
) -> float:
    """Computes ε at δ of a release with the releases it builds on, each one charge, rounded up.

    Which accounting is right depends on who chose the settings, and when.

    * One charge: its event was fixed before it was drawn. ε is that of a fixed composition
      (`epsilon_of_fixed`): the best order, or basic composition of pure releases, whichever is
      smaller.
    * A plan that was pinned before the first charge (accountant `tight`): all events were fixed
      together. What later parts read of earlier outputs (numbers of batches that follow released
      counts) is no parameter of an event. The same holds as for one charge.
    * Several charges under the filter (accountant `zcdp`): the author of the dataset file may have
      seen the histogram before the settings of the corpus. An order, or a way to compose, that is
      picked for the very events that came would be picked by the outputs, too. Rényi divergences at
      the one order that the cohort's budget fixes add up regardless of what was chosen in between.

    Args:
        charges: One event a charge; post-processing is free and counts as none.
        delta: δ of the cohort, in (0, 1).
        accountant: `tight` for charges of one pinned plan, `zcdp` for charges of the filter.
        budget_epsilon: ε of the cohort's budget, which fixes the filter's order.

    Raises:
        ValueError: If an argument is outside its domain, or an event bounds a secret.
    """
    paid = [event for event in charges if not is_post_processing(event)]
    if _was_fixed(paid, accountant):
        return epsilon_of_fixed(paid, delta, accountant)
    return filter_epsilon(paid, delta, budget_epsilon)


def profile_with_inputs(
    charges: Sequence[Event],
    epsilons: Iterable[float],
    delta: float,
    accountant: str,
    budget_epsilon: float,
) -> list[float]:
    """Computes δ of the same charges at each ε >= 0, rounded up.

    Under the filter by ρ, which bounds all orders at once, or, with sampled events, at the order
    that the budget (`budget_epsilon`, `delta`) fixes.
    """
    paid = [event for event in charges if not is_post_processing(event)]
    if _was_fixed(paid, accountant) or all(is_zcdp(atom) for atom in atoms_of(paid)):
        return privacy_profile(paid, epsilons, accountant)
    order = filter_order(budget_epsilon, delta)
    divergence = math.fsum(renyi_divergence(event, order) for event in paid)
    return [delta_at_order(divergence, order, float(epsilon)) for epsilon in epsilons]


def _was_fixed(paid: Sequence[Event], accountant: str) -> bool:
    return accountant == "tight" or len(paid) < 2
