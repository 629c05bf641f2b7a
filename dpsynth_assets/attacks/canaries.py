"""Planted canaries in a corpus, whatever happened to their case, spacing and hyphens.

Text and canaries are folded to letters and digits alone, so `X7QK-4Z9W`, `x7qk 4z9w` and
`X7QK4Z9W` are one canary. Every place of a text is looked up once among the canaries' openings:
time grows with the text, not with the number of canaries.
"""

import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

MINIMUM_CHARACTERS = 6
"""Shorter canaries would be found inside ordinary words."""


def contains_canary(texts: Sequence[str], canaries: Sequence[str]) -> bool:
    """Says whether any canary occurs in any text.

    Raises:
        ValueError: A canary has fewer than `MINIMUM_CHARACTERS` letters and digits.
    """
    return next(_occurrences(texts, canaries), None) is not None


def find_canaries(texts: Sequence[str], canaries: Sequence[str]) -> int:
    """Counts the distinct canaries that occur in at least one text.

    Raises:
        ValueError: A canary has fewer than `MINIMUM_CHARACTERS` letters and digits.
    """
    return len(set(_occurrences(texts, canaries)))


def _occurrences(texts: Sequence[str], canaries: Sequence[str]) -> Iterator[str]:
    """Yields a folded canary for each place where it occurs."""
    folded = {_fold(canary) for canary in canaries}
    if not folded:
        return
    width = min(len(canary) for canary in folded)
    if width < MINIMUM_CHARACTERS:
        raise ValueError(
            f"Expected canaries of at least {MINIMUM_CHARACTERS} letters and digits, got one of "
            f"{width}. Plant longer canaries."
        )
    openings = _by_opening(folded, width)
    for text in texts:
        yield from _in_text(_fold(text), openings, width)


def _by_opening(folded: set[str], width: int) -> Mapping[str, list[str]]:
    openings: dict[str, list[str]] = defaultdict(list)
    for canary in folded:
        openings[canary[:width]].append(canary)
    return dict(openings)


def _in_text(text: str, openings: Mapping[str, list[str]], width: int) -> Iterator[str]:
    for start in range(len(text) - width + 1):
        for canary in openings.get(text[start : start + width], ()):
            if text.startswith(canary, start):
                yield canary


def _fold(text: str) -> str:
    """Keeps letters and digits, compatibility-folded and case-folded."""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", text).casefold()))
