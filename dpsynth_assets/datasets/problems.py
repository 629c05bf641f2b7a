"""Problems of a dataset file, one line each: file, field, expected, got, remedy."""

import difflib
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from dpsynth_assets.datasets.fields import REFUSAL, Declaration

_WRONG_BRANCH = {"list_type", "dict_type", "model_type", "model_attributes_type"}
_MOST_PROBLEMS = 100
"""Of one file: a person mends some and asks again, and each is compared with all known keys."""

_NOT_TRAINED = (
    "It was removed: no model is trained from scratch. Drop it for SmolLM2, or name weights: "
    "kind: pretrained and model."
)
REMOVED: Mapping[str, str] = {
    "mean_with_shots": "It was removed: write mean_uniform, which scored no worse.",
    "monthly_epsilon": "It was removed: budget.rounds shares ε among equal rounds.",
    "release_gate": "It was removed: no gate reads private text. Drop it; the internal asset "
    "copied_spans shows the steward what a corpus repeats.",
    "variation": "It was removed: a text keeps its beginning. Drop it.",
    "infilling_model": "It was removed with masked infilling. Drop it.",
    "infilling_proposals": "It was removed with masked infilling. Drop it.",
    "prompt_variables": "It was removed: write {label} in the prompt files.",
    "word_count_std": "It was removed: {word_count} is a text's own. Drop it.",
    "tokens_per_word": "It was removed: max_new_tokens bounds every text. Drop it.",
    "steering_layers": "It was removed: name them as layers, which are all steered.",
    "kind: embedded": _NOT_TRAINED,
    "language_model.training_tokens": _NOT_TRAINED,
    "language_model.settings": _NOT_TRAINED,
    "language_model.seed": _NOT_TRAINED,
    "conditional_generator.settings": _NOT_TRAINED,
    "conditional_generator.aspects": _NOT_TRAINED,
}
"""Names that dataset files once had, and what to write instead: a method, a key or a setting, with
its section where other sections have it, or a key with its value."""


@dataclass(frozen=True)
class Problem:
    """One thing to fix. No part of it ever holds a private text or a value of a private column.

    Attributes:
        field: Dotted path below `attributes`, e.g. `budget.epsilon`; "" for the file as a whole.
        expected: What should be there.
        got: What is there: public values, or counts and row numbers of the private source.
        remedy: What to do, a sentence.
        severity: `error`: the dataset cannot be used. `warning`: records will be set aside. `note`:
            nothing is wrong; what is stated follows from the declaration.
        file: The YAML file; empty: the caller names it.
    """

    field: str
    expected: str
    got: str
    remedy: str
    severity: Literal["error", "warning", "note"] = "error"
    file: str = ""

    def __str__(self) -> str:
        """Writes the line that the terminal shows."""
        place = f"{self.file}: {self.field}" if self.field else self.file
        return f"{place}: expected {self.expected}, got {self.got}. {self.remedy}"


class DatasetFileError(ValueError):
    """Dataset files that cannot be used; `problems` says why, one line each."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


def problems_of(
    error: ValidationError, file: Path, model: type[Declaration], attributes: Any
) -> list[Problem]:
    """Translates a validation error; a value is one the public YAML file holds."""
    found = error.errors()
    shown = [
        _problem(detail, file, model, attributes)
        for detail in found[:_MOST_PROBLEMS]
        if not _is_other_branch(detail, found)
    ]
    if (left := len(found) - _MOST_PROBLEMS) > 0:
        mend = "Fix those above, and ask again."
        shown.append(Problem("", "fewer problems", f"{left} more", mend, file=str(file)))
    return shown


def suggest(word: str, known: Sequence[str]) -> str:
    """Says what to write for a removed word, which known one was meant, or lists those known."""
    if word in REMOVED:
        return REMOVED[word]
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(known)}."


def _is_other_branch(detail: Any, found: Sequence[Any]) -> bool:
    """Says whether the value fits another branch of a union, whose own errors say more."""
    parent = detail["loc"][:-1]
    return detail["type"] in _WRONG_BRANCH and any(
        other["loc"][: len(parent)] == parent and other["loc"] != detail["loc"] for other in found
    )


def _problem(detail: Any, file: Path, model: type[Declaration], attributes: Any) -> Problem:
    path = _path(detail, attributes)
    if detail["type"] == REFUSAL:
        told = dict(detail["ctx"])
        field = ".".join([*map(str, path), *filter(None, [told.pop("field")])])
        return Problem(field, **told, file=str(file))
    owner = _model_at(model, path[:-1])
    key = str(path[-1]) if path else ""
    section = next((each for each in path[-2::-1] if isinstance(each, str)), "")
    parts = _parts(detail, key, owner, section)
    return Problem(".".join(map(str, path)), *parts, file=str(file))


def _parts(
    detail: Any, key: str, owner: type[BaseModel] | None, section: str
) -> tuple[str, str, str]:
    fields = owner.model_fields if owner else {}
    meaning = (fields[key].description or "") if key in fields else ""
    if detail["type"] == "extra_forbidden":
        removed = REMOVED.get(f"{section}.{key}")
        return "a known key", repr(key), removed or suggest(key, list(fields))
    if detail["type"] == "missing":
        return "a value", "none", f"Add {key}: {meaning}".strip()
    expected = detail["msg"].removeprefix("Input should be ")
    got = detail["input"]
    shown = repr(got) if isinstance(got, str | int | float | None) else f"a {type(got).__name__}"
    remedy = REMOVED.get(f"{key}: {got}") or meaning or "Fix the value."
    return expected[:1].lower() + expected[1:], shown[:80], remedy


def _path(detail: Any, attributes: Any) -> list[str | int]:
    """Keeps the steps that exist in the file: pydantic also names union branches."""
    path: list[str | int] = []
    here = attributes
    for step in detail["loc"]:
        if _holds(here, step):
            here = here[step]
        elif detail["type"] != "missing" or step != detail["loc"][-1]:
            continue
        path.append(step)
    return path


def _holds(here: Any, step: str | int) -> bool:
    if isinstance(here, list):
        return isinstance(step, int) and step < len(here)
    return isinstance(here, dict) and step in here


def _model_at(model: type[BaseModel], path: Sequence[str | int]) -> type[BaseModel] | None:
    """Finds the declaration that owns the keys at `path`."""
    found: type[BaseModel] | None = model
    for step in path:
        if isinstance(step, int):
            continue
        field = found.model_fields.get(step) if found else None
        found = next(_models_in(field.annotation), None) if field else None
    return found


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in typing.get_args(annotation):
        yield from _models_in(part)
