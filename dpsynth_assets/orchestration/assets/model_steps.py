"""Steps that run models: the pool they wait in, and the GPUs that each asks for.

A step asks for a GPU where a model that it computes with was declared to run on one. The exact
decoder and the packaged embedder run on processors, so steps with these alone are never kept
waiting for a GPU, nor for a step that has one.
"""

from typing import Any

from dpsynth_assets.datasets import PrivateDatasetSpec, PublicDataSpec
from dpsynth_assets.datasets.engine import EngineSpec
from dpsynth_assets.datasets.standing import declared_base
from dpsynth_assets.methods.models_run import (
    CONDITIONAL_GENERATOR,
    LANGUAGE_MODEL,
    LANGUAGE_MODEL_WEIGHTS,
    TEXT_EMBEDDER,
    RunModel,
)
from dpsynth_assets.methods.stages import Stage
from dpsynth_assets.orchestration.resources.model_pool import (
    PROCESSOR_POOL,
    model_op_tags,
    model_pool,
)
from dpsynth_assets.workers import declared_kind


def model_step(base: PublicDataSpec | str, *models: RunModel) -> dict[str, Any]:
    """Pool and GPU request of a step that computes with models.

    Args:
        base: The public base or its name. One that no file declares asks for a GPU, like
            `device: auto`.
        models: Models of the base, and engines.
    """
    spec = declared_base(base) if isinstance(base, str) else base
    return step_on(max((_devices(spec, each) for each in models), default=0))


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


def step_on(devices: int) -> dict[str, Any]:
    """Pool and GPU request of a step.

    Args:
        devices: GPUs that share a model, >= 0.
    """
    return {"pool": model_pool(devices), "op_tags": model_op_tags(devices)}


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
    a cluster with one GPU both would wait for ever.

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
        return 0
    return devices_of(base.language_model.device)


def _devices_of_engine(base: PublicDataSpec | None, engine: EngineSpec) -> int:
    if engine.takes_devices:
        return engine.tensor_parallel_size
    if engine.needs_no_gpu:
        return 0
    if engine.model is not None or engine.device.startswith("cuda"):
        return devices_of(engine.device)
    return _devices(base, LANGUAGE_MODEL_WEIGHTS)
