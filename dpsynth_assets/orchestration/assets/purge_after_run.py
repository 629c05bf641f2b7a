"""Cohorts that a run finished: what they kept of private data may go."""

import dagster as dg

from dpsynth_assets.orchestration.assets.partitions import cohort_of_event
from dpsynth_assets.orchestration.resources.ledger import PrivacyLedger
from dpsynth_assets.orchestration.resources.purging import PurgeRule, purge
from dpsynth_assets.orchestration.resources.sensitive_store import SensitiveStore

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
