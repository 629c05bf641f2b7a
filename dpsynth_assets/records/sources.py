"""Reading the named columns of a source, each value as text, with nothing inferred from records.

A type inferred from the values would let one record change how all others are read, so CSV is read
as text, JSON Lines value by value, and Parquet and Arrow by the type their file declares. Errors
name the file and never repeat its content: polars' own messages quote the offending field.
"""

from collections.abc import Iterator, Sequence
from glob import glob
from pathlib import Path
from typing import Final

import polars as pl

from dpsynth_assets.datasets import SourceSpec
from dpsynth_assets.datasets.dataset_sections import UTF_8
from dpsynth_assets.records.columns import (
    ColumnNames,
    SourceError,
    as_records,
    check_columns,
    empty_rows,
    guarded,
)
from dpsynth_assets.records.csv_files import (
    csv_batches,
    csv_columns,
    is_utf_8,
    refuse_stray_dialect,
)
from dpsynth_assets.records.file_formats import (
    arrow_batches,
    arrow_columns,
    declared_rows,
    json_columns,
    json_lines_batches,
    named_classes,
    parquet_batches_lossy,
    parquet_class_names,
    saved_class_names,
)
from dpsynth_assets.records.refusals import (
    refuse_foreign,
    refuse_links_away,
    refuse_many_rows,
    refuse_no_file,
    refuse_traversal,
    refuse_unpacked_bytes,
)

BATCH_ROWS: Final = 20_000
"""Rows of a batch, about; a public constant."""

_FILES_NAMED = 5

PARQUET_FILE, ARROW_FILE = "a Parquet file", "an Arrow stream"
_REMOTE = (
    "an answer from the Hugging Face hub with Parquet files",
    "Go online, or download it and name the folder.",
)
"""What was expected to be there, for a refusal; of the hub with a remedy."""

_FORMATS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
}


def read_source(source: SourceSpec, columns: ColumnNames) -> pl.DataFrame:
    """Reads the named columns of every file of a source.

    Returns:
        One row a record, in file order: string columns named as in the source (null where
        absent), and the Boolean columns READABLE and IS_TEXT.

    Raises:
        SourceError: No such file, a file that cannot be parsed, or a column that is not there.
    """
    return pl.concat([empty_rows(columns), *source_batches(source, columns)])


def source_batches(source: SourceSpec, columns: ColumnNames) -> Iterator[pl.DataFrame]:
    """Reads as `read_source` does, some rows at a time.

    Memory is bounded by a batch of rows, for a file of any size.

    Raises:
        SourceError: As `read_source`, though perhaps after some batches.
    """
    if _is_remote(source):
        for batch in _batches(_remote_query(source, columns), source.path, *_REMOTE):
            yield as_records(batch, columns, source.path)
        return
    for file in source_files(source):
        yield from file_batches(file, source, columns)


def file_batches(file: Path, source: SourceSpec, columns: ColumnNames) -> Iterator[pl.DataFrame]:
    """Reads one file of a source as `source_batches` does."""
    kind = _admitted_format(file, source)
    if kind == "csv":
        yield from csv_batches(file, source, columns, BATCH_ROWS)
    elif kind == "jsonl":
        yield from json_lines_batches(file, columns, BATCH_ROWS)
    else:
        typed = _parquet_batches if kind == "parquet" else _arrow_batches
        for batch in typed(file, columns):
            yield as_records(batch, columns, file)


def stray_encodings(source: SourceSpec) -> tuple[str, str] | None:
    """Finds CSV files that the declared encoding misreads, or that differ among themselves.

    **Privacy** Reads all bytes: for the steward's terminal alone.

    Returns:
        Which files hold what, and the remedy; None where one encoding fits all.
    """
    if _is_remote(source) or "a".encode(source.encoding) != b"a":
        return None
    found = {
        file.name: is_utf_8(file)
        for file in source_files(source)
        if _format_of(file.name, source) == "csv"
    }
    right, other = (
        sorted(n for n, each in found.items() if each is is_it) for is_it in (True, False)
    )
    if right and other:
        got = f"UTF-8 in {_listed(right)} and another encoding, e.g. cp1252, in {_listed(other)}"
        return got, "Save the latter as UTF-8: all files must have the same encoding."
    if right and source.encoding != UTF_8:
        return f"UTF-8 in {_listed(right)}", f"Replace {source.encoding} by utf-8, or drop it."
    return None


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_FILES_NAMED]) + (", …" if len(names) > _FILES_NAMED else "")


