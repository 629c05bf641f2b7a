"""What else is wrong with a dataset file: with its methods, and with its public base.

Methods know their settings, inputs and plans. A public base cannot do with records of another
language, or longer than it reads: that follows from the records, and is for the steward's terminal
alone.
"""

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import polars as pl

from dpsynth_assets.datasets import PrivateDatasetSpec, Problem, PublicDataSpec
from dpsynth_assets.datasets.prompt_words import prompt_problems
from dpsynth_assets.datasets.standing import declared_base
from dpsynth_assets.orchestration.components.refused import planning_problems

if TYPE_CHECKING:
    from dpsynth_assets.methods.dataset_plan import DatasetPlan, PlannedMethod
    from dpsynth_assets.methods.dependencies import InputProblem

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
        yield Problem(
            "public_data",
            f"texts in English, which {' and '.join(english)} in base {base.name!r} were made for",
            got,
            "Declare a base with models of their language: rows will else be in English.",
            "warning",
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
        yield Problem(
            "public_data",
            f"texts of at most {read} tokens, which the text embedder of base {base.name!r} reads",
            f"{longer:.0%} with more; half of all have {median} or more",
            "Clusters, votes and scores see no more than their beginnings: raise "
            "text_embedder.max_tokens of the base, or split the texts.",
            "warning",
        )
    for field, limit in _row_limits(spec):
        if median > 1.25 * limit:  # Other models count somewhat otherwise.
            yield Problem(
                field,
                f"rows as long as the texts, of which half have about {median} tokens or more",
                f"rows that end after {limit}",
                "Raise it if rows should be as long; they then cost more time, and private "
                "prediction more budget.",
                "warning",
            )


def _row_limits(spec: PrivateDatasetSpec) -> Iterator[tuple[str, int]]:
    """The longest row of each method, with the field that sets it."""
    from dpsynth_assets.methods.planning import plan_dataset

    if planning_problems(spec):
        return
    for index, planned in enumerate(plan_dataset(spec).methods):
        own = planned.config.model_dump(include=set(_LIMITS))
        for name in _LIMITS:
            limit = own.get(name)
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


_REFUSAL = re.compile(r"Expected (.+?), got (.+?)\.(?: (.+))?")
"""The three parts of a plan's refusal; the last one may be missing."""


def method_problems(spec: PrivateDatasetSpec) -> list[Problem]:
    """Asks methods about their names, settings, inputs and plans; the caller names the file."""
    words = prompt_problems(spec, declared_base(spec.public_data))
    return planning_problems(spec) or [*words, *_plan_problems(spec)]


def _plan_problems(spec: PrivateDatasetSpec) -> list[Problem]:
    """Says which methods lack an input and which promises to secrets break (errors).

    And which methods the plan refuses else (warnings).
    """
    from dpsynth_assets.methods.dependencies import input_problems
    from dpsynth_assets.methods.planning import plan_dataset
    from dpsynth_assets.methods.promised_secrets import promise_problems

    plan = plan_dataset(spec)
    known = {planned.folder: planned for planned in plan.methods}
    found = []
    for index, planned in enumerate(plan.methods):
        lacking = input_problems(planned, known, has_topics=plan.topics is not None)
        found += [_as_problem(problem, index) for problem in lacking]
        if planned.plan.refusal is not None and not lacking:
            found.append(_refused(planned, index))
    return [*found, *promise_problems(spec, plan), *_row_problems(spec, plan)]


def _as_problem(problem: "InputProblem", index: int) -> Problem:
    field = f"methods.{index}.{problem.field}" if problem.of_method else problem.field
    return Problem(field, problem.expected, problem.got, problem.remedy)


def _refused(planned: "PlannedMethod", index: int) -> Problem:
    """A method that will not run as declared; the others of the file will."""
    refusal = str(planned.plan.refusal)
    parts = _REFUSAL.fullmatch(refusal)
    if parts is None:
        told = "a method that can run", f"a refusal of {planned.folder}", refusal
    else:
        told = parts[1], parts[2], parts[3] or "Change what it depends on."
    return Problem(f"methods.{index}", *told, "warning")


def _row_problems(spec: PrivateDatasetSpec, plan: "DatasetPlan") -> list[Problem]:
    """Checks that a schedule asks for rows of some corpus whose rows are free."""
    schedule = spec.schedule
    if schedule is None or schedule.rows is None:
        return []
    asked = schedule.methods
    chosen = [each for each in plan.methods if not asked or each.folder in asked]
    if any(planned.writing is not None for planned in chosen):
        return []
    expected = "a corpus whose rows cost nothing among those that are made"
    remedy = "Their rows follow from the budget: drop rows, or name another corpus."
    return [Problem("schedule.rows", expected, ", ".join(each.folder for each in chosen), remedy)]
