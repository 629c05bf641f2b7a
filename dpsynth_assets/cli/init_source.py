"""The source of a new dataset file: how its CSV files are written, by their headers or as named."""

from pathlib import Path

from dpsynth_assets.cli.column_profiles import is_csv
from dpsynth_assets.datasets import SourceSpec
from dpsynth_assets.datasets.source_section import UTF_8
from dpsynth_assets.datasets.template import Choices
from dpsynth_assets.records.columns import SourceError
from dpsynth_assets.records.csv_dialects import dialect_of, recognised_dialect
from dpsynth_assets.records.sources import source_files, stray_encodings


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
