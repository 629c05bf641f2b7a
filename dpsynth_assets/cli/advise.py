"""`dpsynth advise`: recommends methods for declared data, with their costs, from public facts.

And the methods that `dpsynth init` writes: what advice ranks first for what the steward declared.
It is told nothing that was counted in the records: a proposal stands in a public file.
"""

from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from dpsynth_assets.advice.advice import Advice, Offer, advise as weighed
from dpsynth_assets.cli.cohorts import CohortIfAny, find_cohort
from dpsynth_assets.cli.terminal import AsJson, answer, say, show_table
from dpsynth_assets.datasets import DatasetFileError, PrivateDatasetSpec, PublicDataSpec
from dpsynth_assets.datasets.fields import problems_of
from dpsynth_assets.datasets.standing import declared_base
from dpsynth_assets.datasets.template import Choices, ProposedCohort, ProposedMethods
from dpsynth_assets.privacy.directed_rounding import declared, epsilon_up

ROWS = 400
"""Rows that are asked for: as many as the leaderboard's corpora have."""

BESIDE = 2
"""Further methods that stand in the file as comments."""


def advise(
    cohort: CohortIfAny = None,
    rows: Annotated[int | None, typer.Option(min=1)] = None,
    records: Annotated[int | None, typer.Option(min=1)] = None,
    epsilon: float = 4.0,
    delta: float = 1e-6,
    labels: Annotated[int, typer.Option(min=0)] = 0,
    domain: str | None = None,
    as_json: AsJson = False,
) -> None:
    """List the methods that can be used, best first, and why others cannot.

    Reads declarations and the leaderboard of public corpora, but none of your records or scores.
    Exit code 2 if no method can be used.

    Args:
        cohort: Name of a declared private dataset; without it, the options describe the data.
        rows: Number of rows that you need.
        records: Declared number of records.
        epsilon: Budget ε.
        delta: Budget δ.
        labels: Number of declared labels.
        domain: What the texts are; default: the domain of the public base.
        as_json: Print JSON.
    """
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
    told = _title(spec, rows)
    answer(found.to_json(), as_json, lambda: _print(told, found), code=0 if found.offers else 2)


def _title(spec: Any, rows: int | None) -> str:
    known = spec.public_facts.records
    told = "an undeclared number of records" if known is None else f"{known:,} records"
    wanted = "" if rows is None else f", {rows:,} rows wanted"
    return f"Methods for {told} at ε = {declared(spec.budget.epsilon)}{wanted}, best first"


def _print(title: str, found: Advice) -> None:
    if found.offers:
        columns = {
            "method": lambda offer: offer.title,
            "expected share of the gap": _share,
            "rows": lambda offer: f"{offer.rows:,}",
            "ε": lambda offer: "(p, r)" if offer.epsilon is None else epsilon_up(offer.epsilon),
            "minutes here": lambda offer: _minutes(offer.minutes),
        }
        show_table(found.offers, columns, title=title)
    else:
        say("No method can run with these declarations.")
    for offer in found.offers:
        distance = "" if offer.expectation is None else f"; {offer.expectation.distance_in_words()}"
        say(f"  {offer.title}: declare {offer.asks}{distance}")
    say("\nMethods that cannot run:", *(f"  {name}: {why}" for name, why in found.others))
    say(*(f"\n{note}" for note in found.notes))


def _share(offer: Offer) -> str:
    return "not measured" if offer.expectation is None else offer.expectation.share_in_words()


def _minutes(minutes: float | None) -> str:
    return "—" if minutes is None else f"{max(minutes, 1):.0f}"


def proposed_methods(
    choices: Choices, base: PublicDataSpec | None, minutes: float | None = None
) -> ProposedMethods:
    """Chooses what advice ranks first among methods that run within the steward's minutes.

    Args:
        choices: What the file will declare.
        base: The public base that it will build on; None where no file declares it.
        minutes: Minutes that a run may take on this machine; None: any number.

    **Privacy** Reads declared numbers alone, and how fast this machine is. Label values that were
    found in the records and are not confirmed have no part in it.

    Raises:
        ValueError: The declared numbers contradict one another, or no method fits.
    """
    advice = weighed(declaration_of(choices), base, rows=ROWS, timed=True)
    able = [each for each in advice.offers if _has(base, each)]
    quick = [each for each in able if minutes is None or (each.minutes or 0) <= minutes]
    if not quick:
        raise ValueError(_why_none(able, advice, minutes))
    first, *others = quick
    return ProposedMethods(
        chosen=_cohort(first),
        beside=tuple(map(_cohort, others[:BESIDE])),
        why=f"The first choice of `dpsynth advise` for {_told(choices, minutes)}: {_of(first)}.",
    )


def _has(base: PublicDataSpec | None, offer: Offer) -> bool:
    """Whether the base has the generator that a method fine-tunes; without a base it is unknown."""
    needed = offer.base.get("conditional_generator")
    return needed is None or (
        base is not None and base.conditional_generator.kind == needed["kind"]
    )


def _cohort(offer: Offer) -> ProposedCohort:
    own = {"method": offer.method, "settings": offer.settings}
    return ProposedCohort(
        title=offer.title,
        methods=tuple([offer.first, own] if offer.first else [own]),
        sections=offer.declared,
        expected=_of(offer),
    )


def _of(offer: Offer) -> str:
    """What to expect of a method, in a few words."""
    taken = "unknown time"
    if offer.minutes is not None:
        taken = f"about {max(1, round(offer.minutes))} minutes on this machine"
    share = f"expected share of the gap: {_share(offer)}"
    return f"{offer.title}, {share}, {offer.rows:,} rows, {taken}"


def _told(choices: Choices, minutes: float | None) -> str:
    records = "an undeclared number of records"
    if choices.records is not None:
        records = f"{choices.records:,} declared records"
    within = "" if minutes is None else f" within {minutes:g} minutes"
    return f"{records} and ε = {declared(choices.epsilon)}{within}"


def _why_none(able: list[Offer], advice: Advice, minutes: float | None) -> str:
    if able:
        least = min(each.minutes or 0 for each in able)
        return (
            f"Expected --minutes of at least {least:.0f}, the time of the quickest method on this "
            f"machine, got {minutes:g}. Raise --minutes, or leave it out."
        )
    why = "; ".join(f"{name}: {reason}" for name, reason in advice.others[:3])
    return f"Expected a method that can run on these data, got none ({why}). Raise --epsilon."


def declaration_of(choices: Choices) -> PrivateDatasetSpec:
    """A declaration of the numbers and labels that are known; its method stands for any.

    Raises:
        DatasetFileError: The numbers are out of bounds, or contradict one another.
    """
    fields = {
        "name": "proposal",
        "source": {"path": choices.path or "records.csv"},
        "columns": {"text": choices.text, "labels": list(choices.labels)},
        "privacy_unit": {"column": choices.unit, "max_records": choices.max_records},
        "public_facts": {
            "labels": {name: list(values) for name, values in choices.labels.items()},
            "records": choices.records,
            "words": choices.words,
        },
        "budget": {"epsilon": choices.epsilon, "delta": choices.delta},
        "public_data": choices.public_data,
        "methods": [{"method": "epsvec"}],
    }
    try:
        return PrivateDatasetSpec.model_validate(fields)
    except ValidationError as error:
        place = Path("What the options declare")
        raise DatasetFileError(problems_of(error, place, PrivateDatasetSpec, fields)) from None
