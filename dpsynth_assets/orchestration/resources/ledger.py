"""The privacy ledger as a Dagster resource. It lives outside Dagster's own storage."""

from typing import ClassVar, Self

import dagster as dg
from pydantic import PrivateAttr

from dpsynth_assets.paths import home
from dpsynth_assets.privacy.ledger import Ledger
from dpsynth_assets.sensitive.opened_ledger import opened_ledger


class PrivacyLedger(dg.ConfigurableResource):
    """Opens the ledger that every mechanism charges before it reads private data.

    Its place is DPSYNTH_LEDGER_URL, or SQLite under DPSYNTH_HOME. It has no field, hence no run
    config: a run cannot charge another ledger than that of its installation.
    """

    opens_private_data: ClassVar[bool] = False

    _url: str = PrivateAttr(default="")

    @classmethod
    def at(cls, url: str) -> Self:
        """The ledger of another place, for tools and tests; Dagster never makes one so."""
        resource = cls()
        resource._url = url
        return resource

    def open(self) -> Ledger:
        """Connects to the ledger; creates it when it does not exist."""
        return opened_ledger(self._url or home().ledger_url)
