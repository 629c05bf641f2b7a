"""The rubric a language model is asked to judge by, and its answer read back.

**Source** Banayeeanzade et al. 2026 (EPSVec), appendix B.6.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

RUBRIC = """\
You are a precise writing-quality evaluator. Evaluate the provided text and return ONLY a valid \
JSON object that follows this schema:
{{
  "fluency": <integer 1-5>,
  "grammar": <integer 1-5>,
  "coherence": <integer 1-5>,
  "overall": <integer 1-10>
}}

Rules:
1) Output pure JSON (no markdown, no extra text).
2) Use integers only for scores.

Evaluate the following synthetic text using G-Eval-style criteria:
- Fluency (1-5): smoothness and flow; natural phrasing, no awkwardness.
- Grammar (1-5): correctness of syntax, tense, agreement, punctuation.
- Coherence (1-5): logical organization; ideas connect and progress sensibly.
- Overall (1-10): holistic quality as writing (not factual accuracy).

Text:
{text}

JSON:"""
"""The paper's system prompt and instructions in one turn: endpoints and templates all take one."""

HIGHEST = {"fluency": 5, "grammar": 5, "coherence": 5, "overall": 10}
"""Criteria and the best score of each; the worst is 1."""

ANSWER_SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            name: {"type": "integer", "minimum": 1, "maximum": best}
            for name, best in HIGHEST.items()
        },
        "required": list(HIGHEST),
        "additionalProperties": False,
    }
)
"""What an answer is: whole numbers within their bounds."""

ANSWER_TOKENS = 96
"""Enough for the object, a fence around it and a word before it."""

_OBJECT = re.compile(r"\{[^{}]*\}")
_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(?:/\s*[0-9]+)?\s*")


@dataclass(frozen=True)
class RubricScores:
    """One answer.

    Attributes:
        overall: In [1, 10].
        fluency: In [1, 5]; None where the judge left it out, as for the next two.
        grammar: In [1, 5].
        coherence: In [1, 5].
    """

    overall: float
    fluency: float | None = None
    grammar: float | None = None
    coherence: float | None = None


def rubric_prompt(text: str) -> str:
    """The rubric around one text."""
    return RUBRIC.format(text=text)


def parse_scores(answer: str) -> RubricScores | None:
    """Reads the last JSON object of an answer that holds an overall score within its bounds.

    Words around the object, fences, numbers written as text and `7/10` are forgiven. A criterion
    out of its bounds counts as left out. The last object counts: models think aloud first.

    Returns:
        The scores; None where no object holds an overall score.
    """
    for scores in _objects(answer):
        values = {name: _score(scores.get(name), best) for name, best in HIGHEST.items()}
        overall = values.pop("overall")
        if overall is not None:
            return RubricScores(overall, **values)
    return None


def _objects(answer: str) -> Iterator[dict[str, Any]]:
    """Flat JSON objects of an answer, last first; names in lower case."""
    for written in reversed(_OBJECT.findall(answer)):
        try:
            yield {str(key).strip().lower(): value for key, value in json.loads(written).items()}
        except (json.JSONDecodeError, RecursionError):
            continue


def _score(value: Any, best: int) -> float | None:
    """A number in [1, best], written as number or text; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        match = _NUMBER.fullmatch(value)
        value = float(match[1]) if match else None
    if not isinstance(value, int | float) or not 1 <= value <= best:
        return None
    return float(value)
