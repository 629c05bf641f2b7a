"""Plans few-shot generation: how records are sampled, and the least noise that its target buys."""

import math

from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.stages import MethodPlan
from dpsynth_assets.methods.private_prediction.config import FewShotConfig
from dpsynth_assets.privacy.accounting import epsilon_of
from dpsynth_assets.privacy.errors import UnaccountedReleaseError
from dpsynth_assets.privacy.events import PoissonGaussianEvent
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.monotone_search import smallest_multiplier
from dpsynth_assets.privacy.noisy_probabilities import (
    NoisyProbabilities,
    noisy_probabilities_event,
)
from dpsynth_assets.privacy.renyi import (
    ORDERS,
    epsilon_at_order,
    filter_order,
    renyi_divergence,
    zcdp_rho,
)
from dpsynth_assets.privacy.rounded import rounded_down, rounded_up

_BELOW = 1.0 - 1e-9
"""Keeps shares that sum to one from overspending by a rounding error."""


def sampling_probability(config: FewShotConfig, terms: CohortTerms) -> float | None:
    """Reads q = M N / (declared records of a label), at most 1; None if none are declared.

    The labels are taken to share the declared records equally: where they do not, subsets of a
    rare label hold fewer examples than N. What private records there are does not matter.
    """
    if terms.public_records is None:
        return None
    expected = config.subsets * config.examples_per_subset * len(terms.labels)
    return min(1.0, expected / max(1, terms.public_records))


def plan_few_shot(config: FewShotConfig, terms: CohortTerms, target_epsilon: float) -> MethodPlan:
    """Plans T = documents x greatest length steps of each label, all of them charged.

    A plan is refused where even a token on which all subsets agree would lose to the largest of K
    noises: its text would be noise.
    """
    chance = sampling_probability(config, terms)
    refusal = _refusal(chance, target_epsilon)
    if chance is None or refusal is not None:
        return MethodPlan.refused(GuaranteeType.DP, config.model_dump(mode="json"), refusal)
    multiplier = _noise_multiplier(config, terms, chance, target_epsilon)
    refusal = _noise_refusal(_mechanism(config, terms, chance, multiplier), target_epsilon)
    if refusal is not None:
        return MethodPlan.refused(GuaranteeType.DP, config.model_dump(mode="json"), refusal)
    return plan_at_noise(config, terms, multiplier)


def plan_at_noise(config: FewShotConfig, terms: CohortTerms, noise_multiplier: float) -> MethodPlan:
    """Plans T steps of each label at this noise, whatever they cost.

    Raises:
        ValueError: If no number of records is declared.
    """
    chance = sampling_probability(config, terms)
    if chance is None:
        raise ValueError("Expected a declared number of records, got none.")
    mechanism = _mechanism(config, terms, chance, noise_multiplier)
    event = mechanism.event()
    return MethodPlan(
        guarantee=GuaranteeType.DP,
        event=event,
        parameters=config.model_dump(mode="json")
        | {
            "sampling_probability": chance,
            "noise_multiplier": noise_multiplier,
            "noise_std": mechanism.noise_std,
            "steps_per_label": mechanism.steps,
            "noise": (
                f"Gaussian of std {mechanism.noise_std:.3g} on mean probabilities, "
                f"{mechanism.steps} steps a label, each record sampled with {chance:.3g}"
            ),
        },
        epsilon=epsilon_of([event], terms.delta, terms.accountant),
        rows_estimate=len(terms.labels) * config.documents_per_label + config.extra_documents,
    )


def planned_mechanism(
    plan: MethodPlan, config: FewShotConfig, terms: CohortTerms
) -> NoisyProbabilities:
    """Opens the mechanism of one label as planned.

    Raises:
        ValueError: If the plan refused.
        UnaccountedReleaseError: If the plan's event does not price these settings.
    """
    chance = sampling_probability(config, terms)
    if plan.refusal is not None or chance is None:
        raise ValueError(f"Expected a plan that can run, got a refusal: {plan.refusal}")
    mechanism = _mechanism(config, terms, chance, float(plan.parameters["noise_multiplier"]))
    if mechanism.event() != plan.event:
        raise UnaccountedReleaseError(
            "Expected the plan's event to price these settings, got another. Plan again."
        )
    return mechanism


