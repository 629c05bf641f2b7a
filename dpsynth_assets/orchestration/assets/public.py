"""Assets of one public base: corpus, embedder, embeddings, cluster centres, language model.

None of them touches private data. A base is shared by every dataset that names it.
"""

from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import polars as pl

from dpsynth_assets.datasets import PublicDataSpec
from dpsynth_assets.files.identity import version_of
from dpsynth_assets.files.tables import markdown_table
from dpsynth_assets.methods.models_run import LANGUAGE_MODEL, TEXT_EMBEDDER
from dpsynth_assets.orchestration.assets.groups import public_group
from dpsynth_assets.orchestration.assets.keys import public_key
from dpsynth_assets.orchestration.assets.model_steps import model_step
from dpsynth_assets.orchestration.metadata import code_references
from dpsynth_assets.orchestration.resources.models import Models
from dpsynth_assets.orchestration.resources.private_section import public_section
from dpsynth_assets.orchestration.resources.progress import Progress
from dpsynth_assets.public_base.documents import read_documents
from dpsynth_assets.public_base.invented import invented_documents
from dpsynth_assets.public_base.making import (
    embedded_documents,
    embedder_manifest,
    language_model_manifest,
    public_centers,
)
from dpsynth_assets.tags import PRIVACY, PUBLIC


def public_definitions(spec: PublicDataSpec) -> dg.Definitions:
    """All assets of one public base; without a source its language model writes the corpus."""
    return dg.Definitions(
        assets=[
            _invented_corpus(spec) if spec.invents_documents else _public_corpus(spec),
            _text_embedder(spec),
            _public_embeddings(spec),
            _public_clusters(spec),
            _language_model(spec),
        ]
    )


def public_asset(spec: PublicDataSpec, artifact: str) -> dict[str, Any]:
    """Key, group and tag that all assets of one public base have."""
    return {
        "key": public_key(spec.name, artifact),
        "group_name": public_group(spec.name),
        "tags": {PRIVACY: PUBLIC},
    }


def _public_corpus(spec: PublicDataSpec) -> dg.AssetsDefinition:
    @dg.asset(
        **public_asset(spec, "public_corpus"),
        metadata=code_references("dpsynth_assets.records.reading.read_public_records"),
        kinds={"polars", "parquet"},
        code_version=version_of("corpus", spec.source, spec.max_documents),
        description="Public documents (text, label) that clusters and topics are made of.",
    )
    @public_section(f"Reading public base {spec.name!r}")
    def public_corpus() -> dg.Output[pl.DataFrame]:
        return _shown_documents(read_documents(spec))

    return public_corpus


def _invented_corpus(spec: PublicDataSpec) -> dg.AssetsDefinition:
    @dg.asset(
        **public_asset(spec, "public_corpus"),
        metadata=code_references("dpsynth_assets.models.invented_text.invent_documents"),
        ins={
            "public_language_model": dg.AssetIn(public_key(spec.name, "public_language_model")),
        },
        kinds={"pytorch", "polars", "parquet"},
        **model_step(spec, LANGUAGE_MODEL),
        code_version=version_of("invented corpus", spec.domain, spec.invented, spec.max_documents),
        description=(
            "Public documents (text, label) that the language model wrote from the domain and the "
            "kinds of text the base declares, ε = 0: clusters, topics and first populations lie "
            "where such texts do."
        ),
    )
    @public_section(f"Inventing documents of public base {spec.name!r}")
    def public_corpus(
        context: dg.AssetExecutionContext,
        public_language_model: dict,
        models: Models,
        progress: Progress,
    ) -> dg.Output[pl.DataFrame]:
        report = progress.start(context, f"Inventing documents of public base {spec.name}")
        documents = invented_documents(spec, public_language_model, models, report)
        return _shown_documents(documents)

    return public_corpus


def _shown_documents(documents: pl.DataFrame) -> dg.Output[pl.DataFrame]:
    """The documents with their number and the first of them."""
    sample = documents.head(5).select("label", pl.col("text").str.slice(0, 160))
    preview = markdown_table(sample.columns, sample.iter_rows())
    return dg.Output(
        documents,
        metadata={
            "dagster/row_count": documents.height,
            "dpsynth/preview": dg.MetadataValue.md(preview),
        },
    )


