"""Plan of a dataset: each release of a cohort with its mechanism and its event."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from dpsynth_assets.datasets import MethodSpec, PrivateDatasetSpec, PublicDataSpec
from dpsynth_assets.methods.base import CohortTerms, Method, Staged
from dpsynth_assets.methods.plan_cache import remembered
from dpsynth_assets.methods.provenance import PlanGraph
from dpsynth_assets.methods.stages import CANDIDATE_CORPUS, SHARED, MethodPlan, Step, Writing
from dpsynth_assets.privacy.accounting import epsilon_of, epsilon_of_fixed, epsilon_with_inputs
from dpsynth_assets.privacy.events import Event, event_to_json
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger import BudgetTerms, PlannedRelease
from dpsynth_assets.privacy.ledger.charges import is_secret


@dataclass(frozen=True, kw_only=True)
class PlannedShared:
    """A histogram that the methods of a dataset share.

    Attributes:
        method: What releases it, bound to its settings and the cohort's terms.
        plan: Its noise and its event.
        share: What it takes of the cohort's ρ.
        target_epsilon: What the share is worth alone, as ε; None where noise is declared.
    """

    method: Staged[Any]
    plan: MethodPlan
    share: float
    target_epsilon: float | None = None
    folder: str = SHARED

    @property
    def steps(self) -> tuple[Step, ...]:
        """Its one stage."""
        return self.plan.stages

    @cached_property
    def event(self) -> Event:
        """What will be charged."""
        (event,) = self.plan.charges.values()
        return event

    @cached_property
    def epsilon(self) -> float:
        """ε of the event alone at the cohort's δ; computed when asked, not when the UI opens."""
        terms = self.method.terms
        return epsilon_of_fixed([self.event], terms.delta, terms.accountant)


@dataclass(frozen=True, kw_only=True)
class PlannedMethod:
    """One method with its plan.

    Attributes:
        spec: Its entry in the dataset file.
        method: The method, bound to its validated settings and the cohort's terms.
        share: Share of the cohort's budget; 0 where it spends nothing.
        target_epsilon: What the share is worth alone, as ε.
        plan: What it will do and charge.
    """

    spec: MethodSpec
    method: Method[Any]
    share: float
    target_epsilon: float
    plan: MethodPlan

    @property
    def folder(self) -> str:
        """Name of the method within its dataset; the middle of its asset keys."""
        return self.spec.key

    @property
    def config(self) -> Any:
        """The method's validated settings."""
        return self.method.config

    @cached_property
    def writing(self) -> Writing | None:
        """How rows are written from what it released; None where a stage releases them."""
        return self.method.writing()

    @property
    def steps(self) -> tuple[Step, ...]:
        """Its stages, and the writing of its rows."""
        return (*self.plan.stages, *(() if self.writing is None else (self.writing,)))

    @property
    def rows_are_free(self) -> bool:
        """Whether no paid stage releases the rows."""
        return all(stage.name != CANDIDATE_CORPUS for stage in self.plan.stages)

    @property
    def corpus(self) -> str:
        """The node of its corpus, before the release gate (`provenance.PlanGraph`)."""
        return f"{self.folder}/{CANDIDATE_CORPUS}"

    @property
    def writes_corpus(self) -> bool:
        """Whether there is a corpus; a method may release a downstream model instead."""
        return self.writing is not None or not self.rows_are_free


@dataclass(frozen=True, kw_only=True)
class DatasetPlan:
    """Everything a cohort will be charged for under its dataset file.

    Attributes:
        spec: The cohort.
        base: Its public base; None where no file declares it.
        terms: Its declared terms, as methods read them.
        budget: Its budget, as the ledger reads it.
        histogram: The shared histogram of clusters, where one is declared.
        methods: Its methods, in the order of the file.
        topics: The shared histogram of topics, where one is declared.
    """

    spec: PrivateDatasetSpec = field(repr=False)
    base: PublicDataSpec | None = field(repr=False)
    terms: CohortTerms
    budget: BudgetTerms
    histogram: PlannedShared | None
    methods: tuple[PlannedMethod, ...]
    topics: PlannedShared | None = None

    @cached_property
    def graph(self) -> PlanGraph:
        """What each release is made from: the stages, shared histograms and corpora."""
        return PlanGraph(self.spec, self.base, self.shared, self.methods)

    @property
    def shared(self) -> tuple[PlannedShared, ...]:
        """The histograms that all methods share, as far as the dataset file declares them."""
        return tuple(part for part in (self.histogram, self.topics) if part is not None)

    @property
    def parts(self) -> "tuple[PlannedMethod | PlannedShared, ...]":
        """Shared histograms, then methods."""
        return (*self.shared, *self.methods)

    @property
    def releases(self) -> tuple[PlannedRelease, ...]:
        """The DP releases of one round, as the ledger pins them for fixed-plan accounting."""
        return tuple(
            PlannedRelease(asset=f"{self.terms.cohort}/{part.folder}/{stage}", event=event)
            for part in self.parts
            if part.plan.refusal is None
            for stage, event in part.plan.charges.items()
        )

    @property
    def corpora(self) -> tuple[PlannedMethod, ...]:
        """The methods that write a corpus."""
        return tuple(planned for planned in self.methods if planned.writes_corpus)

    @property
    def predictions(self) -> tuple[PlannedMethod, ...]:
        """The methods whose rows are themselves a paid release, drawn token by token."""
        return tuple(planned for planned in self.methods if not planned.rows_are_free)

    @property
    def events(self) -> tuple[Event, ...]:
        """Events of one round of every planned DP release; those of secrets have no ε at all."""
        events = (release.event for release in self.releases if release.event is not None)
        return tuple(event for event in events if not is_secret(event))

    @property
    def total_epsilon(self) -> float:
        """ε of one round of every planned DP release, composed in one accountant."""
        return epsilon_of(self.events, self.budget.delta, self.budget.accountant)

    def epsilon_of_corpus(self, planned: PlannedMethod) -> float | None:
        """ε of a corpus with all that it builds on, by the plan; None where it has none.

        The ledger says what it is of the rows that were published.
        """
        if planned.plan.refusal is not None or planned.plan.guarantee is not GuaranteeType.DP:
            return None
        own = self.graph.nodes[planned.corpus].event
        events = [*self.graph.events_behind(planned.corpus), *(() if own is None else (own,))]
        terms = self.budget
        key = {
            "epsilon of": [event_to_json(event) for event in events],
            "at": [terms.delta, terms.accountant, terms.epsilon],
        }
        found = remembered(
            key, lambda: epsilon_with_inputs(events, terms.delta, terms.accountant, terms.epsilon)
        )
        return float(found)

    def method(self, folder: str) -> PlannedMethod:
        """The planned method of one folder.

        Raises:
            KeyError: There is none of that name; the message lists those there are.
        """
        planned = {planned.folder: planned for planned in self.methods}
        if folder not in planned:
            raise KeyError(f"Expected a folder in {sorted(planned)}, got {folder!r}.")
        return planned[folder]
