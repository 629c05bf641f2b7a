"""Checking a dataset file against its source: every problem in one pass, nothing spent.

For the steward's terminal: a problem may say how many records a rule sets aside and which rows.
It never shows a text or another value of a private column.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from dpsynth_assets.datasets import (
    PrivateDatasetSpec,
    Problem,
    PublicDataSpec,
    matching_files,
    parse_dataset_file,
)
from dpsynth_assets.json_records import record_check
from dpsynth_assets.records.columns import SourceError
from dpsynth_assets.records.reading import public_column_names
from dpsynth_assets.records.record_filters import (
    CONTROL,
    REASON,
    ROW,
    Rule,
    column_names,
    judge,
    kept_id_columns,
    repeated_ids,
)
from dpsynth_assets.records.sources import read_source
from dpsynth_assets.records.windows import date_of

MethodChecker = Callable[[PrivateDatasetSpec], Sequence[Problem]]
"""Checks what only methods know: settings, and public facts a method needs."""

_ROWS_SHOWN = 5

_ADVICE: dict[Rule, tuple[str, str, str]] = {
    Rule.UNREADABLE: ("source.path", "one JSON object a line", "Mend or drop these lines."),
    Rule.NOT_TEXT: ("columns.text", "a string in every record", "Quote these values."),
    Rule.MISSING_TEXT: ("columns.text", "text in every record", "Fill or drop these rows."),
    Rule.DAMAGED_TEXT: (
        "columns.text",
        "text in the source's encoding, UTF-8 where none is declared",
        "Declare source.encoding of a CSV file, e.g. cp1252, or save the source as UTF-8.",
    ),
    Rule.UNKNOWN_LABEL: (
        "columns.labels",
        "labels that public_facts.labels lists",
        "Add the missing value to public_facts.labels if it is public, or mend the rows.",
    ),
    Rule.MISSING_ID: ("columns.id", "an id in every record", "Fill these ids, or drop columns.id."),
    Rule.MISSING_UNIT: (
        "privacy_unit.column",
        "a unit in every record",
        "Fill or drop these rows.",
    ),
    Rule.REPEATED_ID: (
        "columns.id",
        "ids that differ",
        "Drop repeats: records that share an id are all set aside.",
    ),
    Rule.LONG_TEXT: (
        "columns.max_text_characters",
        "texts within the limit",
        "Shorten them, or raise the limit.",
    ),
}


def check_dataset_file(path: Path, method_checker: MethodChecker | None = None) -> list[Problem]:
    """Checks a dataset file: its declaration, its methods, and every record of its source.

    Args:
        path: The YAML file.
        method_checker: Called with each private declaration that holds by itself.

    Returns:
        Problems, declaration first; those of severity `warning` leave the dataset usable.
    """
    files, problems = parse_dataset_file(path)
    for file in files:
        if isinstance(file.spec, PublicDataSpec):
            problems += _check_public(file.spec, path)
            continue
        found = method_checker(file.spec) if method_checker else []
        problems += [replace(problem, file=str(path)) for problem in found]
        problems += _check_records(file.spec, path) + _check_canaries(file.spec, path)
    return problems


def _check_records(spec: PrivateDatasetSpec, path: Path) -> list[Problem]:
    try:
        raw = read_source(spec.source, column_names(spec))
    except SourceError as error:
        return [_source_problem(error, path)]
    judged = judge(raw, spec)
    usable = judged[REASON].null_count()
    problems = [problem for rule in Rule for problem in _set_aside(judged, rule, path)]
    problems = _of_kept_ids(judged, spec, path, problems)
    problems += _cleaned(raw[column_names(spec).text], path)
    problems += _no_records(judged, spec, path) + _in_no_cohort(raw, spec, path)
    if spec.columns.object:
        problems = [_of_object(problem) for problem in problems]
    if usable == 0:
        got = "no rows" if judged.is_empty() else f"{judged.height} rows, all set aside"
        remedy = "Fill the source, or point source.path at the right file."
        problems.append(_problem(path, "source.path", "at least one usable record", got, remedy))
    declared = None if spec.cohorts else spec.public_facts.records  # Of each cohort, not of all.
    if declared is not None and judged.height != declared:
        expected = f"{declared} records, as public_facts.records says"
        remedy = "Correct public_facts.records, or name the version it counts."
        problems.append(
            _problem(path, "public_facts.records", expected, f"{judged.height}", remedy)
        )
    return problems


def _no_records(judged: pl.DataFrame, spec: PrivateDatasetSpec, path: Path) -> list[Problem]:
    """Says how many texts are no records of the declared schema."""
    if spec.structured is None:
        return []
    usable = judged.filter(pl.col(REASON).is_null())
    follows = record_check(spec.structured.schema_mapping)
    others = usable.filter(~usable["text"].map_elements(follows, return_dtype=pl.Boolean))
    if others.is_empty():
        return []
    got = f"{others.height} of {usable.height} texts that are none"
    remedy = "Mend schema or records: rows follow the schema, whatever the records are."
    expected = "texts that are JSON records of the schema"
    return [_warning(path, "structured.json_schema", expected, got, remedy)]


def _in_no_cohort(raw: pl.DataFrame, spec: PrivateDatasetSpec, path: Path) -> list[Problem]:
    """Says how many records no cohort will hold, and which files."""
    if spec.cohorts is None:
        return []
    expected, field = "records with a date YYYY-MM-DD", "cohorts.column"
    if spec.cohorts.by == "window":
        column = spec.cohorts.column or ""
        strangers = raw.select(date_of(column).is_null().sum()).item()
        got, remedy = f"{strangers} rows without one", "They are in no cohort: mend or drop them."
    else:
        names = [file.name for file in matching_files(spec.source)]
        other = [name for name in names if spec.cohorts.file_key(name) is None]
        strangers, expected = len(other), f"files named {spec.cohorts.pattern}"
        field, got = "cohorts.pattern", ", ".join(other[:_ROWS_SHOWN])
        remedy = "Other files are in no cohort: rename them, or mend the pattern."
    if not strangers:
        return []
    return [replace(_problem(path, field, expected, got, remedy), severity="warning")]


def _set_aside(judged: pl.DataFrame, rule: Rule, path: Path) -> list[Problem]:
    rows = judged.filter(pl.col(REASON) == rule.value)[ROW].to_list()
    if not rows:
        return []
    field, expected, remedy = _ADVICE[rule]
    got = f"{_counted(rows)} set aside ({rule.value}; {_shown(rows)})"
    return [_warning(path, field, expected, got, remedy)]


def _of_kept_ids(
    judged: pl.DataFrame, spec: PrivateDatasetSpec, path: Path, problems: list[Problem]
) -> list[Problem]:
    """Says what replace-one takes for kept; repeated ids are then an error, not a warning."""
    kept = kept_id_columns(spec)
    if not kept:
        return problems
    repeated = f"({Rule.REPEATED_ID.value};"
    others = [problem for problem in problems if repeated not in problem.got]
    if spec.columns.id is not None and (rows := repeated_ids(judged)):
        got = f"{_counted(rows)} that share one ({_shown(rows)})"
        remedy = "Mend them, drop columns.id, or use neighboring_relation: add-remove."
        expected = "ids that differ, since replace-one neighbours keep them"
        return [_problem(path, "columns.id", expected, got, remedy), *others]
    note = _problem(
        path,
        "neighboring_relation",
        "ids that anybody may know: what is replaced keeps them, so they are not protected",
        f"replace-one with {', '.join(f'{field}: {name}' for field, name in kept.items())}",
        "Nothing has to be done if ids say nothing; else use neighboring_relation: add-remove.",
    )
    return [replace(note, severity="note"), *others]


def _cleaned(texts: pl.Series, path: Path) -> list[Problem]:
    """Says which texts hold control characters, which are read as blanks."""
    rows = [int(index) + 1 for index in texts.str.contains(CONTROL).fill_null(False).arg_true()]
    if not rows:
        return []
    got = f"{_counted(rows)} with some, read as blanks ({_shown(rows)})"
    remedy = "Nothing has to be done; clean them at the source if they matter."
    return [_warning(path, "columns.text", "text without control characters", got, remedy)]


def _counted(rows: Sequence[int]) -> str:
    return f"{len(rows)} {'row' if len(rows) == 1 else 'rows'}"


def _shown(rows: Sequence[int]) -> str:
    shown = ", ".join(map(str, rows[:_ROWS_SHOWN])) + (", …" if len(rows) > _ROWS_SHOWN else "")
    return f"{'row' if len(rows) == 1 else 'rows'} {shown}"


def _warning(path: Path, field: str, expected: str, got: str, remedy: str) -> Problem:
    problem = _problem(path, field, expected, got, remedy)
    return replace(problem, severity="warning")


def _of_object(problem: Problem) -> Problem:
    """Names the field that declares the text, where several columns make it up."""
    field = problem.field.replace("columns.text", "columns.object")
    return replace(problem, field=field)


def _check_canaries(spec: PrivateDatasetSpec, path: Path) -> list[Problem]:
    canaries = spec.evaluation.canaries
    if canaries is None or Path(canaries).is_file():
        return []
    remedy = "Mend the path, or drop the key."
    got = f"nothing at {canaries}"
    return [_problem(path, "evaluation.canaries", "a text or Parquet file", got, remedy)]


def _check_public(spec: PublicDataSpec, path: Path) -> list[Problem]:
    problems = []
    for index, source in enumerate(spec.sources):
        prefix = f"source.{index}." if isinstance(spec.source, list) else ""
        try:
            rows = read_source(source.source, public_column_names(source)).height
        except SourceError as error:
            problems.append(_source_problem(error, path, prefix))
            continue
        if not rows:
            remedy = "Fill the source, or drop it."
            field = f"{prefix}source.path"
            problems.append(_problem(path, field, "at least one document", "no rows", remedy))
    return problems


def _source_problem(error: SourceError, path: Path, prefix: str = "") -> Problem:
    return _problem(path, f"{prefix}{error.field}", error.expected, error.got, error.remedy)


def _problem(path: Path, field: str, expected: str, got: str, remedy: str) -> Problem:
    return Problem(file=str(path), field=field, expected=expected, got=got, remedy=remedy)
