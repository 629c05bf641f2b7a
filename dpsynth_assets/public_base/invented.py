"""Public documents that a language model writes from what its user says in public words.

They stand where the texts of a domain would: clusters, topics and first populations made from them
lie nearer the records than those of general text, and no record is read. They are written once and
kept.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from dpsynth_assets.datasets import PublicDataSpec
from dpsynth_assets.datasets.public_spec import EngineSpec
from dpsynth_assets.files.kept import made_folder, version_of
from dpsynth_assets.models.engines.protocol import Engine, Provenance, Sampling
from dpsynth_assets.models.language_model import LanguageModelError
from dpsynth_assets.models.prompt_templates import (
    TOP_K,
    PromptTemplates,
    default_templates,
    prompted,
)
from dpsynth_assets.public_base.making import OpenedModels, Report

CODE_VERSION = "2"
"""Raised when the same words give other documents."""

LEAST_WORDS = 8
"""Shorter texts are headings and fragments."""

_ROUNDS = 5
_SPARE = 1.3
"""This many times what is missing is written in a round: some texts are short or repeated."""


def invent_documents(
    engine: Engine,
    language_model: Any,
    *,
    templates: PromptTemplates,
    labels: Sequence[str],
    documents: int,
    max_tokens: int,
    seed: int,
    report: Report,
) -> pl.DataFrame:
    """Writes different documents, as many of each label: temperature 1 among the likeliest tokens.

    Args:
        engine: Runs the language model.
        language_model: Its tokens.
        templates: Prompts of the domain, which say what the texts are.
        labels: Kinds of text; empty: the domain alone.
        documents: Documents asked for (>= 1). Fewer come where the model repeats itself.
        max_tokens: Longest document, in tokens.
        seed: Seed of the sampling.
        report: Called with the share done in [0, 1] and a short message.

    Returns:
        Columns `text` and `label`, one label after the other in turn.

    Raises:
        LanguageModelError: The model wrote no document of some label.

    **Privacy** Reads public words alone: ε = 0.

    **Source** Xie et al. 2024, RANDOM_API, and EPSVec, appendix B.3: a public model begins without
    examples.
    """
    model = prompted(language_model, templates)
    names = list(labels) or [""]
    shares = [documents // len(names) + (i < documents % len(names)) for i in range(len(names))]
    kept: list[list[str]] = [[] for _ in names]
    seen: set[str] = set()
    for number in range(_ROUNDS):
        missing = [share - len(own) for share, own in zip(shares, kept, strict=True)]
        rows = [row for row, some in enumerate(missing) for _ in range(math.ceil(_SPARE * some))]
        if not rows:
            break
        done = sum(map(len, kept))

        def told(share: float, done: int = done) -> None:
            report((done + share * (documents - done)) / documents, "inventing public documents")

        made = engine.generate(
            [model.prompt_ids(names[index], [], 1) for index in rows],
            Sampling(
                temperature=1.0,
                top_k=TOP_K,
                max_new_tokens=max_tokens,
                seed=int(np.random.SeedSequence([seed, number]).generate_state(1)[0]),
                stop=("\n",),
            ),
            provenance=Provenance.PUBLIC,
            progress=told,
        )
        for index, each in zip(rows, made, strict=True):
            text = model.decode(list(each.token_ids)).strip()
            words = text.casefold().split()  # case and spacing make no text new
            key, wanted = " ".join(words), len(kept[index]) < shares[index]
            if wanted and len(words) >= LEAST_WORDS and key not in seen:
                seen.add(key)
                kept[index].append(text)
    if not all(own for own, share in zip(kept, shares, strict=True) if share):
        raise LanguageModelError(
            f"Expected {engine.name} to write documents of every label, got none of at least one. "
            "Describe the texts in domain and labels, or name a source of public documents."
        )
    found = [
        (own[turn], name)
        for turn in range(max(shares))
        for own, name in zip(kept, names, strict=True)
        if turn < len(own)
    ]
    return pl.DataFrame(found, schema={"text": pl.String, "label": pl.String}, orient="row")


_FILE = "documents.parquet"


def invented_documents(
    spec: PublicDataSpec, manifest: Mapping[str, Any], models: OpenedModels, report: Report
) -> pl.DataFrame:
    """Writes the documents of a domain, or reads those that an earlier run wrote.

    Args:
        spec: A base with a domain and without a source.
        manifest: What describes its language model.
        models: Opens it.
        report: Called with the share done in [0, 1] and a short message.

    Returns:
        Columns `text` and `label`; what was written once is read again wherever models are shared.
    """
    model_name = str(manifest["path"]).rstrip("/").rsplit("/", maxsplit=1)[-1]
    engine = EngineSpec(kind=spec.language_model.writes_by)
    templates = default_templates(
        spec.domain, labelled=bool(spec.invented.labels), asks=spec.language_model.asks
    )
    written_by = (templates.to_json(), spec.invented, model_name, engine.kind)
    version = version_of("invented", CODE_VERSION, *written_by)

    def invent(whole: Path) -> None:
        language_model = models.language_model(manifest)
        invent_documents(
            models.engine(engine, language_model),
            language_model,
            templates=templates,
            **spec.invented.model_dump(),
            report=report,
        ).write_parquet(whole / _FILE)

    folder = made_folder(spec.name, "invented_documents", version, invent)
    found = pl.read_parquet(folder / _FILE)
    return found if spec.max_documents is None else found.head(spec.max_documents)
