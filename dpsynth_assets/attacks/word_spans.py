"""Hashes of runs of words, for comparing corpora without holding their text twice.

A word is a run of letters and digits after Unicode compatibility folding and case folding, so
punctuation, whitespace and capitals do not hide a copy. Scripts written without spaces count a
character as a word.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

BLOCK_TEXTS = 20_000
_UNSPACED = "぀-ヿ㐀-鿿豈-﫿"
_WORD = re.compile(f"[{_UNSPACED}]|[^\\W_{_UNSPACED}]+")
_BASE = np.uint64(0x9E3779B97F4A7C15)
"""Odd, so that multiplying by it loses no bits modulo 2**64."""


@dataclass(frozen=True, repr=False)
class SpanHashes:
    """Hashes of the spans of a block of texts.

    Attributes:
        hashes: uint64 (S,), one for each run of n words inside one text.
        texts: int64 (S,), index of the text, counted from the corpus's start.
    """

    hashes: np.ndarray
    texts: np.ndarray


def split_words(text: str) -> list[str]:
    """The text's words, folded."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def span_hashes(texts: Sequence[str], words: int) -> Iterator[SpanHashes]:
    """Hashes every run of `words` words, a block of texts at a time.

    The 64-bit hash is a polynomial in hashes of the words: two different spans agree with
    probability about 2**-64, so a million spans against a million collide with probability 1e-7.

    Args:
        texts: The corpus.
        words: Words a span, at least 1; shorter texts have none.
    """
    for start in range(0, len(texts), BLOCK_TEXTS):
        split = [split_words(text) for text in texts[start : start + BLOCK_TEXTS]]
        lengths = np.array([len(text) for text in split])
        flat = np.fromiter((_word_hash(w) for text in split for w in text), dtype=np.uint64)
        if len(flat) < words:
            continue
        owners = np.repeat(np.arange(len(split)), lengths)  # text of each word
        spans = len(flat) - words + 1
        hashes = np.zeros(spans, dtype=np.uint64)
        for offset in range(words):
            hashes = hashes * _BASE + flat[offset : offset + spans]  # wraps modulo 2**64
        inside = owners[:spans] == owners[words - 1 :]  # the span ends in the text it began in
        yield SpanHashes(hashes[inside], owners[:spans][inside] + start)


@lru_cache(maxsize=500_000)
def _word_hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest())
