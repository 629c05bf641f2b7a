"""Assets of one public base: corpus, embedder, embeddings, centres, models, topics.

None of them touches private data. A base is shared by every dataset that names it.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import dagster as dg
import polars as pl

from dpsynth_assets.datasets import PublicDataSpec
from dpsynth_assets.files.kept import version_of
from dpsynth_assets.methods.inputs import silent
from dpsynth_assets.methods.work import (
    CONDITIONAL_GENERATOR,
    LANGUAGE_MODEL,
    TEXT_EMBEDDER,
    RunModel,
)
from dpsynth_assets.orchestration.assets.keys import public_group, public_ins, public_key
from dpsynth_assets.orchestration.metadata import code_references
from dpsynth_assets.orchestration.resources.model_pool import model_step
from dpsynth_assets.orchestration.resources.private_section import public_section
from dpsynth_assets.public_base import artifacts_read, made_artifact
from dpsynth_assets.public_base.making import OpenedModels, tuning_of
from dpsynth_assets.report.pages import markdown_table
from dpsynth_assets.tags import PRIVACY, PUBLIC

SHOWN_TOPICS = 20


class _Artifact(NamedTuple):
    """What an artifact of a base is, and how it is shown.

    Attributes:
        doing: What its step does, for progress and for a failure.
        code: Dotted name of the function or class that makes it.
        kinds: Kinds that the web UI shows.
        declared: Fields of the base that it is a function of.
        description: What it is.
        shown: Metadata, from itself and, by name, `spec` and what it was made from.
        models: Models that its step computes with; None: the step waits for no pool.
    """

    doing: str
    code: str
    kinds: set[str]
    declared: tuple[str, ...]
    description: str
    shown: Callable[..., Mapping[str, Any]]
    models: tuple[RunModel, ...] | None = None


def public_definitions(spec: PublicDataSpec) -> dg.Definitions:
    """What every method reads; without a source the base's language model writes its corpus."""
    corpus = _INVENTED if spec.invents_documents else _READ
    found = {"public_corpus": corpus, **_FOR_ALL}
    return dg.Definitions(assets=[_asset(spec, *each) for each in found.items()])


def generation_definitions(spec: PublicDataSpec) -> dg.Definitions:
    """What conditional generation reads: topic model and generator."""
    trains = spec.conditional_generator.pairs is not None
    generator = _GENERATOR._replace(models=(CONDITIONAL_GENERATOR,) if trains else None)
    found = {"topic_model": _TOPICS, "conditional_generator": generator}
    return dg.Definitions(assets=[_asset(spec, *each) for each in found.items()])


def _asset(spec: PublicDataSpec, name: str, artifact: _Artifact) -> dg.AssetsDefinition:
    title = f"{artifact.doing} of public base {spec.name!r}"

    @dg.asset(
        key=public_key(spec.name, name),
        group_name=public_group(spec.name),
        tags={PRIVACY: PUBLIC},
        metadata=code_references(artifact.code),
        ins=public_ins(spec.name, *artifacts_read(spec, name)),
        kinds=artifact.kinds,
        code_version=version_of(name, *(getattr(spec, field) for field in artifact.declared)),
        description=artifact.description,
        required_resource_keys={"models", "progress"},
        **({} if artifact.models is None else model_step(spec, *artifact.models)),
    )
    @public_section(title)
    def made(context: dg.AssetExecutionContext, **read: Any) -> dg.Output[Any]:
        given = context.resources
        report = given.progress.start(context, title) if artifact.models else silent
        value = made_artifact(spec, name, read, given.models, report)
        return dg.Output(value, metadata=artifact.shown(value, spec=spec, **read))

    return made


def _shown_documents(documents: pl.DataFrame, **_: Any) -> dict[str, Any]:
    """The number of documents and the first of them."""
    sample = documents.head(5).select("label", pl.col("text").str.slice(0, 160))
    preview = dg.MetadataValue.md(markdown_table(sample.columns, sample.iter_rows()))
    return {"dagster/row_count": documents.height, "dpsynth/preview": preview}


