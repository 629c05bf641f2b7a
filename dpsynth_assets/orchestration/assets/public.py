"""Assets of one public base: corpus, embedder, embeddings, centres, models, topics.

None of them touches private data. A base is shared by every dataset that names it.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import polars as pl

from dpsynth_assets.datasets import PublicDataSpec
from dpsynth_assets.files.kept import version_of
from dpsynth_assets.methods.inputs import silent
from dpsynth_assets.methods.work import CONDITIONAL_GENERATOR, LANGUAGE_MODEL, TEXT_EMBEDDER
from dpsynth_assets.orchestration.assets.keys import public_group, public_ins, public_key
from dpsynth_assets.orchestration.metadata import code_references
from dpsynth_assets.orchestration.resources.model_pool import model_step
from dpsynth_assets.orchestration.resources.private_section import public_section
from dpsynth_assets.public_base import artifacts_read, made_artifact
from dpsynth_assets.public_base.making import OpenedModels, tuning_of
from dpsynth_assets.report.pages import markdown_table
from dpsynth_assets.tags import PRIVACY, PUBLIC

SHOWN_TOPICS = 20

Shown = Callable[[Any, Mapping[str, Any]], Mapping[str, Any]]
"""Metadata of an artifact and of those that it was made from, by name."""


def public_definitions(spec: PublicDataSpec) -> dg.Definitions:
    """What every method reads; without a source the base's language model writes its corpus."""
    return dg.Definitions(
        assets=[
            _public_corpus(spec),
            _text_embedder(spec),
            _public_embeddings(spec),
            _public_clusters(spec),
            _language_model(spec),
        ]
    )


def generation_definitions(spec: PublicDataSpec) -> dg.Definitions:
    """What conditional generation reads: topic model and generator."""
    return dg.Definitions(assets=[_topic_model(spec), _conditional_generator(spec)])


def _asset(
    spec: PublicDataSpec,
    artifact: str,
    title: str,
    shown: Shown,
    *,
    code: str,
    kinds: set[str],
    version: tuple[Any, ...],
    description: str,
    progress: str | None = None,
    step: Mapping[str, Any] | None = None,
) -> dg.AssetsDefinition:
    """One artifact; `title` says in a failure what its step did, `progress` while it does it."""

    @dg.asset(
        key=public_key(spec.name, artifact),
        group_name=public_group(spec.name),
        tags={PRIVACY: PUBLIC},
        metadata=code_references(code),
        ins=public_ins(spec.name, *artifacts_read(spec, artifact)),
        kinds=kinds,
        code_version=version_of(*version),
        description=description,
        required_resource_keys={"models", "progress"},
        **(step or {}),
    )
    @public_section(title)
    def made(context: dg.AssetExecutionContext, **read: Any) -> dg.Output[Any]:
        given = context.resources
        report = given.progress.start(context, progress) if progress else silent
        value = made_artifact(spec, artifact, read, given.models, report)
        return dg.Output(value, metadata=shown(value, read))

    return made


def _public_corpus(spec: PublicDataSpec) -> dg.AssetsDefinition:
    if spec.invents_documents:
        return _asset(
            spec,
            "public_corpus",
            f"Inventing documents of public base {spec.name!r}",
            _shown_documents,
            code="dpsynth_assets.public_base.invented.invent_documents",
            kinds={"pytorch", "polars", "parquet"},
            version=("invented corpus", spec.domain, spec.invented, spec.max_documents),
            description=(
                "Public documents (text, label) that the language model wrote from the domain and "
                "the kinds of text the base declares, ε = 0. Clusters, topics and first "
                "populations then resemble such texts."
            ),
            progress=f"Inventing documents of public base {spec.name}",
            step=model_step(spec, LANGUAGE_MODEL),
        )
    return _asset(
        spec,
        "public_corpus",
        f"Reading public base {spec.name!r}",
        _shown_documents,
        code="dpsynth_assets.records.reading.read_public_records",
        kinds={"polars", "parquet"},
        version=("corpus", spec.source, spec.max_documents),
        description="Public documents (text, label) that clusters and topics are made of.",
    )


def _shown_documents(documents: pl.DataFrame, _: Mapping[str, Any]) -> dict[str, Any]:
    """The number of documents and the first of them."""
    sample = documents.head(5).select("label", pl.col("text").str.slice(0, 160))
    preview = dg.MetadataValue.md(markdown_table(sample.columns, sample.iter_rows()))
    return {"dagster/row_count": documents.height, "dpsynth/preview": preview}


