"""Killed runs are reported and what they hold is freed, also where no one types a command."""

import dagster as dg


@dg.definitions
def dead_runs() -> dg.Definitions:
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

    return dg.Definitions(sensors=[free_killed_runs])
