"""The ledger as a running history, and tables as CSV."""

import csv
import io
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace

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
class ChargeLine:
    """One charge and where it left its cohort.

    Attributes:
        seq: Number of the entry.
        recorded_at: When it was charged, UTC.
        run_id: Run that asked.
        cohort: Who paid.
        asset: What it was for.
        mechanism: By which mechanism.
        guarantee: What the release promises.
        acted_by: Who charged it, in words: a public key that signed it, or an account that did not.
        epsilon_alone: ε of this release on its own; None where it has no event.
        epsilon_cumulative: ε of the cohort with this charge, composed, never a sum of single ε; the
            reading of an odometer.
        epsilon_guaranteed: ε that is guaranteed of the cohort with this charge.
        epsilon_remaining: What the terms in force left after it.
        delta: δ that goes with them: the cohort's, twice that after a switch of accountants.
    """

    seq: int
    recorded_at: str
    run_id: str
    cohort: str
    asset: str
    mechanism: str
    guarantee: str
    acted_by: str
    epsilon_alone: float | None
    epsilon_cumulative: float
    epsilon_guaranteed: float
    epsilon_remaining: float | None
    delta: float


@dataclass(frozen=True, kw_only=True)
class HistoryLine(ChargeLine):
    """A charge with what came of it.

    Attributes:
        ex_post_epsilon: Realised bound, kept apart. Depends on private data: internal use only.
        committed: Whether the release was stored.
    """

    ex_post_epsilon: float | None = None
    committed: bool = False


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


_REPEATED = [each.name for each in fields(ChargeLine) if hasattr(LedgerEntry, each.name)]
"""What a line repeats of its entry."""


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
    )


def csv_of(header: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """Lines of a table as CSV; a cell that a spreadsheet would compute begins with a quote."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(map(_inert, row) for row in rows)
    return text.getvalue()


def _inert(value: object) -> object:
    """Neutralises what spreadsheets execute: `=`, `+`, `-`, `@` or a control character first."""
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))
    return f"'{value}" if formula else value
