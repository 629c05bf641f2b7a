"""`dpsynth init`: writes a commented dataset file for one's own data, and lists open decisions.

The file is public. In it stands only what the source's schema (names of columns, and how the
header is written) and the options say; what was read off the records is shown on the terminal
alone.
"""

import csv
import os
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from dpsynth_assets.cli.advise import proposed_methods
from dpsynth_assets.cli.column_profiles import Columns, profile_columns
from dpsynth_assets.cli.init_decisions import Draft, label_words, named_part, recognised_source
from dpsynth_assets.cli.terminal import refuse
from dpsynth_assets.datasets import (
    PublicDataSpec,
    dataset_folders,
    dataset_template,
    parse_dataset_file,
    standing,
)
from dpsynth_assets.datasets.standing import declared_base
from dpsynth_assets.datasets.template import Choices, ProposedMethods, base_name
from dpsynth_assets.records.columns import SourceError

ENGLISH = "english"
"""The public base for English text of any kind."""


def init(  # noqa: PLR0913 - options are arguments
    name: str,
    source: Annotated[str, typer.Option("--from")],
    separator: str = "",
    encoding: str = "",
    text: str = "",
    id_column: Annotated[str, typer.Option("--id")] = "",
    label: list[str] | None = None,
    public_labels: Annotated[
        list[str] | None, typer.Option("--public-labels", metavar="COLUMN=A,B,C")
    ] = None,
    words_of: Annotated[
        list[str] | None, typer.Option("--label-words", metavar="VALUE=WORDS")
    ] = None,
    unit: str = "",
    max_records: Annotated[int, typer.Option(min=1)] = 1,
    epsilon: float = 4.0,
    delta: float = 1e-6,
    records: Annotated[int | None, typer.Option(min=1)] = None,
    words: Annotated[int | None, typer.Option(min=1)] = None,
    minutes: Annotated[float | None, typer.Option(min=0)] = None,
    domain: str = "",
    public_data: str = "",
    folder: Annotated[Path | None, typer.Option("--to")] = None,
    force: bool = False,
) -> None:
    """Write a dataset file for your own data, and list the decisions that you must make.

    Reads the file on this machine and sends nothing anywhere. No text is printed or written; the
    values of columns that look like labels are shown, for you to list the public ones. The
    method is proposed by the numbers that you declare, not by those that are counted.

    Args:
        name: Name of the dataset: lower case, digits, _.
        source: CSV, JSON Lines, Parquet, or a save_to_disk folder.
        separator: Character between the fields of a CSV file; default: guessed from its header.
        encoding: Encoding of a CSV file, e.g. cp1252; default: guessed from its header.
        text: Column of the text; default: guessed from the names.
        id_column: Column of the id, or "none"; default: guessed from the names.
        label: Label column; the values found are shown, and you list the public ones.
        public_labels: Label column and its values, which are public.
        words_of: How prompts write a label value that is a code, e.g. 'ABBR=what an
            abbreviation means'; on a terminal you are asked.
        unit: Column that names the privacy unit (a person), or "record"; default: guessed.
        max_records: Maximum number of records used of one privacy unit.
        epsilon: Budget ε.
        delta: Budget δ, a public constant.
        records: Number of records, if it is public.
        words: Number of words in a typical record, if it is public.
        minutes: Minutes that a run may take on this machine; default: no limit.
        domain: What the texts are, in a few public words: the file gets a public base of its
            own, written from them.
        public_data: Public base to build on; default: english.
        folder: Folder to write to; default: the first folder of DPSYNTH_DATASETS.
        force: Replace an existing file.
    """
    if domain and public_data:
        refuse(
            f"Expected --domain or --public-data, got both. With --domain the file declares the "
            f"base {base_name(name)!r} itself: drop one of the two."
        )
    if public_data and declared_base(public_data) is None:
        refuse(
            f"--public-data: expected a declared public base ({_bases()}), got {public_data!r}. "
            f"Leave it out for {ENGLISH}."
        )
    target = _target(name, folder, force=force)
    with _refused_source():
        read = recognised_source(source, separator, encoding)
        profiles = profile_columns(read)
        confirmed = _public_labels(public_labels or [], profiles)
        labels = [column for column in dict.fromkeys(label or []) if column not in confirmed]
        given = [text, *{id_column} - {"none"}, *{unit} - {"record"}, *labels, *confirmed]
        _check_columns(profiles, given)
    choices = Choices(
        path=read.path,
        separator=read.separator,
        encoding=read.encoding,
        text=text or _text(profiles),
        id=None if id_column == "none" else id_column or _id(profiles),
        unit=None if unit == "record" else unit or _unit(profiles),
        max_records=max_records,
        labels=confirmed,
        label_words=label_words(confirmed, words_of or []),
        unconfirmed=_to_confirm(profiles, labels),
        epsilon=epsilon,
        delta=delta,
        records=records,
        words=words,
        public_data=public_data or ENGLISH,
        domain=domain.strip(),
    )
    choices = replace(choices, method=_proposed(name, choices, minutes))
    draft = Draft(name, target, choices, profiles)
    _write(draft, dataset_template(name, choices))
    draft.show()


def _bases() -> str:
    specs = (file.spec for file in standing(dataset_folders()).usable)
    return ", ".join(spec.name for spec in specs if isinstance(spec, PublicDataSpec))


