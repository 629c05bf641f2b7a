"""Results of asset checks for the web UI: added outside their step, or kept from earlier runs.

Dagster shows the newest row that it holds of a check, and a run writes one for each check that it
plans. So a result that is reported while a run is under way would hide the run's own, and a run
that ends early would hide the results of what it never made again.
"""

from typing import Any

import dagster as dg

from dpsynth_assets.orchestration.dagster_internals import (
    COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES,
    AssetCheckEvaluationTargetMaterializationData,
    AssetCheckExecutionRecordStatus,
    DagsterEvent,
    DagsterEventType,
    PartitionKeyFilter,
    replaced_record,
)
from dpsynth_assets.orchestration.resources.private_section import is_refused

_RECENT = 20
"""Materialisations that are looked through for one of a run; others were reported by hand."""


def report_check(instance: dg.DagsterInstance, evaluation: dg.AssetCheckEvaluation) -> None:
    """Shows the result of a check that was taken outside of its own step.

    Nothing is reported where a run that is under way will take the check itself.

    Dagster keeps one result without a run for a check and partition, and fails at the second. So
    the result of a partition is shown as that of the run that made the asset, brought up to date;
    nothing is shown before the first.

    Args:
        instance: Learns the result.
        evaluation: The result, with its partition where the asset has some.
    """
    partition = evaluation.partition
    rows = _rows(instance, evaluation.asset_check_key, partition)
    if rows and rows[0].status is AssetCheckExecutionRecordStatus.PLANNED:
        run = instance.get_run_by_id(rows[0].run_id)
        if run is not None and not run.is_finished:
            return
    asked = dg.AssetRecordsFilter(
        asset_key=evaluation.asset_key, asset_partitions=None if partition is None else [partition]
    )
    made = instance.fetch_materializations(asked, limit=_RECENT).records
    last = next((record for record in made if partition is None or record.run_id), None)
    if last is not None:
        target = AssetCheckEvaluationTargetMaterializationData(
            storage_id=last.storage_id, run_id=last.run_id, timestamp=last.timestamp
        )
        evaluation = replaced_record(evaluation, target_materialization_data=target)
    if partition is None:
        instance.report_runless_asset_event(evaluation)
    elif last is not None and (run := instance.get_run_by_id(last.run_id)) is not None:
        _report(instance, run, evaluation)


def keep_results(instance: dg.DagsterInstance, run: dg.DagsterRun) -> None:
    """Shows checks as before a run that ended early, where it did not make their asset again.

    Results from before the run are as valid as they were: a corpus whose next release was refused.

    Args:
        instance: Where the run is recorded.
        run: Has ended, or is about to.
    """
    kind = DagsterEventType

    def events(of_type: DagsterEventType) -> list[Any]:
        records = instance.get_records_for_run(run.run_id, of_type=of_type).records
        return [record.event_log_entry.dagster_event for record in records]

    failed = {event.step_key for event in events(kind.STEP_FAILURE) if not is_refused(event)}
    made = {event.asset_key for event in events(kind.ASSET_MATERIALIZATION)}
    taken = {
        event.event_specific_data.asset_check_key for event in events(kind.ASSET_CHECK_EVALUATION)
    }
    partition = run.tags.get("dagster/partition")
    for event in events(kind.ASSET_CHECK_EVALUATION_PLANNED):
        key = event.event_specific_data.asset_check_key
        if event.step_key in failed or key in taken or key.asset_key in made:
            continue
        if (before := last_result(instance, key, partition)) is not None:
            _report(instance, run, before)


def last_result(
    instance: dg.DagsterInstance, key: dg.AssetCheckKey, partition: str | None
) -> dg.AssetCheckEvaluation | None:
    """The newest result of a check that was taken; None where none ever was."""
    done = COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES
    rows = _rows(instance, key, partition, status=done)
    return rows[0].evaluation if rows else None


def _rows(
    instance: dg.DagsterInstance, key: dg.AssetCheckKey, partition: str | None, **asked: Any
) -> Any:
    """The newest row of a check, in a list; an empty one where there is none."""
    return instance.event_log_storage.get_asset_check_execution_history(
        key, limit=1, partition_filter=PartitionKeyFilter(key=partition), **asked
    )


def _report(
    instance: dg.DagsterInstance, run: dg.DagsterRun, evaluation: dg.AssetCheckEvaluation
) -> None:
    event = DagsterEvent(
        event_type_value=DagsterEventType.ASSET_CHECK_EVALUATION.value,
        job_name=run.job_name,
        event_specific_data=evaluation,
    )
    instance.report_dagster_event(event, run_id=run.run_id)
