"""The audit trail of a cohort: every spend, every released file, and whether all records agree.

Realised ex-post bounds and answers of gates that read private text stay in the ledger; the hashes
of its entries seal them, so a trail with such entries is internal, like its ledger.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from dpsynth_assets.files.whole import digest_of
from dpsynth_assets.methods.stages import left_by_command
from dpsynth_assets.privacy.ledger import ChargeGraph, Ledger, LedgerEntry
from dpsynth_assets.privacy.ledger.admission import increase
from dpsynth_assets.privacy.ledger.export import ChargeLine, HistoryLine, csv_of, history
from dpsynth_assets.privacy.ledger.schema import APPROVAL, COMMIT, canonical_json
from dpsynth_assets.report.label import seals_private_value

RELEASED_STATE, CHARGED_STATE = "released", "charged only"
NOT_RECORDED = "not recorded"


@dataclass(frozen=True, kw_only=True)
class Spend(ChargeLine):
    """One charge, as an auditor reads it.

    Attributes:
        release: Name of the release.
        parameters: Public parameters, canonical JSON.
        event: What was charged, canonical JSON of the constructor's arguments; empty for ex-post.
        code_version: Version of the mechanism's code.
        data_version: Declared version of the source.
        epsilon_added: What this charge added to the cohort's reading, rounded up.
        reservation: Name of the charge.
        state: `released`, or `charged only` where the run died before its release was stored.
        artifact_digest: SHA-256 of the stored release; empty where there is none.
        entry_hash: Hash of the ledger entry, which seals all earlier ones.
        builds_on: Numbers of the ledger entries of the charges that it was made from.
        launched_by: Who or what launched the run, as far as Dagster still knows; the ledger does
            not seal it.
    """

    release: str
    parameters: str
    event: str
    code_version: str
    data_version: str
    epsilon_added: float
    reservation: str
    state: str
    artifact_digest: str
    entry_hash: str
    builds_on: tuple[int, ...] = ()
    launched_by: str = NOT_RECORDED


@dataclass(frozen=True, kw_only=True)
class FileLineage:
    """One released file and the way back to what was charged for it.

    Attributes:
        path: Below the folder of released files.
        sha256: Of its bytes, now.
        asset: Whose materialisation recorded this hash; empty where none did.
        run_id: Run of that materialisation.
        reservation: Charge of the release the file was written from; empty for a statement.
        entry: Ledger entry that seals it: of the charge, or the last one a statement covers.
        entries: Ledger entries of every charge behind the file, its own included.
        problem: What is wrong; empty where nothing is.
    """

    path: str
    sha256: str
    asset: str = ""
    run_id: str = ""
    reservation: str = ""
    entry: int | None = None
    entries: tuple[int, ...] = ()
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One disagreement between two records of what happened.

    Attributes:
        kind: Which comparison found it (`ledger -> event log`, `released file`, …).
        subject: Asset, file or entry it concerns.
        message: What was expected and what was found.
    """

    kind: str
    subject: str
    message: str


@dataclass(frozen=True, kw_only=True)
class AuditTrail:
    """Everything an auditor asks about one cohort.

    Attributes:
        cohort: Name of the dataset or cohort.
        ledger_entries: Number of entries of the whole ledger.
        ledger_head: Hash of its last entry: a witness to note down elsewhere.
        spends: Charges, oldest first.
        files: Released files.
        acts: Approvals, recoveries and purges, with who did them, oldest first.
        findings: Disagreements; empty where ledger, event log, stores and files agree.
    """

    cohort: str
    ledger_entries: int
    ledger_head: str
    spends: tuple[Spend, ...]
    files: tuple[FileLineage, ...]
    findings: tuple[Finding, ...]
    acts: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        """Says whether nothing disagrees."""
        return not self.findings


def entries_of(entries: Iterable[LedgerEntry], cohort: str) -> list[LedgerEntry]:
    """Entries of one cohort, of every cohort of a dataset, or of a file that shares an account."""
    return [
        entry
        for entry in entries
        # Where an account is shared, the folder of the asset is not that of the cohort.
        if cohort in (entry.cohort, entry.dataset, entry.asset.partition("/")[0])
    ]


def act_in_words(entry: LedgerEntry) -> str:
    """An entry that is no charge: when, what, and who did it."""
    told = {name: value for name, value in entry.parameters.items() if name != "seen" and value}
    if entry.kind == APPROVAL:
        told = {"plan": str(entry.plan_digest)[:12]}
    words = ", ".join(f"{name} {value}" for name, value in told.items())
    what = f"{entry.kind} ({words})" if words else entry.kind
    return f"Entry {entry.seq}, {entry.recorded_at[:16]}: {what} by {entry.acted_by}"


