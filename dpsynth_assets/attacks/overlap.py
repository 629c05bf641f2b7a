"""Copied text: spans of private records that a corpus repeats word for word, and near copies.

**What counts as a leak.** A span of twelve words that at most two private units contain, that no
public document contains, and that is not composed of common pieces: some word of it lies in no
word pair that a public document or a third unit also has. An everyday word, one of every twentieth
public document, needs no pair where it is the first or the last word. The reasons, part by part:

- Twelve words: a shorter span is often idiom.
- At most two units: a span of many units is boilerplate and tells on none of them; two and not
  one, because people quote each other and file a form twice.
- No public document: the span may have come from there.
- Not composed: two stock phrases one after the other make a long span that is rare, although
  nobody copied it. Without this clause most records of a templated mailbox "copy" one another.
  Pairs let templates through and still find most copied spans of free text; pieces of three words
  find nearly all of those, and trip over templates. A span may cut a piece at either end: a stock
  phrase and the "I" that happens to follow it are no copy, and whoever copies more than the span
  is found by the next span, in which that word is not the last.

Of 300 spans of 2,500 reviews pasted into others, .80 were found at 12 words, .92 at 20 words and
.99 at 30 (news: .90, 1.00, 1.00), with 8,000 encyclopedia paragraphs as public text
(`benchmarks/copied_spans.py`).

The check looks for copying. It proves nothing about privacy: a corpus that passes may still be a
paraphrase, or repeat a span that public text composes.

Memory holds 64-bit hashes of the spans of the synthetic corpus, and a block of the others.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from dpsynth_assets.attacks.near_copies import CloseRecords, close_among
from dpsynth_assets.attacks.span_holders import SpanHolders, holders_among, matches
from dpsynth_assets.attacks.word_spans import WordBlock, split_words, word_blocks

SPAN_WORDS = 12
MOST_UNITS = 2
PIECE_WORDS = 2
EVERYDAY_SHARE = 0.05
NEAR_DUPLICATE_COSINE = 0.95


@dataclass(frozen=True, kw_only=True)
class _Background:
    """Spans that a corpus is compared with."""

    private: SpanHolders
    public_texts: Sequence[str]
    most_units: int


def verbatim_share(
    texts: Sequence[str],
    private_texts: Sequence[str] | SpanHolders,
    public_texts: Sequence[str],
    *,
    words: int = SPAN_WORDS,
    most_units: int = MOST_UNITS,
    piece_words: int = PIECE_WORDS,
    private_units: Sequence[str] | None = None,
) -> float:
    """Share of texts that repeat a span particular to few private units; 0 for an empty corpus.

    Args:
        texts: The synthetic corpus.
        private_texts: Private records, or what counts their units where they lie elsewhere.
        public_texts: Documents whose spans are no leak.
        words: Words a span, at least 1.
        most_units: Most units that a particular span occurs in, at least 1.
        piece_words: Words of a piece that makes a span a composition, in [1, words]. Raise it to
            3 where public text is so large that it holds most word pairs of the language.
        private_units: Unit of each private record; None counts each record as a unit.

    Raises:
        ValueError: A number is out of range, or units and records differ in length.

    **Privacy** Internal: computed from private records without noise.
    """
    if not 1 <= piece_words <= words or most_units < 1:
        raise ValueError(
            "Expected 1 <= piece_words <= words and most_units >= 1, got piece_words="
            f"{piece_words}, words={words}, most_units={most_units}."
        )
    background = _background(private_texts, private_units, public_texts, most_units)
    copies = np.zeros(len(texts), dtype=bool)
    for block in word_blocks(texts):
        copies[block.texts[_copied_starts(block, background, words, piece_words)]] = True
    return float(copies.mean()) if len(copies) else 0.0


@dataclass(frozen=True)
class CopiedSpan:
    """Words of a synthetic text that it shares with one or two private units.

    Attributes:
        row: Index of the synthetic text.
        words: The words, folded and in order: at least `SPAN_WORDS`, spans that overlap as one.
    """

    row: int
    words: tuple[str, ...] = field(repr=False)


def copied_spans(
    texts: Sequence[str],
    private_texts: Sequence[str] | SpanHolders,
    public_texts: Sequence[str],
    *,
    private_units: Sequence[str] | None = None,
) -> list[CopiedSpan]:
    """Lists every span that `verbatim_share` finds, for the steward's eyes.

    Args:
        texts: The synthetic corpus.
        private_texts: Private records, or what counts their units where they lie elsewhere.
        public_texts: Documents whose spans are no leak.
        private_units: Unit of each private record; None counts each record as a unit.

    Returns:
        Spans by row and place; empty where nothing is copied.

    **Privacy** Internal: computed from private records without noise, and quotes them.
    """
    background = _background(private_texts, private_units, public_texts, MOST_UNITS)
    return [
        CopiedSpan(row, tuple(split_words(texts[row])[first:last]))
        for block in word_blocks(texts)
        for row, first, last in _runs(
            block, _copied_starts(block, background, SPAN_WORDS, PIECE_WORDS)
        )
    ]


def _runs(block: WordBlock, starts: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """Joins spans that overlap: row, first word and end of each run, counted within its text."""
    openings = np.searchsorted(block.texts, block.texts[starts])
    run: list[int] | None = None
    for start, row, opening in zip(
        starts.tolist(), block.texts[starts].tolist(), openings.tolist(), strict=True
    ):
        first, last = start - opening, start - opening + SPAN_WORDS
        if run is not None and run[0] == row and first <= run[2]:
            run[2] = last
            continue
        if run is not None:
            yield run[0], run[1], run[2]
        run = [row, first, last]
    if run is not None:
        yield run[0], run[1], run[2]


def near_duplicate_share(
    features: np.ndarray,
    private_features: np.ndarray | CloseRecords,
    *,
    cosine: float = NEAR_DUPLICATE_COSINE,
) -> float:
    """Share of rows with a private record that is at least `cosine` similar.

    Texts of one template are near duplicates of each other, so the figure says something only
    beside that of real held-out records.

    Args:
        features: (N, d) unit embeddings of the synthetic corpus.
        private_features: (M, d) unit embeddings of private records, or what counts those close to
            a row where they lie elsewhere.
        cosine: Similarity from which a row counts, in [-1, 1].

    **Privacy** Internal: computed from private records without noise.
    """
    if len(features) == 0:
        return 0.0
    close = private_features if callable(private_features) else close_among(private_features)
    return int((close(features, cosine) > 0).sum()) / len(features)


def _background(
    private: Sequence[str] | SpanHolders,
    private_units: Sequence[str] | None,
    public_texts: Sequence[str],
    most_units: int,
) -> _Background:
    holders = private if callable(private) else holders_among(private, private_units)
    return _Background(private=holders, public_texts=public_texts, most_units=most_units)


def _copied_starts(
    block: WordBlock, background: _Background, words: int, piece_words: int
) -> np.ndarray:
    """Finds the first words of a block's particular spans: int64 (S,), in order."""
    hashes, starts = block.spans(words)
    candidates = np.unique(hashes)
    holders, public = _holders(candidates, words, background)
    leaked = candidates[(holders > 0) & (holders <= background.most_units) & ~public]
    suspects = starts[np.isin(hashes, leaked)]  # first words of particular spans
    if len(suspects) == 0:
        return suspects
    return suspects[~_composed(block, suspects, background, words, piece_words)]


