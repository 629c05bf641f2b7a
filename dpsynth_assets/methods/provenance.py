"""The graph of a plan: what it will release, and from which other releases.

Nodes are the shared histograms, the stages of every method, and the corpora; an edge is what one
reads of another. Definitions, requests, prices and audits read it.

A method whose inputs are not there is refused, and what cannot be is left out of its links: so the
asset graph stays whole, and one mistaken dataset file never keeps the other cohorts from opening.

**Privacy** Post-processing inherits the guarantee of what it reads: rows chosen from a corpus that
is not (ε, δ)-DP are not (ε, δ)-DP, however they are chosen. So a method may build on a corpus only
if every step behind it is.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from dpsynth_assets.datasets import PrivateDatasetSpec, Problem, PublicDataSpec
from dpsynth_assets.datasets.public_spec import RUNNING
from dpsynth_assets.methods.shared_histograms import TOPIC_HISTOGRAM
from dpsynth_assets.methods.stages import (
    CANDIDATE_CORPUS,
    FINETUNED_GENERATOR,
    SHARED,
    Stage,
    Step,
    with_corpora_behind,
)
from dpsynth_assets.privacy.events import Event
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger import Provenance

if TYPE_CHECKING:
    from dpsynth_assets.methods.dataset_plan import Planned, PlannedMethod


Methods: TypeAlias = "Mapping[str, PlannedMethod]"
"""All methods of one dataset file by folder."""


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
    part: "Planned"
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
    def generators(self) -> dict[str, str]:
        """Stages whose fine-tuned weights it reads, by their methods' folders."""
        return {
            folder: node
            for folder, node in self.corpora.items()
            if node.endswith(f"/{FINETUNED_GENERATOR}")
        }

    @property
    def event(self) -> Event | None:
        """What is charged for it alone; None where nothing is, or an ex-post bound alone."""
        return None if self.stage is None else self.part.plan.charges.get(self.stage.name)

    @property
    def drawn_from(self) -> dict[str, Any]:
        """What the declarations decide about its draw: JSON values, public.

        A request names a release; which records stand in which batch, and what reads them, follows
        from the whole declaration. So all of it is kept with the charge, but for `NO_PART`, and a
        killed run is resumed under equal facts alone: half a draw under one division of the records
        and half under another would read a record twice for one payment. docs/privacy.md has the
        table by field.
        """
        declared = self.spec.model_dump(mode="json", exclude={"methods"})
        if self.base is not None:
            declared["public_data"] = self.base.model_dump(mode="json")
        facts: dict[str, Any] = _deciding(declared)
        settings = self.part.method.config.model_dump(mode="json")
        free = self.part.method.free_settings
        own = {name: value for name, value in settings.items() if name not in free}
        return {**facts, "settings": own, "labels": list(self.spec.composite_labels[0])}

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
        shared: "Iterable[Planned]",
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
            found += [
                Node(spec, base, planned, stage, _read(planned, stage), corpora)
                for stage in planned.plan.stages
            ]
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


def _read(part: "Planned", stage: Stage) -> dict[str, str]:
    """Stages and shared histograms that a stage reads."""
    own = {name: f"{part.folder}/{name}" for name in stage.after}
    return own | {name: f"{SHARED}/{name}" for name in stage.shared}


def _corpora(planned: "PlannedMethod", known: Methods) -> dict[str, str]:
    """Corpora that a method reads, or the weights that wrote them, by folder."""
    found = {}
    for folder in readable_corpora(planned, known):
        stages = [stage.name for stage in known[folder].plan.stages]
        weights = planned.method.reads_weights and FINETUNED_GENERATOR in stages
        found[folder] = f"{folder}/{FINETUNED_GENERATOR if weights else CANDIDATE_CORPUS}"
    return found


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
        *(f"engine.{name}" for name in RUNNING),
    }
)
"""Fields that decide nothing about a draw; the price that a budget gives is in the request."""


def _deciding(value: Any, path: str = "") -> Any:
    if isinstance(value, Mapping):
        places = {name: f"{path}.{name}".removeprefix(".") for name in value}
        return {
            name: _deciding(it, places[name])
            for name, it in value.items()
            if places[name] not in NO_PART
        }
    return [_deciding(each, path) for each in value] if isinstance(value, list) else value