_OF_LINE = [each.name for each in fields(ChargeLine)]
_OF_ENTRY = ("release", "code_version", "data_version", "reservation")
"""Fields of a spend that are those of its line in the history, and of its entry."""


def spends_of(ledger: Ledger, entries: Sequence[LedgerEntry]) -> tuple[Spend, ...]:
    """Tells every charge among `entries` with what it left of the budget.

    Args:
        ledger: Where the entries come from; it is replayed once a cohort.
        entries: Charges and commits of some cohorts, in order.

    Raises:
        LedgerIntegrityError: The chain is broken.
    """
    graph = ChargeGraph(entries)
    places = {name: charge.seq for name, charge in graph.charges.items()}
    stored = {e.reservation: e.artifact_digest or "" for e in entries if e.kind == COMMIT}
    lines: dict[int, HistoryLine] = {}
    added: dict[int, float] = {}
    for cohort in sorted({entry.cohort for entry in graph.charges.values()}):
        before = 0.0
        for line in history(ledger, cohort).lines:
            lines[line.seq] = line
            added[line.seq] = increase(before, line.epsilon_cumulative)
            before = line.epsilon_cumulative
    return tuple(
        Spend(
            **{name: getattr(entry, name) for name in _OF_ENTRY},
            **{name: getattr(lines[entry.seq], name) for name in _OF_LINE},
            parameters=entry.parameters_json or "{}",
            event=entry.event_json or "",
            epsilon_added=added[entry.seq],
            state=RELEASED_STATE if entry.reservation in stored else CHARGED_STATE,
            artifact_digest=stored.get(entry.reservation, ""),
            entry_hash=entry.hash,
            builds_on=tuple(
                sorted(places[name] for name in places.keys() & graph.reads(entry.reservation))
            ),
        )
        for entry in graph.charges.values()
    )


def to_csv(trail: AuditTrail) -> str:
    """The spends as CSV."""
    names = [field.name for field in fields(Spend)]
    return csv_of(names, ([getattr(spend, name) for name in names] for spend in trail.spends))


def to_json(trail: AuditTrail) -> str:
    """The whole trail as JSON."""
    values = {**asdict(trail), "agrees": trail.agrees}
    return json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False)


# Compares what the ledger, the event log, the stored releases and the released files say.
#
# Dagster's event log is a display copy: assets are wiped, runs deleted, and anybody with access may
# report a materialisation that never was. So both directions are compared, and where they differ
# the ledger is right.


TO_EVENT_LOG, TO_LEDGER = "ledger -> event log", "event log -> ledger"
STORE, FILE, CHAIN = "stored release", "released file", "ledger chain"


@dataclass(frozen=True, kw_only=True)
class Materialised:
    """Claims of one materialisation in the event log.

    Attributes:
        asset: Asset key, parts joined by `/`.
        run_id: Its run; empty for an event that was reported without one.
        storage_id: Its place in the event log; a later one is newer.
        reservation: Charge it names; None where it names none.
        event: Accounting event it shows; None where it shows none.
        guarantee: Guarantee it shows; None where it shows none.
        epsilon: ε it shows; None where it shows none.
        ledger_head: Hash of the last ledger entry it covers, for a statement that may show it.
        ledger_entries: Number of the last ledger entry it covers, for a statement; None otherwise.
        files: File below the released folder -> SHA-256.
    """

    asset: str
    run_id: str
    storage_id: int
    reservation: str | None = None
    event: Mapping[str, Any] | None = None
    guarantee: str | None = None
    epsilon: float | None = None
    ledger_head: str | None = None
    ledger_entries: int | None = None
    files: Mapping[str, str] = field(default_factory=dict)


def file_digests(place: Path, below: Path) -> dict[str, str]:
    """SHA-256 of a file, or of every file of a folder, by its path below another folder."""
    paths = sorted(path for path in [place, *place.rglob("*")] if path.is_file())
    return {path.relative_to(below).as_posix(): digest_of(path) for path in paths}


def unmaterialised(spends: Sequence[Spend], events: Sequence[Materialised]) -> list[Finding]:
    """Ledger -> event log: released charges that no materialisation names.

    A charge without a release is no finding: its run died, and it stays charged. Nor is a line that
    a command wrote and that cost nothing: no asset stands for it.
    """
    shown = {event.reservation for event in events}
    return [
        Finding(
            kind=TO_EVENT_LOG,
            subject=spend.asset,
            message=(
                f"Expected a materialisation that names ledger entry {spend.seq}, got none: it was "
                "wiped, or its run was killed after the commit. Materialise the asset again, which "
                "is free."
            ),
        )
        for spend in spends
        if spend.state == RELEASED_STATE
        and spend.reservation not in shown
        and not (left_by_command(spend.asset) and spend.epsilon_alone == 0)
    ]


