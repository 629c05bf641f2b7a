"""The audit stage: a cohort's privacy statement, read from the ledger."""

import json
from typing import Any

import dagster as dg

from dpsynth_assets.assets.dataset import SHARED
from dpsynth_assets.assets.identity import dataset_key, version_of
from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.methods.planning import DatasetPlan
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.accounting import epsilon_of_fixed
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.report.cards import privacy_statement as render_statement, what_is_not_protected
from dpsynth_assets.resources.ledger import PrivacyLedger
from dpsynth_assets.tags import PRIVACY, RELEASED

AUDIT = "audit"


def audit_definitions(spec: PrivateDatasetSpec, plan: DatasetPlan) -> dg.Definitions:
    """The statement of one cohort, and a check that the ledger's chain is whole."""
    key = dataset_key(spec.name, AUDIT, "privacy_statement")
    upstream = [dataset_key(spec.name, planned.folder, "corpus") for planned in plan.methods]
    if plan.histogram is not None:
        upstream.append(dataset_key(spec.name, SHARED, "cluster_histogram"))

    @dg.asset(
        key=key,
        group_name=f"{spec.name}/{AUDIT}",
        owners=spec.owners,
        deps=upstream,
        tags={PRIVACY: RELEASED},
        kinds={"markdown"},
        code_version=version_of("statement", spec.budget, spec.public_facts),
        description=(
            "What was released, by which mechanism, under which guarantee; what is public, what "
            "is not protected, what was not summed. Read from the ledger; may be published."
        ),
    )
    def privacy_statement(ledger: PrivacyLedger) -> dg.MaterializeResult:
        facts = statement_facts(spec, plan, ledger.open())
        text = render_statement(facts)
        folder = home().released / spec.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "privacy_statement.md").write_text(text)
        (folder / "privacy_statement.json").write_text(json.dumps(facts, indent=2))
        return dg.MaterializeResult(
            metadata={
                "dpsynth/statement": dg.MetadataValue.md(text),
                "dpsynth/path": dg.MetadataValue.path(str(folder / "privacy_statement.md")),
                "dpsynth/epsilon_cumulative": float(facts["epsilon"]),
                "dpsynth/epsilon_remaining": float(facts["epsilon_remaining"]),
                "dpsynth/delta": float(facts["delta"]),
                "dpsynth/cohort_guarantee": facts["cohort_guarantee"],
                "dpsynth/ledger_head": facts["ledger_head"],
            }
        )

    @dg.asset_check(asset=key, name="ledger_chain_valid", blocking=True)
    def ledger_chain_valid(ledger: PrivacyLedger) -> dg.AssetCheckResult:
        """Every ledger entry hashes to what the next entry recorded."""
        report = ledger.open().verify()
        return dg.AssetCheckResult(
            passed=report.ok, metadata={"entries": report.entries, "head": report.head}
        )

    return dg.Definitions(assets=[privacy_statement], asset_checks=[ledger_chain_valid])


def statement_facts(spec: PrivateDatasetSpec, plan: DatasetPlan, ledger: Ledger) -> dict[str, Any]:
    """Collects the statement's content; every ε is recomputed from ledger events."""
    spend = ledger.spend(spec.name, plan.budget)
    verified = ledger.verify()
    releases = _releases(ledger, spec)
    guarantees = {release["guarantee"] for release in releases}
    return {
        "cohort": spec.name,
        "privacy_unit": spec.unit.describe(),
        "neighboring_relation": str(spec.neighboring_relation),
        "budget": spec.budget.epsilon,
        "delta": spec.budget.delta,
        "accountant": spec.budget.accountant,
        "epsilon": float(spend.epsilon),
        "epsilon_remaining": float(spend.remaining_epsilon or 0.0),
        "cohort_guarantee": spend.total_guarantee,
        "ledger_entries": verified.entries,
        "ledger_ok": verified.ok,
        "ledger_head": verified.head,
        "releases": releases,
        "public_facts": [
            *plan.budget.public_facts,
            "every parameter in the dataset file and in the ledger",
            "which public base, language model and clusters were used",
        ],
        "not_protected": what_is_not_protected(
            "ex-post" if GuaranteeType.EX_POST in guarantees else "dp", spec.unit.describe()
        ),
        "not_summed": _not_summed(guarantees),
    }


def _releases(ledger: Ledger, spec: PrivateDatasetSpec) -> list[dict[str, Any]]:
    entries = ledger.entries(spec.name)
    committed = {entry.reservation for entry in entries if entry.kind == "commit"}
    rows = []
    for entry in entries:
        if entry.kind != "reserve":
            continue
        epsilon = None
        if entry.event is not None:
            epsilon = epsilon_of_fixed([entry.event], spec.budget.delta, spec.budget.accountant)
        rows.append(
            {
                "at": entry.recorded_at,
                "asset": entry.asset,
                "release": entry.release,
                "mechanism": entry.mechanism,
                "guarantee": str(entry.guarantee),
                "epsilon": epsilon,
                "run_id": entry.run_id,
                "state": "released" if entry.reservation in committed else "charged only",
            }
        )
    return rows


def _not_summed(guarantees: set[str]) -> list[str]:
    sentences = []
    if GuaranteeType.EX_POST in guarantees:
        sentences.append(
            "Ex-post bounds: they depend on the data, are not sanitised, and are never added to ε."
        )
    sentences.append("Outcomes of release gates and internal evaluation scores.")
    return sentences
