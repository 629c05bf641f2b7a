"""All assets of one method: its stages, rows written from them, the gate and the corpus."""

import json
import shutil
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.files.kept import version_of
from dpsynth_assets.files.whole import digest_of, replaced_whole, upload
from dpsynth_assets.methods.dataset_plan import DatasetPlan, PlannedMethod
from dpsynth_assets.methods.stages import CANDIDATE_CORPUS
from dpsynth_assets.orchestration.assets.attacks import attack_keys
from dpsynth_assets.orchestration.assets.audit import recall_results
from dpsynth_assets.orchestration.assets.audit_trail import AGREES, report_agreement, written_files
from dpsynth_assets.orchestration.assets.automation import FOLLOWS_RELEASES
from dpsynth_assets.orchestration.assets.evaluation import copied_spans_asset
from dpsynth_assets.orchestration.assets.keys import (
    EVALUATION_REPORT,
    audits_key,
    dataset_key,
    named,
    part_asset,
)
from dpsynth_assets.orchestration.assets.release_asset import part_assets
from dpsynth_assets.orchestration.assets.stage_metadata import column_schema, sample_table
from dpsynth_assets.orchestration.checks import (
    Candidate,
    card_check,
    corpus_check,
    evaluate_conditions,
)
from dpsynth_assets.orchestration.metadata import account_metadata, bound_up, check_result, in_words
from dpsynth_assets.orchestration.resources.private_section import public_section
from dpsynth_assets.orchestration.resources.stores import PrivacyLedger, ReleaseStore
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.directed_rounding import declared, epsilon_up, rounded_up
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger import BudgetTerms, CohortSpend, Ledger
from dpsynth_assets.releases.published_rows import published_rows
from dpsynth_assets.releases.store import StoreUnavailableError
from dpsynth_assets.report.attack_record import attacks_on_release, refusal
from dpsynth_assets.report.cards import (
    CARD_FILE,
    LABEL_FILE,
    dataset_card,
    released_folder,
    released_label,
    released_rows_path,
)
from dpsynth_assets.report.label import corpus_label
from dpsynth_assets.report.pages import asset_address


def method_definitions(
    spec: PrivateDatasetSpec, plan: DatasetPlan, planned: PlannedMethod
) -> dg.Definitions:
    """Stages, candidate, blocking checks and published corpus of one method."""
    own = part_assets(plan, planned)
    if not planned.writes_corpus:
        return dg.Definitions(assets=own)
    return dg.Definitions(
        assets=[*own, copied_spans_asset(spec, planned), corpus_asset(spec, plan, planned)],
        asset_checks=corpus_asset_checks(spec, plan.budget, planned),
    )