def unaccounted(
    entries: Iterable[LedgerEntry], spends: Sequence[Spend], events: Sequence[Materialised]
) -> list[Finding]:
    """Event log -> ledger: materialisations whose claims the ledger does not bear out."""
    charges = ChargeGraph(entries).charges
    alone = {spend.reservation: spend.epsilon_alone for spend in spends}
    latest = {event.asset: event for event in sorted(events, key=lambda e: e.storage_id)}
    findings = []
    for event in events:
        message = _false_claim(event, charges, alone, latest[event.asset])
        if message is not None:
            findings.append(Finding(kind=TO_LEDGER, subject=event.asset, message=message))
    return findings


def _false_claim(
    event: Materialised,
    charges: Mapping[str, LedgerEntry],
    alone: Mapping[str, float | None],
    latest: Materialised,
) -> str | None:
    """Says what a materialisation claims that its charge does not say; of old ones, no omission."""
    who = f"run {event.run_id[:8] or 'unknown'}"
    if event.reservation is None:
        if event.epsilon is None or event is not latest:
            return None
        again = "Materialise the asset again, which is free."
        return f"{who} shows an ε but names no charge. {again}"
    charge = charges.get(event.reservation)
    if charge is None:
        return f"{who} names a charge that is not in the ledger."
    if charge.asset.split("/")[:2] != event.asset.split("/")[:2]:
        return f"{who} names ledger entry {charge.seq}, which is a charge of {charge.asset}."
    shown = None if event.event is None else canonical_json(dict(event.event))
    if shown not in (None, charge.event_json):
        return f"{who} shows an accounting event different from ledger entry {charge.seq}."
    if event.guarantee is not None and event.guarantee != charge.guarantee:
        return (
            f"{who} shows the guarantee {event.guarantee!r}, ledger entry {charge.seq} says "
            f"{charge.guarantee!r}."
        )
    least = alone.get(event.reservation)
    if event.epsilon is not None and least is not None and event.epsilon < least * (1 - 1e-6):
        return f"{who} shows a smaller ε than ledger entry {charge.seq} costs alone."
    return None


def file_lineage(
    released: Path,
    cohorts: Sequence[str],
    entries: Sequence[LedgerEntry],
    events: Sequence[Materialised],
) -> tuple[FileLineage, ...]:
    """Follows every released file to its materialisation, its charge, and all charges behind it.

    Args:
        released: Folder of all released files.
        cohorts: Names of the cohorts, whose folders are searched.
        entries: All ledger entries.
        events: Materialisations of the cohorts.
    """
    known = {
        (path, digest): event
        for event in sorted(events, key=lambda event: event.storage_id)
        for path, digest in event.files.items()
    }
    graph = ChargeGraph(entries)
    heads = {entry.hash: entry.seq for entry in entries}
    sealing = [entry.seq for entry in entries if seals_private_value(entry)]
    # A statement names the number of an entry whose hash it withholds.
    withheld = {entry.seq for entry in entries if sealing and entry.seq >= sealing[0]}
    digests: dict[str, str] = {}
    for cohort in cohorts:
        digests |= file_digests(released / cohort, released)
    return tuple(
        _lineage(path, digest, known.get((path, digest)), graph, (heads, withheld))
        for path, digest in digests.items()
    )


def _lineage(
    path: str,
    digest: str,
    event: Materialised | None,
    graph: ChargeGraph,
    seals: tuple[Mapping[str, int], set[int]],
) -> FileLineage:
    if event is None:
        problem = (
            "unknown hash: no materialisation wrote this file as it is. Publish again, or remove it"
        )
        return FileLineage(path=path, sha256=digest, problem=problem)
    charge = graph.charges.get(event.reservation or "")
    heads, withheld = seals
    covered = heads.get(event.ledger_head or "")
    if covered is None and event.ledger_entries in withheld:
        covered = event.ledger_entries
    if charge is not None:
        behind = graph.charges_behind(charge.reservation)
    else:
        behind = [each for each in graph.charges.values() if each.seq <= (covered or 0)]
    return FileLineage(
        path=path,
        sha256=digest,
        asset=event.asset,
        run_id=event.run_id,
        reservation=event.reservation or "",
        entry=charge.seq if charge is not None else covered,
        entries=tuple(sorted(each.seq for each in behind)),
        problem="" if charge is not None or covered is not None else "no ledger entry records it",
    )


def file_findings(files: Iterable[FileLineage]) -> list[Finding]:
    """Released files that cannot be followed back."""
    return [Finding(kind=FILE, subject=f.path, message=f.problem) for f in files if f.problem]