def _mechanism(
    config: FewShotConfig, terms: CohortTerms, chance: float, noise_multiplier: float
) -> NoisyProbabilities:
    return NoisyProbabilities(
        subsets=config.subsets,
        examples_per_subset=config.examples_per_subset,
        sampling_probability=chance,
        noise_multiplier=noise_multiplier,
        steps=_steps(config),
        top_k=config.top_k,
        relation=terms.relation,
        max_records_per_unit=terms.unit.max_records,
        logit_slack=config.logit_slack,
    )


def _steps(config: FewShotConfig) -> int:
    return config.documents_per_label * config.max_document_tokens


def _noise_multiplier(
    config: FewShotConfig, terms: CohortTerms, chance: float, target_epsilon: float
) -> float:
    """Finds the smallest noise multiplier within the target, in two senses.

    A sampled Gaussian's Rényi curve bends upwards, and the ledger's filter compares releases at
    one order α that the cohort's budget fixes. There the steps must stay within α ρ, ρ what the
    target is worth: then shares of ρ that sum to one fit the filter, where noise calibrated at
    the release's own best order could exceed it hundreds of times. The release alone must also
    read at most the target; its best order is below that of unsampled noise.
    """
    order = filter_order(terms.epsilon, terms.delta)
    rho = zcdp_rho(target_epsilon, terms.delta) * _BELOW
    highest = filter_order(target_epsilon, terms.delta)
    orders = [each for each in ORDERS if each < highest] or ORDERS[:1]

    def event(multiplier: float) -> PoissonGaussianEvent:
        return noisy_probabilities_event(
            sampling_probability=chance,
            noise_multiplier=multiplier,
            steps=_steps(config),
            relation=terms.relation,
            max_records_per_unit=terms.unit.max_records,
        )

    def alone(multiplier: float) -> float:
        return min(
            epsilon_at_order(renyi_divergence(event(multiplier), each), each, terms.delta)
            for each in orders
        )

    unsampled = math.sqrt(float(event(1.0).rho) / rho)
    guess = max(unsampled * chance, min(unsampled, 0.5))
    found = smallest_multiplier(lambda z: renyi_divergence(event(z), order), guess, order * rho)
    if epsilon_of([event(found)], terms.delta, "zcdp") <= target_epsilon:
        return found
    return smallest_multiplier(alone, found, target_epsilon)


def _refusal(chance: float | None, target_epsilon: float) -> str | None:
    if chance is None:
        return (
            "Expected a declared number of records, from which few_shot computes the sampling "
            "probability, got none. Declare public_facts.records if the number is public, or use "
            "another method."
        )
    if target_epsilon <= 0:
        return (
            f"Expected target_epsilon > 0 for few_shot, got {rounded_up(target_epsilon)}. Give "
            "it a share."
        )
    return None


def _noise_refusal(mechanism: NoisyProbabilities, target_epsilon: float) -> str | None:
    """Refuses noise of whose K draws the largest, about std √(2 ln K), beats every agreement."""
    bound = 1.0 / math.sqrt(2.0 * math.log(max(2, mechanism.top_k)))
    if mechanism.noise_std < bound:
        return None
    return (
        f"Expected noise of std < {rounded_down(bound, '.3g')} on mean probabilities, got "
        f"{rounded_up(mechanism.noise_std, '.3g')} "
        f"at ε={rounded_up(target_epsilon)}: not even a unanimous token would stand out. Raise "
        "target_epsilon or subsets, or lower documents_per_label, max_document_tokens or top_k."
    )
