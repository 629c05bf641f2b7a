"""Calendar months by the ledger's clock, and what each cohort was charged in the current one.

The clock of a machine may be wrong, and may be set back. So the ledger's month never goes back: it
is the latest month that any entry was recorded in, or the clock's own where that is later. A clock
set back finds the month, and what was spent in it, as they were; a clock set forward opens the
next month early, once, and then waits until the calendar has caught up.
"""

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime

from dpsynth_assets.privacy.ledger.charges import FilterSum
from dpsynth_assets.privacy.ledger.plans import Charges

_YEAR_AND_MONTH = len("2026-11")


def utc_now() -> datetime:
    """The clock of this machine, in UTC."""
    return datetime.now(UTC)


def month_of(recorded_at: str) -> str:
    """Year and month of an entry's moment, e.g. "2026-11"; later months sort after earlier ones."""
    return recorded_at[:_YEAR_AND_MONTH]


def month_at(now: datetime) -> str:
    """Year and month of a moment, in UTC."""
    return month_of(now.astimezone(UTC).isoformat())


def month_after(month: str) -> str:
    """First day of the next month, e.g. "2026-12-01": when the next allowance opens."""
    year, number = map(int, month.split("-"))
    return f"{year + number // 12:04d}-{number % 12 + 1:02d}-01"


@dataclass
class MonthSpend:
    """Charges of one cohort in one month.

    Attributes:
        month: The month of the last charge; "" before any.
        charges: Number of charges of each (asset, canonical event) with an (ε, δ) cost.
    """

    month: str = ""
    charges: Charges = field(default_factory=Counter)

    def post(self, month: str, asset: str, event_json: str) -> None:
        """Charges an event; the first one of a month begins a new sum."""
        if month != self.month:
            self.month, self.charges = month, Counter()
        self.charges[asset, event_json] += 1

    @property
    def spent(self) -> FilterSum:
        """The charges as the adaptive filter adds them."""
        total = FilterSum()
        for (_, event_json), times in self.charges.items():
            total.add(event_json, times)
        return total

    def within(self, month: str) -> "MonthSpend":
        """This sum if it is of `month`, else an empty one."""
        return self if month == self.month else MonthSpend(month)
