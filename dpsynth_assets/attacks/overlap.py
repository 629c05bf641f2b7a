"""Copied text: spans of private records that a corpus repeats word for word, and near copies.

**What counts as a leak.** A span of twelve words that at most two private units contain, that no
public document contains, and that is not composed of common pieces: some word of it is in no
word pair that a public document or a third unit also has. An everyday word, one of every twentieth
public document, needs no pair where it is the first or the last word. The reasons, shard by shard:

- Twelve words: a shorter span is often idiom.
- At most two units: a span of many units is boilerplate and tells on none of them; two and not
  one, because people quote each other and file a form twice.
- No public document: the span may have come from there.
- Not composed: two stock phrases one after the other make a long span that is rare, although
  it was not copied. Without this clause most records of a templated mailbox "copy" one another.
  Pairs let templates through and still find most copied spans of free text; pieces of three words
  find nearly all of those, and trip over templates. A span may cut a piece at either end: a stock
  phrase and the "I" that happens to follow it are no copy, and a text that copies more than the
  span is found by the next span, in which that word is not the last.

Of 300 spans of 2,500 reviews pasted into others, .80 were found at 12 words, .92 at 20 words and
.99 at 30 (news: .90, 1.00, 1.00), with 8,000 encyclopedia paragraphs as public text
(`benchmarks/copied_spans.py`).

The check looks for copying. It proves nothing about privacy: a corpus that passes may still be a
paraphrase, or repeat a span that public text composes.

Memory holds 64-bit hashes of the spans of the synthetic corpus, and a block of the others. A word
is a run of letters and digits after Unicode compatibility folding and case folding, so punctuation,
whitespace and capitals do not hide a copy. Scripts written without spaces count a character as a
word.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from dpsynth_assets.privacy.cpu import row_sums

BLOCK_TEXTS = 20_000
_UNSPACED = "぀-ヿ㐀-鿿豈-﫿"
_WORD = re.compile(f"[{_UNSPACED}]|[^\\W_{_UNSPACED}]+")
_BASE = np.uint64(0x9E3779B97F4A7C15)
"""Odd, so that multiplying by it loses no bits modulo 2**64."""


@dataclass(frozen=True, repr=False)
class WordBlock:
    """The words of a block of texts, end to end.

    Attributes:
        words: uint64 (W,), a hash a word.
        texts: int64 (W,), index of the text of each word, counted from the corpus's start.
    """

    words: np.ndarray
    texts: np.ndarray

    def spans(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Hashes every run of `length` words that lies inside one text.

        The 64-bit hash is a polynomial in the words' hashes: two different runs agree with
        probability about 2**-64, so a million against a million collide with probability 1e-7.

        Returns:
            Hashes, uint64 (S,), and the place of each run's first word, int64 (S,).
        """
        count = max(0, len(self.words) - length + 1)
        hashes = np.zeros(count, dtype=np.uint64)
        for offset in range(length if count else 0):
            hashes = hashes * _BASE + self.words[offset : offset + count]  # modulo 2**64
        inside = self.texts[:count] == self.texts[length - 1 : length - 1 + count]
        return hashes[inside], np.flatnonzero(inside)


