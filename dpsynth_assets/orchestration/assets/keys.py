"""Keys of all assets: `[dataset, folder, artifact]`, or `[public, base, artifact]`."""

from collections.abc import Sequence
from typing import Any

import dagster as dg

from dpsynth_assets.datasets import (
    CohortSpec,
    PrivateDatasetSpec,
    cohort_name,
    dataset_folders,
    register_complete,
    registered_part,
    standing,
    usable_cohorts,
)
from dpsynth_assets.methods.base import spends
from dpsynth_assets.methods.dataset_plan import Planned, PlannedMethod
from dpsynth_assets.methods.stages import SHARED
from dpsynth_assets.orchestration.metadata import code_of, code_references
from dpsynth_assets.orchestration.resources.stores import PrivacyLedger, SensitiveStore
from dpsynth_assets.privacy.directed_rounding import epsilon_up
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.sensitive.purging import PurgeRule, recorded_purge
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


def part_asset(spec: PrivateDatasetSpec, planned: Planned, artifact: str) -> dict[str, Any]:
    """The same of one released asset of a method, or of a shared histogram."""
    box = planned.folder if isinstance(planned, PlannedMethod) else ""
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
        return f"{method} Refused: {plan.refusal}"
    if plan.epsilon is not None and spends(kind):
        cost = epsilon_up(plan.epsilon)
        spend = (
            f"The method charges ε = {cost} in total, considered alone; stored values are used "
            "again at no cost."
        )
    elif not spends(kind):
        spend = "Charges nothing: it builds on other releases."
    elif plan.guarantee is GuaranteeType.SECRET:
        spend = "Charges the secrets' bound and no ε: it protects declared secrets, no record."
    else:
        spend = "Charges no DP budget: its guarantee is ex-post only."
    return f"{method} {spend}"


# Partitions of a dataset that declares cohorts: one for each file or window that is complete.
#
# The partitions are dynamic: their keys stand in Dagster's instance, where a running web server and
# daemon read them, so a new one needs no reload. The registry says which there are.


def partitions_of(dataset: str) -> dg.DynamicPartitionsDefinition:
    """The partitions of a dataset's assets, whose keys are those of its cohorts."""
    return dg.DynamicPartitionsDefinition(name=f"{dataset}_cohorts")


def register_partitions(instance: dg.DagsterInstance, spec: PrivateDatasetSpec) -> list[str]:
    """Registers every cohort that is complete by now, and shows all known ones as partitions.

    Returns:
        Keys that had no partition before, in order. None where the dataset declares no cohorts.
    """
    if spec.cohorts is None:
        return []
    register_complete(spec.name, spec.cohorts, spec.source)
    return show_partitions(instance, spec.name, usable_cohorts(spec))


def register_declared(instance: dg.DagsterInstance) -> list[str]:
    """Registers the complete cohorts of every declared dataset; returns names of new ones."""
    return [
        cohort_name(file.spec.name, key)
        for file in standing(dataset_folders()).usable
        if isinstance(file.spec, PrivateDatasetSpec)
        for key in register_partitions(instance, file.spec)
    ]


def show_partitions(instance: dg.DagsterInstance, dataset: str, keys: Sequence[str]) -> list[str]:
    """Adds the partitions that are missing; returns their keys."""
    name = partitions_of(dataset).name or ""
    there = set(instance.get_dynamic_partitions(name))
    if new := [key for key in keys if key not in there]:
        instance.add_dynamic_partitions(name, new)
    return new


def shown_partition(instance: dg.DagsterInstance, spec: PrivateDatasetSpec) -> str | None:
    """The partition that a cohort is, added where it was not there; None: it is a whole dataset."""
    if not isinstance(spec, CohortSpec):
        return None
    show_partitions(instance, spec.part.dataset, [spec.part.key])
    return spec.part.key


def asset_of_cohort(cohort: str, folder: str, artifact: str) -> tuple[dg.AssetKey, str | None]:
    """Key and partition of a cohort's asset in the event log; None: it has no partitions."""
    dataset, partition = registered_part(cohort)
    return dg.AssetKey([dataset, folder, artifact]), partition


# Cohorts that a run finished: what they kept of private data may go.


LAST_STEP = ("audit", "privacy_statement")
"""Everything that reads private data for a release comes before it."""


def finished_datasets(instance: dg.DagsterInstance, run_id: str) -> list[str]:
    """Datasets whose statement a run has written."""
    records = instance.get_records_for_run(
        run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION
    ).records
    return sorted(
        {
            cohort_name(record.asset_key.path[0], record.partition_key)
            for record in records
            if record.asset_key is not None and tuple(record.asset_key.path[1:]) == LAST_STEP
        }
    )


def purge_finished(instance: dg.DagsterInstance, run_id: str) -> list[str]:
    """Purges the datasets that a successful run has finished; returns their names."""
    datasets = finished_datasets(instance, run_id)
    for dataset in datasets:
        rule, opened = PurgeRule(dataset=dataset), PrivacyLedger().open
        recorded_purge(SensitiveStore(), rule, opened().is_open, opened)
    return datasets
