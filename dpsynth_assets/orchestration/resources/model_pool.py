"""The pools of steps that run models, one for each kind of device, and the GPUs they ask for."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import dagster as dg

PROCESSOR_POOL: Final = "models_on_processors"
GPU_POOL: Final = "models_on_gpus"
"""Pools of the steps that run models: at most as many at a time as each has places.

They are two, so that a step on processors never waits for one that has a GPU.
"""

FORMER_POOLS: Final = ("models", "gpu")
"""Names of the one pool before, the later one first (`gpu`: up to version 0.2.0), under which an
installation may have set its places."""

GPU_VARIABLE: Final = "DPSYNTH_GPU"

_GPU_HERE = Path("/dev/nvidia0")
_GPU_NAME = re.compile(r"[a-z0-9][-a-z0-9.]*/[A-Za-z0-9][-\w.]*")


def has_gpu() -> bool:
    """Whether this machine has a GPU."""
    return _GPU_HERE.exists()


def model_pool(devices: int) -> str:
    """Pool of a step that runs models.

    A model with `device: auto` runs on processors where there is no GPU: such a step waits for a
    GPU only where this machine has one, or the installation declares some.

    Args:
        devices: GPUs the step could use, >= 0.
    """
    return GPU_POOL if devices and (_declared_gpu() or has_gpu()) else PROCESSOR_POOL


def model_op_tags(devices: int) -> dict[str, Any]:
    """Requests for GPUs of a step that runs models, if the installation declares that it has any.

    DPSYNTH_GPU declares it, when definitions load, by the name under which Kubernetes hands GPUs
    out. `dagster-k8s/config` is read by `dagster_k8s.k8s_job_executor`, which gives the step's pod
    the limit (for GPUs the request equals it); `dagster-ray/config` by `dagster_ray.ray_executor`.
    Under the local executors both are inert, and the pools alone keep steps apart.

    Args:
        devices: GPUs the step needs, >= 0: as many as share a model, none for the processor.

    Returns:
        Tags of the step; {} where none is needed or declared.

    Raises:
        ValueError: DPSYNTH_GPU is no name of a resource.
    """
    gpu = _declared_gpu()
    if gpu is None or devices == 0:
        return {}
    return {
        "dagster-k8s/config": {"container_config": {"resources": {"limits": {gpu: devices}}}},
        "dagster-ray/config": {"num_gpus": devices},
    }


def _declared_gpu() -> str | None:
    name = os.environ.get(GPU_VARIABLE, "").strip()
    if name and not _GPU_NAME.fullmatch(name):
        raise ValueError(
            f"Expected {GPU_VARIABLE} to be the name of GPUs in Kubernetes, e.g. nvidia.com/gpu, "
            f"got {name!r}. Leave it empty where there is no GPU."
        )
    return name or None


def carry_over_limit(instance: "dg.DagsterInstance") -> str | None:
    """Gives the pools of model steps the places that were set for their one pool before.

    Without them an installation that had set two would be left with the default, which may be one,
    or none at all: then every model would be opened at once. Places that were set for a new name
    stay, and so does the former limit, which others may use.

    Args:
        instance: Where pools have their places.

    Returns:
        What was done, for a log; None where nothing was to do.
    """
    storage = instance.event_log_storage
    if not storage.supports_global_concurrency_limits:
        return None
    declared = {
        pool.name: pool.limit for pool in storage.get_pool_limits() if not pool.from_default
    }
    former = next((name for name in FORMER_POOLS if name in declared), None)
    new = [name for name in (PROCESSOR_POOL, GPU_POOL) if name not in declared]
    if former is None or not new:
        return None
    for name in new:
        storage.set_concurrency_slots(name, declared[former])
    have = "have" if len(new) > 1 else "has"
    return (
        "Steps that run models wait in a pool for each kind of device now: "
        f"{' and '.join(new)} {have} the {declared[former]} places that were set for {former}."
    )
