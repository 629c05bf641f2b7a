"""All assets of one method: its stages, rows written from them, the gate and the corpus."""

from functools import partial

import dagster as dg
import polars as pl

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.files.identity import version_of
from dpsynth_assets.methods.dataset_plan import DatasetPlan, PlannedMethod
from dpsynth_assets.methods.stages import CANDIDATE_CORPUS
from dpsynth_assets.orchestration.assets.attacks import attack_keys
from dpsynth_assets.orchestration.assets.audit_trail import AGREES, report_agreement
from dpsynth_assets.orchestration.assets.automation import FOLLOWS_RELEASES
from dpsynth_assets.orchestration.assets.evaluation import copied_spans_asset
from dpsynth_assets.orchestration.assets.keys import audits_key, dataset_key, named, part_asset
from dpsynth_assets.orchestration.assets.published import (
    priced,
    publish_corpus,
    released_folder,
    released_label,
    scores_link,
)
from dpsynth_assets.orchestration.assets.release_asset import release_asset, written_corpus
from dpsynth_assets.orchestration.checks import (
    Candidate,
    card_check,
    corpus_check,
    evaluate_conditions,
)
from dpsynth_assets.orchestration.metadata import check_result
from dpsynth_assets.orchestration.resources.private_section import public_section
from dpsynth_assets.orchestration.resources.stores import PrivacyLedger, ReleaseStore
from dpsynth_assets.privacy.ledger import BudgetTerms
from dpsynth_assets.releases.published_rows import published_rows
from dpsynth_assets.report.attack_record import attacks_on_release, refusal


def method_definitions(
    spec: PrivateDatasetSpec, plan: DatasetPlan, planned: PlannedMethod
) -> dg.Definitions:
    """Stages, candidate, blocking checks and published corpus of one method."""
    stages = [release_asset(spec, plan, planned, stage) for stage in planned.plan.stages]
    if not planned.writes_corpus:
        return dg.Definitions(assets=stages)
    written = [written_corpus(spec, plan, planned)] if planned.rows_are_free else []
    return dg.Definitions(
        assets=[
            *stages,
            *written,
            copied_spans_asset(spec, planned),
            corpus_asset(spec, plan, planned),
        ],
        asset_checks=corpus_asset_checks(spec, plan.budget, planned),
    )


def corpus_asset_checks(
    spec: PrivateDatasetSpec, budget: BudgetTerms, planned: PlannedMethod
) -> list[dg.AssetChecksDefinition]:
    """The release gate of a method's candidate, its attacks', and the check of its card."""
    candidate = dataset_key(spec.name, planned.folder, CANDIDATE_CORPUS)
    return [
        corpus_check(spec, budget, candidate),
        card_check(
            dataset_key(spec.name, planned.folder, "corpus"),
            released_folder(spec.name, planned.folder),
            partial(published_rows, spec, planned),
        ),
        *attack_checks(spec, planned),
    ]


def corpus_asset(
    spec: PrivateDatasetSpec, plan: DatasetPlan, planned: PlannedMethod
) -> dg.AssetsDefinition:
    """The published corpus of one method: what its gate let through, card and label beside it."""
    candidate = dataset_key(spec.name, planned.folder, CANDIDATE_CORPUS)

    @dg.asset(
        **part_asset(spec, planned, "corpus"),
        deps=[audits_key(spec.name)],
        ins={"candidate_corpus": dg.AssetIn(candidate)},
        kinds={"parquet"},
        automation_condition=FOLLOWS_RELEASES,
        code_version=version_of("publish", planned.spec),
        description=_description(spec, plan, planned),
    )
    @public_section(f"{spec.name}/{planned.folder}/corpus")
    def corpus(
        context: dg.AssetExecutionContext,
        candidate_corpus: pl.DataFrame,
        ledger: PrivacyLedger,
        release_store: ReleaseStore,
    ) -> dg.MaterializeResult:
        book = ledger.open()
        paid = Candidate(candidate_corpus, "/".join(candidate.path), release_store)
        problem = paid.problem(spec.account, book)
        gate = evaluate_conditions(spec, plan.budget, paid, book)
        failed = [name for name, condition in gate.items() if not condition.holds]
        if failed:
            raise dg.Failure(
                description=(
                    f"Expected the release gate to hold before publishing, got {', '.join(failed)} "
                    "failed. Nothing was published; see the checks of candidate_corpus. "
                    f"{problem or ''}".rstrip()
                ),
                allow_retries=False,
            )
        audit = report_agreement(spec.name, book, release_store, context.instance)
        if not audit.agrees:
            context.log.warning(
                "The audit before publishing found %d disagreements between ledger, event log, "
                "stored releases and released files of %s: see the check %s of its audit trail.",
                len(audit.findings),
                spec.name,
                AGREES,
            )
        behind = plan.graph.events_behind(planned.corpus)
        published = publish_corpus(spec, planned, candidate_corpus, book, behind)
        return dg.MaterializeResult(
            metadata=published.metadata, data_version=dg.DataVersion(published.data_version)
        )

    return corpus


def _description(spec: PrivateDatasetSpec, plan: DatasetPlan, planned: PlannedMethod) -> str:
    epsilon = plan.epsilon_of_corpus(planned)
    price = "" if epsilon is None else f"{priced(spec, epsilon, plan.budget.delta)} by plan; "
    return (
        f"{price}{scores_link(spec)}.\n\n"
        f"{named(planned)}: its published corpus, guarantee {planned.plan.guarantee}. Parquet with "
        "text, labels, id and DP-safe provenance, and a dataset card. Published only if the "
        "release gate holds; free of charge. Reads no private record."
    )


WITHSTOOD, UP_TO_DATE = "attacks_withstood", "label_has_latest_attacks"


def attack_checks(
    spec: PrivateDatasetSpec, planned: PlannedMethod
) -> list[dg.AssetChecksDefinition]:
    """Checks of one method's candidate and corpus; none where no attack concerns the method."""
    attacks = attack_keys(spec.name, planned)
    candidate_key = dataset_key(spec.name, planned.folder, CANDIDATE_CORPUS)
    corpus_key = dataset_key(spec.name, planned.folder, "corpus")

    @dg.asset_check(asset=candidate_key, name=WITHSTOOD, blocking=True, additional_deps=attacks)
    @public_section(f"The attacks on {spec.name}/{planned.folder}")
    def attacks_withstood(candidate: pl.DataFrame, ledger: PrivacyLedger) -> dg.AssetCheckResult:
        """No attack on record for these very settings refutes the claim; public, like attacks."""
        refused = None
        if not candidate.is_empty():
            reservation = str(candidate["reservation"][0])
            refused = refusal(attacks_on_release(ledger.open().entries(), reservation))
        return check_result("no attack that refutes the claim", [refused] if refused else [])

    @dg.asset_check(asset=corpus_key, name=UP_TO_DATE, additional_deps=attacks)
    @public_section(f"The label of {spec.name}/{planned.folder}")
    def label_has_latest_attacks(ledger: PrivacyLedger) -> dg.AssetCheckResult:
        """The label says of every attack what is on record; publish again, free, if it does not."""
        label = released_label(spec.name, planned.folder)
        said = {audit["name"]: audit["passed"] for audit in label["audits"]}
        found = attacks_on_release(ledger.open().entries(), label["subject"]["reservation"])
        stale = [attack["name"] for attack in found if said.get(attack["name"]) != attack["passed"]]
        warn = dg.AssetCheckSeverity.WARN
        return check_result("every attack on record stands in the label", stale, severity=warn)

    return [attacks_withstood, label_has_latest_attacks] if attacks else []
