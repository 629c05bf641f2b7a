"""The audit trail of a cohort: every spend, every released file, and whether all records agree.

Realised ex-post bounds and answers of gates that read private text stay in the ledger; the hashes
of its entries seal them, so a trail with such entries is internal, like its ledger.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields

from dpsynth_assets.privacy.ledger import ChargeGraph, Ledger, LedgerEntry
from dpsynth_assets.privacy.ledger.admission import increase
from dpsynth_assets.privacy.ledger.export import ChargeLine, HistoryLine, csv_of, history
from dpsynth_assets.privacy.ledger.schema import APPROVAL, COMMIT

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
