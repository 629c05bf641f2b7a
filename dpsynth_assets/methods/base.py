"""The contract of every method: bound to its settings and its cohort, released stage by stage.

A method is bound: it holds its validated settings and the cohort's declared terms. It lists its
stages, plans them (each paid stage gets the mechanism whose event is charged), releases them one by
one, and writes rows from what was released. A method whose stage releases rows writes nothing
further; the others write any number of rows for nothing.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from dpsynth_assets.attacks.catalogue import Attack
from dpsynth_assets.datasets.engine import EngineSpec
from dpsynth_assets.datasets.public_spec import ConditionalGeneratorSpec, LanguageModelSpec
from dpsynth_assets.files.disk_room import Room, bytes_of_texts
from dpsynth_assets.methods.candidates import Candidate, DeclaredFacts
from dpsynth_assets.methods.inputs import (
    Checkpoint,
    PrivateInputs,
    ProgressCallback,
    PublicInputs,
)
from dpsynth_assets.methods.models_run import (
    CONDITIONAL_GENERATOR,
    LANGUAGE_MODEL,
    TEXT_EMBEDDER,
    RunModel,
)
from dpsynth_assets.methods.rejection_sampling import RejectionSettings, RowFilter
from dpsynth_assets.methods.stages import (
    Mechanism,
    MethodPlan,
    Stage,
    StageRelease,
    SyntheticCorpus,
)
from dpsynth_assets.methods.tails import Tail
from dpsynth_assets.methods.text_form import TextForm, schema_parameters
from dpsynth_assets.methods.work import PublicSizes, Work
from dpsynth_assets.models.prompt_templates import PromptTemplates
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.release import Release
from dpsynth_assets.privacy.secret_noise import SecretPromise
from dpsynth_assets.privacy.units import NeighboringRelation, PrivacyUnit

if TYPE_CHECKING:
    import polars as pl

    from dpsynth_assets.attacks.median_audit import MedianAudit
    from dpsynth_assets.attacks.reconstruction import KeysWritten


class MethodConfig(BaseModel):
    """Settings of a method in the dataset file. Subclasses add a `method` literal and fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)


ConfigT = TypeVar("ConfigT", bound=BaseModel)

REJECTION = "rejection"
"""Setting of which rows are kept: no stage's charge depends on it, so it is in no request."""

ROW_TOKENS = 1024
"""Length of a row, for its room on a disk, where a method's settings name none."""


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
        prompts: The dataset file's prompt templates or those of the base's domain, public; None for
            the model's document format.
        engine: What runs language models, as the dataset file declares it.
        language_model: The public base's language model, as declared; None where no dataset file
            declares that base.
        generator: That base's conditional generator, likewise.
        domain: What that base says its texts are; empty where it says nothing.
        json_schema: JSON schema, as JSON, that decoding is constrained to; None: to none.
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
    language_model: LanguageModelSpec | None = None
    generator: ConditionalGeneratorSpec | None = None
    domain: str = ""
    json_schema: str | None = None
    secrets: SecretPromise | None = None
    secret_share: float | None = None
    account: str = ""

    @property
    def decodes_exactly(self) -> bool:
        """Whether the base declares that logits are computed in exact integers."""
        return self.language_model is not None and self.language_model.decodes_exactly

    @property
    def decodes_in_vllm(self) -> bool:
        """Whether the base declares that vLLM computes logits."""
        return self.language_model is not None and self.language_model.decoder == "vllm"

    @property
    def ledger_account(self) -> str:
        """The account of the ledger that pays for the cohort."""
        return self.account or self.cohort


