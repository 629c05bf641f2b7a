"""Labels in words: asked for on a terminal, or given as options, where the values are codes."""

import sys
from collections.abc import Mapping, Sequence

import typer

from dpsynth_assets.datasets.codes import looks_like_code

Labels = Mapping[str, Sequence[str]]
"""Label column -> its public values."""


def label_words(labels: Labels, given: Sequence[str], *, asks: bool) -> dict[str, str]:
    """Says how prompts write label values, where that is not the value itself.

    Args:
        labels: Public values.
        given: `VALUE=WORDS` each.
        asks: Whether somebody at a terminal is asked for the words of codes.

    Raises:
        BadParameter: A value is none of the labels, or has no words.
    """
    found: dict[str, str] = {}
    known = [value for values in labels.values() for value in values]
    for text in given:
        value, words = named_part(text, known)
        if value not in known or not words:
            raise typer.BadParameter(
                f"Expected --label-words VALUE=WORDS with a value of --public-labels, got {text!r}."
            )
        found[value] = words
    if asks and sys.stdin.isatty():
        for code in codes_of(labels, found):
            words = typer.prompt(f"{code!r} in words (Enter: as it is)", default=code).strip()
            found |= {} if words in ("", code) else {code: words}
    return found


def named_part(text: str, known: Sequence[str]) -> tuple[str, str]:
    """Parts NAME=REST: a known name may hold a sign of equality itself; the longest is meant."""
    ends = [place for place, sign in enumerate(text) if sign == "="] or [len(text)]
    pairs = [(text[:end].strip(), text[end + 1 :].strip()) for end in ends]
    return next((pair for pair in reversed(pairs) if pair[0] in known), pairs[0])


def codes_of(labels: Labels, words: Mapping[str, str]) -> list[str]:
    """Values that look like codes and have no words yet."""
    values = [value for column in labels.values() for value in column]
    return [value for value in values if value not in words and looks_like_code(value)]
