"""`dpsynth datasets`: check dataset files before anything is spent; list what they may declare."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import polars as pl
import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from rich.console import Console

from dpsynth_assets.cli.cohorts import CohortIfAny, find_cohort, find_file
from dpsynth_assets.cli.terminal import AsJson, answer, say
from dpsynth_assets.datasets import (
    PrivateDatasetSpec,
    Problem,
    PublicDataSpec,
    cohorts_of,
    dataset_folders,
    parse_dataset_file,
    repeated_names,
    standing,
    unknown_bases,
)
from dpsynth_assets.datasets.fields import described, models_in
from dpsynth_assets.datasets.prompting import prompt_problems
from dpsynth_assets.datasets.standing import declared_base, shared_record_problems
from dpsynth_assets.orchestration.components.refused import planning_problems
from dpsynth_assets.report.pages import markdown_table

if TYPE_CHECKING:
    from dpsynth_assets.methods.dataset_plan import PlannedMethod

app = typer.Typer(
    no_args_is_help=True, help="Check dataset files; list cohorts, fields and methods."
)

_COLOURS = {"error": "red", "warning": "yellow", "note": "cyan"}


@app.command()
def check(
    files: Annotated[list[str] | None, typer.Argument()] = None, as_json: AsJson = False
) -> None:
    """Check dataset files and their records; exit code 2 if one cannot be used.

    Shows the steward how many records are set aside and in which rows, never their content.

    Args:
        files: Dataset files, or names of cohorts; default: all in defs and in DPSYNTH_DATASETS.
        as_json: Print JSON.
    """
    from dpsynth_assets.records import check_dataset_file

    paths = list(map(_file_of, files or ())) or _declared_files()
    checked = [check_dataset_file(path, method_problems, base_problems) for path in paths]
    problems = [problem for each in checked for problem in each.problems] + _across(paths)
    told = {
        "problems": [asdict(problem) for problem in problems],
        "datasets": [
            {
                "name": name,
                "records": tally.records,
                "read": tally.read,
                "set_aside": dict(tally.set_aside),
            }
            for each in checked
            for name, tally in each.tallies.items()
        ],
    }
    counts = Counter(problem.severity for problem in problems)
    counted = f"{len(paths)} files, {counts['error']} errors, {counts['warning']} warnings"

    def show() -> None:
        print_problems(problems, Console())
        say(counted)

    answer(told, as_json, show, 2 if counts["error"] else 0)


@app.command()
def cohorts(as_json: AsJson = False) -> None:
    """Register complete files and time windows as cohorts, and list the cohorts.

    Each cohort becomes a partition in the web UI; the sensor `register_cohorts` does the same.
    Reads no record, starts no run and spends no budget.
    """
    from dpsynth_assets.orchestration.assets.keys import register_partitions
    from dpsynth_assets.orchestration.instance import dagster_instance

    declared = standing(dataset_folders())
    specs = [file.spec for file in declared.usable]
    known: dict[str, list[str]] = {}
    with dagster_instance() as instance:
        for spec in specs:
            if isinstance(spec, PrivateDatasetSpec) and spec.cohorts is not None:
                register_partitions(instance, spec)
                known[spec.name] = [cohort.name for cohort in cohorts_of(spec)]
    lines = [f"{each}: {', '.join(names) or 'none is complete'}" for each, names in known.items()]
    answer(known, as_json, lambda: say(*(lines or ["No dataset file declares cohorts."])))
    for problem in declared.problems:  # The others were dealt with.
        typer.echo(str(problem), err=True)
    if declared.refused:
        raise typer.Exit(2)


def _file_of(name: str) -> Path:
    """A file by its path, or the one that declares a cohort."""
    path = Path(name)
    is_path = path.suffix or len(path.parts) > 1 or path.is_file()
    return path if is_path else find_file(name)


def _declared_files() -> list[Path]:
    """Lists the files that hold at least one dataset, and all that cannot be used."""
    declared = standing(dataset_folders())
    return sorted({*(file.path for file in declared.usable), *declared.refused})


def _across(paths: Sequence[Path]) -> list[Problem]:
    """Checks what one file alone cannot show: shared names and records, unknown public bases."""
    files = [file for path in paths for file in parse_dataset_file(path)[0]]
    declared = [file for path in _declared_files() for file in parse_dataset_file(path)[0]]
    specs = [file.spec for file in (*files, *declared)]
    bases = {spec.name for spec in specs if isinstance(spec, PublicDataSpec)}
    across = repeated_names(files) + shared_record_problems(files, declared)
    return across + unknown_bases(files, bases, refused=standing(dataset_folders()).names)


def print_problems(problems: Sequence[Problem], console: Console) -> None:
    """Prints a line a problem, in the colour of its severity."""
    for problem in problems:
        say(str(problem), style=_COLOURS[problem.severity], to=console)


@app.command()
def fields() -> None:
    """Print a description of every field of a dataset file, as Markdown."""
    typer.echo(field_reference())


@app.command()
def methods(cohort: CohortIfAny = None) -> None:
    """Print the methods and all their settings, as Markdown.

    Args:
        cohort: Print the methods of this cohort only; default: all.
    """
    from dpsynth_assets.methods.registry import REGISTRY

    named = REGISTRY if cohort is None else [each.method for each in find_cohort(cohort).methods]
    for method in (REGISTRY[name] for name in dict.fromkeys(named)):
        typer.echo(f"## `{method.name}`: {method.title}\n\n{method.paper}\n")
        typer.echo("\n".join(_tables(method.config_type, "", {})))


_INTRODUCTION = """\
# Fields of a dataset file

