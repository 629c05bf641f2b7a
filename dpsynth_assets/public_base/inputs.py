"""Public artifacts as stages read them: opened by name, each with an identity."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from dpsynth_assets.datasets.engine import EngineSpec
from dpsynth_assets.files.identity import (
    array_version,
    folder_version,
    version_of,
    version_of_texts,
)
from dpsynth_assets.files.shared_models import local_copy
from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.inputs import PublicInputs
from dpsynth_assets.models.prompt_templates import prompted
from dpsynth_assets.public_base.opening import OpenedModels, opened_engine


def load_public_inputs(
    values: Mapping[str, Any],
    models: OpenedModels,
    terms: CohortTerms,
    engine: EngineSpec | None,
    *,
    salt: str,
    seed: int,
) -> PublicInputs:
    """Opens artifacts by name; what is not there stays None.

    They can be opened again in another process (`reopened`), which finds them open from then on.

    Args:
        values: Artifacts: documents, centres, or what describes a model.
        models: Opens models.
        terms: Prompt templates of the cohort.
        engine: What a method writes through; None for a method that writes through none.
        salt: Public key of the hash that assigns records to batches.
        seed: Seed of public randomness.
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
        opens_engine=None if engine is None else partial(opened_engine, engine, manifest),
        language_model=None if language_model is None else prompted(language_model, terms.prompts),
        cluster_centers=values.get("public_clusters"),
        public_records=values.get("public_corpus"),
        salt=salt,
        seed=seed,
        reopened=partial(
            load_public_inputs,
            _manifests(values),
            OpenedModels(),
            terms,
            engine,
            salt=salt,
            seed=seed,
        ),
        **opened,
    )


def _manifests(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: dict(value) for name, value in values.items() if isinstance(value, Mapping)}


def public_versions(values: Mapping[str, Any]) -> dict[str, str]:
    """Identity of each public artifact: another one makes another release."""
    return {name: _version(name, value) for name, value in sorted(values.items())}


def model_files(values: Mapping[str, Any], engine: EngineSpec | None) -> dict[str, str]:
    """Digest of the files of each public model that lies in a folder, tokenizer included.

    Args:
        values: Artifacts; those that describe a model name its folder, or a model of the hub.
        engine: What a method writes through, if anything.
    """
    named = {name: it.get("path") or it.get("model") for name, it in _manifests(values).items()}
    if engine is not None:
        named["engine"] = engine.model
    folders = {name: Path(local_copy(str(path))) for name, path in named.items() if path}
    return {name: folder_version(path) for name, path in folders.items() if path.is_dir()}


def _version(name: str, value: Any) -> str:
    if name == "public_clusters":
        return array_version(value)
    if name == "public_corpus":
        return version_of_texts(value["text"].to_list())[:16]
    if name == "text_embedder":
        return version_of(value)
    return str(value["path"]).rstrip("/").rsplit("/", maxsplit=1)[-1]
