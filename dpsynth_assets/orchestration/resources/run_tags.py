"""Tags of a run from its first moment, whoever or whatever launched it."""

import dagster as dg

from dpsynth_assets.datasets import (
    PrivateDatasetSpec,
    cohort_name,
    dataset_folders,
    standing,
)
from dpsynth_assets.tags import COHORT, DEFAULT_RELEASE, EPSILON, RELEASE

_PLANNED = (
    dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED,
    dg.DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED,
)


def tag_cohorts(instance: dg.DagsterInstance, run: dg.DagsterRun) -> None:
    """Tags a run that begins with its cohorts, its release, and ε = 0: nothing is charged yet.

    Tags that its launch gave stay, but for ε, which a run that is executed again has of the run
    before. Steps add the ε that they are charged.
    """
    declared = {
        file.spec.name
        for file in standing(dataset_folders()).usable
        if isinstance(file.spec, PrivateDatasetSpec)
    }
    partition = run.tags.get("dagster/partition")
    planned = (
        record.event_log_entry.get_dagster_event()
        for kind in _PLANNED
        for record in instance.get_records_for_run(run.run_id, of_type=kind).records
    )
    keys = {
        event.asset_key or event.asset_check_planned_data.asset_key
        for event in planned
        if event.event_specific_data is not None
    }
    cohorts = {cohort_name(key.path[0], partition) for key in keys if key.path[0] in declared}
    if cohorts:
        made = {RELEASE: DEFAULT_RELEASE, COHORT: ", ".join(sorted(cohorts))}
        kept = {name: run.tags[name] for name in made if name in run.tags}
        instance.add_run_tags(run.run_id, {**made, **kept, EPSILON: "0"})
