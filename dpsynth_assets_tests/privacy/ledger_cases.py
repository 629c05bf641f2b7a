"""Requests, terms and planted edits shared by the ledger tests."""

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpsynth_assets.privacy.events import GaussianEvent
from dpsynth_assets.privacy.guarantees import GuaranteeType, NeighboringRelation, PrivacyUnit
from dpsynth_assets.privacy.ledger import BudgetTerms, Ledger, ReleaseRequest

HALF_RHO = GaussianEvent(noise_multiplier=1.0)  # ρ = 1/2 exactly


def make_terms(**changes: Any) -> BudgetTerms:
    """Terms with ε = 8 under the adaptive filter."""
    fields: dict[str, Any] = {
        "epsilon": 8.0,
        "delta": 1e-6,
        "accountant": "zcdp",
        "relation": NeighboringRelation.ADD_REMOVE,
        "unit": PrivacyUnit(),
    }
    return BudgetTerms(**{**fields, **changes})


def make_request(**changes: Any) -> ReleaseRequest:
    """A DP request of ρ = 1/2."""
    fields: dict[str, Any] = {
        "cohort": "tickets",
        "dataset": "tickets",
        "asset": "tickets/mean/corpus",
        "mechanism": "mean",
        "guarantee": GuaranteeType.DP,
        "event": HALF_RHO,
        "parameters": {"clip_bound": 10.0},
        "code_version": "1",
        "data_version": "2026-01",
    }
    return ReleaseRequest(**{**fields, **changes})


def sqlite_url(folder: Path) -> str:
    """A ledger file in `folder`."""
    return f"sqlite:///{folder / 'ledger' / 'ledger.sqlite'}"


def sqlite_file(folder: Path) -> Path:
    """The file behind `sqlite_url`."""
    return folder / "ledger" / "ledger.sqlite"


def release(
    ledger: Ledger,
    terms: BudgetTerms | None = None,
    content: Mapping[str, Any] | None = None,
    **changes: Any,
) -> str:
    """Reserves and commits one release; returns the reservation's id."""
    reservation = ledger.reserve(make_request(**changes), terms or make_terms())
    stored = {"artifact_digest": "d1", "artifact_uri": "corpus.parquet"}
    ledger.commit(reservation, **stored, content=content)
    return reservation.id


def edit(folder: Path, *statements: str) -> None:
    """Edits the table behind the ledger's back, triggers dropped and restored."""
    connection = sqlite3.connect(sqlite_file(folder))
    triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type='trigger'")
    definitions = triggers.fetchall()
    for name, _ in definitions:
        connection.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        connection.execute(statement)
    for _, definition in definitions:
        connection.execute(definition)
    connection.commit()
    connection.close()