def split_words(text: str) -> list[str]:
    """The text's words, folded."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def word_blocks(texts: Sequence[str]) -> Iterator[WordBlock]:
    """Hashes the words of a corpus, `BLOCK_TEXTS` texts at a time."""
    for start in range(0, len(texts), BLOCK_TEXTS):
        split = [split_words(text) for text in texts[start : start + BLOCK_TEXTS]]
        words = np.fromiter((_word_hash(w) for text in split for w in text), dtype=np.uint64)
        owners = np.repeat(np.arange(len(split)), [len(text) for text in split])
        yield WordBlock(words, owners + start)


@lru_cache(maxsize=500_000)
def _word_hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest())


BLOCK_ROWS = 1_024


@dataclass(frozen=True, kw_only=True, eq=False)
class HeldRecords:
    """Private records of one shard, in memory or in a mapped file.

    All records of a unit are in one shard, so counts of all shards add up to those of the whole.

    Attributes:
        texts: Private records.
        units: Unit of each; None counts each record as a unit.
        features: (M, d) unit embeddings of the records.
    """

    texts: Sequence[str] = field(repr=False, default=())
    units: Sequence[str] | None = field(repr=False, default=None)
    features: np.ndarray | None = field(repr=False, default=None)

    def span_holders(self, *asked: tuple[np.ndarray, int]) -> list[np.ndarray]:
        """Counts the private units that hold each span, in one pass over the texts.

        Args:
            asked: uint64 (C,) hashes of spans, sorted and distinct, and their number of words.

        Returns:
            int64 (C,) of each.

        Raises:
            ValueError: Units and records differ in number.
        """
        numbers = _unit_numbers(self.units, len(self.texts))
        unit_count = int(numbers.max(initial=0)) + 1
        # candidate * units + unit, each once
        pairs = [np.empty(0, dtype=np.int64) for _ in asked]
        for block in word_blocks(self.texts):
            for one, (candidates, words) in enumerate(asked):
                places, rows = matches(candidates, block, words)
                pairs[one] = np.union1d(pairs[one], places * unit_count + numbers[rows])
        lengths = (len(candidates) for candidates, _ in asked)
        return [
            np.bincount(own // unit_count, minlength=length)
            for own, length in zip(pairs, lengths, strict=True)
        ]

    def close_records(self, features: np.ndarray, cosine: float) -> np.ndarray:
        """Counts the private records close to each row: (N, d) unit embeddings -> int64 (N,).

        Raises:
            ValueError: There are no embeddings.
        """
        if self.features is None:
            raise ValueError("Expected embeddings of the private records, got none.")
        counts = np.zeros(len(features), dtype=np.int64)
        for other in range(0, len(self.features), BLOCK_ROWS):
            private = np.asarray(self.features[other : other + BLOCK_ROWS])
            for start in range(0, len(features), BLOCK_ROWS):
                rows = slice(start, start + BLOCK_ROWS)
                counts[rows] += _close_pairs(features[rows], private, cosine)
        return counts


def matches(candidates: np.ndarray, block: WordBlock, words: int) -> tuple[np.ndarray, np.ndarray]:
    """Finds a block's spans among sorted candidates: places there, and texts they are in."""
    hashes, starts = block.spans(words)
    if len(candidates) == 0:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    places = np.searchsorted(candidates, hashes).clip(max=len(candidates) - 1)
    found = candidates[places] == hashes
    return places[found], block.texts[starts[found]]


def _unit_numbers(units: Sequence[str] | None, records: int) -> np.ndarray:
    if units is None:
        return np.arange(records)
    if len(units) != records:
        raise ValueError(
            f"Expected a unit for each private record, got {len(units)} units and "
            f"{records} records."
        )
    return np.unique(np.asarray(units), return_inverse=True)[1]


_PAIRS_AT_A_TIME = 1 << 14


def _close_pairs(block: np.ndarray, private: np.ndarray, cosine: float) -> np.ndarray:
    """Counts for each row the records of at least that inner product, as float64 adds it up.

    A product of matrices rounds a pair by its place in the block. Where that could decide, the pair
    is multiplied by itself: so a count depends on the pairs alone, however they are divided.

    **Source** Higham 2002, eq. 3.5: the rounding of an inner product of d terms.
    """
    similarity = block @ private.T
    longest = np.linalg.norm(block, axis=1).max() * np.linalg.norm(private, axis=1).max()
    margin = (block.shape[1] + 8) * 2.0**-23 * float(longest)
    counts = (similarity > cosine + margin).sum(axis=1)
    rows, records = np.nonzero(np.abs(similarity - cosine) <= margin)
    for start in range(0, len(rows), _PAIRS_AT_A_TIME):
        some = slice(start, start + _PAIRS_AT_A_TIME)
        left, right = (
            each.astype(np.float64) for each in (block[rows[some]], private[records[some]])
        )
        close = row_sums(left * right) >= cosine
        counts += np.bincount(rows[some][close], minlength=len(block))
    return np.asarray(counts, dtype=np.int64)


SPAN_WORDS = 12
MOST_UNITS = 2
PIECE_WORDS = 2
EVERYDAY_SHARE = 0.05
NEAR_DUPLICATE_COSINE = 0.95


