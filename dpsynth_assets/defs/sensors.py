"""Sensors that run automation, register cohorts, audit and purge, and the asset of all budgets."""

import json
import time
from collections.abc import Callable
from typing import Any

import dagster as dg

from dpsynth_assets.orchestration.resources.private_section import public_section

SECONDS_BETWEEN_AUDITS, SECONDS_BETWEEN_TICKS, SECONDS_OF_A_TICK = 3300.0, 300, 20.0
"""An audit is due before an hour is over, at one of the ticks of every five minutes."""


@dg.definitions
def sensors() -> dg.Definitions:
    """The sensors of the installation, and all budgets on one page with their check."""
    from dpsynth_assets.orchestration.assets.privacy_budgets import budget_definitions

    found = [
        _follow_releases(),
        cohorts_sensor(),
        _audit_hourly(),
        killed_runs_sensor(),
        _purge_finished(),
    ]
    return dg.Definitions.merge(budget_definitions(), dg.Definitions(sensors=found))


def _follow_releases() -> dg.AutomationConditionSensorDefinition:
    """One sensor over all assets; only those with an automation condition are ever asked for."""
    return dg.AutomationConditionSensorDefinition(
        "follow_releases",
        target=dg.AssetSelection.all(),
        minimum_interval_seconds=120,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description=(
            "Materialises the assets that follow from new releases: corpora, scores and "
            "statements. Never requests an asset that charges the ledger."
        ),
    )


def _ticking(
    name: str, seconds: int, title: str, description: str, tick: Callable[[Any], str]
) -> dg.SensorDefinition:
    """A sensor that runs wherever the daemon does; it launches nothing and says what it did."""

    @dg.sensor(
        name=name,
        minimum_interval_seconds=seconds,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=description,
    )
    @public_section(title)
    def ticking(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        return dg.SkipReason(tick(context))

    return ticking


def cohorts_sensor() -> dg.SensorDefinition:
    """Adds partitions; reads no record."""

    def register_cohorts(context: dg.SensorEvaluationContext) -> str:
        from dpsynth_assets.orchestration.assets.keys import register_declared

        added = register_declared(context.instance)
        return f"Added {', '.join(added)}." if added else "No file or window has become complete."

    return _ticking(
        "register_cohorts",
        SECONDS_BETWEEN_TICKS,
        "Registering cohorts",
        "Adds a partition to the assets of a dataset for each file or window that has become "
        "complete. Reads dataset files, the calendar and names of files; launches no run and "
        "charges nothing.",
        register_cohorts,
    )


def _audit_hourly() -> dg.SensorDefinition:
    """Compares; pays nothing."""

    def audit_hourly(context: dg.SensorEvaluationContext) -> str:
        from dpsynth_assets.orchestration.assets import audit_trail
        from dpsynth_assets.orchestration.assets.privacy_budgets import report_budgets_or_problem
        from dpsynth_assets.orchestration.resources.stores import PrivacyLedger, ReleaseStore

        last: dict[str, float] = json.loads(context.cursor or "{}")
        started, done, failed, instance = time.time(), [], [], context.instance
        for cohort in audit_trail.audited_cohorts(instance):
            if started - last.get(cohort, 0.0) < SECONDS_BETWEEN_AUDITS:
                continue
            last[cohort] = started
            try:
                ledger = PrivacyLedger().open()
                audit_trail.report_agreement(cohort, ledger, ReleaseStore(), instance)
                done.append(cohort)
            except Exception as error:  # noqa: BLE001 - one cohort must not keep others from it
                told = f"{type(error).__name__}: {error}"
                audit_trail.report_no_audit(cohort, told, instance)
                failed.append(f"{cohort} ({told})")
            if time.time() - started > SECONDS_OF_A_TICK:
                break  # The others follow with the next tick.
        context.update_cursor(json.dumps(last))
        problems = []
        if failed:
            problems.append(f"Could not audit {', '.join(failed)}: `dpsynth audit NAME` says why.")
        if done or failed:
            problems.append(report_budgets_or_problem(PrivacyLedger().open, instance))
        for problem in filter(None, problems):
            context.log.error(problem)
        said = [f"Audited {', '.join(done)}." if done else "", *problems]
        return " ".join(filter(None, said)) or "No audit is due."

    return _ticking(
        "audit_hourly",
        SECONDS_BETWEEN_TICKS,
        "The hourly audit",
        "Compares ledger, event log, stored releases and released files of every cohort that "
        "was audited before, each hour, and shows the result as the check of its audit trail; "
        "then brings privacy_budgets and its check up to date. Reads no private record, "
        "launches no run and charges nothing.",
        audit_hourly,
    )


def killed_runs_sensor() -> dg.SensorDefinition:
    """Frees runs; reads no data."""

    def free_killed_runs(context: dg.SensorEvaluationContext) -> str:
        from dpsynth_assets.orchestration.resources.live_runs import free_dead_runs

        return " ".join(free_dead_runs(context.instance)) or "No run was killed."

    return _ticking(
        "free_killed_runs",
        30,
        "Freeing killed runs",
        "Reports runs whose process was killed as failed, and frees their places in pools, so "
        "that no later run waits for them.",
        free_killed_runs,
    )


def _purge_finished() -> dg.SensorDefinition:
    """A sensor, running where DPSYNTH_PURGE_AFTER_SUCCESS=1, that purges finished cohorts."""
    from dpsynth_assets.sensitive.purging import purges_after_success

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
        from dpsynth_assets.orchestration.assets.keys import purge_finished

        purged = purge_finished(context.instance, context.dagster_run.run_id)
        return None if purged else dg.SkipReason("The run finished no cohort.")

    return purge_sensitive_store_after_success
