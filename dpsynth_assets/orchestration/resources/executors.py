"""Executors of the steps of a launched run, by DPSYNTH_EXECUTOR.

`in_process` executes a run in one process, `local` each step in a process of its own; with
`kubernetes` each step has a pod, with `ray` a job of the cluster. The default is `in_process`: a
process that opens Python, Dagster and the definitions takes longer than most steps. On a machine
with a GPU it is `local`, because only the end of a process gives the memory of a GPU back.
"""

import importlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit

import dagster as dg

from dpsynth_assets.datasets import PrivateDatasetSpec, cohort_name, dataset_folders, standing
from dpsynth_assets.orchestration.dagster_internals import (
    DagsterExecutionInterruptedError,
    DagsterUserCodeProcessError,
    SerializableErrorInfo,
)
from dpsynth_assets.orchestration.resources.check_results import keep_results
from dpsynth_assets.orchestration.resources.live_runs import hold_until_exit, watched
from dpsynth_assets.orchestration.resources.model_pool import has_gpu
from dpsynth_assets.orchestration.resources.private_section import is_refused
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.tags import COHORT, DEFAULT_RELEASE, EPSILON, RELEASE

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
        return _alive(dg.multiprocess_executor.configured({"max_concurrent": 1}))
    if name == "in_process":
        # Models are loaded once a run; a step that is killed ends its run.
        return _alive(dg.in_process_executor)
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
    return _alive(executor, on_ray=True) if name == "ray" else executor


class _AliveExecutor(dg.Executor):
    """An executor of this machine that holds the lock of its run, and never waits for the dead."""

    def __init__(self, inner: dg.Executor, look: Callable[[Any], None] = lambda _: None) -> None:
        self._inner, self._look = inner, look

    @property
    def retries(self) -> Any:
        return self._inner.retries

    @property
    def step_dependency_config(self) -> Any:
        return self._inner.step_dependency_config

    def execute(self, plan_context: Any, execution_plan: Any) -> Iterator[dg.DagsterEvent]:
        self._look(execution_plan)
        hold_until_exit(plan_context.run_id)
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
            "The budget or the plan refused this before it was charged. The run was charged ε = "
            f"{charged} in all. Earlier releases stay valid.",
        ]
    )
    instance.report_run_canceling(plan_context.dagster_run, told)
    raise _RefusedError(
        told, user_code_process_error_infos=[SerializableErrorInfo(told, [], "Refused")]
    )


def _alive(inner: dg.ExecutorDefinition, *, on_ray: bool = False) -> dg.ExecutorDefinition:
    """The same executor; a run that is killed is known to be gone (`live_runs`).

    On Ray it passes settings to its jobs, and ends a run that it can never place before its first
    step.
    """
    make: Any = inner.executor_creation_fn

    def create(context: dg.InitExecutorContext) -> dg.Executor:
        if not on_ray:
            return _AliveExecutor(make(context))
        config = with_settings_passed(dict(context.executor_config))
        look = partial(refuse_what_no_node_can_run, address=config["ray"].get("address"))
        return _AliveExecutor(make(context._replace(executor_config=config)), look)

    schema: Any = inner.config_schema
    return dg.ExecutorDefinition(
        name=inner.name,
        config_schema=schema,
        requirements=inner.get_requirements,
        executor_creation_fn=create,
        description=inner.description,
    )


# The executor `ray`: every step is a job of a Ray cluster, which this process submits and watches.
#
# A job gets the settings that say where things lie. It does not get those that hold secrets (URL of
# the ledger, key of the sensitive store): Ray shows the environment of a job to everybody who sees
# its dashboard. They belong into the environment of the cluster's nodes.


PASSED: Final = (
    "DAGSTER_HOME",
    "DPSYNTH_DATASETS",
    "DPSYNTH_EXECUTOR",
    "DPSYNTH_GPU",
    "DPSYNTH_HOME",
    "DPSYNTH_PUBLISH_URL",
    "DPSYNTH_PURGE_AFTER_SUCCESS",
    "DPSYNTH_SENSITIVE_URL",
    "DPSYNTH_STORE_PATIENCE_SECONDS",
    "DPSYNTH_STORE_URL",
    "DPSYNTH_WORKERS",
    "DPSYNTH_WORKER_COUNT",
    "HF_HUB_OFFLINE",
    "OMP_NUM_THREADS",
)
"""Variables that a job gets from the process that submits it, where they are set."""

GROWS_VARIABLE: Final = "DPSYNTH_RAY_ADDS_NODES"

_TAG = "dagster-ray/config"


def with_settings_passed(config: dict[str, Any]) -> dict[str, Any]:
    """Adds the variables of PASSED that are set to what a run configuration of `ray` passes."""
    declared = config.get("ray") or {}
    names = [name for name in PASSED if name in os.environ]
    for name in names:
        if "@" in urlsplit(os.environ[name]).netloc:
            raise PrivacyError(
                f"{name}: expected an address without a key or a password, got one with them: Ray "
                "shows the environment of a job in its dashboard. Give credentials to the nodes."
            )
    passed = [*names, *(declared.get("env_vars") or [])]
    return {**config, "ray": {**declared, "env_vars": passed}}


def refuse_what_no_node_can_run(plan: Any, address: str | None) -> None:
    """Fails a run at once where a step asks for more GPUs than any node of the cluster has.

    Ray would keep such a job pending permanently. With DPSYNTH_RAY_ADDS_NODES nothing is refused:
    an autoscaler may start a node that fits.

    Args:
        plan: Execution plan of the run.
        address: Dashboard of the cluster, http://host:8265; None: RAY_API_SERVER_ADDRESS.

    Raises:
        dagster.Failure: A step asks for too many.
    """
    tags = {step.key: step.tags.get(_TAG, "{}") for step in plan.get_all_steps_in_topo_order()}
    asked = {key: float(json.loads(told).get("num_gpus") or 0) for key, told in tags.items()}
    key = max(asked, key=asked.__getitem__, default=None)
    if key is None or not asked[key] or os.environ.get(GROWS_VARIABLE):
        return
    most = max(_gpus_of_nodes(address), default=0)
    if asked[key] > most:
        raise dg.Failure(
            description=f"Expected a node of the Ray cluster with {asked[key]:g} GPU(s) for "
            f"{key}, got at most {most:g}. Add such a node, write `language_model: {{device: "
            f"cpu}}` in the public base, or set {GROWS_VARIABLE}=1 if the cluster starts nodes by "
            "itself.",
            allow_retries=False,
        )


def _gpus_of_nodes(address: str | None) -> list[float]:
    """GPUs of every node that is alive, by Ray's state API."""
    from ray.util.state import list_nodes

    nodes = list_nodes(address=address or os.environ.get("RAY_API_SERVER_ADDRESS"))
    return [node.resources_total.get("GPU", 0) for node in nodes if node.state == "ALIVE"]


# Tags of a run from its first moment, regardless of what launched it.


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
