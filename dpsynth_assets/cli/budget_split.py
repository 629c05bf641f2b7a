"""`dpsynth plan COHORT --optimise`: tries how a method's budget is split, on public text."""

from pathlib import Path
from typing import Any

from dpsynth_assets.cli.cohorts import find_cohort, find_file, public_base
from dpsynth_assets.cli.terminal import refusals, say, show_table
from dpsynth_assets.privacy.directed_rounding import epsilon_up


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
    _print(found)
    if not found.advised:
        return
    changed = _changed(find_file(cohort), _dataset_name(spec), entry.key, found.advised)
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

    from dpsynth_assets.datasets.private_files import PrivateFiles
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


def _print(found: Any) -> None:
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


def _dataset_name(spec: Any) -> str:
    """Name in the file: that of the dataset where the cohort is one of several."""
    part = getattr(spec, "part", None)
    return str(spec.name if part is None else part.dataset)


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
