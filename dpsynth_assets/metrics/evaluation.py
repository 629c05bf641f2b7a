"""Scores of synthetic corpora against private text, in one row a corpus.

**Privacy** Everything here reads private text and adds no noise: scores are internal, for the
steward, and no release may depend on them. `repr` never shows text, labels or embeddings.

Distribution (MAUVE, labels) and accuracy are measured against *held-out* records, which no
mechanism read; copying is measured against the *source* records, which mechanisms read.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_assets.attacks.overlap import (
    MOST_UNITS,
    NEAR_DUPLICATE_COSINE,
    SPAN_WORDS,
    HeldRecords,
)
from dpsynth_assets.datasets.evaluation_section import EncoderSpec, NextWordSettings
from dpsynth_assets.datasets.fields import Declaration
from dpsynth_assets.metrics.embedding_distances import (
    NOT_COMPUTED,
    MauveSettings,
    mauve_is_installed,
)
from dpsynth_assets.metrics.metric import (
    RESAMPLES,
    Estimate,
    Metric,
    ScoredSide,
    Sides,
    stratified_rows,
)
from dpsynth_assets.metrics.registry import reported

if TYPE_CHECKING:
    from dpsynth_assets.models.language_model import LanguageModel

REAL_DATA = "real data"


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """Constants of an evaluation.

    Attributes:
        max_rows: Most rows of a corpus, and of each side of MAUVE, that are scored: the same
            number for all corpora of a table.
        mauve: Constants of MAUVE; `max_rows` above takes the place of its own.
        seed: Seed of subsamples, resamples and validation splits.
        resamples: Resamples of rows that ± and intervals come from.
        record_schema: JSON schema of texts that are records; None for free text.
        next_word: Settings of the next-word model trained on every corpus; None: not trained.
        next_word_larger: Those of a second one; None: not trained.
        judged: Whether the public language model judges rows, where it is given.
        in_context: Whether it names labels of real records after rows of a corpus.
        encoder: Encoder that is fine-tuned on every corpus and on real records; None: none is.
    """

    max_rows: int = 1_000
    mauve: MauveSettings = field(default_factory=MauveSettings)
    seed: int = 0
    resamples: int = RESAMPLES
    record_schema: Mapping[str, Any] | None = field(repr=False, default=None)
    next_word: NextWordSettings | None = None
    next_word_larger: NextWordSettings | None = None
    encoder: EncoderSpec | None = None
    judged: bool = False
    in_context: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain values; under `mauve` its constants as they are used, or why there are none."""
        constants = {
            **vars(self),
            "mauve": self.effective_mauve() if mauve_is_installed() else NOT_COMPUTED,
            "span_words": SPAN_WORDS,
            "span_most_units": MOST_UNITS,
            "near_duplicate_cosine": NEAR_DUPLICATE_COSINE,
        }
        del constants["record_schema"]
        return {
            name: value.model_dump(mode="json") if isinstance(value, Declaration) else value
            for name, value in constants.items()
        }

    def effective_mauve(self) -> MauveSettings:
        """The constants of MAUVE with this evaluation's number of rows."""
        return self.mauve.model_copy(update={"max_rows": self.max_rows})


@dataclass(frozen=True, kw_only=True)
class PrivateReference:
    """Private records: what mechanisms read, what was held out, and planted canaries.

    Attributes:
        source: The source records, or a sample of them beside `everywhere`.
        held_out: The held-out records.
        canaries: What was planted.
        everywhere: All source records; None: the above are all.
        source_label_count: How many labels all source records have; None: as many as the above.
        source_version: Digest of all source records; "": to be made of the above.
    """

    source: ScoredSide
    held_out: ScoredSide
    canaries: Sequence[str] = field(repr=False, default=())
    everywhere: Iterable[HeldRecords] | None = field(repr=False, default=None)
    source_label_count: int | None = field(repr=False, default=None)
    source_version: str = field(repr=False, default="")

    @property
    def searched(self) -> Iterable[HeldRecords]:
        """All source records, which copies are looked for in."""
        own = HeldRecords(texts=self.source.texts, features=self.source.features)
        return self.everywhere or [own]

    @property
    def has_labels(self) -> bool:
        """Says whether there are at least two labels to distinguish."""
        known = self.source_label_count
        labels = len(set(self.source.labels)) if known is None else known
        return labels > 1 and len(set(self.held_out.labels)) > 1


