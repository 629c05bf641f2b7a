"""Checking a dataset file against its source: every problem in one pass, nothing spent.

For the steward's terminal: a problem may say how many records a rule sets aside and which rows.
It never shows a text or another value of a private column.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from dpsynth_assets.datasets import (
    PrivateDatasetSpec,
    Problem,
    PublicDataSpec,
    matching_files,
    parse_dataset_file,
)
from dpsynth_assets.datasets.dataset_sections import UTF_8, SourceSpec
from dpsynth_assets.json_records import record_check
from dpsynth_assets.records.columns import SourceError
from dpsynth_assets.records.reading import (
    Tally,
    public_column_names,
    refuse_private,
    tally_of,
    unfit,
)
from dpsynth_assets.records.record_filters import (
    CONTROL,
    REASON,
    ROW,
    Rule,
    column_names,
    date_of,
    in_window,
    judge,
    kept_id_columns,
    repeated_ids,
)
from dpsynth_assets.records.sources import read_source, stray_encodings

BaseChecker = Callable[[PrivateDatasetSpec, pl.Series], Sequence[Problem]]
"""Compares usable texts with what the public base can do."""

_ROWS_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What a check found.

    Attributes:
        problems: What to correct, or to know.
        tallies: Numbers of records by dataset, for those whose source could be read; private.
    """

    problems: list[Problem]
    tallies: dict[str, Tally]


