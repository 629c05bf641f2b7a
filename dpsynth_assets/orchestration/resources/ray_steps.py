"""The executor `ray`: every step is a job of a Ray cluster, which this process submits and watches.

A job gets the settings that say where things lie. It does not get those that hold secrets (URL of
the ledger, key of the sensitive store): Ray shows the environment of a job to everybody who sees
its dashboard. They belong into the environment of the cluster's nodes.
"""

import json
import os
from typing import Any, Final
from urllib.parse import urlsplit

import dagster as dg

from dpsynth_assets.privacy.errors import PrivacyError

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

    Ray would keep such a job pending for ever. With DPSYNTH_RAY_ADDS_NODES nothing is refused: an
    autoscaler may start a node that fits.

    Args:
        plan: Execution plan of the run.
        address: Dashboard of the cluster, http://host:8265; None: RAY_API_SERVER_ADDRESS.

    Raises:
        dagster.Failure: A step asks for too many.
    """
    asked = {step.key: _gpus_asked(step.tags) for step in plan.get_all_steps_in_topo_order()}
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


def _gpus_asked(tags: Any) -> float:
    return float(json.loads(tags.get(_TAG, "{}")).get("num_gpus") or 0)


def _gpus_of_nodes(address: str | None) -> list[float]:
    """GPUs of every node that is alive, by Ray's state API."""
    from ray.util.state import list_nodes

    nodes = list_nodes(address=address or os.environ.get("RAY_API_SERVER_ADDRESS"))
    return [node.resources_total.get("GPU", 0) for node in nodes if node.state == "ALIVE"]
