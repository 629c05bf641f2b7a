"""Prices a private training from declared facts: how much noise its share of the budget needs."""

from typing import Any

from dpsynth_assets.methods.base import CohortTerms, MethodPlan
from dpsynth_assets.methods.fine_tuning.config import PrivateTrainingConfig
from dpsynth_assets.methods.plan_cache import remembered
from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.dp_sgd import DpSgdMechanism
from dpsynth_assets.privacy.errors import UnaccountedReleaseError
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.per_example import GRADIENT_SLACK, most_in_company
from dpsynth_assets.privacy.rests_on import GRADIENTS
from dpsynth_assets.privacy.rounded import rounded_up
from dpsynth_assets.privacy.share_calibration import training_noise_multiplier
from dpsynth_assets.privacy.units import NeighboringRelation


def sampling_probability(config: PrivateTrainingConfig, terms: CohortTerms) -> float | None:
    """Reads q: the given one, or B / declared records, at most 1; None if nothing public gives it.

    **Privacy** Under add/remove the number of records is private: a q computed from it would be
    another mechanism for each neighbour (errata B-002.4). Any public q is sound, whatever records
    there are: a step then draws q n of them, which nobody is told.
    """
    if config.sampling_probability is not None:
        return config.sampling_probability
    if terms.public_records is None:
        return None
    return min(1.0, config.expected_batch_size / terms.public_records)


def batch_denominator(config: PrivateTrainingConfig, terms: CohortTerms) -> float:
    """What noisy sums are divided by: B, or all declared records where B would be more."""
    if config.sampling_probability is None and terms.public_records is not None:
        return float(min(config.expected_batch_size, terms.public_records))
    return float(config.expected_batch_size)


def plan_training(
    stage: str, config: PrivateTrainingConfig, terms: CohortTerms, target_epsilon: float
) -> MethodPlan:
    """Plans T steps of DP-SGD with the least noise that fits `target_epsilon`.

    Calibration takes seconds and is remembered in `DPSYNTH_HOME`; whatever stands there, the event
    states the noise that will be drawn, and the ledger prices the event itself.

    Args:
        stage: Name of the stage that is charged.
        config: Settings of the training.
        terms: Declared facts; `terms.accountant` decides what the noise is calibrated to.
        target_epsilon: ε the stage may cost alone at δ.

    **Source** CTCL, section 4.1.3 and appendices D and E, with Poisson batches (errata B-002.1).
    """
    chance = sampling_probability(config, terms)
    refusal = _refusal(config, chance, target_epsilon)
    if chance is None or refusal is not None:
        return MethodPlan.refused(GuaranteeType.DP, config.model_dump(mode="json"), refusal)
    found = remembered(
        _cache_key(config, terms, chance, target_epsilon),
        lambda: _calibrate(config, terms, chance, target_epsilon),
    )
    mechanism = _mechanism(config, terms, chance, float(found["noise_multiplier"]))
    event = mechanism.event()
    return MethodPlan(
        guarantee=GuaranteeType.DP,
        event=event,
        stages={stage: event},
        parameters=config.model_dump(mode="json")
        | {
            "sampling_probability": chance,
            "noise_multiplier": mechanism.noise_multiplier,
            "noise": (
                f"Gaussian of {mechanism.noise_multiplier:.4g} x the clipping bound on each of "
                f"{config.steps} summed gradients, each record drawn with probability {chance:.3g}"
            ),
        },
        epsilon=float(found["epsilon"]),
        rows_estimate=getattr(config, "rows", None),
        rests_on={stage: {GRADIENTS: _passes(mechanism)}},
    )


def planned_mechanism(
    stage: str, plan: MethodPlan, config: PrivateTrainingConfig, terms: CohortTerms
) -> DpSgdMechanism:
    """Opens the mechanism that was planned and charged.

    Raises:
        ValueError: If the plan refused.
        UnaccountedReleaseError: If the plan's event does not price these settings.
    """
    chance = sampling_probability(config, terms)
    if plan.refusal is not None or chance is None:
        raise ValueError(f"Expected a plan that can run, got a refusal: {plan.refusal}")
    mechanism = _mechanism(config, terms, chance, float(plan.parameters["noise_multiplier"]))
    if mechanism.event() != plan.stages.get(stage):
        raise UnaccountedReleaseError(
            "Expected the plan's event to price these settings, got another. Plan again."
        )
    return mechanism


