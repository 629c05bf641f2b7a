"""From a declared source to canonical records: set aside, bound units, split off held-out ones.

Whether records are fit to be paid for is answered alike in a check and in a run.

**Privacy** That answer follows from the records without noise: that a run was refused is outside
(ε, δ), and numbers are for the steward's terminal alone. A run says one constant sentence.

A source may be in shards. A record's shard follows from a keyed hash of its privacy unit: all
records of a unit are in one shard, and so are all that share an id. What the rules, the bound and
the held-out split look at is in one shard, and each shard becomes canonical by itself.

**Privacy** The number of shards is declared and public. How many records a shard has is private.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from dpsynth_assets.datasets import (
    LABEL_SEPARATOR,
    PrivateDatasetSpec,
    PublicDataSpec,
    PublicSource,
    SourceSpec,
)
from dpsynth_assets.datasets.fields import WHOLE_NUMBER, Problem
from dpsynth_assets.datasets.standing import private_files
from dpsynth_assets.privacy.errors import PrivacyError
from dpsynth_assets.records.columns import (
    IS_TEXT,
    READABLE,
    ColumnNames,
    SourceError,
    as_records,
    check_columns,
)
from dpsynth_assets.records.record_filters import (
    CANONICAL,
    REASON,
    Purpose,
    Rule,
    canonical_id,
    canonical_id_of,
    column_names,
    hash_rows,
    identify,
    in_window,
    judge,
    keyed_hash,
    refuse_repeated_ids,
    unit_interval,
)
from dpsynth_assets.records.sources import (
    read_source,
    source_batches,
    source_files,
)

_HASH = "__hash"

MAY_DIFFER = 0.1
"""Share by which the records may be more or fewer than declared. The declared number is what noise
and sampling follow, so a few records more cost no privacy; refusing for one would reveal it."""


@dataclass(frozen=True, kw_only=True)
class Tally:
    """Numbers of records that rules look at. Private; its repr shows none of them.

    Attributes:
        records: Records of the source, in the cohort's window.
        set_aside: Rule -> how many of them it set aside; the bound on a unit is no such rule.
    """

    records: int = field(repr=False)
    set_aside: Mapping[str, int] = field(repr=False)

    @property
    def read(self) -> int:
        """How many can be used."""
        return self.records - sum(self.set_aside.values())

    @classmethod
    def of_all(cls, each: Sequence["Tally"]) -> "Tally":
        """The numbers of a source that is in shards."""
        set_aside: Counter[str] = sum((Counter(one.set_aside) for one in each), Counter())
        return cls(records=sum(one.records for one in each), set_aside=set_aside)


def unfit(tally: Tally, spec: PrivateDatasetSpec) -> Iterator[Problem]:
    """Why nothing may be charged for these records; for the steward's terminal."""
    lost, share = tally.records - tally.read, spec.source.max_set_aside
    if not tally.read and (tally.records or spec.window is None):
        got = f"{tally.records} rows, all set aside" if tally.records else "no rows"
        remedy = "Fill the source, or point source.path at the right file."
        yield Problem("source.path", "at least one usable record", got, remedy)
    elif lost > share * tally.records:
        expected = f"at most {100 * share:g} % of the records set aside"
        remedy = "Fix the cause; or, if these records are not needed, declare a larger share."
        yield Problem("source.max_set_aside", expected, f"{lost} of {tally.records}", remedy)
    declared = None if spec.cohorts else spec.public_facts.records  # Of each cohort, not of all.
    if declared is not None and abs(tally.records - declared) > MAY_DIFFER * declared:
        field = "public_facts.records"
        expected = f"about {declared} records (within a tenth), as public_facts.records says"
        remedy = "Correct public_facts.records, or name the version that it counts."
        yield Problem(field, expected, str(tally.records), remedy)


def refuse_unfit(tally: Tally, spec: PrivateDatasetSpec) -> None:
    """Refuses records before anything is charged for them.

    Raises:
        PrivacyError: With one constant sentence for every reason.
    """
    if any(unfit(tally, spec)):
        raise PrivacyError(
            f"The records of {spec.name!r} differ from its dataset file: nothing was charged. "
            "`dpsynth datasets check` on the steward's terminal says why."
        )


@dataclass(frozen=True, kw_only=True)
class PrivateRecords:
    """Private records in canonical form. Its repr shows nothing of them, not even their number.

    Attributes:
        records: What mechanisms read: string columns `record_id`, `unit_id`, `text`, `label`.
        held_out: The same columns; units kept for evaluation, which no mechanism reads.
        set_aside: Rule -> number of records it set aside. Private counts: for the steward only.
        tally: The same, and how many there were, without the bound on a unit.
    """

    records: pl.DataFrame = field(repr=False)
    held_out: pl.DataFrame = field(repr=False)
    set_aside: Mapping[str, int] = field(repr=False)
    tally: Tally = field(repr=False)


