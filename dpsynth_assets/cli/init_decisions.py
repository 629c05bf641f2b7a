"""What `dpsynth init` asks of the steward: how files are written, labels in words, and decisions.

For the steward's own terminal: numbers here follow from private records and go into no file. How a
CSV file is written is read off its header alone, so that it may stand in one.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from dpsynth_assets.cli.column_profiles import (
    LEAST_RECORDS_PER_LABEL,
    MOST_ROWS,
    ColumnProfile,
    Suggestion,
    is_csv,
    kept_share,
)
from dpsynth_assets.cli.terminal import say, show_table
from dpsynth_assets.datasets import SourceSpec
from dpsynth_assets.datasets.prompt_words import looks_like_code
from dpsynth_assets.datasets.source_section import UTF_8
from dpsynth_assets.datasets.template import Choices, label_line
from dpsynth_assets.privacy.directed_rounding import declared
from dpsynth_assets.records.columns import SourceError
from dpsynth_assets.records.csv_files import dialect_of, recognised_dialect
from dpsynth_assets.records.sources import source_files, stray_encodings

LARGEST_DELTA_TIMES_RECORDS = 0.1


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A dataset file to be written, and what its author is to be told."""

    path: Path
    choices: Choices
    profiles: list[ColumnProfile]
    suggestion: Suggestion
    decisions: list[tuple[str, str]]


def decisions(
    choices: Choices, profiles: Sequence[ColumnProfile], found: Suggestion
) -> list[tuple[str, str]]:
    """What only the steward can decide: what the file says now, and what to change."""
    damaged = sum(profile.damaged for profile in profiles)
    written = describe_bytes(source_of(choices), damaged)
    return [
        *([("Source: how the file is written", written)] if written else []),
        (
            "Columns: what each of them holds",
            "Text, id and unit were chosen by the names of columns, not by what is in them: check "
            "the table above, and correct the file or use --text, --id, --unit.",
        ),
        ("Unit: whose presence is hidden", _unit_decision(choices, found)),
        (
            "Relation: what a neighbour is",
            "add-remove: the dataset with and without the unit. It hides the number of records "
            "too. Keep it unless that number is public.",
        ),
        ("Public facts: labels", _label_decision(choices, found)),
        (
            "Public facts: number of records",
            "None declared, so it stays private. With it, methods that fine-tune can run and rows "
            "of private prediction are known: name it with --records if anybody may know it."
            if choices.records is None
            else f"{choices.records:,}, public because you named it.",
        ),
        ("Budget: ε and δ for all that will ever be released", _budget_decision(choices, profiles)),
        ("Public base", _base_decision(choices)),
        ("Method", _method_decision(choices)),
    ]


def facts_of(name: str, draft: Draft) -> dict[str, Any]:
    """The same as JSON values."""
    return {
        "name": name,
        "file": str(draft.path),
        "columns": {profile.name: _role(profile, draft) for profile in draft.profiles},
        "method": {
            "name": draft.choices.method.chosen.methods[-1]["method"],
            "settings": dict(draft.choices.method.chosen.methods[-1]["settings"]),
            "why": draft.choices.method.why,
        },
        "decisions": [{"about": about, "now": now} for about, now in draft.decisions],
    }


def show(name: str, draft: Draft) -> None:
    """Prints the columns, the decisions, and what comes next."""
    columns = ("column", "filled", "distinct", "words", "suggestion")
    title = f"Columns of {draft.choices.path} (first {MOST_ROWS:,} rows; shown to you alone)"
    show_table(columns, (_row(each, draft) for each in draft.profiles), title=title)
    say("\nDecide, in the file:", style="bold")
    first = "list the public label values in the file, then " if draft.choices.unconfirmed else ""
    say(
        *(_printable(f"- {about}. {now}") for about, now in draft.decisions),
        f"\nWritten: {draft.path}",
        f"Next: {first}dpsynth datasets check {draft.path}, then dpsynth plan {name}",
    )


def _row(profile: ColumnProfile, draft: Draft) -> tuple[str, ...]:
    numbers = f"{profile.filled:.0%}", f"{profile.distinct:,}", f"{profile.words:.1f}"
    shown = ("", "", "") if profile.nested else numbers
    return _printable(profile.name), *shown, _role(profile, draft)


