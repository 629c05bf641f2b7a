"""Share of a corpus's texts that are JSON records of the declared structure.

Reads the corpus and a public schema alone, so that for a released corpus these numbers are
post-processing.

**Source** Amin et al. 2024, section 5.3, table 4: samples, share that parses, share that validates.
Both shares are of all samples, as there: what validates also parses.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dpsynth_assets.json_records import parsed, validator
from dpsynth_assets.metrics.metric import OF_TEXT, Metric, Need, Sides


def structure_scores(texts: Sequence[str], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Parses and validates every text.

    Args:
        texts: The corpus.
        schema: A JSON schema that `StructuredSpec` accepted: its references stay within it.

    Returns:
        `samples`, those `parsed` as one JSON value, those `valid` by the schema, and the shares of
        both, in [0, 1]; None without texts.
    """
    is_valid = validator(schema)
    values = [value for text in texts for value in parsed(text)]
    counts = {
        "samples": len(texts),
        "parsed": len(values),
        "valid": sum(is_valid(value) for value in values),
    }
    samples = len(texts)
    return {
        **counts,
        "parse_rate": counts["parsed"] / samples if samples else None,
        "validation_rate": counts["valid"] / samples if samples else None,
    }


def _scores(sides: Sides) -> dict[str, Any]:
    return structure_scores(sides.corpus.texts, sides.settings.record_schema or {})


def _share(name: str, title: str) -> Metric:
    return Metric(
        name,
        title,
        lambda sides: sides.once(_scores)[name],
        decimals=None,
        needs=frozenset({Need.SCHEMA}),
        of_real="held-out",
        tables=OF_TEXT,
    )


PARSE_RATE = _share("parse_rate", "parse as JSON")
VALIDATION_RATE = _share("validation_rate", "valid by schema")
