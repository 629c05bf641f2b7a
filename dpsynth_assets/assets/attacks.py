"""Attacks a dataset's methods must withstand, on made-up and public records: no budget is spent.

The reconstruction test plants keys and looks for them in what each method writes; the median audit
recomputes every drawn token without each of its contexts. Both run the real mechanism with the
dataset's settings. They read no private record, so their assets are public.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import numpy as np
import polars as pl

from dpsynth_assets.assets.attack_runs import (
    COPYING_MODEL,
    DOCUMENTS,
    OWN_MODEL,
    Reconstruction,
    audit_median,
    median_of,
    median_results,
    public_records,
    reconstruct,
    testable,
)
from dpsynth_assets.assets.audit import AUDIT
from dpsynth_assets.assets.groups import Step, step_group
from dpsynth_assets.assets.identity import dataset_key, version_of
from dpsynth_assets.assets.public import public_key
from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.metadata import code_references
from dpsynth_assets.methods.base import PrivateInputs, PublicInputs
from dpsynth_assets.methods.planned import DatasetPlan, PlannedMethod
from dpsynth_assets.models.prompt_templates import prompted
from dpsynth_assets.paths import home
from dpsynth_assets.resources.models import Models
from dpsynth_assets.resources.private_section import public_section
from dpsynth_assets.resources.progress import Progress
from dpsynth_assets.tags import GPU_OP_TAGS, GPU_POOL, PRIVACY, PUBLIC

if TYPE_CHECKING:
    from dpsynth_assets.attacks.audits import AuditResult
    from dpsynth_assets.attacks.median_audit import BatchGap
    from dpsynth_assets.attacks.reconstruction import Overlap, Rate

RECONSTRUCTION, MEDIAN = "reconstruction_test", "median_audit"
WITHIN_CLAIM, NO_COPYING, HAS_POWER = "within_claim", "no_key_reconstructed", "test_has_power"
NEVER_EXCEEDED = "gamma_never_exceeded"

CLAIMS = {
    "reconstruction": (
        "Planted keys are written no more often than the stated ε allows.",
        "ε, claimed and proven",
    ),
    "median-gamma": (
        "γ bounds how much one context changed any drawn token's log-probability.",
        "excess of the log-likelihood ratio over γ",
    ),
    "median-removal": (
        "The sum of γ bounds how much one context changed the whole draw of its batch.",
        "log-likelihood ratio, claimed and attained by removing a context",
    ),
}
"""Claim and measure of each attack, as a label prints them."""


def attack_definitions(spec: PrivateDatasetSpec, plan: DatasetPlan) -> dg.Definitions:
    """The attacks that a dataset's methods can be tested with."""
    assets = []
    if testable(plan):
        assets.append(_reconstruction_test(spec, plan))
    if median := median_of(plan):
        assets.append(_median_audit(spec, plan, median))
    return dg.Definitions(assets=assets)


def attack_results(target: str) -> list[dict[str, Any]]:
    """Last result of every attack on a dataset, or on one of its corpora (`dataset/folder`).

    Each comes with claim and measure, as a label prints it.
    """
    from dpsynth_assets.attacks.audits import latest_results

    results = [r for r in latest_results(attacks_file()) if r.name.startswith(f"{target}/")]
    return [{**asdict(result), **_meaning(result.name)} for result in results]


def attacks_file() -> Path:
    """Where results are kept: beside the mechanism audits, whose names are the registry's."""
    return home().audits.with_name("attacks.json")


def _common(
    spec: PrivateDatasetSpec, artifact: str, checks: Mapping[str, str], code: str
) -> dict[str, Any]:
    key = dataset_key(spec.name, AUDIT, artifact)
    return {
        "key": key,
        "group_name": step_group(spec.name, Step.AUDITS),
        "owners": spec.owners,
        "tags": {PRIVACY: PUBLIC},
        "metadata": code_references(code),
        "kinds": {"pytorch"},
        "pool": GPU_POOL,
        "op_tags": GPU_OP_TAGS,
        "check_specs": [
            dg.AssetCheckSpec(name=name, asset=key, description=text)
            for name, text in checks.items()
        ],
    }


def _model_input(spec: PrivateDatasetSpec) -> dict[str, dg.AssetIn]:
    return {
        "public_language_model": dg.AssetIn(public_key(spec.public_data, "public_language_model"))
    }


