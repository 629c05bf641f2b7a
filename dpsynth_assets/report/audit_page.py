"""The audit trail as one self-contained page: verdict, spends, files, and how to check it."""

import json
from typing import Any

from dpsynth_assets.privacy.directed_rounding import epsilon_down, epsilon_up, rounded_up
from dpsynth_assets.report.audit_table import spend_block
from dpsynth_assets.report.audit_trail import AuditTrail, Spend
from dpsynth_assets.report.pages import (
    Block,
    Cell,
    Facts,
    FoldedFacts,
    Heading,
    Notice,
    Paragraph,
    TableBlock,
    Tile,
    Tiles,
    to_html,
)

_SHORT = 12
_CHECK = (
    "Run `dpsynth ledger verify --head` with the head above on a copy of the ledger; compare each "
    "file with `sha256sum`; recompute every ε from the events with `dpsynth account`. Cumulative ε "
    "is composed from events and is never a sum of single values. What is spent is rounded up on "
    "this page and what is left rounded down; the CSV and JSON beside it hold all digits."
)


def audit_page(trail: AuditTrail) -> str:
    """Writes the trail as HTML without addresses or pictures from elsewhere."""
    title = f"Audit trail of {trail.cohort}"
    blocks: list[Block] = [Heading(title, 1), *_verdict(trail), _summary(trail)]
    blocks += [Facts((("Head of the ledger", trail.ledger_head),))]
    blocks += [Heading("Every spend", 2), spend_block(trail)]
    blocks += [Heading("What each spend was asked for", 2), _requests(trail)]
    blocks += [Heading("Released files, back to what was charged", 2), *_files(trail)]
    blocks += [Heading("How to check this page", 2), Paragraph(_CHECK)]
    return to_html(title, blocks)


def _verdict(trail: AuditTrail) -> list[Block]:
    if trail.agrees:
        return [Paragraph("Ledger, event log, stored releases and released files agree.")]
    table = TableBlock(
        header=("comparison", "subject", "finding"),
        rows=tuple((f.kind, f.subject, f.message) for f in trail.findings),
        numeric=(False, False, False),
        caption="Disagreements between the records",
    )
    return [Notice(f"{len(trail.findings)} disagreements were found."), table]


def _summary(trail: AuditTrail) -> Tiles:
    tiles = [
        Tile("Records", "agree" if trail.agrees else "disagree", f"{len(trail.findings)} findings"),
        Tile(
            "Charges of this cohort", str(len(trail.spends)), f"of {trail.ledger_entries} entries"
        ),
        Tile("Released files", str(len(trail.files))),
    ]
    for last in {spend.cohort: spend for spend in trail.spends}.values():
        of_delta = f"δ = {rounded_up(last.delta)}, {last.cohort}"
        reading = "reading of the odometer, a diagnostic"
        tiles += [
            Tile("ε guaranteed", epsilon_up(last.epsilon_guaranteed), of_delta),
            Tile("ε spent so far", epsilon_up(last.epsilon_cumulative), reading),
            Tile("ε left", epsilon_down(last.epsilon_remaining), last.cohort),
        ]
    return Tiles(tuple(tiles))


def _requests(trail: AuditTrail) -> TableBlock:
    header = ("entry", "mechanism", "parameters", "event", "code", "data", "stored release",
              "entry hash")  # fmt: skip
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            str(s.seq),
            s.mechanism,
            _folded("parameters", s.parameters),
            _folded(_event_name(s), s.event),
            s.code_version,
            s.data_version,
            s.artifact_digest[:_SHORT],
            s.entry_hash[:_SHORT],
        )
        for s in trail.spends
    )
    numeric = (True, *([False] * (len(header) - 1)))
    return TableBlock(header, rows, numeric, caption="Parameters, events and versions by charge")


def _event_name(spend: Spend) -> str:
    return str(json.loads(spend.event).get("type", "event")) if spend.event else "none"


def _folded(name: str, canonical: str) -> Cell:
    """Puts canonical JSON behind a fold, one value a line."""
    values = json.loads(canonical) if canonical else None
    if not isinstance(values, dict):
        return canonical or "—"
    return FoldedFacts(f"{name} ({len(values)})", tuple(_lines(values)))


def _lines(values: dict[str, Any], before: str = "") -> list[tuple[str, str]]:
    lines = []
    for name, value in values.items():
        if isinstance(value, dict) and value:
            lines += _lines(value, f"{before}{name}.")
        else:
            lines.append(
                (f"{before}{name}", value if isinstance(value, str) else json.dumps(value))
            )
    return lines


def _files(trail: AuditTrail) -> list[Block]:
    header = ("file", "charges behind it", "finding", "materialised by", "run", "SHA-256")
    rows = tuple(
        (
            f.path,
            ", ".join(map(str, f.entries)),
            f.problem or "known",
            f.asset,
            f.run_id[:8],
            f.sha256,
        )
        for f in trail.files
    )
    found = sum(bool(f.problem) for f in trail.files)
    told = (
        f"{found} of {len(trail.files)} files have a finding."
        if found
        else f"The charges behind all {len(trail.files)} files are known."
    )
    table = TableBlock(header, rows, (False,) * 6, caption="Released files with their charges")
    return [*([Paragraph(told)] if trail.files else []), table]
