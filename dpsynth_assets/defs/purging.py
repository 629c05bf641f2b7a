"""Purge after success for runs that the daemon sees: web UI, schedules, backfills."""

import dagster as dg


@dg.definitions
def purging() -> dg.Definitions:
    """A sensor, running where DPSYNTH_PURGE_AFTER_SUCCESS=1, that purges finished cohorts."""
    from dpsynth_assets.resources.purging import purges_after_success

    status = (
        dg.DefaultSensorStatus.RUNNING if purges_after_success() else dg.DefaultSensorStatus.STOPPED
    )

    @dg.run_status_sensor(
        run_status=dg.DagsterRunStatus.SUCCESS,
        name="purge_sensitive_store_after_success",
        description="Removes the records and embeddings of a cohort whose statement was written.",
        default_status=status,
    )
    def purge_sensitive_store_after_success(
        context: dg.RunStatusSensorContext,
    ) -> dg.SkipReason | None:
        from dpsynth_assets.assets.finished import purge_finished

        purged = purge_finished(context.instance, context.dagster_run.run_id)
        return None if purged else dg.SkipReason("The run finished no cohort.")

    return dg.Definitions(sensors=[purge_sensitive_store_after_success])