def _text_embedder(spec: PublicDataSpec) -> dg.AssetsDefinition:
    @dg.asset(
        **public_asset(spec, "text_embedder"),
        metadata=code_references("dpsynth_assets.models.text_embedder.TextEmbedder"),
        kinds={"pytorch"},
        code_version=version_of("embedder", spec.text_embedder),
        description="The sentence embedder that every stage of this base shares.",
    )
    @public_section("Loading the text embedder")
    def text_embedder(models: Models) -> dg.Output[dict]:
        manifest = embedder_manifest(spec, models)
        return dg.Output(manifest, metadata={k: v for k, v in manifest.items() if v is not None})

    return text_embedder


def _public_embeddings(spec: PublicDataSpec) -> dg.AssetsDefinition:
    @dg.asset(
        **public_asset(spec, "public_embeddings"),
        metadata=code_references("dpsynth_assets.models.text_embedder.TextEmbedder"),
        ins={
            "public_corpus": dg.AssetIn(public_key(spec.name, "public_corpus")),
            "text_embedder": dg.AssetIn(public_key(spec.name, "text_embedder")),
        },
        kinds={"pytorch", "numpy"},
        **model_step(spec, TEXT_EMBEDDER),
        code_version=version_of("embeddings", spec.text_embedder),
        description="Embeddings of the public corpus, float32 (N, d), unit length.",
    )
    @public_section("Embedding public documents")
    def public_embeddings(
        context: dg.AssetExecutionContext,
        public_corpus: pl.DataFrame,
        text_embedder: dict,
        models: Models,
        progress: Progress,
    ) -> dg.Output[np.ndarray]:
        report = progress.start(context, f"Embedding public documents with {text_embedder['name']}")
        texts = public_corpus["text"].to_list()
        embeddings = embedded_documents(spec.name, text_embedder, texts, models, report)
        return dg.Output(
            embeddings,
            metadata={"rows": embeddings.shape[0], "dimension": embeddings.shape[1]},
        )

    return public_embeddings


def _public_clusters(spec: PublicDataSpec) -> dg.AssetsDefinition:
    @dg.asset(
        **public_asset(spec, "public_clusters"),
        metadata=code_references("dpsynth_assets.clustering.fit_centers"),
        ins={"public_embeddings": dg.AssetIn(public_key(spec.name, "public_embeddings"))},
        kinds={"faiss", "numpy"},
        code_version=version_of("clusters", spec.clusters),
        description=(
            "Centres of k-means over public embeddings, float32 (K, d), unit length "
            "(Amin et al. 2025, Section 4.1, public centers)."
        ),
    )
    @public_section("Clustering public documents")
    def public_clusters(public_embeddings: np.ndarray) -> dg.Output[np.ndarray]:
        from dpsynth_assets.clustering import nearest_center

        centers = public_centers(spec, public_embeddings)
        sizes = np.bincount(nearest_center(public_embeddings, centers), minlength=len(centers))
        return dg.Output(
            centers,
            metadata={
                "clusters": len(centers),
                "smallest_public_cluster": int(sizes.min()),
                "largest_public_cluster": int(sizes.max()),
            },
        )

    return public_clusters


def _language_model(spec: PublicDataSpec) -> dg.AssetsDefinition:
    @dg.asset(
        **public_asset(spec, "public_language_model"),
        metadata=code_references("dpsynth_assets.models.smollm2.write_smollm2"),
        kinds={"pytorch", "huggingface"},
        **model_step(spec),
        code_version=version_of("language model", spec.language_model),
        description=(
            "The generator behind private prediction: SmolLM2 from its Python package, or a model "
            "of the hub or a folder."
        ),
    )
    @public_section("Opening the public language model")
    def public_language_model() -> dg.Output[dict]:
        manifest = language_model_manifest(spec)
        return dg.Output(manifest, metadata=shown_model(manifest))

    return public_language_model


def shown_model(manifest: dict[str, Any]) -> dict[str, Any]:
    """Shows where a model lies."""
    path = str(manifest["path"])
    return {"model": dg.MetadataValue.path(path) if Path(path).is_absolute() else path}
