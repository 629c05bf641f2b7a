"""Stages of a method with their mechanisms, and the plan that contains them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import polars as pl

from dpsynth_assets.datasets.public_spec import EngineSpec
from dpsynth_assets.files.whole import Checkpoint, Room, bytes_of_texts
from dpsynth_assets.methods.inputs import PrivateInputs, ProgressCallback, PublicInputs
from dpsynth_assets.methods.work import (
    CONDITIONAL_GENERATOR,
    LANGUAGE_MODEL,
    TEXT_EMBEDDER,
    PublicSizes,
    RunModel,
    Work,
)
from dpsynth_assets.privacy.directed_rounding import rounded_up
from dpsynth_assets.privacy.events import POST_PROCESSING, ComposedEvent, Event
from dpsynth_assets.privacy.guarantees import GuaranteeType, Release

if TYPE_CHECKING:
    from dpsynth_assets.methods.base import CohortTerms

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


ROW_TOKENS = 1024
"""Length of a row, for its room on a disk, where a method's settings name none."""

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
class Step:
    """What a stage and the writing of rows say alike: what is read and computed.

    Attributes:
        reads: Artifacts of the public base, by the last part of their asset keys.
        engine: The engine of the dataset file, where it reads or writes through it.
        runs: Models that it computes with, whose processors or GPUs it waits for. None: those that
            it reads, and the engine in the place of the language model.
        examples_in_prompt: Texts that stand in a prompt as examples.
        work: Counts what it computes, from a plan that was not refused and from declared numbers
            and lengths of public texts: what its minutes follow from.
    """

    reads: frozenset[str] = frozenset()
    engine: EngineSpec | None = None
    runs: tuple[RunModel, ...] | None = None
    examples_in_prompt: int = 1
    work: "Callable[[MethodPlan, PublicSizes], Work]" = field(
        default=lambda _plan, _sizes: Work(), compare=False
    )

    @property
    def models(self) -> tuple[RunModel, ...]:
        """The models that it computes with."""
        if self.runs is not None:
            return self.runs
        writer = [LANGUAGE_MODEL] if self.engine is None else []
        read = (each for each in (*writer, TEXT_EMBEDDER, CONDITIONAL_GENERATOR))
        engine = () if self.engine is None else (self.engine,)
        return (*engine, *(each for each in read if each in self.reads))

    @property
    def engine_identity(self) -> dict[str, str]:
        """The model that an engine serves: another one makes another release.

        What merely runs it (kind, device, batch size) does not; a public model of the base is among
        the public inputs already.
        """
        model = None if self.engine is None else self.engine.model
        return {} if model is None else {"engine_model": model}


