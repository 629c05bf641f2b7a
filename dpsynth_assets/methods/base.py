"""The interface of every method: bound to its settings and cohort, it releases stage by stage.

A method is bound: it holds its validated settings and the cohort's declared terms. It lists its
stages, each of which knows what it reads and how it is run; plans them, so that each paid stage has
the mechanism whose event is charged; and says how rows are written from what was released. A method
whose stage releases the rows writes none. What else it can do are attributes, None where it cannot.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import BaseModel

from dpsynth_assets.datasets.fields import Declaration
from dpsynth_assets.datasets.public_spec import (
    ConditionalGeneratorSpec,
    EngineSpec,
    LanguageModelSpec,
)
from dpsynth_assets.datasets.secrets import SecretsSpec
from dpsynth_assets.files.whole import Room
from dpsynth_assets.methods.capabilities import Advice
from dpsynth_assets.methods.inputs import PublicInputs
from dpsynth_assets.methods.stages import (
    Mechanism,
    MethodPlan,
    Stage,
    Writing,
)
from dpsynth_assets.models.prompt_templates import PromptTemplates
from dpsynth_assets.models.row_rules import TextForm, schema_parameters
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.histogram import NoiseKind, NoisyHistogram
from dpsynth_assets.privacy.ledger import BudgetTerms


class MethodConfig(Declaration):
    """Settings of a method in the dataset file. Subclasses add a `method` literal and fields."""

    constants: ClassVar[Mapping[str, Any]] = {}
    """Former settings, which requests keep on stating: what was paid for is found again."""

    def stated(self) -> dict[str, Any]:
        """The settings as requests state them (JSON values)."""
        return {**self.constants, **self.model_dump(mode="json")}


ConfigT = TypeVar("ConfigT", bound=BaseModel)
MechanismT = TypeVar("MechanismT", bound=Mechanism)

REJECTION = "rejection"
"""Setting of which rows are kept: no stage's charge depends on it, so it is in no request."""


@dataclass(frozen=True, kw_only=True)
class CohortTerms(BudgetTerms):
    """Everything a plan may know: declared or public, never computed from private records.

    Attributes:
        cohort: Name of the disjoint set of private records, whose budget the inherited terms are.
        labels: Public composite label values, in declared order; ("",) where there are none.
        label_texts: How each label is written in a prompt, aligned with `labels`.
        public_records: Number of records, if declared public.
        public_slots: Whether label, cluster and place of every record are declared public.
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
            squared μ; None where nothing else depends on the secrets.
    """

    cohort: str
    labels: tuple[str, ...]
    label_texts: tuple[str, ...]
    public_records: int | None = None
    public_slots: bool = False
    has_cluster_histogram: bool = False
    prompts: PromptTemplates | None = None
    engine: EngineSpec = field(default_factory=EngineSpec)
    language_model: LanguageModelSpec | None = None
    generator: ConditionalGeneratorSpec | None = None
    domain: str = ""
    json_schema: str | None = None
    secrets: SecretsSpec | None = None
    secret_share: float | None = None

    @property
    def decodes_exactly(self) -> bool:
        """Whether the base declares that logits are computed in exact integers."""
        return self.language_model is not None and self.language_model.decodes_exactly

    @property
    def decodes_in_vllm(self) -> bool:
        """Whether the base declares that vLLM computes logits."""
        return self.language_model is not None and self.language_model.decodes_in_vllm

    def form(self, *, follows_schema: bool = True) -> TextForm:
        """The form of texts that are written under the declared schema, where there is one."""
        schema = self.json_schema if follows_schema else None
        return TextForm.of(schema, self.prompts, self.label_texts)

    def histogram(self, scale: float, noise: NoiseKind = "gaussian") -> NoisyHistogram:
        """A histogram in which records count one each, with noise of such a scale (records)."""
        return NoisyHistogram(
            noise=noise,
            scale=scale,
            relation=self.relation,
            max_records_per_unit=self.unit.max_records,
        )


class Staged(ABC, Generic[ConfigT]):
    """Anything that releases in stages: a method, or a histogram that a dataset's methods share."""

    name: ClassVar[str]
    guarantee: ClassVar[GuaranteeType] = GuaranteeType.DP
    code_version: ClassVar[str] = "1"
    """Raised when the mechanism's behaviour changes: an older release is then not reused."""
    free_settings: ClassVar[frozenset[str]] = frozenset()
    """Parameters of its plan that no stage's release depends on: with others, what was paid for is
    used again."""
    follows_schema: bool = False
    """Whether the texts that it writes follow the declared schema, where there is one."""

    def __init__(self, config: ConfigT, terms: CohortTerms) -> None:
        """Binds validated settings to the cohort's declared terms."""
        self.config = config
        self.terms = terms

    @abstractmethod
    def stages(self) -> tuple[Stage, ...]:
        """Lists the stages in the order in which they run, without mechanisms; public knowledge."""

    def writing(self) -> Writing | None:
        """Says how rows are written from what was released; None where a stage releases them."""
        return None


