"""`dpsynth plan`: what every declared release would cost, before private data is read."""

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from dpsynth_assets.cli.cohorts import find_cohort

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def plan(
    cohort: Annotated[str, typer.Argument(help="Name of a declared private dataset.")],
    as_json: Json = False,
) -> None:
    """Price every declared release of a cohort from public facts; reads no private data."""
    from dpsynth_assets.methods.planning import plan_dataset

    facts = _facts(plan_dataset(find_cohort(cohort)))
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    _print(facts)


def _facts(planned: Any) -> dict[str, Any]:
    rows = []
    if planned.histogram is not None:
        rows.append(
            {
                "release": "shared/cluster_histogram",
                "method": f"{planned.histogram.spec.noise} histograms",
                "guarantee": "dp",
                "target_epsilon": planned.histogram.target_epsilon,
                "epsilon": planned.histogram.epsilon,
                "noise": f"scale {planned.histogram.scale:.3g} records",
                "tokens_per_batch": None,
                "rows_estimate": None,
                "refusal": None,
            }
        )
    rows.extend(
        {
            "release": f"{entry.folder}/candidate_corpus",
            "method": entry.method.name,
            "guarantee": str(entry.plan.guarantee),
            "target_epsilon": entry.target_epsilon,
            "epsilon": entry.plan.epsilon,
            "noise": entry.plan.parameters.get("noise", "softmax sampling of tokens"),
            "tokens_per_batch": entry.plan.tokens_per_batch,
            "rows_estimate": entry.plan.rows_estimate,
            "refusal": entry.plan.refusal,
        }
        for entry in planned.methods
    )
    return {
        "cohort": planned.terms.cohort,
        "budget_epsilon": planned.budget.epsilon,
        "delta": planned.budget.delta,
        "accountant": planned.budget.accountant,
        "neighboring_relation": str(planned.budget.relation),
        "privacy_unit": planned.budget.unit.describe(),
        "total_epsilon": planned.total_epsilon,
        "releases": rows,
    }


def _print(facts: dict[str, Any]) -> None:
    console = Console(width=max(110, Console().width))
    table = Table(title=f"Plan of cohort {facts['cohort']} (nothing private was read)")
    for name in ("release", "guarantee", "share as ε", "ε alone", "tokens a batch", "rows", "note"):
        table.add_column(name, overflow="fold")
    for row in facts["releases"]:
        table.add_row(
            row["release"],
            row["guarantee"],
            f"{row['target_epsilon']:.3g}",
            "—" if row["epsilon"] is None else f"{row['epsilon']:.4g}",
            "—" if row["tokens_per_batch"] is None else str(row["tokens_per_batch"]),
            "after the histogram" if row["rows_estimate"] is None else str(row["rows_estimate"]),
            row["refusal"] or row["noise"],
        )
    console.print(table)
    console.print(
        f"One round of every DP release: ε = {facts['total_epsilon']:.4g} of "
        f"{facts['budget_epsilon']:g} at δ = {facts['delta']:g} ({facts['accountant']}), "
        f"{facts['neighboring_relation']}, unit: {facts['privacy_unit']}."
    )
