"""Exports of the ledger: a running history, and the entries as CSV or JSON."""

import csv
import io
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dpsynth_assets.privacy.guarantees import GuaranteeType
from dpsynth_assets.privacy.ledger.accounts import Book, CohortAccount
from dpsynth_assets.privacy.ledger.charges import epsilon_alone
from dpsynth_assets.privacy.ledger.schema import COMMIT, RESERVE, LedgerEntry
from dpsynth_assets.privacy.ledger.statement import (
    CohortSpend,
    DatasetSpend,
    cohort_spend,
    dataset_spend,
)
from dpsynth_assets.privacy.ledger.store import Ledger


@dataclass(frozen=True, kw_only=True)
class HistoryLine:
    """One charge and where it left its cohort.

    Attributes:
        seq: Number of the entry.
        recorded_at: When it was charged, UTC.
        cohort: Who paid.
        asset: What it was for.
        mechanism: By which mechanism.
        guarantee: What the release promises.
        epsilon_alone: ε of this release on its own; None where it has no event.
        epsilon_cumulative: ε of the cohort with this charge; never a sum of single ε. A reading.
        epsilon_guaranteed: ε that is guaranteed of the cohort with this charge.
        delta: δ that goes with both.
        epsilon_remaining: What the terms in force left after it.
        ex_post_epsilon: Realised bound, kept apart. Depends on private data: internal use only.
        committed: Whether the release was stored.
        run_id: Which run asked.
        acted_by: Who charged it, in words.
    """

    seq: int
    recorded_at: str
    cohort: str
    asset: str
    mechanism: str
    guarantee: str
    epsilon_alone: float | None
    epsilon_cumulative: float
    epsilon_guaranteed: float
    delta: float
    epsilon_remaining: float | None
    ex_post_epsilon: float | None
    committed: bool
    run_id: str
    acted_by: str


@dataclass(frozen=True, kw_only=True)
class History:
    """The last charges and the statement of every cohort.

    Attributes:
        lines: The last charges asked for, oldest first.
        omitted: How many earlier charges are not among them.
        cohorts: Statements over all charges, listed or not.
        datasets: What the cohorts of each dataset of several cohorts have spent together.
    """

    lines: tuple[HistoryLine, ...]
    omitted: int
    cohorts: tuple[CohortSpend, ...]
    datasets: tuple[DatasetSpend, ...] = ()


def history(ledger: Ledger, cohort: str | None = None, last: int | None = None) -> History:
    """Replays the whole chain once, as it is read, and tells its last charges.

    Args:
        ledger: Where the entries are.
        cohort: Show this cohort only.
        last: Number of charges to list. Each one listed costs a conversion from ρ to ε.

    Raises:
        LedgerIntegrityError: The chain is broken.
    """
    omitted = 0 if last is None else max(0, ledger.count_charges(cohort) - last)
    book, lines, seen = Book(), dict[str, HistoryLine](), 0
    for entry in ledger.stream():
        book.post(entry)
        if entry.kind != RESERVE:
            if entry.kind == COMMIT and entry.reservation in lines:
                line = lines[entry.reservation]
                bound = entry.ex_post_epsilon
                lines[entry.reservation] = replace(line, committed=True, ex_post_epsilon=bound)
        elif cohort in (None, entry.cohort):
            seen += 1
            if seen > omitted:
                lines[entry.reservation] = _line(entry, book.accounts[entry.cohort])
    accounts = [a for a in book.accounts.values() if cohort in (None, a.cohort)]
    return History(
        lines=tuple(lines.values()),
        omitted=omitted,
        cohorts=tuple(cohort_spend(a.cohort, a) for a in accounts),
        datasets=_shared_datasets(book, accounts),
    )


def _shared_datasets(book: Book, shown: Sequence[CohortAccount]) -> tuple[DatasetSpend, ...]:
    """The datasets of the cohorts that are shown, where they have several cohorts."""
    everybody = book.accounts.values()
    counts = Counter(account.dataset for account in everybody)
    names = sorted({account.dataset for account in shown if counts[account.dataset] > 1})
    return tuple(dataset_spend(name, everybody) for name in names)


_REPEATED = (
    "seq",
    "recorded_at",
    "cohort",
    "asset",
    "mechanism",
    "guarantee",
    "run_id",
    "acted_by",
)


def _line(entry: LedgerEntry, account: CohortAccount) -> HistoryLine:
    spend = cohort_spend(entry.cohort, account)
    alone = None
    if entry.event_json is not None and entry.guarantee != GuaranteeType.SECRET:
        alone = epsilon_alone(entry.event_json, account.opened.delta, spend.accountant)
    return HistoryLine(
        **{name: getattr(entry, name) for name in _REPEATED},
        epsilon_alone=alone,
        epsilon_cumulative=spend.epsilon,
        epsilon_guaranteed=spend.guaranteed_epsilon,
        delta=spend.delta,
        epsilon_remaining=spend.remaining_epsilon,
        ex_post_epsilon=None,
        committed=False,
    )


def to_csv(entries: Sequence[LedgerEntry]) -> str:
    """Every column of every entry, one line each; a cell no spreadsheet takes for a formula."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(LedgerEntry._fields)
    writer.writerows([_inert(value) for value in entry] for entry in entries)
    return text.getvalue()


def _inert(value: object) -> object:
    """Puts a quote before text that a spreadsheet would compute."""
    formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))
    return f"'{value}" if formula else value


def to_json(entries: Sequence[LedgerEntry]) -> str:
    """Every column of every entry, hashes included: a copy can be verified without the database."""
    return json.dumps([entry._asdict() for entry in entries], indent=1, allow_nan=False)
