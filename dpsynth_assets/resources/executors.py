"""What runs the steps of a launched run, by DPSYNTH_EXECUTOR.

`local` (the default) gives each step a process of its own, `in_process` the run all in one; with
`kubernetes` each step has a pod, with `ray` a task of the cluster.
"""

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
    if name == "in_process":
        # Models are loaded once a run; a step that is killed ends its run.
        return dg.in_process_executor
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
    return executor
