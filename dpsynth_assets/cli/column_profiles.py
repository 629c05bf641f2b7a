"""Profiles of a file's columns, and what each of them may be: for the steward's own terminal.

What `dpsynth init` puts in force is read off the schema, by names alone (`roles_by_name`): a
dataset file is public, and a choice that followed from values would tell something of the records.
Suggestions come from private values, so they are shown to whoever holds the file and decide
nothing; they, and names that leave a choice, only make `init` stop and ask. No cell is shown, but
for the values of columns with few distinct ones, which the steward is asked to confirm: labels are
public.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from dpsynth_assets.datasets import SourceSpec
from dpsynth_assets.datasets.fields import WHOLE_NUMBER
from dpsynth_assets.datasets.source_section import MAX_SET_ASIDE
from dpsynth_assets.records.columns import READABLE, ColumnNames, SourceError, empty_rows
from dpsynth_assets.records.sources import source_batches, source_columns, source_files

MOST_ROWS = 100_000
"""Rows that are looked at: a suggestion needs no more."""
MOST_LABELS = 20
LEAST_RECORDS_PER_LABEL = 10
"""A value that fewer records share may say that somebody is there; it is not even suggested."""
LONGEST_LABEL = 60

_TEXT_NAMES = (
    "text", "body", "message", "content", "comment", "review", "description", "note", "story",
)  # fmt: skip
"""Last words of names of columns that hold text."""
_TEXT = re.compile("|".join((*_TEXT_NAMES, "email")), re.IGNORECASE)
_KEY = re.compile(r"id|key|number", re.IGNORECASE)
_HEADER_CHARACTERS = 64
_TEXT_WORDS = 3.0
_WORDS = r"\S+", r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]"


@dataclass(frozen=True, kw_only=True)
class ColumnProfile:
    """What one column looks like.

    Attributes:
        name: Its name.
        filled: Share of rows with a value, in [0, 1].
        distinct: Number of distinct values.
        rows: Number of rows with a value.
        characters: Mean length of a value.
        words: Mean number of words of a value.
        nested: Whether it holds lists or objects.
        damaged: Number of values with bytes that are not in the file's encoding.
        values: Value -> number of rows, for at most MOST_LABELS short values; else empty.
    """

    name: str
    filled: float
    distinct: int
    rows: int
    characters: float
    words: float
    nested: bool = False
    damaged: int = 0
    values: dict[str, int] = field(default_factory=dict, repr=False)

    @property
    def looks_like_text(self) -> bool:
        """Whether its values read as sentences."""
        return not self.nested and self.words >= _TEXT_WORDS and not self.looks_like_label

    @property
    def looks_like_label(self) -> bool:
        """Whether few values stand for many records."""
        return len(self.values) >= 2 and self.rows >= 2 * LEAST_RECORDS_PER_LABEL * self.distinct

    @property
    def looks_like_id(self) -> bool:
        """Whether every row has a short value of its own."""
        unique = self.filled == 1 and self.distinct == self.rows > 0
        return unique and self.words < 2 and self.characters <= _HEADER_CHARACTERS

    @property
    def repeats(self) -> bool:
        """Whether short values come back often, as those of a person with several records do."""
        short = not self.nested and self.words < _TEXT_WORDS and self.distinct > MOST_LABELS
        return short and self.rows >= 1.2 * self.distinct

    @property
    def names_a_person(self) -> bool:
        """Whether its name is one of those that people are known by."""
        return names_a_person(self.name)

    @property
    def label_values(self) -> list[str]:
        """Values that enough records share, most frequent first."""
        often = sorted(self.values.items(), key=lambda item: (-item[1], item[0]))
        return [value for value, count in often if count >= LEAST_RECORDS_PER_LABEL]


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """What each column may be; None or empty where none fits."""

    text: str | None
    labels: tuple[ColumnProfile, ...]
    id: str | None
    unit: str | None
    possible_unit: str | None


def suggest(profiles: Sequence[ColumnProfile]) -> Suggestion:
    """Says what each column may be, by its values and its name: for the terminal alone."""
    texts = sorted(
        (profile for profile in profiles if profile.looks_like_text),
        key=lambda profile: profile.characters * (2 if _TEXT.search(profile.name) else 1),
    )
    text = texts[-1].name if texts else None
    repeated = [profile for profile in profiles if profile.repeats and profile.name != text]
    persons = [profile.name for profile in repeated if profile.names_a_person]
    others = [profile.name for profile in repeated if not profile.names_a_person]
    ids = [profile.name for profile in profiles if profile.looks_like_id and profile.name != text]
    return Suggestion(
        text=text,
        labels=tuple(p for p in profiles if p.looks_like_label and p.label_values),
        id=next((name for name in ids if _KEY.search(name)), None),
        unit=persons[0] if persons else None,
        possible_unit=others[0] if others else None,
    )


def profile_columns(source: SourceSpec) -> list[ColumnProfile]:
    """Profiles the columns of a CSV, JSON Lines, Parquet or saved Hugging Face dataset.

    Raises:
        SourceError: The file cannot be read, or has no header; no cell is quoted.
    """
    names = source_columns(source, MOST_ROWS)
    if any(is_csv(file) for file in source_files(source)) and not all(
        _is_header(name) for name in names if name.strip()
    ):
        raise SourceError(  # Without a header the first line is a record, so it is not shown.
            expected=f"a first line in {source.path} that names the columns",
            got="something else",
            remedy="Add a header line.",
        )
    once = [name for name in names if name.strip() and names.count(name) == 1]
    if not once:
        raise SourceError(
            expected="records with named columns",
            got=f"none in {source.path}",
            remedy="Is it the right file?",
        )
    frame = read_rows(source, once)
    return [_profile(frame[name], frame.height) for name in once]


def kept_share(source: SourceSpec, column: str, bound: int) -> float:
    """Share of records that remain if at most `bound` of each unit are used."""
    values = read_rows(source, [column])[column].drop_nulls()
    counts = [int(count) for count in values.value_counts()["count"]]
    return sum(min(count, bound) for count in counts) / max(1, sum(counts))


def read_rows(source: SourceSpec, names: Sequence[str]) -> pl.DataFrame:
    """Reads columns of the first MOST_ROWS records as a run reads them, lists and objects too."""
    others = {f"{name} (--from)": name for name in names[1:]}
    columns = ColumnNames(text=names[0], others=others, any_type=True)
    read = empty_rows(columns)
    for batch in source_batches(source, columns):
        read = pl.concat([read, batch])
        if read.height >= MOST_ROWS:
            break
    if (torn := read.height - read[READABLE].sum()) > MAX_SET_ASIDE * read.height:
        raise SourceError(
            expected="as many fields on every line as the header has, or one JSON object a line",
            got=f"{torn} of {read.height} lines that are not so in {source.path}",
            remedy="Mend these lines: put a field with a separator or a quotation mark in quotes.",
        )
    return read.filter(READABLE).head(MOST_ROWS)


def is_csv(file: Path) -> bool:
    """Whether a file is CSV, packed or not, by its name."""
    suffixes = [part for part in file.suffixes if part != ".gz"]
    return bool(suffixes) and suffixes[-1].lower() in {".csv", ".tsv"}


def _is_header(name: str) -> bool:
    words = name.split()
    return 0 < len(name) <= _HEADER_CHARACTERS and 0 < len(words) <= 6 and not _is_number(name)


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True


def _profile(column: pl.Series, rows: int) -> ColumnProfile:
    texts = column.str.strip_chars()
    texts = texts.filter(texts.is_not_null() & (texts != ""))
    nested = bool(texts.len()) and bool(texts.str.contains(r"^[\[{]").all())
    distinct = texts.n_unique()
    lengths = texts.str.len_chars()
    few = not nested and distinct <= MOST_LABELS and float(lengths.max() or 0) <= LONGEST_LABEL  # type: ignore[arg-type]
    return ColumnProfile(
        name=column.name,
        filled=texts.len() / max(1, rows),
        distinct=distinct,
        rows=texts.len(),
        characters=float(lengths.mean() or 0.0),  # type: ignore[arg-type]
        words=_words(texts),
        nested=nested,
        damaged=int(texts.str.contains("\ufffd", literal=True).sum()),
        values=dict(texts.str.replace(WHOLE_NUMBER, "$1").value_counts().iter_rows())
        if few
        else {},
    )


def _words(texts: pl.Series) -> float:
    """Mean number of words; two letters count as one where a script writes no blanks."""
    parted, joined = (texts.str.count_matches(pattern).mean() or 0.0 for pattern in _WORDS)
    return max(float(parted), float(joined) / 2)  # type: ignore[arg-type]


_ID_WORDS = ("id", "key", "uuid", "guid")
_PERSON = re.compile(
    r"(^|_)(user|customer|client|patient|author|member|person|employee|account|owner|reviewer"
    r"|subscriber|student|sender|speaker|household)(_?(id|name|key|number|no))?$"
)


@dataclass(frozen=True, kw_only=True)
class NamedRoles:
    """Columns that are named like a text, an id or a person, in their order in the source.

    Where an id is called just that, it is the only one.
    """

    texts: tuple[str, ...]
    ids: tuple[str, ...]
    units: tuple[str, ...]


def roles_by_name(names: Sequence[str]) -> NamedRoles:
    """Reads roles off the names of columns: the schema, which a dataset file shows anyway."""
    persons = [name for name in names if names_a_person(name)]
    ids = [name for name in names if _last_word(name) in _ID_WORDS and name not in persons]
    bare = [name for name in ids if _snake(name) in _ID_WORDS]
    return NamedRoles(
        texts=tuple(name for name in names if _last_word(name) in _TEXT_NAMES),
        ids=tuple(bare[:1] or ids),
        units=tuple(persons),
    )


def names_a_person(name: str) -> bool:
    """Whether a column is named like those that people are known by."""
    return _PERSON.search(_snake(name)) is not None


def _snake(name: str) -> str:
    """Writes `reviewText` and `Review text` as `review_text`."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.strip())
    return re.sub(r"[^a-z0-9]+", "_", parted.lower()).strip("_")


def _last_word(name: str) -> str:
    """The last word of a name, in the singular: `customer_comments` is `comment`."""
    word = _snake(name).rpartition("_")[2]
    if word == "stories":
        return "story"
    return word[:-1] if word.endswith("s") and word[:-1] in _TEXT_NAMES else word
