"""What a plan will release and from what: the graph that a ledger holds once it was charged.

Nodes are the shared histograms, the stages of every method, and the corpora; an edge is what one
reads of another. Definitions, requests, prices and audits read it.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dpsynth_assets.datasets import PrivateDatasetSpec, PublicDataSpec
from dpsynth_assets.methods.capabilities import reads_weights
from dpsynth_assets.methods.dependencies import Methods, Part, readable_corpora
from dpsynth_assets.methods.stages import (
    CANDIDATE_CORPUS,
    FINETUNED_GENERATOR,
    SHARED,
    Stage,
    Step,
    with_corpora_behind,
)
from dpsynth_assets.methods.topic_histogram import TOPIC_HISTOGRAM
from dpsynth_assets.privacy.events import Event
from dpsynth_assets.privacy.ledger import Provenance

if TYPE_CHECKING:
    from dpsynth_assets.methods.dataset_plan import PlannedMethod


@dataclass(frozen=True)
class Node:
    """One value that a plan releases.

    Attributes:
        spec: The cohort.
        base: Its public base; None where no file declares it.
        part: The method, or the shared histogram.
        stage: The stage that releases it; None for rows written from what all stages released.
        reads: Names of the stages and histograms that it reads, by the last part of each.
        corpora: Names of the corpora that it reads, or of the weights behind them, by folder.
    """

    spec: PrivateDatasetSpec = field(repr=False)
    base: PublicDataSpec | None = field(repr=False)
    part: Part
    stage: Stage | None
    reads: Mapping[str, str]
    corpora: Mapping[str, str]

    @property
    def name(self) -> str:
        """Folder and last part of its asset's key."""
        return f"{self.part.folder}/{CANDIDATE_CORPUS if self.stage is None else self.stage.name}"

    @property
    def step(self) -> Step:
        """The stage, or the writing of the rows."""
        step = self.stage or self.part.method.writing()
        if step is None:
            raise TypeError(f"Expected a method that writes rows, got {self.part.folder}.")
        return step

    @property
    def event(self) -> Event | None:
        """What is charged for it alone; None where nothing is, or an ex-post bound alone."""
        return None if self.stage is None else self.part.plan.charges.get(self.stage.name)

    @property
    def drawn_from(self) -> dict[str, Any]:
        """What the declarations decide about its draw: JSON values, public."""
        return drawn_from(self.spec, self.base, self.part)

    def inputs(self, public: Mapping[str, str], charges: Mapping[str, str]) -> dict[str, str]:
        """Identity of all that it is made from, as its request names it.

        Args:
            public: Identity of each public artifact that it reads, by name.
            charges: Reservation of each node that it reads, by the node's name.
        """
        read = {name: charges[node] for name, node in self.reads.items()}
        corpora = {folder: charges[node] for folder, node in self.corpora.items()}
        return with_corpora_behind({**public, **read}, corpora)


class PlanGraph(Provenance):
    """The nodes of a plan by their names, shared histograms first.

    Attributes:
        nodes: Nodes by name, `folder/stage` or `folder/candidate_corpus`.
    """

    def __init__(
        self,
        spec: PrivateDatasetSpec,
        base: PublicDataSpec | None,
        shared: Iterable[Part],
        methods: "Iterable[PlannedMethod]",
    ) -> None:
        """Links what is planned; a corpus that a method may not read is no edge."""
        known = {planned.folder: planned for planned in methods}
        found = [
            Node(spec, base, part, stage, _read(part, stage), {})
            for part in shared
            for stage in part.plan.stages
        ]
        follows = {TOPIC_HISTOGRAM} & {node.name.removeprefix(f"{SHARED}/") for node in found}
        for planned in known.values():
            own, corpora = f"{planned.folder}/", _corpora(planned, known)
            for stage in planned.plan.stages:
                read = corpora if stage.reads_corpora else {}
                found.append(Node(spec, base, planned, stage, _read(planned, stage), read))
            if planned.writing is not None:
                topics = follows if planned.writing.follows_topics else ()
                rows = {each.name: own + each.name for each in planned.plan.stages}
                rows |= {name: f"{SHARED}/{name}" for name in topics}
                found.append(Node(spec, base, planned, None, rows, corpora))
        self.nodes = {node.name: node for node in found}

    def reads(self, name: str) -> Collection[str]:
        """Names of what a node reads."""
        node = self.nodes.get(name)
        return () if node is None else (*node.reads.values(), *node.corpora.values())

    def events_behind(self, name: str) -> tuple[Event, ...]:
        """Events of all paid releases behind a node, its own left out."""
        behind = self.behind(name)
        events = (node.event for other, node in self.nodes.items() if other in behind)
        return tuple(event for event in events if event is not None)


