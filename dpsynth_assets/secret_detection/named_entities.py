"""Named entities by a model that is installed here: Presidio over spaCy, or a transformers model.

Nothing is downloaded: Presidio would fetch a missing spaCy model without asking.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any

from dpsynth_assets.secret_detection.presidio_rules import LANGUAGE


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
