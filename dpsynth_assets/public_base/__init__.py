"""Public bases, without Dagster: documents, models made from them, and how stages read them.

Here: a base whose documents and models are each made when first asked for.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl

from dpsynth_assets.datasets import PublicDataSpec
from dpsynth_assets.paths import home
from dpsynth_assets.public_base import making
from dpsynth_assets.public_base.invented import invented_documents
from dpsynth_assets.public_base.making import OpenedModels


def artifacts_read(spec: PublicDataSpec, name: str) -> tuple[str, ...]:
    """Artifacts of a base that another one of it is made from."""
    model, named = ("public_language_model",), spec.conditional_generator.kind == "pretrained"
    return {
        "public_corpus": model if spec.invents_documents else (),
        "public_embeddings": ("public_corpus", "text_embedder"),
        "public_clusters": ("public_embeddings",),
        "topic_model": ("public_corpus", "public_embeddings", "text_embedder"),
        "conditional_generator": () if named else model,
    }.get(name, ())


def made_artifact(
    spec: PublicDataSpec,
    name: str,
    read: Mapping[str, Any],
    models: OpenedModels,
    report: making.Report,
) -> Any:
    """Makes an artifact of a base.

    Args:
        spec: The base.
        name: The artifact, by the last part of its asset key.
        read: What `artifacts_read` names, by name.
        models: Opens models.
        report: Called with the share done in [0, 1] and a short message.
    """
    match name:
        case "public_corpus" if spec.invents_documents:
            return invented_documents(spec, read["public_language_model"], models, report)
        case "public_corpus":
            return making.read_documents(spec)
        case "text_embedder":
            return making.embedder_manifest(spec, models)
        case "public_embeddings":
            return making.embedded_documents(spec, read, models, report)
        case "public_clusters":
            return making.public_centers(spec, read["public_embeddings"])
        case "public_language_model":
            return making.language_model_manifest(spec)
        case "topic_model":
            return {"path": str(making.fitted_topics(spec, read, models, report))}
        case "conditional_generator":
            return making.generator_manifest(spec, read.get("public_language_model"), report)
    raise ValueError(f"Expected an artifact of a public base, got {name!r}.")


class PublicBase:
    """Public documents, and the models that are made from them or named beside them.

    Models are kept in DPSYNTH_HOME under a digest of all that they were made of. The assets of a
    public base keep theirs there too, so that the second to ask finds them.
    """

    def __init__(
        self,
        documents: pl.DataFrame | None = None,
        *,
        name: str = "documents",
        report: making.Report | None = None,
        **declared: Any,
    ) -> None:
        """Names the documents and declares the models.

        Args:
            documents: Columns `text` and, if there are any, `label`; public. None: the language
                model writes them from the declared `domain`.
            name: Folder of its models in DPSYNTH_HOME.
            report: Called with the share done while a model is made.
            declared: Fields of a public base file (docs/datasets.md), e.g.
                `language_model={"kind": "smollm2"}`.

        Raises:
            ValueError: A field is wrong, or there are neither documents nor a domain.
        """
        self._made: dict[str, Any] = {}
        if documents is not None:
            labelled = "label" in documents.columns
            label = pl.col("label") if labelled else pl.lit("").alias("label")
            self._made["public_corpus"] = documents.select("text", label)
        self.spec = PublicDataSpec.model_validate({"name": name, **declared})
        if documents is None and not self.spec.invents_documents:
            raise ValueError(
                "Expected public documents, or a domain to invent them from, got neither. Give a "
                "frame with the column text, or domain=<what the texts are>."
            )
        home()  # It shuts others out before anything is in it.
        self.models = OpenedModels()
        self._report = report or (lambda _share, _message: None)

    def values(self, names: Iterable[str]) -> dict[str, Any]:
        """Makes artifacts by the last part of their asset keys, each once."""
        return {name: self._value(name) for name in names}

    @property
    def documents(self) -> pl.DataFrame:
        """Public documents: columns `text` and `label`."""
        found: pl.DataFrame = self._value("public_corpus")
        return found

    def _value(self, name: str) -> Any:
        if name not in self._made:
            read = self.values(artifacts_read(self.spec, name))
            self._made[name] = made_artifact(self.spec, name, read, self.models, self._report)
        return self._made[name]
