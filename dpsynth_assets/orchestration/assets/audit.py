"""The audit stage: mechanism audits, a cohort's privacy statement, and checks of both."""

import json
from pathlib import Path
from typing import Any

import dagster as dg

from dpsynth_assets.attacks.audits.audit import ROUNDING, AuditResult, Charge
from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.datasets.secrets import SecretKindSpec, SecretsSpec
from dpsynth_assets.exports.pack import PAGE, write_pack
from dpsynth_assets.files.kept import JSON, version_of
from dpsynth_assets.files.whole import write_whole
from dpsynth_assets.methods.dataset_plan import DatasetPlan
from dpsynth_assets.orchestration.assets.audit_trail import audit_trail_definitions, written_files
from dpsynth_assets.orchestration.assets.automation import FOLLOWS_RELEASES
from dpsynth_assets.orchestration.assets.keys import (
    AUDIT,
    MECHANISM_AUDITS,
    STATEMENT,
    audits_key,
    cohort_asset,
    dataset_key,
)
from dpsynth_assets.orchestration.metadata import (
    account_metadata,
    check_result,
    compared,
    short_digest,
)
from dpsynth_assets.orchestration.resources.private_section import public_section
from dpsynth_assets.orchestration.resources.progress import Progress
from dpsynth_assets.orchestration.resources.stores import PrivacyLedger
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.directed_rounding import rounded_down, rounded_up
from dpsynth_assets.report.cards import (
    LABEL_FILE,
    STATEMENT_FILE,
    privacy_statement as render_statement,
    releases,
    statement_problems,
)
from dpsynth_assets.report.label import cohort_label
from dpsynth_assets.report.label_texts import RECALL
from dpsynth_assets.report.pages import markdown_table, page_address
from dpsynth_assets.tags import PUBLIC, RELEASED

RECALL_SEED = 0


def audit_definitions(spec: PrivateDatasetSpec, plan: DatasetPlan) -> dg.Definitions:
    """Audits of the mechanisms a cohort uses, its statement, and checks of both."""
    key = dataset_key(spec.name, AUDIT, STATEMENT)
    corpora = [dataset_key(spec.name, planned.folder, "corpus") for planned in plan.corpora]
    return dg.Definitions.merge(
        dg.Definitions(
            assets=[_mechanism_audits(spec, plan), _privacy_statement(spec, plan)],
            asset_checks=[*_statement_checks(spec, key), _audits_pass(spec)],
        ),
        audit_trail_definitions(spec, [key, *corpora]),
    )


def planned_charges(plan: DatasetPlan) -> list[Charge]:
    """Everything the cohort may be charged."""
    shared = [(part.folder, part.plan.event) for part in plan.shared]
    return [*shared, *((each.method.name, each.plan.event) for each in plan.methods)]


def _mechanism_audits(spec: PrivateDatasetSpec, plan: DatasetPlan) -> dg.AssetsDefinition:
    @dg.asset(
        **cohort_asset(
            spec, AUDIT, MECHANISM_AUDITS, PUBLIC, "dpsynth_assets.attacks.audits.audit.Audit"
        ),
        kinds={"python"},
        code_version=version_of("audits", [str(charge) for charge in planned_charges(plan)]),
        description=(
            "Audits of the mechanisms this dataset uses, run on this installation on made-up "
            "neighbours: each compares what a mechanism does with its charge. Every card "
            "shows the results. Run again when code, libraries or processor changed."
        ),
    )
    @public_section(f"Auditing the mechanisms of {spec.name}")
    def mechanism_audits(
        context: dg.AssetExecutionContext, progress: Progress
    ) -> dg.MaterializeResult:
        from dpsynth_assets.attacks.audits import run_audits, save_results, still_valid
        from dpsynth_assets.methods.audits import audits_for

        chosen = audits_for(planned_charges(plan))
        kept = {result.name: result for result in still_valid(home().audits, chosen)}
        report = progress.start(context, f"Auditing the mechanisms of {spec.name}")
        made = run_audits([audit for audit in chosen if audit.name not in kept], report)
        save_results(home().audits, made)
        found = kept | {result.name: result for result in made}
        results = [found[audit.name] for audit in chosen]
        return dg.MaterializeResult(
            metadata={
                "dpsynth/audits": dg.MetadataValue.md(_audit_table(results)),
            }
        )

    return mechanism_audits


