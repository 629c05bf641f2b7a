"""Attacks a dataset's methods must withstand, on made-up and public records: no budget is spent.

The reconstruction test plants keys and looks for them in what each method writes; the median audit
recomputes every drawn token without each of its contexts. Both run the real mechanism with the
dataset's settings and prompts. They read no private record, so their assets are public.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import dagster as dg
import numpy as np
import polars as pl

from dpsynth_assets.attacks.catalogue import COPYING_MODEL, OWN_MODEL, Attack
from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.files.kept import array_version, version_of, version_of_texts
from dpsynth_assets.methods.attack_runs import (
    DOCUMENTS,
    Reconstruction,
    attacked,
    attacks_on,
    median_results,
    public_records,
    reconstruct,
)
from dpsynth_assets.methods.dataset_plan import DatasetPlan, PlannedMethod
from dpsynth_assets.methods.inputs import PrivateInputs, ProgressCallback, PublicInputs
from dpsynth_assets.methods.work import LANGUAGE_MODEL
from dpsynth_assets.models.prompt_templates import prompted
from dpsynth_assets.orchestration.assets.keys import AUDIT, cohort_asset, dataset_key, public_ins
from dpsynth_assets.orchestration.metadata import check_result, check_specs
from dpsynth_assets.orchestration.resources.model_pool import model_step
from dpsynth_assets.orchestration.resources.private_section import public_section
from dpsynth_assets.orchestration.resources.stores import Models
from dpsynth_assets.privacy.directed_rounding import rounded_down, rounded_up
from dpsynth_assets.report.attack_record import (
    MedianAudits,
    kept_findings,
    model_identity,
    save_attacks,
    settings_of_method,
)
from dpsynth_assets.report.pages import markdown_table
from dpsynth_assets.tags import PUBLIC

if TYPE_CHECKING:
    from dpsynth_assets.attacks.audits.audit import AuditResult
    from dpsynth_assets.attacks.median_audit import BatchGap
    from dpsynth_assets.attacks.reconstruction import Rate
    from dpsynth_assets.models.language_model import LanguageModel


RECONSTRUCTION, MEDIAN = "reconstruction_test", "median_audit"
_ARTIFACTS = {Attack.RECONSTRUCTION: RECONSTRUCTION, Attack.MEDIAN_AUDIT: MEDIAN}
WITHIN_CLAIM, NO_COPYING, HAS_POWER = "within_claim", "no_key_reconstructed", "test_has_power"
NEVER_EXCEEDED = "gamma_never_exceeded"
_EXPECTED = {
    WITHIN_CLAIM: "every attack within the claimed bound",
    NO_COPYING: "no planted key written",
    HAS_POWER: "for every method, a test that detects copying",
    NEVER_EXCEEDED: "no log-probability changed by more than its γ",
}


def attack_definitions(spec: PrivateDatasetSpec, plan: DatasetPlan) -> dg.Definitions:
    """The attacks that a dataset's methods can be tested with."""
    made = {Attack.RECONSTRUCTION: _reconstruction_test, Attack.MEDIAN_AUDIT: _median_audit}
    assets = [make(spec, plan) for attack, make in made.items() if attacked(plan, attack)]
    return dg.Definitions(assets=assets)


def attack_keys(dataset: str, planned: PlannedMethod) -> list[dg.AssetKey]:
    """The attacks that one method of a dataset is tested with."""
    if planned.plan.refusal is not None:
        return []
    return [dataset_key(dataset, AUDIT, _ARTIFACTS[each]) for each in attacks_on(planned.method)]


def _settings(planned: PlannedMethod, plan: DatasetPlan, manifest: Mapping[str, Any] | None) -> str:
    """Digest of a method's settings, prompts and terms, with a model or (None) with any."""
    model = "" if manifest is None else model_identity(manifest)
    return settings_of_method(planned, plan.budget, model)


def _attack_settings(
    plan: DatasetPlan,
    attacks: Sequence[PlannedMethod],
    manifest: Mapping[str, Any],
    models: Models,
) -> str:
    """Digest of what an attack does, besides the code, the libraries, the machine and the data."""
    from dpsynth_assets.attacks.circumstances import code_behind, files_behind

    each = [
        (_settings(p, plan, manifest), p.target_epsilon, p.folder, code_behind(type(p.method)))
        for p in attacks
    ]
    prompts, kind = repr(plan.terms.prompts), type(models)
    opened_by = (kind.__module__, kind.__qualname__, code_behind(kind))
    stated = json.dumps(dict(manifest), sort_keys=True, default=str)
    model = stated, files_behind(manifest)
    return version_of(each, prompts, plan.terms.labels, model, opened_by)


