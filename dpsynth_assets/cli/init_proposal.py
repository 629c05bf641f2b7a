"""The methods that `dpsynth init` writes: what advice ranks first for what the steward declared.

Nothing here is told what was counted in the records: a proposal stands in a public file.
"""

from dpsynth_assets.advice.advice import Advice, Offer, advise
from dpsynth_assets.datasets import PrivateDatasetSpec, PublicDataSpec
from dpsynth_assets.datasets.template import Choices, ProposedCohort, ProposedMethods
from dpsynth_assets.privacy.directed_rounding import declared

ROWS = 400
"""Rows that are asked for: as many as the leaderboard's corpora have."""

BESIDE = 2
"""Further methods that stand in the file as comments."""


def proposed_methods(
    choices: Choices, base: PublicDataSpec | None, minutes: float | None = None
) -> ProposedMethods:
    """Chooses what advice ranks first among methods that run within the steward's minutes.

    Args:
        choices: What the file will declare.
        base: The public base that it will build on; None where no file declares it.
        minutes: Minutes that a run may take on this machine; None: any number.

    **Privacy** Reads declared numbers alone, and how fast this machine is. Label values that were
    found in the records and are not confirmed count for nothing.

    Raises:
        ValueError: The declared numbers contradict one another, or no method fits.
    """
    advice = advise(declaration_of(choices), base, rows=ROWS, timed=True)
    able = [each for each in advice.offers if _has(base, each)]
    quick = [each for each in able if minutes is None or (each.minutes or 0) <= minutes]
    if not quick:
        raise ValueError(_why_none(able, advice, minutes))
    first, *others = quick
    return ProposedMethods(
        chosen=_cohort(first),
        beside=tuple(map(_cohort, others[:BESIDE])),
        why=f"The method that advice ranks first for {_told(choices, minutes)}: {_of(first)}.",
    )


def _has(base: PublicDataSpec | None, offer: Offer) -> bool:
    """Whether the base has the generator that a method fine-tunes; without a base nobody knows."""
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
    share = "not measured" if offer.expectation is None else offer.expectation.share_in_words()
    taken = "minutes not known"
    if offer.minutes is not None:
        taken = f"about {max(1, round(offer.minutes))} minutes here"
    return f"{offer.title}, share of the gap to expect {share}, {offer.rows:,} rows, {taken}"


def _told(choices: Choices, minutes: float | None) -> str:
    records = "no declared number of records"
    if choices.records is not None:
        records = f"{choices.records:,} declared records"
    within = "" if minutes is None else f" within {minutes:g} minutes"
    return f"{records} and ε = {declared(choices.epsilon)}{within}"


def _why_none(able: list[Offer], advice: Advice, minutes: float | None) -> str:
    if able:
        least = min(each.minutes or 0 for each in able)
        return (
            f"Expected --minutes of at least {least:.0f}, which the quickest method takes here, "
            f"got {minutes:g}. Raise it, or leave it out."
        )
    why = "; ".join(f"{name}: {reason}" for name, reason in advice.others[:3])
    return f"Expected a method that fits what is declared, got none ({why}). Raise --epsilon."


def declaration_of(choices: Choices) -> PrivateDatasetSpec:
    """A declaration of the numbers and labels that are known; its method stands for any.

    Raises:
        ValueError: The numbers contradict one another.
    """
    return PrivateDatasetSpec.model_validate(
        {
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
    )
