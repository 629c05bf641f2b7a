"""The rules that set records aside, and why each leaves neighbours neighbours.

| order | rule | looks at |
|---|---|---|
| 1 | unreadable record | the line itself: no JSON object; in CSV its fields and quotation marks |
| 2 | text is not a string | the text's own type (JSON Lines) |
| 3 | missing text | the text: null, empty or blank; an object without any value |
| 4 | text is not UTF-8 | the text: U+FFFD, what undecodable bytes are read as |
| 5 | missing or unknown label | the labels, against the public label set |
| 6 | missing id | the id, where an id column is declared; one that is not UTF-8 is missing |
| 7 | missing unit | the unit, where a unit column is declared; likewise |
| 8 | repeated id | the ids of the same unit: every record that shares one is set aside |
| 9 | text too long | the text, against a public number of characters |

The first rule that holds names the reason. Rules 1-7 and 9 read one record, so a record that comes
or goes changes nothing but itself. Rule 8 is the only one that looks at others: where the unit is a
record, one more record with a known id removes at most the one record that had it (and is set aside
itself); where a unit column is declared, only records of the same unit are compared, so a unit that
comes or goes changes no record of another. After the rules come the bound on records a unit and the
held-out split (`reading.py`), which have the same two properties.

Under replace-one a record that is replaced keeps its id, and a unit that is replaced its own id and
those of its records: what differs is their other content. Neighbouring datasets then have the same
ids, and rule 8, which reads nothing else, sets the same records aside in both; by the other rules a
replaced record comes, goes or changes alone. With an id that is in use a replacement could take
another record away beside its own, so that a count moves by 2 where √2 is charged (and a unit that
took another's id could push that one's records over their bound). So repeated ids are refused
(`refuse_repeated_ids`). The refusal reveals nothing that is protected: all neighbours have these
ids. Without an id column ids follow from the content, and rule 8 looks at nothing.

Where the place of every record is public (`public_facts.slots`), rules 2-4 and 9 set nothing aside:
such a record keeps its place with a blank text, which is how a neighbour looks that lacks it.
Places follow the declared ids, so no text moves another record.

A file whose structure is broken (CSV that ends within a quoted field, a torn Parquet footer) is
refused whole: no rule could say which records it holds. So are records of which more than a
declared share is set aside (`reading.unfit`).

Rule 9 has a limit of its own, a million characters, where the declaration names none.

Control characters of a text (all but tab and line ends) and marks that turn the direction of
writing are read as blanks: they steer terminals and hide text from a reader. Text is otherwise kept
as it is, formulas and instructions to a model included: nothing here runs or obeys a text, and
special tokens written in one stay plain text to every model (`models/prompt_templates.py`). Blanks
at its ends are dropped.

Keyed hashes name a record and give it a place, from the record alone. The key is public (the
dataset's name), so they hide nothing; they make every choice about a record a function of that
record, which is what parallel composition asks for (docs/privacy.md).
"""

import hashlib
from collections.abc import Sequence
from enum import StrEnum

import polars as pl

from dpsynth_assets.datasets import LABEL_SEPARATOR, PrivateDatasetSpec
from dpsynth_assets.datasets.fields import INVISIBLE, WHOLE_NUMBER
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.privacy.guarantees import NeighboringRelation
from dpsynth_assets.records.columns import IS_TEXT, OBJECT, READABLE, ColumnNames
from dpsynth_assets.records.refusals import LONGEST_TEXT_CHARACTERS


class Purpose(StrEnum):
    """The purpose of a hash; different purposes give unrelated hashes (at most 16 characters)."""

    RECORD_ID = "record id"
    UNIT_BOUND = "unit bound"
    HELD_OUT = "held out"
    PART = "part"
    SCORED = "scored"


def keyed_hash(purpose: Purpose, dataset: str, *parts: str) -> bytes:
    """Hashes `parts`, each with its length before it, so that no two lists collide by joining.

    Returns:
        16 bytes of BLAKE2b, keyed by the dataset's name and personalised by the purpose.
    """
    digest = hashlib.blake2b(digest_size=16, key=dataset.encode(), person=purpose.encode())
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.digest()


def hash_rows(purpose: Purpose, dataset: str, columns: Sequence[Sequence[str]]) -> list[str]:
    """Hashes each row of aligned columns; returns 32 hexadecimal digits a row."""
    rows = zip(*columns, strict=True)
    return [keyed_hash(purpose, dataset, *row).hex() for row in rows]


def unit_interval(digest: str) -> float:
    """Maps a hash (hexadecimal) to [0, 1): its first 53 bits."""
    return (int(digest[:16], 16) >> 11) / 2**53


ROW, REASON = "__row", "__reason"
"""Number of the record in file order, from 1; the rule that set it aside, or null."""

CONTROL = r"[\x00-\x08\x0B\x0C\x0E-\x1F\x7F-\x9F\u{202A}-\u{202E}\u{2066}-\u{2069}]"
"""Characters of a text that are read as blanks."""

