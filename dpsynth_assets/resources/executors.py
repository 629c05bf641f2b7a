"""What runs the steps of a launched run: this machine, Kubernetes or Ray, by DPSYNTH_EXECUTOR."""

import importlib
import os

import dagster as dg

_ELSEWHERE = {
    "kubernetes": ("dagster_k8s", "k8s_job_executor"),
    "ray": ("dagster_ray", "ray_executor"),
}


def declared_executor() -> dg.ExecutorDefinition:
    """The executor that DPSYNTH_EXECUTOR names; the local one where it names none.

    Raises:
        ValueError: It names another, or one whose package is not installed.
    """
    name = os.environ.get("DPSYNTH_EXECUTOR", "") or "local"
    if name == "local":
        # One step at a time: models are large, and a laptop has few cores.
        return dg.multiprocess_executor.configured({"max_concurrent": 1})
    if name not in _ELSEWHERE:
        raise ValueError(
            f"Expected DPSYNTH_EXECUTOR to be local, {' or '.join(_ELSEWHERE)}, got {name!r}. "
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
    return executor
