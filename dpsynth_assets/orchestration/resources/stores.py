"""Ledger, stores, models and workers of an installation as Dagster resources.

None has a field, hence none has run config: who may launch a run does not choose which ledger is
charged, where records go, or what is published. Their places are the installation's.
"""

import hashlib
import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Self

import dagster as dg
import numpy as np
import polars as pl
from pydantic import PrivateAttr

from dpsynth_assets.datasets import cohort_name
from dpsynth_assets.files.kept import ARRAY, JSON, TABLE
from dpsynth_assets.files.whole import write_whole
from dpsynth_assets.models.engines.protocol import begin_use, end_use
from dpsynth_assets.orchestration.resources.private_section import public_section
from dpsynth_assets.paths import Folder, home, located
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.public_base.making import OpenedModels
from dpsynth_assets.releases.store import StoredReleases, opened_ledger
from dpsynth_assets.sensitive.private_files import plain_place
from dpsynth_assets.sensitive.sealing import sealing_key
from dpsynth_assets.sensitive.store import StoredRecords
from dpsynth_assets.workers import Workers, declared_workers


class Placed(dg.ConfigurableResource):
    """A resource of the installation's place."""

    opens_private_data: ClassVar[bool] = False

    _place: str = PrivateAttr(default="")

    @classmethod
    def at(cls, place: str) -> Self:
        """The resource of another place, for tools and tests; Dagster never makes one so."""
        resource = cls()
        resource._place = place
        return resource


class PrivacyLedger(Placed):
    """Opens the ledger that every mechanism charges before it reads private data.

    It lies outside Dagster's own storage: at DPSYNTH_LEDGER_URL, or SQLite under DPSYNTH_HOME.
    """

    def open(self) -> Ledger:
        """Connects to the ledger; creates it when it does not exist."""
        return opened_ledger(self._place or home().ledger_url)


class ReleaseStore(Placed, StoredReleases):
    """Releases in DPSYNTH_STORE_URL/releases (s3://, gs:// with the extras `s3`, `gcs`).

    Without that variable they are in `artifacts/releases` under DPSYNTH_HOME.
    """

    @property
    def unfinished(self) -> Folder:
        """Folder where draws keep what is not released yet: the sensitive store."""
        return home().sensitive

    @property
    def plain(self) -> Path | None:
        """Folder of plain checkpoints where the sensitive store has a key; memory, mostly."""
        return None if sealing_key() is None else plain_place()

    @property
    def base(self) -> Folder:
        """Folder or prefix of all releases."""
        return located(self._place) if self._place else home().releases


class SensitiveStore(Placed, StoredRecords):
    """Private records and embeddings of each dataset, for their owner alone.

    They are in `sensitive` under DPSYNTH_HOME, or where DPSYNTH_SENSITIVE_URL says. The key of an
    encrypted store is read from the environment where it is used: Dagster shows and records the
    fields of resources.
    """

    opens_private_data: ClassVar[bool] = True

    @property
    def base(self) -> Folder:
        """Folder of all datasets."""
        return located(self._place) if self._place else home().sensitive


class Models(dg.ConfigurableResource, OpenedModels):
    """Gives the text embedder and the language model that a public base made or named.

    Within a process every model is opened once. When the last run of the process ends, all of them
    are closed and their memory goes back to the system.
    """

    opens_private_data: ClassVar[bool] = False

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:  # noqa: ARG002
        """Notes that a run uses models."""
        begin_use()

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:  # noqa: ARG002
        """Closes models where no other run of this process uses them."""
        end_use()


class PartWorkers(dg.ConfigurableResource):
    """Gives the workers that the environment declares (`DPSYNTH_WORKERS`)."""

    opens_private_data: ClassVar[bool] = False

    def open(self) -> Workers:
        """The workers; Ray is connected to at the first part.

        Raises:
            PrivacyError: The environment names none that there are.
        """
        return declared_workers()


# One IO manager for public and released values: the value's type picks the format.
#
# Parquet for tables, NumPy files for arrays, JSON for the rest; never pickle. Private values do not
# pass through here: they live in the sensitive store. The place is a folder or a prefix of an
# object store.
#
# A materialisation in the event log names the SHA-256 of the value that it stored. That value is
# read and no other: a file that was edited, or that the asset left before in another
# format, is refused.

VALUE_SHA256 = "dpsynth/value_sha256"
"""Metadata of a materialisation: SHA-256 of the file that holds its value."""

_READS, _SECONDS_BETWEEN = 10, 0.2
"""A value that another run replaces is in the file a moment before it is in the event log."""