def _text_embedder(spec: PublicDataSpec) -> dg.AssetsDefinition:
    return _asset(
        spec,
        "text_embedder",
        "Loading the text embedder",
        lambda manifest, _: {k: v for k, v in manifest.items() if v is not None},
        code="dpsynth_assets.models.text_embedder.TextEmbedder",
        kinds={"pytorch"},
        version=("embedder", spec.text_embedder),
        description="The sentence embedder that every stage of this base shares.",
    )


def _public_embeddings(spec: PublicDataSpec) -> dg.AssetsDefinition:
    return _asset(
        spec,
        "public_embeddings",
        "Embedding public documents",
        lambda made, _: {"rows": made.shape[0], "dimension": made.shape[1]},
        code="dpsynth_assets.models.text_embedder.TextEmbedder",
        kinds={"pytorch", "numpy"},
        version=("embeddings", spec.text_embedder),
        description="Embeddings of the public corpus, float32 (N, d), unit length.",
        progress="Embedding public documents",
        step=model_step(spec, TEXT_EMBEDDER),
    )


def _public_clusters(spec: PublicDataSpec) -> dg.AssetsDefinition:
    return _asset(
        spec,
        "public_clusters",
        "Clustering public documents",
        _shown_clusters,
        code="dpsynth_assets.clustering.fit_centers",
        kinds={"faiss", "numpy"},
        version=("clusters", spec.clusters),
        description=(
            "Centres of k-means over public embeddings, float32 (K, d), unit length "
            "(Amin et al. 2025, Section 4.1, public centers)."
        ),
    )


def _shown_clusters(centers: np.ndarray, read: Mapping[str, Any]) -> dict[str, Any]:
    from dpsynth_assets.clustering import nearest_center

    sizes = np.bincount(nearest_center(read["public_embeddings"], centers), minlength=len(centers))
    return {
        "clusters": len(centers),
        "smallest_public_cluster": int(sizes.min()),
        "largest_public_cluster": int(sizes.max()),
    }


def _language_model(spec: PublicDataSpec) -> dg.AssetsDefinition:
    return _asset(
        spec,
        "public_language_model",
        "Opening the public language model",
        lambda made, read: {**_shown_model(made, read), "tuning": tuning_of(spec, made)},
        code="dpsynth_assets.models.smollm2.write_smollm2",
        kinds={"pytorch", "huggingface"},
        version=("language model", spec.language_model),
        description=(
            "The generator behind private prediction: SmolLM2 from its Python package, or a model "
            "of the hub or a folder."
        ),
        step=model_step(spec),
    )


def _shown_model(manifest: Mapping[str, Any], _: Mapping[str, Any]) -> dict[str, Any]:
    """Where the model lies."""
    path = str(manifest["path"])
    return {"model": dg.MetadataValue.path(path) if Path(path).is_absolute() else path}


def _topic_model(spec: PublicDataSpec) -> dg.AssetsDefinition:
    return _asset(
        spec,
        "topic_model",
        "Fitting the topic model",
        _shown_topics,
        code="dpsynth_assets.models.topic_model.fitting.fit_topic_model",
        kinds={"hdbscan", "numpy"},
        version=("topic model", spec.topic_model),
        description=(
            "Topics of the public corpus, each with ten keywords, and a bin for documents of no "
            "topic (Tan et al. 2025, Section 3.2)."
        ),
        progress=f"Topics of public base {spec.name}",
        step=model_step(spec, TEXT_EMBEDDER),
    )


def _shown_topics(manifest: Mapping[str, Any], _: Mapping[str, Any]) -> dict[str, Any]:
    topics = OpenedModels().topic_model(manifest)
    table = markdown_table(
        ("topic", "keywords"), enumerate(map(", ".join, topics.keywords[:SHOWN_TOPICS]))
    )
    return {
        "topics": len(topics.keywords),
        "dpsynth/topics": dg.MetadataValue.md(table),
        "dpsynth/path": dg.MetadataValue.path(manifest["path"]),
    }


def _conditional_generator(spec: PublicDataSpec) -> dg.AssetsDefinition:
    trains = spec.conditional_generator.pairs is not None
    return _asset(
        spec,
        "conditional_generator",
        "Making the conditional generator",
        _shown_model,
        code="dpsynth_assets.models.conditional_generator.generator.load_conditional_generator",
        kinds={"pytorch", "huggingface"},
        version=("conditional generator", spec.conditional_generator),
        description=(
            "The model that writes a document from its aspects (keywords, type): weights that "
            "the base names, trained further on pairs where it names some, or its language model. "
            "Fine-tuning starts from it."
        ),
        progress=f"Training the generator of public base {spec.name}" if trains else None,
        step=model_step(spec, CONDITIONAL_GENERATOR) if trains else None,
    )
