"""What a plan says: each release of a cohort with its noise and its event."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dpsynth_assets.datasets import HistogramSpec, MethodSpec
from dpsynth_assets.methods.base import CohortTerms, GenerationMethod, Method, MethodPlan
from dpsynth_assets.methods.staged import StagedMethod
from dpsynth_assets.privacy.accounting import epsilon_of, epsilon_of_fixed
from dpsynth_assets.privacy.events import Event
from dpsynth_assets.privacy.ledger import BudgetTerms, PlannedRelease
from dpsynth_assets.privacy.ledger.plans import is_secret


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
        builds_on: Folders of the cohort whose corpora it reads. Of those that its settings name
            and that cannot be read, `plan.refusal` says why.
        follows_topics: Whether it reads the cohort's topic histogram.
    """

    spec: MethodSpec
    method: Method
    config: Any
    share: float
    target_epsilon: float
    plan: MethodPlan
    builds_on: tuple[str, ...] = ()
    follows_topics: bool = False

    @property
    def folder(self) -> str:
        """Name of the method within its dataset; the middle of its asset keys."""
        return self.spec.key

    @property
    def writes_corpus(self) -> bool:
        """Whether it writes a corpus; a staged one may release a downstream model instead."""
        return not isinstance(self.method, StagedMethod) or self.method.writes_corpus


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
        """The methods that write a corpus."""
        return tuple(planned for planned in self.methods if planned.writes_corpus)

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
        if self.topics is not None and planned.follows_topics:
            behind.append(self.topics.event)
        if isinstance(method, StagedMethod):
            behind.extend(planned.plan.stages.values())
        for folder in planned.builds_on:
            other = self.method(folder)
            own = () if isinstance(other.method, StagedMethod) else (other.plan.event,)
            inherited = [*self.events_behind(other), *own]
            behind.extend(e for e in inherited if e is not None and not _already(e, behind))
        return tuple(behind)

    def method(self, folder: str) -> PlannedMethod:
        """The planned method of one folder.

        Raises:
            KeyError: There is none of that name; the message lists those there are.
        """
        planned = {planned.folder: planned for planned in self.methods}
        if folder not in planned:
            raise KeyError(f"Expected a folder in {sorted(planned)}, got {folder!r}.")
        return planned[folder]


def _already(event: Event, behind: Sequence[Event]) -> bool:
    """Whether the very same shared release is among the events already."""
    return any(event is other for other in behind)
