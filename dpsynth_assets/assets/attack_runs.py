"""Runs of a dataset's methods on made-up and public records, for attacks on what they write.

Everything that decides privacy is the dataset's own: mechanism, clip bound, temperature, batch
size, examples in a context, slack, relation and unit. Batches are few and plans short, so that a
test takes seconds; a shorter plan claims less.
"""

import importlib.metadata
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from dpsynth_assets.methods.base import (
    CohortTerms,
    MethodPlan,
    PrivateInputs,
    ProgressCallback,
    PublicInputs,
)
from dpsynth_assets.methods.planning import DatasetPlan, PlannedMethod
from dpsynth_assets.methods.private_prediction.cluster_histogram import ClusterHistogram
from dpsynth_assets.methods.private_prediction.config import (
    MedianClusteredConfig,
    PrivatePredictionConfig,
)

if TYPE_CHECKING:
    from dpsynth_assets.attacks.audits import AuditKind, AuditResult
    from dpsynth_assets.attacks.audits.audit import Finding
    from dpsynth_assets.attacks.median_audit import MedianAudit
    from dpsynth_assets.attacks.reconstruction import Overlap

CONTEXTS = 96
"""Contexts that generate side by side in a test, whole batches: one batch at least."""

PRIVATE_TOKENS = 60
"""Private tokens a batch draws in a test, if its plan allows as many: a dozen keys.

More would show weaker copying, but claim a larger ε, which copying itself could then not refute.
"""

CONTROL_DOCUMENTS = 100
"""Documents of the positive control."""

AUDITED_CONTEXTS = 64
"""Contexts of a batch that the median audit removes one after another."""

DOCUMENTS = 5_000
"""Public documents, the first ones, from which the median audit fills its batches."""

LABEL = "keys"
OWN_MODEL, COPYING_MODEL = "public model", "copying model"


def testable(plan: DatasetPlan) -> tuple[PlannedMethod, ...]:
    """Methods of private prediction that can run."""
    return tuple(
        planned
        for planned in plan.methods
        if isinstance(planned.config, PrivatePredictionConfig) and planned.plan.refusal is None
    )


def median_of(plan: DatasetPlan) -> PlannedMethod | None:
    """The first median method that can run; its audit stands for all of them."""
    medians = (p for p in testable(plan) if isinstance(p.config, MedianClusteredConfig))
    return next(medians, None)


@dataclass(frozen=True, kw_only=True)
class Reconstruction:
    """What one method wrote on one model, and what copying without privacy would have written.

    Attributes:
        method: Folder of the method.
        model: Which language model: the dataset's, or the one that only copies.
        overlap: Keys the method wrote.
        control: Keys written from one record's own logits: what the test can see at all.
        result: Claimed and proven ε.
    """

    method: str
    model: str
    overlap: "Overlap"
    control: "Overlap"
    result: "AuditResult"

    @property
    def has_power(self) -> bool:
        """Whether the model copies at all: one that never repeats a key passes any test."""
        return self.control.proven_epsilon > 0


def reconstruct(
    dataset: str, plan: DatasetPlan, models: Mapping[str, Any], report: ProgressCallback
) -> list[Reconstruction]:
    """Plants keys anew for every method and model, and looks for them in what is written."""
    cases = [(name, planned) for name in models for planned in testable(plan)]
    found = []
    for index, (name, planned) in enumerate(cases):
        report(index / len(cases), f"{planned.folder} on the {name}")
        task = key_task(planned, plan.terms, models[name])
        if task is not None:
            found.append(_reconstruct_once(dataset, planned, name, task))
    report(1.0, f"{len(found)} tests done")
    return found


@dataclass(frozen=True, kw_only=True)
class KeyTask:
    """One method's run on planted keys: its own mechanism settings, lengths of a key.

    Attributes:
        config: The declared settings, with the lengths of a key and few batches.
        terms: The declared terms, with one public label for all keys.
        plan: As many private tokens as the declared plan has, at most as the test may draw.
        public: The language model, one cluster and its made-up histogram.
        expected_keys: Records that fill the batches, on average.
    """

    config: Any
    terms: CohortTerms
    plan: MethodPlan
    public: PublicInputs
    expected_keys: int


