"""Public corpora that stand in for private records: sampled, shuffled and split once for all cells.

And the scores of corpora beside them: all on the same number of rows; a corpus with fewer has none.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import polars as pl

from dpsynth_assets.datasets import EncoderSpec, SourceSpec
from dpsynth_assets.datasets.benchmark_spec import BenchmarkDataset
from dpsynth_assets.datasets.evaluation_section import NextWordSettings
from dpsynth_assets.method_run import declaration
from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.dataset_plan import cohort_terms
from dpsynth_assets.methods.inputs import PrivateInputs, ProgressCallback, PublicInputs, silent
from dpsynth_assets.methods.private_prediction.config import PrivatePredictionConfig
from dpsynth_assets.methods.private_prediction.references import (
    generate_non_private,
    generate_public_only,
)
from dpsynth_assets.metrics.downstream import downstream_model_scores
from dpsynth_assets.metrics.evaluation import EvaluationSettings
from dpsynth_assets.metrics.metric import Estimate, ScoredSide, Sides
from dpsynth_assets.metrics.registry import benchmarked
from dpsynth_assets.metrics.text import structure_scores
from dpsynth_assets.models.language_model import LanguageModel
from dpsynth_assets.models.text_embedder import TextEmbedder
from dpsynth_assets.public_base import PublicBase
from dpsynth_assets.public_base.making import load_public_inputs
from dpsynth_assets.records.columns import ColumnNames
from dpsynth_assets.records.sources import read_source, source_columns


@dataclass(frozen=True, kw_only=True)
class Cohort:
    """A corpus in two parts.

    Attributes:
        name: Its name.
        domain: What its texts are, in public words.
        labels: Public label values, and how prompts word them.
        source: Records that methods read: `id`, `text`, `label`.
        held_out: Other records of the same corpus, which score.
        declared: Further fields of its dataset file.
    """

    name: str
    domain: str
    labels: Mapping[str, str]
    source: pl.DataFrame = field(repr=False)
    held_out: pl.DataFrame = field(repr=False)
    declared: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def version(self) -> str:
        """A digest of its records: results of other records are not these."""
        rows = [*self.source.iter_rows(), *self.held_out.iter_rows()]
        return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:12]

    def of(self, records: int) -> "Cohort":
        """The same with its first `records` records, beside the same held-out ones."""
        return replace(self, source=self.source.head(records))


def read_cohort(name: str, dataset: BenchmarkDataset, records: int) -> Cohort:
    """Reads a declared corpus.

    Args:
        name: Its name in the benchmark.
        dataset: Its declaration.
        records: Most source records.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: A column is not there, or the file is neither CSV nor Parquet.
    """
    found = _labelled(Path(dataset.path), dataset)
    if dataset.label_texts:
        found = found.filter(pl.col("label").is_in(list(dataset.label_texts)))
    labels = {}
    if dataset.label is not None:
        texts = dataset.label_texts
        labels = {value: texts.get(value, value) for value in sorted(found["label"].unique())}
    return split_cohort(
        found,
        name=name,
        domain=dataset.domain,
        labels=labels,
        max_characters=dataset.max_characters,
        records=records,
        held_out=dataset.held_out,
        declared=dataset.declared,
    )


def split_cohort(
    found: pl.DataFrame,
    *,
    max_characters: int | None,
    records: int | None,
    held_out: int,
    **fields: Any,
) -> Cohort:
    """Cuts texts, shuffles them alike every time, and sets held-out records aside.

    Args:
        found: Columns `text` and `label`.
        max_characters: Greatest length of a text; None: texts stay as they are.
        records: Most source records; None: all.
        held_out: Most held-out records; at most a fifth of all.
        fields: Other attributes of the cohort.
    """
    if max_characters is not None:
        cut = [next(pieces(text, max_characters), None) for text in found["text"]]
        found = found.with_columns(pl.Series("text", cut, dtype=pl.String)).drop_nulls("text")
    shuffled = found.unique(maintain_order=True).sample(fraction=1.0, shuffle=True, seed=0)
    test = min(held_out, shuffled.height // 5)
    source = shuffled[test:] if records is None else shuffled[test:].head(records)
    source = source.with_row_index("id").cast({"id": pl.String})
    return Cohort(source=source, held_out=shuffled[:test], **fields)


def pieces(text: str, characters: int) -> Iterator[str]:
    """Cuts a document at sentence ends into parts of at most `characters`; long sentences go."""
    part = ""
    for sentence in re.split(r"(?<=[.!?]) +", text.strip()):
        joined = f"{part} {sentence}".strip()
        if len(joined) > characters:
            if part:
                yield part
            joined = sentence if len(sentence) <= characters else ""
        part = joined
    if part:
        yield part


def read_documents(path: Path) -> pl.DataFrame:
    """Reads public documents: column `text`, and `label` if there is one."""
    source = SourceSpec(path=str(path))
    labelled = {"label": "label"} if "label" in source_columns(source, rows=1) else {}
    rows = read_source(source, ColumnNames(text="text", others=labelled))
    return rows.select("text", *labelled)


def whole_texts(dataset: BenchmarkDataset) -> list[str]:
    """Every text of a corpus as it stands in its file, and every public document of its own."""
    texts: list[str] = _labelled(Path(dataset.path), dataset)["text"].to_list()
    own = dataset.documents
    return texts if own is None else [*texts, *read_documents(Path(own))["text"].drop_nulls()]


def _labelled(path: Path, dataset: BenchmarkDataset) -> pl.DataFrame:
    """Columns `text` and `label` of a corpus, rows without either left out."""
    labelled = {} if dataset.label is None else {"label": dataset.label}
    columns = ColumnNames(text=dataset.text, others=labelled)
    rows = read_source(SourceSpec(path=str(path)), columns)
    label = pl.lit("") if dataset.label is None else pl.col(dataset.label)
    return rows.select(text=pl.col(dataset.text), label=label).drop_nulls()


# References of a benchmark: real text, public text alone, and text made without any privacy.

CONFIG = PrivatePredictionConfig(max_document_tokens=72, max_example_tokens=72)
SPARE = 1.25
"""A few documents may be blank."""


def real_data(cohort: Cohort, _public: PublicBase, rows: int, _seed: int) -> pl.DataFrame:
    """As many source records as a corpus has rows."""
    return cohort.source.select("text", "label").head(rows)


def public_only(cohort: Cohort, public: PublicBase, rows: int, seed: int) -> pl.DataFrame:
    """The public language model with each label alone: the floor."""
    terms, opened = opened_for(cohort, public, "public_language_model", seed)
    return generate_public_only(CONFIG, terms, opened, round(SPARE * rows), silent).rows[:rows]


def one_real_example(cohort: Cohort, public: PublicBase, rows: int, seed: int) -> pl.DataFrame:
    """The language model after one real record: the ceiling, with no privacy at all."""
    terms, opened = opened_for(cohort, public, "public_language_model", seed)
    private, count = PrivateInputs(records=cohort.source), round(SPARE * rows)
    made = generate_non_private(CONFIG, terms, private, opened, count, silent)
    return made.value.rows[:rows]


def opened_for(
    cohort: Cohort, public: PublicBase, model: str, seed: int
) -> tuple[CohortTerms, PublicInputs]:
    """Labels and prompts as the methods have them, and a model; no mechanism runs.

    Args:
        cohort: The records.
        public: The public base.
        model: Name of an artifact of the base.
        seed: Seed of public randomness.
    """
    labels, facts = tuple(cohort.labels), declared_facts(cohort)
    spec = declaration("mean_uniform", public, 1.0, 1e-6, {}, labels, cohort.name, facts)
    terms = cohort_terms(spec, public.spec)
    values, models, name = public.values([model]), public.models, cohort.name
    return terms, load_public_inputs(values, models, terms, None, salt=name, seed=seed)


def declared_facts(cohort: Cohort, further: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """What every dataset file of a table says: labels in words, the number of records."""
    facts: dict[str, Any] = {"records": cohort.source.height}
    if cohort.labels:
        facts["labels"] = {"label": dict(cohort.labels)}
    return {
        **cohort.declared,
        "columns": {"id": "id"},
        **further,
        "public_facts": {**facts, **further.get("public_facts", {})},
        "budget": {"accountant": "tight", **further.get("budget", {})},
    }


REFERENCES: dict[str, Callable[[Cohort, PublicBase, int, int], pl.DataFrame]] = {
    "real_data": real_data,
    "public_only": public_only,
    "one_real_example": one_real_example,
}


# How near a corpus is to held-out records, and what models trained on it get right.

DIGITS = 6
"""Of a kept draw."""


@dataclass(kw_only=True)
class Bench:
    """What the cells of one cohort share, and what scores their corpora.

    Attributes:
        folder: Where corpora, facts and scores are kept.
        cohort: Its held-out records are what corpora are compared with.
        public: Its public base, which embeds rows and says how fluent they are.
        rows: Rows of a corpus where they are free.
        scored_rows: Rows that every corpus is scored on.
        next_word: Size and training of the next-word model; None: none is trained.
        encoder: Settings of the encoder that is fine-tuned; None: none is.
        progress: Called with the share of each stage of a method that is done.
    """

    folder: Path
    cohort: Cohort
    public: PublicBase
    rows: int
    scored_rows: int
    next_word: NextWordSettings | None = None
    encoder: EncoderSpec | None = None
    progress: ProgressCallback = silent

    @cached_property
    def embedder(self) -> TextEmbedder:
        """That of the public base."""
        return self.public.models.text_embedder(self._artifact("text_embedder"))

    @cached_property
    def language_model(self) -> LanguageModel:
        """Says how fluent rows are."""
        return self.public.models.language_model(self._artifact("public_language_model"))

    def _artifact(self, name: str) -> Any:
        return self.public.values([name])[name]

    @cached_property
    def held_out(self) -> ScoredSide:
        """The held-out rows, resampled alike for all corpora."""
        held_out = self.cohort.held_out
        return ScoredSide.of(held_out, self.embedder.embed(held_out["text"].to_list()))

    def of_rows(self, rows: pl.DataFrame, seed: int, name: str) -> dict[str, Any]:
        """Scores a corpus; if it is too small, `scored_rows` is 0 and structure alone is scored.

        `draws` holds the resamples of each score that has them.
        """
        structure = self._structure(rows["text"].to_list())
        if rows.height < self.scored_rows:
            return {"scored_rows": 0, **structure}
        sample = rows.sample(self.scored_rows, shuffle=True, seed=seed)
        found = self._measured(sample, seed, name)
        return {
            "scored_rows": sample.height,
            **{key: e.value if isinstance(e, Estimate) else e for key, e in found.items()},
            **structure,
            "draws": {
                key: estimate.draws.round(DIGITS).tolist()
                for key, estimate in found.items()
                if isinstance(estimate, Estimate)
            },
        }

    def _measured(self, rows: pl.DataFrame, seed: int, name: str) -> dict[str, Estimate | float]:
        """Scores that there are."""
        features = self.embedder.embed(rows["text"].to_list(), public=True)
        sides = Sides(
            corpus=ScoredSide.of(rows, features, name=name),
            held_out=self.held_out,
            settings=EvaluationSettings(
                max_rows=self.scored_rows,
                seed=seed,
                next_word=self.next_word and self.next_word.model_copy(update={"seed": seed}),
                encoder=self.encoder,
            ),
            labelled=bool(self.cohort.labels),
            language_model=self.language_model,
        )
        found = {metric.name: metric.of(sides) for metric in benchmarked()}
        return {name: score for name, score in found.items() if score is not None}

    def _structure(self, texts: Sequence[str]) -> dict[str, Any]:
        """Shares of all rows that are records, where a schema is declared."""
        if "structured" not in self.cohort.declared:  # Shares need no equal number of rows.
            return {}
        return structure_scores(texts, self.cohort.declared["structured"]["json_schema"])

    def of_model(self, folder: Path) -> dict[str, float]:
        """Scores a downstream model that was trained on the records themselves."""
        return downstream_model_scores(folder, self.held_out)