def _printable(text: str) -> str:
    """Escapes control characters, so that a terminal shows them and does not act on them."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def _unit_decision(choices: Choices, found: Suggestion) -> str:
    if choices.unit is None:
        repeated = found.unit or found.possible_unit
        hint = (
            f" Column {repeated!r} repeats: if it is a person, make it the unit (--unit)."
            if repeated
            else " If one person has several records, name their column in privacy_unit."
        )
        return f"One record.{hint}"
    shares = [
        f"{bound}: {kept_share(source_of(choices), choices.unit, bound):.0%}"
        for bound in (1, 5, 20)
    ]
    return (
        f"Everything of one {choices.unit!r}, at most {choices.max_records} record(s) of each. "
        f"Share of records kept by max_records: {', '.join(shares)}. A larger bound costs more "
        "noise. Choose a round number: one that is computed from the data tells of it."
    )


def _label_decision(choices: Choices, found: Suggestion) -> str:
    said, suggested = [], _suggested(choices, found)
    if choices.labels:
        said.append(f"Columns {', '.join(choices.labels)}: the values that you named are public.")
        if codes := codes_of(choices.labels, choices.label_words):
            said.append(
                f"{', '.join(codes)}: codes tell a model nothing. Write in the file what each "
                "stands for, or use --label-words."
            )
    if choices.unconfirmed:
        said.append(
            f"Columns {', '.join(choices.unconfirmed)}: nothing runs before public_facts.labels "
            "lists their public values, or --public-labels COLUMN=A,B,C does."
        )
    if suggested:
        said.append(
            f"Columns {', '.join(suggested)} look like labels: with them in columns.labels, "
            "corpora have labels."
        )
    shown = {**choices.unconfirmed, **suggested}
    if shown:
        values = (label_line(name, sorted(values)) for name, values in shown.items())
        said.append(
            f"Found, shared by at least {LEAST_RECORDS_PER_LABEL} records each, and written "
            f"nowhere: {'; '.join(values)}. Whatever you list becomes public."
        )
    return " ".join(said) or "None found. Corpora will have no labels."


def _suggested(choices: Choices, found: Suggestion) -> dict[str, Sequence[str]]:
    """Columns that look like labels by their values, which nobody has named for anything."""
    taken = {*choices.labels, *choices.unconfirmed, choices.text, choices.unit}
    return {each.name: each.label_values for each in found.labels if each.name not in taken}


def _method_decision(choices: Choices) -> str:
    others = "; ".join(each.expected for each in choices.method.beside)
    beside = f" Beside it as comments: {others}." if others else ""
    return choices.method.why + beside


def _base_decision(choices: Choices) -> str:
    if choices.domain:
        short = "" if " " in choices.domain else " One word says little: of what, and for whom?"
        return (
            f"One of its own, written by a pretrained model from {choices.domain!r} alone: check "
            f"that these words, and the labels beside them, may be public.{short}"
        )
    return (
        f"{choices.public_data}: the public text and model to build on. Say what your texts are, "
        "in a few public words, with --domain, and the file declares a base of its own."
    )


def _budget_decision(choices: Choices, profiles: Sequence[ColumnProfile]) -> str:
    rows = max((profile.rows for profile in profiles), default=0)
    said = f"ε = {declared(choices.epsilon)}, δ = {declared(choices.delta)}."
    if choices.delta * rows > LARGEST_DELTA_TIMES_RECORDS:
        said += " δ is too large for so many records: at most 1 / (10 x number of records)."
    return f"{said} Spent budget never comes back; `dpsynth plan` prices everything beforehand."


def _role(profile: ColumnProfile, draft: Draft) -> str:
    choices, found = draft.choices, draft.suggestion
    if profile.name == choices.text:
        return "text"
    if profile.name == choices.unit:
        return "privacy unit"
    if profile.name in choices.labels:
        return "label (public)"
    if profile.name in choices.unconfirmed or profile.name in _suggested(choices, found):
        empty = "" if profile.filled == 1 else "; records without one would be set aside"
        return f"label? confirm its values{empty}"
    if profile.name == choices.id:
        return "id"
    return "unit? decide" if profile.name in (found.unit, found.possible_unit) else "not read"


def recognised_source(path: str, separator: str, encoding: str) -> SourceSpec:
    """Completes a source by what the header of its first file shows.

    **Privacy** Looks at no record: the result stands in a public file.

    Args:
        path: Where the records lie, on this machine.
        separator: What separates fields; empty: recognised.
        encoding: Name of the encoding; empty: recognised.

    Raises:
        SourceError: There is no such file, or it is not on this machine.
        pydantic.ValidationError: The separator or the encoding cannot be one.
    """
    if "://" in path:
        raise SourceError(
            field="--from",
            expected="a file on this machine",
            got=path,
            remedy="Download it first: suggestions need the records, and a dataset file may name "
            "the address afterwards.",
        )
    named = {"separator": separator, "encoding": encoding}
    place = str(Path(path).expanduser().absolute())
    source = SourceSpec.model_validate(
        {"path": place, **{name: value for name, value in named.items() if value}}
    )
    first = source_files(source)[0]
    if not is_csv(first) or not first.is_file():
        return source
    declared = dialect_of(first, source)
    found = recognised_dialect(first, declared)
    changes: dict[str, str] = {}
    if not separator and found.separator != declared.separator:
        changes["separator"] = found.separator
    if not encoding:
        changes["encoding"] = found.encoding
    return source.model_copy(update=changes)


def source_of(choices: Choices) -> SourceSpec:
    """The source that a new dataset file names."""
    return SourceSpec(
        path=str(choices.path), separator=choices.separator, encoding=choices.encoding
    )


def describe_bytes(source: SourceSpec, damaged: int) -> str:
    """Says how a CSV file is read if not as usual, and what does not fit; for the terminal alone.

    Args:
        source: The source.
        damaged: Values with bytes that its encoding does not know.
    """
    if not is_csv(Path(source.path)):
        return ""
    if source.separator is None and source.encoding == UTF_8 and not damaged:
        return ""
    stray = stray_encodings(source)
    said = f"Encoding: {source.encoding}."
    if source.separator is not None:
        said = f"Fields separated by {source.separator!r}. {said}"
    if stray is not None:
        said += f" The files hold {stray[0]}. {stray[1]}"
    elif damaged:
        said += (
            f" {damaged:,} values hold bytes that it does not know: their records would be set "
            "aside. Name the encoding of the file, e.g. --encoding cp1252 --force."
        )
    return said


Labels = Mapping[str, Sequence[str]]
"""Label column -> its public values."""


def label_words(labels: Labels, given: Sequence[str], *, asks: bool) -> dict[str, str]:
    """Says how prompts write label values, where that is not the value itself.

    Args:
        labels: Public values.
        given: `VALUE=WORDS` each.
        asks: Whether somebody at a terminal is asked for the words of codes.

    Raises:
        BadParameter: A value is none of the labels, or has no words.
    """
    found: dict[str, str] = {}
    known = [value for values in labels.values() for value in values]
    for text in given:
        value, words = named_part(text, known)
        if value not in known or not words:
            raise typer.BadParameter(
                f"Expected --label-words VALUE=WORDS with a value of --public-labels, got {text!r}."
            )
        found[value] = words
    if asks and sys.stdin.isatty():
        for code in codes_of(labels, found):
            words = typer.prompt(f"{code!r} in words (Enter: as it is)", default=code).strip()
            found |= {} if words in ("", code) else {code: words}
    return found


def named_part(text: str, known: Sequence[str]) -> tuple[str, str]:
    """Parts NAME=REST: a known name may hold a sign of equality itself; the longest is meant."""
    ends = [place for place, sign in enumerate(text) if sign == "="] or [len(text)]
    pairs = [(text[:end].strip(), text[end + 1 :].strip()) for end in ends]
    return next((pair for pair in reversed(pairs) if pair[0] in known), pairs[0])


def codes_of(labels: Labels, words: Mapping[str, str]) -> list[str]:
    """Values that look like codes and have no words yet."""
    values = [value for column in labels.values() for value in column]
    return [value for value in values if value not in words and looks_like_code(value)]
