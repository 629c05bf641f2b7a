"""What a public base cannot do with the records: another language, or texts longer than it reads.

For the steward's terminal alone: languages and lengths follow from the records.
"""

import math
from collections.abc import Iterator

import polars as pl

from dpsynth_assets.datasets import PrivateDatasetSpec, Problem, PublicDataSpec
from dpsynth_assets.datasets.declared_bases import declared_base
from dpsynth_assets.orchestration.components.planning_problems import planning_problems

SAMPLE = 200
"""Texts that are looked at, evenly spaced."""
_CHARACTERS = 20_000
_LEAST_WORDS = 200

MOST_FOREIGN_LETTERS = 0.2
LEAST_ENGLISH_WORDS = 0.1
"""Of English texts of any kind a quarter of the words or more are among the commonest; of German
and French ones about one in thirty."""

_ENGLISH = (
    r"(?i)\b(?:the|and|of|to|a|in|is|was|i|it|for|that|with|my|on|not|you|have|be|are|this|at|but"
    r"|as|we|they|he|she|from|or|by|an|had|has|your|so|very|me)\b"
)
_LIMITS = ("max_document_tokens", "max_new_tokens")


def base_problems(spec: PrivateDatasetSpec, texts: pl.Series) -> list[Problem]:
    """Compares usable texts with what the dataset's public base reads and writes.

    Args:
        spec: The declaration.
        texts: All of its texts.
    """
    base = declared_base(spec.public_data)
    if base is None or texts.is_empty():
        return []
    sample = texts.gather_every(max(1, len(texts) // SAMPLE)).str.slice(0, _CHARACTERS)
    free = spec.structured is None and not spec.columns.object
    return [*(_language(base, sample) if free else ()), *_lengths(spec, base, sample)]


def _language(base: PublicDataSpec, sample: pl.Series) -> Iterator[Problem]:
    """Says where texts are not in the language of an English model."""
    english = [
        *(["its language model"] if base.language_model.kind == "smollm2" else []),
        *(["its text embedder"] if base.text_embedder.model is None else []),
    ]
    letters, latin, words, common = (
        int(sample.str.count_matches(pattern).sum())
        for pattern in (r"\p{L}", r"\p{Latin}", r"\w+", _ENGLISH)
    )
    got = None
    if letters - latin > MOST_FOREIGN_LETTERS * letters:
        got = f"{(letters - latin) / letters:.0%} of their letters in another script"
    elif words >= _LEAST_WORDS and common < LEAST_ENGLISH_WORDS * words:
        got = f"{common / words:.0%} of their words among the commonest of English"
    if english and got:
        yield _warning(
            "public_data",
            f"texts in English, which {' and '.join(english)} in base {base.name!r} were made for",
            got,
            "Declare a base with models of their language: rows will else be in English.",
        )


def _lengths(
    spec: PrivateDatasetSpec, base: PublicDataSpec, sample: pl.Series
) -> Iterator[Problem]:
    """Says what the embedder and the methods' rows cut off, counted in tokens of the embedder."""
    counts = _tokens(base, sample)
    if counts is None:
        return
    read, median = base.text_embedder.max_tokens, math.ceil(float(counts.median()))  # type: ignore[arg-type]
    if (longer := int((counts > read).sum()) / len(counts)) > 0.1:
        yield _warning(
            "public_data",
            f"texts of at most {read} tokens, which the text embedder of base {base.name!r} reads",
            f"{longer:.0%} with more; half of all have {median} or more",
            "Clusters, votes and scores see no more than their beginnings: raise "
            "text_embedder.max_tokens of the base, or split the texts.",
        )
    for field, limit in _row_limits(spec):
        if median > 1.25 * limit:  # Other models count somewhat otherwise.
            yield _warning(
                field,
                f"rows as long as the texts, of which half have about {median} tokens or more",
                f"rows that end after {limit}",
                "Raise it if rows should be as long; they then cost more time, and private "
                "prediction more budget.",
            )


def _row_limits(spec: PrivateDatasetSpec) -> Iterator[tuple[str, int]]:
    """The longest row of each method, with the field that sets it."""
    from dpsynth_assets.methods.planning import plan_dataset

    if planning_problems(spec):
        return
    for index, planned in enumerate(plan_dataset(spec).methods):
        for name in _LIMITS:
            limit = getattr(planned.config, name, None)
            if isinstance(limit, int):
                yield f"methods.{index}.settings.{name}", limit
                break


def _tokens(base: PublicDataSpec, sample: pl.Series) -> pl.Series | None:
    """Tokens of each text, where the embedder is the packaged one."""
    if base.text_embedder.model is not None:
        return None
    from dpsynth_assets.models.text_embedder import packaged_tokenizer

    encoded = packaged_tokenizer().encode_batch_fast(sample.to_list())
    return pl.Series([len(each.ids) for each in encoded])


def _warning(field: str, expected: str, got: str, remedy: str) -> Problem:
    return Problem(
        file="", field=field, expected=expected, got=got, remedy=remedy, severity="warning"
    )
