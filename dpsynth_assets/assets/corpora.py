"""Corpus assets of one method: a candidate that spends, a gate, and the published corpus."""

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import dagster as dg
import numpy as np
import polars as pl

from dpsynth_assets.assets.attack_gate import attack_checks
from dpsynth_assets.assets.audit import audits_key
from dpsynth_assets.assets.automation import FOLLOWS_RELEASES
from dpsynth_assets.assets.copied_spans import copied_spans_asset
from dpsynth_assets.assets.dataset import (
    SHARED,
    ReleaseConfig,
    array_version,
    release_name,
)
from dpsynth_assets.assets.embedded_records import embeddings_stated, require_stated_embeddings
from dpsynth_assets.assets.groups import method_group
from dpsynth_assets.assets.identity import dataset_key, version_of
from dpsynth_assets.assets.mechanism import Drawn, StoredRelease, release_once
from dpsynth_assets.assets.public import public_key
from dpsynth_assets.assets.published import publish_corpus, released_folder
from dpsynth_assets.checks import card_check, corpus_checks, deciding_checks, evaluate_gate
from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.metadata import code_of, code_references, spend_metadata
from dpsynth_assets.methods.base import GenerationMethod, PublicInputs
from dpsynth_assets.methods.planned import DatasetPlan, PlannedMethod
from dpsynth_assets.models.prompt_templates import prompted
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger import BudgetTerms, Ledger, ReleaseRequest, Reservation
from dpsynth_assets.privacy.rests_on import RESTS_ON
from dpsynth_assets.privacy.rounded import declared, rounded_up
from dpsynth_assets.resources.ledger import PrivacyLedger
from dpsynth_assets.resources.models import Models
from dpsynth_assets.resources.private_section import private_section
from dpsynth_assets.resources.progress import Progress
from dpsynth_assets.resources.release_store import ReleaseStore
from dpsynth_assets.resources.sensitive_store import SensitiveStore
from dpsynth_assets.tags import GPU_OP_TAGS, GPU_POOL, MECHANISM, PRIVACY, RELEASED


def corpus_definitions(
    spec: PrivateDatasetSpec, plan: DatasetPlan, planned: PlannedMethod
) -> dg.Definitions:
    """Candidate, blocking checks and published corpus of one method."""
    return dg.Definitions(
        assets=[
            _candidate_corpus(spec, plan, planned),
            copied_spans_asset(spec, planned),
            corpus_asset(spec, plan, planned),
        ],
        asset_checks=corpus_asset_checks(spec, plan.budget, planned),
    )


def corpus_asset_checks(
    spec: PrivateDatasetSpec, budget: BudgetTerms, planned: PlannedMethod
) -> list[dg.AssetChecksDefinition]:
    """The release gate of a method's candidate, its attacks', and the check of its card."""
    candidate = dataset_key(spec.name, planned.folder, "candidate_corpus")
    return [
        *corpus_checks(spec, budget, candidate, public_corpus_key(spec)),
        card_check(
            dataset_key(spec.name, planned.folder, "corpus"),
            released_folder(spec.name, planned.folder),
        ),
        *attack_checks(spec, planned),
    ]


def public_corpus_key(spec: PrivateDatasetSpec) -> dg.AssetKey:
    """The public corpus of the dataset's base."""
    return public_key(spec.public_data, "public_corpus")


def method_asset(spec: PrivateDatasetSpec, planned: PlannedMethod, artifact: str) -> dict[str, Any]:
    """Key, group, owners and the method's code: what all assets of one method have."""
    return {
        "key": dataset_key(spec.name, planned.folder, artifact),
        "group_name": method_group(spec.name, planned),
        "owners": spec.owners,
        "metadata": code_references(code_of(planned.method)),
    }


def _upstream(spec: PrivateDatasetSpec, plan: DatasetPlan) -> dict[str, dg.AssetIn]:
    """Public and released inputs; a dataset without a histogram passes none."""
    ins = {
        "public_language_model": dg.AssetIn(public_key(spec.public_data, "public_language_model")),
        "public_clusters": dg.AssetIn(public_key(spec.public_data, "public_clusters")),
    }
    if plan.histogram is not None:
        ins["cluster_histogram"] = dg.AssetIn(dataset_key(spec.name, SHARED, "cluster_histogram"))
    return ins


