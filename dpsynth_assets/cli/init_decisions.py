"""Questions of `dpsynth init` to the steward: file format, words for labels, and decisions.

For the steward's own terminal: numbers here follow from private records and go into no file. How a
CSV file is written is read off its header alone, so that it may stand in one.
"""

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from dpsynth_assets.cli.column_profiles import (
    LEAST_RECORDS_PER_LABEL,
    MOST_ROWS,
    ColumnProfile,
    Columns,
    is_csv,
    kept_share,
)
from dpsynth_assets.cli.terminal import printable, say, show_table
from dpsynth_assets.datasets import PrivateDatasetSpec, SourceSpec, dataset_folders, standing
from dpsynth_assets.datasets.dataset_sections import UTF_8
from dpsynth_assets.datasets.prompting import looks_like_code
from dpsynth_assets.datasets.standing import source_places
from dpsynth_assets.datasets.template import Choices, filled, label_line
from dpsynth_assets.methods.capabilities import DeclaredFacts
from dpsynth_assets.records.columns import SourceError
from dpsynth_assets.records.csv_files import dialect_of, recognised_dialect
from dpsynth_assets.records.sources import source_files, stray_encodings

LARGEST_DELTA_TIMES_RECORDS = 0.1


@dataclass(frozen=True)
class Draft:
    """A dataset file to be written, and what its author is to be told.

    Attributes:
        name: Name of the dataset.
        path: Where the file goes.
        choices: What it says.
        columns: Of the source.
    """

    name: str
    path: Path
    choices: Choices
    columns: Columns

    @property
    def decisions(self) -> list[tuple[str, str]]:
        """What only the steward can decide: what the file says now, and what to change."""
        choices, suggested = self.choices, self._suggested
        found = {**choices.unconfirmed, **suggested}
        rows = max((each.rows for each in self.columns.values()), default=0)
        named = {
            "labels": choices.labels,
            "unconfirmed": choices.unconfirmed,
            "suggested": suggested,
            "codes": codes_of(choices.labels, choices.label_words),
            "absent": self._absent,
            "sharing": self._sharing,
        }
        text = filled(
            "decisions.txt.template",
            **{name: printable(", ".join(each)) for name, each in named.items()},
            choices=choices,
            written=describe_bytes(self._source, sum(c.damaged for c in self.columns.values())),
            repeated=next(iter(self._repeated), None),
            longest=DeclaredFacts(rows=1, words=choices.words).text_tokens,
            shares="" if choices.unit is None else self._shares(choices.unit),
            found="; ".join(label_line(name, sorted(each)) for name, each in found.items()),
            least=LEAST_RECORDS_PER_LABEL,
            large_delta=choices.delta * rows > LARGEST_DELTA_TIMES_RECORDS,
        )
        blocks = (block.partition("\n") for block in text.strip().split("\n\n"))
        return [(about, " ".join(now.split())) for about, _, now in blocks]

    def show(self) -> None:
        """Prints the columns, the decisions, and what comes next."""
        columns = {
            "column": lambda each: printable(each.name),
            "filled": lambda each: "" if each.nested else f"{int(100 * each.filled)}%",
            "distinct": lambda each: "" if each.nested else f"{each.distinct:,}",
            "words": lambda each: "" if each.nested else f"{each.words:.1f}",
            "suggestion": self._role,
        }
        rows = f"(first {MOST_ROWS:,} rows; shown to you alone)"
        say(f"Columns of {self.choices.path} {rows}")
        show_table(self.columns.values(), columns)
        say("\nDecide, in the file:", style="bold")
        first = "list the public label values in the file, then "
        checked = f"dpsynth datasets check {self.path}, then dpsynth plan {self.name}"
        say(
            *(printable(f"- {about}. {now}") for about, now in self.decisions),
            f"\nWritten: {self.path}",
            f"Next: {first if self.choices.unconfirmed else ''}{checked}",
        )

    @property
    def _source(self) -> SourceSpec:
        """The source that the file names."""
        choices = self.choices
        return SourceSpec(
            path=str(choices.path), separator=choices.separator, encoding=choices.encoding
        )

    def _shares(self, unit: str) -> str:
        """Share of the records that some bounds on a unit keep."""
        kept = {bound: kept_share(self._source, unit, bound) for bound in (1, 5, 20)}
        return ", ".join(f"{bound}: {share:.0%}" for bound, share in kept.items())

    @property
    def _absent(self) -> list[str]:
        """Public values that no record has, of columns with few values."""
        held = {name: self.columns[name].values for name in self.choices.labels}
        return [
            value
            for name, values in self.choices.labels.items()
            for value in values
            if held[name] and value not in held[name]
        ]

    @property
    def _sharing(self) -> list[str]:
        """Other declared datasets that read these records."""
        mine = source_places(str(self.choices.path))
        return [
            file.spec.name
            for file in standing(dataset_folders()).usable
            if isinstance(file.spec, PrivateDatasetSpec)
            and file.spec.name != self.name
            and mine & source_places(file.spec.source.path)
        ]

    @property
    def _repeated(self) -> list[str]:
        """Columns whose values come back as those of a unit do, persons first."""
        found = (self.columns.repeated(persons=persons) for persons in (True, False))
        return [name for name in found if name]

    @property
    def _suggested(self) -> dict[str, Sequence[str]]:
        """Columns that look like labels by their values, which have no role yet."""
        choices = self.choices
        taken = {*choices.labels, *choices.unconfirmed, choices.text, choices.unit}
        return {
            each.name: each.label_values for each in self.columns.labels if each.name not in taken
        }

    def _role(self, profile: ColumnProfile) -> str:
        choices, name = self.choices, profile.name
        roles = {choices.text: "text", choices.unit: "privacy unit"}
        roles |= dict.fromkeys(choices.labels, "label (public)")
        if name in roles:
            return roles[name]
        if name in choices.unconfirmed or name in self._suggested:
            empty = "" if profile.filled == 1 else "; records without one would be set aside"
            return f"label? confirm its values{empty}"
        if name == choices.id:
            return "id"
        return "unit? decide" if name in self._repeated else "not read"


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
            remedy="Download it first: suggestions need the records; the dataset file may then "
            "name the address.",
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
            f" {damaged:,} values hold bytes that this encoding does not define: their records "
            "would be set aside. Name the encoding of the file, e.g. --encoding cp1252 --force."
        )
    return said


Labels = Mapping[str, Sequence[str]]
"""Label column -> its public values."""


def label_words(labels: Labels, given: Sequence[str]) -> dict[str, str]:
    """Says how prompts write label values, where that is not the value itself.

    Args:
        labels: Public values.
        given: `VALUE=WORDS` each; somebody at a terminal is asked for the words of other codes.

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
    if sys.stdin.isatty():
        for code in codes_of(labels, found):
            words = typer.prompt(f"{code!r} in words (Enter keeps it)", default=code).strip()
            found |= {} if words in ("", code) else {code: words}
    return found


def named_part(text: str, known: Collection[str]) -> tuple[str, str]:
    """Parts NAME=REST: a known name may hold a sign of equality itself; the longest is meant."""
    ends = [place for place, sign in enumerate(text) if sign == "="] or [len(text)]
    pairs = [(text[:end].strip(), text[end + 1 :].strip()) for end in ends]
    return next((pair for pair in reversed(pairs) if pair[0] in known), pairs[0])


def codes_of(labels: Labels, words: Mapping[str, str]) -> list[str]:
    """Values that look like codes and have no words yet."""
    values = [value for column in labels.values() for value in column]
    return [value for value in values if value not in words and looks_like_code(value)]
