"""Plan of a dataset: each release of a cohort with its mechanism and its event."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dpsynth_assets.datasets import MethodSpec
from dpsynth_assets.methods.base import CohortTerms, Method, Staged
from dpsynth_assets.methods.plan_cache import remembered
from dpsynth_assets.methods.stages import CANDIDATE_CORPUS, FINETUNED_GENERATOR, MethodPlan, Stage
from dpsynth_assets.privacy.accounting import epsilon_of, epsilon_of_fixed, epsilon_with_inputs
from dpsynth_assets.privacy.events import Event, event_to_json
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger import BudgetTerms, PlannedRelease
from dpsynth_assets.privacy.ledger.plans import is_secret

SHARED = "shared"
"""Folder of what all methods of a dataset share; the middle of its asset keys."""


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
        builds_on: Folders of the cohort whose corpora it reads. Of those that its settings name
            and that cannot be read, `plan.refusal` says why.
        follows_topics: Whether it reads the cohort's topic histogram.
    """

    spec: MethodSpec
    method: Method[Any]
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
    def config(self) -> Any:
        """The method's validated settings."""
        return self.method.config

    @property
    def writes_corpus(self) -> bool:
        """Whether it writes a corpus; a method may release a downstream model instead."""
        return self.method.writes_corpus


@dataclass(frozen=True, kw_only=True)
class DatasetPlan:
    """Everything a cohort will be charged for under its dataset file."""

    terms: CohortTerms
    budget: BudgetTerms
    histogram: PlannedShared | None
    methods: tuple[PlannedMethod, ...]
    topics: PlannedShared | None = None

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
        return tuple(planned for planned in self.methods if not planned.method.rows_are_free)

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
        """Events of the releases that a method's corpus builds on, its own release left out."""
        behind: list[Event] = []
        if self.topics is not None and planned.follows_topics:
            behind.append(self.topics.event)
        for stage in planned.plan.stages:
            own = planned.plan.charges.get(stage.name)
            read = self._events_read(planned, stage)
            made = () if own is None or stage.name == CANDIDATE_CORPUS else (own,)
            behind += [event for event in (*read, *made) if not _already(event, behind)]
        behind += [e for e in self._events_of_corpora(planned) if not _already(e, behind)]
        return tuple(behind)

    def epsilon_of_corpus(self, planned: PlannedMethod) -> float | None:
        """ε of a corpus with all that it builds on, by the plan; None where it has none.

        The ledger says what it is of the rows that were published.
        """
        own = () if planned.method.rows_are_free else (planned.plan.event,)
        events = [event for event in (*self.events_behind(planned), *own) if event is not None]
        if planned.plan.refusal is not None or planned.plan.guarantee is not GuaranteeType.DP:
            return None
        terms = self.budget
        key = {
            "epsilon of": [event_to_json(event) for event in events],
            "at": [terms.delta, terms.accountant, terms.epsilon],
        }
        found = remembered(
            key, lambda: epsilon_with_inputs(events, terms.delta, terms.accountant, terms.epsilon)
        )
        return float(found)

    def _events_of_corpora(self, planned: PlannedMethod) -> Sequence[Event]:
        """Events of the releases behind what a method builds on, theirs included."""
        behind: list[Event] = []
        for folder in planned.builds_on:
            read = self._events_of(self.method(folder), weights=planned.method.reads_generator)
            behind += [event for event in read if not _already(event, behind)]
        return behind

    def _events_of(self, other: PlannedMethod, *, weights: bool) -> Sequence[Event]:
        """Events of a method's corpus and all behind it, or of its fine-tuned weights alone."""
        made = FINETUNED_GENERATOR if weights else CANDIDATE_CORPUS
        own = other.plan.charges.get(made)
        stage = next((each for each in other.plan.stages if each.name == made), None)
        if weights and stage is not None:
            read = self.events_behind_stage(other, stage)
        else:
            read = self.events_behind(other)
        return (*read, *(() if own is None or _already(own, read) else (own,)))

    def events_behind_stage(
        self, planned: PlannedMethod | PlannedShared, stage: Stage
    ) -> Sequence[Event]:
        """Events of what one stage reads: earlier stages, shared histograms, other corpora."""
        read = self._events_read(planned, stage)
        if not (stage.reads_corpora and isinstance(planned, PlannedMethod)):
            return read
        others = self._events_of_corpora(planned)
        return [*read, *(event for event in others if not _already(event, read))]

    def _events_read(self, planned: PlannedMethod | PlannedShared, stage: Stage) -> Sequence[Event]:
        """Events of earlier stages and shared histograms that one stage reads."""
        charges, stages = planned.plan.charges, {each.name: each for each in planned.plan.stages}
        read, rest = [], list(stage.after)
        while rest:
            name = rest.pop()
            if name not in read:
                read.append(name)
                rest += stages[name].after
        shared = {name for each in (stage.name, *read) for name in stages[each].shared}
        histograms = [part.event for part in self.shared if part.method.name in shared]
        return [*histograms, *(charges[name] for name in charges if name in read)]

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
