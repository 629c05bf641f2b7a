"""What is spent and left: `dpsynth budgets`, and `dpsynth` without a command."""

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from dpsynth_assets.cli.terminal import AsJson, answer, complain, say, show_table
from dpsynth_assets.datasets import PrivateDatasetSpec, dataset_folders, standing
from dpsynth_assets.methods.declared_terms import budget_terms
from dpsynth_assets.paths import Home, home, home_root
from dpsynth_assets.privacy.directed_rounding import declared, epsilon_down, epsilon_up

if TYPE_CHECKING:
    from dpsynth_assets.privacy.ledger import CohortSpend, Ledger
    from dpsynth_assets.report.budgets import Budgets

MOST_ROWS = 12
"""Cohorts that the overview shows, those of the latest results first: it is to fit a screen."""

_CAPTION = (
    "rounds: left of those declared; audit: disagreements that the last one found, — for none yet"
)


def budgets(as_json: AsJson = False) -> None:
    """Show ε spent and left of every cohort, and the rounds left.

    Writes the page `budgets.html` beside the audit pages. Exit code 1 if a cohort is overspent, the
    ledger does not verify, or an audit found a disagreement.
    """
    from dpsynth_assets.cli.ledger import ledger_if_any
    from dpsynth_assets.orchestration.assets.privacy_budgets import budgets_now, write_page
    from dpsynth_assets.orchestration.instance import dagster_instance

    book = ledger_if_any()
    with dagster_instance() as instance:
        told = budgets_now(book, instance)
    write_page(told)
    answer(told.to_json(), as_json, lambda: _print(told), code=1 if told.problems() else 0)


def _print(told: "Budgets") -> None:
    from dpsynth_assets.orchestration.assets.privacy_budgets import PAGE
    from dpsynth_assets.report.budget_page import bar_of, disagreements, rounds_in_words, until

    show_table(
        told.cohorts,
        {
            "cohort": lambda each: each.cohort,
            "used": lambda each: bar_of(each).text(),
            "ε spent": lambda each: epsilon_up(each.spent),
            "of": lambda each: declared(each.total),
            "ε left": lambda each: epsilon_down(each.left),
            "rounds": rounds_in_words,
            "until": until,
            "audit": lambda each: "—" if each.findings is None else disagreements(each),
            "last run": lambda each: each.last_run[:8] or "—",
        },
        title="Privacy budgets",
        caption=_CAPTION,
        wraps=("cohort",),
    )
    say(*(f"{each.cohort}: {each.guarantee}; unit: {each.unit or '—'}" for each in told.cohorts))
    say(f"Page: {home().reports / PAGE}")
    complain(*told.problems())


def overview() -> None:
    """Prints where this installation is, its cohorts with their budgets, and the next commands.

    Reads declarations, the ledger and the dates of files; creates nothing.
    """
    from dpsynth_assets.cli.ledger import ledger_if_any

    found = standing(dataset_folders())
    ledger = ledger_if_any()
    rows = [_row(spec, ledger) for spec, _ in found.cohorts.values()]
    rows.sort(key=lambda row: (-row["written"], row["cohort"]))
    say(*(f"{name:>8}: {value}" for name, value in _places()))
    if rows:
        columns = {name: itemgetter(name) for name in rows[0] if name != "written"}
        show_table(rows[:MOST_ROWS], columns)
    if len(rows) > MOST_ROWS:
        say(f"{len(rows) - MOST_ROWS} more: dpsynth datasets list.")
    if found.refused:
        files = len(found.refused)
        say(f"{files} dataset file(s) cannot be used: dpsynth datasets check.", style="red")
    say(
        "Your own data: dpsynth init NAME --from FILE. Web UI: dpsynth ui.",
        "All commands: dpsynth --help.",
    )


def _places() -> Iterator[tuple[str, str]]:
    """The folders and addresses that commands of this terminal use."""
    root = home_root()
    new = "" if root.exists() else " (does not exist yet)"
    yield "home", f"{root}{new}"
    yield "dagster", os.environ.get("DAGSTER_HOME", str(Home(root).dagster))
    yield "datasets", ", ".join(str(folder) for folder in dataset_folders())


def _row(spec: PrivateDatasetSpec, ledger: "Ledger | None") -> dict[str, Any]:
    """What one cohort has spent and made, by column, and when a run last wrote a result."""
    stores, budget = Home(home_root()), spec.budget.epsilon  # Looking creates nothing.
    corpora = [path.parent for path in (stores.released / spec.name).glob("*/data")]
    results = [*(stores.reports / spec.name).glob("*.*"), *corpora]
    written = max((path.stat().st_mtime for path in results), default=0.0)
    spend = None if ledger is None else _spend(spec, ledger)
    left = None if spend is None else spend.remaining_epsilon
    charged = spend is not None and spend.dataset
    following = "report" if corpora else "run" if charged else "plan"
    made = f"{datetime.fromtimestamp(written, UTC):%Y-%m-%d %H:%M} UTC"
    return {
        "written": written,
        "cohort": spec.name,
        "ε spent": epsilon_up(0.0 if spend is None else spend.epsilon),
        "ε left": epsilon_down(budget if left is None else left),
        "of": declared(budget),
        "corpora": str(len(corpora)),
        "last result": made if written else "—",
        "next": f"dpsynth {following} {spec.name}",
    }


def _spend(spec: PrivateDatasetSpec, ledger: "Ledger") -> "CohortSpend":
    """The statement under the declared terms or, where δ was edited, under those charged last."""
    from dpsynth_assets.privacy.errors import PrivacyError

    try:
        return ledger.spend(spec.account, budget_terms(spec))
    except PrivacyError:
        return ledger.spend(spec.account)