def _attack(
    spec: PrivateDatasetSpec,
    plan: DatasetPlan,
    attack: Attack,
    checks: Mapping[str, str],
    *,
    code: str,
    description: str,
    kind: Any,
    run: Callable[["LanguageModel", Mapping[str, Any], Mapping[str, Any], ProgressCallback], Any],
    results: Callable[[Any], Sequence["AuditResult"]],
    told: Callable[[Any], tuple[dict[str, Any], list[dg.AssetCheckResult]]],
    reads: tuple[str, ...] = (),
) -> dg.AssetsDefinition:
    """The asset of an attack.

    Args:
        spec: The dataset.
        plan: Its plan.
        attack: What its methods are put to.
        checks: Checks of the asset, with what each says.
        code: Where the attack is defined.
        description: Of the asset.
        kind: Type of the findings.
        run: Finds them with a model, its manifest and the public documents of `reads`.
        results: What labels print of them.
        told: Metadata and checks of them.
        reads: Public artifacts beside the language model.
    """
    place = f"{spec.name}/{AUDIT}/{_ARTIFACTS[attack]}"
    tested = attacked(plan, attack)
    common = cohort_asset(spec, AUDIT, _ARTIFACTS[attack], PUBLIC, code)

    @dg.asset(
        **common,
        **model_step(spec.public_data, LANGUAGE_MODEL),
        kinds={"pytorch"},
        check_specs=check_specs(common["key"], checks),
        ins=public_ins(spec.public_data, "public_language_model", *reads),
        code_version=version_of(str(attack), *(_settings(each, plan, None) for each in tested)),
        description=description,
        required_resource_keys={"models", "progress"},
    )
    @public_section(place)
    def attacking(context: dg.AssetExecutionContext, **read: Any) -> dg.MaterializeResult:
        models, manifest = context.resources.models, read.pop("public_language_model")
        report = context.resources.progress.start(context, f"{spec.name}: {attack}")
        public = {
            name: value if name == "public_clusters" else value[:DOCUMENTS]
            for name, value in read.items()
        }
        settings = version_of(
            _attack_settings(plan, tested, manifest, models), *map(_version, public.values())
        )
        found = kept_findings(
            place,
            settings,
            kind,
            lambda: run(models.language_model(manifest), manifest, public, report),
            results,
        )
        save_attacks(results(found))
        metadata, checked = told(found)
        return dg.MaterializeResult(metadata=metadata, check_results=checked)

    return attacking


def _version(read: pl.DataFrame | np.ndarray) -> Any:
    if isinstance(read, pl.DataFrame):
        return [version_of_texts(read[name].to_list()) for name in ("text", "label")]
    return array_version(read)


# Reconstruction


def _reconstruction_test(spec: PrivateDatasetSpec, plan: DatasetPlan) -> dg.AssetsDefinition:
    def run(
        opened: "LanguageModel", manifest: Mapping[str, Any], _: Any, report: ProgressCallback
    ) -> list[Reconstruction]:
        found = []
        for item in reconstruct(spec.name, plan, _subjects(opened, plan), report):
            settings = _settings(plan.method(item.method), plan, manifest)
            found.append(replace(item, result=replace(item.result, settings=settings)))
        return found

    return _attack(
        spec,
        plan,
        Attack.RECONSTRUCTION,
        {
            WITHIN_CLAIM: "No key overlap proves an ε above the stated one.",
            NO_COPYING: "No method writes planted keys more often than keys that it never saw.",
            HAS_POWER: (
                "Without privacy at least one model writes the keys: the test can detect copying."
            ),
        },
        code="dpsynth_assets.attacks.reconstruction.count_overlap",
        description=(
            "Tests whether planted 5-digit keys are written more often than keys that no method "
            "saw. Uses invented records with the dataset's mechanisms, settings, prompts and "
            "model, and a second model that only copies, without prompts (Amin et al. 2025, "
            "D.5.1). Costs no budget."
        ),
        kind=list[Reconstruction],
        run=run,
        results=lambda found: [item.result for item in found],
        told=lambda found: (reconstruction_metadata(found), reconstruction_checks(found)),
    )


def _subjects(opened: "LanguageModel", plan: DatasetPlan) -> dict[str, Any]:
    """The models that keys are looked for in: the dataset's, and one that only copies."""
    from dpsynth_assets.attacks.reconstruction import CopyingModel, prefilled

    return {OWN_MODEL: prefilled(opened, plan.terms.prompts), COPYING_MODEL: CopyingModel()}


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
    return check_result(_EXPECTED[name], failed, check_name=name, severity=severity)


# Median

