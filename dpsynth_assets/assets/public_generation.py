"""Public assets of conditional generation, made once for all datasets: topics and generator."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import polars as pl

from dpsynth_assets.assets.identity import version_of, version_of_texts
from dpsynth_assets.assets.keys import public_key
from dpsynth_assets.assets.public import public_asset
from dpsynth_assets.datasets import PublicDataSpec
from dpsynth_assets.metadata import code_references
from dpsynth_assets.methods.inputs import ProgressCallback
from dpsynth_assets.resources.models import Models
from dpsynth_assets.resources.private_section import public_section
from dpsynth_assets.resources.progress import Progress
from dpsynth_assets.storage.shared_models import model_folder, share
from dpsynth_assets.tags import GPU_OP_TAGS, GPU_POOL

FACTS = "facts.json"
SHOWN_TOPICS = 20


def generation_definitions(spec: PublicDataSpec) -> dg.Definitions:
    """Topic model and conditional generator of one public base."""
    return dg.Definitions(assets=[_topic_model(spec), _conditional_generator(spec)])


def _topic_model(spec: PublicDataSpec) -> dg.AssetsDefinition:
    @dg.asset(
        **public_asset(spec, "topic_model"),
        metadata=code_references("dpsynth_assets.models.topic_model.fitting.fit_topic_model"),
        ins={
            name: dg.AssetIn(public_key(spec.name, name))
            for name in ("public_corpus", "public_embeddings", "text_embedder")
        },
        kinds={"hdbscan", "numpy"},
        pool=GPU_POOL,
        op_tags=GPU_OP_TAGS,
        code_version=version_of("topic model", spec.topic_model),
        description=(
            "Topics of the public corpus, each with ten keywords, and a bin for what belongs to "
            "none (Tan et al. 2025, Section 3.2)."
        ),
    )
    def topic_model(
        context: dg.AssetExecutionContext,
        public_corpus: pl.DataFrame,
        public_embeddings: np.ndarray,
        text_embedder: dict,
        models: Models,
        progress: Progress,
    ) -> dg.Output[dict]:
        report = progress.start(context, f"Topics of public base {spec.name}")
        with public_section("Fitting the topic model"):
            folder = _fitted_topics(
                spec, public_corpus, public_embeddings, models, text_embedder, report
            )
            topics = models.topic_model({"path": str(folder)})
        lines = [f"| {index} | {', '.join(words)} |" for index, words in enumerate(topics.keywords)]
        shown = "\n".join(["| topic | keywords |", "|---|---|", *lines[:SHOWN_TOPICS]])
        return dg.Output(
            {"path": str(folder)},
            metadata={
                "topics": len(topics.keywords),
                "dpsynth/topics": dg.MetadataValue.md(shown),
                "dpsynth/path": dg.MetadataValue.path(str(folder)),
            },
        )

    return topic_model


def _fitted_topics(
    spec: PublicDataSpec,
    documents: pl.DataFrame,
    embeddings: np.ndarray,
    models: Models,
    embedder: dict[str, Any],
    report: ProgressCallback,
) -> Path:
    """Fits once per (settings, corpus, embedder), or names the folder the declaration gives."""
    from dpsynth_assets.models.topic_model import TopicModelSettings, fit_topic_model

    if spec.topic_model.folder is not None:
        return Path(spec.topic_model.folder)
    settings = TopicModelSettings.model_validate(spec.topic_model.settings)
    texts = documents["text"].to_list()
    version = version_of("topics", settings, embedder, version_of_texts(texts))
    folder = model_folder(spec.name, "topic_models", version)
    if folder.exists():
        report(1.0, "already fitted on this corpus with these settings")
        share(folder)
        return folder
    fitted = fit_topic_model(
        texts,
        embeddings,
        settings,
        partial(models.text_embedder(embedder).embed, public=True),
        report,
        embedder=embedder["name"],
    )
    temporary = _fresh(folder)
    fitted.save(temporary)
    temporary.replace(folder)
    share(folder)
    return folder


def _fresh(folder: Path) -> Path:
    """An empty folder beside `folder`, to be renamed into its place."""
    temporary = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    return temporary


def _conditional_generator(spec: PublicDataSpec) -> dg.AssetsDefinition:
    declared = spec.conditional_generator

    @dg.asset(
        **public_asset(spec, "conditional_generator"),
        metadata=code_references(
            "dpsynth_assets.models.conditional_generator.training.train_conditional_generator"
        ),
        ins={
            name: dg.AssetIn(public_key(spec.name, name))
            for name in ("public_corpus", "public_embeddings", "topic_model")
        },
        kinds={"pytorch", "huggingface"},
        pool=GPU_POOL,
        op_tags=GPU_OP_TAGS,
        code_version=version_of("conditional generator", declared),
        description=(
            "An encoder-decoder that writes a document from its aspects (keywords, type), "
            "pretrained on public pairs (Tan et al. 2025, Section 3.1); fine-tuning starts here."
        ),
    )
    def conditional_generator(
        context: dg.AssetExecutionContext,
        public_corpus: pl.DataFrame,
        public_embeddings: np.ndarray,
        topic_model: dict,
        models: Models,
        progress: Progress,
    ) -> dg.Output[dict]:
        manifest: dict[str, Any] = {"dtype": declared.dtype, "device": declared.device}
        if declared.kind == "pretrained":
            manifest["path"] = declared.model
            return dg.Output(manifest, metadata={"model": str(declared.model)})
        report = progress.start(context, "Training the conditional generator")
        with public_section("Training the conditional generator"):
            topics = models.topic_model(topic_model)
            keywords = _keywords(topics, public_embeddings)
            folder, facts = _trained(
                spec, public_corpus, keywords, topic_model["path"], models, report
            )
        manifest |= {"path": str(folder), "facts": facts}
        shown = {name: value for name, value in facts.items() if isinstance(value, int | float)}
        return dg.Output(manifest, metadata={"model": dg.MetadataValue.path(str(folder)), **shown})

    return conditional_generator


def _keywords(topics: Any, embeddings: np.ndarray) -> list[tuple[str, ...]]:
    """Keywords of each public document's topic."""
    return [topics.condition_keywords(int(topic)) for topic in topics.assign(embeddings)]


def _trained(
    spec: PublicDataSpec,
    documents: pl.DataFrame,
    keywords: list[tuple[str, ...]],
    topics_path: str,
    models: Models,
    report: ProgressCallback,
) -> tuple[Path, dict[str, Any]]:
    """Trains once per (settings, corpus, topics, describing model): training is deterministic."""
    from dpsynth_assets.models.conditional_generator.engine_aspects import aspects_by_engine
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
