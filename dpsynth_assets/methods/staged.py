"""Methods in stages: a few paid releases, then any number of rows written from them for nothing.

Fine-tuning, dataset vectors and private evolution share this shape. Every stage is an asset with
its own entry in the ledger; what stages prepare from public and released values, and the corpus
itself, are post-processing: asking for more rows never pays again.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from dpsynth_assets.methods.base import (
    CohortTerms,
    Method,
    MethodPlan,
    PrivateInputs,
    ProgressCallback,
    PublicInputs,
    SyntheticCorpus,
)
from dpsynth_assets.privacy.release import Release


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One release of a method, paid or public, as the asset graph shows it.

    Attributes:
        name: Last part of its asset key, e.g. `finetuned_generator`.
        title: What is released, in a short sentence with its source.
        kinds: Badges of the asset in the web UI.
        needs_embeddings: Whether it reads the embeddings of the private records.
        needs_secrets: Whether it reads which private record holds which secret.
        after: Earlier stages of the same method whose releases it reads.
        public: Whether it reads public and released values only: it is charged nothing, stands in
            no plan, and is run by `prepare_stage` instead of `release_stage`.
    """

    name: str
    title: str
    kinds: tuple[str, ...] = ("pytorch",)
    needs_embeddings: bool = False
    needs_secrets: bool = False
    after: tuple[str, ...] = ()
    public: bool = False

    def __post_init__(self) -> None:
        """Refuses a public stage that asks for private inputs."""
        if self.public and (self.needs_embeddings or self.needs_secrets):
            raise ValueError(
                f"Expected the public stage {self.name} to read nothing private, got a request for "
                "private inputs. Make it a paid stage."
            )


@dataclass(frozen=True, kw_only=True)
class StageRelease:
    """What one stage releases.

    Attributes:
        facts: JSON values, released: shown in metadata where they are short numbers or words.
        files: Folder of released files (safetensors, JSON, Parquet), written by the stage inside
            the scratch folder it was given; None without files.
        internal: JSON values that depend on private data without noise, for the steward alone.
    """

    facts: Mapping[str, Any]
    files: Path | None = None
    internal: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True)
class Released:
    """A stage's release read back from the store.

    Attributes:
        reservation: The ledger charge that paid for it.
        facts: Its JSON values.
        folder: Where its files lie; read-only.
    """

    reservation: str
    facts: Mapping[str, Any]
    folder: Path


class Checkpoint(Protocol):
    """Owner-only files of one unfinished stage, so that a killed run goes on under its charge.

    **Privacy** What lies here is part of the release that was paid for, and nobody else's to see
    until the whole is committed. A run that dies draws again only what it had not checkpointed, so
    nothing that depends on later draws may be shown (logs, progress, public losses included)
    before the checkpoint that holds them is saved.
    """

    @property
    def saved(self) -> Path | None:
        """Folder of the last saved checkpoint; None at the first start."""

    def scratch(self) -> Path:
        """An empty owner-only folder to write the next checkpoint, or the stage's files, into."""

    def save(self, scratch: Path) -> None:
        """Makes `scratch` the last checkpoint: whole or not at all, on disk when this returns."""


class StagedMethod(Method):
    """One way to release a few private values and to write corpora from them."""

    writes_corpus: ClassVar[bool] = True
    """Whether there is a corpus at all; a method may release a downstream model instead."""
    free_settings: ClassVar[frozenset[str]] = frozenset(
        {
            "rows",
            "top_p",
            "temperature",
            "label_shares",
            "rows_per_forward",
            "rejection",
            "micro_batch_records",
            "checkpoint_minutes",
        }
    )
    """Settings no stage's release depends on: with others, what was paid for is used again."""

    def writing_inputs(self, config: Any) -> frozenset[str]:
        """Artifacts of the public base that only writing reads: no paid release depends on them."""
        del config
        return frozenset()

    @abstractmethod
    def stages(self, config: Any, terms: CohortTerms) -> tuple[Stage, ...]:
        """Lists the stages in the order in which they run; public knowledge."""

    def stage_settings(self, stage: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Parameters of the plan that a stage's release depends on: with others it is reused.

        Args:
            stage: Name of the stage.
            parameters: The plan's public parameters.
        """
        del stage
        return {name: value for name, value in parameters.items() if name not in self.free_settings}

    def open_models(
        self, stage: str, config: Any, terms: CohortTerms, public: PublicInputs
    ) -> None:
        """Loads what a stage will run, before it is charged: what cannot be loaded costs nothing.

        Args:
            stage: Name of the stage.
            config: Validated settings.
            terms: Declared facts about the cohort.
            public: Public and released inputs.
        """
        del stage, config, terms, public

    @abstractmethod
    def release_stage(
        self,
        stage: str,
        plan: MethodPlan,
        config: Any,
        terms: CohortTerms,
        private: PrivateInputs,
        public: PublicInputs,
        checkpoint: Checkpoint,
        progress: ProgressCallback,
    ) -> Release[StageRelease]:
        """Runs one stage. The caller has charged `plan.stages[stage]` to the ledger already.

        Args:
            stage: Name of the stage.
            plan: The method's plan; `plan.stages[stage]` is this stage's event.
            config: Validated settings, an instance of `config_type`.
            terms: Declared facts about the cohort.
            private: What the stage reads.
            public: Public and released inputs, earlier stages in `public.released`.
            checkpoint: Where an unfinished stage keeps its state, and its scratch folders.
            progress: Told the share done.
        """

    def prepare_stage(
        self,
        stage: str,
        plan: MethodPlan,
        config: Any,
        terms: CohortTerms,
        public: PublicInputs,
        folder: Path,
        progress: ProgressCallback,
    ) -> StageRelease:
        """Runs one public stage. Reads nothing private and costs nothing.

        Args:
            stage: Name of the stage.
            plan: The method's plan.
            config: Validated settings.
            terms: Declared facts about the cohort.
            public: Public and released inputs, earlier stages in `public.released`.
            folder: An empty folder for the stage's files.
            progress: Told the share done.

        Raises:
            NotImplementedError: If the method has no public stages.
        """
        raise NotImplementedError(f"Expected a public stage of {self.name}, got {stage}.")

    @abstractmethod
    def write(
        self,
        plan: MethodPlan,
        config: Any,
        terms: CohortTerms,
        public: PublicInputs,
        rows: int,
        progress: ProgressCallback,
    ) -> SyntheticCorpus:
        """Writes rows from what was released. Reads nothing private and costs nothing.

        Args:
            plan: The method's plan.
            config: Validated settings.
            terms: Declared facts about the cohort.
            public: Public and released inputs; all stages in `public.released`.
            rows: Rows to write.
            progress: Told the share done.
        """

    def default_rows(self, config: Any) -> int:
        """Rows written unless the launch asks for another number."""
        return int(config.rows)
