"""Stages of a method, each with the mechanism that is charged, and the plan that holds them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from dpsynth_assets.methods.tails import Tail
from dpsynth_assets.privacy.events import POST_PROCESSING, ComposedEvent, Event
from dpsynth_assets.privacy.guarantees import GuaranteeType

if TYPE_CHECKING:
    import polars as pl

SHARED = "shared"
"""Folder of what all methods of a dataset share; the middle of its asset keys."""

CANDIDATE_CORPUS = "candidate_corpus"
"""Name of the asset that holds a method's rows before the release gate."""

FINETUNED_GENERATOR = "finetuned_generator"
"""Name of the stage whose files are weights that were fine-tuned on the records."""


def with_corpora_behind(inputs: Mapping[str, str], corpora: Mapping[str, str]) -> dict[str, str]:
    """Adds the charges of corpora to what a release reads, none in the place of another.

    A corpus is named by its folder, and by `corpus:<folder>` where a stage or a public artifact of
    that name is read beside it.

    Args:
        inputs: Identity of each public artifact and earlier release, by name.
        corpora: Charge of each corpus, by folder.

    **Privacy** A label states the charges of all that a release names: one that is lost here would
    be missing from its ε.
    """
    named = {f"corpus:{name}" if name in inputs else name: it for name, it in corpora.items()}
    return {**inputs, **named}


SERVED, EXPORTED = "served", "exported"
"""What left the house by a command, no asset of a graph: last parts of their names in the ledger
(`exported_corpus`)."""


def left_by_command(asset: str) -> bool:
    """Says whether a name in the ledger is of what `dpsynth serve` or `export` recorded."""
    last = asset.rsplit("/", maxsplit=1)[-1]
    return last == SERVED or last.startswith(f"{EXPORTED}_")


class Mechanism(Protocol):
    """What reads private records in one stage: its parameters, noise included, and its price."""

    def event(self) -> Event | None:
        """Prices the whole stage; None where only an ex-post bound exists."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One release of a method, paid or public, as the asset graph shows it.

    Attributes:
        name: Last part of its asset key, e.g. `finetuned_generator`.
        title: What is released, in a short sentence with its source.
        kinds: Badges of the asset in the web UI.
        needs_embeddings: Whether it reads the embeddings of the private records.
        needs_secrets: Whether it reads how many private records hold each secret.
        after: Earlier stages of the same method whose releases it reads.
        in_parts: Whether it takes nothing of the records but exact sums over them, counts or
            clipped gradients (`PrivateInputs.counted`), or draws passes from them
            (`PartedRecords.draw_passes`), so that it may be given parts instead of all
            records.
        in_model: Whether it reads records inside the language model. Its parts are worked on where
            that runs on processors; where it runs on a GPU, the step itself reads all records.
        shared: Histograms of the dataset that it reads.
        reads_corpora: Whether it reads the published corpora that the method builds on.
        public: Whether it reads public and released values only: it is charged nothing, has no
            mechanism, and is run by `make_public` instead of `release`.
        resumes_by: What a killed run left to go on with: a checkpoint, or finished passes.
        on_gpu: Whether it runs a model: it waits for a place in the pool of such steps, and asks
            for a GPU where the installation declares one.
        mechanism: What is charged and run. None for a public stage, and in a plan that refuses.
        settings: Public parameters that its release depends on: with others it is another release.
        rests_on: What its sensitivity rests on (JSON values): facts for the label, no part of what
            a release is known by.
    """

    name: str
    title: str
    kinds: tuple[str, ...] = ("pytorch",)
    needs_embeddings: bool = False
    needs_secrets: bool = False
    in_parts: bool = False
    in_model: bool = False
    after: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    reads_corpora: bool = False
    public: bool = False
    resumes_by: Literal["checkpoint", "passes"] = "checkpoint"
    on_gpu: bool = True
    mechanism: Mechanism | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    rests_on: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuses a public stage that asks for private inputs."""
        if self.public and (self.needs_embeddings or self.needs_secrets or self.mechanism):
            raise ValueError(
                f"Expected the public stage {self.name} to read nothing private, got a request for "
                "private inputs. Make it a paid stage."
            )

    @property
    def draws_passes(self) -> bool:
        """Whether workers draw its passes, each with a model, where records lie in parts."""
        return self.in_parts and self.resumes_by == "passes"


@dataclass(frozen=True, kw_only=True)
class StageRelease:
    """What one stage releases.

    Attributes:
        facts: JSON values, released: shown in metadata where they are short numbers or words.
        files: Folder of released files (safetensors, JSON, Parquet), written by the stage inside
            the scratch folder it was given; None without files.
        rows: Released rows, where the stage writes the corpus itself: columns as `SyntheticCorpus`.
        internal: JSON values that depend on private data without noise, for the steward alone.
    """

    facts: Mapping[str, Any]
    files: Path | None = None
    rows: "pl.DataFrame | None" = None
    internal: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True)
class SyntheticCorpus:
    """Rows of a corpus and what may be said about how they came about.

    Attributes:
        rows: Columns `text`, `label` and DP-safe provenance (`batch`, `cluster`, `n_tokens`).
        facts: Released, DP-safe numbers (rows, tokens, batches) for metadata and card.
        internal: Numbers that depend on private data without noise (e.g. ex-post cost by batch);
            shown to the steward only, never written to a released file.
    """

    rows: "pl.DataFrame"
    facts: Mapping[str, Any]
    internal: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True)
class MethodPlan:
    """What a method will do and charge, decided before private data is read.

    Attributes:
        guarantee: Which ledger column its releases belong to.
        parameters: Public parameters written to the ledger and the card (JSON values).
        stages: All stages in the order in which they run, the paid ones with their mechanisms.
        epsilon: ε of all paid stages together at the cohort's δ; None without an ε.
        tokens_per_batch: Private tokens each batch may emit, where the method has batches.
        rows_estimate: Rows obtainable, from public facts only; None if unknown beforehand.
        refusal: Why the method cannot run, in one line; None if it can.
        tail: Share of private draws on tokens that nobody proposes; None where no token is drawn
            from private prompts. It follows from the parameters and is not among them.
    """

    guarantee: GuaranteeType
    parameters: Mapping[str, Any]
    stages: tuple[Stage, ...] = ()
    epsilon: float | None = None
    tokens_per_batch: int | None = None
    rows_estimate: int | None = None
    refusal: str | None = None
    tail: Tail | None = None

    def stage(self, name: str) -> Stage:
        """Looks a stage up by its name.

        Raises:
            KeyError: If there is none; the message lists those there are.
        """
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise KeyError(f"Expected a stage in {[s.name for s in self.stages]}, got {name!r}.")

    @cached_property
    def charges(self) -> Mapping[str, Event]:
        """Event of each paid stage; empty where the plan refuses, or has an ex-post bound only."""
        priced = {s.name: s.mechanism.event() for s in self.stages if s.mechanism is not None}
        return {name: event for name, event in priced.items() if event is not None}

    @property
    def event(self) -> Event | None:
        """All charges composed; None where the plan refuses or has an ex-post bound only."""
        charges = tuple(self.charges.values())
        if len(charges) > 1:
            return ComposedEvent(events=charges)
        if charges:
            return charges[0]
        paid = any(stage.mechanism is not None for stage in self.stages)
        return None if paid or self.refusal is not None else POST_PROCESSING
