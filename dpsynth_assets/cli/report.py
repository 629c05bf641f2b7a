"""What a cohort has released: `report` shows it, `statement` says what is guaranteed.

`export` packs it, `verify` checks a package.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from dpsynth_assets.cli.cohorts import CohortName, find_cohort, find_method
from dpsynth_assets.cli.terminal import AsJson, answer, complain, printable, say, show_table
from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.directed_rounding import declared, epsilon_up, rounded_up
from dpsynth_assets.privacy.errors import PrivacyError

SAMPLE_CHARACTERS = 160
CORPORA_BESIDE = 3
"""Corpora whose rows a terminal shows beside each other; further ones follow below."""


def report(cohort: CohortName, as_json: AsJson = False) -> None:
    """Show the corpora of a cohort: guarantee, rows, samples, scores, spend and file paths.

    Reads the releases and the internal scores; reads no private record and charges nothing.
    """
    spec = find_cohort(cohort)
    corpora = [_corpus(label, spec.columns.labels) for label in _published(cohort)]
    shown = {corpus["name"]: corpus.pop("shown") for corpus in corpora}
    facts = {**summarise(spec), "published": corpora, "samples": _samples(shown)}
    answer(facts, as_json, lambda: _print(facts), code=0 if corpora else 1)


def _published(cohort: str) -> list[Path]:
    """The labels of published corpora."""
    from dpsynth_assets.report.cards import LABEL_FILE

    return sorted((home().released / cohort).glob(f"*/{LABEL_FILE}"))


def _corpus(file: Path, labels: Sequence[str]) -> dict[str, Any]:
    """What the label and the rows of one published corpus say; `shown` are labels and texts."""
    import polars as pl

    label, folder = json.loads(file.read_text()), file.parent
    rows = pl.read_parquet(folder / "data")
    known = [rows[name].cast(pl.String).to_list() for name in labels if name in rows.columns]
    named = [" / ".join(parts) for parts in zip(*known, strict=True)] or [""] * rows.height
    return {
        "name": folder.name,
        **{name: label[name] for name in ("guarantee", "privacy_unit", "neighboring_relation")},
        "rows": rows.height,
        "folder": str(folder),
        "shown": list(zip(named, rows["text"].to_list(), strict=True)),
    }


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
        columns: dict[str, Any] = {"label": lambda line: line["label"] or "—"}
        for name in names[start : start + CORPORA_BESIDE]:
            columns[name] = partial(_text, name)
        show_table(facts["samples"], columns, lines=True)
    print_summary(facts)
    first = facts["published"][0]
    say("\nLoad a corpus:", style="bold")
    say(f"datasets.load_dataset({first['folder']!r}), or polars.read_parquet of its data folder")


def _text(corpus: str, line: dict[str, Any]) -> str:
    return str(line["texts"][corpus])


def _heading(corpus: dict[str, Any]) -> str:
    """Name and price of a corpus, on a line of its own: a table of short rows would wrap it."""
    return (
        f"{corpus['name']}: {corpus['rows']} rows, {_price(corpus)}, unit: {corpus['privacy_unit']}"
    )


def _price(published: dict[str, Any], at: str = ", ") -> str:
    """What a corpus guarantees, by its facts or its label."""
    guarantee = published["guarantee"]
    if "epsilon" not in guarantee:
        return f"guarantee: {guarantee['type']}"
    epsilon, delta = epsilon_up(guarantee["epsilon"]), rounded_up(guarantee["delta"])
    return f"ε = {epsilon}{at}δ = {delta}"


def summarise(spec: PrivateDatasetSpec) -> dict[str, Any]:
    """Collects scores, guarantees and paths of a cohort from its report and the ledger."""
    from dpsynth_assets.methods.dataset_plan import budget_terms
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
    from dpsynth_assets.metrics.registry import compared
    from dpsynth_assets.report.pages import format_cell

    if summary["rows"]:

        def score(name: str, row: dict[str, Any]) -> str:
            return format_cell(name, row.get(name), row)

        told = {metric.title: partial(score, name) for name, metric in compared().items()}
        columns: dict[str, Callable[[Any], str]] = {
            "method": lambda row: row["name"],
            "guarantee": lambda row: row["guarantee"],
            "ε": lambda row: format_cell("epsilon", row["epsilon"]),
            "δ": lambda row: format_cell("delta", row["delta"]),
            "rows": lambda row: "—" if row["rows"] is None else str(row["rows"]),
            **told,
            "seconds": lambda row: format_cell("seconds", row["seconds"]),
        }
        title = f"Synthetic corpora of {summary['cohort']} and their references"
        show_table(summary["rows"], columns, title=title, wraps=("method", *told))
        say(*summary["verdicts"])
    say(
        f"Cohort {summary['cohort']}: ε = {epsilon_up(summary['epsilon'])} of "
        f"{declared(summary['budget_epsilon'])} spent on DP releases (odometer reading); "
        f"guaranteed: ε = {epsilon_up(summary['epsilon_guaranteed'])} at δ = "
        f"{rounded_up(summary['delta'])}; guarantee as a whole: {summary['cohort_guarantee']}.",
        *(f"{name:>8}: {summary[name]}" for name in ("report", "corpora", "ledger")),
    )


def statement(cohort: CohortName, pack: bool = False, as_json: AsJson = False) -> None:
    """Print a cohort's privacy statement, or write the pack that answers a privacy officer.

    Reads the ledger, the label, the dataset file and settings; nothing private.

    Args:
        cohort: Name of a declared private dataset.
        pack: Write a folder: statement, answers, tests of anonymisation, published ε values.
        as_json: Print the whole pack as JSON.
    """
    from dpsynth_assets.cli.ledger import open_ledger
    from dpsynth_assets.exports.pack import HTML, pack_of, statement_in, write_pack

    spec, ledger = find_cohort(cohort), open_ledger()
    if pack:
        folder = write_pack(spec, ledger)
        told = partial(say, f"Wrote {folder}. Open {HTML}; nothing private was read.")
    made = pack_of(spec, ledger)
    if not pack:
        told = partial(say, statement_in(made))
    answer(made, as_json, told)


def export(
    cohort: CohortName,
    method: str,
    what: Literal["corpus", "generator"] = "corpus",
    output: Path | None = None,
    license_id: Annotated[str, typer.Option("--license")] = "",
    language: str = "",
) -> None:
    """Write a package to share: rows or weights, card, privacy label, proof from the ledger.

    Charges nothing and adds one entry to the ledger, with the digest of every file. `dpsynth
    verify` checks the folder anywhere, without the ledger.

    Args:
        cohort: Name of a declared private dataset.
        method: Key of a method in the dataset file.
        what: Its rows, or the weights of the model that wrote them.
        output: Folder to write; default: below DPSYNTH_HOME/exports.
        license_id: Licence for the card, e.g. cc-by-4.0.
        language: Language of the texts, e.g. en.
    """
    from dpsynth_assets.exports.package import export_corpus, export_generator
    from dpsynth_assets.methods.planning import plan_dataset
    from dpsynth_assets.orchestration.resources.stores import PrivacyLedger, ReleaseStore
    from dpsynth_assets.report.cards import HubFacts
    from dpsynth_assets.run.runner import Runner

    spec = find_cohort(cohort)
    plan = plan_dataset(spec)
    planned = find_method(plan, method)
    runner = Runner(plan=plan, ledger=PrivacyLedger().open(), store=ReleaseStore())
    public = spec.public_facts.labels
    classes = {name: list(public[name]) for name in spec.columns.labels if name in public}
    hub = HubFacts(license=license_id, language=language, classes=classes)
    target = (output or home().exports / cohort / f"{method}_{what}").resolve()
    packed = export_corpus if what == "corpus" else export_generator
    head = packed(runner, planned, target, hub)
    say(
        f"Wrote {target}: charged nothing, recorded in the ledger.",
        f"Ledger head over {head.entries} entries: {head.root}",
        f"Anyone can check it: dpsynth verify {target.name} --head {head.root}",
    )


def verify(folder: Path, head: str | None = None, as_json: AsJson = False) -> None:
    """Check that files, label, card and proof of a package agree; exit code 1 if they do not.

    Needs no ledger. Only with --head is the proof compared with a head the owner published.

    Args:
        folder: A folder that `dpsynth export` wrote.
        head: Root of a ledger head that the owner has published.
        as_json: Print JSON.
    """
    from dpsynth_assets.exports.verification import verify_package

    if not folder.is_dir():
        raise PrivacyError(f"Expected a folder of `dpsynth export`, got none at {folder}.")
    found = verify_package(folder, None if head is None else head.strip().lower())
    shown = None if found.head is None else vars(found.head)
    facts = {"ok": not found.problems, "problems": list(found.problems), "head": shown}
    if found.problems or found.label is None or found.head is None:
        told = partial(complain, *map(printable, found.problems))
    else:
        lines = _agreement(found.label, found.head.entries, found.head.root, head)
        told = partial(say, *map(printable, lines))
    answer(facts, as_json, told, code=1 if found.problems else 0)


def _agreement(label: dict, entries: int, root: str, published: str | None) -> list[str]:
    compared = (
        "This is the head that you named."
        if published is not None
        else "Compare it with a head that the owner has published: --head."
    )
    return [
        f"Files, label, card and proof agree: {label['method']['title']}, {_price(label, ' at ')}, "
        f"unit: {label['privacy_unit']}.",
        f"The proof leads to the ledger head {root} over {entries} entries. {compared}",
    ]