def _shown_model(manifest: Mapping[str, Any], **_: Any) -> dict[str, Any]:
    """Where the model lies."""
    path = str(manifest["path"])
    return {"model": dg.MetadataValue.path(path) if Path(path).is_absolute() else path}


def _shown_topics(manifest: Mapping[str, Any], **_: Any) -> dict[str, Any]:
    topics = OpenedModels().topic_model(manifest)
    table = markdown_table(
        ("topic", "keywords"), enumerate(map(", ".join, topics.keywords[:SHOWN_TOPICS]))
    )
    return {
        "topics": len(topics.keywords),
        "dpsynth/topics": dg.MetadataValue.md(table),
        "dpsynth/path": dg.MetadataValue.path(manifest["path"]),
    }


_INVENTED = _Artifact(
    "Inventing documents",
    "dpsynth_assets.public_base.invented.invent_documents",
    {"pytorch", "polars", "parquet"},
    ("domain", "invented", "max_documents"),
    "Public documents (text, label) that the language model wrote from the domain and the kinds of "
    "text the base declares, ε = 0. Clusters, topics and first populations then resemble such "
    "texts.",
    _shown_documents,
    (LANGUAGE_MODEL,),
)
_READ = _Artifact(
    "Reading documents",
    "dpsynth_assets.records.reading.read_public_records",
    {"polars", "parquet"},
    ("source", "max_documents"),
    "Public documents (text, label) that clusters and topics are made of.",
    _shown_documents,
)
_FOR_ALL = {
    "text_embedder": _Artifact(
        "Loading the text embedder",
        "dpsynth_assets.models.text_embedder.TextEmbedder",
        {"pytorch"},
        ("text_embedder",),
        "The sentence embedder that every stage of this base shares.",
        lambda manifest, **_: {k: v for k, v in manifest.items() if v is not None},
    ),
    "public_embeddings": _Artifact(
        "Embedding the documents",
        "dpsynth_assets.models.text_embedder.TextEmbedder",
        {"pytorch", "numpy"},
        ("text_embedder",),
        "Embeddings of the public corpus, float32 (N, d), unit length.",
        lambda made, **_: {"rows": made.shape[0], "dimension": made.shape[1]},
        (TEXT_EMBEDDER,),
    ),
    "public_clusters": _Artifact(
        "Clustering the documents",
        "dpsynth_assets.clustering.fit_centers",
        {"faiss", "numpy"},
        ("clusters",),
        "Centres of k-means over public embeddings, float32 (K, d), unit length (Amin et al. 2025, "
        "Section 4.1, public centers).",
        lambda centers, **_: {"clusters": len(centers)},
    ),
    "public_language_model": _Artifact(
        "Opening the language model",
        "dpsynth_assets.models.smollm2.write_smollm2",
        {"pytorch", "huggingface"},
        ("language_model",),
        "The generator behind private prediction: SmolLM2 from its Python package, or a model of "
        "the hub or a folder.",
        lambda made, *, spec, **_: {**_shown_model(made), "tuning": tuning_of(spec, made)},
        (),
    ),
}
_TOPICS = _Artifact(
    "Fitting the topic model",
    "dpsynth_assets.models.topic_model.fitting.fit_topic_model",
    {"hdbscan", "numpy"},
    ("topic_model",),
    "Topics of the public corpus, each with ten keywords, and a bin for documents of no topic (Tan "
    "et al. 2025, Section 3.2).",
    _shown_topics,
    (TEXT_EMBEDDER,),
)
_GENERATOR = _Artifact(
    "Making the conditional generator",
    "dpsynth_assets.models.conditional_generator.generator.load_conditional_generator",
    {"pytorch", "huggingface"},
    ("conditional_generator",),
    "The model that writes a document from its aspects (keywords, type): weights that the base "
    "names, trained further on pairs where it names some, or its language model. Fine-tuning "
    "starts from it.",
    _shown_model,
)
