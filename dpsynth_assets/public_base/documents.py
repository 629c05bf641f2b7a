"""Documents that a public base names: its sources, or the demo's corpus."""

from pathlib import Path

import polars as pl

from dpsynth_assets.datasets import PublicDataSpec
from dpsynth_assets.paths import project_root


def read_documents(spec: PublicDataSpec) -> pl.DataFrame:
    """Reads the documents of a base that does not invent them.

    Returns:
        String columns `text` and `label`.

    Raises:
        SourceError: A source is missing, broken, or lacks a declared column.
        FileNotFoundError: The base names no source, and the demo's corpus is not there.
    """
    from dpsynth_assets.records import read_public_records

    if spec.source is not None:
        return read_public_records(spec)
    documents = _demo_documents()
    return documents.head(spec.max_documents or documents.height)


def documents_here(spec: PublicDataSpec) -> pl.DataFrame | None:
    """The documents of a base whose sources are files of this machine; None for another one."""
    places = [Path(each.source.path) for each in spec.sources]
    if spec.invents_documents or not all(place.is_file() for place in places):
        return None
    return read_documents(spec)


def _demo_documents() -> pl.DataFrame:
    """The public documents that lie in the repository: text, label, group."""
    path = project_root() / "data" / "demo" / "public.parquet"
    if not path.exists():
        raise FileNotFoundError(
            f"Expected the demo's public corpus at {path}, got no file. Run `dpsynth demo`, "
            "which writes it, or name a `source` of the public base."
        )
    return pl.read_parquet(path)