Value = float | None
"""Of a score; None where it cannot be computed. A count is a whole number."""


@dataclass(frozen=True, kw_only=True)
class CorpusScores:
    """Scores of one corpus.

    Attributes:
        rows: Rows scored.
        values: Score by name of the metric, `<metric>_std` beside it where rows were resampled.
        estimates: Scores with their resamples, by name of the metric.
    """

    name: str
    rows: int
    values: Mapping[str, Value]
    estimates: Mapping[str, Estimate] = field(default_factory=dict, repr=False, compare=False)

    def __getitem__(self, metric: str) -> Value:
        """The score by a metric."""
        return self.values.get(metric)

    def to_json(self) -> dict[str, Any]:
        """Plain values by name; the resamples stay behind."""
        return {"name": self.name, "rows": self.rows, **self.values}

    @classmethod
    def of(cls, name: str, rows: int, found: Mapping[Metric, Estimate | Value]) -> "CorpusScores":
        """Puts together what metrics found."""
        values: dict[str, Value] = {}
        for metric, score in found.items():
            if isinstance(score, Estimate):
                values |= {metric.name: score.value, f"{metric.name}_std": score.std}
            else:
                values |= {metric.name: score}
                values |= {f"{metric.name}_std": None} if metric.compared else {}
        estimates = {m.name: score for m, score in found.items() if isinstance(score, Estimate)}
        return cls(name=name, rows=rows, values=values, estimates=estimates)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Everything that corpora of one table are scored by.

    Attributes:
        reference: Private records.
        public_texts: Documents whose spans are no leak.
        settings: Constants.
        language_model: The public language model, where it scores rows.
    """

    reference: PrivateReference
    public_texts: Sequence[str] = field(repr=False, default=())
    settings: EvaluationSettings = EvaluationSettings()
    language_model: "LanguageModel | None" = None

    def scores(self, corpus: ScoredSide) -> CorpusScores:
        """Scores at most `max_rows` rows of one corpus."""
        corpus = self._sample(corpus)
        sides = self._sides(corpus)
        found = {metric: metric.of(sides) for metric in reported()}
        return CorpusScores.of(corpus.name, len(corpus.texts), found)

    def real_scores(self) -> CorpusScores:
        """Scores real data as if it were a corpus: what a perfect generator would reach.

        What is measured against held-out records is that of source records, at most as many as a
        corpus may have rows. What is measured against source records, such as copying, is that of
        held-out ones: the overlap that is there without any copying.
        """
        source, held_out = self.reference.source, self.reference.held_out
        order = np.random.default_rng(self.settings.seed).permutation(len(source.texts))
        chosen = order[: self.settings.max_rows]
        real = {"source": source.rows(chosen), "held-out": self._sample(held_out)}
        sides = {
            name: self._sides(dataclasses.replace(rows, name=REAL_DATA))
            for name, rows in real.items()
        }
        found = {
            metric: None if metric.of_real is None else metric.of(sides[metric.of_real])
            for metric in reported()
        }
        return CorpusScores.of(REAL_DATA, len(chosen), found)

    def _sample(self, rows: ScoredSide) -> ScoredSide:
        return rows.rows(stratified_rows(rows.labels, self.settings.max_rows, self.settings.seed))

    def _sides(self, corpus: ScoredSide) -> Sides:
        def drawn(rows: ScoredSide, name: str) -> ScoredSide:
            seed, resamples = self.settings.seed, self.settings.resamples
            return dataclasses.replace(rows, name=name, seed=seed, resamples=resamples)

        return Sides(
            corpus=drawn(corpus, corpus.name),
            held_out=drawn(self.reference.held_out, "held out"),
            settings=self.settings,
            labelled=self.reference.has_labels,
            reference=self.reference,
            public_texts=self.public_texts,
            language_model=self.language_model,
        )
