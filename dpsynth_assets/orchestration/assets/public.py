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
from dpsynth_assets.methods.work import LANGUAGE_MODEL, TEXT_EMBEDDER
from dpsynth_assets.orchestration.assets.keys import public_group, public_ins, public_key
from dpsynth_assets.orchestration.metadata import code_references
from dpsynth_assets.orchestration.resources.model_pool import model_step
from dpsynth_assets.orchestration.resources.private_section import public_section
from dpsynth_assets.public_base.invented import invented_documents
from dpsynth_assets.public_base.making import (
    embedded_documents,
    embedder_manifest,
    fitted_topics,
    generator_manifest,
    language_model_manifest,
    public_centers,
    read_documents,
)
from dpsynth_assets.report.pages import markdown_table
from dpsynth_assets.tags import PRIVACY, PUBLIC

SHOWN_TOPICS = 20

Make = Callable[[dg.AssetExecutionContext, Mapping[str, Any]], "dg.Output[Any]"]
"""Makes an artifact of what a step is given and of the artifacts that it reads, by name."""


def public_definitions(spec: PublicDataSpec) -> dg.Definitions:
    """What every method reads; without a source the base's language model writes its corpus."""
    return dg.Definitions(
        assets=[
            _invented_corpus(spec) if spec.invents_documents else _public_corpus(spec),
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
    make: Make,
    *,
    code: str,
    kinds: set[str],
    version: tuple[Any, ...],
    description: str,
    reads: tuple[str, ...] = (),
    resources: tuple[str, ...] = (),
    step: Mapping[str, Any] | None = None,
) -> dg.AssetsDefinition:
    """One artifact; `title` says in a failure what its step did."""

    @dg.asset(
        key=public_key(spec.name, artifact),
        group_name=public_group(spec.name),
        tags={PRIVACY: PUBLIC},
        metadata=code_references(code),
        ins=public_ins(spec.name, *reads),
        kinds=kinds,
        code_version=version_of(*version),
        description=description,
        required_resource_keys=set(resources),
        **(step or {}),
    )
    @public_section(title)
    def made(context: dg.AssetExecutionContext, **upstream: Any) -> dg.Output[Any]:
        return make(context, upstream)

    return made


def _public_corpus(spec: PublicDataSpec) -> dg.AssetsDefinition:
    return _asset(
        spec,
        "public_corpus",
        f"Reading public base {spec.name!r}",
        lambda _, __: _shown_documents(read_documents(spec)),
        code="dpsynth_assets.records.reading.read_public_records",
        kinds={"polars", "parquet"},
        version=("corpus", spec.source, spec.max_documents),
        description="Public documents (text, label) that clusters and topics are made of.",
    )


def _invented_corpus(spec: PublicDataSpec) -> dg.AssetsDefinition:
    def make(context: dg.AssetExecutionContext, read: Mapping[str, Any]) -> dg.Output[Any]:
        report = _progress(context, f"Inventing documents of public base {spec.name}")
        model, models = read["public_language_model"], context.resources.models
        return _shown_documents(invented_documents(spec, model, models, report))

    return _asset(
        spec,
        "public_corpus",
        f"Inventing documents of public base {spec.name!r}",
        make,
        code="dpsynth_assets.public_base.invented.invent_documents",
        kinds={"pytorch", "polars", "parquet"},
        version=("invented corpus", spec.domain, spec.invented, spec.max_documents),
        description=(
            "Public documents (text, label) that the language model wrote from the domain and "
            "the kinds of text the base declares, ε = 0. Clusters, topics and first populations "
            "then resemble such texts."
        ),
        reads=("public_language_model",),
        resources=("models", "progress"),
        step=model_step(spec, LANGUAGE_MODEL),
    )


def _progress(context: dg.AssetExecutionContext, title: str) -> Any:
    return context.resources.progress.start(context, title)


def _shown_documents(documents: pl.DataFrame) -> dg.Output[pl.DataFrame]:
    """The documents with their number and the first of them."""
    sample = documents.head(5).select("label", pl.col("text").str.slice(0, 160))
    preview = dg.MetadataValue.md(markdown_table(sample.columns, sample.iter_rows()))
    shown: dict[str, Any] = {"dagster/row_count": documents.height, "dpsynth/preview": preview}
    return dg.Output(documents, metadata=shown)


def _text_embedder(spec: PublicDataSpec) -> dg.AssetsDefinition:
    def make(context: dg.AssetExecutionContext, _: Mapping[str, Any]) -> dg.Output[Any]:
        manifest = embedder_manifest(spec, context.resources.models)
        return dg.Output(manifest, metadata={k: v for k, v in manifest.items() if v is not None})

    return _asset(
        spec,
        "text_embedder",
        "Loading the text embedder",
        make,
        code="dpsynth_assets.models.text_embedder.TextEmbedder",
        kinds={"pytorch"},
        version=("embedder", spec.text_embedder),
        description="The sentence embedder that every stage of this base shares.",
        resources=("models",),
    )


def _public_embeddings(spec: PublicDataSpec) -> dg.AssetsDefinition:
    def make(context: dg.AssetExecutionContext, read: Mapping[str, Any]) -> dg.Output[Any]:
        embedder, texts = read["text_embedder"], read["public_corpus"]["text"].to_list()
        report = _progress(context, f"Embedding public documents with {embedder['name']}")
        made = embedded_documents(spec.name, embedder, texts, context.resources.models, report)
        return dg.Output(made, metadata={"rows": made.shape[0], "dimension": made.shape[1]})

    return _asset(
        spec,
        "public_embeddings",
        "Embedding public documents",
        make,
        code="dpsynth_assets.models.text_embedder.TextEmbedder",
        kinds={"pytorch", "numpy"},
        version=("embeddings", spec.text_embedder),
        description="Embeddings of the public corpus, float32 (N, d), unit length.",
        reads=("public_corpus", "text_embedder"),
        resources=("models", "progress"),
        step=model_step(spec, TEXT_EMBEDDER),
    )


def _public_clusters(spec: PublicDataSpec) -> dg.AssetsDefinition:
    def make(_: dg.AssetExecutionContext, read: Mapping[str, Any]) -> dg.Output[Any]:
        from dpsynth_assets.clustering import nearest_center

        embeddings = read["public_embeddings"]
        centers = public_centers(spec, embeddings)
        sizes = np.bincount(nearest_center(embeddings, centers), minlength=len(centers))
        shown = {
            "clusters": len(centers),
            "smallest_public_cluster": int(sizes.min()),
            "largest_public_cluster": int(sizes.max()),
        }
        return dg.Output(centers, metadata=shown)

    return _asset(
        spec,
        "public_clusters",
        "Clustering public documents",
        make,
        code="dpsynth_assets.clustering.fit_centers",
        kinds={"faiss", "numpy"},
        version=("clusters", spec.clusters),
        description=(
            "Centres of k-means over public embeddings, float32 (K, d), unit length "
            "(Amin et al. 2025, Section 4.1, public centers)."
        ),
        reads=("public_embeddings",),
    )


def _language_model(spec: PublicDataSpec) -> dg.AssetsDefinition:
    return _asset(
        spec,
        "public_language_model",
        "Opening the public language model",
        lambda _, __: _shown_model(language_model_manifest(spec)),
        code="dpsynth_assets.models.smollm2.write_smollm2",
        kinds={"pytorch", "huggingface"},
        version=("language model", spec.language_model),
        description=(
            "The generator behind private prediction: SmolLM2 from its Python package, or a model "
            "of the hub or a folder."
        ),
        step=model_step(spec),
    )


def _shown_model(manifest: dict[str, Any]) -> dg.Output[dict[str, Any]]:
    """The manifest, and where the model lies."""
    path = str(manifest["path"])
    shown = dg.MetadataValue.path(path) if Path(path).is_absolute() else path
    return dg.Output(manifest, metadata={"model": shown})


def _topic_model(spec: PublicDataSpec) -> dg.AssetsDefinition:
    def make(context: dg.AssetExecutionContext, read: Mapping[str, Any]) -> dg.Output[Any]:
        report = _progress(context, f"Topics of public base {spec.name}")
        corpus, embeddings = read["public_corpus"], read["public_embeddings"]
        models, embedder = context.resources.models, read["text_embedder"]
        folder = fitted_topics(spec, corpus, embeddings, models, embedder, report)
        topics = models.topic_model({"path": str(folder)})
        words = map(", ".join, topics.keywords[:SHOWN_TOPICS])
        shown: dict[str, Any] = {
            "topics": len(topics.keywords),
            "dpsynth/topics": dg.MetadataValue.md(
                markdown_table(("topic", "keywords"), enumerate(words))
            ),
            "dpsynth/path": dg.MetadataValue.path(str(folder)),
        }
        return dg.Output({"path": str(folder)}, metadata=shown)

    return _asset(
        spec,
        "topic_model",
        "Fitting the topic model",
        make,
        code="dpsynth_assets.models.topic_model.fitting.fit_topic_model",
        kinds={"hdbscan", "numpy"},
        version=("topic model", spec.topic_model),
        description=(
            "Topics of the public corpus, each with ten keywords, and a bin for documents of no "
            "topic (Tan et al. 2025, Section 3.2)."
        ),
        reads=("public_corpus", "public_embeddings", "text_embedder"),
        resources=("models", "progress"),
        step=model_step(spec, TEXT_EMBEDDER),
    )


def _conditional_generator(spec: PublicDataSpec) -> dg.AssetsDefinition:
    declared = spec.conditional_generator
    return _asset(
        spec,
        "conditional_generator",
        "Making the conditional generator",
        lambda _, read: _shown_model(generator_manifest(spec, read.get("public_language_model"))),
        code="dpsynth_assets.models.conditional_generator.generator.load_conditional_generator",
        kinds={"pytorch", "huggingface"},
        version=("conditional generator", declared),
        description=(
            "The model that writes a document from its aspects (keywords, type): weights that "
            "the base names, or its language model. Fine-tuning starts from it."
        ),
        reads=() if declared.kind == "pretrained" else ("public_language_model",),
    )
