"""The privacy ledger as a Dagster resource. It lives outside Dagster's own storage."""

import dagster as dg
from pydantic import Field

from dpsynth_assets.paths import home
from dpsynth_assets.privacy.ledger import Checkpoint, Ledger


class PrivacyLedger(dg.ConfigurableResource):
    """Opens the ledger that every mechanism charges before it reads private data."""

    url: str = Field(
        default="",
        description="SQLAlchemy URL. Empty: DPSYNTH_LEDGER_URL, or SQLite under DPSYNTH_HOME.",
    )

    def open(self) -> Ledger:
        """Connects to the ledger; creates it when it does not exist."""
        url = self.url or home().ledger_url
        return Ledger(url, checkpoint=Checkpoint(home().root / "ledger", url))
