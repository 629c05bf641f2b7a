"""The plan of a dataset: what every declared release will cost, before private data is read."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dpsynth_assets.datasets import HistogramSpec, MethodSpec, PrivateDatasetSpec
from dpsynth_assets.methods.base import CohortTerms, GenerationMethod, MethodPlan
from dpsynth_assets.methods.private_prediction.cluster_histogram import cluster_histogram_event
from dpsynth_assets.methods.registry import get_method
from dpsynth_assets.privacy.accounting import epsilon_of, epsilon_of_fixed
from dpsynth_assets.privacy.events import Event
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.histogram import scale_for
from dpsynth_assets.privacy.ledger import BudgetTerms, PlannedRelease
from dpsynth_assets.privacy.units import NeighboringRelation


@dataclass(frozen=True, kw_only=True)
class PlannedHistogram:
    """The cluster histogram: its noise and its event.

    Attributes:
        spec: Declared settings.
        target_epsilon: Share of the budget, as ε.
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
class PlannedMethod:
    """One declared method with its validated settings and its plan."""

    spec: MethodSpec
    method: GenerationMethod
    config: Any
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

    @property
    def releases(self) -> tuple[PlannedRelease, ...]:
        """The DP releases of one round, as the ledger pins them for fixed-plan accounting."""
        releases = []
        if self.histogram is not None:
            name = f"{self.terms.cohort}/shared/cluster_histogram"
            releases.append(PlannedRelease(asset=name, event=self.histogram.event))
        releases.extend(
            PlannedRelease(
                asset=f"{self.terms.cohort}/{planned.folder}/candidate_corpus",
                event=planned.plan.event,
            )
            for planned in self.methods
            if planned.plan.event is not None and planned.plan.refusal is None
        )
        return tuple(releases)

    @property
    def total_epsilon(self) -> float:
        """ε of one round of every planned DP release, composed in one accountant."""
        events = [release.event for release in self.releases if release.event is not None]
        return epsilon_of(events, self.budget.delta, self.budget.accountant)

    def events_behind(self, planned: PlannedMethod) -> Sequence[Event]:
        """Events of the releases that a method's corpus builds on."""
        if self.histogram is None or not planned.method.uses_histogram(planned.config, self.terms):
            return ()
        return (self.histogram.event,)

    def method(self, folder: str) -> PlannedMethod:
        """The planned method of one folder."""
        return next(planned for planned in self.methods if planned.folder == folder)


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
        accepts_ex_post=spec.budget.accepts_ex_post,
        has_cluster_histogram=spec.cluster_histogram is not None,
    )


def budget_terms(spec: PrivateDatasetSpec) -> BudgetTerms:
    """The cohort's budget as the ledger stores it."""
    facts = [f"label set of {column}" for column in spec.public_facts.labels]
    if spec.public_facts.records is not None:
        facts.append("number of records")
    return BudgetTerms(
        epsilon=spec.budget.epsilon,
        delta=spec.budget.delta,
        accountant=spec.budget.accountant,
        relation=NeighboringRelation(spec.neighboring_relation),
        unit=spec.unit,
        accepts_ex_post=spec.budget.accepts_ex_post,
        public_facts=tuple(facts),
    )


def plan_dataset(spec: PrivateDatasetSpec) -> DatasetPlan:
    """Prices every declared release from public facts alone.

    Raises:
        ValueError: If a method or its settings are unknown.
    """
    terms = cohort_terms(spec)
    return DatasetPlan(
        terms=terms,
        budget=budget_terms(spec),
        histogram=None if spec.cluster_histogram is None else _plan_histogram(spec, terms),
        methods=tuple(_plan_method(entry, terms) for entry in spec.methods),
    )


def _plan_histogram(spec: PrivateDatasetSpec, terms: CohortTerms) -> PlannedHistogram:
    """Calibrates the two equal histograms of rebalancing to the declared share."""
    declared = spec.cluster_histogram
    if declared is None:
        raise ValueError("Expected cluster_histogram in the dataset file, got none.")
    target = declared.budget_share * terms.epsilon
    laplace = declared.noise == "laplace"
    # Pure ε adds up: half for each histogram. Two Gaussians of σ√2 cost what one of σ costs.
    scale = (1.0 if laplace else math.sqrt(2)) * scale_for(
        epsilon=target / 2 if laplace else target,
        delta=terms.delta,
        noise=declared.noise,
        relation=terms.relation,
        max_records_per_unit=terms.unit.max_records,
        accountant=terms.accountant,
    )
    event = cluster_histogram_event(noise=declared.noise, scale=scale, terms=terms)
    return PlannedHistogram(
        spec=declared,
        target_epsilon=target,
        scale=scale,
        event=event,
        terms=terms,
    )


def _plan_method(entry: MethodSpec, terms: CohortTerms) -> PlannedMethod:
    method = get_method(entry.method)
    config = method.config_type.model_validate(entry.settings)
    target = (entry.budget_share or 0.0) * terms.epsilon
    return PlannedMethod(
        spec=entry,
        method=method,
        config=config,
        target_epsilon=target,
        plan=_priced(method, config, terms, target),
    )


def _priced(method: GenerationMethod, config: Any, terms: CohortTerms, target: float) -> MethodPlan:
    """Plans a method; one that spends needs a share of the budget."""
    if target <= 0 and method.guarantee is GuaranteeType.DP:
        return MethodPlan(
            guarantee=method.guarantee,
            event=None,
            parameters={},
            refusal=(
                f"Expected budget_share > 0 for {method.name}, got none. "
                "Give the method a share in the dataset file."
            ),
        )
    return method.plan(config, terms, target_epsilon=target)
