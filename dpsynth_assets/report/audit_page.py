"""The audit trail as one self-contained page, and its spends as Markdown with links."""

import json
from typing import Any
from urllib.parse import quote

from dpsynth_assets.privacy.directed_rounding import epsilon_down, epsilon_up, rounded_up
from dpsynth_assets.report.audit_trail import RELEASED_STATE, AuditTrail, Spend
from dpsynth_assets.report.cells import left_in_words
from dpsynth_assets.report.pages import (
    Block,
    Cell,
    Facts,
    FoldedFacts,
    Heading,
    Link,
    Notice,
    Paragraph,
    TableBlock,
    Tile,
    Tiles,
    asset_address,
    to_html,
    to_markdown,
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


LEVELS = (
    "Levels: **public** holds nothing of any private record; **sensitive** is for the steward's "
    "machine alone; **internal** was computed from private text without noise, and is for the "
    "steward; **released** carries the guarantee written next to it, and may be read by "
    "the people it is given to."
)
"""The privacy levels of assets, in one sentence each."""

EXPLAINED = (
    "**ε alone** is the best bound of a release by itself. **ε added** is by how much it raises "
    "the total so far, which the accountant of the budget composes of all charges. In it a first "
    "or small release may add more than ε alone, as its own best bound does not compose; many "
    "releases together cost less than the sum of their ε alone. What is guaranteed of all of them "
    "stands in the privacy statement; what is guaranteed of one corpus, on its card.\n\n"
    "**who may read** names the level. A charge that stored nothing is never given back: private "
    "records may have been read under it. **builds on** names the charges behind a release by "
    "their entry in the ledger; ε of a corpus includes theirs. Releases and runs are links.\n\n"
)
"""Below the spend table: long enough, too, that the web UI folds the table away at any length and
opens it in a window of its own, where its columns have room."""

_HEADER = (
    "entry", "release", "mechanism", "ε alone", "ε added to the total", "total so far",
    "ε guaranteed", "ε left", "run", "launched by", "who may read", "builds on", "when (UTC)",
)  # fmt: skip


def spend_table(trail: AuditTrail) -> str:
    """Every charge as Markdown, with what its columns mean."""
    if not trail.spends:
        return "Nothing was charged yet."
    return f"{to_markdown([spend_block(trail)])}\n\n{EXPLAINED}{LEVELS}"


def spend_block(trail: AuditTrail) -> TableBlock:
    """Every charge with its ε, its run, who launched it, who may read it and its inputs."""
    numeric = tuple(name == "entry" or name.startswith(("ε", "total")) for name in _HEADER)
    rows = tuple(map(_row, trail.spends))
    return TableBlock(_HEADER, rows, numeric, caption="Charges, oldest first")


def _row(spend: Spend) -> tuple[Cell, ...]:
    released = spend.state == RELEASED_STATE
    return (
        str(spend.seq),
        Link(f"{spend.asset} ({spend.release})", asset_address(spend.asset)),
        spend.mechanism,
        epsilon_up(spend.epsilon_alone),
        epsilon_up(spend.epsilon_added),
        epsilon_up(spend.epsilon_cumulative),
        epsilon_up(spend.epsilon_guaranteed),
        epsilon_down(spend.epsilon_remaining),
        Link(spend.run_id[:8], f"/runs/{spend.run_id}") if spend.run_id else "—",
        spend.launched_by,
        f"released ({spend.guarantee})" if released else "no reader: charged, nothing stored",
        ", ".join(f"entry {seq}" for seq in spend.builds_on) or "no other charge",
        spend.recorded_at[:16].replace("T", " "),
    )


def spent_in_words(trail: AuditTrail) -> str:
    """What was spent and what is left, a line for each account that paid."""
    last = {spend.cohort: spend for spend in trail.spends}
    return (
        "; ".join(
            f"{cohort}: ε = {epsilon_up(spend.epsilon_cumulative)} spent, "
            f"{left_in_words(spend.epsilon_remaining)}, guaranteed: ε = "
            f"{epsilon_up(spend.epsilon_guaranteed)}"
            for cohort, spend in sorted(last.items())
        )
        or "Nothing was charged yet."
    )


def corpora_links(trail: AuditTrail) -> str:
    """Links to the assets that wrote released files."""
    assets = sorted({file.asset for file in trail.files if file.asset})
    links = ", ".join(f"[{asset}]({quote(asset_address(asset), safe='/?=&')})" for asset in assets)
    return links or "Nothing was published."
