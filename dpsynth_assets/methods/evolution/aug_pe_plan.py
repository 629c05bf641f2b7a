"""Prices Aug-PE from declared facts: how much noise T rounds of votes need within a budget."""

import math
from typing import Any

from dpsynth_assets.methods.base import CohortTerms, MethodPlan
from dpsynth_assets.methods.evolution.config import AugPeConfig
from dpsynth_assets.methods.evolution.method import STAGE, evolution_parameters, refusal_of
from dpsynth_assets.methods.plan_cache import remembered
from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.calibration import gaussian_noise_multiplier
from dpsynth_assets.privacy.errors import UnaccountedReleaseError
from dpsynth_assets.privacy.events import ComposedEvent, Event
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.histogram import histogram_event, l2_sensitivity
from dpsynth_assets.privacy.monotone_search import FINE_TOLERANCE, MIXED_TOLERANCE, least_noise
from dpsynth_assets.privacy.voting import GaussianVoting, voting_noise_std

LABEL_STAGE = "label_histogram"
"""Name of the stage that releases noisy label counts."""

VOTES_PER_RECORD = 1
"""As in the paper; more would add to the sensitivity what they add to the signal."""


def plan_aug_pe(config: AugPeConfig, terms: CohortTerms, target_epsilon: float) -> MethodPlan:
    """Plans all rounds with the least noise that fits `target_epsilon`.

    T rounds of integer noise σ on a histogram are one block whose privacy loss is known exactly,
    so no budget is lost to composition and none is left over. Beside a histogram of labels their
    losses are composed, and σ is at most 1e-4 larger than needed, relative.

    **Source** Xie et al. 2024, section 3 and appendix; docs/privacy.md.
    """
    refusal = refusal_of(config, terms, target_epsilon)
    if refusal is not None:
        return MethodPlan.refused(GuaranteeType.DP, config.model_dump(mode="json"), refusal)
    found = remembered(
        _cache_key(config, terms, target_epsilon), lambda: _calibrate(config, terms, target_epsilon)
    )
    stages = _events(config, terms, found)
    return MethodPlan(
        guarantee=GuaranteeType.DP,
        event=ComposedEvent(events=tuple(stages.values())),
        stages=stages,
        parameters=evolution_parameters(config, terms)
        | {name: value for name, value in found.items() if name != "epsilon"}
        | {
            "noise": (
                f"Gaussian of {found['noise_std']:.4g} votes on each candidate in each of "
                f"{config.iterations} rounds"
            )
        },
        epsilon=float(found["epsilon"]),
        rows_estimate=config.rows,
    )


def planned_voting(
    plan: MethodPlan, config: AugPeConfig, terms: CohortTerms, released_before: int
) -> GaussianVoting:
    """Opens the mechanism that was planned and charged, after the rounds that are stored.

    Raises:
        ValueError: If the plan refused.
        UnaccountedReleaseError: If the plan's event does not price these settings.
    """
    if plan.refusal is not None:
        raise ValueError(f"Expected a plan that can run, got a refusal: {plan.refusal}")
    voting = _voting(config, terms, float(plan.parameters["noise_std"]), released_before)
    if voting.event != plan.stages.get(STAGE):
        raise UnaccountedReleaseError(
            "Expected the plan's event to price these settings, got another. Plan again."
        )
    return voting


def label_event(noise_std: float, terms: CohortTerms) -> Event:
    """Prices the histogram of labels."""
    return histogram_event(
        noise="gaussian",
        scale=noise_std,
        relation=terms.relation,
        max_records_per_unit=terms.unit.max_records,
    )


def _voting(
    config: AugPeConfig, terms: CohortTerms, noise_std: float, released_before: int = 0
) -> GaussianVoting:
    return GaussianVoting(
        noise_std=noise_std,
        iterations=config.iterations,
        votes_per_record=VOTES_PER_RECORD,
        relation=terms.relation,
        max_records_per_unit=terms.unit.max_records,
        released_before=released_before,
    )


def _events(config: AugPeConfig, terms: CohortTerms, noise: dict[str, float]) -> dict[str, Event]:
    events: dict[str, Event] = {}
    if config.label_shares == "released":
        events[LABEL_STAGE] = label_event(noise["label_noise_std"], terms)
    events[STAGE] = _voting(config, terms, noise["noise_std"]).event
    return events


def _calibrate(config: AugPeConfig, terms: CohortTerms, target_epsilon: float) -> dict[str, float]:
    """Finds the noise of the votes, and of the label counts if they are released."""
    if config.label_shares == "equal":
        found = {
            "noise_std": voting_noise_std(
                target_epsilon=target_epsilon,
                delta=terms.delta,
                accountant=terms.accountant,
                iterations=config.iterations,
                votes_per_record=VOTES_PER_RECORD,
                relation=terms.relation,
                max_records_per_unit=terms.unit.max_records,
            )
        }
    else:
        found = _calibrate_both(config, terms, target_epsilon)
    events = list(_events(config, terms, found).values())
    return {**found, "epsilon": epsilon_of(events, terms.delta, terms.accountant)}


def _calibrate_both(
    config: AugPeConfig, terms: CohortTerms, target_epsilon: float
) -> dict[str, float]:
    """Divides ρ: a share s of it is worth √s of the whole release's μ."""
    sensitivity = l2_sensitivity(terms.relation, terms.unit.max_records)
    share = config.label_budget_share
    whole = sensitivity * gaussian_noise_multiplier(
        target_epsilon=target_epsilon, delta=terms.delta, accountant=terms.accountant
    )

    def noise(scale: float) -> dict[str, float]:
        return {
            "label_noise_std": max(1.0, scale * whole / math.sqrt(share)),
            "noise_std": max(1.0, scale * whole * math.sqrt(config.iterations / (1.0 - share))),
        }

    def fits(scale: float) -> bool:
        events = list(_events(config, terms, noise(scale)).values())
        return epsilon_of(events, terms.delta, terms.accountant) <= target_epsilon

    tolerance = MIXED_TOLERANCE if terms.accountant == "tight" else FINE_TOLERANCE
    return noise(least_noise(fits, 1.0, tolerance=tolerance))


def _cache_key(config: AugPeConfig, terms: CohortTerms, target_epsilon: float) -> dict[str, Any]:
    released = config.label_shares == "released"
    return {
        "calibration": "votes",
        "iterations": config.iterations,
        "label_budget_share": config.label_budget_share if released else None,
        "target_epsilon": target_epsilon,
        "delta": terms.delta,
        "accountant": terms.accountant,
        "relation": str(terms.relation),
        "max_records_per_unit": terms.unit.max_records,
    }
