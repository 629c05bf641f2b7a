"""Detectors of the secrets of one kind in a text, opened from their declaration.

Presidio's recognisers by rules (patterns, checksums, number formats) run without its language
model: a score is that of the pattern and its checksum alone, and weak patterns keep low scores.
Named entities are found by a model that is installed here, Presidio over spaCy or a transformers
model. Nothing is downloaded: Presidio would fetch a missing spaCy model without asking.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from dpsynth_assets.datasets.secrets import SecretKindSpec
from dpsynth_assets.secret_detection.words import Pattern, VocabularyWords, Words, rare_words

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


class SpacyEntities:
    """One of Presidio's entities (PERSON, LOCATION, …) by a spaCy pipeline."""

    def __init__(self, *, model: str, entity: str, min_score: float) -> None:
        """Loads the pipeline once a process.

        Raises:
            ValueError: If the model is neither an installed package nor a folder.
        """
        from presidio_analyzer.predefined_recognizers import SpacyRecognizer

        self._engine = _spacy_engine(model)
        self._recogniser = SpacyRecognizer(supported_entities=[entity])
        self._entity, self._min_score = entity, min_score

    def find(self, text: str) -> list[str]:
        """Entities with at least the least score; spaCy's all have the same, 0.85."""
        artifacts = self._engine.process_text(text, LANGUAGE)
        found = self._recogniser.analyze(text, [self._entity], artifacts)
        return [text[one.start : one.end] for one in found if one.score >= self._min_score]


class TransformersEntities:
    """One of Presidio's entities by a token-classification model from a folder or the cache."""

    def __init__(self, *, model: str, entity: str, min_score: float) -> None:
        """Loads the model once a process.

        Raises:
            ValueError: If the model is not on this machine.
        """
        self._classify = _token_classifier(model)
        self._entity, self._min_score = entity, min_score

    def find(self, text: str) -> list[str]:
        """Entities with at least the least score, under Presidio's names for the model's labels."""
        from presidio_analyzer.nlp_engine.ner_model_configuration import (
            MODEL_TO_PRESIDIO_ENTITY_MAPPING as NAMES,
        )

        return [
            text[one["start"] : one["end"]]
            for one in self._classify(text)
            if self._entity in (one["entity_group"], NAMES.get(one["entity_group"]))
            and one["score"] >= self._min_score
        ]


@lru_cache(maxsize=2)
def _spacy_engine(model: str) -> Any:
    import spacy
    from presidio_analyzer.nlp_engine import SpacyNlpEngine

    if not (spacy.util.is_package(model) or Path(model).exists()):
        raise ValueError(
            f"Expected an installed spaCy model or a folder, got {model!r}. Install the package "
            "(`pip install <model>`), or name a folder; nothing is downloaded."
        )
    engine = SpacyNlpEngine(models=[{"lang_code": LANGUAGE, "model_name": model}])
    engine.load()
    return engine


@lru_cache(maxsize=2)
def _token_classifier(model: str) -> Any:
    from transformers import AutoModelForTokenClassification, AutoTokenizer, pipeline

    try:
        tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
        weights = AutoModelForTokenClassification.from_pretrained(model, local_files_only=True)
    except OSError:
        raise ValueError(
            f"Expected a token-classification model on this machine, got {model!r}. Name a folder, "
            "or fetch it beforehand; nothing is downloaded."
        ) from None
    return pipeline(
        "token-classification", model=weights, tokenizer=tokenizer, aggregation_strategy="simple"
    )


class Detector(Protocol):
    """Finds values of one kind."""

    def find(self, text: str) -> list[str]:
        """The values in one text as they stand there, in any order, repeated or not."""


def detector_of(
    kind: SecretKindSpec, texts: Sequence[str], rare: Sequence[str] | None = None
) -> Detector | None:
    """Opens the detector of a kind.

    Args:
        kind: Its declaration.
        texts: The private texts, whose vocabulary decides which words are rare; used by
            `rare_words` alone.
        rare: The rare words, where `texts` are not all of them.

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
            if rare is None:
                rare = rare_words(texts, quantile=kind.quantile, count=kind.words)
            return VocabularyWords(rare)
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
