"""Share of a corpus's texts that are JSON records of the declared structure.

Reads the corpus and a public schema alone, so that for a released corpus these numbers are
post-processing.

**Source** Amin et al. 2024, section 5.3, table 4: samples, share that parses, share that validates.
Both shares are of all samples, as there: what validates also parses.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpsynth_assets.json_records import parsed, validator


@dataclass(frozen=True, kw_only=True)
class StructureScores:
    """Structure of a corpus.

    Attributes:
        samples: Texts.
        parsed: Texts that are one JSON value.
        valid: Parsed texts that fulfil the schema.
    """

    samples: int
    parsed: int
    valid: int

    @property
    def parse_rate(self) -> float | None:
        """Share of texts that are JSON, in [0, 1]; None without texts."""
        return self.parsed / self.samples if self.samples else None

    @property
    def validation_rate(self) -> float | None:
        """Share of texts that fulfil the schema, in [0, 1]; None without texts."""
        return self.valid / self.samples if self.samples else None

    def to_json(self) -> dict[str, Any]:
        """Plain values by name, both shares included."""
        return {
            "samples": self.samples,
            "parsed": self.parsed,
            "valid": self.valid,
            "parse_rate": self.parse_rate,
            "validation_rate": self.validation_rate,
        }


def structure_scores(texts: Sequence[str], schema: Mapping[str, Any]) -> StructureScores:
    """Parses and validates every text.

    Args:
        texts: The corpus.
        schema: A JSON schema that `StructuredSpec` accepted: its references stay within it.
    """
    is_valid = validator(schema)
    values = [value for text in texts for value in parsed(text)]
    return StructureScores(
        samples=len(texts),
        parsed=len(values),
        valid=sum(is_valid(value) for value in values),
    )
