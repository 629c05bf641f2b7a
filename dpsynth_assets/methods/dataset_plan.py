"""Plan of a dataset: declared terms, and each release with its mechanism, event and request.

What a file promises is read here for plans and for the ledger; no record is looked at. Equal
requests to the ledger are one release, and are paid for once.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from dpsynth_assets.datasets import MethodSpec, PrivateDatasetSpec, PublicDataSpec
from dpsynth_assets.datasets.public_spec import EngineSpec
from dpsynth_assets.datasets.standing import declared_base
from dpsynth_assets.methods.base import CohortTerms, Method, Staged
from dpsynth_assets.methods.plan_cache import remembered_call
from dpsynth_assets.methods.provenance import PlanGraph
from dpsynth_assets.methods.stages import CANDIDATE_CORPUS, MethodPlan, Stage, Step, Writing
from dpsynth_assets.models.prompt_templates import (
    PromptTemplates,
    declared_templates,
    default_templates,
)
from dpsynth_assets.privacy.accounting import epsilon_of, epsilon_of_fixed, epsilon_with_inputs
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.events import POST_PROCESSING, Event
from dpsynth_assets.privacy.guarantees import RESTS_ON, GuaranteeType, NeighboringRelation
from dpsynth_assets.privacy.ledger import BudgetTerms, PlannedRelease, ReleaseRequest, SecretTerms
from dpsynth_assets.privacy.ledger.accounts import CohortAccount
from dpsynth_assets.privacy.ledger.charges import is_secret
from dpsynth_assets.privacy.ledger.statement import CohortSpend, cohort_spend


@dataclass(frozen=True, kw_only=True)
class Planned:
    """What releases in stages, with its plan: a method, or a histogram that methods share.

    Attributes:
        folder: Its name within the dataset; the middle of its asset keys.
        method: What releases it, bound to its settings and the cohort's terms.
        plan: What it will do and charge.
        share: Share of the cohort's ρ; 0 where it spends nothing.
        target_epsilon: What the share is worth alone, as ε; None where noise is declared.
    """

    folder: str
    method: Staged[Any]
    plan: MethodPlan
    share: float
    target_epsilon: float | None = None

    @property
    def steps(self) -> tuple[Step, ...]:
        """Its stages."""
        return self.plan.stages

    @cached_property
    def epsilon(self) -> float:
        """ε of its charge alone at the cohort's δ; computed when asked, not when the UI opens."""
        terms, charges = self.method.terms, list(self.plan.charges.values())
        return epsilon_of_fixed(charges, terms.delta, terms.accountant)


@dataclass(frozen=True, kw_only=True)
class PlannedMethod(Planned):
    """One method with its plan.

    Attributes:
        spec: Its entry in the dataset file.
    """

    spec: MethodSpec
    method: Method[Any]
    target_epsilon: float

    @cached_property
    def writing(self) -> Writing | None:
        """How rows are written from what it released; None where a stage releases them."""
        return self.method.writing()

    @property
    def steps(self) -> tuple[Step, ...]:
        """Its stages, and the writing of its rows."""
        return (*self.plan.stages, *(() if self.writing is None else (self.writing,)))

    @property
    def rows_are_free(self) -> bool:
        """Whether no paid stage releases the rows."""
        return all(stage.name != CANDIDATE_CORPUS for stage in self.plan.stages)

    @property
    def corpus(self) -> str:
        """The node of its corpus, before the release gate (`provenance.PlanGraph`)."""
        return f"{self.folder}/{CANDIDATE_CORPUS}"

    @property
    def writes_corpus(self) -> bool:
        """Whether there is a corpus; a method may release a downstream model instead."""
        return self.writing is not None or not self.rows_are_free


