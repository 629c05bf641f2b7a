"""Summary of a run: one row a method, the references beside, and the paths of all files."""

import json
from typing import Any

from rich.console import Console
from rich.table import Table

from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.directed_rounding import declared, epsilon_up, rounded_up

_SCORES = {"mauve": "MAUVE", "accuracy": "accuracy"}


def summarise(spec: PrivateDatasetSpec) -> dict[str, Any]:
    """Collects scores, guarantees and paths of a cohort from its report and the ledger."""
    from dpsynth_assets.methods.declared_terms import budget_terms
    from dpsynth_assets.privacy.ledger import Ledger

    stores = home()
    reports = stores.reports / spec.name
    scores = reports / "metrics.json"
    measured = json.loads(scores.read_text()) if scores.exists() else {}
    spend = Ledger(stores.ledger_url).spend(spec.account, budget_terms(spec))
    return {
        "cohort": spec.name,
        "rows": measured.get("table", []),
        "verdicts": measured.get("verdicts", []),
        "epsilon": float(spend.epsilon),
        "epsilon_guaranteed": float(spend.guaranteed_epsilon),
        "budget_epsilon": spec.budget.epsilon,
        "delta": spend.delta,
        "cohort_guarantee": spend.total_guarantee,
        "report": str(reports / "report.html"),
        "corpora": str(stores.released / spec.name),
        "ledger": stores.ledger_url,
    }


def print_summary(summary: dict[str, Any], console: Console) -> None:
    """Prints the table of methods and references, the cohort's spend, and the paths."""
    if summary["rows"]:
        console.print(_table(summary))
        for sentence in summary["verdicts"]:
            console.print(sentence, highlight=False, markup=False)
    total = (
        f"Cohort {summary['cohort']}: ε = {epsilon_up(summary['epsilon'])} of "
        f"{declared(summary['budget_epsilon'])} spent on DP releases (odometer reading); "
        f"guaranteed: ε = {epsilon_up(summary['epsilon_guaranteed'])} at δ = "
        f"{rounded_up(summary['delta'])}; guarantee as a whole: {summary['cohort_guarantee']}."
    )
    console.print(total, highlight=False)
    for name in ("report", "corpora", "ledger"):
        console.print(f"{name:>8}: {summary[name]}", highlight=False, soft_wrap=True)


def _table(summary: dict[str, Any]) -> Table:
    from dpsynth_assets.report.cells import format_cell

    table = Table(title=f"Synthetic corpora of {summary['cohort']} and their references")
    columns = ("method", "guarantee", "ε", "δ", "rows", *_SCORES.values(), "seconds")
    for name in columns:
        table.add_column(
            name, justify="left" if name in columns[:2] else "right", no_wrap=name != "method"
        )
    for row in summary["rows"]:
        table.add_row(
            row["name"],
            row["guarantee"],
            format_cell("epsilon", row["epsilon"]),
            format_cell("delta", row["delta"]),
            _number(row["rows"], "{:d}"),
            *(format_cell(name, row.get(name), row) for name in _SCORES),
            _number(row["seconds"], "{:.0f}"),
        )
    return table


def _number(value: Any, form: str) -> str:
    if value is None:
        return "—"
    return value if isinstance(value, str) else form.format(value)
