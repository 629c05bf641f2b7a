"""One IO manager for public and released values: the value's type picks the format.

Parquet for tables, NumPy files for arrays, JSON for the rest; never pickle. Private
values do not pass through here: they live in the sensitive store.
"""

import json
import os
from pathlib import Path
from typing import Any

import dagster as dg
import numpy as np
import polars as pl
from pydantic import Field

from dpsynth_assets.paths import home


class ArtifactIOManager(dg.ConfigurableIOManager):
    """Stores an asset's value at `<base>/<asset key>.<format>`, atomically."""

    base_dir: str = Field(
        default="", description="Folder of the values. Empty: `artifacts` under DPSYNTH_HOME."
    )

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        """Writes a temporary file, then renames it over the old one."""
        suffix, write = _format_of(obj)
        path = self._path(context.asset_key, suffix)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        with temporary.open("wb") as file:
            write(obj, file)
        temporary.replace(path)
        context.add_output_metadata({"dpsynth/path": dg.MetadataValue.path(str(path))})

    def load_input(self, context: dg.InputContext) -> Any:
        """Reads the latest value of the upstream asset."""
        for suffix, read in _READERS.items():
            path = self._path(context.asset_key, suffix)
            if path.exists():
                return read(path)
        name = context.asset_key.to_user_string()
        raise dg.Failure(  # Unlike other errors its text is shown, and it is public.
            f"Expected a stored value of {name}, got nothing. Materialise {name} first.",
            allow_retries=False,
        )

    def _path(self, key: dg.AssetKey, suffix: str) -> Path:
        base = Path(self.base_dir) if self.base_dir else home().artifacts
        return base.joinpath(*key.path[:-1]) / f"{key.path[-1]}{suffix}"


def _format_of(obj: Any) -> tuple[str, Any]:
    if isinstance(obj, pl.DataFrame):
        return ".parquet", lambda value, file: value.write_parquet(file)
    if isinstance(obj, np.ndarray):
        return ".npy", lambda value, file: np.save(file, value, allow_pickle=False)
    if isinstance(obj, dict | list):
        return ".json", lambda value, file: file.write(json.dumps(value, sort_keys=True).encode())
    raise TypeError(
        f"Expected a polars DataFrame, a NumPy array, a dict or a list, got {type(obj).__name__}. "
        "Convert the value; pickles are not stored."
    )


_READERS = {
    ".parquet": pl.read_parquet,
    ".npy": lambda path: np.load(path, allow_pickle=False),
    ".json": lambda path: json.loads(path.read_text()),
}
