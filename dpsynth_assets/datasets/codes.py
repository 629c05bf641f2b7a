"""Labels that are codes, and which no model could know."""

import re

_LEAST_LETTERS = 4
"""A word of fewer letters, or of capitals alone, may be an abbreviation."""


def looks_like_code(label: str) -> bool:
    """Says whether a label is no word that a model could know: "ABBR", "3", "neg"."""
    words = re.findall(r"[^\W\d_]+", label)
    return not any(len(word) >= _LEAST_LETTERS and not word.isupper() for word in words)