_ADVICE: dict[Rule, tuple[str, str, str]] = {
    Rule.UNREADABLE: (
        "source.path",
        "one JSON object per line, or as many CSV fields as the header has, with quotes that close",
        "Fix these lines: put a field with a separator or a quotation mark in quotes.",
    ),
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
        "Add the missing value to public_facts.labels if it is public, or fix the rows.",
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


def check_dataset_file(
    path: Path,
    method_checker: Callable[[PrivateDatasetSpec], Sequence[Problem]] | None = None,
    base_checker: BaseChecker | None = None,
) -> Checked:
    """Checks a dataset file: its declaration, its methods, and every record of its source.

    Args:
        path: The YAML file.
        method_checker: Called with each private declaration that holds by itself.
        base_checker: Called with it and the texts that can be used.

    Returns:
        Problems, declaration first; those of severity `warning` leave the dataset usable.
    """
    files, problems = parse_dataset_file(path)
    tallies: dict[str, Tally] = {}
    for file in files:
        if isinstance(file.spec, PublicDataSpec):
            found = [*_check_public(file.spec)]
        else:
            found = [*(method_checker(file.spec) if method_checker else ())]
            checked = check_records(file.spec, path, base_checker)
            found += checked.problems
            tallies |= checked.tallies
        problems += [replace(problem, file=str(path)) for problem in found]
    return Checked(problems=problems, tallies=tallies)


def check_records(
    spec: PrivateDatasetSpec,
    path: Path,
    base_checker: BaseChecker | None = None,
    whole: PrivateDatasetSpec | None = None,
) -> Checked:
    """Checks the records of one declaration, or of one cohort of it, as `check_dataset_file` does.

    Args:
        spec: The declaration.
        path: Its file.
        base_checker: Called with it and the texts that can be used.
        whole: The declaration that `spec` is a cohort of.
    """
    try:
        source = read_source(spec.source, column_names(spec))
    except SourceError as error:
        return Checked(problems=[replace(_source_problem(error), file=str(path))], tallies={})
    raw = in_window(source, spec)
    judged = judge(raw, spec)
    usable = judged.filter(pl.col(REASON).is_null())
    stray = stray_encodings(spec.source)
    problems = [
        *_of_encodings(stray, spec),
        *_of_kept_ids(judged, spec),
        *_set_aside(judged, spec, stray),
        *_over_bound(usable, spec),
        *_cleaned(raw[column_names(spec).text]),
        *_no_records(usable, spec),
        *_in_no_cohort(source, whole or spec),
    ]
    if spec.columns.object:
        problems = [
            replace(problem, field=problem.field.replace("columns.text", "columns.object"))
            for problem in problems
        ]
    if base_checker is not None:
        problems += base_checker(spec, usable["text"])
    tally = tally_of(judged)
    problems += unfit(tally, spec)
    problems += [*_check_canaries(spec), *_check_models(spec)]
    named = [replace(problem, file=str(path)) for problem in problems]
    return Checked(problems=named, tallies={spec.name: tally})


def _no_records(usable: pl.DataFrame, spec: PrivateDatasetSpec) -> Iterator[Problem]:
    """Says how many texts are no records of the declared schema."""
    if spec.structured is None:
        return
    follows = record_check(spec.structured.schema_mapping)
    others = usable.filter(~usable["text"].map_elements(follows, return_dtype=pl.Boolean))
    if others.height:
        got = f"{others.height} of {usable.height} texts that are not"
        remedy = "Fix schema or records: rows always follow the schema."
        expected = "texts that are JSON records of the schema"
        yield Problem("structured.json_schema", expected, got, remedy, "warning")


def _in_no_cohort(raw: pl.DataFrame, spec: PrivateDatasetSpec) -> Iterator[Problem]:
    """Says how many records no cohort will hold, and which files."""
    if spec.cohorts is None:
        return
    first, field = spec.cohorts.first, "cohorts.column"
    expected = "records with a date YYYY-MM-DD in a window"
    if spec.cohorts.by == "window":
        day = date_of(spec.cohorts.column or "")
        none, early = raw.select(day.is_null().sum(), (day < first).sum().alias("early")).row(0)
        strangers = none + early
        found = {"without one": none, f"before {first}": early}
        got = ", ".join(f"{count} {which}" for which, count in found.items() if count)
        remedy = "These are in no cohort: fix or drop them, or declare an earlier cohorts.first."
    else:
        names = [file.name for file in matching_files(spec.source)]
        other = [name for name in names if spec.cohorts.file_key(name) is None]
        strangers, expected = len(other), f"files named {spec.cohorts.pattern}"
        field, got = "cohorts.pattern", ", ".join(other[:_ROWS_SHOWN])
        remedy = "Other files are in no cohort: rename them, or fix the pattern."
    if strangers:
        yield Problem(field, expected, got, remedy, "warning")


def _set_aside(
    judged: pl.DataFrame, spec: PrivateDatasetSpec, stray: tuple[str, str] | None
) -> Iterator[Problem]:
    for rule, (field, expected, advice) in _ADVICE.items():
        rows = judged.filter(pl.col(REASON) == rule.value)[ROW].to_list()
        if not rows or (rule is Rule.REPEATED_ID and kept_id_columns(spec)):
            continue
        got, remedy = f"{_counted(rows)} set aside ({rule.value}; {_shown(rows)})", advice
        if rule is Rule.DAMAGED_TEXT and stray is not None and spec.source.encoding == UTF_8:
            got, remedy = f"{got}; {stray[0]}", stray[1]
        yield Problem(field, expected, got, remedy, "warning")


def _over_bound(usable: pl.DataFrame, spec: PrivateDatasetSpec) -> Iterator[Problem]:
    """Says how many records a privacy unit has beyond its bound: no method reads them."""
    if spec.privacy_unit.column is None:
        return
    most = spec.privacy_unit.max_records
    over = usable.filter(pl.int_range(pl.len()).over("unit") >= most).height
    if over:
        got, remedy = f"{over} records beyond it", "Keep it, or raise it, which raises the noise."
        expected = f"at most {most} of one {spec.privacy_unit.column}"
        yield Problem("privacy_unit.max_records", expected, got, remedy, "warning")


def _of_kept_ids(judged: pl.DataFrame, spec: PrivateDatasetSpec) -> Iterator[Problem]:
    """Says what replace-one takes for kept; repeated ids are then an error, not a warning."""
    kept = kept_id_columns(spec)
    if kept and spec.columns.id is not None and (rows := repeated_ids(judged)):
        got = f"{_counted(rows)} that share one ({_shown(rows)})"
        remedy = "Fix them, drop columns.id, or use neighboring_relation: add-remove."
        expected = "ids that differ, since replace-one neighbours keep them"
        yield Problem("columns.id", expected, got, remedy)
    elif kept:
        yield Problem(
            "neighboring_relation",
            "public ids: a replaced record keeps its id, so ids are not protected",
            f"replace-one with {', '.join(f'{field}: {name}' for field, name in kept.items())}",
            "Keep it if ids reveal nothing; otherwise use neighboring_relation: add-remove.",
            "note",
        )


def _cleaned(texts: pl.Series) -> Iterator[Problem]:
    """Says which texts hold control characters, which are read as blanks."""
    rows = [int(index) + 1 for index in texts.str.contains(CONTROL).fill_null(False).arg_true()]
    if rows:
        got = f"{_counted(rows)} with some, read as blanks ({_shown(rows)})"
        remedy = "You need not do anything; clean them at the source if they matter."
        yield Problem("columns.text", "text without control characters", got, remedy, "warning")


def _of_encodings(stray: tuple[str, str] | None, spec: PrivateDatasetSpec) -> Iterator[Problem]:
    """Names files of another encoding than declared, which no record shows: each byte has one."""
    if stray is not None and spec.source.encoding != UTF_8:
        yield Problem("source.encoding", f"{spec.source.encoding} text", *stray)


def _counted(rows: Sequence[int]) -> str:
    return f"{len(rows)} {'row' if len(rows) == 1 else 'rows'}"


def _shown(rows: Sequence[int]) -> str:
    shown = ", ".join(map(str, rows[:_ROWS_SHOWN])) + (", …" if len(rows) > _ROWS_SHOWN else "")
    return f"{'row' if len(rows) == 1 else 'rows'} {shown}"


def _check_canaries(spec: PrivateDatasetSpec) -> Iterator[Problem]:
    canaries = spec.evaluation.canaries
    if canaries is not None and not Path(canaries).is_file():
        got, remedy = f"nothing at {canaries}", "Fix the path, or drop the key."
        yield Problem("evaluation.canaries", "a text or Parquet file", got, remedy)


_TOKENIZERS = ("tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "tokenizer.model")
"""Files of which a folder of the transformers format has one, if it has a tokenizer."""


def _check_models(spec: PrivateDatasetSpec) -> Iterator[Problem]:
    """Names models of the evaluation that are not whole here, before anything is charged."""
    asked = {"encoder": spec.evaluation.encoder, "mauve.embedder": spec.evaluation.mauve.embedder}
    expected = "a model with its tokenizer in a folder or the local hub cache"
    remedy = "Download it first, or leave `model` out."
    for field, each in asked.items():
        if each is not None and each.model is not None and (no := _missing_files(each.model)):
            got = f"no {' and no '.join(no)} of {each.model!r}"
            yield Problem(f"evaluation.{field}.model", expected, got, remedy)


def _missing_files(model: str) -> list[str]:
    """What a model in the format of transformers lacks on this machine."""
    from huggingface_hub import try_to_load_from_cache

    folder = Path(model)

    def has(file: str) -> bool:
        if folder.is_dir() or folder.is_absolute():
            return (folder / file).is_file()
        return isinstance(try_to_load_from_cache(model, file), str)

    lacks_tokenizer = not any(map(has, _TOKENIZERS))
    return ["config.json"] * (not has("config.json")) + ["tokenizer"] * lacks_tokenizer


def _check_public(spec: PublicDataSpec) -> Iterator[Problem]:
    for index, source in enumerate(spec.sources):
        prefix = f"source.{index}." if isinstance(spec.source, list) else ""
        try:
            refuse_private(source.source)
            rows = read_source(source.source, public_column_names(source)).height
        except SourceError as error:
            yield _source_problem(error, prefix)
            continue
        if not rows:
            remedy, expected = "Fill the source, or drop it.", "at least one document"
            yield Problem(f"{prefix}source.path", expected, "no rows", remedy)
    if (pairs := spec.conditional_generator.pairs) is not None:
        try:
            refuse_private(SourceSpec(path=pairs.path))
        except SourceError as error:
            yield replace(_source_problem(error), field="conditional_generator.pairs.path")


def _source_problem(error: SourceError, prefix: str = "") -> Problem:
    return Problem(f"{prefix}{error.field}", error.expected, error.told, error.remedy)
