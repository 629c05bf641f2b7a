"""The privacy ledger: what was spent on which records, kept for good and recomputable by anyone.

Read in this order: `terms` (what is allowed), `schema` (what is written), `chain` (why it cannot be
edited unseen), `charges` (what an event costs under the filter), `plans` (what a fixed plan costs),
`months` (what the clock says), `decisions` (what a gate that reads private text answered),
`restated` (older prices), `accounts` (entries become sums), `allowances` (what a month may add),
`conditions` and `admission` (may this be charged?), `entries` (what is written then), `database`
(the table and its lock), `checkpoint` (what a machine need not verify again), `witness` (how a lost
ledger is noticed), `store` (the `Ledger` others call), `statement` and `export` (what is shown).
"""

from dpsynth_assets.privacy.ledger.admission import Admission
from dpsynth_assets.privacy.ledger.chain import GENESIS, ChainProblem, VerifyReport
from dpsynth_assets.privacy.ledger.checkpoint import Checkpoint
from dpsynth_assets.privacy.ledger.database import sqlite_path
from dpsynth_assets.privacy.ledger.decisions import GateQuestion
from dpsynth_assets.privacy.ledger.schema import (
    LedgerEntry,
    PlannedRelease,
    ReleaseRequest,
    Reservation,
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
    "Checkpoint",
    "CohortSpend",
    "DatasetSpend",
    "GateQuestion",
    "Ledger",
    "LedgerEntry",
    "PlannedRelease",
    "ReleaseRequest",
    "Reservation",
    "SecretTerms",
    "Seen",
    "VerifyReport",
    "Witness",
    "sqlite_path",
]
