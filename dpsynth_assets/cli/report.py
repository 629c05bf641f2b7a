"""`dpsynth report`: what a cohort has released, how good it is, and where it lies."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from dpsynth_assets.cli.cohorts import CohortName, find_cohort
from dpsynth_assets.cli.terminal import AsJson, say, show_json, show_table
from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.directed_rounding import declared, epsilon_up, rounded_up

SAMPLE_CHARACTERS = 160
CORPORA_BESIDE = 3
"""Corpora whose rows a terminal shows beside each other; further ones follow below."""


def report(
    cohort: CohortName,
    as_json: AsJson = False,
) -> None:
    """Show the corpora of a cohort: guarantee, rows, samples, scores, spend, and where they lie.

    Reads what was released and the internal scores; nothing private, and nothing is charged.
    """
    spec = find_cohort(cohort)
    folders = _published(cohort)
    corpora = [_corpus(folder) for folder in folders]
    shown = {folder.name: _rows(folder, spec.columns.labels) for folder in folders}
    facts = {**summarise(spec), "published": corpora, "samples": _samples(shown)}
    if as_json:
        show_json(facts)
    else:
        _print(facts)
    if not corpora:
        raise typer.Exit(1)


def _published(cohort: str) -> list[Path]:
    from dpsynth_assets.report.card_check import LABEL_FILE

    return sorted(label.parent for label in (home().released / cohort).glob(f"*/{LABEL_FILE}"))


def _corpus(folder: Path) -> dict[str, Any]:
    """What the label and the rows of one published corpus say."""
    import polars as pl

    from dpsynth_assets.report.card_check import LABEL_FILE

    label = json.loads((folder / LABEL_FILE).read_text())
    rows = pl.read_parquet(folder / "data")
    return {
        "name": folder.name,
        "guarantee": label["guarantee"],
        "privacy_unit": label["privacy_unit"],
        "neighboring_relation": label["neighboring_relation"],
        "rows": rows.height,
        "folder": str(folder),
    }


def _rows(folder: Path, labels: Sequence[str]) -> list[tuple[str, str]]:
    """Label and text of every row of a published corpus."""
    import polars as pl

    rows = pl.read_parquet(folder / "data")
    known = [rows[name].cast(pl.String).to_list() for name in labels if name in rows.columns]
    named = [" / ".join(parts) for parts in zip(*known, strict=True)] or [""] * rows.height
    return list(zip(named, rows["text"].to_list(), strict=True))


def _samples(corpora: Mapping[str, list[tuple[str, str]]]) -> list[dict[str, Any]]:
    """Ten rows of each corpus, with the same labels in the same order."""
    from dpsynth_assets.report.render import aligned_samples

    return [
        {"label": label, "texts": dict(zip(corpora, texts, strict=True))}
        for label, texts in aligned_samples(corpora, characters=SAMPLE_CHARACTERS)
    ]


def _print(facts: dict[str, Any]) -> None:
    if not facts["published"]:
        say(
            f"Cohort {facts['cohort']} has published nothing yet. Run `dpsynth run "
            f"{facts['cohort']}`; if it did run, its messages say which gate refused."
        )
        return
    say(*map(_heading, facts["published"]), style="italic")
    names = [corpus["name"] for corpus in facts["published"]]
    for start in range(0, len(names), CORPORA_BESIDE):
        beside = names[start : start + CORPORA_BESIDE]
        rows = (
            (line["label"] or "—", *(line["texts"][name] for name in beside))
            for line in facts["samples"]
        )
        show_table(("label", *beside), rows, lines=True)
    print_summary(facts)
    first = facts["published"][0]
    say("\nLoad a corpus:", style="bold")
    say(f"datasets.load_dataset({first['folder']!r}), or polars.read_parquet of its data folder")


def _heading(corpus: dict[str, Any]) -> str:
    """Name and price of a corpus, on a line of its own: a table of short rows would wrap it."""
    guarantee = corpus["guarantee"]
    price = (
        f"ε = {epsilon_up(guarantee['epsilon'])}, δ = {rounded_up(guarantee['delta'])}"
        if "epsilon" in guarantee
        else f"guarantee: {guarantee['type']}"
    )
    return f"{corpus['name']}: {corpus['rows']} rows, {price}, unit: {corpus['privacy_unit']}"


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


def print_summary(summary: dict[str, Any]) -> None:
    """Prints the table of methods and references, the cohort's spend, and the paths."""
    from dpsynth_assets.metrics.registry import pictured

    scores = (metric.title for metric in pictured().values())
    numeric = ("ε", "δ", "rows", *scores, "seconds")
    if summary["rows"]:
        show_table(
            ("method", "guarantee", *numeric),
            map(_row, summary["rows"]),
            title=f"Synthetic corpora of {summary['cohort']} and their references",
            numeric=numeric,
            wraps=("method",),
        )
        say(*summary["verdicts"])
    say(
        f"Cohort {summary['cohort']}: ε = {epsilon_up(summary['epsilon'])} of "
        f"{declared(summary['budget_epsilon'])} spent on DP releases (odometer reading); "
        f"guaranteed: ε = {epsilon_up(summary['epsilon_guaranteed'])} at δ = "
        f"{rounded_up(summary['delta'])}; guarantee as a whole: {summary['cohort_guarantee']}.",
        *(f"{name:>8}: {summary[name]}" for name in ("report", "corpora", "ledger")),
    )


def _row(row: Mapping[str, Any]) -> tuple[str, ...]:
    from dpsynth_assets.metrics.registry import pictured
    from dpsynth_assets.report.cells import format_cell

    return (
        row["name"],
        row["guarantee"],
        format_cell("epsilon", row["epsilon"]),
        format_cell("delta", row["delta"]),
        _number(row["rows"], "{:d}"),
        *(format_cell(name, row.get(name), row) for name in pictured()),
        _number(row["seconds"], "{:.0f}"),
    )


def _number(value: Any, form: str) -> str:
    if value is None:
        return "—"
    return value if isinstance(value, str) else form.format(value)
