"""`dpsynth advise`: which method, for whose data, at what price, from public facts alone."""

from typing import Annotated, Any

import typer

from dpsynth_assets.cli.cohorts import cohort_names
from dpsynth_assets.cli.terminal import (
    AsJson,
    delta_option,
    epsilon_option,
    say,
    show_json,
    show_table,
)
from dpsynth_assets.privacy.directed_rounding import declared, epsilon_up

Cohort = Annotated[
    str | None,
    typer.Argument(
        help="Name of a declared private dataset; none: the options say what is declared.",
        autocompletion=cohort_names,
    ),
]


def advise(
    cohort: Cohort = None,
    rows: Annotated[int | None, typer.Option(min=1, help="Rows that are wanted.")] = None,
    records: Annotated[int | None, typer.Option(min=1, help="Declared number of records.")] = None,
    epsilon: Annotated[float, typer.Option(callback=epsilon_option, help="Budget ε.")] = 4.0,
    delta: Annotated[float, typer.Option(callback=delta_option, help="Budget δ.")] = 1e-6,
    labels: Annotated[int, typer.Option(min=0, help="Number of declared labels.")] = 0,
    domain: Annotated[
        str | None,
        typer.Option(help="What the texts are; none: as the public base says."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say which methods fit, best first, and why the others do not.

    Reads declarations and the leaderboard of public corpora; no record and no score of yours.
    Exit code 2 if no method fits.
    """
    from dpsynth_assets.advice.advice import advise as weighed
    from dpsynth_assets.cli.cohorts import find_cohort
    from dpsynth_assets.cli.init_proposal import declaration_of
    from dpsynth_assets.datasets.standing import declared_base
    from dpsynth_assets.datasets.template import Choices

    if cohort is not None:
        spec = find_cohort(cohort)
    else:
        values = {"label": [f"label {number}" for number in range(1, labels + 1)]} if labels else {}
        known = Choices(labels=values, epsilon=epsilon, delta=delta, records=records)
        spec = declaration_of(known)
    base = declared_base(spec.public_data)
    if base is not None and domain is not None:
        base = base.model_copy(update={"domain": domain})
    found = weighed(spec, base, rows=rows, timed=True)
    if as_json:
        show_json(found.to_json())
    else:
        _print(_title(spec, rows), found)
    if not found.offers:
        raise typer.Exit(2)


def _title(spec: Any, rows: int | None) -> str:
    known = spec.public_facts.records
    told = "no declared number of records" if known is None else f"{known:,} records"
    wanted = "" if rows is None else f", {rows:,} rows wanted"
    return f"Methods for {told} at ε = {declared(spec.budget.epsilon)}{wanted}, best first"


def _print(title: str, found: Any) -> None:
    columns = ("method", "expected share of the gap", "rows", "ε", "minutes here")
    if found.offers:
        show_table(columns, map(_row, found.offers), title=title, numeric=columns[1:])
    else:
        say("No method fits.")
    for offer in found.offers:
        distance = "" if offer.expectation is None else f"; {offer.expectation.distance_in_words()}"
        say(f"  {offer.title}: declare {offer.asks}{distance}")
    say("\nWhat does not fit:", *(f"  {name}: {why}" for name, why in found.others))
    say(*(f"\n{note}" for note in found.notes))


def _row(offer: Any) -> tuple[str, ...]:
    share = "not measured" if offer.expectation is None else offer.expectation.share_in_words()
    epsilon = "(p, r)" if offer.epsilon is None else epsilon_up(offer.epsilon)
    minutes = "—" if offer.minutes is None else f"{max(offer.minutes, 1):.0f}"
    return offer.title, share, f"{offer.rows:,}", epsilon, minutes