def verbatim_share(
    texts: Sequence[str],
    private: Iterable[HeldRecords],
    public_texts: Sequence[str],
) -> float:
    """Share of texts that repeat a span particular to few private units; 0 for an empty corpus.

    Args:
        texts: The synthetic corpus.
        private: The records that may have been copied, by shards, which are read several times.
        public_texts: Documents whose spans are no leak.

    **Privacy** Internal: computed from private records without noise.
    """
    copied = {span.row for span in copied_spans(texts, private, public_texts)}
    return len(copied) / len(texts) if texts else 0.0


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
    private: Iterable[HeldRecords],
    public_texts: Sequence[str],
) -> list[CopiedSpan]:
    """Lists every span that `verbatim_share` finds, for the steward's eyes.

    Args:
        texts: The synthetic corpus.
        private: The records that may have been copied, by shards, which are read several times.
        public_texts: Documents whose spans are no leak.

    Returns:
        Spans by row and place; empty where nothing is copied.

    **Privacy** Internal: computed from private records without noise, and quotes them.
    """
    return [
        CopiedSpan(row, tuple(split_words(texts[row])[first:last]))
        for block in word_blocks(texts)
        for row, first, last in _runs(block, _copied_starts(block, private, public_texts))
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


def near_duplicate_share(features: np.ndarray, private: Iterable[HeldRecords]) -> float:
    """Share of rows with a private record whose cosine is at least `NEAR_DUPLICATE_COSINE`.

    Texts of one template are near duplicates of each other, so the figure says something only
    beside that of real held-out records.

    Args:
        features: (N, d) unit embeddings of the synthetic corpus.
        private: The records that may have been copied, by shards, which are read several times.

    **Privacy** Internal: computed from private records without noise.
    """
    if len(features) == 0:
        return 0.0
    close = [each.close_records(features, NEAR_DUPLICATE_COSINE) for each in private]
    return int((np.sum(close, axis=0) > 0).sum()) / len(features)


def _copied_starts(
    block: WordBlock, private: Iterable[HeldRecords], public_texts: Sequence[str]
) -> np.ndarray:
    """Finds the first words of a block's particular spans: int64 (S,), in order."""
    hashes, starts = block.spans(SPAN_WORDS)
    candidates = np.unique(hashes)
    (holders,) = span_holders(private, (candidates, SPAN_WORDS))
    public = in_public(candidates, SPAN_WORDS, public_texts)
    leaked = candidates[(holders > 0) & (holders <= MOST_UNITS) & ~public]
    suspects = starts[np.isin(hashes, leaked)]  # first words of particular spans
    if len(suspects) == 0:
        return suspects
    common = _common_words(block, private, public_texts)
    everyday = _everyday_words(block, public_texts)
    return suspects[~_composed(suspects, common, common | everyday)]


def span_holders(
    private: Iterable[HeldRecords], *asked: tuple[np.ndarray, int]
) -> list[np.ndarray]:
    """Counts the private units of all shards that hold each span: int64 (C,) of each."""
    found = [each.span_holders(*asked) for each in private]
    return [np.asarray(sum(counts)) for counts in zip(*found, strict=True)]


def _composed(starts: np.ndarray, common: np.ndarray, at_an_end: np.ndarray) -> np.ndarray:
    """Marks the spans that common pieces make up, pieces cut by an end included: bool (S,)."""
    before = np.concatenate([[0], np.cumsum(~common)])
    last = starts + SPAN_WORDS - 1
    rare_inside = before[last] > before[np.minimum(starts + 1, last)]
    return at_an_end[starts] & at_an_end[last] & ~rare_inside


def _common_words(
    block: WordBlock, private: Iterable[HeldRecords], public_texts: Sequence[str]
) -> np.ndarray:
    """Marks the words of a block that are in a common piece: bool (W,)."""
    hashes, starts = block.spans(PIECE_WORDS)
    candidates = np.unique(hashes)
    public = in_public(candidates, PIECE_WORDS, public_texts)
    (holders,) = span_holders(private, (candidates, PIECE_WORDS))
    common = candidates[public | (holders > MOST_UNITS)]
    pieces = starts[np.isin(hashes, common)]
    covered = np.zeros(len(block.words), dtype=bool)
    for offset in range(PIECE_WORDS):
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


def in_public(candidates: np.ndarray, words: int, public_texts: Sequence[str]) -> np.ndarray:
    """Marks those of (C,) sorted and distinct spans that public text has: bool (C,)."""
    public = np.zeros(len(candidates), dtype=bool)
    for block in word_blocks(public_texts):
        public[matches(candidates, block, words)[0]] = True
    return public
