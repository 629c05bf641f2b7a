"""The realised cost of an ex-post release, kept until the ledger has it.

An ex-post cost is known once the value is drawn, and the ledger records it at the commit. A run
that is killed between storing the value and the commit would take it along, and the stored value
could not be labelled. So the cost is kept beside the passes of the charge, in the sensitive store,
before the value is stored, under a digest of that very value: a cost never labels another one.

**Privacy** A realised cost depends on private data. It goes to the ledger and to nowhere else.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Protocol

import polars as pl

from dpsynth_assets.releases.store import StoredReleases


class KeptCosts(Protocol):
    """Where realised costs of one charge are kept."""

    def keep_cost(self, value: str, epsilon: float) -> None:
        """Keeps the realised cost of a value, by the value's digest."""

    def cost(self, value: str) -> float | None:
        """The realised cost of a value; None where none was kept."""


def keep_realised_cost(
    kept: KeptCosts, facts: Mapping[str, Any], rows: pl.DataFrame | None, epsilon: float
) -> None:
    """Keeps the realised cost of a value that is about to be stored."""
    kept.keep_cost(_value_digest(facts, rows), epsilon)


def realised_cost(kept: KeptCosts, store: StoredReleases, reservation: str) -> float | None:
    """Finds the realised cost of the value that is stored under a charge; None without one."""
    if not store.has(reservation):
        return None
    return kept.cost(_value_digest(*store.load(reservation)))


def _value_digest(facts: Mapping[str, Any], rows: pl.DataFrame | None) -> str:
    table = None if rows is None else [rows.columns, rows.rows()]
    content = json.dumps([facts, table], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()