def _composed(
    block: WordBlock, starts: np.ndarray, background: _Background, words: int, piece_words: int
) -> np.ndarray:
    """Marks the spans that common pieces make up, pieces cut by an end included: bool (S,)."""
    common = _common_words(block, background, piece_words)
    at_an_end = common | _everyday_words(block, background.public_texts)
    before = np.concatenate([[0], np.cumsum(~common)])
    last = starts + words - 1
    rare_inside = before[last] > before[np.minimum(starts + 1, last)]
    return at_an_end[starts] & at_an_end[last] & ~rare_inside


def _common_words(block: WordBlock, background: _Background, piece_words: int) -> np.ndarray:
    """Marks the words of a block that lie in a common piece: bool (W,)."""
    hashes, starts = block.spans(piece_words)
    candidates = np.unique(hashes)
    holders, public = _holders(candidates, piece_words, background)
    common = candidates[public | (holders > background.most_units)]
    pieces = starts[np.isin(hashes, common)]
    covered = np.zeros(len(block.words), dtype=bool)
    for offset in range(piece_words):
        covered[pieces + offset] = True
    return covered


def _everyday_words(block: WordBlock, public_texts: Sequence[str]) -> np.ndarray:
    """Marks the words of a block that every twentieth public document has: bool (W,)."""
    words = np.unique(block.words)
    documents = np.zeros(len(words), dtype=np.int64)
    for public in word_blocks(public_texts):
        places, texts = matches(words, public, 1)
        held = np.unique(np.stack([places, texts]), axis=1)  # each document counts a word once
        documents += np.bincount(held[0], minlength=len(words))
    everyday = words[documents >= max(1.0, EVERYDAY_SHARE * len(public_texts))]
    return np.isin(block.words, everyday)


def _holders(
    candidates: np.ndarray, words: int, background: _Background
) -> tuple[np.ndarray, np.ndarray]:
    """Counts the units that hold each candidate span, and marks those in public text.

    Args:
        candidates: uint64 (C,), sorted and distinct.
        words: Words a span.
        background: Texts to search.

    Returns:
        int64 (C,) and bool (C,).
    """
    public = np.zeros(len(candidates), dtype=bool)
    for block in word_blocks(background.public_texts):
        public[matches(candidates, block, words)[0]] = True
    return background.private(candidates, words), public
