"""The audit trail as one self-contained page, and its spends as Markdown with links."""

import json
from collections.abc import Callable, Mapping

from dpsynth_assets.privacy.directed_rounding import declared, epsilon_down, epsilon_up, rounded_up
from dpsynth_assets.privacy.ledger.schema import short_actor
from dpsynth_assets.report.audit_trail import RELEASED_STATE, AuditTrail, FileLineage, Spend
from dpsynth_assets.report.budgets import Budgets, CohortBudget, fewest_left_first
from dpsynth_assets.report.pages import (
    Bar,
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
    leaves,
    table_of,
    to_html,
    to_markdown,
)

_SHORT = 12
_CHECK = (
    "Run `dpsynth ledger verify --head` with the head above on a copy of the ledger, whose URL is "
    "DPSYNTH_LEDGER_URL; compare each file with `sha256sum`; read events with "
    "`privacy.events.event_from_json` and compute the ε of each with "
    "`privacy.accounting.epsilon_of_fixed`, of all together with `epsilon_of`. "
    "Cumulative ε is composed from events and is never a sum of single values. What is spent is "
    "rounded up on this page and what is left rounded down; the CSV and JSON beside it hold all "
    "digits."
)


def audit_page(trail: AuditTrail) -> str:
    """Writes the trail as HTML without addresses or pictures from elsewhere."""
    title = f"Audit trail of {trail.cohort}"
    blocks: list[Block] = [Heading(title, 1), *_verdict(trail), _summary(trail)]
    blocks += [Facts((("Head of the ledger", trail.ledger_head),))]
    blocks += [Heading("Every spend", 2), spend_block(trail)]
    blocks += map(Paragraph, trail.acts)
    blocks += [Heading("Parameters of every spend", 2), _requests(trail)]
    blocks += [Heading("Released files and their charges", 2), *_files(trail)]
    blocks += [Heading("How to check this page", 2), Paragraph(_CHECK)]
    return to_html(title, blocks)


