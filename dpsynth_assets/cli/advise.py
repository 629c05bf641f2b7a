"""`dpsynth advise`: which method, for whose data, at what price, from public facts alone.

And the methods that `dpsynth init` writes: what advice ranks first for what the steward declared.
It is told nothing that was counted in the records: a proposal stands in a public file. And
`dpsynth plan COHORT --optimise`, which tries on public text how a method splits its budget.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from dpsynth_assets.advice.advice import Advice, Offer, advise as weighed
from dpsynth_assets.cli.cohorts import cohort_names, file_name, find_cohort, find_file, public_base
from dpsynth_assets.cli.terminal import (
    AsJson,
    answer,
    delta_option,
    epsilon_option,
    refusals,
    say,
    show_table,
)
from dpsynth_assets.datasets import PrivateDatasetSpec, PublicDataSpec
from dpsynth_assets.datasets.standing import declared_base
from dpsynth_assets.datasets.template import Choices, ProposedCohort, ProposedMethods
from dpsynth_assets.privacy.directed_rounding import declared, epsilon_up

ROWS = 400
"""Rows that are asked for: as many as the leaderboard's corpora have."""

BESIDE = 2
"""Further methods that stand in the file as comments."""


def advise(
    cohort: Annotated[str | None, typer.Argument(autocompletion=cohort_names)] = None,
    rows: Annotated[int | None, typer.Option(min=1)] = None,
    records: Annotated[int | None, typer.Option(min=1)] = None,
    epsilon: Annotated[float, typer.Option(callback=epsilon_option)] = 4.0,
    delta: Annotated[float, typer.Option(callback=delta_option)] = 1e-6,
    labels: Annotated[int, typer.Option(min=0)] = 0,
    domain: str | None = None,
    as_json: AsJson = False,
) -> None:
    """Say which methods fit, best first, and why the others do not.

    Reads declarations and the leaderboard of public corpora; no record and no score of yours.
    Exit code 2 if no method fits.

    Args:
        cohort: Name of a declared private dataset; none: the options say what is declared.
        rows: Rows that are wanted.
        records: Declared number of records.
        epsilon: Budget ε.
        delta: Budget δ.
        labels: Number of declared labels.
        domain: What the texts are; none: as the public base says.
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
    told = "no declared number of records" if known is None else f"{known:,} records"
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
        say("No method fits.")
    for offer in found.offers:
        distance = "" if offer.expectation is None else f"; {offer.expectation.distance_in_words()}"
        say(f"  {offer.title}: declare {offer.asks}{distance}")
    say("\nWhat does not fit:", *(f"  {name}: {why}" for name, why in found.others))
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
        why=f"The method that advice ranks first for {_told(choices, minutes)}: {_of(first)}.",
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
    taken = "minutes not known"
    if offer.minutes is not None:
        taken = f"about {max(1, round(offer.minutes))} minutes here"
    share = f"share of the gap to expect {_share(offer)}"
    return f"{offer.title}, {share}, {offer.rows:,} rows, {taken}"


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


def optimise(
    cohort: str, method: str | None, rows: int, texts: Path | None, output: Path | None
) -> None:
    """Tries splits, prints what they gain, and writes the dataset file with the best.

    Exit code 2 if there is nothing to split or too little public text.
    """
    from dpsynth_assets.advice.budget_split import choices_of, optimise_split

    spec = find_cohort(cohort, to_spend=True)
    with refusals(ValueError, FileNotFoundError):
        entry = choices_of(spec, method)
        stand_ins = _stand_ins(spec.public_data, texts)
    say(
        f"{entry.key}: splits are tried on {stand_ins.records.height} texts in the place of the "
        "records. No declared private source is read and nothing is charged; that the texts are "
        "public is yours to know."
    )
    found = optimise_split(spec, entry, stand_ins, rows=rows, told=_say)
    _print_splits(found)
    if not found.advised:
        return
    changed = _changed(find_file(cohort), file_name(spec), entry.key, found.advised)
    if output is None:
        say("With --output FILE the dataset file is written with it.")
    else:
        output.write_text(changed, encoding="utf-8")
        say(f"Written: {output}")


def _stand_ins(name: str, texts: Path | None) -> Any:
    """Public texts of a file, or documents of a base that has some of its own."""
    from dpsynth_assets.advice.budget_split import StandIns

    public = public_base(name)
    if texts is not None:
        return StandIns(_read(texts), public)
    if public.spec.invents_documents:
        raise ValueError(
            f"{name}: expected documents of its own to try splits on, got texts that its model "
            "invents: it writes such texts before it has learnt anything. Name a CSV or Parquet "
            "file of public text like the records by --texts."
        )
    return StandIns.of_base(public.spec, public.documents)


def _read(file: Path) -> Any:
    """Columns `text` and `label` of a file; the label is empty where there is none."""
    import polars as pl

    from dpsynth_assets.datasets.standing import PrivateFiles
    from dpsynth_assets.sensitive.fingerprints import refuse_private_table

    if file.suffix not in (".csv", ".parquet") or not file.is_file():
        raise ValueError(f"--texts: expected a CSV or Parquet file, got {file}.")
    if (problem := PrivateFiles.of_installation().problem(file)) is not None:
        raise ValueError(f"--texts: expected public text, got {problem[0]}. {problem[1]}")
    frame = pl.read_csv(file) if file.suffix == ".csv" else pl.read_parquet(file)
    if "text" not in frame.columns:
        raise ValueError(
            f"--texts: expected a column text in {file.name}, got {', '.join(frame.columns)}."
        )
    refuse_private_table(frame["text"].drop_nulls().cast(pl.String).to_list(), "--texts")
    label = pl.col("label").cast(pl.String) if "label" in frame.columns else pl.lit("")
    return frame.select("text", label=label).drop_nulls()


def _say(trial: Any, left: int) -> None:
    """A line after each trial, with how long the others will take at this pace."""
    if trial.refusal:
        say(f"  {trial.in_words()}: refused, {trial.refusal}")
        return
    ahead = f"; {left} left, about {max(1, round(left * trial.minutes))} min" if left else ""
    say(
        f"  {trial.in_words()}: energy distance {trial.score.value:.4f}, {trial.rows} rows, "
        f"{trial.minutes:.1f} min{ahead}"
    )


def _print_splits(found: Any) -> None:
    columns = {
        "split": lambda trial: trial.in_words(),
        "energy distance": lambda trial: f"{trial.score.value:.4f}" if trial.score else "refused",
        "±": lambda trial: f"{float(trial.score.draws.std()):.4f}" if trial.score else "",
        "rows": lambda trial: str(trial.rows) if trial.score else "",
    }
    title = f"Splits of {found.method} on {found.records} public texts at ε = "
    show_table(found.trials, columns, title=f"{title}{epsilon_up(found.epsilon)}, {_weight(found)}")
    say(found.gain_in_words())


def _weight(found: Any) -> str:
    """How heavily noise weighs in the trials, beside the records."""
    if found.wanted_epsilon <= found.epsilon:
        return "where noise weighs as on the records"
    return (
        f"where noise weighs more than on the records: as heavily as there it would be at ε = "
        f"{epsilon_up(found.wanted_epsilon)}, which is not tried; name more texts"
    )


def _changed(file: Path, dataset: str, folder: str, patch: Any) -> str:
    """The text of a dataset file with other values at some places; comments stay.

    Args:
        file: It declares the dataset.
        dataset: Name of the dataset.
        folder: Folder of the method whose settings change.
        patch: Place -> value; see `budget_split.Choice`.
    """
    import io

    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 100
    documents = list(yaml.load_all(file.read_text(encoding="utf-8")))
    for document in documents:
        fields = (document or {}).get("attributes", document) or {}
        if fields.get("name") != dataset:
            continue
        for (top, name), value in patch.items():
            section = fields
            if top == "settings":
                section = next(
                    entry
                    for entry in fields["methods"]
                    if (entry.get("name") or entry["method"]) == folder
                )
            if section.get(top) is None:
                section[top] = {}
            section[top][name] = value
    text = io.StringIO()
    yaml.dump_all(documents, text)
    return text.getvalue()