@dataclass(frozen=True, kw_only=True)
class DatasetPlan:
    """Everything a cohort will be charged for under its dataset file.

    Attributes:
        spec: The cohort.
        base: Its public base; None where no file declares it.
        terms: Its declared terms, as methods read them.
        budget: Its budget, as the ledger reads it.
        histogram: The shared histogram of clusters, where one is declared.
        methods: Its methods, in the order of the file.
        topics: The shared histogram of topics, where one is declared.
    """

    spec: PrivateDatasetSpec = field(repr=False)
    base: PublicDataSpec | None = field(repr=False)
    terms: CohortTerms
    budget: BudgetTerms
    histogram: Planned | None
    methods: tuple[PlannedMethod, ...]
    topics: Planned | None = None

    @cached_property
    def graph(self) -> PlanGraph:
        """What each release is made from: the stages, shared histograms and corpora."""
        return PlanGraph(self.spec, self.base, self.shared, self.methods)

    @property
    def shared(self) -> tuple[Planned, ...]:
        """The histograms that all methods share, as far as the dataset file declares them."""
        return tuple(part for part in (self.histogram, self.topics) if part is not None)

    @property
    def parts(self) -> tuple[Planned, ...]:
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
        return tuple(planned for planned in self.methods if not planned.rows_are_free)

    @property
    def events(self) -> tuple[Event, ...]:
        """Events of one round of every planned DP release; those of secrets have no ε at all."""
        events = (release.event for release in self.releases if release.event is not None)
        return tuple(event for event in events if not is_secret(event))

    @property
    def total_epsilon(self) -> float:
        """ε of one round of every planned DP release, composed in one accountant."""
        return epsilon_of(self.events, self.budget.delta, self.budget.accountant)

    def epsilon_of_corpus(self, planned: PlannedMethod) -> float | None:
        """ε of a corpus with all that it builds on, by the plan; None where it has none.

        The ledger says what it is of the rows that were published.
        """
        if planned.plan.refusal is not None or planned.plan.guarantee is not GuaranteeType.DP:
            return None
        own = self.graph.nodes[planned.corpus].event
        events = [*self.graph.events_behind(planned.corpus), *(() if own is None else (own,))]
        return float(
            remembered_call(
                epsilon_with_inputs,
                charges=events,
                delta=self.budget.delta,
                accountant=self.budget.accountant,
                budget_epsilon=self.budget.epsilon,
            )
        )

    def method(self, folder: str) -> PlannedMethod:
        """The planned method of one folder.

        Raises:
            KeyError: There is none of that name; the message lists those there are.
        """
        planned = {planned.folder: planned for planned in self.methods}
        if folder not in planned:
            raise KeyError(f"Expected a folder in {sorted(planned)}, got {folder!r}.")
        return planned[folder]


def cohort_terms(spec: PrivateDatasetSpec, base: PublicDataSpec | None = None) -> CohortTerms:
    """The facts a plan may use: declared in dataset files, never computed from records.

    Args:
        spec: The cohort's declaration.
        base: The public base it builds on; None: the one that a dataset file declares.
    """
    base = base or declared_base(spec.public_data)
    labels, label_texts = spec.composite_labels
    schema = spec.constraining_schema
    return CohortTerms(
        **vars(budget_terms(spec)),
        cohort=spec.name,
        labels=labels,
        label_texts=label_texts,
        public_records=spec.public_facts.records,
        public_slots=spec.public_facts.slots,
        has_cluster_histogram=spec.cluster_histogram is not None,
        prompts=declared_templates(spec) or _default_templates(spec, base, label_texts),
        engine=_engine(spec.engine, base),
        language_model=None if base is None else base.language_model,
        generator=None if base is None else base.conditional_generator,
        domain="" if base is None else base.domain,
        json_schema=None if schema is None else json.dumps(schema, sort_keys=False),
        secrets=spec.secrets,
    )


def _engine(declared: EngineSpec, base: PublicDataSpec | None) -> EngineSpec:
    """Takes the base's decoder, where the file names no other."""
    if base is None or base.language_model.writes_by == declared.kind:
        return declared
    if declared.model_fields_set & {"kind", "model", "dtype", "device"}:
        return declared
    return declared.model_copy(update={"kind": base.language_model.writes_by})


def _default_templates(
    spec: PrivateDatasetSpec, base: PublicDataSpec | None, label_texts: tuple[str, ...]
) -> PromptTemplates | None:
    """Prompts of the base's domain; None where it has none: the model's document format."""
    if base is None or not base.domain:
        return None
    return default_templates(
        base.domain,
        labelled=any(label_texts),
        description=spec.description,
        asks=base.language_model.asks,
    )


