"""`dpsynth init`: a commented dataset file for one's own data, and what must be decided."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from dpsynth_assets.cli.column_profiles import (
    LEAST_RECORDS_PER_LABEL,
    MOST_ROWS,
    ColumnProfile,
    Suggestion,
    kept_share,
    profile_columns,
    suggest,
)
from dpsynth_assets.datasets import dataset_folders, dataset_template, parse_dataset_file
from dpsynth_assets.datasets.template import Choices
from dpsynth_assets.privacy.rounded import declared
from dpsynth_assets.records.columns import SourceError

LARGEST_DELTA_TIMES_RECORDS = 0.1


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A dataset file to be written, and what its author is to be told."""

    path: Path
    choices: Choices
    profiles: list[ColumnProfile]
    suggestion: Suggestion
    decisions: list[tuple[str, str]]


def init(  # noqa: PLR0913 - options are arguments
    name: Annotated[str, typer.Argument(help="Name of the dataset: lower case, digits, _.")],
    source: Annotated[
        str, typer.Option("--from", help="CSV, JSON Lines, Parquet, or a save_to_disk folder.")
    ],
    text: Annotated[str, typer.Option(help="Column of the text; default: suggested.")] = "",
    label: Annotated[
        list[str] | None,
        typer.Option(help="Label column; its values go into the file and become public."),
    ] = None,
    unit: Annotated[
        str,
        typer.Option(help='Column of whoever is protected, or "record"; default: suggested.'),
    ] = "",
    max_records: Annotated[int, typer.Option(min=1, help="Records used of one unit.")] = 1,
    epsilon: Annotated[float, typer.Option(help="Budget ε.")] = 4.0,
    delta: Annotated[float, typer.Option(help="Budget δ, a public constant.")] = 1e-6,
    public_data: Annotated[str, typer.Option(help="Public base to build on.")] = "demo",
    folder: Annotated[
        Path | None,
        typer.Option(
            "--to", help="Folder of dataset files; default: the first of DPSYNTH_DATASETS."
        ),
    ] = None,
    force: Annotated[bool, typer.Option(help="Replace a file that is there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write a dataset file for your own data: suggested columns, and what you must decide.

    Reads the file on this machine and sends nothing anywhere. No text is printed or written; the
    values of columns that look like labels are written as a comment, for you to confirm.
    """
    target = _target(name, folder, force=force)
    labels = label or []
    try:
        profiles = profile_columns(_absolute(source))
        found = suggest(profiles)
        _check_columns(profiles, [text, "" if unit == "record" else unit, *labels])
    except SourceError as problem:
        _refuse(str(problem))
    choices = Choices(
        path=_absolute(source),
        text=text or found.text or _no_text(profiles),
        id=found.id,
        unit=None if unit == "record" else unit or found.unit,
        max_records=max_records,
        labels=_confirmed(profiles, labels),
        suggested={p.name: p.label_values for p in found.labels if p.name not in labels},
        suggested_unit=found.possible_unit,
        epsilon=epsilon,
        delta=delta,
        public_data=public_data,
    )
    draft = Draft(
        path=target,
        choices=choices,
        profiles=profiles,
        suggestion=found,
        decisions=_decisions(choices, profiles),
    )
    _write(draft, dataset_template(name, choices))
    if as_json:
        typer.echo(json.dumps(_facts(name, draft), indent=2))
    else:
        _print(name, draft)


def _target(name: str, folder: Path | None, *, force: bool) -> Path:
    """Where the file goes: `<folder>/<name>/defs.yaml`."""
    import re

    if not re.fullmatch(r"[a-z][a-z0-9_]{0,63}", name):
        _refuse(
            f"Expected a name of lower-case letters, digits and underscores, got {name!r}. It "
            "names assets, folders and the ledger account."
        )
    extra = dataset_folders()[1:] if os.environ.get("DPSYNTH_DATASETS", "").strip() else []
    target = (folder or (extra or dataset_folders())[0]) / name / "defs.yaml"
    if target.exists() and not force:
        _refuse(f"Expected no file at {target}, got one. Choose another name, or use --force.")
    return target


def _absolute(source: str) -> str:
    if "://" in source:
        _refuse(
            f"Expected a file on this machine, got {source}. Download it first: suggestions need "
            "the records, and a dataset file may name the address afterwards."
        )
    return str(Path(source).expanduser().absolute())


def _check_columns(profiles: list[ColumnProfile], named: list[str]) -> None:
    known = [profile.name for profile in profiles]
    for name in named:
        if name and name not in known:
            raise SourceError(
                field="columns",
                expected=f"one of {', '.join(known)}",
                got=repr(name),
                remedy="Name a column of the file.",
            )


def _no_text(profiles: list[ColumnProfile]) -> NoReturn:
    names = ", ".join(profile.name for profile in profiles)
    _refuse(
        f"Expected a column of text among {names}, got none that reads like sentences. Name it "
        "with --text; records without one become text with columns.object (docs/datasets.md)."
    )


def _confirmed(profiles: list[ColumnProfile], names: list[str]) -> dict[str, list[str]]:
    """Values of the columns that the steward has named as labels."""
    by_name = {profile.name: profile for profile in profiles}
    for name in names:
        if not by_name[name].label_values:
            _refuse(
                f"Expected few values with many records each in label column {name!r}, got "
                f"{by_name[name].distinct} distinct ones. Choose another column, or list the "
                "public ones in public_facts.labels by hand."
            )
    return {name: by_name[name].label_values for name in names}


def _write(draft: Draft, content: str) -> None:
    """Writes the file, and keeps it only if it is a valid declaration."""
    draft.path.parent.mkdir(parents=True, exist_ok=True)
    draft.path.write_text(content, encoding="utf-8")
    problems = parse_dataset_file(draft.path)[1]
    if problems:
        draft.path.unlink()
        _refuse("\n".join(str(problem) for problem in problems))


def _decisions(choices: Choices, profiles: list[ColumnProfile]) -> list[tuple[str, str]]:
    """What only the steward can decide: what the file says now, and what to change."""
    return [
        ("Unit: whose presence is hidden", _unit_decision(choices)),
        (
            "Relation: what a neighbour is",
            "add-remove: the dataset with and without the unit. It hides the number of records "
            "too. Keep it unless that number is public.",
        ),
        ("Public facts: labels", _label_decision(choices)),
        (
            "Public facts: number of records",
            "None declared, so it stays private. Methods that fine-tune need it: write "
            "public_facts.records only if anybody may know it.",
        ),
        ("Budget: ε and δ for all that will ever be released", _budget_decision(choices, profiles)),
        (
            "Public base",
            f"{choices.public_data}: the public text and model to build on. The demo base writes "
            "like its own letters; name a model of your domain for real use (docs/operations.md).",
        ),
    ]


def _unit_decision(choices: Choices) -> str:
    if choices.unit is None:
        hint = (
            f" Column {choices.suggested_unit!r} repeats: if it is a person, make it the unit."
            if choices.suggested_unit
            else " If one person has several records, name their column in privacy_unit."
        )
        return f"One record.{hint}"
    shares = [
        f"{bound}: {kept_share(str(choices.path), choices.unit, bound):.0%}" for bound in (1, 5, 20)
    ]
    return (
        f"Everything of one {choices.unit!r}, at most {choices.max_records} record(s) of each. "
        f"Share of records kept by max_records: {', '.join(shares)}. A larger bound costs more "
        "noise; one that follows from the data is better a round number."
    )


def _label_decision(choices: Choices) -> str:
    if choices.labels:
        return f"Columns {', '.join(choices.labels)}: their values are in the file, hence public."
    if choices.suggested:
        return (
            f"Columns {', '.join(choices.suggested)} look like labels. Values that at least "
            f"{LEAST_RECORDS_PER_LABEL} records share are in the file as a comment: confirm them "
            "there (or --label COLUMN), and corpora have labels."
        )
    return "None found. Corpora will have no labels."


def _budget_decision(choices: Choices, profiles: list[ColumnProfile]) -> str:
    rows = max((profile.rows for profile in profiles), default=0)
    said = f"ε = {declared(choices.epsilon)}, δ = {declared(choices.delta)}."
    if choices.delta * rows > LARGEST_DELTA_TIMES_RECORDS:
        said += " δ is too large for so many records: at most 1 / (10 x number of records)."
    return f"{said} Spent budget never comes back; `dpsynth plan` prices everything beforehand."


def _role(profile: ColumnProfile, choices: Choices) -> str:
    if profile.name == choices.text:
        return "text"
    if profile.name == choices.unit:
        return "privacy unit"
    if profile.name in choices.labels:
        return "label (public)"
    if profile.name in choices.suggested:
        return "label? confirm its values"
    if profile.name == choices.id:
        return "id"
    return "unit? decide" if profile.name == choices.suggested_unit else "not read"


def _facts(name: str, draft: Draft) -> dict[str, Any]:
    return {
        "name": name,
        "file": str(draft.path),
        "columns": {profile.name: _role(profile, draft.choices) for profile in draft.profiles},
        "decisions": [{"about": about, "now": now} for about, now in draft.decisions],
    }


def _print(name: str, draft: Draft) -> None:
    console = Console(width=max(100, Console().width))
    table = Table(
        "column",
        "filled",
        "distinct",
        "words",
        "suggestion",
        title=f"Columns of {draft.choices.path} (first {MOST_ROWS:,} rows; for your eyes)",
    )
    for profile in draft.profiles:
        numbers = f"{profile.filled:.0%}", f"{profile.distinct:,}", f"{profile.words:.1f}"
        shown = ("", "", "") if profile.nested else numbers
        table.add_row(profile.name, *shown, _role(profile, draft.choices))
    console.print(table)
    console.print("\nDecide, in the file:", style="bold")
    for about, now in draft.decisions:
        console.print(f"- {about}. {now}", highlight=False, markup=False)
    console.print(f"\nWritten: {draft.path}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"Next: dpsynth plan {name}", highlight=False)


def _refuse(message: str) -> NoReturn:
    Console(stderr=True).print(message, style="red", highlight=False, markup=False, soft_wrap=True)
    raise typer.Exit(2)
