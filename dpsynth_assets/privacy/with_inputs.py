"""Cost of a release together with the releases it builds on.

Which accounting is right depends on who chose the settings, and when.

* One charge: its event was fixed before it was drawn. ε is that of a fixed composition
  (`epsilon_of_fixed`): the best order, or basic composition of pure releases, whichever is smaller.
* A plan that was pinned before the first charge (accountant `tight`): all events were fixed
  together. What later parts read of earlier outputs (numbers of batches that follow released
  counts) is no parameter of an event. The same holds as for one charge.
* Several charges under the filter (accountant `zcdp`): whoever writes the dataset file may have
  seen the histogram before the settings of the corpus. An order, or a way to compose, that is
  picked for the very events that came would be picked by the outputs, too. Rényi divergences at
  the one order that the cohort's budget fixes add up whatever was chosen in between.
"""

import math
from collections.abc import Iterable, Sequence

from dpsynth_assets.privacy.accounting import epsilon_of_fixed, filter_epsilon, privacy_profile
from dpsynth_assets.privacy.composition import atoms_of
from dpsynth_assets.privacy.events import Event, is_post_processing
from dpsynth_assets.privacy.renyi import (
    delta_at_order,
    filter_order,
    is_zcdp,
    renyi_divergence,
)


def epsilon_with_inputs(
    charges: Sequence[Event], delta: float, accountant: str, budget_epsilon: float
) -> float:
    """Computes ε at δ of charges of one cohort, each one event, rounded up.

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
