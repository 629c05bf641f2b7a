"""Values that need not be made again: each in a file named by a digest of all it depends on.

A file that cannot be read as what it should be, whatever was done to it, is as none: the value is
made anew and takes its place. Where nothing can be written the value is made each time.
"""

import io
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import polars as pl

from dpsynth_assets.files.whole_files import write_whole
from dpsynth_assets.privacy.errors import PrivacyError

T = TypeVar("T")
Place = TypeVar("Place")


@dataclass(frozen=True)
class Form(Generic[T]):
    """How a value stands in a file: read from its path, written as its bytes."""

    read: Callable[[Path], T]
    write: Callable[[T], bytes]


def found(place: Place, read: Callable[[Place], T]) -> T | None:
    """Reads what is kept; None where nothing is, or nothing that can be read.

    Raises:
        PrivacyError: It is sealed, and the key is not there or another: that is no damage.
    """
    try:
        return read(place)
    except PrivacyError:
        raise
    except Exception:  # noqa: BLE001 - each library has errors of its own for a damaged file
        return None


def kept_file(place: Path, make: Callable[[], T], form: Form[T]) -> T:
    """Gives what is kept, or else makes and keeps it.

    Args:
        place: Named by a digest of all that the value depends on.
        make: Makes the value, which is not None.
        form: How it is read and written.

    Returns:
        The value as it was read back, so the first caller gets what later ones get.
    """
    value = found(place, form.read)
    if value is not None:
        return value
    value = make()
    with suppress(OSError):
        write_whole(place, form.write(value))
        return form.read(place)
    return value


def _table_bytes(table: pl.DataFrame) -> bytes:
    content = io.BytesIO()  # Writing to a file, Polars would raise an error of its own.
    table.write_parquet(content)
    return content.getvalue()


def _array_bytes(values: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.save(content, values, allow_pickle=False)
    return content.getvalue()


JSON: Form[Any] = Form(
    lambda place: json.loads(place.read_text(encoding="utf-8")),
    lambda value: (json.dumps(value, indent=1) + "\n").encode(),
)
"""Floats survive exactly."""
TABLE: Form[pl.DataFrame] = Form(pl.read_parquet, _table_bytes)
ARRAY: Form[np.ndarray] = Form(lambda place: np.load(place, allow_pickle=False), _array_bytes)
