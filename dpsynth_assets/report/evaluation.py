"""Scores every corpus of a cohort beside its references, under one protocol.

The references are the real text (what a perfect generator could reach), the public-only corpus (the
floor, ε = 0) and the non-private corpus (the ceiling, ε = ∞ with the same model). Each other corpus
says what share of the way from floor to ceiling it went.

Every score is computed against private text and carries no guarantee: the result is internal.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from dpsynth_assets.attacks.canaries import find_canaries
from dpsynth_assets.attacks.overlap import (
    has_verbatim_private_span,
    longest_common_span,
    near_duplicate_share,
    shared_span_share,
)
from dpsynth_assets.metrics.downstream import downstream_accuracy
from dpsynth_assets.metrics.mauve import MauveSettings, mauve_score
from dpsynth_assets.metrics.text_statistics import (
    distinct_n,
    label_distance,
    length_distance,
    length_quantiles,
    word_counts,
)

ProgressCallback = Callable[[float, str], None]
REAL, FLOOR, CEILING, CORPUS = "real", "floor", "ceiling", "corpus"
REFERENCES = (REAL, FLOOR, CEILING)


@dataclass(frozen=True, kw_only=True)
class CorpusInput:
    """Texts with their embeddings, computed once by the caller.

    Attributes:
        texts: N texts.
        labels: N labels; None where there are none.
        embeddings: float32 (N, d), unit length.
        role: `corpus`, `floor` (public only, ε = 0) or `ceiling` (not private, ε = ∞).
        seconds: How long generation took, if known.
    """

    texts: Sequence[str] = field(repr=False)
    embeddings: np.ndarray = field(repr=False)
    labels: Sequence[str] | None = field(default=None, repr=False)
    role: str = CORPUS
    seconds: float | None = None

    def __post_init__(self) -> None:
        """Refuses columns of different lengths and unknown roles."""
        lengths = {len(self.texts), len(self.embeddings), len(self.labels or self.texts)}
        if len(lengths) != 1:
            raise ValueError(f"Expected columns of one length, got lengths {sorted(lengths)}.")
        if self.role not in (CORPUS, *REFERENCES):
            raise ValueError(f"Expected a role in {(CORPUS, *REFERENCES)}, got {self.role!r}.")


@dataclass(frozen=True, kw_only=True)
class LeakSource:
    """What leak checks search for, and what they excuse.

    Attributes:
        private: Records whose text is sought in the corpora; None: the real training records.
        private_units: Privacy unit of each of those records; None: each record its own.
        public_texts: Public documents; a span they contain is not a leak.
        canaries: Strings planted in the private source.
    """

    private: CorpusInput | None = None
    private_units: Sequence[str] | None = field(default=None, repr=False)
    public_texts: Sequence[str] = field(default=(), repr=False)
    canaries: Sequence[str] = field(default=(), repr=False)


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """The protocol: the embedder's name, constants, seeds, and what counts as a leak."""

    embedder: str = ""
    mauve: MauveSettings = field(default_factory=MauveSettings)
    accuracy_seeds: int = 3
    distinct_rows: int = 500
    shared_words: int = 8
    verbatim_words: int = 12
    verbatim_max_units: int = 2


@dataclass(frozen=True, kw_only=True)
class CorpusScore:
    """Scores of one corpus or reference; None where a score does not apply.

    Attributes:
        gap_closed: Share of the way from floor to ceiling by score name (`mauve`, `accuracy`).
        near_duplicates: Share of rows with cosine >= .95 and Jaccard >= .6 to a private record.
    """

    name: str
    role: str
    rows: int
    mauve: float | None = None
    mauve_std: float | None = None
    accuracy: float | None = None
    accuracy_std: float | None = None
    label_distance: float | None = None
    mean_words: float = 0.0
    length_quantiles: Sequence[float] = ()
    length_distance: float | None = None
    distinct: Mapping[str, float] = field(default_factory=dict)
    shared_spans: float | None = None
    longest_span_words: int | None = None
    near_duplicates: float | None = None
    verbatim_private_span: bool | None = None
    canaries: int | None = None
    gap_closed: Mapping[str, float] = field(default_factory=dict)
    seconds: float | None = None
    scoring_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    """Scores of all corpora and references, with the protocol that made them. Internal."""

    scores: Sequence[CorpusScore]
    settings: EvaluationSettings
    train_rows: int
    held_out_rows: int

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def evaluate(
    corpora: Mapping[str, CorpusInput],
    real_train: CorpusInput,
    real_held_out: CorpusInput,
    *,
    leaks: LeakSource | None = None,
    settings: EvaluationSettings | None = None,
    progress: ProgressCallback | None = None,
) -> EvaluationResult:
    """Scores corpora against real held-out text and searches them for real training text.

    Args:
        corpora: Name -> corpus; those with role `floor` and `ceiling` are the references.
        real_train: The private source the corpora were made from.
        real_held_out: Private records that no corpus was made from.
        leaks: What leak checks search for; None: the text of `real_train`.
        settings: The protocol; None takes the defaults.
        progress: Called with the share done and a public message.

    Returns:
        Scores: the real reference first, then floor, corpora, ceiling.

    **Privacy** Reads private text without noise. The result must stay internal.
    """
    settings = settings or EvaluationSettings()
    leaks = leaks or LeakSource()
    real = CorpusInput(
        texts=real_train.texts,
        labels=real_train.labels,
        embeddings=real_train.embeddings,
        role=REAL,
    )
    order = (FLOOR, CORPUS, CEILING)
    ranked = sorted(corpora.items(), key=lambda entry: order.index(entry[1].role))
    entries = [("real text", real), *ranked]
    scores = []
    for done, (name, corpus) in enumerate(entries):
        if progress is not None:
            progress(done / len(entries), f"scoring {name}")
        started = time.perf_counter()
        values = _quality(corpus, real_held_out, settings)
        if corpus.role != REAL:
            values |= _leaks(corpus, leaks.private or real_train, leaks, settings)
        values["scoring_seconds"] = time.perf_counter() - started
        scores.append(CorpusScore(name=name, role=corpus.role, seconds=corpus.seconds, **values))
    if progress is not None:
        progress(1.0, "scored")
    return EvaluationResult(
        scores=_with_gaps(scores),
        settings=settings,
        train_rows=len(real_train.texts),
        held_out_rows=len(real_held_out.texts),
    )