@dataclass(frozen=True, kw_only=True)
class Stage(Step):
    """One release of a method, paid or public, as the asset graph shows it.

    What is asked before a charge (`check`, `tested`, `takes`) reads settings, public models and
    released values only.

    Attributes:
        name: Last part of its asset key, e.g. `finetuned_generator`.
        title: What is released, in a short sentence with its source.
        kinds: Badges of the asset in the web UI.
        needs_embeddings: Whether it reads the embeddings of the private records.
        needs_secrets: Whether the search for secrets comes before it; what it found is not read.
        after: Earlier stages of the same method whose releases it reads.
        in_parts: Whether it takes nothing of the records but exact sums over them, counts or
            clipped gradients (`PrivateInputs.counted`), or draws passes from them
            (`Shards.draw_passes`), so that it may be given several shards.
        in_model: Whether it reads records inside the language model. Its shards are worked on where
            that runs on processors; where it runs on a GPU, the step itself reads all records.
        shared: Histograms of the dataset that it reads.
        follows_clusters: Whether the released cluster histogram decides how many batches it draws.
        resumes_by: What a killed run left to go on with: a checkpoint, or finished passes.
        on_gpu: Whether it runs a model: it waits for a place in the pool of such steps, and asks
            for a GPU where the installation declares one.
        releases_language_model: Whether its files are weights that read prompts as the base's
            language model does.
        releases_rounds: Whether it releases the rounds of a population (`evolution.population`).
        check: Loads what the stage will run, and refuses what it could not end with, in one line
            that anybody may read (ValueError).
        tested: States what was tested of public inputs, which the charge keeps for the label.
        takes: Bounds what the stage takes of the disks: its release and its draw. Beside it each
            disk must have 16 MiB left in any case, which suffice for small tables.
        draws: Runs a paid stage; None for a public one.
        make: Runs a public stage, given public inputs, an empty folder for its files, and progress.
            It reads public and released values only and is charged nothing.
        mechanism_name: Name of the mechanism in the ledger; empty: that of the method.
        identity: Writes what its release is known by in the ledger beside its settings, given the
            identity of all that it reads; None: its name, the engine's model and those inputs.
        free: Parameters of the plan that its release does not depend on, beside those that no
            stage does.
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
    follows_clusters: bool = False
    resumes_by: Literal["checkpoint", "passes"] = "checkpoint"
    on_gpu: bool = True
    releases_language_model: bool = False
    releases_rounds: bool = False
    check: Callable[[PublicInputs], None] = field(default=lambda _: None, compare=False)
    tested: Callable[[PublicInputs], Mapping[str, Any]] = field(default=lambda _: {}, compare=False)
    takes: "Callable[[Stage, PublicInputs], Room]" = field(
        default=lambda _stage, _public: Room(), compare=False
    )
    draws: "Callable[[StageRun], Release[StageRelease]] | None" = field(default=None, compare=False)
    make: "Callable[[PublicInputs, Path, ProgressCallback], StageRelease] | None" = field(
        default=None, compare=False
    )
    mechanism_name: str = ""
    identity: Callable[[Mapping[str, str]], Mapping[str, Any]] | None = field(
        default=None, compare=False
    )
    free: frozenset[str] = frozenset()
    mechanism: Mechanism | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    rests_on: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuses a public stage that asks for private inputs."""
        if self.public and (self.needs_embeddings or self.needs_secrets or self.mechanism):
            raise ValueError(
                f"Expected the public stage {self.name} to read no private data, got a request "
                "for private inputs. Make it a paid stage."
            )

    @property
    def public(self) -> bool:
        """Whether it reads public and released values only, and is charged nothing."""
        return self.make is not None

    @property
    def draws_passes(self) -> bool:
        """Whether workers draw its passes, each with a model, where records are in shards."""
        return self.in_parts and self.resumes_by == "passes"

    def request_parameters(self, inputs: Mapping[str, str]) -> dict[str, Any]:
        """Writes what the release is known by in the ledger.

        Args:
            inputs: Identity of each public artifact and earlier release that it reads, by name.
        """
        if self.identity is not None:
            return {**self.settings, **self.identity(inputs)}
        own = {"stage": self.name, "inputs": dict(inputs)}
        return {**self.settings, **self.engine_identity, **own}

    def release(
        self,
        private: PrivateInputs,
        public: PublicInputs,
        checkpoint: Checkpoint,
        progress: ProgressCallback,
    ) -> "Release[StageRelease]":
        """Runs a paid stage. The caller has charged `mechanism` to the ledger already.

        Args:
            private: What the stage reads.
            public: Public and released inputs, earlier stages in `public.released`.
            checkpoint: Where an unfinished stage keeps its state, and its scratch folders.
            progress: Told the share done; what it is told may depend on saved draws only.

        Raises:
            TypeError: It is public, or has no mechanism yet.
        """
        if self.draws is None or self.mechanism is None:
            raise TypeError(f"Expected a planned paid stage, got {self.name}. Plan first.")
        return self.draws(StageRun(self, private, public, checkpoint, progress))


class StageRun(NamedTuple):
    """One run of a paid stage, whose mechanism was charged to the ledger already.

    Attributes:
        stage: It, with its mechanism.
        private: What it reads of the records.
        public: Public and released inputs.
        checkpoint: Where an unfinished run keeps its state, and its scratch folders.
        progress: Told the share done.
    """

    stage: Stage
    private: PrivateInputs
    public: PublicInputs
    checkpoint: Checkpoint
    progress: ProgressCallback