def corpus_asset_checks(
    spec: PrivateDatasetSpec, budget: BudgetTerms, planned: PlannedMethod
) -> list[dg.AssetChecksDefinition]:
    """The release gate of a method's candidate, its attacks', and the check of its card."""
    candidate = dataset_key(spec.name, planned.folder, CANDIDATE_CORPUS)
    return [
        corpus_check(spec, budget, candidate),
        card_check(spec, planned),
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
        gate = evaluate_conditions(spec, plan.budget, paid, book)
        failed = [f"{name}: {each.observed}" for name, each in gate.items() if not each.holds]
        if failed:
            raise dg.Failure(
                description=(
                    "Expected every check of the release gate to pass before publishing, got "
                    f"failures ({'; '.join(failed)}). Nothing was published; see the checks of "
                    "candidate_corpus."
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
        return publish_corpus(spec, planned, candidate_corpus, book)

    return corpus


def _description(spec: PrivateDatasetSpec, plan: DatasetPlan, planned: PlannedMethod) -> str:
    epsilon = plan.epsilon_of_corpus(planned)
    price = "" if epsilon is None else f"{priced(spec, epsilon, plan.budget.delta)} by plan; "
    return (
        f"{price}{scores_link(spec)}.\n\n{named(planned)}: its published corpus, guarantee "
        f"{planned.plan.guarantee}. Parquet with text, labels, id and DP-safe provenance, and a "
        "dataset card. Published only if the release gate passes; charges nothing. Reads no "
        "private record."
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
        return check_result("the label names every recorded attack", stale, severity=warn)

    return [attacks_withstood, label_has_latest_attacks] if attacks else []


# Writing what leaves: a corpus as Parquet that `datasets` can load, its card, and its label.


def publish_corpus(
    spec: PrivateDatasetSpec, planned: PlannedMethod, candidate: pl.DataFrame, ledger: Ledger
) -> dg.MaterializeResult[Any]:
    """Replaces the published folder with the candidate's rows, a card and a privacy label.

    Args:
        spec: The dataset.
        planned: The method.
        candidate: Rows that passed the gate.
        ledger: Paid for them.

    Raises:
        dg.Failure: An attack on the settings of this very release refuted its claim. What is there
            stays as it is.
    """
    from dpsynth_assets.methods.audits import results_behind

    rows = published_rows(spec, planned, candidate)
    reservation, entries = str(candidate["reservation"][0]), ledger.entries()
    attacks = attacks_on_release(entries, reservation)
    if (refused := refusal(attacks)) is not None:
        raise dg.Failure(description=refused, allow_retries=False)
    audits = [*results_behind(entries, reservation), *attacks]
    if planned.method.guarantee is GuaranteeType.SECRET:
        audits += recall_results(spec.name)
    spent = ledger.spend(spec.account)
    label = corpus_label(entries, reservation, audits)
    final = released_folder(spec.name, planned.folder)
    card = dataset_card(label, columns=rows.columns, rows=rows.height)
    with replaced_whole(final) as folder:
        (folder / "data").mkdir()
        rows.write_parquet(folder / "data" / released_rows_path("", "").name)
        (folder / LABEL_FILE).write_text(json.dumps(label, indent=2, sort_keys=True))
        (folder / CARD_FILE).write_text(card)
    metadata = _metadata(spec, planned, rows, label, spent) | {
        "dpsynth/card": dg.MetadataValue.md(card)
    }
    address = publish_copy(final)
    if address is not None:
        metadata["dpsynth/published"] = dg.MetadataValue.url(address)
    version = digest_of(released_rows_path(spec.name, planned.folder))
    return dg.MaterializeResult(metadata=metadata, data_version=dg.DataVersion(version))


def publish_copy(folder: Path) -> str | None:
    """Copies a folder under `released/` to DPSYNTH_PUBLISH_URL; returns where it lies now.

    Its label goes first and comes back last: what has no label there is not published.

    Raises:
        StoreUnavailableError: The place is out of reach; the folder itself is published already.
    """
    place = home().published
    if place is None:
        return None
    target = place.joinpath(*folder.relative_to(home().released).parts)
    try:
        if isinstance(target, Path):
            _copy(folder, target)
        else:
            upload(folder, target, last=LABEL_FILE)
    except Exception as error:  # noqa: BLE001 - object stores raise kinds of their own
        raise StoreUnavailableError(
            f"The corpus is in {folder}, but cannot be copied to {target} "
            f"({type(error).__name__}). Check DPSYNTH_PUBLISH_URL, the credentials and the "
            "network, and materialise it again, which is free."
        ) from None
    return str(target)


def _copy(folder: Path, target: Path) -> None:
    with replaced_whole(target) as temporary:
        shutil.copytree(folder, temporary, dirs_exist_ok=True)


def _first_line(spec: PrivateDatasetSpec, rows: pl.DataFrame, label: dict[str, Any]) -> str:
    """A corpus in one line: what is guaranteed, its rows, and where its scores are."""
    guarantee = label["guarantee"]
    held = f"{guarantee['type']}, which is not (ε, δ)-DP"
    if "epsilon" in guarantee:
        held = priced(spec, guarantee["epsilon"], guarantee["delta"], " guaranteed")
    return f"{held}, {rows.height} rows; {scores_link(spec)}"


def priced(spec: PrivateDatasetSpec, epsilon: float, delta: float, held: str = "") -> str:
    """ε of a corpus beside its budget, as `ε 5.69 of 8 guaranteed at δ 1e-6`."""
    of, at = declared(spec.budget.epsilon), rounded_up(delta).replace("e-0", "e-")
    return f"ε {epsilon_up(epsilon)} of {of}{held} at δ {at}"


def scores_link(spec: PrivateDatasetSpec) -> str:
    """Where the scores of a cohort's corpora are."""
    return f"scores: [internal report]({asset_address(f'{spec.name}/{EVALUATION_REPORT}')})"


def _metadata(
    spec: PrivateDatasetSpec,
    planned: PlannedMethod,
    rows: pl.DataFrame,
    label: dict[str, Any],
    spend: CohortSpend,
) -> dict[str, Any]:
    """What holds and for how many rows first; then numbers, files and the whole label."""
    folder = released_folder(spec.name, planned.folder)
    guarantee = label["guarantee"]
    metadata: dict[str, Any] = {
        "dpsynth/corpus": dg.MetadataValue.md(_first_line(spec, rows, label)),
        "dpsynth/method": dg.MetadataValue.md(named(planned)),
        **in_words(guarantee["type"], guarantee.get("epsilon"), label["privacy_unit"], spend),
        "dpsynth/guarantee": guarantee["type"],
        "dpsynth/samples": sample_table(rows, spec.columns.labels),
    }
    if "epsilon" in guarantee:
        metadata |= {
            "dpsynth/epsilon": bound_up(guarantee["epsilon"]),
            "dpsynth/delta": float(guarantee["delta"]),
        }
    if "posterior" in guarantee:
        metadata |= {
            "dpsynth/dp_guarantee": guarantee["dp_guarantee"],
            "dpsynth/secret_prior": float(guarantee["prior"]),
            "dpsynth/secret_posterior": float(guarantee["posterior"]),
        }
    return metadata | {
        "dpsynth/epsilon_charged": 0.0,
        **account_metadata(spend),
        "dpsynth/privacy_unit": label["privacy_unit"],
        "dpsynth/neighboring_relation": label["neighboring_relation"],
        "dpsynth/ledger_reservation": label["subject"]["reservation"],
        **written_files(folder),
        "dpsynth/privacy_label": dg.MetadataValue.json(label),
        "dagster/row_count": rows.height,
        **column_schema(rows, spec.columns.labels),
    }
