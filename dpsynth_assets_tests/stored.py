"""Releases, and records that are put into the sensitive store as one part without a source."""

import json
from types import SimpleNamespace

import numpy as np

from dpsynth_assets.records.reading import canonical_records
from dpsynth_assets.records.record_filters import column_names
from dpsynth_assets.records.sources import read_source
from dpsynth_assets.releases.once import Releasing
from dpsynth_assets.sensitive.private_files import files_below
from dpsynth_assets.sensitive.record_parts import files_of, write_canonical


def read_table(part, name):
    """Reads a table of a shard."""
    return files_of(part).read_table(part / name)


def write_array(part, name, values):
    """Writes an array of a shard."""
    files_of(part).write_array(part / name, values)


def write_text(part, name, text):
    """Writes a short file of a shard."""
    files_of(part).write(part / name, text.encode())


def write_records(store, dataset, split, records):
    """Stores canonical records (`record_id`, `unit_id`, `text`, `label`)."""
    folder = store.folder(dataset)
    files_below(store.base).remove(folder / "parts.json")
    write_canonical(folder, split, records)


def write_embeddings(store, dataset, split, embeddings, version="", made_by=None):
    """Stores embeddings, one for each record of the split."""
    write_array(store.folder(dataset), f"{split}_embeddings.npy", np.asarray(embeddings))
    if made_by is not None:
        store.write_internal(dataset, f"{split}_embeddings.made_by", json.dumps(dict(made_by)))
    store.write_internal(dataset, f"{split}_embeddings.version", version)


def paid_by(reservation="r"):
    """A reservation of something that is charged."""
    return SimpleNamespace(id=reservation, request=SimpleNamespace(event=object()))


def read_paid(store, dataset, reservation="r", **given):
    """Reads records as a release does whose charge is open."""
    ledger = SimpleNamespace(is_open=bool)
    return store.read_for_release(dataset, ledger=ledger, reservation=paid_by(reservation), **given)


def release_once(**asked):
    """Charges, draws and stores one release, or finds it."""
    return Releasing(**asked).released()


def read_rows(spec):
    """The declared columns of a dataset's source."""
    return read_source(spec.source, column_names(spec))


def read_private_records(spec):
    """The canonical records of a dataset, read by one process."""
    return canonical_records(read_rows(spec), spec)