_MEDIAN_AUDIT = (
    "Measures how much of the median's ex-post bound the contexts of one privacy unit account "
    "for. Tokens are drawn from batches of public documents; their cost is computed again, "
    "exactly, with each context removed and with each set removed that one unit may contribute "
    "(a sample of the sets if there are many; Amin et al. 2025, D.5.2). Costs no budget."
)


def _median_audit(spec: PrivateDatasetSpec, plan: DatasetPlan) -> dg.AssetsDefinition:
    def run(
        opened: "LanguageModel",
        manifest: Mapping[str, Any],
        public: Mapping[str, Any],
        report: ProgressCallback,
    ) -> MedianAudits:
        inputs = PublicInputs(
            language_model=prompted(opened, plan.terms.prompts),
            cluster_centers=public["public_clusters"],
            salt=f"{spec.name}/{AUDIT}/{MEDIAN}",
        )
        records = public_records(public["public_corpus"], plan.terms.labels)
        read = PrivateInputs(records=records, embeddings=public["public_embeddings"])
        return _audited(spec, plan, read, inputs, manifest, report)

    def told(found: MedianAudits) -> tuple[dict[str, Any], list[dg.AssetCheckResult]]:
        exceeded = [result.name for result in found.results if not result.passed]
        check = _check(NEVER_EXCEEDED, exceeded, dg.AssetCheckSeverity.ERROR)
        return median_metadata(found.gaps), [check]

    said = "No contexts of one unit changed a token's log-probability by more than its γ."
    return _attack(
        spec,
        plan,
        Attack.MEDIAN_AUDIT,
        {NEVER_EXCEEDED: said},
        code="dpsynth_assets.attacks.median_audit.MedianAudit",
        description=_MEDIAN_AUDIT,
        kind=MedianAudits,
        run=run,
        results=lambda found: found.results,
        told=told,
        reads=("public_corpus", "public_embeddings", "public_clusters"),
    )


def _audited(
    spec: PrivateDatasetSpec,
    plan: DatasetPlan,
    records: PrivateInputs,
    public: PublicInputs,
    manifest: Mapping[str, Any],
    report: ProgressCallback,
) -> MedianAudits:
    """Audits the median of each method on batches of public records."""
    gaps = {}
    results: list[AuditResult] = []
    for planned in attacked(plan, Attack.MEDIAN_AUDIT):
        started = time.perf_counter()
        audit = planned.method.audit_median(planned.target_epsilon, records, public, report)
        gaps[planned.folder] = audit.batches
        settings = _settings(planned, plan, manifest)
        results += [
            replace(result, settings=settings)
            for result in median_results(f"{spec.name}/{planned.folder}", audit, started)
        ]
    return MedianAudits(gaps=gaps, results=tuple(results))


# Tables and pictures of attacks for the metadata of their assets: all public.


def reconstruction_metadata(found: Sequence[Reconstruction]) -> dict[str, Any]:
    """Overlaps of every method on every model, with what is claimed and proven."""
    header = (
        "method", "model", "source keys written", "other keys written", "ε proven", "ε claimed",
        "ε proven without privacy", "",
    )  # fmt: skip
    lines = [
        (
            item.method, item.model, _rate(item.overlap.source), _rate(item.overlap.held_out),
            rounded_down(item.result.observed, ".3g"), rounded_up(item.result.claimed, ".3g"),
            rounded_down(item.control.proven_epsilon, ".3g"), _verdict(item),
        )
        for item in found
    ]  # fmt: skip
    return {
        "dpsynth/reconstruction": dg.MetadataValue.md(markdown_table(header, lines)),
        "dpsynth/epsilon_proven": max((i.result.observed for i in found), default=0.0),
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


def median_metadata(found: Mapping[str, Sequence["BatchGap"]]) -> dict[str, Any]:
    """Bound of each batch and what neighbours attain of it, by folder of the method."""
    named = {
        f"{folder}, batch {batch.batch}" if len(found) > 1 else f"batch {batch.batch}": batch
        for folder, batches in found.items()
        for batch in batches
    }
    header = (
        "batch", "contexts", "tokens", "γ, claimed", "by removing contexts", "share",
        "by crafted contexts", "largest excess",
    )  # fmt: skip
    lines = [
        (
            name, b.contexts, b.tokens, rounded_up(b.claimed, ".3f"),
            rounded_down(b.removed, ".3f"), f"{b.attained:.0%}",
            rounded_down(b.crafted, ".3f"), f"{b.excess:.2g}",
        )
        for name, b in named.items()
    ]  # fmt: skip
    return {
        "dpsynth/median_audit": dg.MetadataValue.md(markdown_table(header, lines)),
        "dpsynth/share_attained": max(b.attained for b in named.values()),
        "dpsynth/largest_excess": max(b.excess for b in named.values()),
    }
