"""Runs of a dataset's methods on made-up keys and on public records, and their judgement."""

import importlib.metadata
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import polars as pl

from dpsynth_assets.assets.attack_record import (
    MEDIAN_GAMMA,
    MEDIAN_REMOVAL,
    has_median,
    is_testable,
)
from dpsynth_assets.assets.key_tasks import (
    CONTEXTS,
    KeyTask,
    changed,
    key_records,
    key_task,
    short_plan,
)
from dpsynth_assets.methods.base import CohortTerms, GenerationMethod
from dpsynth_assets.methods.cluster_histogram import ClusterHistogram
from dpsynth_assets.methods.inputs import PrivateInputs, ProgressCallback, PublicInputs
from dpsynth_assets.methods.planned import DatasetPlan, PlannedMethod

if TYPE_CHECKING:
    from dpsynth_assets.attacks.audits import AuditKind, AuditResult
    from dpsynth_assets.attacks.audits.audit import Finding
    from dpsynth_assets.attacks.median_audit import MedianAudit
    from dpsynth_assets.attacks.reconstruction import Overlap

CONTROL_DOCUMENTS = 100
"""Documents of the positive control."""

AUDITED_CONTEXTS = 64
"""Contexts of a batch that the median audit removes one after another, each alone."""

DOCUMENTS = 5_000
"""Public documents, the first ones, from which the median audit fills its batches."""


def testable(plan: DatasetPlan) -> tuple[PlannedMethod, ...]:
    """Methods that write texts token by token from private prompts, and that can run."""
    return tuple(
        planned
        for planned in plan.methods
        if is_testable(type(planned.config)) and planned.plan.refusal is None
    )


def medians_of(plan: DatasetPlan) -> tuple[PlannedMethod, ...]:
    """Methods that draw from medians, and that can run."""
    return tuple(p for p in testable(plan) if has_median(type(p.config)))


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


def _reconstruct_once(
    dataset: str, planned: PlannedMethod, model: str, task: KeyTask
) -> Reconstruction:
    from dpsynth_assets.attacks.audits import AuditKind
    from dpsynth_assets.attacks.reconstruction import audit_delta, count_overlap, judge
    from dpsynth_assets.methods.private_prediction.references import generate_non_private

    started = time.perf_counter()
    planted = task.plant()
    present = key_records(planted.source)
    records = present if planted.places is None else key_records(planted.places)
    method = cast("GenerationMethod", planned.method)
    made = method.generate(task.plan, task.config, task.terms, records, task.public, _silent)
    copied = generate_non_private(
        task.config, task.terms, present, task.public, CONTROL_DOCUMENTS, _silent
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
    config = changed(
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
    from dpsynth_assets.methods.cluster_histogram import (
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
        _result(f"{name}/{MEDIAN_GAMMA}", AuditKind.EXACT, audit.finding(), started),
        _result(f"{name}/{MEDIAN_REMOVAL}", AuditKind.EXACT, removal, started),
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
