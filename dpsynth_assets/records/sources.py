"""Reading the named columns of a source, each value as text, with nothing inferred from records.

A type inferred from the values would let one record change how all others are read, so CSV is read
as text, JSON Lines value by value, and Parquet and Arrow by the type their file declares. Errors
name the file and never repeat its content: polars' own messages quote the offending field.
"""

from glob import glob
from pathlib import Path

import polars as pl

from dpsynth_assets.datasets import SourceSpec
from dpsynth_assets.records.columns import (
    ColumnNames,
    SourceError,
    as_records,
    check_columns,
    guarded,
)
from dpsynth_assets.records.csv_dialects import (
    dialect_of,
    refuse_dialect,
    refuse_stray_dialect,
    scan_csv,
)
from dpsynth_assets.records.file_formats import (
    declared_rows,
    read_arrow_stream,
    read_json_lines,
    read_parquet_lossy,
)
from dpsynth_assets.records.refusals import (
    refuse_foreign,
    refuse_links_away,
    refuse_little_memory,
    refuse_many_rows,
    refuse_no_file,
    refuse_traversal,
    refuse_unpacked_bytes,
)

CSV_FILE = "a CSV file with a header and as many fields on every line"
PARQUET_FILE = "a Parquet file"
REMOTE = (
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
    if source.path.startswith("hf://"):
        return _read_remote(source, columns)
    frames = [_read_file(file, source, columns) for file in source_files(source)]
    return pl.concat(frames)


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
            field="source.path",
            expected="a file, glob, folder or hf:// address",
            got=f"nothing at {source.path}",
            remedy="Mend the path; a relative one starts at the project root.",
        )
    if not path.is_file():
        refuse_links_away(files, _fixed_part(path))
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
                field="source.path",
                expected="one split of the dataset",
                got=f"a folder of splits ({', '.join(split.name for split in splits)})",
                remedy=f"Point it at one of them, e.g. {folder / 'train'}.",
            )
        folder = splits[0]
    files = sorted(folder.glob("*.arrow"))
    if not files:
        raise SourceError(
            field="source.path",
            expected="a folder written by save_to_disk",
            got=f"no .arrow file in {folder}",
            remedy=f"For other files use a glob, e.g. {folder}/*.parquet.",
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


def _read_file(file: Path, source: SourceSpec, columns: ColumnNames) -> pl.DataFrame:
    kind = admitted_format(file, source)
    refuse_little_memory(file)
    if kind == "jsonl":
        return read_json_lines(file, columns)
    return read_typed(file, source, columns, kind)


def admitted_format(file: Path, source: SourceSpec) -> str:
    """The format of a file that may be read.

    Raises:
        SourceError: It may not: no ordinary file, of another format, or a bomb.
    """
    kind = _format_of(file.name, source)
    refuse_stray_dialect(source, kind)
    refuse_no_file(file)
    refuse_foreign(file, kind)
    return kind


def read_typed(file: Path, source: SourceSpec, columns: ColumnNames, kind: str) -> pl.DataFrame:
    """Reads a file of a format other than JSON Lines whole."""
    if kind == "huggingface":
        frame = guarded(lambda: read_arrow_stream(file), file, "an Arrow stream")
        return as_records(_selected(frame.lazy(), columns, file, schema=True).collect(), columns)
    if kind == "csv":
        return as_records(_read_csv(file, source, columns), columns)
    return as_records(_read_parquet(file, columns), columns)


def csv_query(file: Path, source: SourceSpec, columns: ColumnNames) -> pl.LazyFrame:
    """The named columns of a CSV file, which nothing has read but its header.

    Raises:
        SourceError: The file is no CSV file of the declared dialect, or lacks a column.
    """
    dialect = dialect_of(file, source)
    refuse_dialect(file, dialect, columns)
    scan = guarded(lambda: scan_csv(file, dialect), file, CSV_FILE)
    guarded(scan.collect_schema, file, CSV_FILE)
    return _selected(scan, columns, file, schema=False)


def parquet_query(file: Path, columns: ColumnNames) -> pl.LazyFrame:
    """The named columns of a Parquet file, of which the footer alone was read.

    Raises:
        SourceError: The file is no Parquet file, declares too many rows, or lacks a column.
    """
    scan = pl.scan_parquet(file, glob=False)
    guarded(scan.collect_schema, file, PARQUET_FILE)
    refuse_many_rows(file, guarded(lambda: declared_rows(file), file, PARQUET_FILE))
    return _selected(scan, columns, file, schema=True)


def _read_csv(file: Path, source: SourceSpec, columns: ColumnNames) -> pl.DataFrame:
    return guarded(csv_query(file, source, columns).collect, file, CSV_FILE)


def _read_parquet(file: Path, columns: ColumnNames) -> pl.DataFrame:
    query = parquet_query(file, columns)
    try:
        refuse_unpacked_bytes(file, bytes_of_text(query))
        return query.collect()
    except pl.exceptions.PolarsError:
        pass  # Polars refuses a whole file for one text that is not UTF-8.
    return guarded(lambda: read_parquet_lossy(file, columns.distinct), file, PARQUET_FILE)


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


def remote_query(source: SourceSpec, columns: ColumnNames) -> pl.LazyFrame:
    """The named columns of Parquet files at an hf:// address.

    Raises:
        SourceError: They are no Parquet files, cannot be reached, or lack a column.
    """
    if _format_of(source.path, source) != "parquet":
        raise SourceError(
            field="source.path",
            expected="Parquet files at an hf:// address",
            got=source.path,
            remedy="Use its *.parquet files, or download it and name the folder.",
        )
    refuse_stray_dialect(source, "parquet")
    scan = pl.scan_parquet(source.path)
    guarded(scan.collect_schema, source.path, *REMOTE)
    return _selected(scan, columns, source.path, schema=True)


def _read_remote(source: SourceSpec, columns: ColumnNames) -> pl.DataFrame:
    query = remote_query(source, columns)
    return as_records(guarded(query.collect, source.path, *REMOTE), columns)


def _selected(
    query: pl.LazyFrame, columns: ColumnNames, file: Path | str, *, schema: bool
) -> pl.LazyFrame:
    check_columns(query.collect_schema().names(), columns, file, schema=schema)
    return query.select(columns.distinct)