_AUDITS_EXPLAINED = (
    "An audit passes unless it observes more than the claimed bound. Exact audits compare "
    f"floating-point numbers: a difference of up to {ROUNDING:g} of the claim, or of 1, counts as "
    "rounding."
)


def _audit_table(results: list[AuditResult]) -> str:
    rows = [
        (
            r.name, r.kind, rounded_up(r.claimed, ".4g"), rounded_down(r.observed, ".4g"),
            "passed" if r.passed else "**FAILED**",
        )
        for r in results
    ]  # fmt: skip
    table = markdown_table(("audit", "kind", "claimed", "observed", ""), rows)
    return f"{table}\n\n{_AUDITS_EXPLAINED}"


def _audits_pass(spec: PrivateDatasetSpec) -> dg.AssetChecksDefinition:
    @dg.asset_check(asset=audits_key(spec.name), name="mechanisms_pass_their_audits", blocking=True)
    @public_section(f"Results of the audits of {spec.name}")
    def mechanisms_pass_their_audits() -> dg.AssetCheckResult:
        """No audit refutes what a mechanism claims."""
        from dpsynth_assets.attacks.audits import latest_results

        failed = [result.name for result in latest_results(home().audits) if not result.passed]
        return check_result("no failed audit", failed)

    return mechanisms_pass_their_audits


def _releases_behind_no_corpus(plan: DatasetPlan) -> list[dg.AssetKey]:
    """Keys of paid releases that no corpus is made from: models, unread histograms."""
    corpora = [planned.corpus for planned in plan.corpora]
    behind = {*corpora, *(name for corpus in corpora for name in plan.graph.behind(corpus))}
    keys = (dg.AssetKey(release.asset.split("/")) for release in plan.releases)
    return [key for key in keys if "/".join(key.path[1:]) not in behind]


def _all_that_charges(spec: PrivateDatasetSpec, plan: DatasetPlan) -> list[dg.AssetKey]:
    """What a statement comes after: corpora, paid releases behind none, and attacks."""
    from dpsynth_assets.orchestration.assets.attacks import attack_definitions

    keys = [dataset_key(spec.name, planned.folder, "corpus") for planned in plan.corpora]
    keys += _releases_behind_no_corpus(plan)
    attacks = attack_definitions(spec, plan).assets or ()
    return keys + [asset.key for asset in attacks if isinstance(asset, dg.AssetsDefinition)]


def _privacy_statement(spec: PrivateDatasetSpec, plan: DatasetPlan) -> dg.AssetsDefinition:
    from dpsynth_assets.report.attack_record import attacks_on_cohort

    @dg.asset(
        **cohort_asset(
            spec,
            AUDIT,
            STATEMENT,
            RELEASED,
            "dpsynth_assets.report.label.cohort_label",
            "dpsynth_assets.report.cards.privacy_statement",
        ),
        deps=[*_all_that_charges(spec, plan), audits_key(spec.name)],
        kinds={"markdown"},
        automation_condition=FOLLOWS_RELEASES,
        code_version=version_of("statement", spec.budget, spec.public_facts),
        description=(
            "What was released, by which mechanism, under which guarantee; what is public, what "
            "is not protected, what was not summed. Read from the ledger; may be published. "
            "`dpsynth/pack` opens the officer's pack, which is for the organisation itself."
        ),
    )
    @public_section(f"The privacy statement of {spec.name}")
    def privacy_statement(ledger: PrivacyLedger) -> dg.MaterializeResult:
        from dpsynth_assets.methods.audits import results_for

        book = ledger.open()
        attacks = attacks_on_cohort(spec.account, book.entries())
        audits = [*results_for(home().audits, planned_charges(plan)), *attacks]
        audits += recall_results(spec.name) if spec.secrets is not None else []
        entries = book.entries()
        label = cohort_label(entries, spec.account, audits)
        told = {"releases": releases(entries, label), "ledger_ok": book.verify().ok}
        text = render_statement(label, told)
        folder = home().released / spec.name
        write_whole(folder / LABEL_FILE, json.dumps(label, indent=2, sort_keys=True))
        write_whole(folder / STATEMENT_FILE, text)
        _copy_statement(folder)
        write_pack(spec, book)
        cohort = label["cohort"]
        head = cohort["ledger_head"]  # None where it seals a private value without noise.
        return dg.MaterializeResult(
            metadata={
                "dpsynth/statement": dg.MetadataValue.md(text),
                "dpsynth/pack": dg.MetadataValue.url(page_address("reports", spec.name, *PAGE)),
                "dpsynth/path": dg.MetadataValue.path(str(folder / STATEMENT_FILE)),
                **written_files(folder / LABEL_FILE, folder / STATEMENT_FILE),
                "dpsynth/privacy_label": dg.MetadataValue.json(label),
                **account_metadata(book.spend(spec.account)),
                "dpsynth/delta": float(cohort["delta"]),
                "dpsynth/ledger_entries": cohort["as_of_entry"],
                **({"dpsynth/ledger_head": short_digest(head)} if head else {}),
            }
        )

    return privacy_statement


