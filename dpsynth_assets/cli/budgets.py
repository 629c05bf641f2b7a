"""`dpsynth budgets`: the budget of every cohort on one page."""

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from dpsynth_assets.cli.ledger import ledger_if_any
from dpsynth_assets.privacy.directed_rounding import declared, epsilon_down, epsilon_up
from dpsynth_assets.report.budget_page import bar_of, disagreements, rounds_in_words, until
from dpsynth_assets.report.budgets import Budgets

_CAPTION = (
    "rounds: left of those declared; audit: disagreements that the last one found, — for none yet"
)


def budgets(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show ε spent and left of every cohort, and the rounds left.

    Writes the page `budgets.html` beside the audit pages. Exit code 1 if a cohort is overspent, the
    ledger does not verify, or an audit found a disagreement.
    """
    from dpsynth_assets.orchestration.assets.privacy_budgets import PAGE, budgets_now, write_page
    from dpsynth_assets.orchestration.instance import dagster_instance
    from dpsynth_assets.paths import home

    book = ledger_if_any()
    with dagster_instance() as instance:
        told = budgets_now(book, instance)
    write_page(told)
    if as_json:
        typer.echo(json.dumps(told.to_json(), indent=2, ensure_ascii=False))
    else:
        _print(told)
        typer.echo(f"Page: {home().reports / PAGE}")
    problems = told.problems()
    for line in () if as_json else problems:
        Console(stderr=True).print(line, style="red", highlight=False, markup=False, soft_wrap=True)
    if problems:
        raise typer.Exit(1)


def _print(told: Budgets) -> None:
    table = Table(title="Privacy budgets", title_justify="left", caption=_CAPTION)
    table.add_column("cohort", overflow="fold")
    table.add_column("used", no_wrap=True)
    for name in ("ε spent", "of", "ε left"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("rounds", "until", "audit", "last run"):
        table.add_column(name, no_wrap=True)
    for each in told.cohorts:
        table.add_row(
            each.cohort,
            bar_of(each).text(),
            epsilon_up(each.spent),
            declared(each.total),
            epsilon_down(each.left),
            rounds_in_words(each),
            until(each),
            "—" if each.findings is None else disagreements(each),
            each.last_run[:8] or "—",
        )
    console = Console(width=max(100, Console().width), highlight=False)
    console.print(table)
    for each in told.cohorts:
        unit = f"unit: {each.unit}" if each.unit else "unit: —"
        console.print(f"{each.cohort}: {each.guarantee}; {unit}", markup=False, soft_wrap=True)
