"""A reference of the tables that no declared benchmark has."""

import polars as pl

from dpsynth_assets.benchmark.cohorts import SPARE, Cohort, opened_for
from dpsynth_assets.methods.fine_tuning.config import GeneratorConfig
from dpsynth_assets.methods.fine_tuning.generators import Conditioning
from dpsynth_assets.methods.fine_tuning.writing import DocumentWriter, equal_cells, write_rows
from dpsynth_assets.methods.inputs import silent
from dpsynth_assets.public_base import PublicBase


def public_generator(cohort: Cohort, public: PublicBase, rows: int, seed: int) -> pl.DataFrame:
    """The public conditional generator with each label alone: where fine-tuning starts."""
    terms, opened = opened_for(cohort, public, "conditional_generator", seed)
    known = Conditioning(labels=terms.labels, label_texts=terms.label_texts, document_type="")
    cells = equal_cells(known, round(SPARE * rows))
    config = GeneratorConfig(max_document_tokens=96)
    writer = DocumentWriter(generator=opened.conditional_generator, config=config)
    return write_rows(writer, known, cells, seed, silent).rows[:rows]
