"""Profiles the columns of a file and guesses their roles, for the steward's terminal only.

What `dpsynth init` puts in force is read off the schema, by the names of columns alone: a
dataset file is public, and a choice that followed from values would tell something of the records.
Suggestions come from private values, so they are shown to the steward alone and decide
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
from dpsynth_assets.datasets.dataset_sections import MAX_SET_ASIDE
from dpsynth_assets.datasets.fields import WHOLE_NUMBER
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
_NUMBER = re.compile(r"[-+]?[\d.]+(e[-+]?\d+)?", re.IGNORECASE)
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
    def label_values(self) -> list[str]:
        """Values that enough records share, most frequent first."""
        often = sorted(self.values.items(), key=lambda item: (-item[1], item[0]))
        return [value for value, count in often if count >= LEAST_RECORDS_PER_LABEL]


class Columns(dict[str, ColumnProfile]):
    """The columns of a source by name, and what each may be.

    What follows from their values is for the terminal alone: `text`, `labels`, `id`, `repeated`.
    What follows from their names is the schema, which a dataset file shows anyway.
    """

    @property
    def text(self) -> str | None:
        """The column of the longest texts, those that are named so first."""
        texts = sorted(
            (profile for profile in self.values() if profile.looks_like_text),
            key=lambda profile: profile.characters * (2 if _TEXT.search(profile.name) else 1),
        )
        return texts[-1].name if texts else None

    @property
    def labels(self) -> list[ColumnProfile]:
        """Columns of few values, some of which many records share."""
        return [each for each in self.values() if each.looks_like_label and each.label_values]

    @property
    def id(self) -> str | None:
        """A column of short values that all differ, and that is named like a key."""
        ids = (name for name, each in self.items() if each.looks_like_id and name != self.text)
        return next(filter(_KEY.search, ids), None)

    def repeated(self, *, persons: bool) -> str | None:
        """A column of short values that come back often, named like a person or not."""
        names = (name for name, each in self.items() if each.repeats and name != self.text)
        return next((name for name in names if names_a_person(name) == persons), None)

    @property
    def named_texts(self) -> list[str]:
        """Columns that are named like a text."""
        return [name for name in self if _last_word(name) in _TEXT_NAMES]

    @property
    def named_ids(self) -> list[str]:
        """Columns that are named like an id; one that is called just that is the only one."""
        ids = [name for name in self if _last_word(name) in _ID_WORDS and not names_a_person(name)]
        bare = [name for name in ids if _snake(name) in _ID_WORDS]
        return bare[:1] or ids

    @property
    def named_persons(self) -> list[str]:
        """Columns that are named like those that people are known by."""
        return [name for name in self if names_a_person(name)]


def profile_columns(source: SourceSpec) -> Columns:
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
    return Columns({name: _profile(frame[name], frame.height) for name in once})


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
            expected="as many fields on every line as the header has, or one JSON object per line",
            got=f"{torn} of {read.height} lines that differ in {source.path}",
            remedy="Fix these lines: put a field with a separator or a quotation mark in quotes.",
        )
    return read.filter(READABLE).head(MOST_ROWS)


def is_csv(file: Path) -> bool:
    """Whether a file is CSV, packed or not, by its name."""
    suffixes = [part for part in file.suffixes if part != ".gz"]
    return bool(suffixes) and suffixes[-1].lower() in {".csv", ".tsv"}


def _is_header(name: str) -> bool:
    words = name.split()
    short = len(name) <= _HEADER_CHARACTERS and 0 < len(words) <= 6
    return short and not _NUMBER.fullmatch(name.strip())


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
