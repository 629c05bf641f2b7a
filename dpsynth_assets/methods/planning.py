"""The plan of a dataset: what every declared release will cost, before private data is read.

A budget share is a share of ρ (zCDP), because ρ adds up where ε does not: shares that sum to one
cost the whole budget, and no part of it is lost to composition. `tight` cohorts are sized the same
way and then scaled as a whole until the privacy-loss distribution of all releases together meets
the budget (`plan_scale`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dpsynth_assets.datasets import HistogramSpec, MethodSpec, PrivateDatasetSpec
from dpsynth_assets.methods.base import CohortTerms, GenerationMethod, Method, MethodPlan
from dpsynth_assets.methods.plan_scale import fitted_scale
from dpsynth_assets.methods.private_prediction.cluster_histogram import cluster_histogram_event
from dpsynth_assets.methods.registry import REGISTRY, get_method
from dpsynth_assets.methods.secret_shares import divided_secret_shares
from dpsynth_assets.methods.staged import StagedMethod
from dpsynth_assets.models.prompt_templates import declared_templates
from dpsynth_assets.privacy.accounting import (
    epsilon_of,
    epsilon_of_fixed,
    zcdp_epsilon,
    zcdp_rho,
)
from dpsynth_assets.privacy.events import Event
from dpsynth_assets.privacy.gaussian_dp import gaussian_mu
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.histogram import scale_for
from dpsynth_assets.privacy.ledger import BudgetTerms, PlannedRelease, SecretTerms
from dpsynth_assets.privacy.ledger.plans import is_secret
from dpsynth_assets.privacy.units import NeighboringRelation

_BELOW = 1.0 - 1e-9
"""Keeps a plan of shares that sum to one from overspending by a rounding error."""


@dataclass(frozen=True, kw_only=True)
class PlannedHistogram:
    """The cluster histogram: its noise and its event.

    Attributes:
        spec: Declared settings.
        target_epsilon: What its share of the budget is worth alone, as ε.
        scale: Noise scale of each of the two histograms (Laplace b, or Gaussian σ), in records.
        event: What will be charged.
        terms: The cohort's declared terms.
    """

    spec: HistogramSpec
    target_epsilon: float
    scale: float
    event: Event
    terms: CohortTerms

    @property
    def epsilon(self) -> float:
        """ε of the event alone at the cohort's δ; computed when asked, not when the UI opens."""
        return epsilon_of_fixed([self.event], self.terms.delta, self.terms.accountant)


@dataclass(frozen=True, kw_only=True)
class PlannedTopics:
    """The topic histogram: its noise and its event.

    Attributes:
        noise_std: Standard deviation of the noise of each count, in records.
        event: What will be charged.
        terms: The cohort's declared terms.
        share: What it takes of the cohort's ρ.
    """

    noise_std: float
    event: Event
    terms: CohortTerms
    share: float

    @property
    def epsilon(self) -> float:
        """ε of the event alone at the cohort's δ; computed when asked, not when the UI opens."""
        return epsilon_of_fixed([self.event], self.terms.delta, self.terms.accountant)


@dataclass(frozen=True, kw_only=True)
class PlannedMethod:
    """One method with its validated settings and its plan.

    Attributes:
        spec: Its entry in the dataset file.
        method: The registered method.
        config: Its validated settings.
        share: Share of the cohort's budget; 0 where it spends nothing.
        target_epsilon: What the share is worth alone, as ε.
        plan: What it will do and charge.
    """

    spec: MethodSpec
    method: Method
    config: Any
    share: float
    target_epsilon: float
    plan: MethodPlan

    @property
    def folder(self) -> str:
        """Name of the method within its dataset; the middle of its asset keys."""
        return self.spec.key


