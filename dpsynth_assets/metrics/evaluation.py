"""Scores of synthetic corpora against private text, in one row a corpus.

**Privacy** Everything here reads private text and adds no noise: scores are internal, for the
steward, and no release may depend on them. `repr` never shows text, labels or embeddings.

Distribution (MAUVE, labels) and accuracy are measured against *held-out* records, which no
mechanism read; copying is measured against the *source* records, which mechanisms read.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from dpsynth_assets.attacks.canaries import find_canaries
from dpsynth_assets.attacks.overlap import (
    MOST_UNITS,
    NEAR_DUPLICATE_COSINE,
    SPAN_WORDS,
    near_duplicate_share,
    verbatim_share,
)
from dpsynth_assets.metrics.embedding_distances import Moments, frechet_distance
from dpsynth_assets.metrics.estimates import ScoredSide, corpus_estimates
from dpsynth_assets.metrics.mauve import NOT_COMPUTED, MauveSettings, mauve_is_installed
from dpsynth_assets.metrics.next_word import next_word_accuracy
from dpsynth_assets.metrics.resampling import RESAMPLES, Estimate
from dpsynth_assets.metrics.sampling import stratified_rows
from dpsynth_assets.metrics.structured import structure_scores
from dpsynth_assets.metrics.text import distinct_n, label_distance, length_distance, word_lengths

REAL_DATA = "real data"


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """Constants of an evaluation.

    Attributes:
        max_rows: Most rows of a corpus, and of each side of MAUVE, that are scored: the same
            number for all corpora of a table.
        mauve: Constants of MAUVE; `max_rows` above takes the place of its own.
        span_words: Words of a verbatim span.
        span_most_units: Most private records that share a span for it to count as copied.
        near_duplicate_cosine: Similarity from which a row is a near duplicate.
        seed: Seed of subsamples, resamples and validation splits.
        resamples: Resamples of rows that ± and intervals come from.
        record_schema: JSON schema of texts that are records; None for free text.
        next_word: Settings of the next-word model trained on every corpus; None: not trained.
    """

    max_rows: int = 1_000
    mauve: MauveSettings = field(default_factory=MauveSettings)
    span_words: int = SPAN_WORDS
    span_most_units: int = MOST_UNITS
    near_duplicate_cosine: float = NEAR_DUPLICATE_COSINE
    seed: int = 0
    resamples: int = RESAMPLES
    record_schema: Mapping[str, Any] | None = field(repr=False, default=None)
    next_word: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values; under `mauve` its constants as they are used, or why there are none."""
        constants = dataclasses.asdict(dataclasses.replace(self, record_schema=None))
        del constants["record_schema"]
        mauve = self.effective_mauve().to_json() if mauve_is_installed() else NOT_COMPUTED
        return {**constants, "mauve": mauve}

    def effective_mauve(self) -> MauveSettings:
        """The constants of MAUVE with this evaluation's number of rows."""
        return dataclasses.replace(self.mauve, max_rows=self.max_rows)


@dataclass(frozen=True, kw_only=True)
class ScoredCorpus:
    """A corpus to score: N texts, N labels ("" where there are none), float32 (N, d) features."""

    name: str
    texts: Sequence[str] = field(repr=False)
    labels: Sequence[str] = field(repr=False)
    features: np.ndarray = field(repr=False)


class SourceRecords(Protocol):
    """All source records, wherever they lie."""

    def span_holders(self, candidates: np.ndarray, words: int) -> np.ndarray:
        """See `attacks.span_holders.SpanHolders`."""

    def close_records(self, features: np.ndarray, cosine: float) -> np.ndarray:
        """See `attacks.near_copies.CloseRecords`."""


@dataclass(frozen=True, kw_only=True)
class PrivateReference:
    """Private records: what mechanisms read, what was held out, and planted canaries.

    Attributes:
        source_texts: The source records, or a sample of them beside `source`.
        source_labels: Their labels.
        source_features: Their embeddings.
        held_out_texts: The held-out records.
        held_out_labels: Their labels.
        held_out_features: Their embeddings.
        canaries: What was planted.
        source: All source records, which copies are looked for in; None: the above are all.
        source_label_count: How many labels all source records have; None: as many as the above.
        source_version: Digest of all source records; "": to be made of the above.
    """

    source_texts: Sequence[str] = field(repr=False)
    source_labels: Sequence[str] = field(repr=False)
    source_features: np.ndarray = field(repr=False)
    held_out_texts: Sequence[str] = field(repr=False)
    held_out_labels: Sequence[str] = field(repr=False)
    held_out_features: np.ndarray = field(repr=False)
    canaries: Sequence[str] = field(repr=False, default=())
    source: SourceRecords | None = field(repr=False, default=None)
    source_label_count: int | None = field(repr=False, default=None)
    source_version: str = field(repr=False, default="")

    @property
    def has_labels(self) -> bool:
        """Says whether there are at least two labels to tell apart."""
        known = self.source_label_count
        labels = len(set(self.source_labels)) if known is None else known
        return labels > 1 and len(set(self.held_out_labels)) > 1


