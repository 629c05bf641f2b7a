"""One IO manager for public and released values: the value's type picks the format.

Parquet for tables, NumPy files for arrays, JSON for the rest; never pickle. Private
values do not pass through here: they live in the sensitive store. The place is a folder or a prefix
of an object store.
"""

import io
import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Self

import dagster as dg
import numpy as np
import polars as pl
from pydantic import PrivateAttr

from dpsynth_assets.paths import Folder, home, located


class ArtifactIOManager(dg.ConfigurableIOManager):
    """Stores an asset's value at `<base>/<asset key>.<format>`, atomically.

    The base is DPSYNTH_STORE_URL/values, or `artifacts` under DPSYNTH_HOME. There is no field and
    hence no run config: a run cannot publish from values of another place.
    """

    opens_private_data: ClassVar[bool] = False

    _base: str = PrivateAttr(default="")

    @classmethod
    def at(cls, base: str) -> Self:
        """Values of another folder or prefix, for tools and tests."""
        manager = cls()
        manager._base = base
        return manager

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        """Replaces the old value in one step: by a rename, or by one object put whole."""
        suffix, write = _format_of(obj)
        path = self._path(context.asset_key, suffix)
        content = io.BytesIO()
        write(obj, content)
        if isinstance(path, Path):
            _replace(path, content.getbuffer())
        else:
            path.fs.pipe_file(path.path, content.getvalue())
        context.add_output_metadata({"dpsynth/path": dg.MetadataValue.path(str(path))})

    def load_input(self, context: dg.InputContext) -> Any:
        """Reads the latest value of the upstream asset."""
        for suffix, read in _READERS.items():
            path = self._path(context.asset_key, suffix)
            if path.exists():
                return read(io.BytesIO(path.read_bytes()))
        name = context.asset_key.to_user_string()
        raise dg.Failure(  # Unlike other errors its text is shown, and it is public.
            f"Expected a stored value of {name}, got nothing. Materialise {name} first.",
            allow_retries=False,
        )

    def _path(self, key: dg.AssetKey, suffix: str) -> Folder:
        base = located(self._base) if self._base else home().values
        return base.joinpath(*key.path[:-1]) / f"{key.path[-1]}{suffix}"


def _replace(path: Path, content: memoryview) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)  # A full disk needs the space.
        raise


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


_READERS: dict[str, Callable[[io.BytesIO], Any]] = {
    ".parquet": pl.read_parquet,
    ".npy": lambda content: np.load(content, allow_pickle=False),
    ".json": lambda content: json.loads(content.read()),
}