def source_columns(source: SourceSpec, rows: int) -> list[str]:
    """Names of the columns that all files of a local source have.

    Args:
        source: Where the files lie.
        rows: Records of JSON Lines whose keys are looked at.

    Raises:
        SourceError: There is no such file, or one that cannot be parsed.
    """
    found: list[str] = []
    for number, file in enumerate(source_files(source)):
        own = _file_columns(file, source, rows)
        found = own if number == 0 else [name for name in found if name in own]
    return found


def _file_columns(file: Path, source: SourceSpec, rows: int) -> list[str]:
    kind = _admitted_format(file, source)
    if kind == "csv":
        return csv_columns(file, source)
    if kind == "jsonl":
        return json_columns(file, rows)
    if kind == "parquet":
        return guarded(pl.scan_parquet(file, glob=False).collect_schema, file, PARQUET_FILE).names()
    return guarded(lambda: arrow_columns(file), file, ARROW_FILE)


def _is_remote(source: SourceSpec) -> bool:
    return source.path.startswith("hf://")


def source_files(source: SourceSpec) -> list[Path]:
    """Lists the files of a local source, sorted.

    Raises:
        SourceError: There is none.
    """
    refuse_traversal(source.path)
    path = Path(source.path)
    if path.is_dir():
        return _folder_files(path)
    # Path.glob would read an absolute pattern only from its anchor.
    found = [source.path] if path.is_file() else glob(source.path, recursive=True)  # noqa: PTH207
    files = sorted(map(Path, found))
    if not files:
        raise SourceError(
            expected="a file, glob, folder or hf:// address",
            got=f"nothing at {source.path}",
            remedy="Fix the path; a relative one starts at the project root.",
        )
    if source.is_found or not path.is_file():
        refuse_links_away(files, path.parent if source.is_found else _fixed_part(path))
    return [part for file in files for part in (_folder_files(file) if file.is_dir() else [file])]


def _fixed_part(pattern: Path) -> Path:
    """The folder of a glob that no wildcard is part of."""
    fixed = pattern
    while any(wildcard in str(fixed) for wildcard in "*?["):
        fixed = fixed.parent
    return fixed


def _folder_files(folder: Path) -> list[Path]:
    """Lists the Arrow files of a folder that `save_to_disk` wrote."""
    if (folder / "dataset_dict.json").exists():
        splits = sorted(part for part in folder.iterdir() if part.is_dir())
        if len(splits) != 1:
            raise SourceError(
                expected="one split of the dataset",
                got=f"a folder with several splits ({', '.join(split.name for split in splits)})",
                remedy=f"Point it at one of them, e.g. {folder / 'train'}.",
            )
        folder = splits[0]
    files = sorted(folder.glob("*.arrow"))
    if not files:
        raise SourceError(
            expected="a folder written by save_to_disk",
            got=f"no .arrow file in {folder}",
            remedy=f"For other files use a glob, e.g. {folder}/*.csv or {folder}/**/*.parquet.",
        )
    refuse_links_away(files, folder)
    return files


def _format_of(name: str, source: SourceSpec) -> str:
    suffixes = [part for part in Path(name).suffixes if part != ".gz"]
    suffix = suffixes[-1].lower() if suffixes else ""
    if suffix == ".arrow":
        return "huggingface"
    if source.format not in {"auto", "huggingface"}:
        return source.format
    if suffix not in _FORMATS:
        raise SourceError(
            field="source.format",
            expected=f"a suffix among {', '.join(_FORMATS)}",
            got=f"{Path(name).name!r}",
            remedy="Write format: csv, jsonl, parquet or huggingface.",
        )
    return _FORMATS[suffix]