@dataclass(frozen=True, kw_only=True)
class DatasetPlan:
    """Everything a cohort will be charged for under its dataset file."""

    terms: CohortTerms
    budget: BudgetTerms
    histogram: PlannedHistogram | None
    methods: tuple[PlannedMethod, ...]
    topics: PlannedTopics | None = None

    @property
    def releases(self) -> tuple[PlannedRelease, ...]:
        """The DP releases of one round, as the ledger pins them for fixed-plan accounting."""
        releases = []
        if self.histogram is not None:
            name = f"{self.terms.cohort}/shared/cluster_histogram"
            releases.append(PlannedRelease(asset=name, event=self.histogram.event))
        if self.topics is not None:
            name = f"{self.terms.cohort}/shared/topic_histogram"
            releases.append(PlannedRelease(asset=name, event=self.topics.event))
        for planned in self.methods:
            if planned.plan.refusal is None:
                releases += self._charged(planned)
        return tuple(releases)

    def _charged(self, planned: PlannedMethod) -> list[PlannedRelease]:
        """What one method charges itself: a line a stage, or one for its corpus."""
        place = f"{self.terms.cohort}/{planned.folder}"
        if isinstance(planned.method, StagedMethod):
            return [
                PlannedRelease(asset=f"{place}/{stage}", event=event)
                for stage, event in planned.plan.stages.items()
            ]
        if planned.plan.event is None:
            return []
        return [PlannedRelease(asset=f"{place}/candidate_corpus", event=planned.plan.event)]

    @property
    def corpora(self) -> tuple[PlannedMethod, ...]:
        """The methods that write a corpus; a staged one may release a downstream model instead."""
        return tuple(
            planned
            for planned in self.methods
            if not isinstance(planned.method, StagedMethod) or planned.method.writes_corpus
        )

    @property
    def predictions(self) -> tuple[PlannedMethod, ...]:
        """The methods that decode privately, token by token, in a single release."""
        return tuple(p for p in self.methods if isinstance(p.method, GenerationMethod))

    @property
    def events(self) -> tuple[Event, ...]:
        """Events of one round of every planned DP release; those of secrets have no ε at all."""
        events = (release.event for release in self.releases if release.event is not None)
        return tuple(event for event in events if not is_secret(event))

    @property
    def total_epsilon(self) -> float:
        """ε of one round of every planned DP release, composed in one accountant."""
        return epsilon_of(self.events, self.budget.delta, self.budget.accountant)

    def events_behind(self, planned: PlannedMethod) -> Sequence[Event]:
        """Events of the releases that a method's corpus builds on."""
        method, config = planned.method, planned.config
        behind: list[Event] = []
        if self.histogram is not None and method.uses_histogram(config, self.terms):
            behind.append(self.histogram.event)
        if self.topics is not None and method.uses_topics(config):
            behind.append(self.topics.event)
        if isinstance(method, StagedMethod):
            behind.extend(planned.plan.stages.values())
        for folder in method.builds_on(config):
            other = self.method(folder)
            own = () if isinstance(other.method, StagedMethod) else (other.plan.event,)
            inherited = [*self.events_behind(other), *own]
            behind.extend(e for e in inherited if e is not None and not _already(e, behind))
        return tuple(behind)

    def method(self, folder: str) -> PlannedMethod:
        """The planned method of one folder."""
        return next(planned for planned in self.methods if planned.folder == folder)


def _already(event: Event, behind: Sequence[Event]) -> bool:
    """Whether the very same shared release is among the events already."""
    return any(event is other for other in behind)


def cohort_terms(spec: PrivateDatasetSpec) -> CohortTerms:
    """The facts a plan may use: declared in the dataset file, never computed from records."""
    labels, label_texts = spec.composite_labels
    return CohortTerms(
        cohort=spec.name,
        relation=NeighboringRelation(spec.neighboring_relation),
        unit=spec.unit,
        epsilon=spec.budget.epsilon,
        delta=spec.budget.delta,
        accountant=spec.budget.accountant,
        labels=labels,
        label_texts=label_texts,
        public_records=spec.public_facts.records,
        public_slots=spec.public_facts.slots,
        accepts_ex_post=spec.budget.accepts_ex_post,
        has_cluster_histogram=spec.cluster_histogram is not None,
        prompts=declared_templates(spec),
        engine=spec.engine,
        secrets=None if spec.secrets is None else spec.secrets.promise,
    )


def budget_terms(spec: PrivateDatasetSpec) -> BudgetTerms:
    """The cohort's budget as the ledger stores it."""
    facts = [f"label set of {column}" for column in spec.public_facts.labels]
    if spec.public_facts.records is not None:
        facts.append("number of records")
    if spec.public_facts.slots:
        facts.append("label, public cluster and place of every record: only its text is protected")
    return BudgetTerms(
        epsilon=spec.budget.epsilon,
        delta=spec.budget.delta,
        accountant=spec.budget.accountant,
        relation=NeighboringRelation(spec.neighboring_relation),
        unit=spec.unit,
        accepts_ex_post=spec.budget.accepts_ex_post,
        public_facts=tuple(facts),
        monthly_epsilon=spec.budget.monthly_epsilon,
        partition=spec.partition,
        secret=_secret_terms(spec),
    )


