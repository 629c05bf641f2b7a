"""Public assets of conditional generation, made once for all datasets: topics and generator."""

import dagster as dg
import numpy as np
import polars as pl

from dpsynth_assets.datasets import PublicDataSpec
from dpsynth_assets.files.identity import version_of
from dpsynth_assets.files.tables import markdown_table
from dpsynth_assets.methods.models_run import TEXT_EMBEDDER
from dpsynth_assets.orchestration.assets.keys import public_key
from dpsynth_assets.orchestration.assets.model_steps import model_step
from dpsynth_assets.orchestration.assets.public import public_asset, shown_model
from dpsynth_assets.orchestration.metadata import code_references
from dpsynth_assets.orchestration.resources.models import Models
from dpsynth_assets.orchestration.resources.private_section import public_section
from dpsynth_assets.orchestration.resources.progress import Progress
from dpsynth_assets.public_base.making import fitted_topics, generator_manifest

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
        **model_step(spec, TEXT_EMBEDDER),
        code_version=version_of("topic model", spec.topic_model),
        description=(
            "Topics of the public corpus, each with ten keywords, and a bin for what belongs to "
            "none (Tan et al. 2025, Section 3.2)."
        ),
    )
    @public_section("Fitting the topic model")
    def topic_model(
        context: dg.AssetExecutionContext,
        public_corpus: pl.DataFrame,
        public_embeddings: np.ndarray,
        text_embedder: dict,
        models: Models,
        progress: Progress,
    ) -> dg.Output[dict]:
        report = progress.start(context, f"Topics of public base {spec.name}")
        folder = fitted_topics(
            spec, public_corpus, public_embeddings, models, text_embedder, report
        )
        topics = models.topic_model({"path": str(folder)})
        words = map(", ".join, topics.keywords[:SHOWN_TOPICS])
        shown = markdown_table(("topic", "keywords"), enumerate(words))
        return dg.Output(
            {"path": str(folder)},
            metadata={
                "topics": len(topics.keywords),
                "dpsynth/topics": dg.MetadataValue.md(shown),
                "dpsynth/path": dg.MetadataValue.path(str(folder)),
            },
        )

    return topic_model


def _conditional_generator(spec: PublicDataSpec) -> dg.AssetsDefinition:
    declared = spec.conditional_generator
    named = declared.kind == "pretrained"

    @dg.asset(
        **public_asset(spec, "conditional_generator"),
        metadata=code_references(
            "dpsynth_assets.models.conditional_generator.generator.load_conditional_generator"
        ),
        ins={}
        if named
        else {"public_language_model": dg.AssetIn(public_key(spec.name, "public_language_model"))},
        kinds={"pytorch", "huggingface"},
        code_version=version_of("conditional generator", declared),
        description=(
            "The model that writes a document after its aspects (keywords, type), named weights or "
            "the base's language model; fine-tuning starts here."
        ),
    )
    @public_section("Making the conditional generator")
    def conditional_generator(**language_model: dict) -> dg.Output[dict]:
        manifest = generator_manifest(spec, language_model.get("public_language_model"))
        return dg.Output(manifest, metadata=shown_model(manifest))

    return conditional_generator
