"""The pool of steps that run models, and the GPUs that they ask for where there are any."""

import os
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import dagster as dg

MODEL_POOL: Final = "models"
"""Pool of every step that runs a model, on whatever processor: at most as many as it has places."""

FORMER_POOL: Final = "gpu"
"""Its name up to version 0.2.0, under which an installation may have set its places."""

GPU_VARIABLE: Final = "DPSYNTH_GPU"

_GPU_NAME = re.compile(r"[a-z0-9][-a-z0-9.]*/[A-Za-z0-9][-\w.]*")


def model_op_tags(devices: int) -> dict[str, Any]:
    """Requests for GPUs of a step that runs models, if the installation declares that it has any.

    DPSYNTH_GPU declares it, when definitions load, by the name under which Kubernetes hands GPUs
    out. `dagster-k8s/config` is read by `dagster_k8s.k8s_job_executor`, which gives the step's pod
    the limit (for GPUs the request equals it); `dagster-ray/config` by `dagster_ray.ray_executor`.
    Under the local executors both are inert, and the pool alone keeps steps apart.

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
    """Gives the pool of model steps the places that were set for it under its former name.

    Without them an installation that had set two would be left with the default, which may be one,
    or none at all: then every model would be opened at once. Places that were set for the new name
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
    places = declared.get(FORMER_POOL)
    if places is None or MODEL_POOL in declared:
        return None
    storage.set_concurrency_slots(MODEL_POOL, places)
    return (
        f"The pool of steps that run models is now called {MODEL_POOL}: it has the {places} places "
        f"that were set for {FORMER_POOL}."
    )
