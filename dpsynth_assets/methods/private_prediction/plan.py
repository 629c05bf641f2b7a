"""Prices private prediction from declared facts: how many private tokens a batch may draw."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.stages import MethodPlan
from dpsynth_assets.methods.private_prediction.batching import uniform_batch_counts
from dpsynth_assets.methods.private_prediction.config import (
    InvisibleInkConfig,
    MeanSvtConfig,
    MedianClusteredConfig,
    PrivatePredictionConfig,
    UniformBatchesConfig,
)
from dpsynth_assets.privacy.accounting import epsilon_of, zcdp_rho
from dpsynth_assets.privacy.batch_terms import BatchTerms
from dpsynth_assets.privacy.calibration import largest_token_count
from dpsynth_assets.privacy.difference_clipping import DifferenceTokenMechanism
from dpsynth_assets.privacy.events import ComposedEvent, Event
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.rounded import declared, rounded_up
from dpsynth_assets.privacy.sparse_vector import PublicTokenTest
from dpsynth_assets.privacy.token_selection import MeanTokenMechanism


def batch_terms(config: PrivatePredictionConfig, terms: CohortTerms) -> BatchTerms:
    """Collects the declared facts of the batches; one record toggles one context."""
    return BatchTerms(
        expected_batch_size=config.expected_batch_size,
        relation=terms.relation,
        max_records_per_unit=terms.unit.max_records,
        logit_slack=config.logit_slack,
        batches_per_pass=config.batches_per_forward,
        load=largest_load(config, terms),
    )


def mean_mechanism(config: PrivatePredictionConfig, terms: CohortTerms) -> MeanTokenMechanism:
    """Builds the token mechanism from settings and declared terms.

    **Privacy** With k >= 2 the drop rule lets one record toggle one context, so a record's
    contribution is one logit vector for every k. A replaced record may leave one batch and enter
    another, at η each; the mechanism charges 2η in one batch, which covers both.
    """
    return MeanTokenMechanism(
        batch=batch_terms(config, terms),
        clip_bound=config.clip_bound,
        temperature=config.temperature,
        public_top_k=getattr(config, "public_top_k", None),
    )


def public_token_test(config: MeanSvtConfig, terms: CohortTerms) -> PublicTokenTest:
    """Builds the test of public tokens; one record toggles one context, as for the mean."""
    return PublicTokenTest(
        batch=batch_terms(config, terms),
        noise_scale=config.svt_noise_scale,
        threshold=config.svt_threshold,
    )


def difference_mechanism(
    config: InvisibleInkConfig, terms: CohortTerms
) -> DifferenceTokenMechanism:
    """Builds the token mechanism of clipped differences; one record toggles one context."""
    return DifferenceTokenMechanism(
        batch=batch_terms(config, terms),
        clip_bound=config.clip_bound,
        temperature=config.temperature,
        top_k=config.top_k,
    )


def plan_svt(config: MeanSvtConfig, terms: CohortTerms, target_epsilon: float) -> MethodPlan:
    """Plans mean aggregation with the public-token test: the most private tokens a batch.

    Every private token is paid with the AboveThreshold instance that led to it. Whether that is
    worth it depends on the text: the test pays off while the share of private tokens stays below
    `break_even_private_fraction`.

    **Source** Amin et al. 2024, Theorem 1; break-even from its two terms.
    """
    mechanism, test = mean_mechanism(config, terms), public_token_test(config, terms)
    each, tested = float(mechanism.event(1).rho), float(test.event(1).rho)
    plan = _plan_private_tokens(
        lambda tokens: svt_event(mechanism, test, tokens), config, terms, target_epsilon
    )
    extra = {
        "eta": mechanism.eta,
        "svt_epsilon": test.epsilon,
        "break_even_private_fraction": each / (each + tested),
    }
    return replace(plan, parameters={**plan.parameters, **extra})


def svt_event(mechanism: MeanTokenMechanism, test: PublicTokenTest, tokens: int) -> Event:
    """Prices `tokens` private tokens of every batch, each with its test."""
    return ComposedEvent(events=(mechanism.event(tokens), test.event(tokens)))


def plan_differences(
    config: InvisibleInkConfig, terms: CohortTerms, target_epsilon: float
) -> MethodPlan:
    """Plans difference clipping: the most private tokens a batch that `target_epsilon` allows."""
    mechanism = difference_mechanism(config, terms)
    plan = _plan_private_tokens(mechanism.event, config, terms, target_epsilon)
    return replace(plan, parameters={**plan.parameters, "eta": mechanism.eta})


def _plan_private_tokens(
    event_of: Callable[[int], Event],
    config: PrivatePredictionConfig,
    terms: CohortTerms,
    target_epsilon: float,
) -> MethodPlan:
    """Plans the most private tokens a batch, r, by ρ: r tokens cost r times the ρ of one."""
    tokens = 0
    if target_epsilon > 0:
        tokens = int(zcdp_rho(target_epsilon, terms.delta) / float(event_of(1).rho))
        if tokens and epsilon_of([event_of(tokens)], terms.delta, "zcdp") > target_epsilon:
            tokens -= 1  # The quotient was rounded up to a whole number.
    parameters = config.model_dump(mode="json") | {"tokens_per_batch": tokens}
    refusal = _refusal(config, terms, tokens, target_epsilon)
    if refusal is not None:
        return MethodPlan(
            guarantee=GuaranteeType.DP,
            event=None,
            parameters=parameters,
            tokens_per_batch=0,
            rows_estimate=0,
            refusal=refusal,
        )
    event = event_of(tokens)
    return MethodPlan(
        guarantee=GuaranteeType.DP,
        event=event,
        parameters=parameters,
        epsilon=epsilon_of([event], terms.delta, terms.accountant),
        tokens_per_batch=tokens,
        rows_estimate=_rows_estimate(config, terms, tokens),
    )


def plan_mean(
    config: PrivatePredictionConfig, terms: CohortTerms, target_epsilon: float
) -> MethodPlan:
    """Plans mean aggregation: the most tokens a batch that `target_epsilon` allows.

    Batches share no record, so r adaptive draws of one batch are the cost of all of them.

    **Source** Amin et al. 2024, Theorem 1 without public tokens; Lemma 2 for batches in parallel.
    """
    mechanism = mean_mechanism(config, terms)
    tokens = _tokens(mechanism, terms, target_epsilon)
    refusal = _refusal(config, terms, tokens, target_epsilon)
    if refusal is not None:
        return _refused(GuaranteeType.DP, config, mechanism.eta, refusal)
    event = mechanism.event(tokens)
    return MethodPlan(
        guarantee=GuaranteeType.DP,
        event=event,
        parameters=_parameters(config, mechanism.eta, tokens),
        epsilon=epsilon_of([event], terms.delta, terms.accountant),
        tokens_per_batch=tokens,
        rows_estimate=_rows_estimate(config, terms, tokens),
    )


def plan_median(
    config: MedianClusteredConfig, terms: CohortTerms, target_epsilon: float
) -> MethodPlan:
    """Plans median aggregation: the tokens the mean would get, and no event.

    Its cost depends on the data and the drawn tokens and is known only afterwards, so it cannot be
    planned; quantity is matched to the mean instead, as in the paper's comparison.

    **Source** Amin et al. 2025, section 6.1, "Privacy budget".
    """
    mechanism = mean_mechanism(config, terms)
    if not terms.accepts_ex_post:
        reason = (
            f"median_clustered gives an ex-post guarantee only, not (ε, δ)-DP; cohort "
            f"{terms.cohort!r} does not accept it. Set budget.accepts_ex_post: true, or use "
            "mean_clustered."
        )
        return _refused(GuaranteeType.EX_POST, config, mechanism.eta, reason)
    matched = config.matched_epsilon or target_epsilon
    if matched <= 0:
        reason = "Expected matched_epsilon for median_clustered without a budget share, got none."
        return _refused(GuaranteeType.EX_POST, config, mechanism.eta, reason)
    tokens = _tokens(mechanism, terms, matched)
    refusal = _refusal(config, terms, tokens, matched)
    if refusal is not None:
        return _refused(GuaranteeType.EX_POST, config, mechanism.eta, refusal)
    return MethodPlan(
        guarantee=GuaranteeType.EX_POST,
        event=None,
        parameters=_parameters(config, mechanism.eta, tokens) | {"matched_epsilon": matched},
        tokens_per_batch=tokens,
        rows_estimate=_rows_estimate(config, terms, tokens),
    )


def batches_per_label(config: UniformBatchesConfig, terms: CohortTerms) -> int | None:
    """Reads the public number of batches of one label; None if nothing public gives it."""
    if config.batches_per_label is not None:
        return config.batches_per_label
    if terms.public_records is None:
        return None
    records = terms.public_records / len(terms.labels)
    return max(1, round(records / (config.expected_batch_size * config.examples_per_context)))


def largest_pass(config: PrivatePredictionConfig, terms: CohortTerms) -> int:
    """Computes P, the most contexts of one forward pass: as many as are charged for."""
    return batch_terms(config, terms).rows_per_pass


def largest_load(config: PrivatePredictionConfig, terms: CohortTerms) -> float:
    """Estimates the records of a full batch, as a multiple of s, from public facts.

    Forward passes get room for so many, and are cut where it does not do (`pass_rows`): the price
    holds whatever the batches hold, and a good estimate spares passes.

    Clustered batches, and uniform ones cut by a histogram, follow released counts: s each. Cut by
    the declared number of records, a batch holds more than s where its label has more than an
    equal part; at most all records have it. With k >= 2 it has s contexts at most. Without either
    number nothing public says more than that s are expected.
    """
    if not isinstance(config, UniformBatchesConfig) or config.batching == "slots":
        return 1.0
    if config.examples_per_context > 1:
        return 1.0
    per_label = batches_per_label(config, terms)
    if per_label is None or terms.public_records is None:
        return 1.0
    expected = per_label * config.expected_batch_size * config.examples_per_context
    return max(1.0, terms.public_records / expected)


def _tokens(mechanism: MeanTokenMechanism, terms: CohortTerms, target_epsilon: float) -> int:
    if target_epsilon <= 0:
        return 0
    return largest_token_count(
        eta=mechanism.eta,
        target_epsilon=target_epsilon,
        delta=terms.delta,
        accountant=terms.accountant,
    )


def _refusal(
    config: PrivatePredictionConfig, terms: CohortTerms, tokens: int, epsilon: float
) -> str | None:
    if tokens < config.min_tokens_for_new_document:
        return (
            f"Expected at least {config.min_tokens_for_new_document} private tokens a batch "
            f"(min_tokens_for_new_document), got {tokens} at ε={rounded_up(epsilon)}, "
            f"δ={declared(terms.delta)}. "
            "Raise target_epsilon, expected_batch_size or temperature, or lower clip_bound, "
            "logit_slack or batches_per_forward."
        )
    if config.batching == "slots" and not terms.public_slots:
        return (
            "Expected public_facts.slots (label, cluster and place of every record are public) for "
            "batching: slots, got none. Declare it, or use batching: hashed."
        )
    if config.batching == "slots" and getattr(config, "batches_per_label", None) is not None:
        return (
            "Expected no batches_per_label with batching: slots, got one: the records' places say "
            "how many batches there are. Leave it out, or use batching: hashed."
        )
    has_counts = terms.has_cluster_histogram or config.batching == "slots"
    if isinstance(config, UniformBatchesConfig):
        has_counts = has_counts or batches_per_label(config, terms) is not None
    if not has_counts:
        return (
            "Expected a released or declared number of batches, got neither a cluster histogram "
            "nor a declared number of records. Declare cluster_histogram in the dataset file."
        )
    return None


def _refused(
    guarantee: GuaranteeType, config: PrivatePredictionConfig, eta: float, refusal: str
) -> MethodPlan:
    return MethodPlan(
        guarantee=guarantee,
        event=None,
        parameters=_parameters(config, eta, 0),
        tokens_per_batch=0,
        rows_estimate=0,
        refusal=refusal,
    )


def _parameters(config: PrivatePredictionConfig, eta: float, tokens: int) -> dict[str, Any]:
    return config.model_dump(mode="json") | {"eta": eta, "tokens_per_batch": tokens}


def _rows_estimate(config: PrivatePredictionConfig, terms: CohortTerms, tokens: int) -> int | None:
    """Counts rows if every document ran to its greatest length: a floor, from public facts."""
    batches = _generating_batches(config, terms)
    if batches is None:
        return None
    whole, left = divmod(tokens, config.max_document_tokens)
    kept = config.on_exhaustion == "finish_publicly"
    return batches * (whole + (kept and left >= config.min_tokens_for_new_document))


def _generating_batches(config: PrivatePredictionConfig, terms: CohortTerms) -> int | None:
    if isinstance(config, UniformBatchesConfig):
        per_label = batches_per_label(config, terms)
        if per_label is None:
            return None
        cells = uniform_batch_counts(len(terms.labels), per_label, config.max_batches)
        return sum(cell.generating for cell in cells)
    if terms.public_records is None:
        return None
    size = config.expected_batch_size * config.examples_per_context
    return min(config.max_batches, terms.public_records // size)
