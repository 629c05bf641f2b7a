"""Per-kind (p, r) budgets, and the one noise level that meets all of them.

One release serves every secret, so one noise level and one dominating pair do: that of the secret
with the most records. Kinds of secrets differ in what is promised, never in what is charged.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpsynth_assets.privacy.secret_noise import secret_noise_std, shift_event
from dpsynth_assets.privacy.secret_protection import check_bounds, posterior_of_events
from dpsynth_assets.privacy.units import NeighboringRelation


@dataclass(frozen=True, kw_only=True)
class SecretBudget:
    """The bound promised to every secret of one kind.

    Attributes:
        kind: Public name of the kind, e.g. `email`.
        prior: p in (0, 1): largest chance of naming a secret before anything is released.
        posterior: r in (p, 1): largest chance afterwards.
        max_records: m >= 1: records that hold one secret of this kind, at most. Declared, never
            counted (errata B-004.7): a secret in more records keeps the weaker bound of its own.
    """

    kind: str
    prior: float
    posterior: float
    max_records: int

    def __post_init__(self) -> None:
        """Refuses budgets that bound nothing."""
        check_bounds(self.prior, self.posterior)
        if self.max_records < 1:
            raise ValueError(f"Expected max_records >= 1 for {self.kind}, got {self.max_records}.")


@dataclass(frozen=True, kw_only=True)
class SecretPromise:
    """The bounds that a cohort promises to its secrets; all public.

    Attributes:
        budgets: One for each kind, at least one.
        relation: ADD_REMOVE: a neighbour lacks every record that holds the secret. REPLACE_ONE:
            those records are there with other content.
        public_incidence: File that declares which record holds which secret; "" where that is
            private, as it should be.
    """

    budgets: tuple[SecretBudget, ...]
    relation: NeighboringRelation = NeighboringRelation.ADD_REMOVE
    public_incidence: str = ""

    def __post_init__(self) -> None:
        """Refuses a promise to nobody."""
        if not self.budgets:
            raise ValueError("Expected at least one kind of secret, got none.")

    @property
    def max_records(self) -> int:
        """Records that hold one secret of any kind, at most."""
        return max(budget.max_records for budget in self.budgets)

    @property
    def bounds(self) -> tuple[tuple[float, float], ...]:
        """Every different (p, r), in declared order."""
        return tuple(dict.fromkeys((each.prior, each.posterior) for each in self.budgets))


def shared_noise_std(
    *,
    count_probabilities: np.ndarray,
    bounds: Sequence[tuple[float, float]],
    steps: int,
    relation: NeighboringRelation,
    noise_floor: float = 1.0,
) -> float:
    """Finds the smallest σ >= `noise_floor` at which every (p, r) holds over `steps` rounds.

    Args:
        count_probabilities: (m + 1,) distribution of the sampled records of the most exposed
            secret.
        bounds: (p, r) of each kind.
        steps: T, rounds with fresh samples.
        relation: See `shift_event`.
        noise_floor: See `secret_noise_std`.

    Raises:
        ValueError: If there is no bound, or one bounds nothing.

    **Privacy** Counts of every secret are stochastically smaller than `count_probabilities`, so
    its pair dominates all of theirs (`shift_event`), and B(p) of it bounds each kind at its own p.

    **Source** SecPE, Algorithm 1, line 6: σ = max_j σ_j.
    """
    if not bounds:
        raise ValueError("Expected at least one (p, r), got none.")
    noise_std = noise_floor
    for prior, posterior in bounds:
        # A bound that the noise so far meets is settled by one evaluation.
        noise_std = secret_noise_std(
            count_probabilities=count_probabilities,
            prior=prior,
            posterior=posterior,
            steps=steps,
            relation=relation,
            noise_floor=noise_std,
        )
    return noise_std


def largest_own_noise(
    *,
    distributions: Sequence[np.ndarray],
    bounds: Sequence[tuple[float, float]],
    steps: int,
    relation: NeighboringRelation = NeighboringRelation.ADD_REMOVE,
    noise_floor: float = 1.0,
) -> float:
    """Finds σ = max_j σ_j by each secret's distribution: what a ledger of one pair could charge.

    Args:
        distributions: For each secret, the distribution of its sampled records.
        bounds: For each secret, its (p, r).
        steps: T.
        relation: See `shift_event`.
        noise_floor: See `secret_noise_std`.

    Returns:
        At most `shared_noise_std` of the distribution that dominates all of them; for comparison.
    """
    noise_std = noise_floor
    for distribution, (prior, posterior) in zip(distributions, bounds, strict=True):
        noise_std = secret_noise_std(
            count_probabilities=distribution,
            prior=prior,
            posterior=posterior,
            steps=steps,
            relation=relation,
            noise_floor=noise_std,
        )
    return noise_std


def posteriors_of_round(
    *,
    count_probabilities: np.ndarray,
    noise_std: float,
    steps: int,
    promise: SecretPromise,
) -> dict[str, float]:
    """Computes B(p) of `steps` rounds for each kind, rounded up.

    Args:
        count_probabilities: (m + 1,) distribution of the sampled records of the most exposed one.
        noise_std: σ, in records.
        steps: T.
        promise: The kinds and the relation.
    """
    event = shift_event(
        count_probabilities=count_probabilities,
        noise_std=noise_std,
        steps=steps,
        relation=promise.relation,
    )
    return {budget.kind: posterior_of_events([event], budget.prior) for budget in promise.budgets}