class Staged(ABC, Generic[ConfigT]):
    """Anything that releases in stages: a method, or a histogram that a dataset's methods share."""

    name: ClassVar[str]
    guarantee: ClassVar[GuaranteeType] = GuaranteeType.DP
    code_version: ClassVar[str] = "1"
    """Raised when the mechanism's behaviour changes: an older release is then not reused."""
    free_settings: ClassVar[frozenset[str]] = frozenset()
    """Settings no stage's release depends on: with others, what was paid for is used again."""

    def __init__(self, config: ConfigT, terms: CohortTerms) -> None:
        """Binds validated settings to the cohort's declared terms."""
        self.config = config
        self.terms = terms

    @property
    def public_inputs(self) -> frozenset[str]:
        """Artifacts of the public base that stages read, by the last part of their asset keys."""
        return frozenset()

    @property
    def follows_schema(self) -> bool:
        """Whether decoding is constrained to a declared schema, so that rows are valid records."""
        return False

    @property
    def form(self) -> TextForm:
        """The form of the texts that it writes."""
        schema = self.terms.json_schema if self.follows_schema else None
        return TextForm.of(schema, self.terms.prompts, self.terms.label_texts)

    @property
    def uses_engine(self) -> bool:
        """Whether it reads or writes through the engine of the dataset file."""
        return False

    def models_run(self, stage: str) -> tuple[RunModel, ...]:
        """Names the models that a stage computes with, or that write the corpus.

        Its step waits for the processors or GPUs that these are declared to run on.

        Args:
            stage: Name of a stage, or `candidate_corpus`.
        """
        del stage
        writer = {LANGUAGE_MODEL} & self.public_inputs
        return (
            *([self.terms.engine] if self.uses_engine else writer),
            *({TEXT_EMBEDDER, CONDITIONAL_GENERATOR} & self.public_inputs),
        )

    def work(self, stage: str, plan: MethodPlan, sizes: PublicSizes) -> Work:
        """Counts what a stage computes, or writing the declared rows: what its minutes follow from.

        Args:
            stage: Name of a stage, or `candidate_corpus`.
            plan: A plan of this method that was not refused.
            sizes: Declared numbers and the lengths of public texts.

        **Privacy** Reads settings, public and declared facts only.
        """
        del stage, plan, sizes
        return Work()

    @abstractmethod
    def stages(self) -> tuple[Stage, ...]:
        """Lists the stages in the order in which they run, without mechanisms; public knowledge."""

    def stage_settings(self, stage: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Selects the plan's parameters that a stage's release depends on."""
        del stage
        return {name: value for name, value in parameters.items() if name not in self.free_settings}

    def request_parameters(self, stage: Stage, inputs: Mapping[str, str]) -> dict[str, Any]:
        """Writes what a stage's release is known by in the ledger.

        Args:
            stage: A stage of the plan.
            inputs: Identity of each public artifact and earlier release that it reads, by name.
        """
        return {
            **stage.settings,
            **self.engine_identity,
            "stage": stage.name,
            "inputs": dict(inputs),
        }

    @property
    def engine_identity(self) -> dict[str, str]:
        """The model that an engine serves: another one makes another release.

        What merely runs it (kind, device, batch size) does not; a public model of the base is among
        the public inputs already.
        """
        model = self.terms.engine.model
        return {} if model is None or not self.uses_engine else {"engine_model": model}

    def mechanism_name(self, stage: Stage) -> str:
        """Names the mechanism of a stage in the ledger."""
        del stage
        return self.name

    def planned(
        self,
        mechanisms: Mapping[str, Mechanism],
        parameters: Mapping[str, Any],
        *,
        guarantee: GuaranteeType | None = None,
        epsilon: float | None = None,
        tokens_per_batch: int | None = None,
        rows_estimate: int | None = None,
        rests_on: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> MethodPlan:
        """Makes a plan: every stage with its mechanism and its settings.

        Args:
            mechanisms: Mechanism of each paid stage.
            parameters: Public parameters, written to the ledger.
            guarantee: What is guaranteed, where settings decide; else that of the class.
            epsilon: ε of all mechanisms together.
            tokens_per_batch: Private tokens of a batch.
            rows_estimate: Rows obtainable.
            rests_on: For each stage, what its sensitivity rests on.
        """
        paid = {stage.name for stage in self.stages() if not stage.public}
        if paid != mechanisms.keys():
            raise TypeError(
                f"Expected a mechanism for each paid stage of {self.name} ({sorted(paid)}), got "
                f"{sorted(mechanisms)}. What is not priced would be released for nothing."
            )
        if self.terms.prompts is not None:  # Other prompts are another release.
            parameters = {**parameters, "prompts": self.terms.prompts.to_json()}
        parameters = {**parameters, **schema_parameters(self.form.schema)}
        paid_for = {name: value for name, value in parameters.items() if name != REJECTION}
        stages = tuple(
            replace(
                stage,
                mechanism=mechanisms.get(stage.name),
                settings=self.stage_settings(stage.name, paid_for),
                rests_on=(rests_on or {}).get(stage.name, {}),
            )
            for stage in self.stages()
        )
        return MethodPlan(
            guarantee=guarantee or self.guarantee,
            parameters=parameters,
            stages=stages,
            epsilon=epsilon,
            tokens_per_batch=tokens_per_batch,
            rows_estimate=rows_estimate,
        )

    def refused(self, refusal: str, parameters: Mapping[str, Any] | None = None) -> MethodPlan:
        """Makes a plan that charges nothing, writes nothing, and says why in one line."""
        return MethodPlan(
            guarantee=self.guarantee,
            parameters=parameters or {},
            stages=self.stages(),
            rows_estimate=0,
            refusal=refusal,
        )

    def check_public(self, stage: Stage, public: PublicInputs) -> None:
        """Loads what a stage will run and refuses what it could not end with, before the charge.

        Raises:
            ValueError: In one line that anybody may read.

        **Privacy** Reads settings, public models and released values only.
        """
        del stage, public

    def rests_on(self, stage: Stage, public: PublicInputs) -> Mapping[str, Any]:
        """States what was tested of public inputs before the charge, which keeps it for the label.

        **Privacy** Reads settings, public models and released values only.
        """
        del stage, public
        return {}

    def room(self, stage: Stage, public: PublicInputs) -> Room:
        """Bounds what a stage takes of the disks: its release, its draw, the corpus from it.

        It is asked for before the charge, beside 16 MiB that each disk must have left in any case:
        these suffice for histograms and other small tables.

        **Privacy** Reads settings, public models and released values only.
        """
        del stage, public
        return Room()

    def release(
        self,
        stage: Stage,
        private: PrivateInputs,
        public: PublicInputs,
        checkpoint: Checkpoint,
        progress: ProgressCallback,
    ) -> Release[StageRelease]:
        """Runs one paid stage. The caller has charged `stage.mechanism` to the ledger already.

        Args:
            stage: A stage of the plan, with its mechanism.
            private: What the stage reads.
            public: Public and released inputs, earlier stages in `public.released`.
            checkpoint: Where an unfinished stage keeps its state, and its scratch folders.
            progress: Told the share done; what it is told may depend on saved draws only.

        Raises:
            NotImplementedError: If the method has no paid stages.
        """
        raise NotImplementedError(f"Expected a paid stage of {self.name}, got {stage.name}.")

    def make_public(
        self, stage: Stage, public: PublicInputs, folder: Path, progress: ProgressCallback
    ) -> StageRelease:
        """Runs one public stage. Reads nothing private and costs nothing.

        Args:
            stage: A public stage of the plan.
            public: Public and released inputs, earlier stages in `public.released`.
            folder: An empty folder for the stage's files.
            progress: Told the share done.

        Raises:
            NotImplementedError: If the method has no public stages.
        """
        raise NotImplementedError(f"Expected a public stage of {self.name}, got {stage.name}.")


class Method(Staged[ConfigT]):
    """One way to turn a cohort into a synthetic corpus, or into a downstream model."""

    title: ClassVar[str]
    paper: ClassVar[str]
    arxiv: ClassVar[str] = ""
    config_type: ClassVar[type[MethodConfig]]
    spends: ClassVar[bool] = True
    """Whether it charges anything itself, beside the releases it builds on."""
    writes_corpus: ClassVar[bool] = True
    """Whether there is a corpus at all; a method may release a downstream model instead."""
    rows_are_free: ClassVar[bool] = True
    """Whether `write` makes the rows, any number of them; else a paid stage releases them."""
    chooses_rows: ClassVar[bool] = False
    """Whether its rows are some of those of the corpus it builds on."""
    reads_generator: ClassVar[bool] = False
    """Whether it needs the fine-tuned weights behind the corpus it builds on."""
    rehearsal: ClassVar[Mapping[str, Any]] = {}
    """Settings at which a run takes seconds: rehearsals of a whole installation use them."""
    attacks: ClassVar[tuple[Attack, ...]] = ()
    """Attacks it can be put to: `reconstruct` and `audit_median` run them."""

    unadvised: ClassVar[str] = "its package names no settings to weigh"
    """Why advice never offers it, where it has no candidates."""

    @classmethod
    def candidates(cls, facts: DeclaredFacts) -> tuple[Candidate, ...]:
        """Settings that advice weighs, the best first that a plan may refuse; none: `unadvised`."""
        del facts
        return ()

    @property
    def examples_in_prompt(self) -> int:
        """Texts that stand in a prompt as examples: the ceiling gets as many real records."""
        return 1

    @classmethod
    def default_settings(cls, terms: CohortTerms) -> Mapping[str, Any]:
        """Chooses settings by declared facts, where the dataset file names none.

        A setting of the file comes before them; those of the config's own fields come after.
        """
        del terms
        return {}

    @property
    def uses_histogram(self) -> bool:
        """Whether the corpus builds on the cluster histogram, and so carries its cost as well."""
        return False

    @property
    def uses_topics(self) -> bool:
        """Whether the corpus builds on the released topic histogram, and so carries its cost."""
        return False

    @property
    def builds_on(self) -> tuple[str, ...]:
        """Folders of the cohort's other methods whose published corpora this one reads."""
        return ()

    @property
    def fine_tunes_language_model(self) -> bool:
        """Whether weights that it releases read prompts as the base's language model does."""
        return False

    def rows_behind(self, folder: str, public: PublicInputs) -> "pl.DataFrame":
        """Rows of another method's published corpus: columns `text` and `label`.

        Raises:
            ValueError: There is none.
        """
        if folder not in public.corpora:
            raise ValueError(
                f"Expected the published corpus of {folder}, got none. Publish it first, or "
                "name another method's folder as `corpus`."
            )
        return public.corpora[folder]

    @property
    def rejection(self) -> RejectionSettings:
        """Which rows are kept."""
        return getattr(self.config, REJECTION, None) or RejectionSettings()

    @property
    def writing_inputs(self) -> frozenset[str]:
        """Artifacts of the public base that only writing reads: no paid release depends on them."""
        return self.rejection.public_inputs()

    def row_filter(self, public: PublicInputs) -> RowFilter:
        """Opens what decides which written rows are kept, on public and released values alone."""
        words = " ".join((self.terms.domain, *self.terms.label_texts))
        whole = self.form.schema is not None
        return RowFilter.opened(self.rejection, public, words, whole=whole)

    @property
    def default_rows(self) -> int:
        """Rows written unless the launch asks for another number."""
        return int(getattr(self.config, "rows", 0))

    def room(self, stage: Stage, public: PublicInputs) -> Room:
        """Counts the declared rows at full length as the corpus; stages that take more add it."""
        del stage, public
        lengths = [
            getattr(self.config, name)
            for name in ("max_document_tokens", "max_new_tokens")
            if hasattr(self.config, name)
        ]
        tokens = max(lengths, default=ROW_TOKENS)
        return Room(corpus=bytes_of_texts(self.default_rows, tokens))

    def tail(self, plan: MethodPlan) -> Tail | None:
        """Estimates the share of private draws that fall on tokens nobody proposes.

        Args:
            plan: A plan of this method that was not refused.

        Returns:
            None where no token is drawn from private prompts.
        """
        del plan
        return None

    @abstractmethod
    def plan(self, target_epsilon: float) -> MethodPlan:
        """Prices the method from public facts; must not touch private data; under a second.

        Args:
            target_epsilon: ε this release may cost on its own at the cohort's δ.
        """

    def write(self, public: PublicInputs, rows: int, progress: ProgressCallback) -> SyntheticCorpus:
        """Writes rows from what was released. Reads nothing private and costs nothing.

        Args:
            public: Public and released inputs; all stages in `public.released`.
            rows: Rows to write.
            progress: Told the share done.

        Raises:
            ValueError: If the method writes no rows from its stages.
        """
        del public, rows, progress
        raise ValueError(f"Expected a method that writes text, got {self.name}.")

    def reconstruct(
        self, plan: MethodPlan, target_epsilon: float, model: Any
    ) -> "KeysWritten | None":
        """Plants keys in made-up records and runs its own mechanism on them (`attacks`).

        Args:
            plan: A plan of this method that can run.
            target_epsilon: ε that the plan was sized by.
            model: A language model.

        Returns:
            What was written; None if the budget does not reach for a single key.

        Raises:
            NotImplementedError: If it cannot be put to this attack.
        """
        raise NotImplementedError(f"Expected a method that writes from prompts, got {self.name}.")

    def audit_median(
        self,
        target_epsilon: float,
        documents: PrivateInputs,
        public: PublicInputs,
        progress: ProgressCallback,
    ) -> "MedianAudit":
        """Draws from batches of public documents as it does, and audits every token (`attacks`).

        Raises:
            NotImplementedError: If it cannot be put to this attack.
        """
        raise NotImplementedError(f"Expected a method that draws from medians, got {self.name}.")
