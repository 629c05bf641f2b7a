"""What finds the secrets of one kind in a text, from its declaration."""

import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from dpsynth_assets.datasets.secrets import SecretKindSpec
from dpsynth_assets.secret_detection.named_entities import SpacyEntities, TransformersEntities
from dpsynth_assets.secret_detection.presidio_rules import PresidioRules
from dpsynth_assets.secret_detection.words import Pattern, VocabularyWords, Words, rare_words


class Detector(Protocol):
    """Finds values of one kind."""

    def find(self, text: str) -> list[str]:
        """The values in one text as they stand there, in any order, repeated or not."""


def detector_of(kind: SecretKindSpec, texts: Sequence[str]) -> Detector | None:
    """Opens the detector of a kind.

    Args:
        kind: Its declaration.
        texts: The private texts, whose vocabulary decides which words are rare; used by
            `rare_words` alone.

    Returns:
        The detector; None where secrets are values of a column, which no text is searched for.

    Raises:
        ValueError: If an entity, a model or a file is not there; names no private value.
    """
    match kind.detector:
        case "presidio":
            return PresidioRules(entity=str(kind.entity), min_score=kind.min_score)
        case "ner":
            opened = SpacyEntities if kind.framework == "spacy" else TransformersEntities
            return opened(model=str(kind.model), entity=str(kind.entity), min_score=kind.min_score)
        case "dictionary":
            return Words(_lines(kind), ignore_case=kind.ignore_case)
        case "regex":
            flags = re.IGNORECASE if kind.ignore_case else 0
            return Pattern(re.compile(str(kind.pattern), flags))
        case "rare_words":
            return VocabularyWords(rare_words(texts, quantile=kind.quantile, count=kind.words))
    return None


def normalised(value: str) -> str:
    """Writes equal secrets alike: Unicode form, letter case and blanks do not tell them apart."""
    return " ".join(unicodedata.normalize("NFKC", value).casefold().split())


def _lines(kind: SecretKindSpec) -> list[str]:
    path = Path(str(kind.path)).expanduser()
    if not path.is_file():
        raise ValueError(
            f"Expected a text file of secrets for kind {kind.name!r}, got none at {path}. Write "
            "one secret a line, or correct secrets.kinds.path."
        )
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if line.strip()]
