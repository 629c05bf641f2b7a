"""The files of a topic model: safetensors, Parquet and a manifest."""

import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

FORMAT = "dpsynth topic model"
FORMAT_VERSION = 1
"""Raised when the files or their meaning change; a folder of another version is refused."""

TENSORS_FILE = "topics.safetensors"
TABLE_FILE = "topics.parquet"
MANIFEST_FILE = "manifest.json"
LIBRARIES = ("hdbscan", "faiss-cpu", "numpy", "scikit-learn")


class TopicModelError(RuntimeError):
    """A topic model cannot be loaded: says what was expected, what was found and what to do."""


def write_files(
    folder: Path,
    tensors: Mapping[str, np.ndarray],
    table: Mapping[str, list[Any]],
    facts: Mapping[str, Any],
) -> None:
    """Writes arrays, the table of topics and, last, the manifest that makes the folder whole."""
    import polars as pl
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST_FILE).unlink(missing_ok=True)
    save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, folder / TENSORS_FILE)
    pl.DataFrame(dict(table)).write_parquet(folder / TABLE_FILE)
    manifest = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "libraries": {name: version(name) for name in LIBRARIES},
        **facts,
    }
    text = json.dumps(manifest, indent=2, ensure_ascii=False)
    (folder / MANIFEST_FILE).write_text(text + "\n", encoding="utf-8")


def read_files(
    folder: Path,
) -> tuple[dict[str, np.ndarray], dict[str, list[Any]], dict[str, Any]]:
    """Reads what `write_files` wrote: arrays, columns and manifest.

    Raises:
        TopicModelError: There is no topic model, another version's, or a file is damaged.
    """
    manifest = _read_manifest(folder)
    import polars as pl
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        tensors = load_file(folder / TENSORS_FILE)
        table = pl.read_parquet(folder / TABLE_FILE).to_dict(as_series=False)
    except (OSError, SafetensorError, pl.exceptions.PolarsError):
        raise TopicModelError(
            f"Expected {TENSORS_FILE} and {TABLE_FILE} whole in {str(folder)!r}, got a missing or "
            "damaged file. Fit the topic model again."
        ) from None
    return tensors, table, manifest


def _read_manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TopicModelError(
            f"Expected a topic model in {str(folder)!r}, got no {MANIFEST_FILE} there. Fit one, or "
            "name the folder it was saved to."
        ) from None
    except (OSError, ValueError):
        raise TopicModelError(
            f"Expected a readable {MANIFEST_FILE} in {str(folder)!r}, got a damaged one. Fit the "
            "topic model again."
        ) from None
    found = (manifest.get("format"), manifest.get("version")) if isinstance(manifest, dict) else ()
    if found != (FORMAT, FORMAT_VERSION):
        raise TopicModelError(
            f"Expected format ({FORMAT!r}, {FORMAT_VERSION}) in {str(folder)!r}, got {found}. Fit "
            "the topic model again with this version."
        )
    return manifest
