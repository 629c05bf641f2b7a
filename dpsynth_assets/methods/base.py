"""What every generation method offers: a public plan, then a release with its cost."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict

from dpsynth_assets.datasets.engine import EngineSpec
from dpsynth_assets.models.prompt_templates import PromptTemplates
from dpsynth_assets.privacy.events import Event
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.release import Release
from dpsynth_assets.privacy.secret_budgets import SecretPromise
from dpsynth_assets.privacy.units import NeighboringRelation, PrivacyUnit

if TYPE_CHECKING:
    import polars as pl

ProgressCallback = Callable[[float, str], None]
"""Called with the share done in [0, 1] and a short public message."""


class MethodConfig(BaseModel):
    """Settings of a method in the dataset file. Subclasses add a `method` literal and fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, kw_only=True)
class CohortTerms:
    """Everything a plan may know: declared or public, never computed from private records.

    Attributes:
        cohort: Name of the disjoint set of private records.
        relation: Declared neighbouring relation.
        unit: Declared privacy unit.
        epsilon: Total budget ε of the cohort.
        delta: Public constant δ of the cohort.
        accountant: `zcdp` (adaptive filter) or `tight` (fixed plan).
        labels: Public composite label values, in declared order; ("",) where there are none.
        label_texts: How each label is written in a prompt, aligned with `labels`.
        public_records: Number of records, if declared public.
        public_slots: Whether label, cluster and place of every record are declared public.
        accepts_ex_post: Whether the dataset file accepts ex-post releases.
        has_cluster_histogram: Whether the dataset file releases a cluster histogram.
        prompts: The dataset file's prompt templates, public; None for the model's document format.
        engine: What runs language models, as the dataset file declares it.
        secrets: What the dataset file promises to secrets; None where it names none.
        secret_share: Share of that promise which the planned method may use in one round, of its
            squared μ; None where nothing else tells of the secrets.
        account: Account of the ledger that pays; empty: the cohort's own.
    """

    cohort: str
    relation: NeighboringRelation
    unit: PrivacyUnit
    epsilon: float
    delta: float
    accountant: str
    labels: tuple[str, ...]
    label_texts: tuple[str, ...]
    public_records: int | None = None
    public_slots: bool = False
    accepts_ex_post: bool = False
    has_cluster_histogram: bool = False
    prompts: PromptTemplates | None = None
    engine: EngineSpec = field(default_factory=EngineSpec)
    secrets: SecretPromise | None = None
    secret_share: float | None = None
    account: str = ""

    @property
    def ledger_account(self) -> str:
        """The account of the ledger that pays for the cohort."""
        return self.account or self.cohort


@dataclass(frozen=True, kw_only=True)
class MethodPlan:
    """What a method will do and charge, decided before private data is read.

    Attributes:
        guarantee: Which ledger column the release belongs to.
        event: The event to be charged; None for a purely ex-post release.
        parameters: Public parameters written to the ledger and the card (JSON values).
        epsilon: ε of `event` alone at the cohort's δ; None without an event.
        tokens_per_batch: Private tokens each batch may emit, where the method has batches.
        rows_estimate: Rows obtainable, from public facts only; None if unknown beforehand.
        refusal: Why the method cannot run, in one line; None if it can.
        stages: For a staged method, what each stage will be charged; `event` composes them.
        rests_on: For each stage, what its sensitivity rests on (JSON values): facts for the label,
            no part of what a release is known by.
    """

    guarantee: GuaranteeType
    event: Event | None
    parameters: Mapping[str, Any]
    epsilon: float | None = None
    tokens_per_batch: int | None = None
    rows_estimate: int | None = None
    refusal: str | None = None
    stages: Mapping[str, Event] = field(default_factory=dict)
    rests_on: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def refused(
        cls, guarantee: GuaranteeType, parameters: Mapping[str, Any], refusal: str | None
    ) -> "MethodPlan":
        """Charges nothing, writes nothing, and says why in one line."""
        return cls(
            guarantee=guarantee,
            event=None,
            parameters=parameters,
            rows_estimate=0,
            refusal=refusal,
        )


class PassStore(Protocol):
    """Passes of one paid release that are finished, so that a killed run need not repeat them.

    **Privacy** A finished pass is part of the release that was paid for; it stays sensitive until
    the whole is committed. What a killed run drew beyond it was seen by nobody, in no message
    either, and is drawn anew.
    """

    def load(self, number: int) -> dict[str, Any] | None:
        """JSON values of a finished pass; None where it has to be run."""

    def save(self, number: int, values: dict[str, Any]) -> None:
        """Keeps a finished pass, for its owner only."""