def recall_results(dataset: str) -> list[dict[str, Any]]:
    """Last measured recall of each kind of secret of a dataset, as a label prints it; public."""
    return list(_recalls().get(dataset, []))


def measured_recall(
    dataset: str, declared: SecretsSpec, public_texts: list[str]
) -> list[dict[str, Any]]:
    """Measures and keeps what each detector finds of planted secrets.

    **Privacy** Public text and made-up values only.
    """
    from dpsynth_assets.secret_detection.recall import planted_recall

    def measured(kind: SecretKindSpec) -> dict[str, Any]:
        found = planted_recall(kind, public_texts, planted=declared.planted, seed=RECALL_SEED)
        named = {"name": f"{dataset}/{RECALL}/{kind.name}", "detector": kind.detector}
        return {**found.to_json(), **named}

    results = [measured(kind) for kind in declared.kinds]
    write_whole(_recall_file(), JSON.write({**_recalls(), dataset: results}))
    return results


def _recall_file() -> Path:
    return home().audits.with_name("detector_recall.json")


def _recalls() -> dict[str, Any]:
    path = _recall_file()
    if not path.exists():
        return {}
    try:
        return dict(JSON.read(path))
    except ValueError:
        raise ValueError(
            f"Expected the measured recall of detectors in {path}, got something else. Remove the "
            "file and materialise secrets again."
        ) from None


def _statement_checks(spec: PrivateDatasetSpec, key: dg.AssetKey) -> list[dg.AssetChecksDefinition]:
    @dg.asset_check(asset=key, name="ledger_chain_valid", blocking=True)
    @public_section("Verifying the ledger")
    def ledger_chain_valid(ledger: PrivacyLedger) -> dg.AssetCheckResult:
        """Every ledger entry hashes to what the next entry recorded."""
        report = ledger.open().verify()
        problems = [str(problem) for problem in report.problems]
        shown = compared("every entry has the hash that the next entry recorded", problems)
        return dg.AssetCheckResult(passed=report.ok, metadata={**shown, "entries": report.entries})

    @dg.asset_check(asset=key, name="statement_equals_ledger", blocking=True)
    @public_section(f"Checking the privacy statement of {spec.name}")
    def statement_equals_ledger(ledger: PrivacyLedger) -> dg.AssetCheckResult:
        """The published label and statement say what the ledger says."""
        problems = statement_problems(home().released / spec.name, ledger.open().entries())
        return check_result("label and statement agree with the ledger", problems)

    return [ledger_chain_valid, statement_equals_ledger]


def _copy_statement(folder: Path) -> None:
    """Copies a cohort's statement to DPSYNTH_PUBLISH_URL, its label last, beside its corpora."""
    if (place := home().published) is None:
        return
    target = place / folder.name
    target.mkdir(parents=True, exist_ok=True)
    for name in (STATEMENT_FILE, LABEL_FILE):
        (target / name).write_text((folder / name).read_text())
