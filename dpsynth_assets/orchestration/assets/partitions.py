"""Partitions of a dataset that declares cohorts: one for each file or window that is complete.

The partitions are dynamic: their keys stand in Dagster's instance, where a running web server and
daemon read them, so a new one needs no reload. The registry says which there are.
"""

from collections.abc import Sequence

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
from dpsynth_assets.orchestration.resources.stores import PrivacyLedger, SensitiveStore
from dpsynth_assets.sensitive.purging import PurgeRule, purge


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
    """Adds the partitions that are not there yet; returns their keys."""
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


def cohort_of_event(key: dg.AssetKey, partition: str | None) -> str:
    """Name of the cohort that an event in the log is about."""
    return cohort_name(key.path[0], partition)


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
            cohort_of_event(record.asset_key, record.partition_key)
            for record in records
            if record.asset_key is not None and tuple(record.asset_key.path[1:]) == LAST_STEP
        }
    )


def purge_finished(instance: dg.DagsterInstance, run_id: str) -> list[str]:
    """Purges the datasets that a successful run has finished; returns their names."""
    datasets = finished_datasets(instance, run_id)
    for dataset in datasets:
        purge(SensitiveStore(), PurgeRule(dataset=dataset), PrivacyLedger().open().is_open)
    return datasets