def canonical_frame(frame: pl.DataFrame, spec: PrivateDatasetSpec) -> PrivateRecords:
    """Takes the records of a private dataset from a frame in memory, as if it were its source.

    Raises:
        SourceError: The frame lacks a declared column.
        PrivacyError: Declared ids repeat under replace-one.
    """
    return canonical_records(frame_rows(frame, spec), spec)


def frame_rows(frame: pl.DataFrame, spec: PrivateDatasetSpec) -> pl.DataFrame:
    """Takes the declared columns of a frame in memory, as if they were read from a source.

    Raises:
        SourceError: The frame lacks a declared column.
    """
    columns = column_names(spec)
    check_columns(frame.columns, columns, "the frame", schema=True)
    return as_records(frame.select(columns.distinct), columns, "the frame")


def canonical_records(raw: pl.DataFrame, spec: PrivateDatasetSpec) -> PrivateRecords:
    """Sets records aside, bounds units and splits held-out ones off.

    Args:
        raw: What `read_source` returns.
        spec: The declaration.

    Privacy:
        One unit that comes or goes changes `records` and `held_out` together by its own at most
        `max_records` records, all on one side of the split. Where the unit is a record with a
        declared id, a second record with the same id instead takes the first away: one record
        either way. A unit that is replaced keeps its declared ids, so the same records are set
        aside for repeated ids in both datasets. `record_filters.py` says so rule by rule.

    Raises:
        PrivacyError: Declared ids repeat under replace-one.
    """
    judged = judge(in_window(raw, spec), spec)
    refuse_repeated_ids(judged, spec)
    kept = identify(judged.filter(pl.col(REASON).is_null()), spec)
    bounded = bound_units(kept, spec)
    records, held_out = split_held_out(bounded, spec)
    tally = tally_of(judged)
    over = kept.height - bounded.height
    set_aside = {**tally.set_aside, **({Rule.OVER_BOUND.value: over} if over else {})}
    return PrivateRecords(records=records, held_out=held_out, set_aside=set_aside, tally=tally)


def tally_of(judged: pl.DataFrame) -> Tally:
    """Counts what rules set aside, in the order of the rules."""
    counts = dict(judged.drop_nulls(REASON).group_by(REASON).len().iter_rows())
    set_aside = {rule.value: counts[rule.value] for rule in Rule if rule.value in counts}
    return Tally(records=judged.height, set_aside=set_aside)


def canonical_record_id(spec: PrivateDatasetSpec, record: str, unit: str | None = None) -> str:
    """Names a record as canonical frames do, from what its source calls it.

    Args:
        spec: The dataset.
        record: The declared id; without an id column, the hash that `record_id` shows.
        unit: The unit's id, where the dataset declares a unit column and an id column.

    Raises:
        ValueError: A unit is needed and was not given.
    """
    if spec.columns.id is None or spec.privacy_unit.column is None:
        return canonical_id_of(record)
    if unit is None:
        raise ValueError(
            f"Expected the unit of the record as well, got its id alone. Ids of {spec.name!r} are "
            f"unique within one {spec.privacy_unit.column} only."
        )
    return hash_rows(
        Purpose.RECORD_ID, spec.name, [[canonical_id_of(each)] for each in (unit, record)]
    )[0]


def bound_units(records: pl.DataFrame, spec: PrivateDatasetSpec) -> pl.DataFrame:
    """Keeps of each unit the `max_records` records with the smallest keyed hash of their id.

    Where the unit is one record every record is kept, equal ones included. Ties are records of one
    unit with the same content, so it does not matter which of them stays.

    Privacy:
        What is kept of a unit is a function of that unit alone.
    """
    if spec.privacy_unit.column is None:
        return records
    hashes = hash_rows(Purpose.UNIT_BOUND, spec.name, [records["record_id"].to_list()])
    hashed = records.with_columns(pl.Series(_HASH, hashes, dtype=pl.String))
    first = hashed.sort(_HASH, *CANONICAL).group_by("unit_id", maintain_order=True)
    return first.head(spec.privacy_unit.max_records).select(CANONICAL).sort(CANONICAL)