Written by `dpsynth datasets fields`; a test keeps it equal to the models that validate the files.
A key that is not listed is refused. Method settings are listed by `dpsynth datasets methods`.
"""


def field_reference() -> str:
    """Markdown with one table for each part of the two kinds of file."""
    parts, shown = [_INTRODUCTION], dict[Any, str]()
    for title, model in (
        ("A private dataset: `type: dpsynth_assets.components.PrivateDataset`", PrivateDatasetSpec),
        ("A public base: `type: dpsynth_assets.components.PublicData`", PublicDataSpec),
    ):
        parts.append(f"\n## {title}\n")
        parts.extend(_tables(model, "", shown))
    return "\n".join(parts)


def _tables(model: type[BaseModel], prefix: str, shown: dict[Any, str]) -> Iterator[str]:
    """A table of the fields, then those of each declaration inside; `shown` has those before."""
    if model in shown:
        yield f"`{prefix[:-1]}` has the fields of `{shown[model][:-1]}` above.\n"
        return
    shown[model] = prefix
    rows = []
    nested: list[tuple[str, type[BaseModel]]] = []
    for name, field in model.model_fields.items():
        rows.append((f"`{prefix}{name}`", _default(field), _meaning(field)))
        nested.extend((f"{prefix}{name}.", part) for part in models_in(field.annotation))
    yield markdown_table(("field", "default", "meaning"), rows) + "\n"
    for inner, part in nested:
        yield from _tables(part, inner, shown)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return "see below"
    return "none" if value is None else f"`{value}`"


def _meaning(field: FieldInfo) -> str:
    text, annotation = described(field), field.annotation
    if get_origin(annotation) is not Literal:
        return text
    return f"{text} One of {', '.join(f'`{choice}`' for choice in get_args(annotation))}."


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
            "Declare a base with models of your language; otherwise rows will be in English.",
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
            f"texts of at most {read} tokens, the limit of the text embedder of base {base.name!r}",
            f"{longer:.0%} longer texts; half of all texts have {median} tokens or more",
            "Clusters, votes and scores use only the beginning of a longer text: raise "
            "text_embedder.max_tokens of the base, or split the texts.",
            "warning",
        )
    for field, limit in _row_limits(spec):
        if median > 1.25 * limit:  # Other models count somewhat otherwise.
            yield Problem(
                field,
                f"rows as long as the texts (half of them have about {median} tokens or more)",
                f"rows that end after {limit} tokens",
                "Raise it for longer rows: they take more time and, in private prediction, more "
                "budget.",
                "warning",
            )


def _row_limits(spec: PrivateDatasetSpec) -> Iterator[tuple[str, int]]:
    """The longest row of each method, with the field that sets it."""
    from dpsynth_assets.methods.planning import plan_dataset

    if planning_problems(spec):
        return
    for index, planned in enumerate(plan_dataset(spec).methods):
        own = planned.method.config.model_dump(include=set(_LIMITS))
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


def method_problems(spec: PrivateDatasetSpec) -> list[Problem]:
    """Asks methods about their names, settings, inputs and plans; the caller names the file."""
    words = prompt_problems(spec, declared_base(spec.public_data))
    return planning_problems(spec) or [*words, *_plan_problems(spec)]


def _plan_problems(spec: PrivateDatasetSpec) -> list[Problem]:
    """Says which methods lack an input and which promises to secrets break (errors).

    And which methods the plan refuses else (warnings).
    """
    from dpsynth_assets.methods.planning import plan_dataset
    from dpsynth_assets.methods.promised_secrets import budget_warnings, promise_problems
    from dpsynth_assets.methods.provenance import input_problems

    plan = plan_dataset(spec)
    known = {planned.folder: planned for planned in plan.methods}
    found = []
    for index, planned in enumerate(plan.methods):
        lacking = input_problems(planned, known, has_topics=plan.topics is not None)
        found += [_placed(problem, index) for problem in lacking]
        if planned.plan.refusal is not None and not lacking:
            found.append(_refused(planned, index))
    return [*found, *budget_warnings(spec, plan), *promise_problems(spec, plan)]


def _placed(problem: Problem, index: int) -> Problem:
    """The same with its place in the file: what concerns settings is below the method's entry."""
    below = problem.field.startswith("settings")
    return replace(problem, field=f"methods.{index}.{problem.field}") if below else problem


def _refused(planned: "PlannedMethod", index: int) -> Problem:
    """A method that will not run as declared; the others of the file will."""
    refusal, remedy = str(planned.plan.refusal), "Change the setting or the facts that it names."
    expected, said, rest = refusal.removeprefix("Expected ").partition(", got ")
    if not said:
        expected, rest = "settings that the method can run with", f"these: {refusal.rstrip('.')}"
    got, _, told = rest.partition(". ")
    return Problem(f"methods.{index}", expected, got.rstrip("."), told or remedy, "warning")
