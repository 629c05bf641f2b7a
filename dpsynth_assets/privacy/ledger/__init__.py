"""The privacy ledger: what was spent on which records, kept for good and recomputable by anyone.

Read in this order: `terms` (the budget), `schema` (requests and entries), `chain` (why they cannot
be edited unseen), `charges` (cost of an event under the filter), `plans` (cost of a fixed plan),
`accounts` (entries become sums), `conditions` and `admission` (may this be charged?), `entries`
(what is written then), `database` (the table and its lock), `checkpoint` (what a machine need not
verify again), `witness` (how a lost ledger is noticed), `store` (the `Ledger` others call),
`provenance` (what releases are made from), `statement` and `export` (what is shown).
"""

from dpsynth_assets.privacy.ledger.admission import Admission
from dpsynth_assets.privacy.ledger.chain import GENESIS, ChainProblem, VerifyReport
from dpsynth_assets.privacy.ledger.checkpoint import Checkpoint
from dpsynth_assets.privacy.ledger.database import sqlite_path
from dpsynth_assets.privacy.ledger.provenance import ChargeGraph, Provenance
from dpsynth_assets.privacy.ledger.schema import (
    LedgerEntry,
    PlannedRelease,
    ReleaseRequest,
    Reservation,
    edited_parts,
)
from dpsynth_assets.privacy.ledger.statement import CohortSpend, DatasetSpend
from dpsynth_assets.privacy.ledger.store import Ledger
from dpsynth_assets.privacy.ledger.terms import BudgetTerms, SecretTerms
from dpsynth_assets.privacy.ledger.witness import Seen, Witness

__all__ = [
    "GENESIS",
    "Admission",
    "BudgetTerms",
    "ChainProblem",
    "ChargeGraph",
    "Checkpoint",
    "CohortSpend",
    "DatasetSpend",
    "Ledger",
    "LedgerEntry",
    "PlannedRelease",
    "Provenance",
    "ReleaseRequest",
    "Reservation",
    "SecretTerms",
    "Seen",
    "VerifyReport",
    "Witness",
    "edited_parts",
    "sqlite_path",
]