def _admitted_format(file: Path, source: SourceSpec) -> str:
    """The format of a file that may be read.

    Raises:
        SourceError: It may not: no ordinary file, of another format, or a bomb.
    """
    kind = _format_of(file.name, source)
    refuse_stray_dialect(source, kind)
    refuse_no_file(file)
    refuse_foreign(file, kind)
    return kind


def _arrow_batches(file: Path, columns: ColumnNames) -> Iterator[pl.DataFrame]:
    known = guarded(lambda: arrow_columns(file), file, ARROW_FILE)
    check_columns(known, columns, file, schema=True)
    names = saved_class_names(file.parent)
    for batch in _guarded(arrow_batches(file, columns.distinct), file, ARROW_FILE):
        yield named_classes(batch, names)


def _parquet_batches(file: Path, columns: ColumnNames) -> Iterator[pl.DataFrame]:
    """Reads all texts once to see that they are UTF-8: polars refuses a file for one that is not.

    Raises:
        SourceError: The file is broken, lacks a column, declares too many rows, or unpacks to far
            more than text does.
    """
    scan = pl.scan_parquet(file, glob=False)
    guarded(scan.collect_schema, file, PARQUET_FILE)
    refuse_many_rows(file, guarded(lambda: declared_rows(file), file, PARQUET_FILE))
    query = _selected(scan, columns, file)
    names = parquet_class_names(file)
    try:
        refuse_unpacked_bytes(file, bytes_of_text(query))
    except pl.exceptions.PolarsError:
        lossy = parquet_batches_lossy(file, columns.distinct, BATCH_ROWS)
        batches = _guarded(lossy, file, PARQUET_FILE)
    else:
        batches = _batches(query, file, PARQUET_FILE)
    for batch in batches:
        yield named_classes(batch, names)


def _batches(query: pl.LazyFrame, file: Path | str, *told: str) -> Iterator[pl.DataFrame]:
    batches = guarded(lambda: query.collect_batches(chunk_size=BATCH_ROWS), file, *told)
    yield from _guarded(batches, file, *told)


def _guarded(
    batches: Iterator[pl.DataFrame], file: Path | str, *told: str
) -> Iterator[pl.DataFrame]:
    """Passes batches on; a failure between them carries no word of its own message."""
    while (batch := guarded(lambda: next(batches, None), file, *told)) is not None:
        yield batch


def bytes_of_text(query: pl.LazyFrame) -> int:
    """Bytes of all texts, counted without writing out those that a dictionary holds once."""
    sizes = []
    for name, kind in query.collect_schema().items():
        column = pl.col(name)
        if kind == pl.String:
            sizes.append(column.str.len_bytes().cast(pl.UInt64).sum())
        elif isinstance(kind, pl.Categorical | pl.Enum):
            sizes.append(column.cat.len_bytes().cast(pl.UInt64).sum())
        elif kind == pl.Binary:
            sizes.append(column.bin.size().cast(pl.UInt64).sum())
    return sum(query.select(sizes).collect(engine="streaming").row(0)) if sizes else 0


def _remote_query(source: SourceSpec, columns: ColumnNames) -> pl.LazyFrame:
    """The named columns of Parquet files at an hf:// address.

    Raises:
        SourceError: They are no Parquet files, cannot be reached, or lack a column.
    """
    if _format_of(source.path, source) != "parquet":
        raise SourceError(
            expected="Parquet files at an hf:// address",
            got=source.path,
            remedy="Use its *.parquet files, or download it and name the folder.",
        )
    refuse_stray_dialect(source, "parquet")
    scan = pl.scan_parquet(source.path)
    guarded(scan.collect_schema, source.path, *_REMOTE)
    return _selected(scan, columns, source.path)


def _selected(query: pl.LazyFrame, columns: ColumnNames, file: Path | str) -> pl.LazyFrame:
    check_columns(query.collect_schema().names(), columns, file, schema=True)
    return query.select(columns.distinct)
