"""The ledger: reserve before private data is read, commit when the release is stored."""

import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import chain as concatenated
from math import inf, isfinite

from dpsynth_assets.privacy.errors import (
    BudgetExceededError,
    LedgerIntegrityError,
    PrivacyError,
)
from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger.accounts import Book
from dpsynth_assets.privacy.ledger.admission import Admission, admit
from dpsynth_assets.privacy.ledger.chain import ChainProblem, VerifyReport, sealed, verify_chain
from dpsynth_assets.privacy.ledger.database import TRIGGERS, Appender, Database
from dpsynth_assets.privacy.ledger.schema import (
    COMMIT,
    RESERVE,
    TIGHT,
    BudgetTerms,
    LedgerEntry,
    PlannedRelease,
    ReleaseRequest,
    Reservation,
    digest,
    plan_to_json,
)
from dpsynth_assets.privacy.ledger.statement import (
    CohortSpend,
    DatasetSpend,
    cohort_spend,
    dataset_spend,
)
