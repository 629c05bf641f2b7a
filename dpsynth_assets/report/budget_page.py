"""All budgets of an installation as one table: a page, Markdown for the web UI, lines of text."""

from dpsynth_assets.privacy.directed_rounding import declared, epsilon_down, epsilon_up, rounded_up
from dpsynth_assets.report.budgets import Budgets, CohortBudget, fewest_left_first
from dpsynth_assets.report.pages import (
    Bar,
    Block,
    Cell,
    Facts,
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

_HEADER = (
    "cohort", "used", "ε spent", "of", "ε left", "ε guaranteed", "δ", "rounds left", "until",
    "guarantee", "privacy unit", "disagreements", "last run", "last charge (UTC)",
)  # fmt: skip
_NUMERIC = frozenset({"ε spent", "of", "ε left", "ε guaranteed", "δ"})
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
    blocks += [_tiles(budgets), Heading("Every cohort", 2), _table(budgets), Paragraph(_NOTE)]
    blocks += [Facts((("Head of the ledger", budgets.ledger_head),))]
    return to_html(title, blocks)


def budget_table(budgets: Budgets) -> str:
    """The table as Markdown, with links into the web UI."""
    return to_markdown([_table(budgets), Paragraph(_NOTE)]) if budgets.cohorts else "No cohort."


def budget_lines(budgets: Budgets) -> dict[str, str]:
    """Cohort -> its budget in one line, of those with the least left."""
    shown = fewest_left_first(budgets.cohorts)[:LEAST]
    return {each.cohort: f"{bar_of(each).text()} {_line(each)}" for each in shown}


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
        return "less than a round is left" if left else "used up"
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


def _table(budgets: Budgets) -> TableBlock:
    return TableBlock(
        header=_HEADER,
        rows=tuple(_row(each) for each in budgets.cohorts),
        numeric=tuple(name in _NUMERIC for name in _HEADER),
        caption="Budgets by cohort",
    )


def _row(each: CohortBudget) -> tuple[Cell, ...]:
    return (
        Link(each.cohort, asset_address(each.cohort)),
        bar_of(each),
        epsilon_up(each.spent),
        declared(each.total),
        epsilon_down(each.left),
        epsilon_up(each.guaranteed),
        rounded_up(each.delta),
        rounds_in_words(each),
        until(each),
        f"{each.guarantee}; nothing published" if each.paid_for_nothing else each.guarantee,
        each.unit or "—",
        Link(disagreements(each), asset_address(f"{each.cohort}/audit/audit_trail")),
        Link(each.last_run[:8], f"/runs/{each.last_run}") if each.last_run else "—",
        each.last_charge or "never",
    )