CANONICAL = ("record_id", "unit_id", "text", "label")
"""Columns of a canonical frame, all strings."""


class Rule(StrEnum):
    """The reasons why a record is set aside, in the order in which rules are tried."""

    UNREADABLE = "unreadable record"
    NOT_TEXT = "text is not a string"
    MISSING_TEXT = "missing text"
    DAMAGED_TEXT = "text is not UTF-8"
    UNKNOWN_LABEL = "missing or unknown label"
    MISSING_ID = "missing id"
    MISSING_UNIT = "missing unit"
    REPEATED_ID = "repeated id"
    LONG_TEXT = "text too long"
    OVER_BOUND = "over the unit's bound"


def canonical_id(column: pl.Expr) -> pl.Expr:
    """An id, of a record or a unit, as all are listed, compared and looked up.

    Invisible characters and blanks at its ends are dropped, accents have one form of Unicode
    (NFC), and `17.0`, which tools write of `17` beside a gap, is `17`. A blank id is absent.
    """
    stripped = column.str.replace_all(INVISIBLE, "").str.normalize("NFC").str.strip_chars()
    return pl.when(stripped != "").then(stripped.str.replace(r"^(-?[0-9]+)\.0+$", "${1}"))


def canonical_id_of(written: str) -> str:
    """The id that somebody wrote, as it is compared; blank where it is absent."""
    return str(pl.select(canonical_id(pl.lit(written))).item() or "")


def column_names(spec: PrivateDatasetSpec) -> ColumnNames:
    """Lists the columns a declaration names, each with its field."""
    others = {f"columns.labels.{i}": name for i, name in enumerate(spec.columns.labels)}
    if spec.columns.id is not None:
        others["columns.id"] = spec.columns.id
    if spec.privacy_unit.column is not None:
        others["privacy_unit.column"] = spec.privacy_unit.column
    if spec.date_column is not None:
        others["cohorts.column"] = spec.date_column
    parts = tuple(spec.columns.object)
    return ColumnNames(text=OBJECT if parts else spec.columns.text, others=others, object=parts)


def judge(raw: pl.DataFrame, spec: PrivateDatasetSpec) -> pl.DataFrame:
    """Names the rule that sets each record aside.

    Args:
        raw: What `read_source` returned.
        spec: The declaration.

    Returns:
        As many rows, in the same order: `text`, `label`, `id`, `unit` (strings; `id` and `unit`
        null where no column is declared), ROW and REASON.
    """
    columns = _canonical_columns(raw, spec)
    if spec.public_facts.slots:
        columns = _blanked(columns, spec)
    reason = pl.lit(None, dtype=pl.String)
    for rule, holds in reversed(list(_conditions(spec).items())):
        reason = pl.when(holds).then(pl.lit(rule.value)).otherwise(reason)
    flagged = columns.with_columns(reason.alias(REASON)).with_row_index(ROW, offset=1)
    return flagged.drop(READABLE, IS_TEXT)


def identify(kept: pl.DataFrame, spec: PrivateDatasetSpec) -> pl.DataFrame:
    """Gives each kept record its id and its unit.

    A declared id is used in its canonical form; with a unit column it is hashed together with the
    unit, in which alone it is unique. Without an id column it is the hash of the record's content:
    records with the same content share it, and all of them are kept.

    Returns:
        The CANONICAL columns, sorted, so that the order of the input is forgotten.
    """
    named = kept.with_columns(pl.Series("record_id", record_ids(kept, spec), dtype=pl.String))
    unit = pl.col("record_id" if spec.privacy_unit.column is None else "unit")
    return named.with_columns(unit.alias("unit_id")).select(CANONICAL).sort(CANONICAL)


def kept_id_columns(spec: PrivateDatasetSpec) -> dict[str, str]:
    """Columns of ids that neighbours have in common, by field; none but under replace-one."""
    if spec.neighboring_relation is not NeighboringRelation.REPLACE_ONE:
        return {}
    columns = {"columns.id": spec.columns.id, "privacy_unit.column": spec.privacy_unit.column}
    return {field: name for field, name in columns.items() if name is not None}


def repeated_ids(judged: pl.DataFrame) -> list[int]:
    """Rows whose id another record has (of the same unit, where there are units), from 1.

    Privacy:
        A function of the ids alone: records that a rule sets aside for their text count as well.
    """
    known = judged.filter(pl.col("id").is_not_null() & ~_damaged("id"))
    return known.filter(pl.len().over("unit", "id") > 1)[ROW].to_list()


def refuse_repeated_ids(judged: pl.DataFrame, spec: PrivateDatasetSpec) -> None:
    """Refuses ids that repeat where neighbours keep them; the module says why.

    Args:
        judged: What `judge` returned.
        spec: The declaration.

    Raises:
        PrivacyError: Some id repeats; neither which nor how many is said.

    Privacy:
        Depends on ids alone, which are the same in neighbouring datasets.
    """
    if "columns.id" in kept_id_columns(spec) and repeated_ids(judged):
        raise PrivacyError(
            f"columns.id: expected ids that differ in column {spec.columns.id!r} of dataset "
            f"{spec.name!r}, since replace-one neighbours keep their ids, got some twice. "
            "`dpsynth datasets check` names the rows: fix them, drop columns.id, or use "
            "neighboring_relation: add-remove."
        )


