"""Secrets that are words: of a dictionary, of a pattern, or rare in the records."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

_WORD = re.compile(r"\w+(?:['’-]\w+)*")
"""A word: letters and digits, with apostrophes and hyphens inside."""


class Words:
    """Words and phrases of a list, at word boundaries."""

    def __init__(self, words: Iterable[str], *, ignore_case: bool = True) -> None:
        """Compiles the list; longer phrases win over the words they begin with."""
        ordered = sorted({word for word in words if word}, key=lambda word: (-len(word), word))
        alternatives = "|".join(_with_any_blanks(word) for word in ordered)
        flags = re.IGNORECASE if ignore_case else 0
        # Boundaries by look-around: a secret may begin or end with a sign that is no letter.
        self._pattern = re.compile(rf"(?<!\w)(?:{alternatives})(?!\w)", flags) if ordered else None

    def find(self, text: str) -> list[str]:
        """Every occurrence of a listed word."""
        return self._pattern.findall(text) if self._pattern is not None else []


class VocabularyWords:
    """Words as a vocabulary counts them: `ll` is not found in `we'll`."""

    def __init__(self, words: Iterable[str]) -> None:
        """Takes words in lower case, as `rare_words` lists them."""
        self._words = frozenset(words)

    def find(self, text: str) -> list[str]:
        """Every occurrence of a listed word."""
        return [word for word in _WORD.findall(text) if word.casefold() in self._words]


class Pattern:
    """Matches of a regular expression."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        """Takes a compiled pattern; its first group is the secret, where it has groups."""
        self._pattern = pattern

    def find(self, text: str) -> list[str]:
        """Every match that is not empty."""
        group = 1 if self._pattern.groups else 0
        return [found[group] for found in self._pattern.finditer(text) if found[group]]


def rare_words(texts: Sequence[str], *, quantile: float, count: int) -> list[str]:
    """Lists words near a quantile of the vocabulary of texts; see `rare_among`."""
    return rare_among(word_counts(texts), quantile=quantile, count=count)


def word_counts(texts: Iterable[str]) -> Counter[str]:
    """Counts the words of private texts, in lower case; counts of several lists add up."""
    return Counter(word for text in texts for word in _WORD.findall(text.casefold()))


def rare_among(frequency: Mapping[str, int], *, quantile: float, count: int) -> list[str]:
    """Lists words near a quantile of a vocabulary, rarest first.

    Args:
        frequency: How often each word of the private texts occurs.
        quantile: Place in the sorted vocabulary, in [0, 1].
        count: Words taken, half of them on either side.

    Returns:
        At most `count` words, in lower case. Private: they depend on all records.

    **Source** SecPE, section 4.2: words sorted by frequency, those near the 20% quantile. Equally
    frequent words are sorted by themselves, so that the list is a function of the texts.
    """
    ordered = sorted(frequency, key=lambda word: (frequency[word], word))
    middle = round(quantile * max(0, len(ordered) - 1))
    start = max(0, min(middle - count // 2, len(ordered) - count))
    return ordered[start : start + count]


def _with_any_blanks(phrase: str) -> str:
    return r"\s+".join(re.escape(part) for part in phrase.split())