def _secret_terms(spec: PrivateDatasetSpec) -> SecretTerms | None:
    """What is promised to secrets, as the ledger checks it: the first kind, then the others.

    **Privacy** A DP release bounds neighbours one unit apart: a secret's neighbours are as many
    steps away as records hold it, twice as many where a replaced record is one that goes and one
    that comes.
    """
    if spec.secrets is None:
        return None
    promise = spec.secrets.promise
    (prior, posterior), *others = promise.bounds
    replaced = promise.relation is NeighboringRelation.REPLACE_ONE
    steps = 2 if replaced and spec.neighboring_relation is not promise.relation else 1
    return SecretTerms(
        prior=prior,
        posterior=posterior,
        occurrences=steps * promise.max_records,
        others=tuple(others),
    )


def plan_dataset(spec: PrivateDatasetSpec) -> DatasetPlan:
    """Prices every declared release from public facts alone.

    Raises:
        ValueError: If a method or its settings are unknown.
    """
    terms = cohort_terms(spec)
    if terms.accountant == "zcdp":
        return _plan_at(spec, terms, 1.0)
    if not any(_spends(entry) for entry in spec.methods):
        plan = _plan_at(spec, terms, 1.0)
        if not plan.events:
            return plan  # Nothing costs ε, so nothing can be scaled to it.

    def events(scale: float) -> tuple[Event, ...]:
        return _plan_at(spec, terms, scale).events * spec.budget.rounds

    return _plan_at(spec, terms, fitted_scale(events, terms.epsilon, terms.delta))


def price_undeclared(spec: PrivateDatasetSpec, plan: DatasetPlan) -> tuple[PlannedMethod, ...]:
    """Prices every registered method that the file does not name, with its default settings.

    Each is given all that the cluster histogram leaves of the budget: what the method could do if
    it were the only one.
    """
    declared = {planned.method.name for planned in plan.methods}
    left = 1.0 - _shared_share(spec, plan.terms)
    worth = _worth(plan.terms, left / spec.budget.rounds)
    return tuple(
        _plan_method(MethodSpec(method=name), plan.terms, left, worth)
        for name in REGISTRY
        if name not in declared
    )


def _plan_at(spec: PrivateDatasetSpec, terms: CohortTerms, scale: float) -> DatasetPlan:
    """Plans one round with every share multiplied by `scale`."""
    scale /= spec.budget.rounds
    shares = _shares(spec, terms)
    of_secrets = _secret_shares(spec)
    matched = {entry.key: shares[entry.key] for entry in spec.methods}
    for entry in spec.methods:  # What is ex-post is matched to the largest share in quantity.
        if get_method(entry.method).guarantee is not GuaranteeType.DP:
            matched[entry.key] = matched[entry.key] or max(shares.values())
    return DatasetPlan(
        terms=terms,
        budget=budget_terms(spec),
        histogram=None
        if spec.cluster_histogram is None
        else _plan_histogram(spec.cluster_histogram, terms, scale),
        methods=tuple(
            _plan_method(
                entry,
                replace(terms, secret_share=of_secrets.get(entry.key)),
                shares[entry.key],
                _worth(terms, matched[entry.key] * scale),
            )
            for entry in spec.methods
        ),
        topics=_plan_topics(spec, terms),
    )


def _shares(spec: PrivateDatasetSpec, terms: CohortTerms) -> dict[str, float]:
    """Share of each method by folder: declared, or an equal part of what the others leave."""
    open_keys = [
        entry.key for entry in spec.methods if entry.budget_share is None and _spends(entry)
    ]
    left = max(0.0, 1.0 - spec.budget_shares - _topics_share(spec, terms))
    return {
        entry.key: left / len(open_keys) if entry.key in open_keys else entry.budget_share or 0.0
        for entry in spec.methods
    }


def _secret_shares(spec: PrivateDatasetSpec) -> dict[str, float]:
    """Share of the secrets' bound, in one round, of each method that protects them."""
    secret = _secret_terms(spec)
    claims = {
        entry.key: get_method(entry.method).config_type.model_validate(entry.settings)
        for entry in spec.methods
        if get_method(entry.method).guarantee is GuaranteeType.SECRET
    }
    if secret is None or not claims:
        return {}
    shared = spec.cluster_histogram is not None or spec.topic_histogram is not None
    dp = shared or any(_spends(entry) for entry in spec.methods)
    return divided_secret_shares(
        {key: getattr(config, "secret_share", None) for key, config in claims.items()},
        secret,
        rounds=spec.budget.rounds,
        dp_mu=gaussian_mu(spec.budget.epsilon, spec.budget.delta) if dp else 0.0,
    )