def _verdict(trail: AuditTrail) -> list[Block]:
    if trail.agrees:
        return [Paragraph("Ledger, event log, stored releases and released files agree.")]
    table = table_of(
        trail.findings,
        {
            "comparison": lambda finding: finding.kind,
            "subject": lambda finding: finding.subject,
            "finding": lambda finding: finding.message,
        },
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
        reading = "odometer reading, no guarantee"
        tiles += [
            Tile("ε guaranteed", epsilon_up(last.epsilon_guaranteed), of_delta),
            Tile("ε spent so far", epsilon_up(last.epsilon_cumulative), reading),
            Tile("ε left", epsilon_down(last.epsilon_remaining), last.cohort),
        ]
    return Tiles(tuple(tiles))


def _requests(trail: AuditTrail) -> TableBlock:
    columns: dict[str, Callable[[Spend], Cell]] = {
        "entry": lambda spend: str(spend.seq),
        "mechanism": lambda spend: spend.mechanism,
        "parameters": lambda spend: _folded("parameters", spend.parameters),
        "event": lambda spend: _folded(_event_name(spend), spend.event),
        "code": lambda spend: spend.code_version,
        "data": lambda spend: spend.data_version,
        "stored release": lambda spend: spend.artifact_digest[:_SHORT],
        "entry hash": lambda spend: spend.entry_hash[:_SHORT],
    }
    caption = "Parameters, events and versions by charge"
    return table_of(trail.spends, columns, caption=caption, numeric={"entry"})


def _event_name(spend: Spend) -> str:
    return str(json.loads(spend.event).get("type", "event")) if spend.event else "none"


def _folded(name: str, canonical: str) -> Cell:
    """Puts canonical JSON behind a fold, one value a line."""
    values = json.loads(canonical) if canonical else None
    if not isinstance(values, dict):
        return canonical or "—"
    lines = ((".".join(names), value) for names, value in leaves(values))
    told = tuple((n, v if isinstance(v, str) else json.dumps(v)) for n, v in lines)
    return FoldedFacts(f"{name} ({len(values)})", told)


def _files(trail: AuditTrail) -> list[Block]:
    columns: dict[str, Callable[[FileLineage], Cell]] = {
        "file": lambda file: file.path,
        "charges behind it": lambda file: ", ".join(map(str, file.entries)),
        "finding": lambda file: file.problem or "known",
        "materialised by": lambda file: file.asset,
        "run": lambda file: file.run_id[:8],
        "SHA-256": lambda file: file.sha256,
    }
    found = sum(bool(f.problem) for f in trail.files)
    told = (
        f"{found} of {len(trail.files)} files have a finding."
        if found
        else f"The charges behind all {len(trail.files)} files are known."
    )
    table = table_of(trail.files, columns, caption="Released files with their charges")
    return [*([Paragraph(told)] if trail.files else []), table]


LEVELS = (
    "Levels: **public** holds nothing of any private record; **sensitive** is for the steward's "
    "machine alone; **internal** was computed from private text without noise, and is for the "
    "steward; **released** carries the guarantee written next to it, and may be read by "
    "the people it is given to."
)
"""The privacy levels of assets, in one sentence each."""

EXPLAINED = (
    "**ε alone** is the best bound of a release by itself. **ε added** is how much it raises the "
    "total so far, which the accountant composes from all charges; of a fixed plan the first adds "
    "a whole round. A small release may add more than its ε alone, since its own best bound does "
    "not compose; many releases together cost less than the sum of their ε alone. The privacy "
    "statement gives the guarantee of all together; a corpus's card that of the corpus, inputs "
    "included.\n\n**who may read** names the level. A charge that stored nothing is never given "
    "back: private records may have been read under it. **builds on** names the charges behind a "
    "release by their entry in the ledger; ε of a corpus includes theirs. Releases and runs are "
    "links.\n\n"
)
"""Below the spend table: long enough, too, that the web UI folds the table away at any length and
opens it in a window of its own, where its columns have room."""

SPENDS: Mapping[str, Callable[[Spend], Cell]] = {
    "entry": lambda spend: str(spend.seq),
    "release": lambda spend: Link(f"{spend.asset} ({spend.release})", asset_address(spend.asset)),
    "mechanism": lambda spend: spend.mechanism,
    "ε alone": lambda spend: epsilon_up(spend.epsilon_alone),
    "ε added to the total": lambda spend: epsilon_up(spend.epsilon_added),
    "total so far": lambda spend: epsilon_up(spend.epsilon_cumulative),
    "ε guaranteed": lambda spend: epsilon_up(spend.epsilon_guaranteed),
    "ε left": lambda spend: epsilon_down(spend.epsilon_remaining),
    "run": lambda spend: _run_link(spend.run_id),
    "charged by": lambda spend: short_actor(spend.acted_by),
    "launched by": lambda spend: spend.launched_by,
    "who may read": lambda spend: (
        f"released ({spend.guarantee})"
        if spend.state == RELEASED_STATE
        else "no reader: charged, but nothing was stored"
    ),
    "builds on": lambda spend: (
        ", ".join(f"entry {seq}" for seq in spend.builds_on) or "no other charge"
    ),
    "when (UTC)": lambda spend: spend.recorded_at[:16].replace("T", " "),
}
_NUMBERS = {
    "entry", "ε alone", "ε added to the total", "total so far", "ε guaranteed", "ε left",
}  # fmt: skip


def spend_table(trail: AuditTrail) -> str:
    """Every charge as Markdown, with what its columns mean."""
    if not trail.spends:
        return "Nothing was charged yet."
    blocks: list[Block] = [spend_block(trail), *map(Paragraph, trail.acts)]
    return f"{to_markdown(blocks)}\n\n{EXPLAINED}{LEVELS}"


def spend_block(trail: AuditTrail) -> TableBlock:
    """Every charge with its ε, its run, who launched it, who may read it and its inputs."""
    return table_of(trail.spends, SPENDS, caption="Charges, oldest first", numeric=_NUMBERS)


def _run_link(run: str) -> Cell:
    return Link(run[:8], f"/runs/{run}") if run else "—"


# All budgets of an installation as one table: a page, Markdown for the web UI, lines of text.

_NOTE = (
    "What is spent is rounded up and what is left rounded down; what is spent is the reading of an "
    "odometer, and what is guaranteed is next to it. Rounds left are whole rounds that the "
    "ledger would still admit, and `until` is the month of the last of them if every tick of the "
    "declared schedule runs."
)
NEARLY_ALL = 0.95
"""Share of a budget from which on it is used up where no round of it is left."""
LEAST = 20
"""Cohorts that are told in a line of their own, those with the least left first."""


def budget_page(budgets: Budgets) -> str:
    """Writes the budgets as HTML without addresses or pictures from elsewhere."""
    title = "Privacy budgets"
    problems = budgets.problems()
    blocks: list[Block] = [Heading(title, 1)]
    blocks += [Notice(problem) for problem in problems] or [
        Paragraph("No budget is overspent, the ledger verifies, and no audit found a disagreement.")
    ]
    blocks += [
        _tiles(budgets),
        Heading("Every cohort", 2),
        _budget_table(budgets),
        Paragraph(_NOTE),
    ]
    blocks += [Facts((("Head of the ledger", budgets.ledger_head),))]
    return to_html(title, blocks)


def budget_table(budgets: Budgets) -> str:
    """The table as Markdown, with links into the web UI."""
    return (
        to_markdown([_budget_table(budgets), Paragraph(_NOTE)]) if budgets.cohorts else "No cohort."
    )


def budget_lines(budgets: Budgets) -> dict[str, str]:
    """Cohort -> its budget in one line, of those with the least left."""
    shown = fewest_left_first(budgets.cohorts)[:LEAST]
    return {each.cohort: f"{bar_of(each)} {_line(each)}" for each in shown}


def bar_of(cohort: CohortBudget) -> Bar:
    """The spent part of a budget."""
    return Bar(cohort.share, cohort.in_words)


def rounds_in_words(cohort: CohortBudget) -> str:
    """Rounds left of those declared; a dash where the file or its cost does not tell."""
    if cohort.rounds is None or cohort.rounds_left is None:
        return "—"
    return f"{cohort.rounds_left} of {cohort.rounds}"


def until(cohort: CohortBudget) -> str:
    """Month in which the rounds run out, or why none is told."""
    if cohort.rounds_left == 0:
        left = cohort.left is not None and cohort.share < NEARLY_ALL
        return "less than one round is left" if left else "used up"
    return cohort.ends or ("no schedule" if not cohort.schedule else "—")


def disagreements(cohort: CohortBudget) -> str:
    """Number of disagreements of the last audit."""
    return "not audited yet" if cohort.findings is None else str(cohort.findings)


def _line(cohort: CohortBudget) -> str:
    rounds = rounds_in_words(cohort)
    told = cohort.in_words if rounds == "—" else f"{cohort.in_words}; rounds left: {rounds}"
    told = f"{told}, until {cohort.ends}" if cohort.ends else told
    return f"{told}; nothing published" if cohort.paid_for_nothing else told


def _tiles(budgets: Budgets) -> Tiles:
    over = sum(each.overspent for each in budgets.cohorts)
    findings = sum(each.findings or 0 for each in budgets.cohorts)
    unaudited = sum(each.findings is None for each in budgets.cohorts)
    entries = f"{budgets.ledger_entries} entries"
    chain = "verifies" if not budgets.chain_problems else "NOT VALID"
    return Tiles(
        (
            Tile("Cohorts", str(len(budgets.cohorts))),
            Tile("Overspent", str(over)),
            Tile("Disagreements", str(findings), f"{unaudited} cohorts not audited yet"),
            Tile("Ledger", chain, entries),
        )
    )


BUDGETS: Mapping[str, Callable[[CohortBudget], Cell]] = {
    "cohort": lambda each: Link(each.cohort, asset_address(each.cohort)),
    "used": bar_of,
    "ε spent": lambda each: epsilon_up(each.spent),
    "of": lambda each: declared(each.total),
    "ε left": lambda each: epsilon_down(each.left),
    "ε guaranteed": lambda each: epsilon_up(each.guaranteed),
    "δ": lambda each: rounded_up(each.delta),
    "rounds left": rounds_in_words,
    "until": until,
    "guarantee": lambda each: (
        f"{each.guarantee}; nothing published" if each.paid_for_nothing else each.guarantee
    ),
    "privacy unit": lambda each: each.unit or "—",
    "disagreements": lambda each: Link(
        disagreements(each), asset_address(f"{each.cohort}/audit/audit_trail")
    ),
    "last run": lambda each: _run_link(each.last_run),
    "last charge (UTC)": lambda each: each.last_charge or "never",
}


def _budget_table(budgets: Budgets) -> TableBlock:
    numbers = {"ε spent", "of", "ε left", "ε guaranteed", "δ"}
    return table_of(budgets.cohorts, BUDGETS, caption="Budgets by cohort", numeric=numbers)
