"""Sensors that belong to no dataset: follow releases, register cohorts, audit, free runs, purge."""

import json
import time

import dagster as dg

from dpsynth_assets.orchestration.resources.private_section import public_section

SECONDS_BETWEEN_AUDITS, SECONDS_BETWEEN_TICKS, SECONDS_OF_A_TICK = 3300.0, 300, 20.0
"""An audit is due before an hour is over, at one of the ticks of every five minutes."""


@dg.definitions
def sensors() -> dg.Definitions:
    """The sensors of the installation."""
    return dg.Definitions(
        sensors=[
            _follow_releases(),
            cohorts_sensor(),
            _audit_hourly(),
            killed_runs_sensor(),
            _purge_finished(),
        ]
    )


def _follow_releases() -> dg.AutomationConditionSensorDefinition:
    """One sensor over all assets; only those with an automation condition are ever asked for."""
    return dg.AutomationConditionSensorDefinition(
        "follow_releases",
        target=dg.AssetSelection.all(),
        minimum_interval_seconds=120,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description=(
            "Publishes, scores and states what new releases lead to. Never asks for an "
            "asset that charges the ledger."
        ),
    )


def cohorts_sensor() -> dg.SensorDefinition:
    """A sensor that runs wherever the daemon does: it reads no record and launches nothing."""

    @dg.sensor(
        name="register_cohorts",
        minimum_interval_seconds=SECONDS_BETWEEN_TICKS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=(
            "Adds a partition to the assets of a dataset for each file or window that has become "
            "complete. Reads dataset files, the calendar and names of files; launches no run and "
            "charges nothing."
        ),
    )
    @public_section("Registering cohorts")
    def register_cohorts(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        from dpsynth_assets.orchestration.assets.partitions import register_declared

        added = register_declared(context.instance)
        return dg.SkipReason(
            f"Added {', '.join(added)}." if added else "No file or window has become complete."
        )

    return register_cohorts


def _audit_hourly() -> dg.SensorDefinition:
    """A sensor that runs wherever the daemon does: it compares, launches nothing, pays nothing."""

    @dg.sensor(
        name="audit_hourly",
        minimum_interval_seconds=SECONDS_BETWEEN_TICKS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=(
            "Compares ledger, event log, stored releases and released files of every cohort that "
            "was audited before, each hour, and shows the result as the check of its audit trail; "
            "then brings privacy_budgets and its check up to date. Reads no private record, "
            "launches no run and charges nothing."
        ),
    )
    @public_section("The hourly audit")
    def audit_hourly(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        from dpsynth_assets.orchestration.assets.audit_trail import (
            audited_cohorts,
            report_agreement,
            report_no_audit,
        )
        from dpsynth_assets.orchestration.assets.privacy_budgets import report_budgets_or_problem
        from dpsynth_assets.orchestration.resources.ledger import PrivacyLedger
        from dpsynth_assets.orchestration.resources.release_store import ReleaseStore

        last: dict[str, float] = json.loads(context.cursor or "{}")
        started, done, failed = time.time(), [], []
        for cohort in audited_cohorts(context.instance):
            if started - last.get(cohort, 0.0) < SECONDS_BETWEEN_AUDITS:
                continue
            last[cohort] = started
            try:
                report_agreement(cohort, PrivacyLedger().open(), ReleaseStore(), context.instance)
                done.append(cohort)
            except Exception as error:  # noqa: BLE001 - one cohort must not keep others from it
                report_no_audit(cohort, f"{type(error).__name__}: {error}", context.instance)
                failed.append(f"{cohort} ({type(error).__name__}: {error})")
            if time.time() - started > SECONDS_OF_A_TICK:
                break  # The others follow with the next tick.
        context.update_cursor(json.dumps(last))
        said = [f"Audited {', '.join(done)}."] if done else []
        if failed:
            said.append(f"Could not audit {', '.join(failed)}: dpsynth audit NAME says why.")
            context.log.error(said[-1])
        problem = ""
        if done or failed:
            problem = report_budgets_or_problem(PrivacyLedger().open, context.instance)
        if problem:
            said.append(problem)
            context.log.error(problem)
        return dg.SkipReason(" ".join(said) or "No audit is due.")

    return audit_hourly


def killed_runs_sensor() -> dg.SensorDefinition:
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
    @public_section("Freeing killed runs")
    def free_killed_runs(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        from dpsynth_assets.orchestration.resources.live_runs import free_dead_runs
        from dpsynth_assets.orchestration.resources.model_pool import carry_over_limit

        carried = carry_over_limit(context.instance)
        lines = [*([carried] if carried else []), *free_dead_runs(context.instance)]
        return dg.SkipReason(" ".join(lines) or "No run was killed.")

    return free_killed_runs


def _purge_finished() -> dg.SensorDefinition:
    """A sensor, running where DPSYNTH_PURGE_AFTER_SUCCESS=1, that purges finished cohorts."""
    from dpsynth_assets.orchestration.resources.purging import purges_after_success

    status = (
        dg.DefaultSensorStatus.RUNNING if purges_after_success() else dg.DefaultSensorStatus.STOPPED
    )

    @dg.run_status_sensor(
        run_status=dg.DagsterRunStatus.SUCCESS,
        name="purge_sensitive_store_after_success",
        description="Removes the records and embeddings of a cohort whose statement was written.",
        default_status=status,
    )
    @public_section("Purging finished cohorts")
    def purge_sensitive_store_after_success(
        context: dg.RunStatusSensorContext,
    ) -> dg.SkipReason | None:
        from dpsynth_assets.orchestration.assets.purge_after_run import purge_finished

        purged = purge_finished(context.instance, context.dagster_run.run_id)
        return None if purged else dg.SkipReason("The run finished no cohort.")

    return purge_sensitive_store_after_success