def record_ids(kept: pl.DataFrame, spec: PrivateDatasetSpec) -> list[str]:
    """Lists the id of each kept record, in their order; see `identify`."""
    contents = ["text", "label"] if spec.columns.id is None else ["id"]
    if spec.privacy_unit.column is not None:
        contents.insert(0, "unit")
    if contents == ["id"]:
        return kept["id"].to_list()
    parts = [kept[name].to_list() for name in contents]
    return hash_rows(Purpose.RECORD_ID, spec.name, parts)


def _blanked(columns: pl.DataFrame, spec: PrivateDatasetSpec) -> pl.DataFrame:
    """Empties texts that cannot be used instead of losing the places of their records."""
    unusable = pl.any_horizontal(*_text_conditions(spec).values())
    text = pl.when(unusable).then(pl.lit("")).otherwise(pl.col("text"))
    return columns.with_columns(text.alias("text"))


def _text_conditions(spec: PrivateDatasetSpec) -> dict[Rule, pl.Expr]:
    limit = spec.columns.max_text_characters or LONGEST_TEXT_CHARACTERS
    long = pl.col("text").str.len_chars() > limit
    return {
        Rule.NOT_TEXT: ~pl.col(IS_TEXT),
        Rule.MISSING_TEXT: pl.col("text").is_null() | (pl.col("text") == ""),
        Rule.DAMAGED_TEXT: _damaged("text"),
        Rule.LONG_TEXT: long.fill_null(False),
    }


def _conditions(spec: PrivateDatasetSpec) -> dict[Rule, pl.Expr]:
    never = pl.lit(False)
    has_id, has_unit = spec.columns.id is not None, spec.privacy_unit.column is not None
    of_text = _text_conditions(spec)
    if spec.public_facts.slots:
        of_text = dict.fromkeys(of_text, never)
    long = of_text.pop(Rule.LONG_TEXT)
    labels = spec.composite_labels[0]
    return {
        Rule.UNREADABLE: ~pl.col(READABLE),
        **of_text,
        Rule.UNKNOWN_LABEL: ~pl.col("label").is_in(list(labels)).fill_null(False),
        Rule.MISSING_ID: pl.col("id").is_null() | _damaged("id") if has_id else never,
        Rule.MISSING_UNIT: pl.col("unit").is_null() | _damaged("unit") if has_unit else never,
        Rule.REPEATED_ID: pl.len().over("unit", "id") > 1 if has_id else never,
        Rule.LONG_TEXT: long,
    }


def _damaged(column: str) -> pl.Expr:
    return pl.col(column).str.contains("\ufffd", literal=True)


def _canonical_columns(raw: pl.DataFrame, spec: PrivateDatasetSpec) -> pl.DataFrame:
    def value(name: str | None, *, is_text: bool = False) -> pl.Expr:
        """Reads a column without blanks at its ends; blank is absent."""
        if name is None:
            return pl.lit(None, dtype=pl.String)
        column = pl.col(name).str.replace_all(CONTROL, " ") if is_text else pl.col(name)
        stripped = column.str.strip_chars()
        return pl.when(stripped != "").then(stripped)

    def identity(name: str | None) -> pl.Expr:
        return pl.lit(None, dtype=pl.String) if name is None else canonical_id(pl.col(name))

    labels = [value(name).str.replace(WHOLE_NUMBER, "$1") for name in spec.columns.labels]

    label = pl.concat_str(labels, separator=LABEL_SEPARATOR) if labels else pl.lit("")
    return raw.select(
        value(column_names(spec).text, is_text=True).alias("text"),
        label.alias("label"),
        identity(spec.columns.id).alias("id"),
        identity(spec.privacy_unit.column).alias("unit"),
        READABLE,
        IS_TEXT,
    )


_DATE_CHARACTERS = len("2026-11-30")


def in_window(raw: pl.DataFrame, spec: PrivateDatasetSpec) -> pl.DataFrame:
    """Keeps the records that the cohort of `spec` consists of, before any rule sets one aside.

    Privacy:
        Whether a record stays is a function of its own date and of two public days, and what else
        is read of a cohort (ids that repeat, bounds, held-out units) looks at its own records
        only. One record that comes or goes changes one cohort at most.

    Args:
        raw: What `read_source` returned.
        spec: The cohort; all records are kept where it has no window.
    """
    if spec.window is None:
        return raw
    day = date_of(spec.window.column)
    return raw.filter((day >= spec.window.start) & (day < spec.window.end))


def date_of(column: str) -> pl.Expr:
    """The date that a text begins with, as it stands: no time zone is applied; null without one."""
    start = pl.col(column).str.strip_chars().str.slice(0, _DATE_CHARACTERS)
    return start.str.to_date("%Y-%m-%d", strict=False)