@contextmanager
def _refused_source() -> Iterator[None]:
    """Says in a line why a source is not read, by the options that name it."""
    try:
        yield
    except ValidationError as problem:
        first = problem.errors()[0]
        refuse(f"--{first['loc'][0]}: {first['msg']}")
    except SourceError as problem:
        field = problem.field.replace("source.path", "--from").replace("source.", "--")
        refuse(f"{field}: expected {problem.expected}, got {problem.told}. {problem.remedy}")


def _proposed(name: str, choices: Choices, minutes: float | None) -> ProposedMethods:
    """The methods whose plan fits what is declared; what was counted in the file is not told."""
    base = declared_base(choices.public_data)
    try:
        if choices.domain:
            model = {"kind": "smollm2"}
            base = PublicDataSpec(name=base_name(name), domain=choices.domain, language_model=model)
        return proposed_methods(choices, base, minutes)
    except ValueError as problem:  # A declared number contradicts another one.
        first = problem.errors()[0]["msg"] if isinstance(problem, ValidationError) else problem
        refuse(str(first).removeprefix("Value error, "))


def _target(name: str, folder: Path | None, *, force: bool) -> Path:
    """Where the file goes: `<folder>/<name>/defs.yaml`."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,63}", name):
        refuse(
            f"Expected a name of lower-case letters, digits and underscores, got {name!r}. It "
            "names assets, folders and the ledger account."
        )
    extra = dataset_folders()[1:] if os.environ.get("DPSYNTH_DATASETS", "").strip() else []
    target = (folder or (extra or dataset_folders())[0]) / name / "defs.yaml"
    if target.exists() and not force:
        refuse(f"Expected no file at {target}, got one. Choose another name, or use --force.")
    return target


def _check_columns(profiles: Columns, named: Sequence[str]) -> None:
    for name in named:
        if name and name not in profiles:
            raise SourceError(
                field="columns",
                expected=f"one of {', '.join(profiles)}",
                got=repr(name),
                remedy="Name a column of the file.",
            )


def _public_labels(given: Sequence[str], columns: Collection[str]) -> dict[str, list[str]]:
    """Reads `COLUMN=A,B,C`; a value with a comma stands in double quotes."""
    found: dict[str, list[str]] = {}
    for text in given:
        column, values = named_part(text, columns)
        lines = values.splitlines()
        row = next(csv.reader(lines, skipinitialspace=True), []) if len(lines) == 1 else []
        listed = list(dict.fromkeys(value.strip() for value in row if value.strip()))
        if not column or not listed:
            refuse(
                f"Expected --public-labels COLUMN=A,B,C, got {text!r}. Name a label column and "
                "its public values, on one line."
            )
        found[column] = listed
    return found


def _to_confirm(profiles: Columns, names: Sequence[str]) -> dict[str, list[str]]:
    """Values found in the columns that are named as labels, for the terminal."""
    for name in names:
        if not profiles[name].label_values:
            refuse(
                f"Expected few values with many records each in label column {name!r}, got "
                f"{profiles[name].distinct} distinct ones. Choose another column, or list the "
                f"public ones with --public-labels {name}=A,B,C."
            )
    return {name: profiles[name].label_values for name in names}


def _text(profiles: Columns) -> str:
    """The column named like a text; where values or other names speak against it, ask."""
    named = profiles.named_texts
    got = ", ".join(named) or "none with such a name"
    if len(named) == 1:
        if profiles[named[0]].looks_like_text:
            return named[0]
        if not profiles[named[0]].filled:
            refuse(f"Expected records with text in {got!r}, got none. Is it the right file?")
        got = f"{got}, which does not read like sentences"
    hint = f" Column {profiles.text!r} reads like sentences." if profiles.text else ""
    return refuse(
        f"Expected one column of text among {', '.join(profiles)}, got {got}.{hint} Name it with "
        "--text COLUMN; for records without such a column, use columns.object (docs/datasets.md)."
    )


def _id(profiles: Columns) -> str | None:
    """The column named like an id; where its values repeat or several are named so, ask."""
    named = profiles.named_ids
    if not named or (len(named) == 1 and profiles[named[0]].looks_like_id):
        return next(iter(named), None)
    got = "several" if len(named) > 1 else "values that repeat or are missing"
    hint = f" The values of {profiles.id!r} are unique." if profiles.id else ""
    return refuse(
        f"Expected one column of unique ids among {', '.join(named)}, got {got}.{hint} Decide: "
        "--id COLUMN, or --id none."
    )


def _unit(profiles: Columns) -> str | None:
    """The column named like a person; where some records lack it or several are named so, ask."""
    named = profiles.named_persons
    if not named or (len(named) == 1 and profiles[named[0]].filled == 1):
        return next(iter(named), None)
    got = "several" if len(named) > 1 else "records without a value"
    return refuse(
        f"Expected one column that identifies persons among {', '.join(named)}, got {got}. Decide "
        "whose presence is hidden: --unit COLUMN, or --unit record."
    )


def _write(draft: Draft, content: str) -> None:
    """Writes the file, if it is valid once its labels are confirmed; else leaves what was there."""
    draft.path.parent.mkdir(parents=True, exist_ok=True)
    before = draft.path.read_bytes() if draft.path.exists() else None
    draft.path.write_text(content, encoding="utf-8")
    awaited = {f"public_facts.labels.{column}" for column in draft.choices.unconfirmed}
    problems = [p for p in parse_dataset_file(draft.path)[1] if p.field not in awaited]
    if problems:
        if before is None:
            draft.path.unlink()
        else:
            draft.path.write_bytes(before)
        refuse("\n".join(str(problem) for problem in problems))
