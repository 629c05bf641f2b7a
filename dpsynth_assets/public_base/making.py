"""Reads documents of a public base and makes its artifacts: equal declarations give equal files.

None of them reads private data.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from dpsynth_assets.datasets import PublicDataSpec
from dpsynth_assets.files.identity import version_of, version_of_texts
from dpsynth_assets.files.kept import ARRAY, kept_file
from dpsynth_assets.files.shared_models import made_folder
from dpsynth_assets.paths import home, project_root
from dpsynth_assets.public_base.opening import OpenedModels

Report = Callable[[float, str], None]
"""Called with the share done in [0, 1] and a short message."""


def embedder_manifest(spec: PublicDataSpec, models: OpenedModels) -> dict[str, Any]:
    """Describes the sentence embedder that every stage of a base shares."""
    manifest: dict[str, Any] = spec.text_embedder.model_dump(mode="json")
    embedder = models.text_embedder(manifest)
    return manifest | {"name": embedder.name, "dimension": int(embedder.dimension)}


def language_model_manifest(spec: PublicDataSpec) -> dict[str, Any]:
    """Describes the language model of a base."""
    settings = spec.language_model
    packaged = settings.kind == "smollm2"
    path = str(packaged_model()) if packaged else settings.model
    return {"dtype": settings.dtype, "device": settings.device, "path": path}


def generator_manifest(
    spec: PublicDataSpec, language_model: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Describes the generator that fine-tuning starts from: named weights, or the base's model.

    Args:
        spec: The base.
        language_model: The artifact `public_language_model`; read where no weights are named.
    """
    declared = spec.conditional_generator
    path = declared.model if language_model is None else language_model["path"]
    return {"dtype": declared.dtype, "device": declared.device, "path": path}


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


def read_documents(spec: PublicDataSpec) -> pl.DataFrame:
    """Reads the documents of a base that does not invent them.

    Returns:
        String columns `text` and `label`.

    Raises:
        SourceError: A source is missing, broken, or lacks a declared column.
        FileNotFoundError: The base names no source, and the demo's corpus is not there.
    """
    from dpsynth_assets.records import read_public_records

    if spec.source is not None:
        return read_public_records(spec)
    documents = _demo_documents()
    return documents.head(spec.max_documents or documents.height)


def documents_here(spec: PublicDataSpec) -> pl.DataFrame | None:
    """The documents of a base whose sources are files of this machine; None for another one."""
    places = [Path(each.source.path) for each in spec.sources]
    if spec.invents_documents or not all(place.is_file() for place in places):
        return None
    return read_documents(spec)


def _demo_documents() -> pl.DataFrame:
    """The public documents that lie in the repository: text, label, group."""
    path = project_root() / "data" / "demo" / "public.parquet"
    if not path.exists():
        raise FileNotFoundError(
            f"Expected the demo's public corpus at {path}, got no file. Copy data/demo from the "
            "repository, or name a `source` of the public base."
        )
    return pl.read_parquet(path)
