"""The store of releases as a Dagster resource."""

from pathlib import Path
from typing import ClassVar, Self

import dagster as dg
from pydantic import PrivateAttr

from dpsynth_assets.paths import Folder, home, located
from dpsynth_assets.releases.store import StoredReleases
from dpsynth_assets.sensitive.owner_only import plain_place
from dpsynth_assets.sensitive.sealing import sealing_key


class ReleaseStore(dg.ConfigurableResource, StoredReleases):
    """Releases in DPSYNTH_STORE_URL/releases (s3://, gs:// with the extras `s3`, `gcs`).

    Without that variable they lie in `artifacts/releases` under DPSYNTH_HOME. The resource has no
    field, hence no run config.
    """

    opens_private_data: ClassVar[bool] = False

    _root: str = PrivateAttr(default="")

    @classmethod
    def at(cls, root: str) -> Self:
        """The store of another folder or prefix, for tools and tests."""
        store = cls()
        store._root = root
        return store

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
        return located(self._root) if self._root else home().releases