def corpus_request(
    spec: PrivateDatasetSpec,
    planned: PlannedMethod,
    *,
    release: str,
    run_id: str = "",
    inputs: dict[str, str] | None = None,
    stated: Mapping[str, Any] | None = None,
) -> ReleaseRequest:
    """What a method asks of the ledger; equal requests are one release."""
    return ReleaseRequest(
        cohort=spec.account,
        dataset=spec.dataset,
        asset=f"{spec.name}/{planned.folder}/candidate_corpus",
        mechanism=planned.method.name,
        guarantee=planned.plan.guarantee,
        event=planned.plan.event,
        parameters={
            **planned.plan.parameters,
            "inputs": inputs or {},
            RESTS_ON: {},
            **(stated or {}),
        },
        code_version=planned.method.code_version,
        data_version=spec.source.version,
        release=release,
        run_id=run_id,
    )


def _candidate_corpus(
    spec: PrivateDatasetSpec, plan: DatasetPlan, planned: PlannedMethod
) -> dg.AssetsDefinition:
    asset_name = f"{spec.name}/{planned.folder}/candidate_corpus"
    method = planned.method
    if not isinstance(method, GenerationMethod):
        raise TypeError(f"Expected a method of one release, got {method.name}.")

    @dg.asset(
        **method_asset(spec, planned, "candidate_corpus"),
        deps=[
            dataset_key(spec.name, SHARED, "private_records"),
            dataset_key(spec.name, SHARED, "private_embeddings"),
        ],
        ins=_upstream(spec, plan),
        tags={PRIVACY: RELEASED, MECHANISM: planned.method.name},
        kinds={"pytorch", "polars"},
        pool=GPU_POOL,
        op_tags=GPU_OP_TAGS,
        code_version=version_of(
            planned.spec, spec.budget, spec.prompt, spec.structured, planned.method.code_version
        ),
        description=describe(planned),
    )
    def candidate_corpus(
        context: dg.AssetExecutionContext,
        config: ReleaseConfig,
        public_language_model: dict,
        public_clusters: np.ndarray,
        ledger: PrivacyLedger,
        sensitive_store: SensitiveStore,
        release_store: ReleaseStore,
        models: Models,
        progress: Progress,
        **upstream: Any,
    ) -> dg.Output[pl.DataFrame]:
        if planned.plan.refusal is not None:
            raise dg.Failure(description=planned.plan.refusal, allow_retries=False)
        histogram = upstream.get("cluster_histogram")
        book = ledger.open()
        release = release_name(context, config)
        report = progress.start(context, f"{spec.name}/{planned.folder}")
        language_model = models.language_model(public_language_model)

        @cache
        def public() -> PublicInputs:
            return PublicInputs(
                language_model=prompted(language_model, plan.terms.prompts),
                cluster_centers=public_clusters,
                cluster_histogram=_as_histogram(histogram),
                salt=f"{spec.name}/{planned.folder}/{release}",
            )

        def prepare() -> object:
            method.check_public(planned.plan, planned.config, plan.terms, public())
            if method.needs_embeddings:
                require_stated_embeddings(sensitive_store, spec.name)
            return language_model.model

        def draw(reservation: Reservation) -> Drawn:
            _report_budget(report, book, plan)
            private = replace(
                sensitive_store.read_for_release(
                    spec.name,
                    ledger=book,
                    reservation=reservation,
                    with_embeddings=planned.method.needs_embeddings,
                ),
                passes=sensitive_store.passes(spec.name, reservation),
            )
            started = time.monotonic()
            made = method.generate(
                planned.plan, planned.config, plan.terms, private, public(), report
            )
            internal = {
                **made.value.internal,
                "seconds": time.monotonic() - started,
                "ex_post_epsilon": made.cost.ex_post_epsilon,
            }
            sensitive_store.write_internal(
                spec.name, f"{planned.folder}_internal.json", json.dumps(plain_json(internal))
            )
            facts = {name: plain_json(value) for name, value in made.value.facts.items()}
            return Drawn(facts=facts, rows=made.value.rows, cost=made.cost)

        with private_section(asset_name):
            stored = release_once(
                ledger=book,
                store=release_store,
                request=corpus_request(
                    spec,
                    planned,
                    release=release,
                    run_id=context.run_id,
                    inputs=_input_versions(public_language_model, public_clusters, histogram),
                    stated=embeddings_stated(sensitive_store, spec.name)
                    if method.needs_embeddings
                    else None,
                ),
                terms=plan.budget,
                plan=plan.releases,
                draw=draw,
                passes=lambda reservation: sensitive_store.passes(spec.name, reservation),
                prepare=prepare,
            )
        if stored.reservation.reused:
            report(1.0, "stored release reused, nothing charged")
        return _output(stored, book, plan, planned)

    return candidate_corpus


