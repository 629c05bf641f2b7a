"""`dpsynth report`: what a cohort has released, how good it is, and where it lies."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from dpsynth_assets.cli.cohorts import find_cohort
from dpsynth_assets.cli.summary import print_summary, summarise
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.directed_rounding import rounded_up

SAMPLES = 3
SAMPLE_CHARACTERS = 160


def report(
    cohort: Annotated[str, typer.Argument(help="Name of a declared private dataset.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the corpora of a cohort: guarantee, rows, samples, scores, spend, and where they lie.

    Reads what was released and the internal scores; nothing private, and nothing is charged.
    """
    spec = find_cohort(cohort)
    corpora = [_corpus(folder) for folder in _published(cohort)]
    facts = {**summarise(spec), "published": corpora}
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
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
        "samples": [text[:SAMPLE_CHARACTERS] for text in rows["text"].head(SAMPLES)],
        "folder": str(folder),
    }


def _print(facts: dict[str, Any]) -> None:
    console = Console(width=max(100, Console().width))
    if not facts["published"]:
        console.print(
            f"Cohort {facts['cohort']} has published nothing yet. Run `dpsynth run "
            f"{facts['cohort']}`; if it did run, its messages say which gate refused.",
            highlight=False,
        )
        return
    for corpus in facts["published"]:
        console.print(_heading(corpus), style="italic", highlight=False, soft_wrap=True)
        console.print(_samples(corpus))
    print_summary(facts, console)
    first = facts["published"][0]
    console.print("\nLoad a corpus:", style="bold")
    console.print(
        f"datasets.load_dataset({first['folder']!r}), or polars.read_parquet of its data folder",
        highlight=False,
        soft_wrap=True,
    )


def _heading(corpus: dict[str, Any]) -> str:
    """Name and price of a corpus, on a line of its own: a table of short rows would wrap it."""
    guarantee = corpus["guarantee"]
    price = (
        f"ε = {rounded_up(guarantee['epsilon'], '.3g')}, δ = {rounded_up(guarantee['delta'])}"
        if "epsilon" in guarantee
        else f"guarantee: {guarantee['type']}"
    )
    return f"{corpus['name']}: {corpus['rows']} rows, {price}, unit: {corpus['privacy_unit']}"


def _samples(corpus: dict[str, Any]) -> Table:
    table = Table(show_header=False)
    for sample in corpus["samples"]:
        table.add_row(sample)
    return table
