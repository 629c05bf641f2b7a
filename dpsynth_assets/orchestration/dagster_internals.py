"""All uses of Dagster's private interfaces, which may change without notice.

Tried with Dagster 1.13.27. After an upgrade the tests of what imports this module say what moved.
"""
# ruff: noqa: F401 - some names are only imported, for others to take from here.

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.definitions.asset_checks.asset_check_evaluation import (
    AssetCheckEvaluationTargetMaterializationData,
)
from dagster._core.definitions.decorators.op_decorator import DecoratedOpFunction
from dagster._core.errors import DagsterExecutionInterruptedError, DagsterUserCodeProcessError
from dagster._core.event_api import PartitionKeyFilter
from dagster._core.events import DagsterEvent, DagsterEventType
from dagster._core.execution.plan.instance_concurrency_context import InstanceConcurrencyContext
from dagster._core.storage.asset_check_execution_record import (
    COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES,
    AssetCheckExecutionRecordStatus,
)
from dagster._utils.error import SerializableErrorInfo
from dagster._utils.interrupts import check_captured_interrupt
from dagster._utils.schedules import schedule_execution_time_iterator
from dagster_shared.record import replace as replaced_record

REST_SECONDS = 0.1


def rest_between_claims() -> None:
    """Lets every step of this process that finds no place in a full pool rest before it asks again.

    Dagster's executors ask at once where every step of a run waits: the run would keep a core busy.
    `ActiveExecution.sleep_interval` means to sleep, but takes the least of 0 and the seconds that
    are left. The class that asks is replaced in place because there is no other way in: both
    executors of this machine make it themselves, within one function, and nothing that they call
    while a step waits can be given to them.

    Called again it changes nothing.
    """
    ask = InstanceConcurrencyContext.claim
    if getattr(ask, "rests", False):
        return

    def claim(self: Any, *arguments: Any, **named: Any) -> bool:
        claimed = bool(ask(self, *arguments, **named))
        if not claimed:
            time.sleep(REST_SECONDS)
        return claimed

    claim.rests = True  # type: ignore[attr-defined]
    InstanceConcurrencyContext.claim = claim  # type: ignore[method-assign]


def decorated_function(op: dg.OpDefinition) -> Callable[..., Any]:
    """The function that was decorated as an asset or a check."""
    made = op.compute_fn
    return made.decorated_fn if isinstance(made, DecoratedOpFunction) else made


def origin_of(location: str, job: str) -> Any:
    """The origin of a run of a job, as a run of a code location has it."""
    from dagster._core.definitions.repository_definition import SINGLETON_REPOSITORY_NAME
    from dagster._core.remote_origin import (
        ManagedGrpcPythonEnvCodeLocationOrigin,
        RemoteJobOrigin,
        RemoteRepositoryOrigin,
    )
    from dagster._core.types.loadable_target_origin import LoadableTargetOrigin

    target = LoadableTargetOrigin(module_name="dpsynth_assets.definitions")
    place = ManagedGrpcPythonEnvCodeLocationOrigin(target, location)
    return RemoteJobOrigin(RemoteRepositoryOrigin(place, SINGLETON_REPOSITORY_NAME), job)


@contextmanager
def code_servers(instance: dg.DagsterInstance, workspace: Path) -> Iterator[list[Any]]:
    """Starts the code servers of a workspace file; yields what a workspace says of each."""
    from dagster._cli.proxy_server_manager import ProxyServerManager
    from dagster._core.workspace.load_target import WorkspaceFileTarget

    target = WorkspaceFileTarget(paths=[str(workspace)])
    with ProxyServerManager(instance, target, code_server_log_level="WARNING") as servers:
        yield list(servers.get_code_server_specs())


def run_daemon(options: list[str]) -> None:
    """Runs Dagster's daemon in this process, with the options of its command."""
    from dagster._daemon.cli import cli

    cli(["run", *options])


def replaced_op(
    op: dg.OpDefinition,
    *,
    body: Callable[..., Any] | None = None,
    tags: Mapping[str, str] | None = None,
) -> dg.OpDefinition:
    """The same op with another body or other tags; None keeps what it has."""
    return dg.OpDefinition(
        compute_fn=op.compute_fn if body is None else DecoratedOpFunction(body),
        name=op.name,
        ins=dict(op.ins),
        outs=dict(op.outs),
        description=op.description,
        config_schema=op.config_schema,
        required_resource_keys=set(op.required_resource_keys),
        tags=op.tags if tags is None else {**op.tags, **tags},
        retry_policy=op.retry_policy,
        code_version=op.version,
        pool=op.pool,
    )


def with_attributes(part: dg.AssetsDefinition, **changed: Any) -> dg.AssetsDefinition:
    """The same asset, or checks, but for the attributes that are given."""
    return type(part)(**{**part.get_attributes_dict(), **changed})