@dataclass(frozen=True, kw_only=True)
class Writing(Step):
    """Rows written from what a method's stages released: any number of them, at no cost.

    Attributes:
        rows: Rows written unless a launch asks for another number.
        row_tokens: Longest row (tokens); None where settings name none.
        follows_topics: Whether rows follow the released topic histogram, and so carry its cost.
        write: Writes this many rows, given public inputs and all stages in `public.released`. It
            reads nothing private and costs nothing.
    """

    rows: int
    row_tokens: int | None = None
    follows_topics: bool = False
    write: "Callable[[PublicInputs, int, ProgressCallback], SyntheticCorpus]"

    @property
    def bytes(self) -> int:
        """Most bytes of the corpus: its rows at full length."""
        return bytes_of_texts(self.rows, self.row_tokens or ROW_TOKENS)


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
    rows: pl.DataFrame | None = None
    internal: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True)
class SyntheticCorpus(StageRelease):
    """Rows of a corpus: columns `text`, `label` and DP-safe provenance, e.g. `batch`."""

    rows: pl.DataFrame


LARGEST_TAIL = 0.1
"""A plan of a longer tail is refused: one token in ten would have nothing to do with the text."""

TYPICAL_AGREEMENT = 0.9
"""How high the leading token of a typical draw stands, as a share of what full agreement gives it.

Measured on public text (news reports and Brown paragraphs, 48 contexts of SmolLM2-135M-Instruct,
c from 6 to 12): the maximum of the mean of re-centred clipped logits is above 0.92 c in nine draws
of ten, and 0.98 c in the median. 0.9 errs on the side of a longer tail.
"""


@dataclass(frozen=True, kw_only=True)
class Tail:
    """Share of private draws on unproposed tokens, by public facts and one assumption.

    One token leads and all others lie where a token lies that no context proposes, so the share is
    an upper estimate: tokens in between take draws from both.

    Attributes:
        tokens: Tokens among which one is drawn; None if no declaration says how many there are.
        typical: The share at TYPICAL_AGREEMENT; None where unknown.
        settings: What it follows from, in words.
        remedy: What would shorten it, in a sentence.
    """

    tokens: int | None
    typical: float | None
    settings: str
    remedy: str

    @property
    def refusal(self) -> str | None:
        """Why so long a tail is refused, in one line; None where it is short, or unknown."""
        if self.typical is None or self.typical <= LARGEST_TAIL:
            return None
        return (
            f"Expected a tail of at most {LARGEST_TAIL:.0%} of private draws (tokens that no "
            f"context proposes), got {percent(self.typical)} with {self.tokens:,} tokens, "
            f"{self.settings}. {self.remedy}"
        )

    def describe(self) -> str:
        """States the share."""
        return "unknown" if self.typical is None else percent(self.typical)


def percent(share: float) -> str:
    """Writes a share in [0, 1] in percent, with two digits, rounded up; less than 0.01% as that.

    Shares near 1 keep below it.
    """
    if share < 1e-4:
        return "<0.01%"
    return f"{rounded_up(100 * share, '.2g') if share < 0.99 else '>99'}%"


@dataclass(frozen=True, kw_only=True)
class MethodPlan:
    """What a method will do and charge, decided before private data is read.

    Attributes:
        guarantee: Which ledger column its releases belong to.
        parameters: Public parameters written to the ledger and the card (JSON values).
        stages: All stages in the order in which they run, the paid ones with their mechanisms.
        terms: Declared facts of the cohort; None where the plan refuses.
        tokens_per_batch: Private tokens each batch may emit, where the method has batches.
        rows_estimate: Rows obtainable, from public facts only; None if unknown beforehand.
        refusal: Why the method cannot run, in one line; None if it can.
        tail: Share of private draws on tokens that no context proposes; None where no token is
            drawn from private prompts. It follows from the parameters and is not among them.
    """

    guarantee: GuaranteeType
    parameters: Mapping[str, Any]
    stages: tuple[Stage, ...] = ()
    terms: "CohortTerms | None" = field(default=None, repr=False)
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

    @cached_property
    def epsilon(self) -> float | None:
        """ε of all paid stages together at the cohort's δ; None without an ε."""
        from dpsynth_assets.methods.plan_cache import remembered_epsilon

        if self.guarantee is not GuaranteeType.DP or not self.charges or self.terms is None:
            return None
        return remembered_epsilon(list(self.charges.values()), self.terms)

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