def input_problems(planned: "PlannedMethod", known: Methods, *, has_topics: bool) -> list[Problem]:
    """Lists what a method builds on that is not there; empty if all of it is."""
    found, writing, readable = [], planned.writing, readable_corpora(planned, known)
    if writing is not None and writing.follows_topics and not has_topics:
        expected = f"the released histogram of topics, which {planned.folder} follows"
        asks = f"Declare topic_histogram, or drop {planned.folder} or the setting that asks for it."
        found.append(Problem("topic_histogram", expected, "none", asks))
    for folder in planned.method.corpora:
        if folder in readable:
            found += _unfit(planned, known[folder], known)
        else:
            found.append(_unreadable(planned, folder, known))
    return found


def readable_corpora(planned: "PlannedMethod", known: Methods) -> tuple[str, ...]:
    """Folders that a method's settings name and whose corpora it can read, without a circle."""
    named = planned.method.corpora
    return tuple(folder for folder in named if _is_readable(planned, folder, known))


def refusal_for_inputs(planned: "PlannedMethod", known: Methods, *, has_topics: bool) -> str | None:
    """What is wrong with its own inputs, or else which method behind it is refused."""
    if problems := input_problems(planned, known, has_topics=has_topics):
        first = problems[0]
        return f"Expected {first.expected}, got {first.got}. {first.remedy}"
    for folder in _Named(known).behind(planned.folder):
        other = known[folder]
        why = [other.plan.refusal, *input_problems(other, known, has_topics=has_topics)]
        if any(why):
            return (
                f"Expected {folder}, which {planned.folder} builds on, to be a method that can "
                f"run, got a refusal. Fix {folder} first."
            )
    return None


def _unfit(planned: "PlannedMethod", other: "PlannedMethod", known: Methods) -> Iterator[Problem]:
    """Why a method may not build on a corpus that it could read."""
    weaker = [
        step
        for step in (other, *(known[name] for name in _Named(known).behind(other.folder)))
        if step.plan.guarantee is not GuaranteeType.DP
    ]
    if weaker:
        expected = f"a DP corpus for {planned.folder} to build on"
        got = f"{weaker[0].folder}, whose guarantee is {weaker[0].plan.guarantee}"
        remedy = "Rows made from it have no stronger guarantee: name the folder of a DP method."
        yield Problem("settings", expected, got, remedy)
    fine_tunes = any(stage.releases_language_model for stage in other.plan.stages)
    if planned.method.reads_weights and not fine_tunes:
        expected = f"the folder of a method that fine-tunes a language model, for {planned.folder}"
        remedy = "Name one such as ctcl, over a public base with conditional_generator: "
        remedy += "{kind: language_model}."
        yield Problem("settings", expected, f"{other.folder}, which fine-tunes no model", remedy)
    own, others = planned.writing, other.writing
    if not planned.method.chooses_rows or own is None or others is None:
        return  # How many rows a corpus of one release has is known once it was made.
    if own.rows >= others.rows:  # It would give the corpus another name.
        expected = f"fewer rows than {other.folder} writes ({others.rows}), to choose among them"
        remedy = (
            f"Lower rows of {planned.folder}, or raise those of {other.folder}, which are free."
        )
        yield Problem("settings.rows", expected, str(own.rows), remedy)


def _is_readable(planned: "PlannedMethod", folder: str, known: Methods) -> bool:
    if folder not in known or not known[folder].writes_corpus:
        return False
    return planned.folder not in {folder, *_Named(known).behind(folder)}


def _unreadable(planned: "PlannedMethod", folder: str, known: Methods) -> Problem:
    """Says why there is no corpus of a folder that a method could read at all."""
    if folder not in known:
        got = repr(folder)
    elif known[folder].writes_corpus:
        got = f"{folder!r}, which is built on {planned.folder} itself"
    else:
        got = f"{folder!r}, which writes no corpus"
    there = ", ".join(name for name in known if _is_readable(planned, name, known)) or "none"
    expected = f"the folder of another method, whose corpus {planned.folder} reads"
    return Problem("settings", expected, got, f"Corpora of this file: {there}.")


class _Named(Provenance):
    """Methods of a dataset file, with the others that their settings name: a circle, perhaps."""

    def __init__(self, known: Methods) -> None:
        self._known = known

    def reads(self, name: str) -> list[str]:
        """Folders that a method's settings name and that are there."""
        return [each for each in self._known[name].method.corpora if each in self._known]
