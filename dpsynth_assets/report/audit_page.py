"""The audit trail as one self-contained page: verdict, spends, files, and how to check it."""

from dpsynth_assets.privacy.directed_rounding import rounded_down, rounded_up
from dpsynth_assets.report.audit_trail import AuditTrail
from dpsynth_assets.report.pages import (
    Block,
    Facts,
    Heading,
    Notice,
    Paragraph,
    TableBlock,
    to_html,
)

_SHORT = 12


def audit_page(trail: AuditTrail) -> str:
    """Writes the trail as HTML without scripts, addresses or pictures from elsewhere."""
    title = f"Audit trail of {trail.cohort}"
    blocks: list[Block] = [Heading(title, 1), *_verdict(trail), _facts(trail)]
    blocks += [Heading("Every spend", 2), _spends(trail)]
    blocks += [Heading("What each spend was asked for", 2), _requests(trail)]
    blocks += [Heading("Released files, back to what was charged", 2), _files(trail)]
    if trail.decisions:
        blocks += [Heading("Decisions that read private text", 2), *_decisions(trail)]
    blocks += [Heading("How to check this page", 2), Paragraph(_CHECK)]
    return to_html(title, blocks)


_CHECK = (
    "Run `dpsynth ledger verify --head` with the head above on a copy of the ledger; compare each "
    "file with `sha256sum`; recompute every ε from the events with `dpsynth account`. Cumulative ε "
    "is composed from events and is never a sum of single values."
)


def _verdict(trail: AuditTrail) -> list[Block]:
    if trail.agrees:
        return [Paragraph("Ledger, event log, stored releases and released files agree.")]
    table = TableBlock(
        header=("comparison", "subject", "finding"),
        rows=tuple((f.kind, f.subject, f.message) for f in trail.findings),
        numeric=(False, False, False),
    )
    return [Notice(f"{len(trail.findings)} disagreements were found."), table]


def _facts(trail: AuditTrail) -> Facts:
    items = [
        ("Ledger entries", str(trail.ledger_entries)),
        ("Head of the ledger", trail.ledger_head),
        ("Charges of this cohort", str(len(trail.spends))),
    ]
    if trail.spends:
        last = trail.spends[-1]
        items += [
            ("ε guaranteed", rounded_up(last.epsilon_guaranteed, ".4f")),
            (
                "ε spent so far (odometer reading, a diagnostic)",
                rounded_up(last.epsilon_cumulative, ".4f"),
            ),
            ("ε remaining", rounded_down(last.epsilon_remaining, ".4f")),
            ("δ", rounded_up(last.delta)),
        ]
    return Facts(tuple(items))


def _spends(trail: AuditTrail) -> TableBlock:
    header = ("entry", "when (UTC)", "run", "asset", "release", "mechanism", "guarantee", "state")
    numbers = ("ε alone", "ε so far (reading)", "ε guaranteed", "ε left")
    rows = tuple(
        (
            str(s.seq),
            s.recorded_at[:19],
            s.run_id[:8],
            s.asset,
            s.release,
            s.mechanism,
            s.guarantee,
            s.state,
            rounded_up(s.epsilon_alone, ".4f"),
            rounded_up(s.epsilon_cumulative, ".4f"),
            rounded_up(s.epsilon_guaranteed, ".4f"),
            rounded_down(s.epsilon_remaining, ".4f"),
        )
        for s in trail.spends
    )
    numeric = (True, *([False] * (len(header) - 1)), *([True] * len(numbers)))
    return TableBlock(header=(*header, *numbers), rows=rows, numeric=numeric)


def _requests(trail: AuditTrail) -> TableBlock:
    header = ("entry", "code", "data", "event", "parameters", "stored release", "entry hash")
    rows = tuple(
        (
            str(s.seq),
            s.code_version,
            s.data_version,
            s.event,
            s.parameters,
            s.artifact_digest[:_SHORT],
            s.entry_hash[:_SHORT],
        )
        for s in trail.spends
    )
    return TableBlock(header=header, rows=rows, numeric=(True, *([False] * 6)))


def _decisions(trail: AuditTrail) -> list[Block]:
    header = ("entry", "when (UTC)", "run", "candidate", "check", "number", "outcome", "texts")
    rows = tuple(
        (
            str(d.seq),
            d.recorded_at[:19],
            d.run_id[:8],
            d.asset,
            d.check,
            str(d.count),
            d.outcome,
            d.candidate[:_SHORT],
        )
        for d in trail.decisions
    )
    numeric = (True, False, False, False, False, True, False, False)
    words = "Each is an exact answer about private text, outside of every ε on this page."
    return [Paragraph(words), TableBlock(header=header, rows=rows, numeric=numeric)]


def _files(trail: AuditTrail) -> TableBlock:
    header = ("file", "SHA-256", "materialised by", "run", "charges behind it", "finding")
    rows = tuple(
        (
            f.path,
            f.sha256,
            f.asset,
            f.run_id[:8],
            ", ".join(map(str, f.entries)),
            f.problem or "known",
        )
        for f in trail.files
    )
    return TableBlock(header=header, rows=rows, numeric=(False,) * 6)
