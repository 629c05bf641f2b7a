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
