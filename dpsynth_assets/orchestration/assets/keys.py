"""Keys of all assets: `[dataset, folder, artifact]`, or `[public, base, artifact]`."""

from typing import Any

import dagster as dg

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.methods.base import spends
from dpsynth_assets.methods.dataset_plan import PlannedMethod, PlannedShared
from dpsynth_assets.methods.stages import SHARED
from dpsynth_assets.orchestration.metadata import code_of, code_references
from dpsynth_assets.privacy.directed_rounding import epsilon_up
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.tags import PRIVACY, PUBLIC, RELEASED

AUDIT = "audit"
"""Folder of the assets that audit a cohort."""

MECHANISM_AUDITS, STATEMENT = "mechanism_audits", "privacy_statement"
AUDIT_TRAIL, AGREES = "audit_trail", "ledger_agrees_with_event_log"
"""The audit trail of a cohort, and the check that ledger and event log agree."""

EVALUATION = "evaluation"
"""Folder of scores and pictures for the steward alone."""

EVALUATION_REPORT = f"{EVALUATION}/evaluation_report"
"""The asset of a cohort's scores, below the cohort."""

PREDICTION_COSTS = "prediction_costs"
REFERENCES = "references"


def public_key(base: str, artifact: str) -> dg.AssetKey:
    """Returns the key of one artifact of a public base."""
    return dg.AssetKey(["public", base, artifact])


def dataset_key(dataset: str, folder: str, artifact: str) -> dg.AssetKey:
    """Returns the key of one artifact of a dataset; the folder is a method, or `shared`."""
    return dg.AssetKey([dataset, folder, artifact])


def shared_key(dataset: str, artifact: str) -> dg.AssetKey:
    """Returns the key of what all methods of a dataset share."""
    return dataset_key(dataset, SHARED, artifact)


def audits_key(dataset: str) -> dg.AssetKey:
    """Returns the key of a cohort's mechanism audits."""
    return dataset_key(dataset, AUDIT, MECHANISM_AUDITS)


def prediction_costs_key(dataset: str) -> dg.AssetKey:
    """Returns the key of the costs of private prediction and the clusterings of one dataset."""
    return dataset_key(dataset, EVALUATION, PREDICTION_COSTS)


def public_ins(base: str, *names: str) -> dict[str, dg.AssetIn]:
    """Makes asset inputs of artifacts of a public base."""
    return {name: dg.AssetIn(public_key(base, name)) for name in sorted(names)}


# The web UI draws groups as boxes within boxes, and writes their names at every zoom, also where it
# leaves out what a node is made with and its tags. So the box says the level, once for all in it,
# and the method, of which every one has a corpus. A cohort that is opened shows its levels in the
# order of the data: what is public or sensitive leads to what is released, and all of it to what is
# internal. No name needs a number for that.


PUBLIC_BASES = PUBLIC
"""Holds the group of every public base; no cohort has this name."""


def public_group(base: str) -> str:
    """Group of one public base."""
    return f"{PUBLIC_BASES}/{base}"


def level_group(dataset: str, level: str) -> str:
    """Group of what a cohort has of one privacy level and of no single method."""
    return f"{dataset}/{level}"


def cohort_asset(
    spec: PrivateDatasetSpec, folder: str, artifact: str, level: str, *code: str, box: str = ""
) -> dict[str, Any]:
    """Key, group, owners, privacy level and code of one asset of a cohort.

    Args:
        spec: The cohort.
        folder: Folder of the asset.
        artifact: Name of the asset in it.
        level: One of `tags.PRIVACY_LEVELS`.
        code: What the asset is made by, for `code_references`.
        box: Method within whose box it is shown; empty: none.
    """
    return {
        "key": dataset_key(spec.name, folder, artifact),
        "group_name": level_group(spec.name, level) + (f"/{box}" if box else ""),
        "owners": spec.owners,
        "tags": {PRIVACY: level},
        "metadata": code_references(*code),
    }


def part_asset(
    spec: PrivateDatasetSpec, planned: PlannedMethod | PlannedShared, artifact: str
) -> dict[str, Any]:
    """The same of one released asset of a method, or of a shared histogram."""
    box = "" if isinstance(planned, PlannedShared) else planned.folder
    code = code_of(planned.method)
    return cohort_asset(spec, planned.folder, artifact, RELEASED, code, box=box)


def named(planned: PlannedMethod) -> str:
    """Title of a method and its paper, linked."""
    paper = planned.method.paper
    if planned.method.arxiv:
        paper = f"[{paper}](https://arxiv.org/abs/{planned.method.arxiv})"
    return f"{planned.method.title} ({paper})"


def described(planned: PlannedMethod) -> str:
    """Title, paper and price of a method, as the web UI shows them."""
    plan, kind = planned.plan, planned.method
    method = f"{named(planned)}."
    if plan.refusal is not None:
        return f"{method} Refuses: {plan.refusal}"
    if plan.epsilon is not None and spends(kind):
        cost = epsilon_up(plan.epsilon)
        spend = f"The method charges ε = {cost} in all, counted alone; what it drew is kept."
    elif not spends(kind):
        spend = "Charges nothing itself: it builds on other releases."
    elif plan.guarantee is GuaranteeType.SECRET:
        spend = "Charges the secrets' bound and no ε: it protects declared secrets, no record."
    else:
        spend = "Charges no DP budget: its guarantee is ex-post only."
    return f"{method} {spend}"