class ArtifactIOManager(dg.ConfigurableIOManager, Placed):
    """Stores an asset's value at `<base>/<asset key>.<format>`, atomically.

    The value of a partition lies where that of an asset would whose key begins with the cohort's
    name: `<base>/<dataset>_<partition>/...`, so that no two partitions share a file.

    The base is DPSYNTH_STORE_URL/values, or `artifacts` under DPSYNTH_HOME. There is no field and
    hence no run config: a run cannot publish from values of another place.
    """

    @public_section("Storing an artifact")
    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        """Replaces the old value in one step: by a rename, or by one object put whole.

        The old value in another format goes. The event log learns the digest of the new one.
        """
        suffix, write = _format_of(obj)
        # Not the run's partition: a run of one also makes assets that have none.
        partition = context.asset_partition_key if context.has_asset_partitions else None
        path = self._path(context.asset_key, suffix, partition)
        content = write(obj)
        if isinstance(path, Path):
            write_whole(path, content)
        else:
            path.fs.pipe_file(path.path, content)
        for other in _FORMATS.keys() - {suffix}:
            _remove(self._path(context.asset_key, other, partition))
        context.add_output_metadata(
            {
                "dpsynth/path": dg.MetadataValue.path(str(path)),
                VALUE_SHA256: hashlib.sha256(content).hexdigest(),
            }
        )

    @public_section("Reading an artifact")
    def load_input(self, context: dg.InputContext) -> Any:
        """Reads the value that the event log names as the latest of the upstream asset.

        Where the event log names none, as after it was wiped, what is stored is read.

        Raises:
            dg.Failure: Nothing is stored, or not what the event log names.
        """
        partition = context.asset_partition_key if context.has_asset_partitions else None
        parts, found = _stored_under(context.asset_key, partition), False
        name = "/".join(parts)
        for attempt in range(_READS):
            if attempt:
                time.sleep(_SECONDS_BETWEEN)
            named = _digest_in_event_log(context, partition)
            for suffix, (_, _, read) in _FORMATS.items():
                path = self._path(context.asset_key, suffix, partition)
                if not path.exists():
                    continue
                found, content = True, path.read_bytes()
                if named in (None, hashlib.sha256(content).hexdigest()):
                    return read(io.BytesIO(content))
            if not found:
                break
        raise dg.Failure(
            f"Expected the stored value of {name} that the event log names, got another one: it "
            f"was edited, or the run that stored it was killed. Materialise {name} again; a "
            "release that was paid for is not paid again."
            if found
            else f"Expected a stored value of {name}, got nothing. Materialise {name} first.",
            allow_retries=False,
        )

    def _path(self, key: dg.AssetKey, suffix: str, partition: str | None = None) -> Folder:
        base = located(self._place) if self._place else home().values
        *folders, name = _stored_under(key, partition)
        return base.joinpath(*folders) / f"{name}{suffix}"


def stored_value(key: dg.AssetKey) -> Any:
    """What is stored of an asset, outside a run; a reader compares it with the ledger.

    Raises:
        FileNotFoundError: Nothing is stored.
    """
    manager = ArtifactIOManager()
    for suffix, (_, _, read) in _FORMATS.items():
        path = manager._path(key, suffix)
        if path.exists():
            return read(io.BytesIO(path.read_bytes()))
    raise FileNotFoundError(
        f"Expected a stored value of {key.to_user_string()}, got nothing. Materialise it first."
    )


def _stored_under(key: dg.AssetKey, partition: str | None) -> list[str]:
    """Parts of the place of a value: those of the key, with the name of its cohort first.

    Raises:
        ValueError: The partition, which anybody may type, would lead to another folder.
    """
    if partition is not None and "/" in partition:
        raise ValueError(f"expected a partition whose key has no '/', got {partition!a}.")
    return [cohort_name(key.path[0], partition), *key.path[1:]]


def _digest_in_event_log(context: dg.InputContext, partition: str | None) -> str | None:
    """Digest of the latest value as its materialisation names it; None where it names none."""
    asked = dg.AssetRecordsFilter(
        asset_key=context.asset_key, asset_partitions=None if partition is None else [partition]
    )
    records = context.instance.fetch_materializations(asked, limit=1).records
    materialisation = records[0].asset_materialization if records else None
    named = None if materialisation is None else materialisation.metadata.get(VALUE_SHA256)
    return None if named is None else str(named.value)


def _remove(path: Folder) -> None:
    if isinstance(path, Path):
        path.unlink(missing_ok=True)
    elif path.exists():
        path.fs.rm_file(path.path)


def _format_of(obj: Any) -> tuple[str, Callable[[Any], bytes]]:
    for suffix, (kind, write, _) in _FORMATS.items():
        if isinstance(obj, kind):
            return suffix, write
    raise TypeError(
        f"Expected a polars DataFrame, a NumPy array, a dict or a list, got {type(obj).__name__}. "
        "Convert the value; pickles are not stored."
    )


_FORMATS: dict[str, tuple[Any, Callable[[Any], bytes], Callable[[io.BytesIO], Any]]] = {
    ".parquet": (pl.DataFrame, TABLE.write, pl.read_parquet),
    ".npy": (np.ndarray, ARRAY.write, lambda content: np.load(content, allow_pickle=False)),
    ".json": (dict | list, JSON.write, json.load),
}
