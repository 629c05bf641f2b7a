"""`dpsynth budgets`: the budget of every cohort on one page."""

import typer

from dpsynth_assets.cli.ledger import ledger_if_any
from dpsynth_assets.cli.terminal import AsJson, complain, say, show_json, show_table
from dpsynth_assets.privacy.directed_rounding import declared, epsilon_down, epsilon_up
from dpsynth_assets.report.budget_page import bar_of, disagreements, rounds_in_words, until
from dpsynth_assets.report.budgets import Budgets

_CAPTION = (
    "rounds: left of those declared; audit: disagreements that the last one found, — for none yet"
)


def budgets(as_json: AsJson = False) -> None:
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
        show_json(told.to_json())
    else:
        _print(told)
        typer.echo(f"Page: {home().reports / PAGE}")
        complain(*told.problems())
    if told.problems():
        raise typer.Exit(1)


def _print(told: Budgets) -> None:
    numeric = ("ε spent", "of", "ε left")
    columns = ("cohort", "used", *numeric, "rounds", "until", "audit", "last run")
    rows = (
        (
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
        for each in told.cohorts
    )
    title = "Privacy budgets"
    show_table(columns, rows, title=title, caption=_CAPTION, numeric=numeric, wraps=("cohort",))
    for each in told.cohorts:
        say(f"{each.cohort}: {each.guarantee}; unit: {each.unit or '—'}")