def _read(part: Part, stage: Stage) -> dict[str, str]:
    """Stages and shared histograms that a stage reads."""
    own = {name: f"{part.folder}/{name}" for name in stage.after}
    return own | {name: f"{SHARED}/{name}" for name in stage.shared}


def _corpora(planned: "PlannedMethod", known: Methods) -> dict[str, str]:
    """Corpora that a method reads, or the weights that wrote them, by folder."""
    found = {}
    for folder in readable_corpora(planned, known):
        stages = [stage.name for stage in known[folder].plan.stages]
        weights = reads_weights(planned.method) and FINETUNED_GENERATOR in stages
        found[folder] = f"{folder}/{FINETUNED_GENERATOR if weights else CANDIDATE_CORPUS}"
    return found


_RUNNING = (
    "device",
    "batch_rows",
    "tensor_parallel_size",
    "memory_fraction",
    "cache_gib",
    "api_key_variable",
    "concurrency",
    "timeout_seconds",
    "attempts",
    "price_per_million_prompt_tokens",
    "price_per_million_new_tokens",
    "cost_limit",
)
"""Fields of an engine that say where it runs and what that may cost, not what it computes."""

NO_PART = frozenset(
    {
        "description",
        "owners",
        "budget",
        "parts",
        "cohorts.settle_minutes",
        "cohorts.delay_days",
        "evaluation",
        "schedule",
        "secrets.planted",
        "secrets.kinds.examples",
        "public_data.description",
        "public_data.language_model.device",
        "public_data.conditional_generator.device",
        *(f"engine.{name}" for name in _RUNNING),
    }
)
"""Fields that decide nothing about a draw; the price that a budget gives is in the request."""


def drawn_from(
    spec: PrivateDatasetSpec, base: PublicDataSpec | None, planned: Part
) -> dict[str, Any]:
    """Writes what the declarations decide about a method's draws: JSON values, public.

    A request names a release; which records stand in which batch, and what reads them, follows from
    the whole declaration. So all of it is kept with the charge, but for the fields named above, and
    a killed run is resumed under equal facts alone: half a draw under one division of the records
    and half under another would read a record twice for one payment. docs/privacy.md has the table
    by field.

    Args:
        spec: The cohort.
        base: Its public base; None where no file declares it.
        planned: The method, or the histogram that methods share.
    """
    declared = spec.model_dump(mode="json", exclude={"methods"})
    if base is not None:
        declared["public_data"] = base.model_dump(mode="json")
    facts: dict[str, Any] = _deciding(declared)
    settings = planned.method.config.model_dump(mode="json")
    own = {name: it for name, it in settings.items() if name not in planned.plan.free_settings}
    return {**facts, "settings": own, "labels": list(spec.composite_labels[0])}


def _deciding(value: Any, path: str = "") -> Any:
    if isinstance(value, Mapping):
        places = {name: f"{path}.{name}".removeprefix(".") for name in value}
        return {
            name: _deciding(it, places[name])
            for name, it in value.items()
            if places[name] not in NO_PART
        }
    return [_deciding(each, path) for each in value] if isinstance(value, list) else value
