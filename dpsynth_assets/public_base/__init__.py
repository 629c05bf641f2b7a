"""Public bases, without Dagster: documents, models made from them, and how stages read them.

Here: a base whose documents and models are each made when first asked for.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from dpsynth_assets.datasets import PublicDataSpec
from dpsynth_assets.paths import home
from dpsynth_assets.public_base import making
from dpsynth_assets.public_base.invented import invented_documents
from dpsynth_assets.public_base.making import OpenedModels


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
        self._given = documents
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
        """Makes artifacts by the last part of their asset keys."""
        return {name: getattr(self, f"_{name}") for name in names}

    @cached_property
    def documents(self) -> pl.DataFrame:
        """Public documents: columns `text` and `label`."""
        if self._given is None:
            return invented_documents(
                self.spec, self._public_language_model, self.models, self._report
            )
        labelled = "label" in self._given.columns
        label = pl.col("label") if labelled else pl.lit("").alias("label")
        return self._given.select("text", label)

    @property
    def _public_corpus(self) -> pl.DataFrame:
        return self.documents

    @cached_property
    def _text_embedder(self) -> Mapping[str, Any]:
        return making.embedder_manifest(self.spec, self.models)

    @cached_property
    def embeddings(self) -> np.ndarray:
        """Embeddings of the documents, float32 (N, d), unit length."""
        texts = self.documents["text"].to_list()
        return making.embedded_documents(
            self.spec.name, dict(self._text_embedder), texts, self.models, self._report
        )

    @cached_property
    def _public_clusters(self) -> np.ndarray:
        return making.public_centers(self.spec, self.embeddings)

    @cached_property
    def _public_language_model(self) -> Mapping[str, Any]:
        return making.language_model_manifest(self.spec)

    @cached_property
    def _topic_model(self) -> Mapping[str, Any]:
        folder = making.fitted_topics(
            self.spec,
            self.documents,
            self.embeddings,
            self.models,
            dict(self._text_embedder),
            self._report,
        )
        return {"path": str(folder)}

    @cached_property
    def _conditional_generator(self) -> Mapping[str, Any]:
        named = self.spec.conditional_generator.kind == "pretrained"
        return making.generator_manifest(self.spec, None if named else self._public_language_model)