class Method(Staged[ConfigT]):
    """One way to turn a cohort into a synthetic corpus, or into a downstream model."""

    title: ClassVar[str]
    paper: ClassVar[str]
    arxiv: ClassVar[str] = ""
    config_type: ClassVar[type[MethodConfig]]
    advice: ClassVar[Advice] = Advice()
    """Its tuned defaults, the settings that advice weighs, and how its budget may be split."""
    reads_weights: ClassVar[bool] = False
    """Whether it reads the fine-tuned weights behind `corpora`, not their rows."""
    chooses_rows: ClassVar[bool] = False
    """Whether its rows are some of those of `corpora`."""
    open_rows: Any = None
    """(public inputs) -> a context of a `capabilities.RowSource`: rows of a chosen label, on demand
    and at no cost, from what it released."""
    prompts: Any = None
    """(folder of the released weights) -> text that a row of each label is written after: its stage
    `finetuned_generator` may be exported."""
    pass_shape: Any = None
    """(language model) -> the most that a forward pass holds, public: it draws from the logits of
    private prompts, and its settings have `logit_slack`."""
    reconstruct: Any = None
    """(target ε, language model) -> `attacks.reconstruction.KeysWritten`: plants keys in made-up
    records and runs its own mechanism on them; None if the budget does not reach for one key."""
    audit_median: Any = None
    """(target ε, public documents, public inputs, progress) -> `attacks.median_audit.MedianAudit`:
    draws from batches of public documents as it does, and audits every token."""

    @property
    def corpora(self) -> tuple[str, ...]:
        """Folders of the cohort's methods whose corpora its settings name, there or not."""
        return ()

    @abstractmethod
    def plan(self, target_epsilon: float) -> MethodPlan:
        """Prices the method from public facts; must not touch private data; under a second.

        Args:
            target_epsilon: ε this release may cost on its own at the cohort's δ.

        Raises:
            ValueError: It cannot run, for a reason in public facts; `priced` makes it a refusal.
        """


def form_of(method: Staged[Any]) -> TextForm:
    """The form of the texts that a method writes."""
    return method.terms.form(follows_schema=method.follows_schema)


def mechanism_of(stage: Stage, kind: type[MechanismT]) -> MechanismT:
    """Takes the mechanism of a planned stage.

    Raises:
        TypeError: If the plan refused.
    """
    if not isinstance(stage.mechanism, kind):
        raise TypeError(f"Expected a planned stage {stage.name}, got none. Plan first.")
    return stage.mechanism


def planned(
    method: Staged[Any],
    mechanisms: Mapping[str, Mechanism],
    parameters: Mapping[str, Any],
    *,
    rests_on: Mapping[str, Mapping[str, Any]] | None = None,
    **facts: Any,
) -> MethodPlan:
    """Makes a plan: every stage with its mechanism and its settings.

    Args:
        method: What is planned.
        mechanisms: Mechanism of each paid stage.
        parameters: Public parameters, written to the ledger.
        rests_on: For each stage, what its sensitivity rests on.
        facts: Further fields of the plan; the guarantee is that of the class where none is given.
    """
    paid = {stage.name for stage in method.stages() if not stage.public}
    if paid != mechanisms.keys():
        raise TypeError(
            f"Expected a mechanism for each paid stage of {method.name} ({sorted(paid)}), got "
            f"{sorted(mechanisms)}. A mechanism without a price would release at no cost."
        )
    if method.terms.prompts is not None:  # Other prompts are another release.
        parameters = {**parameters, "prompts": method.terms.prompts.to_json()}
    parameters = {**parameters, **schema_parameters(form_of(method).schema)}

    def depended_on(stage: Stage) -> Mapping[str, Any]:
        unread = {REJECTION, *method.free_settings, *stage.free}
        return {name: value for name, value in parameters.items() if name not in unread}

    stages = tuple(
        replace(
            stage,
            mechanism=mechanisms.get(stage.name),
            settings=depended_on(stage),
            rests_on=(rests_on or {}).get(stage.name, {}),
        )
        for stage in method.stages()
    )
    if (writing := method.writing()) is not None:
        facts["rows_estimate"] = writing.rows
    facts = {"guarantee": method.guarantee, **facts}
    return MethodPlan(parameters=parameters, stages=stages, terms=method.terms, **facts)


def priced(method: "Method[Any]", target_epsilon: float) -> MethodPlan:
    """Plans a method, or says in one line why it cannot run.

    Args:
        method: Bound to its settings and its cohort.
        target_epsilon: As `Method.plan` takes it.
    """
    try:
        if spends(method) and method.guarantee is GuaranteeType.DP:
            require_share(method, target_epsilon)
        return method.plan(target_epsilon)
    except ValueError as error:  # Of public facts; the other methods, and cohorts, go on.
        return refused(method, " ".join(str(error).split()))


def require_share(method: Staged[Any], target_epsilon: float) -> None:
    """Checks that a release has a share of the budget.

    Raises:
        ValueError: It has none.
    """
    if target_epsilon <= 0:
        raise ValueError(
            f"Expected a part of the budget for {method.name}, got none: other releases take it. "
            "Lower their budget_share, or raise topic_histogram.noise_std, in the dataset file."
        )


def refused(method: Staged[Any], refusal: str) -> MethodPlan:
    """Makes a plan that charges nothing, writes nothing, and says why in one line."""
    return MethodPlan(
        guarantee=method.guarantee,
        parameters={},
        stages=method.stages(),
        rows_estimate=0,
        refusal=refusal,
    )


def room_of(method: Staged[Any], stage: Stage, public: PublicInputs) -> Room:
    """Bounds what a stage takes of the disks: its release, its draw, the corpus from it.

    **Privacy** Reads settings, public models and released values only.
    """
    own, writing = stage.takes(stage, public), method.writing()
    return own if writing is None else replace(own, corpus=writing.bytes)


def spends(method: Staged[Any]) -> bool:
    """Whether a method gets a share of the budget: not one that only builds on others' releases."""
    return bool(method.stages())