@dataclass(frozen=True, kw_only=True)
class CorpusScores:
    """Scores of one corpus; None where one cannot be computed.

    Attributes:
        rows: Rows scored.
        mauve: Against held-out records, in [0, 1]; None under `MINIMUM_ROWS` rows, or where the
            extra `mauve` is not installed.
        mauve_std: Standard deviation over resampled rows.
        mauve_rows: Rows a side; scores of different numbers of rows do not compare.
        accuracy: Trained on the corpus, tested on held-out records; None without labels that both
            have.
        accuracy_std: Standard deviation over resampled rows.
        mean_words: Mean number of words a text.
        distinct_1: Share of distinct words among the first ten thousand.
        distinct_2: The same of word pairs.
        distinct_3: The same of word triples.
        label_distance: Total variation distance to the held-out label mixture.
        verbatim_share: Share of rows with a span particular to few source records.
        near_duplicate_share: Share of rows nearly the same as a source record.
        canaries_found: Distinct canaries in the corpus; None where none were planted, and for
            real data.
        energy_distance: Between the embeddings of the corpus and of held-out records; 0 for one
            distribution. Orders corpora where MAUVE is at its floor.
        energy_distance_std: Standard deviation over resampled rows.
        frechet_distance: FID of the same embeddings, as the tables of private evolution print it.
        length_distance: Distance of the distributions of text lengths from held-out records, in
            words a text.
        parse_rate: Share of rows that are JSON; None without a declared schema.
        validation_rate: Share of rows that fulfil the declared schema; likewise.
        next_word_accuracy: Share of tokens of held-out records that a small language model trained
            on the corpus gets right; None where it was not asked for.
        next_word_perplexity: The same model's perplexity on them.
        estimates: MAUVE, energy distance and accuracy with their resamples, by name.
    """

    name: str
    rows: int
    mauve: float | None
    mauve_std: float | None
    mauve_rows: int | None
    accuracy: float | None
    mean_words: float
    distinct_1: float
    distinct_2: float
    distinct_3: float
    label_distance: float | None
    verbatim_share: float
    near_duplicate_share: float
    canaries_found: int | None
    energy_distance: float | None = None
    frechet_distance: float | None = None
    length_distance: float | None = None
    parse_rate: float | None = None
    validation_rate: float | None = None
    next_word_accuracy: float | None = None
    next_word_perplexity: float | None = None
    accuracy_std: float | None = None
    energy_distance_std: float | None = None
    estimates: Mapping[str, Estimate] = field(default_factory=dict, repr=False, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Plain values by name; the resamples stay behind."""
        names = (item.name for item in dataclasses.fields(self) if item.name != "estimates")
        return {name: getattr(self, name) for name in names}


def score_corpus(
    corpus: ScoredCorpus,
    reference: PrivateReference,
    public_texts: Sequence[str],
    settings: EvaluationSettings,
) -> CorpusScores:
    """Scores at most `max_rows` rows of one corpus."""
    corpus = _sample(corpus, settings)
    canaries = find_canaries(corpus.texts, reference.canaries) if reference.canaries else None
    scores = _scores(corpus, reference, public_texts, settings, canaries)
    return dataclasses.replace(
        scores,
        **_estimate_fields(corpus, reference, settings),
        **_next_word_fields(corpus.texts, reference, settings),
    )


def real_scores(
    reference: PrivateReference, public_texts: Sequence[str], settings: EvaluationSettings
) -> CorpusScores:
    """Scores real data as if it were a corpus: what a perfect generator would reach.

    MAUVE is that of source against held-out records, accuracy that of a classifier trained on as
    many source records as a corpus may have rows. Copying is that of held-out from source
    records: the overlap that is there without any copying.
    """
    held_out = ScoredCorpus(
        name=REAL_DATA,
        texts=reference.held_out_texts,
        labels=reference.held_out_labels,
        features=reference.held_out_features,
    )
    order = np.random.default_rng(settings.seed).permutation(len(reference.source_texts))
    chosen = order[: settings.max_rows]
    source = ScoredCorpus(
        name=REAL_DATA,
        texts=[reference.source_texts[row] for row in chosen],
        labels=[reference.source_labels[row] for row in chosen],
        features=reference.source_features[chosen],
    )
    scores = _scores(_sample(held_out, settings), reference, public_texts, settings, None)
    return dataclasses.replace(
        scores,
        rows=len(chosen),
        label_distance=_label_distance(source, reference),
        frechet_distance=_frechet(source.features, reference),
        length_distance=_lengths(source.texts, reference),
        **_estimate_fields(source, reference, settings),
        **_next_word_fields(source.texts, reference, settings),
    )


def _sample(corpus: ScoredCorpus, settings: EvaluationSettings) -> ScoredCorpus:
    chosen = stratified_rows(corpus.labels, settings.max_rows, settings.seed)
    return dataclasses.replace(
        corpus,
        texts=[corpus.texts[row] for row in chosen],
        labels=[corpus.labels[row] for row in chosen],
        features=corpus.features[chosen],
    )


def _scores(
    corpus: ScoredCorpus,
    reference: PrivateReference,
    public_texts: Sequence[str],
    settings: EvaluationSettings,
    canaries: int | None,
) -> CorpusScores:
    """Everything but the scores that are resampled."""
    source = reference.source
    return CorpusScores(
        name=corpus.name,
        rows=len(corpus.texts),
        mauve=None,
        mauve_std=None,
        mauve_rows=None,
        accuracy=None,
        mean_words=word_lengths(corpus.texts).mean,
        distinct_1=distinct_n(corpus.texts, 1),
        distinct_2=distinct_n(corpus.texts, 2),
        distinct_3=distinct_n(corpus.texts, 3),
        label_distance=_label_distance(corpus, reference),
        verbatim_share=verbatim_share(
            corpus.texts,
            reference.source_texts if source is None else source.span_holders,
            public_texts,
            words=settings.span_words,
            most_units=settings.span_most_units,
        ),
        near_duplicate_share=near_duplicate_share(
            corpus.features,
            reference.source_features if source is None else source.close_records,
            cosine=settings.near_duplicate_cosine,
        ),
        canaries_found=canaries,
        frechet_distance=_frechet(corpus.features, reference),
        length_distance=_lengths(corpus.texts, reference),
        **_structure_fields(corpus.texts, settings),
    )


def _estimate_fields(
    corpus: ScoredCorpus, reference: PrivateReference, settings: EvaluationSettings
) -> dict[str, Any]:
    """Scores that are resampled, with their ±."""
    labelled = reference.has_labels and not set(corpus.labels).isdisjoint(reference.held_out_labels)
    held_out = ScoredSide.of(
        reference.held_out_features,
        reference.held_out_labels if labelled else (),
        seed=settings.seed,
        resamples=settings.resamples,
    )
    scored = ScoredSide.of(
        corpus.features,
        corpus.labels if labelled else (),
        name=corpus.name,
        seed=settings.seed,
        resamples=settings.resamples,
    )
    found = corpus_estimates(scored, held_out, settings.effective_mauve(), settings.seed)
    fields: dict[str, Any] = {"estimates": found}
    for name, estimate in found.items():
        fields |= {name: estimate.value, f"{name}_std": estimate.std}
    if "mauve" in found:
        sides = len(corpus.features), len(reference.held_out_features)
        fields["mauve_rows"] = min(*sides, settings.max_rows)
    return fields


def _label_distance(corpus: ScoredCorpus, reference: PrivateReference) -> float | None:
    if not reference.has_labels or not corpus.labels:
        return None
    return label_distance(corpus.labels, reference.held_out_labels)


def _frechet(features: np.ndarray, reference: PrivateReference) -> float | None:
    if min(len(features), len(reference.held_out_features)) < 2:
        return None
    return frechet_distance(Moments.of(features), Moments.of(reference.held_out_features))


def _lengths(texts: Sequence[str], reference: PrivateReference) -> float | None:
    if not texts or not reference.held_out_texts:
        return None
    return length_distance(texts, reference.held_out_texts)


def _structure_fields(texts: Sequence[str], settings: EvaluationSettings) -> dict[str, Any]:
    if settings.record_schema is None:
        return {}
    scores = structure_scores(texts, settings.record_schema)
    return {"parse_rate": scores.parse_rate, "validation_rate": scores.validation_rate}


def _next_word_fields(
    texts: Sequence[str], reference: PrivateReference, settings: EvaluationSettings
) -> dict[str, Any]:
    """Trains on texts and predicts held-out records, if asked for and there are words to learn."""
    if settings.next_word is None or not any(text.strip() for text in texts):
        return {}
    from dpsynth_assets.models.next_word_model import NextWordSettings

    shape = NextWordSettings.model_validate(dict(settings.next_word))
    scores = next_word_accuracy(texts, reference.held_out_texts, shape)
    return {"next_word_accuracy": scores.accuracy, "next_word_perplexity": scores.perplexity}
