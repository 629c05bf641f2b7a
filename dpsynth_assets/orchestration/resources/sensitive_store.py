"""The owner-only store of private records as a Dagster resource."""

from typing import ClassVar, Self

import dagster as dg
from pydantic import PrivateAttr

from dpsynth_assets.paths import Folder, home, located
from dpsynth_assets.sensitive.paid_records import PaidRecords


class SensitiveStore(dg.ConfigurableResource, PaidRecords):
    """Private records and embeddings of each dataset.

    Its place is `sensitive` under DPSYNTH_HOME, or what DPSYNTH_SENSITIVE_URL names. It has no
    field, hence no run config: a run cannot write private records elsewhere. The key of an
    encrypted store is read from the environment where it is used: Dagster shows and records the
    fields of resources.
    """

    opens_private_data: ClassVar[bool] = True

    _root: str = PrivateAttr(default="")

    @classmethod
    def at(cls, root: str) -> Self:
        """The store of another folder or prefix, for tools and tests."""
        store = cls()
        store._root = root
        return store

    @property
    def base(self) -> Folder:
        """Folder of all datasets."""
        return located(self._root) if self._root else home().sensitive