def _output(
    stored: StoredRelease, book: Ledger, plan: DatasetPlan, planned: PlannedMethod
) -> dg.Output[pl.DataFrame]:
    from dpsynth_assets.assets.prediction_plots import released_metadata

    rows = stored.rows if stored.rows is not None else pl.DataFrame()
    rows = rows.with_columns(pl.lit(stored.reservation.id).alias("reservation"))
    numbers = {k: v for k, v in stored.facts.items() if isinstance(v, int | float | str)}
    spend = spend_metadata(
        book, stored.reservation, plan.budget, inherited=plan.events_behind(planned)
    )
    plots = released_metadata(planned.folder, stored.facts, rows) if rows.height else {}
    return dg.Output(rows, metadata={**spend, **numbers, **plots, "dagster/row_count": rows.height})


def corpus_asset(
    spec: PrivateDatasetSpec, plan: DatasetPlan, planned: PlannedMethod
) -> dg.AssetsDefinition:
    """The published corpus of one method: what its gate let through, card and label beside it."""
    candidate = dataset_key(spec.name, planned.folder, "candidate_corpus")

    @dg.asset(
        **method_asset(spec, planned, "corpus"),
        deps=[audits_key(spec.name)],
        ins={"candidate_corpus": dg.AssetIn(candidate)},
        tags={PRIVACY: RELEASED},
        kinds={"parquet"},
        automation_condition=FOLLOWS_RELEASES,
        code_version=version_of("publish", planned.spec),
        description=(
            "The published corpus: Parquet with text, labels, id and DP-safe provenance, and a "
            "dataset card. Published only if the release gate holds; free of charge. Reads no "
            "private record."
        ),
    )
    def corpus(candidate_corpus: pl.DataFrame, ledger: PrivacyLedger) -> dg.MaterializeResult:
        book = ledger.open()
        with private_section(f"{spec.name}/{planned.folder}/corpus"):
            gate = evaluate_gate(
                spec, plan.budget, candidate_corpus, None, book, deciding=deciding_checks(spec)
            )
        failed = [name for name, passed in gate.items() if not passed]
        if failed:
            raise dg.Failure(
                description=(
                    f"Expected the release gate to hold before publishing, got {', '.join(failed)} "
                    "failed. Nothing was published; see the checks of candidate_corpus."
                ),
                allow_retries=False,
            )
        behind = plan.events_behind(planned)
        published = publish_corpus(spec, planned, candidate_corpus, book, behind)
        return dg.MaterializeResult(metadata=published.metadata)

    return corpus


def describe(planned: PlannedMethod) -> str:
    """Title, paper and price of a method, as the web UI shows them."""
    plan = planned.plan
    method = f"{planned.method.title} ({planned.method.paper})."
    if plan.refusal is not None:
        return f"{method} Refuses: {plan.refusal}"
    if plan.epsilon is not None:
        cost = rounded_up(plan.epsilon, ".3g")
        spend = f"Drawing it charges ε = {cost}, counted alone; drawn once, it is kept."
    elif not planned.method.spends:
        spend = "Charges nothing itself: it builds on other releases."
    elif plan.guarantee is GuaranteeType.SECRET:
        spend = "Charges the secrets' bound and no ε: it protects declared secrets, no record."
    else:
        spend = "Charges no DP budget: its guarantee is ex-post only."
    return f"{method} {spend}"


def _report_budget(report: Any, book: Ledger, plan: DatasetPlan) -> None:
    spend = book.spend(plan.terms.ledger_account, plan.budget)
    report(
        0.0,
        f"budget ε {rounded_up(spend.epsilon, '.2f')} of {declared(plan.budget.epsilon)} reserved",
    )


def _as_histogram(facts: dict[str, Any] | None) -> Any:
    from dpsynth_assets.methods.private_prediction.cluster_histogram import ClusterHistogram

    if facts is None:
        return None
    return ClusterHistogram.from_json({k: v for k, v in facts.items() if k != "reservation"})


def _input_versions(
    manifest: dict[str, Any], centers: np.ndarray, histogram: dict[str, Any] | None
) -> dict[str, str]:
    """Identities of the public and released inputs: other inputs make another release."""
    return {
        "language_model": str(manifest["path"]).rsplit("/", maxsplit=1)[-1],
        "public_clusters": array_version(centers),
        "cluster_histogram": "" if histogram is None else str(histogram["reservation"]),
    }


def plain_json(value: Any) -> Any:
    """NumPy values as JSON values."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {str(k): plain_json(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(v) for v in value]
    return value
