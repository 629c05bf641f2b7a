"""`dpsynth export` and `dpsynth verify`: packages that leave, and checking one anywhere."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dpsynth_assets.cli.cohorts import CohortName, find_cohort
from dpsynth_assets.cli.terminal import AsJson, complain, say, show_json
from dpsynth_assets.paths import home
from dpsynth_assets.privacy.directed_rounding import epsilon_up, rounded_up
from dpsynth_assets.privacy.errors import PrivacyError


class What(StrEnum):
    """What of a method leaves."""

    CORPUS = "corpus"
    GENERATOR = "generator"


def export(
    cohort: CohortName,
    method: Annotated[str, typer.Argument(help="Key of a method in the dataset file.")],
    what: Annotated[What, typer.Option(help="Its rows, or the weights that wrote them.")] = (
        What.CORPUS
    ),
    output: Annotated[
        Path | None, typer.Option(help="Folder to write; default: below DPSYNTH_HOME/exports.")
    ] = None,
    license_id: Annotated[
        str, typer.Option("--license", help="Licence for the card, e.g. cc-by-4.0.")
    ] = "",
    language: Annotated[str, typer.Option(help="Language of the texts, e.g. en.")] = "",
) -> None:
    """Write a folder that leaves: rows or weights, card, privacy label, proof from the ledger.

    Charges nothing and leaves one line in the ledger, with the digest of every file. `dpsynth
    verify` checks the folder anywhere, without the ledger.
    """
    from dpsynth_assets.exports.exporting import export_corpus, export_generator
    from dpsynth_assets.exports.package import Packager
    from dpsynth_assets.methods.planning import plan_dataset
    from dpsynth_assets.orchestration.assets.audit import audit_results
    from dpsynth_assets.orchestration.resources.stores import PrivacyLedger, ReleaseStore
    from dpsynth_assets.report.hub import HubFacts

    spec = find_cohort(cohort)
    plan = plan_dataset(spec)
    planned = next((each for each in plan.methods if each.folder == method), None)
    if planned is None:
        keys = ", ".join(each.folder for each in plan.methods)
        raise typer.BadParameter(f"Expected a method of {cohort} ({keys}), got {method!r}.")
    packager = Packager(spec=spec, plan=plan, ledger=PrivacyLedger().open(), store=ReleaseStore())
    declared = spec.public_facts.labels
    classes = {name: list(declared[name]) for name in spec.columns.labels if name in declared}
    hub = HubFacts(license=license_id, language=language, classes=classes)
    target = (output or home().exports / cohort / f"{method}_{what}").resolve()
    if what is What.CORPUS:
        head = export_corpus(packager, planned, target, hub)
    else:
        head = export_generator(packager, planned, target, hub, audit_results)
    say(
        f"Wrote {target}: charged nothing, recorded in the ledger.",
        f"Ledger head over {head.entries} entries: {head.root}",
        f"Anyone can check it: dpsynth verify {target.name} --head {head.root}",
    )


def verify(
    folder: Annotated[Path, typer.Argument(help="A folder that `dpsynth export` wrote.")],
    head: Annotated[
        str | None, typer.Option(help="Root of a ledger head that the owner has published.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say whether files, label, card and proof of a package agree; exit code 1 if not.

    Needs no ledger. Without --head, nothing says that the owner stands by the proof's head.
    """
    from dpsynth_assets.exports.verification import verify_package

    if not folder.is_dir():
        raise PrivacyError(f"Expected a folder of `dpsynth export`, got none at {folder}.")
    found = verify_package(folder, None if head is None else head.strip().lower())
    if as_json:
        shown = None if found.head is None else vars(found.head)
        show_json({"ok": not found.problems, "problems": list(found.problems), "head": shown})
    elif found.problems:
        complain(*map(_printable, found.problems))
    elif found.label is not None and found.head is not None:
        lines = _agreement(found.label, found.head.entries, found.head.root, head)
        say(*map(_printable, lines))
    if found.problems:
        raise typer.Exit(1)


def _printable(line: str) -> str:
    """A line without what a terminal obeys: names and texts of a package are a stranger's."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in line)


def _agreement(label: dict, entries: int, root: str, published: str | None) -> list[str]:
    guarantee = label["guarantee"]
    price = (
        f"ε = {epsilon_up(guarantee['epsilon'])} at δ = {rounded_up(guarantee['delta'])}"
        if "epsilon" in guarantee
        else f"guarantee: {guarantee['type']}"
    )
    compared = (
        "It is the head you named."
        if published is not None
        else "Compare it with a head that the owner has published: --head."
    )
    return [
        f"Files, label, card and proof agree: {label['method']['title']}, {price}, "
        f"unit: {label['privacy_unit']}.",
        f"The proof leads to the ledger head {root} over {entries} entries. {compared}",
    ]
