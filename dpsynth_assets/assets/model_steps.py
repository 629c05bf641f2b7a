"""Steps that run models: the pool they share, and the GPUs that each asks for.

A step asks for what its models were declared to run on, so that a base with `device: cpu` is never
kept waiting for a GPU, on a cluster that has some or none.
"""

from typing import Any

from dpsynth_assets.datasets import PrivateDatasetSpec, PublicDataSpec
from dpsynth_assets.datasets.declared_bases import declared_base
from dpsynth_assets.datasets.engine import EngineSpec
from dpsynth_assets.methods.stages import Stage
from dpsynth_assets.resources.model_pool import MODEL_POOL, model_op_tags
from dpsynth_assets.workers import declared_kind


def model_step(base: PublicDataSpec | str, engine: EngineSpec | None = None) -> dict[str, Any]:
    """Pool and GPU request of a step that runs models of a public base.

    Args:
        base: The base or its name. One that no file declares asks for a GPU, like `device: auto`.
        engine: What writes in this step, if anything but the base's models does.
    """
    if engine is not None and engine.kind == "vllm":
        return step_on("cuda", devices=engine.tensor_parallel_size)
    if engine is not None and engine.device.startswith("cuda"):
        return step_on(engine.device)
    spec = _declared(base)
    return step_on("auto" if spec is None else spec.language_model.device)


def on_processors(base: PublicDataSpec | str, engine: EngineSpec | None = None) -> bool:
    """Whether such a step asks for no GPU, and its engine is one that workers can open beside it.

    vLLM takes its share of a device for itself, so there is one of it.
    """
    return not model_step(base, engine)["op_tags"] and (engine is None or engine.kind != "vllm")


def embedding_step(base: PublicDataSpec | str) -> dict[str, Any]:
    """Pool and GPU request of a step that only embeds; the packaged embedder needs no GPU."""
    spec = _declared(base)
    packaged = spec is not None and spec.text_embedder.model is None
    return step_on("cpu") if packaged else model_step(base)


def step_on(device: str, devices: int = 1) -> dict[str, Any]:
    """Pool and GPU request of a step whose models run on a declared device.

    Args:
        device: auto, cpu, cuda or cuda:N.
        devices: Devices that share a model, >= 1.
    """
    asked = 0 if device == "cpu" else devices
    return {"pool": MODEL_POOL, "op_tags": model_op_tags(asked)}


def stage_step(
    spec: PrivateDatasetSpec, stage: Stage, engine: EngineSpec | None
) -> tuple[dict[str, Any], float]:
    """Pool and GPU request of a stage's step, and GPUs of each task that draws for it.

    Args:
        spec: The dataset.
        stage: Nothing is asked for one that runs no model.
        engine: What the stage writes through, if anything but the base's models.
    """
    if not stage.on_gpu:
        return {}, 0
    step = model_step(spec.public_data, engine)
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


def _declared(base: PublicDataSpec | str) -> PublicDataSpec | None:
    return declared_base(base) if isinstance(base, str) else base