# Reconstruction


def _reconstruction_test(spec: PrivateDatasetSpec, plan: DatasetPlan) -> dg.AssetsDefinition:
    checks = {
        WITHIN_CLAIM: "No key overlap proves an ε above the stated one.",
        NO_COPYING: "No method writes planted keys more often than keys it never saw.",
        HAS_POWER: "Without privacy keys would be written on one model at least: it can be seen.",
    }

    @dg.asset(
        **_common(
            spec, RECONSTRUCTION, checks, "dpsynth_assets.attacks.reconstruction.count_overlap"
        ),
        ins=_model_input(spec),
        code_version=version_of("reconstruction", spec.methods, spec.budget),
        description=(
            "Are planted 5-digit keys written more often than keys no method saw? Made-up records, "
            "real mechanisms and settings, on the dataset's model and on one that only copies "
            "(Amin et al. 2025, D.5.1). Costs no budget."
        ),
    )
    def reconstruction_test(
        context: dg.AssetExecutionContext,
        public_language_model: dict,
        models: Models,
        progress: Progress,
    ) -> dg.MaterializeResult:
        from dpsynth_assets.attacks.audits import save_results
        from dpsynth_assets.attacks.copying_model import CopyingModel
        from dpsynth_assets.attacks.reconstruction import PrefilledModel

        report = progress.start(context, f"{spec.name}: reconstruction test")
        with public_section(f"{spec.name}/{AUDIT}/{RECONSTRUCTION}"):
            own = PrefilledModel(models.language_model(public_language_model))
            subjects = {OWN_MODEL: own, COPYING_MODEL: CopyingModel()}
            found = reconstruct(spec.name, plan, subjects, report)
        save_results(attacks_file(), [item.result for item in found])
        return dg.MaterializeResult(
            metadata=_reconstruction_metadata(found),
            check_results=reconstruction_checks(found),
        )

    return reconstruction_test


def _reconstruction_metadata(found: Sequence[Reconstruction]) -> dict[str, Any]:
    from dpsynth_assets.report.plots import reconstruction_plot, to_markdown

    lines = [
        "| method | model | source keys written | other keys written | ε proven | ε claimed | "
        "ε proven without privacy | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {item.method} | {item.model} | {_rate(item.overlap.source)} | "
        f"{_rate(item.overlap.held_out)} | {item.result.observed:.3g} | "
        f"{item.result.claimed:.3g} | {item.control.proven_epsilon:.3g} | {_verdict(item)} |"
        for item in found
    ]
    rows = []
    for item in found:
        rows.append(_plot_row(f"{item.method}, {item.model}", item.overlap))
        rows.append(_plot_row(f"no privacy, {item.model}", item.control))
    unique = list({row["name"]: row for row in rows}.values())
    picture = to_markdown(reconstruction_plot(unique), "share of planted and of other keys written")
    return {
        "dpsynth/reconstruction": dg.MetadataValue.md("\n".join(lines)),
        "dpsynth/reconstruction_plot": dg.MetadataValue.md(picture),
        "dpsynth/epsilon_proven": max((i.result.observed for i in found), default=0.0),
        "dpsynth/tests": len(found),
        "dpsynth/path": dg.MetadataValue.path(str(attacks_file())),
    }


def _plot_row(name: str, overlap: "Overlap") -> dict[str, Any]:
    return {
        "name": name,
        "source": (overlap.source.share, *overlap.source.interval),
        "held_out": (overlap.held_out.share, *overlap.held_out.interval),
    }


def _rate(rate: "Rate") -> str:
    low, high = rate.interval
    return f"{rate.hits} of {rate.keys}: {rate.share:.2%} [{low:.2%}, {high:.2%}]"


def _verdict(item: Reconstruction) -> str:
    if not item.result.passed:
        return "**claim refuted**"
    if item.result.observed > 0:
        return "copies, within its claim"
    return "passed" if item.has_power else "no power: this model copies no key"


def reconstruction_checks(found: Sequence[Reconstruction]) -> list[dg.AssetCheckResult]:
    """ERROR where a claim is refuted; WARN where keys were copied, or could not have been seen."""
    refuted = [item.result.name for item in found if not item.result.passed]
    copying = [item.result.name for item in found if item.result.observed > 0]
    seeing = {item.method for item in found if item.has_power}
    blind = sorted({item.method for item in found} - seeing)
    return [
        _check(WITHIN_CLAIM, refuted, dg.AssetCheckSeverity.ERROR),
        _check(NO_COPYING, copying, dg.AssetCheckSeverity.WARN),
        _check(HAS_POWER, blind, dg.AssetCheckSeverity.WARN),
    ]


