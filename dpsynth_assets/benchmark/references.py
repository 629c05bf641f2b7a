"""References of a benchmark: real text, public text alone, and text made without any privacy."""

from collections.abc import Callable, Mapping
from typing import Any

import polars as pl

from dpsynth_assets.benchmark.cohorts import Cohort
from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.declared_terms import cohort_terms
from dpsynth_assets.methods.fine_tuning.conditions import Conditioning
from dpsynth_assets.methods.fine_tuning.config import GeneratorConfig
from dpsynth_assets.methods.fine_tuning.writing import DocumentWriter, equal_cells, write_rows
from dpsynth_assets.methods.inputs import PrivateInputs
from dpsynth_assets.methods.private_prediction.config import PrivatePredictionConfig
from dpsynth_assets.methods.private_prediction.references import (
    generate_non_private,
    generate_public_only,
)
from dpsynth_assets.public_base import PublicBase
from dpsynth_assets.public_base.inputs import load_public_inputs

CONFIG = PrivatePredictionConfig(max_document_tokens=72, max_example_tokens=72)
_OF_TEXTS = ("prompt", "structured")
"""Declared sections that say how texts are asked for and what they are."""
SPARE = 1.25
"""A few documents may be blank."""


def real_data(cohort: Cohort, _public: PublicBase, rows: int, _seed: int) -> pl.DataFrame:
    """As many source records as a corpus has rows."""
    return cohort.source.select("text", "label").head(rows)


def public_only(cohort: Cohort, public: PublicBase, rows: int, seed: int) -> pl.DataFrame:
    """The public language model with each label alone: the floor."""
    terms, opened = _terms(cohort, public), _opened(cohort, public, "public_language_model", seed)
    return generate_public_only(CONFIG, terms, opened, round(SPARE * rows), _quiet).rows[:rows]


def public_generator(cohort: Cohort, public: PublicBase, rows: int, seed: int) -> pl.DataFrame:
    """The public conditional generator with each label alone: where fine-tuning starts."""
    opened = _opened(cohort, public, "conditional_generator", seed)
    terms = _terms(cohort, public)
    known = Conditioning(labels=terms.labels, label_texts=terms.label_texts, document_type="")
    cells = equal_cells(known, round(SPARE * rows))
    config = GeneratorConfig(max_document_tokens=96)
    writer = DocumentWriter(generator=opened.conditional_generator, config=config)
    return write_rows(writer, known, cells, seed, _quiet).rows[:rows]


def one_real_example(cohort: Cohort, public: PublicBase, rows: int, seed: int) -> pl.DataFrame:
    """The language model after one real record: the ceiling, with no privacy at all."""
    opened = _opened(cohort, public, "public_language_model", seed)
    private = PrivateInputs(records=cohort.source)
    count = round(SPARE * rows)
    made = generate_non_private(CONFIG, _terms(cohort, public), private, opened, count, _quiet)
    return made.value.rows[:rows]


def _opened(cohort: Cohort, public: PublicBase, name: str, seed: int) -> Any:
    values = public.values([name])
    return load_public_inputs(
        values, public.models, _terms(cohort, public), None, salt=cohort.name, seed=seed
    )


def _terms(cohort: Cohort, public: PublicBase) -> CohortTerms:
    """Labels and prompts as the methods have them; no mechanism runs."""
    facts = {"labels": {"label": dict(cohort.labels)}} if cohort.labels else {}
    spec = PrivateDatasetSpec.model_validate(
        {
            "name": cohort.name,
            "source": {"path": "a frame in memory", "version": "1"},
            "columns": {"text": "text", "labels": list(facts.get("labels", {}))},
            "public_facts": facts,
            "budget": {"epsilon": 1.0, "delta": 1e-6},
            "methods": [{"method": "mean_uniform"}],
            "public_data": public.spec.name,
            **{name: cohort.declared[name] for name in _OF_TEXTS if name in cohort.declared},
        }
    )
    return cohort_terms(spec, public.spec)


def _quiet(_share: float, _message: str) -> None:
    """Reports to nobody."""


REFERENCES: Mapping[str, Callable[[Cohort, PublicBase, int, int], pl.DataFrame]] = {
    "real_data": real_data,
    "public_only": public_only,
    "public_generator": public_generator,
    "one_real_example": one_real_example,
}
