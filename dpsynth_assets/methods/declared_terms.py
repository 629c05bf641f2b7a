"""Promises of a dataset file, as plans and the ledger read it; no record is looked at."""

import json

from dpsynth_assets.datasets import PrivateDatasetSpec, PublicDataSpec
from dpsynth_assets.datasets.engine import EngineSpec
from dpsynth_assets.datasets.standing import declared_base
from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.models.prompt_templates import (
    PromptTemplates,
    declared_templates,
    default_templates,
)
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.privacy.ledger import BudgetTerms, SecretTerms


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
        cohort=spec.name,
        account=spec.account,
        relation=NeighboringRelation(spec.neighboring_relation),
        unit=spec.unit,
        epsilon=spec.budget.epsilon,
        delta=spec.budget.delta,
        accountant=spec.budget.accountant,
        labels=labels,
        label_texts=label_texts,
        public_records=spec.public_facts.records,
        public_slots=spec.public_facts.slots,
        accepts_ex_post=spec.budget.accepts_ex_post,
        has_cluster_histogram=spec.cluster_histogram is not None,
        prompts=declared_templates(spec) or _default_templates(spec, base, label_texts),
        engine=_engine(spec.engine, base),
        language_model=None if base is None else base.language_model,
        generator=None if base is None else base.conditional_generator,
        domain="" if base is None else base.domain,
        json_schema=None if schema is None else json.dumps(schema, sort_keys=False),
        secrets=None if spec.secrets is None else spec.secrets.promise,
    )


def _engine(declared: EngineSpec, base: PublicDataSpec | None) -> EngineSpec:
    """Takes the base's decoder, where the file asks for nothing else."""
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
        asks=base.language_model.use_chat_template,
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


def secret_terms(spec: PrivateDatasetSpec) -> SecretTerms | None:
    """What is promised to secrets, as the ledger checks it: the first kind, then the others.

    **Privacy** A DP release bounds neighbours one unit apart: a secret's neighbours are as many
    steps away as records hold it, twice as many where a replaced record is one that goes and one
    that comes.
    """
    if spec.secrets is None:
        return None
    promise = spec.secrets.promise
    (prior, posterior), *others = promise.bounds
    replaced = promise.relation is NeighboringRelation.REPLACE_ONE
    steps = 2 if replaced and spec.neighboring_relation is not promise.relation else 1
    return SecretTerms(
        prior=prior,
        posterior=posterior,
        occurrences=steps * promise.max_records,
        others=tuple(others),
    )