def _check(
    name: str, failed: Sequence[str], severity: dg.AssetCheckSeverity
) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        check_name=name,
        passed=not failed,
        severity=severity,
        metadata={"failed": ", ".join(failed)},
    )


# Median


def _median_audit(
    spec: PrivateDatasetSpec, plan: DatasetPlan, planned: PlannedMethod
) -> dg.AssetsDefinition:
    checks = {NEVER_EXCEEDED: "No context changed a token's log-probability by more than its γ."}
    inputs = ("public_corpus", "public_embeddings", "public_clusters")

    @dg.asset(
        **_common(spec, MEDIAN, checks, "dpsynth_assets.attacks.median_audit.MedianAudit"),
        ins={
            **_model_input(spec),
            **{name: dg.AssetIn(public_key(spec.public_data, name)) for name in inputs},
        },
        code_version=version_of("median audit", planned.spec, spec.neighboring_relation),
        description=(
            "How much of the median's ex-post bound does one context account for? Tokens are drawn "
            "from batches of public documents and priced again without each context, exactly "
            "(Amin et al. 2025, D.5.2). Costs no budget."
        ),
    )
    def median_audit(
        context: dg.AssetExecutionContext,
        public_language_model: dict,
        public_corpus: pl.DataFrame,
        public_embeddings: np.ndarray,
        public_clusters: np.ndarray,
        models: Models,
        progress: Progress,
    ) -> dg.MaterializeResult:
        from dpsynth_assets.attacks.audits import save_results

        report = progress.start(context, f"{spec.name}: audit of the median")
        with public_section(f"{spec.name}/{AUDIT}/{MEDIAN}"):
            public = PublicInputs(
                language_model=prompted(
                    models.language_model(public_language_model), plan.terms.prompts
                ),
                cluster_centers=public_clusters,
                salt=f"{spec.name}/{AUDIT}/{MEDIAN}",
            )
            records = PrivateInputs(
                records=public_records(public_corpus.head(DOCUMENTS), plan.terms.labels),
                embeddings=public_embeddings[:DOCUMENTS],
            )
            started = time.perf_counter()
            audit = audit_median(planned, plan.terms, records, public, report)
            results = median_results(f"{spec.name}/{planned.folder}", audit, started)
        save_results(attacks_file(), results)
        return dg.MaterializeResult(
            metadata=_median_metadata(audit.batches, results),
            check_results=[
                _check(
                    NEVER_EXCEEDED,
                    [result.name for result in results if not result.passed],
                    dg.AssetCheckSeverity.ERROR,
                )
            ],
        )

    return median_audit


def _median_metadata(
    batches: Sequence["BatchGap"], results: Sequence["AuditResult"]
) -> dict[str, Any]:
    from dpsynth_assets.report.plots import median_audit_plot, to_markdown

    lines = [
        "| batch | contexts | tokens | γ, claimed | by removing a context | share | "
        "by a crafted context | largest excess |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {b.batch} | {b.contexts} | {b.tokens} | {b.claimed:.3f} | {b.removed:.3f} | "
        f"{b.attained:.0%} | {b.crafted:.3f} | {b.excess:.2g} |"
        for b in batches
    ]
    rows = [(f"batch {b.batch}", b.claimed, b.crafted, b.removed) for b in batches]
    picture = to_markdown(median_audit_plot(rows), "ex-post bound and what contexts attain of it")
    return {
        "dpsynth/median_audit": dg.MetadataValue.md("\n".join(lines)),
        "dpsynth/median_audit_plot": dg.MetadataValue.md(picture),
        "dpsynth/share_attained": max(b.attained for b in batches),
        "dpsynth/largest_excess": max(b.excess for b in batches),
        "dpsynth/passed": all(result.passed for result in results),
        "dpsynth/path": dg.MetadataValue.path(str(attacks_file())),
    }


def _meaning(name: str) -> dict[str, str]:
    attack = name.split("/")[2].split(" ")[0]
    claim, measure = CLAIMS[attack]
    return {"claim": claim, "measure": measure}