def budget_terms(spec: PrivateDatasetSpec) -> BudgetTerms:
    """The cohort's budget as the ledger stores it."""
    facts = [f"label set of {column}" for column in spec.public_facts.labels]
    if spec.public_facts.records is not None:
        facts.append("number of records")
    if spec.public_facts.slots:
        facts.append("label, public cluster and place of every record: only its text is protected")
    if spec.neighboring_relation is NeighboringRelation.REPLACE_ONE:
        columns = (spec.columns.id, spec.privacy_unit.column)
        facts += [f"ids in column {name}: replaced records keep them" for name in columns if name]
    return BudgetTerms(
        epsilon=spec.budget.epsilon,
        delta=spec.budget.delta,
        accountant=spec.budget.accountant,
        relation=NeighboringRelation(spec.neighboring_relation),
        unit=spec.unit,
        accepts_ex_post=spec.budget.accepts_ex_post,
        public_facts=tuple(facts),
        partition=spec.partition,
        secret=secret_terms(spec),
        approvals=spec.approval_terms,
    )


def declared_spend(
    name: str, account: CohortAccount | None, spec: PrivateDatasetSpec | None
) -> CohortSpend:
    """The statement of an account under its declared terms, or, if δ changed, its last ones."""
    if spec is not None:
        try:
            return cohort_spend(name, account, budget_terms(spec))
        except PrivacyError:
            pass  # A run says what is wrong; what was spent is told under the terms it had.
    return cohort_spend(name, account)


def secret_terms(spec: PrivateDatasetSpec) -> SecretTerms | None:
    """What is promised to secrets, as the ledger checks it: the first kind, then the others.

    **Privacy** A DP release bounds neighbours one unit apart: a secret's neighbours are as many
    steps away as records hold it, twice as many where a replaced record is one that goes and one
    that comes.
    """
    if spec.secrets is None:
        return None
    promise = spec.secrets
    (prior, posterior), *others = promise.bounds
    replaced = promise.relation is NeighboringRelation.REPLACE_ONE
    steps = 2 if replaced and spec.neighboring_relation is not promise.relation else 1
    return SecretTerms(
        prior=prior,
        posterior=posterior,
        occurrences=steps * promise.max_records,
        others=tuple(others),
    )


def stage_request(
    spec: PrivateDatasetSpec,
    planned: Planned,
    stage: Stage,
    *,
    release: str,
    run_id: str = "",
    inputs: Mapping[str, str] | None = None,
    rests_on: Mapping[str, Any] | None = None,
) -> ReleaseRequest:
    """Asks for one stage.

    Settings that its release does not depend on are no part of the request: other rows never pay
    again. A public stage is recorded and charged nothing.

    Args:
        spec: The dataset.
        planned: Method or shared histogram.
        stage: A stage of its plan.
        release: Name of the release.
        run_id: Dagster run that asks.
        inputs: Identity of each public artifact and earlier release that the stage reads.
        rests_on: Facts about its inputs that the label states; no part of its identity.
    """
    if stage.mechanism is None and not stage.public:
        raise TypeError(f"Expected a planned stage {stage.name}, got one without a mechanism.")
    parameters = stage.request_parameters(inputs or {})
    return ReleaseRequest(
        **_of_part(spec, planned, stage.name),
        mechanism=stage.mechanism_name or planned.method.name,
        event=POST_PROCESSING if stage.mechanism is None else stage.mechanism.event(),
        parameters={**parameters, RESTS_ON: {**(rests_on or {}), **stage.rests_on}},
        release=release,
        run_id=run_id,
    )


def corpus_request(
    spec: PrivateDatasetSpec,
    planned: PlannedMethod,
    *,
    rows: int,
    inputs: Mapping[str, str],
    release: str,
    run_id: str,
) -> ReleaseRequest:
    """Records rows written from what a method's stages released: free post-processing."""
    return ReleaseRequest(
        **_of_part(spec, planned, CANDIDATE_CORPUS),
        mechanism=planned.method.name,
        event=POST_PROCESSING,
        parameters={
            **planned.plan.parameters,
            **({} if planned.writing is None else planned.writing.engine_identity),
            "rows": rows,
            "inputs": dict(inputs),
        },
        release=release,
        run_id=run_id,
    )


def _of_part(spec: PrivateDatasetSpec, planned: Planned, name: str) -> dict[str, Any]:
    """Whose request it is, and of which version."""
    return {
        "cohort": spec.account,
        "dataset": spec.dataset,
        "asset": f"{spec.name}/{planned.folder}/{name}",
        "guarantee": planned.plan.guarantee,
        "code_version": planned.method.code_version,
        "data_version": spec.source.version,
    }