def _spends(entry: MethodSpec) -> bool:
    method = get_method(entry.method)
    return method.spends and method.guarantee is GuaranteeType.DP


def _shared_share(spec: PrivateDatasetSpec, terms: CohortTerms) -> float:
    """What the shared histograms of a file take of the budget."""
    clusters = 0.0 if spec.cluster_histogram is None else spec.cluster_histogram.budget_share
    return clusters + _topics_share(spec, terms)


def _topics_share(spec: PrivateDatasetSpec, terms: CohortTerms) -> float:
    """Share of ρ that the topic histogram takes in all rounds: its noise is declared, not sized."""
    planned = _plan_topics(spec, terms)
    return 0.0 if planned is None else planned.share * spec.budget.rounds


def _plan_topics(spec: PrivateDatasetSpec, terms: CohortTerms) -> PlannedTopics | None:
    """Prices the declared noise; independent of every share."""
    if spec.topic_histogram is None:
        return None
    from dpsynth_assets.methods.topic_histogram import topic_histogram_event

    noise_std = spec.topic_histogram.noise_std
    event = topic_histogram_event(noise_std, terms)
    share = float(event.rho) / zcdp_rho(terms.epsilon, terms.delta)
    return PlannedTopics(noise_std=noise_std, event=event, terms=terms, share=share)


def _worth(terms: CohortTerms, share: float) -> float:
    """ε of a release that takes `share` of the cohort's ρ, alone at the cohort's δ."""
    if share <= 0:
        return 0.0
    return zcdp_epsilon(share * _BELOW * zcdp_rho(terms.epsilon, terms.delta), terms.delta)


def _plan_histogram(
    declared: HistogramSpec, terms: CohortTerms, share_scale: float
) -> PlannedHistogram:
    """Calibrates the two equal histograms of rebalancing to the declared share of ρ."""
    share = declared.budget_share * share_scale
    rho = share * _BELOW * zcdp_rho(terms.epsilon, terms.delta)
    # Half of ρ each: ε²/2 of a pure release, Δ²/(2σ²) of a Gaussian one.
    if declared.noise == "laplace":
        scale = scale_for(
            epsilon=math.sqrt(rho),
            delta=terms.delta,
            noise="laplace",
            relation=terms.relation,
            max_records_per_unit=terms.unit.max_records,
        )
    else:
        scale = math.sqrt(2) * scale_for(
            epsilon=zcdp_epsilon(rho, terms.delta),
            delta=terms.delta,
            noise="gaussian",
            relation=terms.relation,
            max_records_per_unit=terms.unit.max_records,
        )
    return PlannedHistogram(
        spec=declared,
        target_epsilon=_worth(terms, share),
        scale=scale,
        event=cluster_histogram_event(noise=declared.noise, scale=scale, terms=terms),
        terms=terms,
    )


def _plan_method(
    entry: MethodSpec, terms: CohortTerms, share: float, target_epsilon: float
) -> PlannedMethod:
    method = get_method(entry.method)
    config = method.config_type.model_validate(entry.settings)
    return PlannedMethod(
        spec=entry,
        method=method,
        config=config,
        share=share,
        target_epsilon=target_epsilon,
        plan=_priced(method, config, terms, target_epsilon),
    )


def _priced(method: Method, config: Any, terms: CohortTerms, target: float) -> MethodPlan:
    """Sizes a method by ρ, in which shares add up, and states its ε by the cohort's accountant."""
    if target <= 0 and method.spends and method.guarantee is GuaranteeType.DP:
        return MethodPlan(
            guarantee=method.guarantee,
            event=None,
            parameters={},
            refusal=(
                f"Expected a budget_share for {method.name}, got none: the other releases take "
                "the whole budget. Lower their shares in the dataset file."
            ),
        )
    staged = isinstance(method, StagedMethod)  # Calibrates noise by the cohort's own accountant.
    known = terms if staged else replace(terms, accountant="zcdp")
    plan = method.plan(config, known, target_epsilon=target)
    if terms.prompts is not None:  # Other prompts are another release.
        plan = replace(plan, parameters={**plan.parameters, "prompts": terms.prompts.to_json()})
    if plan.event is None or terms.accountant == "zcdp" or staged:
        return plan
    return replace(plan, epsilon=epsilon_of([plan.event], terms.delta, terms.accountant))
