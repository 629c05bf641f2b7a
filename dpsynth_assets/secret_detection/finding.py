"""Finds declared secrets: detectors in a text, and which private record holds which secret.

Presidio's recognisers by rules (patterns, checksums, number formats) run without its language
model: a score is that of the pattern and its checksum alone, and weak patterns keep low scores.
Named entities are found by Presidio over a spaCy model that is installed here, which it would fetch
without asking, or by a transformers model from a folder or the hub, as language models are. The
values of a column of the source are secrets, too, where the user names it.

**Privacy** An incidence is private, whole.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import polars as pl

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.datasets.secrets import SecretKindSpec, SecretsSpec
from dpsynth_assets.records.record_filters import REASON, column_names, judge, record_ids
from dpsynth_assets.records.sources import read_source

LANGUAGE = "en"
"""Of Presidio's recognisers."""

Detector = Callable[[str], list[str]]
"""Finds values of one kind in a text, as they are written, in any order, repeated or not."""


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
    entity, model = str(kind.entity), str(kind.model)
    match kind.detector:
        case "presidio":
            return _presidio_rules(entity, kind.min_score)
        case "ner" if kind.framework == "spacy":
            return _spacy_entities(model, entity, kind.min_score)
        case "ner":
            return _transformers_entities(model, entity, kind.min_score)
        case "dictionary":
            return listed_words(_lines(kind), ignore_case=kind.ignore_case)
        case "regex":
            flags = re.IGNORECASE if kind.ignore_case else 0
            return _pattern(re.compile(str(kind.pattern), flags))
        case "rare_words":
            if rare is None:
                rare = rare_among(word_counts(texts), quantile=kind.quantile, count=kind.words)
            return vocabulary_words(rare)
    return None


