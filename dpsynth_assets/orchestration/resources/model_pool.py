"""The pools of steps that run models, one for each kind of device, and the GPUs they ask for."""

import os
import re
from pathlib import Path
from typing import Any, Final

from dpsynth_assets.datasets import PrivateDatasetSpec, PublicDataSpec
from dpsynth_assets.datasets.public_spec import EngineSpec
from dpsynth_assets.datasets.standing import declared_base
from dpsynth_assets.methods.stages import Stage
from dpsynth_assets.methods.work import (
    CONDITIONAL_GENERATOR,
    LANGUAGE_MODEL,
    LANGUAGE_MODEL_WEIGHTS,
    TEXT_EMBEDDER,
    RunModel,
)
from dpsynth_assets.workers import declared_kind

PROCESSOR_POOL: Final = "models_on_processors"
GPU_POOL: Final = "models_on_gpus"
"""Pools of the steps that run models: at most as many at a time as each has places.

They are two, so that a step on processors never waits for one that has a GPU.
"""

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


# Steps that run models: the pool they wait in, and the GPUs that each asks for.
#
# A step asks for a GPU where a model that it computes with was declared to run on one. The exact
# decoder, unless a GPU is named, and the packaged embedder run on processors, so steps with these
# alone are never kept waiting for a GPU, nor for a step that has one.


def model_step(base: PublicDataSpec | str, *models: RunModel) -> dict[str, Any]:
    """Pool and GPU request of a step that computes with models.

    Args:
        base: The public base or its name. One that no file declares asks for a GPU, like
            `device: auto`.
        models: Models of the base, and engines.
    """
    spec = declared_base(base) if isinstance(base, str) else base
    devices = max((_devices(spec, each) for each in models), default=0)
    return {"pool": model_pool(devices), "op_tags": model_op_tags(devices)}


def on_processors(base: PublicDataSpec | str, stage: Stage) -> bool:
    """Whether a stage runs on no GPU, and its engine is one that workers can open beside it.

    vLLM takes its share of a device for itself, so there is one of it.
    """
    in_vllm = any(isinstance(each, EngineSpec) and each.takes_devices for each in stage.models)
    return not in_vllm and model_step(base, *stage.models)["pool"] == PROCESSOR_POOL


def given_parts(spec: PrivateDatasetSpec, stage: Stage) -> bool:
    """Whether workers go over the parts of the records for a stage."""
    if not stage.in_parts or spec.parts <= 1:
        return False
    return not stage.in_model or on_processors(spec.public_data, stage)


def stage_step(spec: PrivateDatasetSpec, stage: Stage) -> tuple[dict[str, Any], float]:
    """Pool and GPU request of a stage's step, and GPUs of each task that draws for it.

    Args:
        spec: The dataset.
        stage: Nothing is asked for one that runs no model.
    """
    if not stage.on_gpu:
        return {}, 0
    step = model_step(spec.public_data, *stage.models)
    return step_of_tasks(step) if stage.draws_passes and spec.parts > 1 else (step, 0)


def step_of_tasks(step: dict[str, Any]) -> tuple[dict[str, Any], float]:
    """Pool and GPU request of a step whose models run in workers, and GPUs of each of its tasks.

    Where tasks run in a cluster they ask for a GPU and the step, which waits for them, does not: on
    a cluster with one GPU both would wait permanently.

    Args:
        step: What the step would ask for if it ran the models itself.
    """
    if declared_kind() == "local":
        return step, 0
    gpus = step["op_tags"].get("dagster-ray/config", {}).get("num_gpus", 0)
    return {**step, "op_tags": {}}, float(gpus)


def devices_of(device: str) -> int:
    """GPUs of a model that was declared to run on `auto`, `cpu`, `cuda` or `cuda:N`."""
    return int(device != "cpu")


def _devices(base: PublicDataSpec | None, model: RunModel) -> int:
    """GPUs that a model asks for."""
    if isinstance(model, EngineSpec):
        return _devices_of_engine(base, model)
    if base is None:
        return 1
    if model == TEXT_EMBEDDER:
        return int(base.text_embedder.model is not None)
    if model == CONDITIONAL_GENERATOR:
        return devices_of(base.conditional_generator.device)
    if model == LANGUAGE_MODEL and base.language_model.decodes_exactly:
        return int(base.language_model.names_gpu)
    return devices_of(base.language_model.device)


def _devices_of_engine(base: PublicDataSpec | None, engine: EngineSpec) -> int:
    if engine.takes_devices:
        return engine.tensor_parallel_size
    if engine.is_endpoint or (engine.kind == "exact" and engine.model is not None):
        return 0
    if engine.kind == "exact":
        return int(base is not None and base.language_model.names_gpu)
    if engine.model is not None or engine.device.startswith("cuda"):
        return devices_of(engine.device)
    return _devices(base, LANGUAGE_MODEL_WEIGHTS)
