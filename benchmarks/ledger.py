"""Times a ledger of 100,000 entries: `show`, admission decisions, a step's check, verification.

    PYTHONPATH=. python benchmarks/ledger.py [--entries 100000] [--distinct 1000]

The entries are written straight through the store's own chain in one transaction, since 100,000
durable commits would measure the disk. Each timing runs in a fresh `Ledger`, as a new process
would; `second admission` is the cost once the process knows the chain. A step opens the ledger with
this machine's checkpoint, which the first step writes, and charges a release; lines of `a step` are
the check with its write, as a new process pays it.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from dpsynth_assets.privacy.events import GaussianEvent
from dpsynth_assets.privacy.guarantees import GuaranteeType, NeighboringRelation, PrivacyUnit
from dpsynth_assets.privacy.ledger import (
    BudgetTerms,
    Checkpoint,
    Ledger,
    LedgerEntry,
    ReleaseRequest,
)
from dpsynth_assets.privacy.ledger.accounts import Book, commit_entry, reserve_entry
from dpsynth_assets.privacy.ledger.database import TABLE, Database
from dpsynth_assets.privacy.ledger.export import history

TERMS = BudgetTerms(
    epsilon=8.0,
    delta=1e-6,
    accountant="zcdp",
    relation=NeighboringRelation.ADD_REMOVE,
    unit=PrivacyUnit(),
)


def request(number: int, distinct: int) -> ReleaseRequest:
    return ReleaseRequest(
        cohort="tickets",
        dataset="tickets",
        asset="tickets/mean_clustered/corpus",
        mechanism="mean_clustered",
        guarantee=GuaranteeType.DP,
        event=GaussianEvent(noise_multiplier=1000.0 + (number % distinct) / 7),
        parameters={"clip_bound": 10.0, "expected_batch_size": 64, "temperature": 1.5},
        code_version="1",
        data_version="2026-01",
        release=str(number),
        run_id="0123456789abcdef",
    )


def fill(url: str, count: int, distinct: int) -> None:
    book, rows = Book(), []

    def post(entry: LedgerEntry) -> LedgerEntry:
        book.post(entry)
        rows.append(entry._asdict())
        return entry

    for number in range(count // 2):
        reserve = post(reserve_entry(book, request(number, distinct), TERMS, None))
        post(commit_entry(book, reserve, "0" * 64, f"corpora/{number}.parquet", None))
    with Database(url).appending() as appender:
        appender._connection.execute(TABLE.insert(), rows)


def report(what: str, run: Callable[[], object]) -> None:
    wall, processor = time.perf_counter(), time.process_time()
    run()
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    print(f"{what:<38}{wall:8.3f} s wall{processor:8.3f} s processor")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--distinct", type=int, default=1000, help="distinct events")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'ledger.sqlite'}"
        fill(url, arguments.entries, arguments.distinct)
        print(f"{arguments.entries} entries, {arguments.distinct} distinct events")
        report("show (read, replay, last 50 charges)", lambda: history(Ledger(url), last=50))
        report("show, last 1000 charges", lambda: history(Ledger(url), last=1000))
        ledger, wanted = Ledger(url), request(arguments.entries, arguments.distinct)
        report("first admission of a process", lambda: ledger.preview(wanted, TERMS))
        report("second admission", lambda: ledger.preview(wanted, TERMS))
        report("reserve", lambda: ledger.reserve(wanted, TERMS))
        report("verify", ledger.verify)
        steps(url, Path(folder), arguments.entries + 1, arguments.distinct)


def steps(url: str, folder: Path, number: int, distinct: int) -> None:
    """A step without, and steps with, what this machine has verified before."""
    kept = Checkpoint(folder, url)
    report(
        "a step, without checkpoint", lambda: Ledger(url).reserve(request(number, distinct), TERMS)
    )
    report("writing the checkpoint", lambda: Ledger(url, checkpoint=kept).head())
    for place in range(1, 4):
        wanted = request(number + place, distinct)
        report(
            f"a step, with checkpoint ({place})",
            lambda wanted=wanted: Ledger(url, checkpoint=kept).reserve(wanted, TERMS),
        )
    report("verify, with checkpoint compared", Ledger(url, checkpoint=kept).verify)


if __name__ == "__main__":
    main()
