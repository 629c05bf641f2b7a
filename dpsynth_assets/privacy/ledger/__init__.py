"""The privacy ledger: what was spent on which records, kept permanently and recomputable by anyone.

Read in this order: `schema` (terms, requests and entries), `chain` (why they cannot be edited
unseen), `charges` (cost under the filter, and of a fixed plan), `accounts` (entries become sums,
and the next entry), `admission` (may this be charged?), `database` (the table and its lock),
`witness` (how a lost ledger is noticed, and what need not be verified again), `store` (the `Ledger`
others call), `provenance` (what releases are made from), `statement` and `export` (what is shown).
"""

from dpsynth_assets.privacy.ledger.admission import Admission
from dpsynth_assets.privacy.ledger.chain import GENESIS
from dpsynth_assets.privacy.ledger.database import sqlite_path
from dpsynth_assets.privacy.ledger.provenance import ChargeGraph, Provenance
from dpsynth_assets.privacy.ledger.schema import (
    BudgetTerms,
    LedgerEntry,
    PlannedRelease,
    ReleaseRequest,
    Reservation,
    SecretTerms,
)
from dpsynth_assets.privacy.ledger.statement import CohortSpend, DatasetSpend
from dpsynth_assets.privacy.ledger.store import Ledger
from dpsynth_assets.privacy.ledger.witness import Checkpoint, Seen, Witness