@dataclass(frozen=True, kw_only=True)
class PrivateInputs:
    """What a mechanism reads after the ledger was charged. Never logged, never returned.

    Attributes:
        records: Columns `record_id`, `unit_id`, `text`, `label` (strings); held-out rows excluded.
        embeddings: float32 (N, d), rows aligned with `records`, unit length.
        secrets: Which record holds which secret: columns `record` (row of `records`) and
            `secret` (index), where the cohort declares secrets and the stage reads them.
        passes: Finished passes of this very release, if the caller keeps them.
    """

    records: "pl.DataFrame" = field(repr=False)
    embeddings: np.ndarray | None = field(default=None, repr=False)
    secrets: "pl.DataFrame | None" = field(default=None, repr=False)
    passes: PassStore | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class PublicInputs:
    """Public or already released values a method builds on.

    Attributes:
        language_model: `models.language_model.LanguageModel`, loaded.
        cluster_centers: float32 (K, d), unit length, from public embeddings.
        cluster_histogram: The released histogram, if the method asks for one.
        salt: Public string that keys the hash which assigns records to batches.
        seed: Seed of public randomness only (reference corpora, public continuations).
        text_embedder: `models.text_embedder.TextEmbedder`, loaded.
        public_records: Public documents, columns `text` and `label`.
        topic_model: `models.topic_model.TopicModel` of the public base, if it has one.
        topic_histogram: Released noisy counts by label and topic (JSON), if the cohort has them.
        conditional_generator: `models.conditional_generator.ConditionalGenerator`, if it has one.
        engine: Engine of the dataset file (`models.engines`), if a method generates through one.
        released: Releases of a staged method's stages, by stage.
        corpora: Published rows of other methods of the cohort that this one builds on, by folder.
    """

    language_model: Any
    cluster_centers: np.ndarray | None = None
    cluster_histogram: Any | None = None
    salt: str = ""
    seed: int = 0
    text_embedder: Any | None = None
    public_records: "pl.DataFrame | None" = field(default=None, repr=False)
    topic_model: Any | None = None
    topic_histogram: Mapping[str, Any] | None = None
    conditional_generator: Any | None = None
    engine: Any | None = None
    released: Mapping[str, Any] = field(default_factory=dict)
    corpora: "Mapping[str, pl.DataFrame]" = field(default_factory=dict, repr=False)


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


class Method(ABC):
    """What every way to turn a cohort into a synthetic corpus states about itself."""

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str]
    guarantee: ClassVar[GuaranteeType]
    config_type: ClassVar[type[MethodConfig]]
    code_version: ClassVar[str] = "1"
    """Raised when the mechanism's behaviour changes: an older release is then not reused."""
    needs_embeddings: ClassVar[bool] = False
    spends: ClassVar[bool] = True
    """Whether it charges anything itself, beside the releases it builds on."""

    def uses_histogram(self, config: Any, terms: CohortTerms) -> bool:
        """Whether the corpus builds on the cluster histogram, and so carries its cost as well."""
        del config, terms
        return False

    def public_inputs(self, config: Any) -> frozenset[str]:
        """Artifacts of the public base that it reads, by the last part of their asset keys."""
        del config
        return frozenset({"public_language_model", "public_clusters"})

    def uses_engine(self, config: Any) -> bool:
        """Whether it reads or writes through the engine of the dataset file."""
        del config
        return False

    def uses_topics(self, config: Any) -> bool:
        """Whether the corpus builds on the released topic histogram, and so carries its cost."""
        del config
        return False

    def builds_on(self, config: Any) -> tuple[str, ...]:
        """Folders of the cohort's other methods whose published corpora this one reads."""
        del config
        return ()

    @abstractmethod
    def plan(self, config: Any, terms: CohortTerms, *, target_epsilon: float) -> MethodPlan:
        """Prices the method from public facts; must not touch private data; under a second.

        Args:
            config: Validated settings, an instance of `config_type`.
            terms: Declared facts about the cohort.
            target_epsilon: ε this release may cost on its own at the cohort's δ.
        """


class GenerationMethod(Method):
    """One way to turn a cohort into a synthetic corpus in a single paid release."""

    def check_public(
        self, plan: MethodPlan, config: Any, terms: CohortTerms, public: PublicInputs
    ) -> None:
        """Refuses public inputs that `generate` could not end with; called before the charge.

        Raises:
            ValueError: In one line that anybody may read.

        **Privacy** Reads settings, public models and released values only.
        """
        del plan, config, terms, public

    @abstractmethod
    def generate(
        self,
        plan: MethodPlan,
        config: Any,
        terms: CohortTerms,
        private: PrivateInputs,
        public: PublicInputs,
        progress: ProgressCallback,
    ) -> Release[SyntheticCorpus]:
        """Runs the mechanism. The caller has charged `plan.event` to the ledger already.

        What `progress` is told may depend on private data by way of passes that are kept alone.
        """
