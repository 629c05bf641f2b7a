"""Presidio's recognisers that work by rules: patterns, checksums, number formats; no model.

Presidio itself would ask for a language model to raise scores by context words; without one a
score is that of the pattern and its checksum alone, and weak patterns keep their low scores.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

LANGUAGE = "en"


class PresidioRules:
    """One entity, looked for by every rule-based recogniser that knows it."""

    def __init__(self, *, entity: str, min_score: float) -> None:
        """Loads Presidio's recognisers once a process.

        Raises:
            ValueError: If no rule-based recogniser knows the entity.
        """
        known = _recognisers()
        if entity not in known:
            raise ValueError(
                f"Expected an entity that Presidio finds by rules ({', '.join(sorted(known))}), "
                f"got {entity!r}. Choose one, or use detector: ner with a model."
            )
        self._entity, self._min_score, self._recognisers = entity, min_score, known[entity]

    def find(self, text: str) -> list[str]:
        """Values of the entity with at least the least score."""
        return [
            text[found.start : found.end]
            for recogniser in self._recognisers
            for found in recogniser.analyze(text, [self._entity], None)
            if found.score >= self._min_score
        ]


@lru_cache(maxsize=1)
def _recognisers() -> dict[str, list[Any]]:
    """Entity -> its recognisers, those that need a language model left out."""
    from presidio_analyzer.predefined_recognizers import SpacyRecognizer
    from presidio_analyzer.recognizer_registry import RecognizerRegistry

    registry = RecognizerRegistry()
    registry.load_predefined_recognizers(languages=[LANGUAGE])
    known: dict[str, list[Any]] = {}
    for recogniser in registry.recognizers:
        if isinstance(recogniser, SpacyRecognizer):
            continue
        _keep_offline(recogniser)
        for entity in recogniser.supported_entities:
            known.setdefault(entity, []).append(recogniser)
    return known


def _keep_offline(recogniser: Any) -> None:
    """Checks the domains of addresses against the list of suffixes that was installed.

    As it comes, the first address found would fetch a newer list over the network.
    """
    from presidio_analyzer.predefined_recognizers import EmailRecognizer, UrlRecognizer

    if isinstance(recogniser, EmailRecognizer | UrlRecognizer):
        recogniser.validate_result = _has_known_suffix()  # type: ignore[method-assign, assignment]


@lru_cache(maxsize=1)
def _has_known_suffix() -> Callable[[str], bool]:
    from tldextract import TLDExtract

    extract = TLDExtract(suffix_list_urls=(), cache_dir=None)
    return lambda address: extract(address).fqdn != ""
