"""Sensors that belong to no dataset: follow releases, free killed runs, purge after success."""

import dagster as dg


@dg.definitions
def sensors() -> dg.Definitions:
    """The sensors of the installation."""
    return dg.Definitions(sensors=[_follow_releases(), _free_killed_runs(), _purge_finished()])


def _follow_releases() -> dg.AutomationConditionSensorDefinition:
    """One sensor over all assets; only those with an automation condition are ever asked for."""
    return dg.AutomationConditionSensorDefinition(
        "follow_releases",
        target=dg.AssetSelection.all(),
        minimum_interval_seconds=120,  # A tick over hundreds of cohorts takes a while.
        default_status=dg.DefaultSensorStatus.STOPPED,
        description=(
            "Publishes, scores and states what new releases lead to. Never asks for an "
            "asset that charges the ledger."
        ),
    )


def _free_killed_runs() -> dg.SensorDefinition:
    """A sensor that runs wherever the daemon does: it reads no data and launches nothing."""

    @dg.sensor(
        name="free_killed_runs",
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=(
            "Reports runs whose process was killed as failed, and frees their places in pools, so "
            "that no later run waits for them."
        ),
    )
    def free_killed_runs(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        from dpsynth_assets.resources.live_runs import free_dead_runs

        lines = free_dead_runs(context.instance)
        return dg.SkipReason(" ".join(lines) or "No run was killed.")

    return free_killed_runs


def _purge_finished() -> dg.SensorDefinition:
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
        from dpsynth_assets.assets.purge_after_run import purge_finished

        purged = purge_finished(context.instance, context.dagster_run.run_id)
        return None if purged else dg.SkipReason("The run finished no cohort.")

    return purge_sensitive_store_after_success
