"""What the web UI shows of assets and checks while a run is under way, and after it was refused."""

import asyncio

import dagster as dg
import pytest
from dagster._core.loader import LoadingContextForTest
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionResolvedStatus

from dpsynth_assets.orchestration.resources.check_results import report_check
from dpsynth_assets.orchestration.resources.executors import declared_executor
from dpsynth_assets.orchestration.resources.private_section import private_section, refused
from dpsynth_assets.privacy.errors import BudgetExceededError, PlanChangedError, PrivacyError

FIRST = "first"
"""Tag of a run in which nothing is refused."""

REFUSALS = {
    "budget": BudgetExceededError("Expected at most 0.50 of ε, got 2.00."),
    "plan": PlanChangedError("Expected a release of the plan, got another."),
    "declaration": refused("n is too small for this plan."),
}
FAULTS = {
    "lost": PrivacyError("Expected the ledger, got none."),
    "fault": ValueError("a private text"),
}


def defs() -> dg.Definitions:
    def failing(name, error):
        @dg.asset(name=name, check_specs=[dg.AssetCheckSpec("gate", asset=name)])
        @private_section(name)
        def release(context: dg.AssetExecutionContext):
            if FIRST not in context.run.tags:
                raise error
            return dg.MaterializeResult(check_results=[dg.AssetCheckResult(passed=True)])

        return release

    @dg.asset
    def unharmed():
        return 1

    assets = [failing(name, error) for name, error in (REFUSALS | FAULTS).items()]
    jobs = [dg.define_asset_job("everything", selection="*")]
    return dg.Definitions(assets=[*assets, unharmed], jobs=jobs, executor=declared_executor())


def job() -> dg.JobDefinition:
    return defs().resolve_job_def("everything")


@pytest.fixture(params=["in_process", "local"])
def instance(request, monkeypatch, tmp_path):
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path))
    monkeypatch.setenv("DPSYNTH_EXECUTOR", request.param)
    with dg.instance_for_test(temp_dir=str(tmp_path)) as instance:
        yield instance


def described(error: Exception) -> str:
    return getattr(error, "description", None) or str(error)


def run(instance, names, **options) -> dg.DagsterRun:
    options["asset_selection"] = [dg.AssetKey(name) for name in names]
    result = dg.execute_job(dg.reconstructable(job), instance=instance, **options)
    return instance.get_run_by_id(result.run_id)


def shown(instance, asset) -> tuple[AssetCheckExecutionResolvedStatus, bool]:
    """What the web UI shows of an asset's check, and whether it is of the asset as it is."""
    check = dg.AssetCheckKey(dg.AssetKey(asset), "gate")
    (record,) = instance.event_log_storage.get_asset_check_execution_history(check, limit=1)

    async def resolved():
        loading = LoadingContextForTest(instance)
        status = await record.resolve_status(loading)
        return status, await record.targets_latest_materialization(loading)

    return asyncio.run(resolved())


@pytest.mark.parametrize(
    ("instance", "kinds"),
    [("in_process", list(REFUSALS)), ("local", ["budget"])],  # A process a step.
    indirect=["instance"],
)
def test_a_run_that_was_only_refused_is_canceled(instance, kinds):
    done = run(instance, kinds)
    assert done.status is dg.DagsterRunStatus.CANCELED
    records = instance.all_logs(done.run_id)
    assert any("before it was charged" in record.message for record in records)
    events = [record.get_dagster_event() for record in records if record.is_dagster_event]
    failed = [
        event.step_failure_data.user_failure_data for event in events if event.is_step_failure
    ]
    assert {failure.description for failure in failed} == {
        described(REFUSALS[kind]) for kind in kinds
    }
    (end,) = [event for event in events if event.event_type_value == "PIPELINE_CANCELED"]
    told = end.job_canceled_data.error
    assert told.stack == []
    assert told.message.startswith(described(REFUSALS["budget"]))
    assert "charged ε = 0 in all. Earlier releases stay valid." in told.message
    assert shown(instance, "budget")[0] is AssetCheckExecutionResolvedStatus.SKIPPED


@pytest.mark.parametrize(
    ("instance", "ends", "status"),
    [("in_process", list(REFUSALS), "CANCELED"), ("local", ["budget", "fault"], "FAILURE")],
    indirect=["instance"],
)
def test_a_release_that_was_made_before_keeps_its_checks(instance, ends, status):
    assert run(instance, ["budget"], tags={FIRST: "yes"}).is_success
    assert run(instance, ends).status.value == status
    assert shown(instance, "budget") == (AssetCheckExecutionResolvedStatus.SUCCEEDED, True)


def test_a_result_that_is_reported_during_a_run_does_not_hide_the_runs_own():
    @dg.asset
    def published(context: dg.AssetExecutionContext) -> None:
        trail = dg.AssetCheckEvaluation(
            asset_key=dg.AssetKey("trail"), check_name="gate", passed=False
        )
        report_check(context.instance, trail)

    @dg.asset(deps=[published])
    def trail() -> None: ...

    @dg.asset_check(asset=trail)
    def gate() -> dg.AssetCheckResult:
        return dg.AssetCheckResult(passed=True)

    with dg.DagsterInstance.ephemeral() as instance:
        dg.materialize([published, trail, gate], instance=instance)
        assert shown(instance, "trail") == (AssetCheckExecutionResolvedStatus.SUCCEEDED, True)
        dg.materialize([published], instance=instance)
        assert shown(instance, "trail") == (AssetCheckExecutionResolvedStatus.FAILED, True)


def test_what_was_not_refused_is_materialised(instance):
    assert run(instance, ["budget", "unharmed"]).status is dg.DagsterRunStatus.CANCELED
    assert instance.get_latest_materialization_event(dg.AssetKey("unharmed")) is not None


@pytest.mark.parametrize("instance", ["in_process"], indirect=True)
@pytest.mark.parametrize("names", [[*way, name] for way in ([], ["budget"]) for name in FAULTS])
def test_any_other_failure_fails_the_run(instance, names):
    assert run(instance, names).status is dg.DagsterRunStatus.FAILURE
