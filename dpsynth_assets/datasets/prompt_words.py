"""Public words that prompts are made of: labels that say what a text is, and a domain that does."""

from collections.abc import Sequence

from dpsynth_assets.datasets.codes import looks_like_code
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
        _warning(
            f"public_facts.labels.{column}",
            "labels that say in words what a text is",
            _listed(codes),
            f"Write {{{codes[0]}: <in words>, ...}}: prompts ask for a text by these words.",
        )
        for column, codes in found.items()
        if codes
    ]


def _short_domain(spec: PrivateDatasetSpec, base: PublicDataSpec) -> list[Problem]:
    """A domain of one word leaves open what the texts are."""
    if spec.prompt is not None or not base.domain or len(base.domain.split()) > 1:
        return []
    return [
        _warning(
            "public_data",
            f"several words in the domain of the public base {base.name}",
            repr(base.domain),
            "Say what kind of texts they are, of what and for whom.",
        )
    ]


def _listed(codes: Sequence[str], shown: int = 5) -> str:
    more = ", ..." if len(codes) > shown else ""
    return ", ".join(map(repr, codes[:shown])) + more


def _warning(field: str, expected: str, got: str, remedy: str) -> Problem:
    return Problem(
        file="", field=field, expected=expected, got=got, remedy=remedy, severity="warning"
    )
