"""Prices SecPE from declared facts: the noise that keeps every kind of secret at its (p, r)."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from dpsynth_assets.methods.base import CohortTerms, MethodPlan
from dpsynth_assets.methods.evolution.method import evolution_parameters, refusal_of
from dpsynth_assets.methods.evolution.secret_config import SecPeConfig
from dpsynth_assets.methods.evolution.secret_incidence import (
    IncidenceError,
    incidence_digest,
    read_public_incidence,
    solved_sampling,
)
from dpsynth_assets.methods.plan_cache import remembered
from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.blow_up import ROUND_UP
from dpsynth_assets.privacy.events import Event, PoissonGaussianEvent
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.secret_budgets import (
    SecretPromise,
    posteriors_of_round,
    shared_noise_std,
)
from dpsynth_assets.privacy.secret_noise import joint_factor, shift_event
from dpsynth_assets.privacy.secret_protection import gaussian_budget, gaussian_posterior
from dpsynth_assets.privacy.secret_sampling import SecretSampling
from dpsynth_assets.privacy.share_calibration import training_noise_multiplier
from dpsynth_assets.privacy.units import NeighboringRelation

CLUSTER_STAGE = "secret_clusters"
"""Name of the one paid stage."""


def plan_secpe(config: SecPeConfig, terms: CohortTerms, target_epsilon: float) -> MethodPlan:
    """Plans R releases of counts and centres with the least noise that every (p, r) allows.

    Args:
        config: Settings.
        terms: Declared facts, with what is promised to secrets.
        target_epsilon: ε that the releases may cost where records are protected too.

    **Privacy** Noise, sampling and event follow from declared numbers alone: the records' secrets
    are private, and a rate computed from them would be another mechanism for each neighbour
    (errata B-004.7).

    **Source** SecPE, Algorithm 1, with the exact mixture and one noise for counts and centres
    together (errata B-004.1, .6).
    """
    refusal = _refusal(config, terms, target_epsilon)
    try:
        found = None if refusal else _calibrated(config, terms, target_epsilon)
    except IncidenceError as error:
        refusal, found = str(error), None
    if found is None:
        return MethodPlan.refused(GuaranteeType.SECRET, config.model_dump(mode="json"), refusal)
    promise = promise_of(terms)
    event = charged_event(found, config, terms)
    dp = config.record_level
    return MethodPlan(
        guarantee=GuaranteeType.DP if dp else GuaranteeType.SECRET,
        epsilon=epsilon_of([event], terms.delta, terms.accountant) if dp else None,
        event=event,
        stages={CLUSTER_STAGE: event},
        parameters=evolution_parameters(config, terms)
        | {
            "noise_std": found["noise_std"],
            "secret_share": used_share(config, terms),
            "count_probabilities": found["count_probabilities"],
            "public_incidence": incidence_digest(promise),
            "secret_adjacency": str(promise.relation),
            "secrets": [vars(budget) for budget in promise.budgets],
            "posteriors": _posteriors(found, config, promise),
            "noise": (
                f"Gaussian of {found['noise_std']:.4g} records on every count, and of as many "
                f"unit vectors on every sum, in each of {config.releases} releases"
            ),
        },
        rows_estimate=config.rows,
    )


def charged_event(found: Mapping[str, Any], config: SecPeConfig, terms: CohortTerms) -> Event:
    """Prices all R releases: for the neighbours of a secret, or for those of a record as well.

    **Privacy** A record that comes or goes moves counts and sums together by at most √2, so the
    same noise is √2 times smaller beside it. What this tells of a secret in m records follows by
    group privacy (`secret_event`) and is the very mixture that would be charged for secrets alone.
    """
    noise_std = float(found["noise_std"])
    if config.record_level:
        return PoissonGaussianEvent(
            sampling_probability=_largest_probability(config, promise_of(terms)),
            noise_multiplier=noise_std / joint_factor(NeighboringRelation.ADD_REMOVE),
            steps=config.releases,
            max_records_per_unit=terms.unit.max_records,
            replaced=terms.relation is NeighboringRelation.REPLACE_ONE,
        )
    return shift_event(
        count_probabilities=np.array(found["count_probabilities"]),
        noise_std=noise_std,
        steps=config.releases,
        relation=promise_of(terms).relation,
    )


def capped_sampling(config: SecPeConfig, promise: SecretPromise) -> SecretSampling:
    """Draws every record alike; the law is that of the most records one secret may have."""
    return SecretSampling.capped(
        probability=config.sampling_probability, max_occurrences=promise.max_records
    )


def shared_bounds(promise: SecretPromise, share: float) -> list[tuple[float, float]]:
    """(p, r) of each kind where a share of its squared μ may be used.

    **Privacy** A planning aid: the ledger composes the pairs of all releases and compares what
    comes out with the declared (p, r) itself.
    """
    return [
        (prior, gaussian_posterior(math.sqrt(share) * gaussian_budget(prior, posterior), prior))
        if share < 1
        else (prior, posterior)
        for prior, posterior in promise.bounds
    ]


def used_share(config: SecPeConfig, terms: CohortTerms) -> float:
    """Share of the secrets' bound these releases may use: the cohort's division, else declared."""
    if terms.secret_share is not None:
        return terms.secret_share
    return 1.0 if config.secret_share is None else config.secret_share


def promise_of(terms: CohortTerms) -> SecretPromise:
    """What the cohort promises to secrets.

    Raises:
        ValueError: If it promises nothing.
    """
    if terms.secrets is None:
        raise ValueError("Expected secrets in the dataset file, got none.")
    return terms.secrets


def _calibrated(config: SecPeConfig, terms: CohortTerms, target_epsilon: float) -> dict[str, Any]:
    """The law of sampled records and the noise, kept between processes."""
    promise = promise_of(terms)
    key: dict[str, Any] = {
        "calibration": "secrets",
        "bounds": shared_bounds(promise, used_share(config, terms)),
        "kinds": [vars(budget) for budget in promise.budgets],
        "relation": str(promise.relation),
        "incidence": incidence_digest(promise),
        "sampling_probability": config.sampling_probability,
        "releases": config.releases,
        "noise_floor": config.noise_floor,
    }
    found = remembered(key, lambda: _calibrate(config, terms))
    if config.record_level:
        needed = _noise_for_records(config, terms, target_epsilon)
        return {**found, "noise_std": max(float(found["noise_std"]), needed)}
    return found


def _noise_for_records(config: SecPeConfig, terms: CohortTerms, target_epsilon: float) -> float:
    """Finds σ at which the releases cost at most `target_epsilon` as DP releases."""
    settings: dict[str, Any] = {
        "sampling_probability": _largest_probability(config, promise_of(terms)),
        "steps": config.releases,
        "target_epsilon": target_epsilon,
        "budget_epsilon": terms.epsilon,
        "delta": terms.delta,
        "accountant": terms.accountant,
        "max_records_per_unit": terms.unit.max_records,
        "replaced": terms.relation is NeighboringRelation.REPLACE_ONE,
    }
    multiplier = remembered(
        {"calibration": "records beside secrets", **settings},
        lambda: training_noise_multiplier(**settings),
    )
    return float(multiplier) * joint_factor(NeighboringRelation.ADD_REMOVE) * ROUND_UP


def _largest_probability(config: SecPeConfig, promise: SecretPromise) -> float:
    """The linear program always draws some records; else all have the same probability."""
    return 1.0 if promise.public_incidence else config.sampling_probability


def _calibrate(config: SecPeConfig, terms: CohortTerms) -> dict[str, Any]:
    promise = promise_of(terms)
    sampling = (
        solved_sampling(read_public_incidence(promise), promise)
        if promise.public_incidence
        else capped_sampling(config, promise)
    )
    noise_std = shared_noise_std(
        count_probabilities=sampling.count_probabilities,
        bounds=shared_bounds(promise, used_share(config, terms)),
        steps=config.releases,
        relation=promise.relation,
        noise_floor=config.noise_floor,
    )
    return {"noise_std": noise_std, "count_probabilities": sampling.count_probabilities.tolist()}


def _posteriors(
    found: dict[str, Any], config: SecPeConfig, promise: SecretPromise
) -> dict[str, float]:
    """Computes r of these releases alone, kind by kind; the ledger's is of all releases."""
    return remembered(
        {
            "posteriors": found,
            "releases": config.releases,
            "relation": str(promise.relation),
            "kinds": [vars(budget) for budget in promise.budgets],
        },
        lambda: posteriors_of_round(
            count_probabilities=np.array(found["count_probabilities"]),
            noise_std=float(found["noise_std"]),
            steps=config.releases,
            promise=replace(promise, public_incidence=""),
        ),
    )


def _refusal(config: SecPeConfig, terms: CohortTerms, target_epsilon: float) -> str | None:
    if terms.secrets is None:
        return (
            "Expected secrets in the dataset file for secpe, got none. Declare kinds of secrets, "
            "each with prior, posterior and max_records."
        )
    if terms.secret_share == 0:
        return (
            "Expected a share of the secrets' bound for secpe, got none: the other releases take "
            "it whole. Lower their secret_share or budget.epsilon, or drop the DP releases."
        )
    # Without record_level it is given no share of any ε, and needs none.
    return refusal_of(config, terms, target_epsilon if config.record_level else 1.0)
