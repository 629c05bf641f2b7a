"""Executors of the steps of a launched run, by DPSYNTH_EXECUTOR.

`in_process` executes a run in one process, `local` each step in a process of its own; with
`kubernetes` each step has a pod, with `ray` a job of the cluster. The default is `in_process`: a
process that opens Python, Dagster and the definitions takes longer than most steps. On a machine
with a GPU it is `local`, because only the end of a process gives the memory of a GPU back.
"""

import importlib
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import dagster as dg

from dpsynth_assets.orchestration.dagster_internals import (
    DagsterExecutionInterruptedError,
    DagsterUserCodeProcessError,
    SerializableErrorInfo,
)
from dpsynth_assets.orchestration.resources.check_results import keep_results
from dpsynth_assets.orchestration.resources.live_runs import hold_until_exit
from dpsynth_assets.orchestration.resources.model_pool import carry_over_limit, has_gpu
from dpsynth_assets.orchestration.resources.private_section import is_refused
from dpsynth_assets.orchestration.resources.ray_steps import (
    refuse_what_no_node_can_run,
    with_settings_passed,
)
from dpsynth_assets.orchestration.resources.run_tags import tag_cohorts
from dpsynth_assets.orchestration.resources.waiting import watched
from dpsynth_assets.tags import EPSILON

_ELSEWHERE = {
    "kubernetes": ("dagster_k8s", "k8s_job_executor"),
    "ray": ("dagster_ray", "ray_executor"),
}


def declared_executor() -> dg.ExecutorDefinition:
    """The executor that DPSYNTH_EXECUTOR names; where it names none, by whether there is a GPU.

    Raises:
        ValueError: It names another, or one whose package is not installed.
    """
    name = os.environ.get("DPSYNTH_EXECUTOR", "") or ("local" if has_gpu() else "in_process")
    if name == "local":
        # One step at a time: models are large, and a laptop has few cores.
        return _holding_its_lock(dg.multiprocess_executor.configured({"max_concurrent": 1}))
    if name == "in_process":
        # Models are loaded once a run; a step that is killed ends its run.
        return _holding_its_lock(dg.in_process_executor)
    if name not in _ELSEWHERE:
        raise ValueError(
            f"Expected DPSYNTH_EXECUTOR to be local, in_process, {' or '.join(_ELSEWHERE)}, got "
            f"{name!r}. "
            "See deploy/executors.yaml."
        )
    module, attribute = _ELSEWHERE[name]
    try:
        executor: dg.ExecutorDefinition = getattr(importlib.import_module(module), attribute)
    except ImportError:
        raise ValueError(
            f"Expected the package of DPSYNTH_EXECUTOR={name}, got none. Install the extra "
            f"`{name}` of dpsynth_assets."
        ) from None
    return _on_ray(executor) if name == "ray" else executor


class _AliveExecutor(dg.Executor):
    """An executor of this machine that holds the lock of its run, and never waits for the dead."""

    def __init__(self, inner: dg.Executor) -> None:
        self._inner = inner

    @property
    def retries(self) -> Any:
        return self._inner.retries

    @property
    def step_dependency_config(self) -> Any:
        return self._inner.step_dependency_config

    def execute(self, plan_context: Any, execution_plan: Any) -> Iterator[dg.DagsterEvent]:
        hold_until_exit(plan_context.run_id)
        if carried := carry_over_limit(plan_context.instance):
            plan_context.log.info(carried)
        instance, failed = plan_context.instance, []
        with suppress(Exception):  # Nor must a tag keep a run from anything.
            tag_cohorts(instance, plan_context.dagster_run)
        try:
            with watched(instance, plan_context.run_id, plan_context.log.warning):
                for event in self._inner.execute(plan_context, execution_plan):
                    if event.is_step_failure:
                        failed.append(event)
                    yield event
        finally:
            with suppress(Exception):  # What a check shows must not hide how the run ended.
                keep_results(instance, plan_context.dagster_run)
        if failed and all(map(is_refused, failed)):
            _end_refused(plan_context, failed)


class _RefusedError(DagsterUserCodeProcessError, DagsterExecutionInterruptedError):
    """Ends a run as canceled and is shown as its text alone, without a stack trace."""


def _end_refused(plan_context: Any, failed: Sequence[dg.DagsterEvent]) -> NoReturn:
    """Ends a run as canceled whose only failures are releases that were refused.

    Dagster shows an asset whose latest run failed in red. After a refusal what was released before
    is as valid as it was.
    """
    instance = plan_context.instance
    run = instance.get_run_by_id(plan_context.run_id)
    charged = "" if run is None else run.tags.get(EPSILON, "0")
    reasons: Any = [event.step_failure_data.user_failure_data for event in failed]
    told = "\n".join(
        [
            *dict.fromkeys(str(reason.description) for reason in reasons),
            "This was refused by the budget or the plan, before any charge for it: the run was "
            f"charged ε = {charged}. What was released stands.",
        ]
    )
    instance.report_run_canceling(plan_context.dagster_run, told)
    raise _RefusedError(
        told, user_code_process_error_infos=[SerializableErrorInfo(told, [], "Refused")]
    )


class _RayExecutor(_AliveExecutor):
    """Steps as jobs of a Ray cluster; a run that it can never place ends before its first step."""

    def __init__(self, inner: dg.Executor, address: str | None) -> None:
        super().__init__(inner)
        self._address = address

    def execute(self, plan_context: Any, execution_plan: Any) -> Iterator[dg.DagsterEvent]:
        refuse_what_no_node_can_run(execution_plan, self._address)
        yield from super().execute(plan_context, execution_plan)


def _on_ray(inner: dg.ExecutorDefinition) -> dg.ExecutorDefinition:
    """The same executor, which passes settings to its jobs and looks at the cluster first."""
    make: Any = inner.executor_creation_fn

    def create(context: dg.InitExecutorContext) -> dg.Executor:
        config = with_settings_passed(dict(context.executor_config))
        return _RayExecutor(
            make(context._replace(executor_config=config)), config["ray"].get("address")
        )

    return _made_by(create, inner)


def _holding_its_lock(inner: dg.ExecutorDefinition) -> dg.ExecutorDefinition:
    """The same executor; a run that is killed is known to be gone (`live_runs`)."""
    make: Any = inner.executor_creation_fn

    def create(context: dg.InitExecutorContext) -> dg.Executor:
        return _AliveExecutor(make(context))

    return _made_by(create, inner)


def _made_by(create: Any, inner: dg.ExecutorDefinition) -> dg.ExecutorDefinition:
    schema: Any = inner.config_schema
    return dg.ExecutorDefinition(
        name=inner.name,
        config_schema=schema,
        requirements=inner.get_requirements,
        executor_creation_fn=create,
        description=inner.description,
    )