def _quality(
    corpus: CorpusInput, held_out: CorpusInput, settings: EvaluationSettings
) -> dict[str, Any]:
    values: dict[str, Any] = {"rows": len(corpus.texts)}
    if not corpus.texts:
        return values
    sample = corpus.texts[: settings.distinct_rows]
    values |= {
        "mean_words": float(word_counts(corpus.texts).mean()),
        "length_quantiles": length_quantiles(corpus.texts),
        "length_distance": length_distance(corpus.texts, held_out.texts),
        "distinct": {str(n): distinct_n(sample, n) for n in (1, 2, 3)},
    }
    if min(len(corpus.texts), len(held_out.texts)) >= 2:
        mauve = mauve_score(corpus.embeddings, held_out.embeddings, settings.mauve)
        values |= {"mauve": mauve.mean, "mauve_std": mauve.std}
    if corpus.labels and held_out.labels and len(set(held_out.labels)) > 1:
        values |= _label_scores(corpus, held_out, settings)
    return values


def _label_scores(
    corpus: CorpusInput, held_out: CorpusInput, settings: EvaluationSettings
) -> dict[str, Any]:
    labels, expected = list(corpus.labels or ()), list(held_out.labels or ())
    accuracies = [
        downstream_accuracy(corpus.embeddings, labels, held_out.embeddings, expected, seed)
        for seed in range(settings.accuracy_seeds)
    ]
    return {
        "accuracy": float(np.mean(accuracies)),
        "accuracy_std": float(np.std(accuracies)),
        "label_distance": label_distance(labels, expected),
    }


def _leaks(
    corpus: CorpusInput,
    real: CorpusInput,
    source: LeakSource,
    settings: EvaluationSettings,
) -> dict[str, Any]:
    return {
        "shared_spans": shared_span_share(
            corpus.texts, real.texts, source.public_texts, words=settings.shared_words
        ),
        "longest_span_words": longest_common_span(corpus.texts, real.texts),
        "near_duplicates": near_duplicate_share(
            corpus.texts, real.texts, corpus.embeddings, real.embeddings
        ),
        "verbatim_private_span": has_verbatim_private_span(
            corpus.texts,
            real.texts,
            source.public_texts,
            words=settings.verbatim_words,
            max_units=settings.verbatim_max_units,
            private_units=source.private_units,
        ),
        "canaries": find_canaries(corpus.texts, source.canaries) if source.canaries else None,
    }


def _with_gaps(scores: Sequence[CorpusScore]) -> list[CorpusScore]:
    """Adds to each corpus the share of the floor-to-ceiling gap it closed."""
    floor = next((score for score in scores if score.role == FLOOR), None)
    ceiling = next((score for score in scores if score.role == CEILING), None)
    if floor is None or ceiling is None:
        return list(scores)
    return [
        CorpusScore(**{**vars(score), "gap_closed": _gaps(score, floor, ceiling)})
        if score.role == CORPUS
        else score
        for score in scores
    ]


def _gaps(score: CorpusScore, floor: CorpusScore, ceiling: CorpusScore) -> dict[str, float]:
    shares = {}
    for name in ("mauve", "accuracy"):
        low, own, high = (getattr(entry, name) for entry in (floor, score, ceiling))
        # Where the ceiling is not above the floor there is no gap to close.
        if None not in (low, own, high) and high > low:
            shares[name] = (own - low) / (high - low)
    return shares