def split_held_out(
    records: pl.DataFrame, spec: PrivateDatasetSpec
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Splits by a keyed hash of the unit: a unit keeps its side when other records come.

    Privacy:
        The side is a function of the unit alone, so the two parts compose in parallel.

    Returns:
        `(records, held_out)`; about `held_out_fraction` of the units are held out.
    """
    hashes = hash_rows(Purpose.HELD_OUT, spec.name, [records["unit_id"].to_list()])
    held = [unit_interval(digest) < spec.held_out_fraction for digest in hashes]
    mask = pl.Series("held", held, dtype=pl.Boolean)
    return records.filter(~mask), records.filter(mask)


def read_public_records(spec: PublicDataSpec) -> pl.DataFrame:
    """Reads and joins the sources of a public base, in declared order.

    Documents without text, or with text that is not UTF-8, are dropped. Labels are joined as those
    of private records are; an absent value is written as "".

    Returns:
        String columns `text` and `label`; no row where the base is the demo corpus.

    Raises:
        SourceError: A source is missing, broken, lacks a declared column, or is private.
    """
    for each in spec.sources:
        refuse_private(each.source)
    frames = [read_public_source(source)[0] for source in spec.sources]
    empty = pl.DataFrame(schema={"text": pl.String, "label": pl.String})
    joined = pl.concat([empty, *frames])
    return joined if spec.max_documents is None else joined.head(spec.max_documents)


def refuse_private(source: SourceSpec) -> None:
    """Refuses a source of public text that a private declaration of this installation may read.

    Its texts would be candidates, shots and centres, which are released as they are.

    Raises:
        SourceError: Names the file, and the dataset or the declaration that cannot be read.
    """
    files = [source.path] if "://" in source.path else source_files(source)
    for file, got, remedy in private_files(files):
        raise SourceError(expected="text that anyone may read", got=f"{file}: {got}", remedy=remedy)


def read_public_source(source: PublicSource) -> tuple[pl.DataFrame, int]:
    """Reads one source whose labels are not declared: columns `text` and `label`, absent as "".

    Returns:
        The usable documents, and how many there were.

    Raises:
        SourceError: It is missing, broken, or lacks a declared column.
    """
    raw = read_source(source.source, public_column_names(source))
    labels = [
        pl.col(name).fill_null("").str.strip_chars().str.replace(WHOLE_NUMBER, "$1")
        for name in source.columns.labels
    ]
    label = pl.concat_str(labels, separator=LABEL_SEPARATOR) if labels else pl.lit("")
    text = pl.col(source.columns.text).str.strip_chars()
    documents = raw.filter(READABLE, IS_TEXT).select(text.alias("text"), label.alias("label"))
    usable = documents.filter(
        pl.col("text") != "", ~pl.col("text").str.contains("\ufffd", literal=True)
    )
    return usable.head(source.max_documents or usable.height), raw.height


def public_column_names(source: PublicSource) -> ColumnNames:
    """Lists the columns a public source names, each with its field."""
    others = {f"columns.labels.{i}": name for i, name in enumerate(source.columns.labels)}
    return ColumnNames(text=source.columns.text, others=others)


PIECE_BYTES = 1 << 27
"""Memory of the rows that wait to be written, about; a public constant."""

_PART = "__part"

Pieces = dict[int, pl.DataFrame]
"""Rows of the source by the number of their shard; shards without rows are missing."""


def pieces_of_source(spec: PrivateDatasetSpec, piece_bytes: int = PIECE_BYTES) -> Iterator[Pieces]:
    """Reads the source of a cohort once and sorts its rows into `spec.parts` shards.

    Args:
        spec: The declaration.
        piece_bytes: Memory that rows may take before they are passed on.

    Yields:
        Rows as `read_source` returns them, in file order within a shard.

    Raises:
        SourceError: The source is missing, broken, or lacks a declared column.
    """
    waiting: dict[int, list[pl.DataFrame]] = {}
    held: int | float = 0
    for batch in source_batches(spec.source, column_names(spec)):
        rows = in_window(batch, spec)
        for number, own in rows_of_parts(rows, spec).items():
            waiting.setdefault(number, []).append(own)
            held += own.estimated_size()
        if held >= piece_bytes:
            yield {number: pl.concat(frames) for number, frames in waiting.items()}
            waiting, held = {}, 0
    if waiting:
        yield {number: pl.concat(frames) for number, frames in waiting.items()}


def rows_of_parts(rows: pl.DataFrame, spec: PrivateDatasetSpec) -> Pieces:
    """Sorts rows of a source into shards, by the unit of each row alone."""
    if rows.is_empty() or spec.parts == 1:
        return {0: rows} if rows.height else {}
    numbers = [part_of(unit, spec) for unit in rows.select(_unit(spec)).to_series()]
    numbered = rows.with_columns(pl.Series(_PART, numbers, dtype=pl.UInt32))
    found = numbered.partition_by(_PART, include_key=False, as_dict=True)
    return {int(number): own for (number,), own in found.items()}


def part_of(unit: str, spec: PrivateDatasetSpec) -> int:
    """The shard of a unit, in [0, `spec.parts`): a keyed hash of it, from the unit alone."""
    return int.from_bytes(keyed_hash(Purpose.PART, spec.name, unit)[:8], "big") % spec.parts


def _unit(spec: PrivateDatasetSpec) -> pl.Expr:
    """What tells units apart: the unit's id, else the record's, else its text.

    In the form of canonical ids; a record without the id is set aside later, wherever it lies.
    Without any id nothing looks at two records together.
    """
    name = spec.privacy_unit.column or spec.columns.id or column_names(spec).text
    return canonical_id(pl.col(name)).fill_null("")
