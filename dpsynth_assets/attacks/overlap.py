"""Copied text: spans of private records that a corpus repeats word for word, and near copies.

**What counts as a leak.** A span of twelve words that at most two private units contain and no
public document contains. A shorter span is often idiom. A span of many units is boilerplate and
tells on none of them. A span of a public document may have come from there. Two units and not
one, because people quote each other and forms are filed twice. The check looks for copying; it
proves nothing about privacy, and a corpus that passes may still be an unnoised paraphrase.

Memory holds one 64-bit hash for each span of the synthetic corpus, and a block of the others.
"""

from collections.abc import Sequence

import numpy as np

from dpsynth_assets.attacks.word_spans import span_hashes

SPAN_WORDS = 12
MOST_UNITS = 2
NEAR_DUPLICATE_COSINE = 0.95
BLOCK_ROWS = 1_024


def has_verbatim_private_span(
    texts: Sequence[str],
    private_texts: Sequence[str],
    public_texts: Sequence[str],
    *,
    words: int = SPAN_WORDS,
    most_units: int = MOST_UNITS,
    private_units: Sequence[str] | None = None,
) -> bool:
    """Whether any text repeats a span that is particular to few private units.

    Args:
        texts: The synthetic corpus.
        private_texts: Private records.
        public_texts: Documents whose spans are no leak.
        words: Words a span, at least 1.
        most_units: Most units that a particular span occurs in, at least 1.
        private_units: Unit of each private record; None counts each record as a unit.

    Raises:
        ValueError: A number is out of range, or units and records differ in length.

    **Privacy** The answer is computed from private records without noise: one bit a call.
    """
    return bool(_copies(texts, private_texts, public_texts, words, most_units, private_units).any())


def verbatim_share(
    texts: Sequence[str],
    private_texts: Sequence[str],
    public_texts: Sequence[str],
    *,
    words: int = SPAN_WORDS,
    most_units: int = MOST_UNITS,
    private_units: Sequence[str] | None = None,
) -> float:
    """Share of texts for which `has_verbatim_private_span` holds; 0 for an empty corpus.

    **Privacy** Internal: computed from private records without noise.
    """
    copies = _copies(texts, private_texts, public_texts, words, most_units, private_units)
    return float(copies.mean()) if len(copies) else 0.0


def near_duplicate_share(
    features: np.ndarray,
    private_features: np.ndarray,
    *,
    cosine: float = NEAR_DUPLICATE_COSINE,
) -> float:
    """Share of rows whose nearest private record is at least `cosine` similar.

    Texts of one template are near duplicates of each other, so the figure says something only
    beside that of real held-out records.

    Args:
        features: (N, d) unit embeddings of the synthetic corpus.
        private_features: (M, d) unit embeddings of private records.
        cosine: Similarity from which a row counts, in [-1, 1].

    **Privacy** Internal: computed from private records without noise.
    """
    if len(features) == 0 or len(private_features) == 0:
        return 0.0
    close = 0
    for start in range(0, len(features), BLOCK_ROWS):
        block = features[start : start + BLOCK_ROWS]  # [block, d]
        nearest = np.full(len(block), -1.0, dtype=np.float32)
        for other in range(0, len(private_features), BLOCK_ROWS):
            similarity = block @ private_features[other : other + BLOCK_ROWS].T
            np.maximum(nearest, similarity.max(1), out=nearest)
        close += int((nearest >= cosine).sum())
    return close / len(features)


def _copies(
    texts: Sequence[str],
    private_texts: Sequence[str],
    public_texts: Sequence[str],
    words: int,
    most_units: int,
    private_units: Sequence[str] | None,
) -> np.ndarray:
    """Finds the texts that hold a particular span: bool (N,)."""
    if words < 1 or most_units < 1:
        raise ValueError(f"Expected words and most_units >= 1, got {words} and {most_units}.")
    copies = np.zeros(len(texts), dtype=bool)
    blocks = list(span_hashes(texts, words))
    if not blocks:
        return copies
    candidates = np.unique(np.concatenate([block.hashes for block in blocks]))  # sorted
    if len(candidates) == 0:  # every text is shorter than a span
        return copies
    units = _unit_numbers(private_units, len(private_texts))
    holders = _units_per_span(candidates, private_texts, units, words)
    particular = (holders > 0) & (holders <= most_units)
    particular &= ~_occurs(candidates, public_texts, words)
    leaked = candidates[particular]
    for block in blocks:
        copies[block.texts[np.isin(block.hashes, leaked)]] = True
    return copies


def _unit_numbers(private_units: Sequence[str] | None, records: int) -> np.ndarray:
    if private_units is None:
        return np.arange(records)
    if len(private_units) != records:
        raise ValueError(
            f"Expected a unit for each private record, got {len(private_units)} units and "
            f"{records} records."
        )
    return np.unique(np.asarray(private_units), return_inverse=True)[1]


def _units_per_span(
    candidates: np.ndarray, private_texts: Sequence[str], units: np.ndarray, words: int
) -> np.ndarray:
    """Counts the distinct units that hold each candidate span: int64 (C,)."""
    pairs = np.empty((0, 2), dtype=np.int64)  # (candidate, unit), each once
    for block in span_hashes(private_texts, words):
        places, found = _locate(candidates, block.hashes)
        new = np.column_stack([places[found], units[block.texts[found]]])
        pairs = np.unique(np.concatenate([pairs, new]), axis=0)
    return np.bincount(pairs[:, 0], minlength=len(candidates))


def _occurs(candidates: np.ndarray, texts: Sequence[str], words: int) -> np.ndarray:
    """Marks the candidate spans that any of the texts holds: bool (C,)."""
    present = np.zeros(len(candidates), dtype=bool)
    for block in span_hashes(texts, words):
        places, found = _locate(candidates, block.hashes)
        present[places[found]] = True
    return present


def _locate(candidates: np.ndarray, hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Finds hashes among sorted candidates: their places, and which of them are there."""
    places = np.searchsorted(candidates, hashes).clip(max=len(candidates) - 1)
    return places, candidates[places] == hashes
