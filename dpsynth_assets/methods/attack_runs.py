"""Attacks on the methods of a dataset, on made-up keys and on public records, and their results."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from dpsynth_assets.attacks.catalogue import MEDIAN_GAMMA, MEDIAN_REMOVAL, Attack
from dpsynth_assets.methods.base import Method
from dpsynth_assets.methods.dataset_plan import DatasetPlan, PlannedMethod
from dpsynth_assets.methods.inputs import ProgressCallback

if TYPE_CHECKING:
    from dpsynth_assets.attacks.audits.audit import AuditResult
    from dpsynth_assets.attacks.median_audit import MedianAudit
    from dpsynth_assets.attacks.reconstruction import Overlap

DOCUMENTS = 5_000
"""Public documents, the first ones, from which the median audit fills its batches."""


def attacks_on(method: Method[Any] | type[Method[Any]]) -> tuple[Attack, ...]:
    """Attacks that a method can be put to."""
    runs = {Attack.RECONSTRUCTION: method.reconstruct, Attack.MEDIAN_AUDIT: method.audit_median}
    return tuple(attack for attack, run in runs.items() if run is not None)


def attacked(plan: DatasetPlan, attack: Attack) -> tuple[PlannedMethod, ...]:
    """Lists the methods of a dataset that can be put to an attack, and that can run."""
    return tuple(
        planned
        for planned in plan.methods
        if attack in attacks_on(planned.method) and planned.plan.refusal is None
    )


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
    """Plants keys again for every method and model, and looks for them in what is written."""
    from dpsynth_assets.attacks.audits.audit import AuditKind, AuditResult
    from dpsynth_assets.attacks.reconstruction import judge

    tested = attacked(plan, Attack.RECONSTRUCTION)
    cases = [(name, planned) for name in models for planned in tested]
    found = []
    for index, (model, planned) in enumerate(cases):
        report(index / len(cases), f"{planned.folder} on the {model}")
        started = time.perf_counter()
        written = planned.method.reconstruct(planned.target_epsilon, models[model])
        if written is None:
            continue
        name = f"{dataset}/{planned.folder}/{Attack.RECONSTRUCTION} ({model})"
        finding = judge(written.overlap, written.claimed_epsilon)
        found.append(
            Reconstruction(
                method=planned.folder,
                model=model,
                overlap=written.overlap,
                control=written.control,
                result=AuditResult.of(name, AuditKind.STATISTICAL, finding, started),
            )
        )
    report(1.0, f"{len(found)} tests done")
    return found


def public_records(documents: pl.DataFrame, labels: Sequence[str]) -> pl.DataFrame:
    """Shapes public documents like private records; foreign labels are dealt out in turn."""
    turn = pl.Series([labels[row % len(labels)] for row in range(documents.height)])
    own = pl.col("label").is_in(list(labels))
    name = pl.format("public{}", "number")
    return documents.with_row_index("number").select(
        name.alias("record_id"),
        name.alias("unit_id"),
        "text",
        pl.when(own).then("label").otherwise(pl.lit(turn)).alias("label"),
    )


def median_results(name: str, audit: "MedianAudit", started: float) -> list["AuditResult"]:
    """Two results: whether γ was ever exceeded, and how much of it a removal attained at most."""
    from dpsynth_assets.attacks.audits.audit import AuditKind, AuditResult, Finding

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
        AuditResult.of(f"{name}/{MEDIAN_GAMMA}", AuditKind.EXACT, audit.finding(), started),
        AuditResult.of(f"{name}/{MEDIAN_REMOVAL}", AuditKind.EXACT, removal, started),
    ]
