"""Public artifacts that a stage reads: asset inputs by name, loaded once a process."""

from collections.abc import Iterable, Mapping
from typing import Any

import dagster as dg

from dpsynth_assets.assets.identity import array_version, version_of, version_of_texts
from dpsynth_assets.assets.keys import public_key
from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.datasets.engine import EngineSpec
from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.inputs import PublicInputs
from dpsynth_assets.methods.planned import PlannedMethod, PlannedShared
from dpsynth_assets.models.prompt_templates import prompted
from dpsynth_assets.resources.models import Models


def public_ins(spec: PrivateDatasetSpec, names: Iterable[str]) -> dict[str, dg.AssetIn]:
    """Asset inputs for artifacts of the dataset's public base."""
    return {name: dg.AssetIn(public_key(spec.public_data, name)) for name in sorted(names)}


def load_public_inputs(
    values: Mapping[str, Any],
    models: Models,
    terms: CohortTerms,
    engine: EngineSpec | None,
    *,
    salt: str,
    seed: int,
) -> PublicInputs:
    """Opens the artifacts among `values`, by asset name; what is not there stays None.

    `engine` is None for a method that writes through none.
    """
    manifest = values.get("public_language_model")
    loaders = {
        "text_embedder": models.text_embedder,
        "topic_model": models.topic_model,
        "conditional_generator": models.conditional_generator,
    }
    opened: dict[str, Any] = {
        name: load(values[name]) for name, load in loaders.items() if name in values
    }
    language_model = None if manifest is None else models.language_model(manifest)
    return PublicInputs(
        engine=None if engine is None else models.engine(engine, language_model),
        language_model=None if language_model is None else prompted(language_model, terms.prompts),
        cluster_centers=values.get("public_clusters"),
        public_records=values.get("public_corpus"),
        salt=salt,
        seed=seed,
        **opened,
    )


def stage_devices(spec: PrivateDatasetSpec, planned: PlannedMethod | PlannedShared) -> int:
    """GPUs a stage asks for: as many as share the dataset's model, where it runs one."""
    return spec.engine.tensor_parallel_size if planned.method.uses_engine else 1


def public_versions(values: Mapping[str, Any]) -> dict[str, str]:
    """Identity of each public artifact: another one makes another release."""
    return {name: _version(name, value) for name, value in sorted(values.items())}


def _version(name: str, value: Any) -> str:
    if name == "public_clusters":
        return array_version(value)
    if name == "public_corpus":
        return version_of_texts(value["text"].to_list())[:16]
    if name == "text_embedder":
        return version_of(value)
    return str(value["path"]).rstrip("/").rsplit("/", maxsplit=1)[-1]
