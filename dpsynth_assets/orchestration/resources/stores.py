"""Ledger, stores, models and workers of an installation as Dagster resources.

None has a field, hence none has run config: who may launch a run does not choose which ledger is
charged, where records go, or what is published. Their places are the installation's.
"""

from pathlib import Path
from typing import ClassVar, Self

import dagster as dg
from pydantic import PrivateAttr

from dpsynth_assets.models.kept import begin_use, end_use
from dpsynth_assets.paths import Folder, home, located
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.public_base.opening import OpenedModels
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

    Without that variable they lie in `artifacts/releases` under DPSYNTH_HOME.
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

    They lie in `sensitive` under DPSYNTH_HOME, or where DPSYNTH_SENSITIVE_URL says. The key of an
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
