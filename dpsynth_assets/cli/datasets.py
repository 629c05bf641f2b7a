"""`dpsynth datasets`: check dataset files before anything is spent, and list what is declared."""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from rich.console import Console

from dpsynth_assets.cli.declaration_problems import base_problems, method_problems
from dpsynth_assets.cli.terminal import AsJson, answer, say, show_table
from dpsynth_assets.datasets import (
    PrivateDatasetSpec,
    Problem,
    PublicDataSpec,
    Standing,
    cohorts_of,
    dataset_folders,
    parse_dataset_file,
    repeated_names,
    standing,
    unknown_bases,
)
from dpsynth_assets.datasets.standing import shared_record_problems
from dpsynth_assets.files.tables import markdown_table
from dpsynth_assets.privacy.directed_rounding import declared

app = typer.Typer(no_args_is_help=True)

_COLOURS = {"error": "red", "warning": "yellow", "note": "cyan"}


@app.command()
def check(
    files: Annotated[list[Path] | None, typer.Argument()] = None,
    as_json: AsJson = False,
) -> None:
    """Check dataset files and the records they name; exit code 2 where one cannot be used.

    Shows the steward how many records are set aside and in which rows, never their content.

    Args:
        files: Dataset files; none: all of defs and DPSYNTH_DATASETS.
        as_json: Print JSON.
    """
    from dpsynth_assets.records import check_dataset_file

    paths = files or _declared_files()
    checked = [check_dataset_file(path, method_problems, base_problems) for path in paths]
    problems = [problem for each in checked for problem in each.problems] + _across(paths)
    told = {
        "problems": [dataclasses.asdict(problem) for problem in problems],
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
    answer(told, as_json, lambda: _print_check(problems, len(paths)), 2 if counts["error"] else 0)


def _print_check(problems: Sequence[Problem], files: int) -> None:
    counts = Counter(problem.severity for problem in problems)
    print_problems(problems, Console())
    say(f"{files} files, {counts['error']} errors, {counts['warning']} warnings")


@app.command("list")
def list_datasets(as_json: AsJson = False) -> None:
    """List the declared datasets and public bases; exit code 2 where a file cannot be used."""
    declared = standing(dataset_folders())
    rows = [_summary(file.spec, file.path) for file in declared.usable]
    names = {"epsilon": "ε", "delta": "δ", "neighboring_relation": "Relation"}
    names["privacy_unit"] = "Unit"
    columns = {names.get(name, name.title()): partial(_cell, name) for name in _SUMMARY}
    answer(rows, as_json, lambda: show_table(rows, columns))
    _tell_refused(declared)


@app.command()
def cohorts(as_json: AsJson = False) -> None:
    """Register files and windows that are complete, and list the cohorts of partitioned datasets.

    Each becomes a partition in the web UI, at once: what the sensor `register_cohorts` does. Reads
    no record, launches nothing and spends nothing.
    """
    from dpsynth_assets.orchestration.assets.partitions import register_partitions
    from dpsynth_assets.orchestration.instance import dagster_instance

    declared = standing(dataset_folders())
    specs = [file.spec for file in declared.usable]
    known: dict[str, list[str]] = {}
    with dagster_instance() as instance:
        for spec in specs:
            if isinstance(spec, PrivateDatasetSpec) and spec.cohorts is not None:
                register_partitions(instance, spec)
                known[spec.name] = [cohort.name for cohort in cohorts_of(spec)]
    lines = (f"{each}: {', '.join(names) or _NONE_COMPLETE}" for each, names in known.items())
    nothing = "No dataset file declares cohorts."
    answer(known, as_json, lambda: say(*(lines if known else [nothing])))
    _tell_refused(declared)


_NONE_COMPLETE = "no cohort is complete yet"


def _tell_refused(declared: Standing) -> None:
    """Prints why files cannot be used, on stderr; the others were dealt with before."""
    for problem in declared.problems:
        typer.echo(str(problem), err=True)
    if declared.refused:
        raise typer.Exit(2)


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


_SUMMARY = (
    "name", "kind", "epsilon", "delta", "neighboring_relation", "privacy_unit", "methods", "file",
)  # fmt: skip


def _summary(spec: PrivateDatasetSpec | PublicDataSpec, path: Path) -> dict[str, Any]:
    row = dict.fromkeys(_SUMMARY)
    row |= {"name": spec.name, "kind": "public", "methods": [], "file": str(path)}
    if isinstance(spec, PrivateDatasetSpec):
        row |= {
            "kind": "private",
            "epsilon": spec.budget.epsilon,
            "delta": spec.budget.delta,
            "neighboring_relation": str(spec.neighboring_relation),
            "privacy_unit": spec.unit.describe(),
            "methods": [method.key for method in spec.methods],
        }
    return row


def _cell(name: str, row: dict[str, Any]) -> str:
    value = row[name]
    if isinstance(value, list):
        return ", ".join(value)
    return "" if value is None else declared(value) if isinstance(value, float) else str(value)


@app.command()
def fields() -> None:
    """Print the reference of every field of a dataset file, as Markdown."""
    typer.echo(field_reference())


@app.command()
def methods() -> None:
    """Print the methods and every setting each of them takes, as Markdown."""
    from dpsynth_assets.methods.registry import REGISTRY

    for method in REGISTRY.values():
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
        nested.extend((f"{prefix}{name}.", part) for part in _models(field.annotation))
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
    text, annotation = field.description or "", field.annotation
    if get_origin(annotation) is not Literal:
        return text
    return f"{text} One of {', '.join(f'`{choice}`' for choice in get_args(annotation))}."


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Declarations inside an annotation, e.g. of `list[MethodSpec]` or `HistogramSpec | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]