def _mechanism(
    config: PrivateTrainingConfig, terms: CohortTerms, chance: float, noise_multiplier: float
) -> DpSgdMechanism:
    return DpSgdMechanism(
        l2_bound=config.clip_bound,
        noise_multiplier=noise_multiplier,
        sampling_probability=chance,
        steps=config.steps,
        expected_batch_size=batch_denominator(config, terms),
        relation=terms.relation,
        max_records_per_unit=terms.unit.max_records,
        most_in_company=records_in_company(config, terms),
        gradient_slack=config.gradient_slack,
    )


def records_in_company(config: PrivateTrainingConfig, terms: CohortTerms) -> int:
    """M: the records of a batch up to which several share a pass; 0 where every one is alone."""
    if config.exact_sums:
        return 0
    slack = GRADIENT_SLACK if config.gradient_slack is None else config.gradient_slack
    chance, known = sampling_probability(config, terms), terms.public_records
    drawn = None if chance is None or known is None else chance * known
    return most_in_company(config.expected_batch_size if drawn is None else drawn, slack)


def takes_slack_of_float32(config: PrivateTrainingConfig, terms: CohortTerms) -> bool:
    """Whether several records share a pass and nobody declared what that may move."""
    return config.gradient_slack is None and records_in_company(config, terms) > 0


def _passes(mechanism: DpSgdMechanism) -> dict[str, Any]:
    """What the bound on one record's gradient rests on, for the label."""
    if mechanism.most_in_company == 0:
        return {"passes": "alone"}
    return {
        "passes": "shared",
        "gradient_slack": mechanism.slack,
        "most_in_company": mechanism.most_in_company,
    }


def _calibrate(
    config: PrivateTrainingConfig, terms: CohortTerms, chance: float, target_epsilon: float
) -> dict[str, float]:
    """Finds the noise multiplier, and ε of the training alone at the cohort's δ."""
    noise_multiplier = training_noise_multiplier(
        sampling_probability=chance,
        steps=config.steps,
        target_epsilon=target_epsilon,
        budget_epsilon=terms.epsilon,
        delta=terms.delta,
        accountant=terms.accountant,
        max_records_per_unit=terms.unit.max_records,
        replaced=terms.relation is NeighboringRelation.REPLACE_ONE,
    )
    event = _mechanism(config, terms, chance, noise_multiplier).event()
    epsilon = epsilon_of([event], terms.delta, terms.accountant)
    return {"noise_multiplier": noise_multiplier, "epsilon": epsilon}


def _cache_key(
    config: PrivateTrainingConfig, terms: CohortTerms, chance: float, target_epsilon: float
) -> dict[str, Any]:
    return {
        "calibration": "training",
        "sampling_probability": chance,
        "steps": config.steps,
        "target_epsilon": target_epsilon,
        # Only a filter looks at the whole budget.
        "budget_epsilon": terms.epsilon if terms.accountant == "zcdp" else None,
        "delta": terms.delta,
        "accountant": terms.accountant,
        "relation": str(terms.relation),
        "max_records_per_unit": terms.unit.max_records,
    }


def _refusal(
    config: PrivateTrainingConfig, chance: float | None, target_epsilon: float
) -> str | None:
    name = getattr(config, "method", "training")
    if chance is None:
        return (
            f"Expected a declared number of records, from which {name} computes the probability of "
            "drawing a record, got none. Declare public_facts.records if the number is public, or "
            "give sampling_probability, a constant that does not come from the records."
        )
    if target_epsilon <= 0:
        return (
            f"Expected target_epsilon > 0 for {name}, got {rounded_up(target_epsilon)}. Give it "
            "a share."
        )
    return None