def _presidio_rules(entity: str, min_score: float) -> Detector:
    """One entity, looked for by every rule-based recogniser that knows it."""
    known = _recognisers()
    if entity not in known:
        raise ValueError(
            f"Expected an entity that Presidio finds by rules ({', '.join(sorted(known))}), "
            f"got {entity!r}. Choose one, or use detector: ner with a model."
        )
    return lambda text: [
        text[found.start : found.end]
        for recogniser in known[entity]
        for found in recogniser.analyze(text, [entity], None)
        if found.score >= min_score
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


def _spacy_entities(model: str, entity: str, min_score: float) -> Detector:
    """One of Presidio's entities (PERSON, LOCATION, …) by a spaCy pipeline, all of score 0.85."""
    from presidio_analyzer.predefined_recognizers import SpacyRecognizer

    engine, recogniser = _spacy_engine(model), SpacyRecognizer(supported_entities=[entity])

    def find(text: str) -> list[str]:
        found = recogniser.analyze(text, [entity], engine.process_text(text, LANGUAGE))
        return [text[one.start : one.end] for one in found if one.score >= min_score]

    return find


def _transformers_entities(model: str, entity: str, min_score: float) -> Detector:
    """One of Presidio's entities, or of the model's own, by a token-classification model."""
    from presidio_analyzer.nlp_engine.ner_model_configuration import (
        MODEL_TO_PRESIDIO_ENTITY_MAPPING as NAMES,
    )

    classify = _token_classifier(model)
    return lambda text: [
        text[one["start"] : one["end"]]
        for one in classify(text)
        if entity in (one["entity_group"], NAMES.get(one["entity_group"]))
        and one["score"] >= min_score
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
        tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
        weights = AutoModelForTokenClassification.from_pretrained(model, trust_remote_code=False)
    except (OSError, ValueError, KeyError):
        raise ValueError(
            f"Expected a token-classification model in a folder or on the hub, got {model!r}. "
            "Correct model, or set HF_HUB_OFFLINE=0 where it forbids downloading."
        ) from None
    return pipeline(
        "token-classification", model=weights, tokenizer=tokenizer, aggregation_strategy="simple"
    )


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


_WORD = re.compile(r"\w+(?:['’-]\w+)*")
"""A word: letters and digits, with apostrophes and hyphens inside."""


def listed_words(words: Iterable[str], *, ignore_case: bool = True) -> Detector:
    """Words and phrases of a list, at word boundaries; longer ones win over their beginnings."""
    ordered = sorted({word for word in words if word}, key=lambda word: (-len(word), word))
    if not ordered:
        return lambda _text: []
    # Any blanks between the words of a phrase. Boundaries by look-around: a secret may begin or end
    # with a sign that is no letter.
    alternatives = "|".join(r"\s+".join(map(re.escape, phrase.split())) for phrase in ordered)
    flags = re.IGNORECASE if ignore_case else 0
    return re.compile(rf"(?<!\w)(?:{alternatives})(?!\w)", flags).findall


def vocabulary_words(words: Iterable[str]) -> Detector:
    """Words in lower case, as a vocabulary counts them: `ll` is not found in `we'll`."""
    known = frozenset(words)
    return lambda text: [word for word in _WORD.findall(text) if word.casefold() in known]


def _pattern(pattern: re.Pattern[str]) -> Detector:
    """Matches of a regular expression, or of its first group, that are not empty."""
    group = 1 if pattern.groups else 0
    return lambda text: [found[group] for found in pattern.finditer(text) if found[group]]


def word_counts(texts: Iterable[str]) -> Counter[str]:
    """Counts the words of private texts, in lower case; counts of several lists add up."""
    return Counter(word for text in texts for word in _WORD.findall(text.casefold()))


def rare_among(frequency: Mapping[str, int], *, quantile: float, count: int) -> list[str]:
    """Lists words near a quantile of a vocabulary, rarest first.

    Args:
        frequency: How often each word of the private texts occurs.
        quantile: Place in the sorted vocabulary, in [0, 1].
        count: Words taken, half of them on either side.

    Returns:
        At most `count` words, in lower case. Private: they depend on all records.

    **Source** SecPE, section 4.2: words sorted by frequency, those near the 20% quantile. Equally
    frequent words are sorted by themselves, so that the list is a function of the texts.
    """
    ordered = sorted(frequency, key=lambda word: (frequency[word], word))
    middle = round(quantile * max(0, len(ordered) - 1))
    start = max(0, min(middle - count // 2, len(ordered) - count))
    return ordered[start : start + count]


_FOUND = {"kind": pl.String, "value": pl.String, "records": pl.UInt32}


def secrets_of_columns(spec: PrivateDatasetSpec, ids: Iterable[str]) -> pl.DataFrame:
    """Counts the values of the columns that secrets come from; blank values are none.

    Args:
        spec: The declaration.
        ids: Of the records that count. Records without an id column share one where they have the
            same content.

    Returns:
        A row a value: `kind`, `value` (normalised) and `records`, which is 1.

    Raises:
        SourceError: The source is missing, broken, or lacks a column.

    **Privacy** Private. Reads the source again: canonical records keep no other columns.
    """
    declared = spec.secrets.kinds if spec.secrets is not None else []
    kinds = [kind for kind in declared if kind.detector == "column"]
    names = column_names(spec)
    extra = {f"secrets.kinds.{kind.name}.column": str(kind.column) for kind in kinds}
    raw = read_source(spec.source, replace(names, others={**names.others, **extra}))
    columns = (raw[column].alias(f"__{column}") for column in set(extra.values()))
    kept = judge(raw, spec).with_columns(*columns).filter(pl.col(REASON).is_null())
    own = kept.filter(pl.Series(record_ids(kept, spec), dtype=pl.String).is_in(list(ids)))
    found = [
        (kind.name, value, 1)
        for kind in kinds
        for each in own[f"__{kind.column}"].drop_nulls()
        for value in _secrets_of(kind, [each])
    ]
    return pl.DataFrame(found, schema=_FOUND, orient="row")


ShareCallback = Callable[[float], None]

RECORDS_AT_A_TIME = 1_000

_ANY = ""
"""The one value of a kind whose secret is to hold any."""


@dataclass(frozen=True, kw_only=True)
class SecretDictionary:
    """Findings of detectors. Their repr shows nothing of them, not even how many.

    Attributes:
        secrets: Columns `kind`, `value` (normalised) and `records` (how many hold it); sorted.
    """

    secrets: pl.DataFrame = field(repr=False)

    def over_their_caps(self, declared: SecretsSpec) -> dict[str, dict[str, int]]:
        """Counts, for each kind, the secrets in more records than declared; for the steward only.

        Returns:
            Kind -> `secrets`, `most_records` of one of them, and how many are `over_cap`.
        """
        summary = {}
        for kind in declared.kinds:
            held = self.secrets.filter(pl.col("kind") == kind.name)["records"]
            summary[kind.name] = {
                "secrets": len(held),
                "most_records": max(held.to_list(), default=0),
                "over_cap": int((held > kind.max_records).sum()),
            }
        return summary


def find_secrets(
    records: pl.DataFrame,
    declared: SecretsSpec,
    *,
    rare: Mapping[str, Sequence[str]] | None = None,
    progress: ShareCallback = lambda _share: None,
) -> SecretDictionary:
    """Runs every declared detector over the records.

    Args:
        records: Canonical records; column `text` is read.
        declared: Kinds of secrets; those of columns are passed over (`secrets_of_columns`).
        rare: Kind -> its rare words, where `records` are one shard of all; None to choose them
            here.
        progress: Called with the share of kinds and records done; reports nothing else.

    Raises:
        ValueError: If a detector cannot be opened.

    **Privacy** Private, as are the numbers of rows. Detection decides what can be checked and
    shown to the steward; the noise of `privacy.secret_clustering` does not depend on it.
    """
    texts = records["text"].to_list()
    found: list[tuple[str, str, int]] = []
    for place, kind in enumerate(declared.kinds):

        def share(part: float, place: int = place) -> None:
            progress((place + part) / len(declared.kinds))

        detector = detector_of(kind, texts, None if rare is None else rare.get(kind.name, ()))
        for values in () if detector is None else _search(detector, texts, share):
            found += [(kind.name, value, 1) for value in _secrets_of(kind, values)]
    return merged_dictionary([pl.DataFrame(found, schema=_FOUND, orient="row")])


def _search(detector: Detector, texts: Sequence[str], share: ShareCallback) -> list[list[str]]:
    held: list[list[str]] = []
    for start in range(0, len(texts), RECORDS_AT_A_TIME):
        block = texts[start : start + RECORDS_AT_A_TIME]
        held += [detector(text) for text in block]
        share(len(held) / len(texts))
    return held


def _secrets_of(kind: SecretKindSpec, values: Sequence[str]) -> set[str]:
    distinct = {normalised(value) for value in values} - {""}
    if kind.each == "kind":
        return {_ANY} if distinct else set()
    return distinct


def merged_dictionary(each: Iterable[pl.DataFrame]) -> SecretDictionary:
    """Adds up what was counted for each secret.

    Args:
        each: `SecretDictionary.secrets` of every shard, no record in two of them.
    """
    counted = pl.concat(each).group_by("kind", "value").agg(pl.col("records").sum())
    return SecretDictionary(secrets=counted.sort("kind", "value"))