def key_task(planned: PlannedMethod, terms: CohortTerms, model: Any) -> KeyTask | None:
    """Fits a method to keys; None if its budget does not reach for a single one.

    Batches are hashed whatever is declared: coins decide how many keys there are, and slots would
    take that number for public.
    """
    from dpsynth_assets.attacks.reconstruction import DIGITS, KEYS

    own = planned.config
    batches = max(1, CONTEXTS // own.expected_batch_size)
    keys = min(KEYS // 2, batches * own.expected_batch_size * own.examples_per_context)
    length = max(len(model.encode(digit * DIGITS)) for digit in "0123456789")
    config = _changed(
        own,
        batching="hashed",
        max_document_tokens=length,
        max_example_tokens=length,
        min_tokens_for_new_document=min(own.min_tokens_for_new_document, length),
        on_exhaustion="drop",
        max_batches=batches,
        batches_per_label=batches,
        max_tokens_per_batch=2 * PRIVATE_TOKENS,
    )
    terms = replace(
        terms,
        accountant="zcdp",
        labels=(LABEL,),
        label_texts=(LABEL,),
        public_records=keys,
        has_cluster_histogram=True,
    )
    plan = short_plan(planned, config, terms)
    if plan.refusal is not None or not plan.tokens_per_batch:
        return None
    return KeyTask(
        config=config,
        terms=terms,
        plan=plan,
        public=PublicInputs(
            language_model=model,
            cluster_centers=np.ones((1, 1), dtype=np.float32),
            cluster_histogram=ClusterHistogram(
                labels=(LABEL,), centers=((0,),), dp_counts=((keys,),)
            ),
        ),
        expected_keys=keys,
    )


def short_plan(planned: PlannedMethod, config: Any, terms: CohortTerms) -> MethodPlan:
    """The declared plan, or one of about `PRIVATE_TOKENS`: they cost ρ in proportion."""
    from dpsynth_assets.privacy.accounting import zcdp_epsilon, zcdp_rho

    target = getattr(config, "matched_epsilon", None) or planned.target_epsilon
    plan = planned.method.plan(config, terms, target_epsilon=target)
    tokens = plan.tokens_per_batch or 0
    if plan.refusal is not None or tokens <= PRIVATE_TOKENS:
        return plan
    rho = float(zcdp_rho(target, terms.delta)) * PRIVATE_TOKENS / tokens
    shorter = zcdp_epsilon(rho, terms.delta)
    config = _changed(config, matched_epsilon=None)
    return planned.method.plan(config, terms, target_epsilon=shorter)


def _changed(config: Any, **changes: Any) -> Any:
    """Sets those fields that a method's settings have."""
    fields = type(config).model_fields
    return config.model_copy(update={k: v for k, v in changes.items() if k in fields})


def _reconstruct_once(
    dataset: str, planned: PlannedMethod, model: str, task: KeyTask
) -> Reconstruction:
    from dpsynth_assets.attacks.audits import AuditKind
    from dpsynth_assets.attacks.reconstruction import audit_delta, count_overlap, judge, plant_keys
    from dpsynth_assets.methods.private_prediction.references import generate_non_private

    started = time.perf_counter()
    planted = plant_keys(task.expected_keys)
    records = key_records(planted.source)
    made = planned.method.generate(
        task.plan, task.config, task.terms, records, task.public, _silent
    )
    copied = generate_non_private(
        task.config, task.terms, records, task.public, CONTROL_DOCUMENTS, _silent
    )
    overlap = count_overlap(planted, made.value.rows["text"].to_list())
    finding = judge(overlap, _claimed_epsilon(made.cost, audit_delta(planted)))
    name = f"{dataset}/{planned.folder}/reconstruction ({model})"
    return Reconstruction(
        method=planned.folder,
        model=model,
        overlap=overlap,
        control=count_overlap(planted, copied.value.rows["text"].to_list()),
        result=_result(name, AuditKind.STATISTICAL, finding, started),
    )


def key_records(keys: Sequence[str]) -> PrivateInputs:
    """Made-up records in the shape of private ones: a key each, all in one place."""
    return PrivateInputs(
        records=pl.DataFrame(
            {"record_id": keys, "unit_id": keys, "text": keys, "label": [LABEL] * len(keys)},
            schema=dict.fromkeys(("record_id", "unit_id", "text", "label"), pl.String),
        ),
        embeddings=np.ones((len(keys), 1), dtype=np.float32),
    )


def _claimed_epsilon(cost: Any, delta: float) -> float:
    """ε that a release states at the test's δ: of its event, or its realised ex-post bound.

    A record that is replaced costs at least as much as one that comes or goes, which is what the
    test's coins do; so the figure holds for the test under every declared relation.
    """
    from dpsynth_assets.privacy.accounting import epsilon_of

    if cost.event is None:
        return float(cost.ex_post_epsilon)  # of made-up records, so it may be shown
    return float(epsilon_of([cost.event], delta, "zcdp"))


def public_records(documents: pl.DataFrame, labels: Sequence[str]) -> pl.DataFrame:
    """Public documents in the shape of private records; foreign labels are dealt out in turn."""
    turn = pl.Series([labels[row % len(labels)] for row in range(documents.height)])
    own = pl.col("label").is_in(list(labels))
    name = pl.format("public{}", "number")
    return documents.with_row_index("number").select(
        name.alias("record_id"),
        name.alias("unit_id"),
        "text",
        pl.when(own).then("label").otherwise(pl.lit(turn)).alias("label"),
    )


def audit_median(
    planned: PlannedMethod,
    terms: CohortTerms,
    records: PrivateInputs,
    public: PublicInputs,
    report: ProgressCallback,
) -> "MedianAudit":
    """Draws from batches of public records as the method does, and audits every token."""
    from dpsynth_assets.attacks.median_audit import MedianAudit, WatchedMedian
    from dpsynth_assets.methods.private_prediction.corpus import (
        GenerationTask,
        clustered_batches,
        generate_corpus,
        planned_tokens,
    )
    from dpsynth_assets.methods.private_prediction.median import (
        median_mechanism,
        median_selector,
    )

    own = planned.config
    batches = max(1, CONTEXTS // own.expected_batch_size)
    config = _changed(
        own,
        batching="hashed",
        max_batches=batches,
        batches_per_forward=batches,
        on_exhaustion="drop",
    )
    terms = replace(terms, accountant="zcdp", has_cluster_histogram=True)
    mechanism = median_mechanism(config, terms)
    audit = MedianAudit(mechanism, AUDITED_CONTEXTS)
    watched = WatchedMedian(
        **{name: getattr(mechanism, name) for name in type(mechanism).__dataclass_fields__},
        watch=audit.observe,
    )
    size = own.expected_batch_size * own.examples_per_context
    histogram = public_histogram(records, terms, public.cluster_centers, batches, size)
    task = GenerationTask(
        config=config,
        terms=terms,
        public=replace(public, cluster_histogram=histogram),
        tokens_per_batch=planned_tokens(short_plan(planned, config, terms)),
    )
    placed = clustered_batches(task, records)
    selector = median_selector(task, watched, np.zeros(len(placed)))
    generate_corpus(task, placed, selector, report)
    return audit


def public_histogram(
    records: PrivateInputs, terms: CohortTerms, centers: Any, cells: int, batch_records: int
) -> ClusterHistogram:
    """Exact counts of public records in the fullest cells; each counts for a batch at least."""
    from dpsynth_assets.methods.private_prediction.cluster_histogram import (
        assign_clusters,
        count_by_label_and_center,
        label_indices,
    )

    embeddings = records.embeddings
    if embeddings is None:
        raise ValueError("Expected embeddings of the public documents, got none.")
    labels = label_indices(records.records["label"].to_list(), terms.labels)
    everywhere = [list(range(len(centers)))] * len(terms.labels)
    clusters = assign_clusters(embeddings, labels, centers, everywhere)
    counts = count_by_label_and_center(labels, clusters, len(terms.labels), len(centers))
    fullest = np.argsort(-counts, axis=None, kind="stable")[:cells]
    filled: np.ndarray = np.zeros(counts.size, dtype=np.int64)
    filled[fullest] = np.maximum(counts.flat[fullest], batch_records)
    return ClusterHistogram(
        labels=terms.labels,
        centers=tuple(tuple(centre) for centre in everywhere),
        dp_counts=tuple(tuple(map(int, row)) for row in filled.reshape(counts.shape)),
    )


def median_results(name: str, audit: "MedianAudit", started: float) -> list["AuditResult"]:
    """Two results: whether γ was ever exceeded, and how much of it a removal attained at most."""
    from dpsynth_assets.attacks.audits import AuditKind
    from dpsynth_assets.attacks.audits.audit import Finding

    if not audit.batches:
        raise ValueError(
            "Expected public documents in at least one batch, got none. Use a larger public base."
        )
    worst = max(audit.batches, key=lambda batch: batch.attained)
    removal = Finding(
        claimed=worst.claimed,
        observed=worst.removed,
        note=f"batch {worst.batch} of {len(audit.batches)}: {worst.attained:.0%} of γ attained",
    )
    return [
        _result(f"{name}/median-gamma", AuditKind.EXACT, audit.finding(), started),
        _result(f"{name}/median-removal", AuditKind.EXACT, removal, started),
    ]


def _result(name: str, kind: "AuditKind", finding: "Finding", started: float) -> "AuditResult":
    from dpsynth_assets.attacks.audits import AuditResult

    return AuditResult(
        name=name,
        kind=str(kind),
        claimed=float(finding.claimed),
        observed=float(finding.observed),
        note=finding.note,
        passed=finding.passed,
        seconds=time.perf_counter() - started,
        version=importlib.metadata.version("dpsynth_assets"),
        finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _silent(_share: float, _message: str) -> None:
    """Reports to nobody: the test's own progress counts methods."""
