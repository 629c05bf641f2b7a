"""Checks that tie attacks to what is published, without making attacks a part of a corpus.

A corpus does not depend on attacks: to ask for a corpus and what it is built on runs none of them,
and a method waits for no attack that does not concern it. But where a run makes both, a blocking
check of the candidate waits for its method's attacks, and the corpus waits for the check. The
check reads what is on record for the candidate's very settings; publishing reads it again.
"""

import json

import dagster as dg
import polars as pl

from dpsynth_assets.assets.attacks import attack_keys
from dpsynth_assets.assets.keys import dataset_key
from dpsynth_assets.assets.published import released_folder
from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.metadata import compared
from dpsynth_assets.methods.dataset_plan import PlannedMethod
from dpsynth_assets.report.attack_record import attacks_on_release, refusal
from dpsynth_assets.report.card_check import LABEL_FILE
from dpsynth_assets.resources.ledger import PrivacyLedger
from dpsynth_assets.resources.private_section import public_section

WITHSTOOD, UP_TO_DATE = "attacks_withstood", "label_has_latest_attacks"


def attack_checks(
    spec: PrivateDatasetSpec, planned: PlannedMethod
) -> list[dg.AssetChecksDefinition]:
    """Checks of one method's candidate and corpus; none where no attack concerns the method."""
    attacks = attack_keys(spec.name, planned)
    if not attacks:
        return []
    return [_withstood(spec, planned, attacks), _up_to_date(spec, planned, attacks)]


def _withstood(
    spec: PrivateDatasetSpec, planned: PlannedMethod, attacks: list[dg.AssetKey]
) -> dg.AssetChecksDefinition:
    candidate_key = dataset_key(spec.name, planned.folder, "candidate_corpus")

    @dg.asset_check(
        asset=candidate_key,
        name=WITHSTOOD,
        blocking=True,
        additional_deps=attacks,
    )
    @public_section(f"The attacks on {spec.name}/{planned.folder}")
    def attacks_withstood(candidate: pl.DataFrame, ledger: PrivacyLedger) -> dg.AssetCheckResult:
        """No attack on record for these very settings refutes the claim; public, like attacks."""
        refused = None
        if not candidate.is_empty():
            reservation = str(candidate["reservation"][0])
            refused = refusal(attacks_on_release(ledger.open().entries(), reservation))
        return dg.AssetCheckResult(
            passed=refused is None,
            metadata=compared("no attack that refutes the claim", [refused] if refused else []),
        )

    return attacks_withstood


def _up_to_date(
    spec: PrivateDatasetSpec, planned: PlannedMethod, attacks: list[dg.AssetKey]
) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=dataset_key(spec.name, planned.folder, "corpus"),
        name=UP_TO_DATE,
        additional_deps=attacks,
    )
    @public_section(f"The label of {spec.name}/{planned.folder}")
    def label_has_latest_attacks(ledger: PrivacyLedger) -> dg.AssetCheckResult:
        """The label says of every attack what is on record; publish again, free, if it does not."""
        folder = released_folder(spec.name, planned.folder)
        label = json.loads((folder / LABEL_FILE).read_text())
        said = {audit["name"]: audit["passed"] for audit in label["audits"]}
        found = attacks_on_release(ledger.open().entries(), label["subject"]["reservation"])
        stale = [attack["name"] for attack in found if said.get(attack["name"]) != attack["passed"]]
        return dg.AssetCheckResult(
            passed=not stale,
            severity=dg.AssetCheckSeverity.WARN,
            metadata=compared("every attack on record stands in the label", stale),
        )

    return label_has_latest_attacks
