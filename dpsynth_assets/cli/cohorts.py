"""The cohorts of this installation: finding one by name, and what each has spent and left.

`dpsynth budgets`, and `dpsynth` without a command.
"""

import difflib
import os
from collections.abc import Collection, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpsynth_assets.cli.terminal import AsJson, answer, complain, say, show_table
from dpsynth_assets.datasets import (
    DatasetFile,
    DatasetFileError,
    PrivateDatasetSpec,
    PublicDataSpec,
    complete_cohort,
    dataset_folders,
    standing,
)
from dpsynth_assets.datasets.cohort_registry import name_in_file
from dpsynth_assets.datasets.standing import declared_base, shared_record_problems
from dpsynth_assets.paths import Home, home, home_root
from dpsynth_assets.privacy.directed_rounding import declared, epsilon_down, epsilon_up

if TYPE_CHECKING:
    from dpsynth_assets.methods.dataset_plan import DatasetPlan, PlannedMethod
    from dpsynth_assets.privacy.ledger import Ledger
    from dpsynth_assets.public_base import PublicBase
    from dpsynth_assets.report.budgets import Budgets

MOST_ROWS = 12
"""Cohorts that the overview shows: it is to fit a screen."""


def cohort_names(incomplete: str) -> list[str]:
    """Names of declared cohorts that begin so, as a shell completes them; files are read alone."""
    known = standing(dataset_folders()).cohorts
    return sorted(name for name in known if name.startswith(incomplete))


CohortName = Annotated[
    str, typer.Argument(help="Name of a declared private dataset.", autocompletion=cohort_names)
]
"""The argument of commands that work on one cohort."""
CohortIfAny = Annotated[str | None, typer.Argument(autocompletion=cohort_names)]
"""The same of commands that may work on all, or on none."""


def find_cohort(name: str, *, to_spend: bool = False) -> PrivateDatasetSpec:
    """The declaration of one private dataset.

    Args:
        name: Name of the cohort.
        to_spend: Whether it is to be planned or paid for.

    Raises:
        typer.BadParameter: If no dataset file declares it.
        DatasetFileError: If its file cannot be used, or it is to spend and cannot be planned, or
            another file reads its records under an account of its own.
    """
    return _found(name, to_spend=to_spend)[0]


def find_file(name: str) -> Path:
    """The file that declares a cohort, or its dataset; refusals as of `find_cohort`."""
    return _found(name, to_spend=False)[1]


def _found(name: str, *, to_spend: bool) -> tuple[PrivateDatasetSpec, Path]:
    found = standing(dataset_folders())
    cohorts = found.cohorts
    if name not in cohorts:
        found.require_usable(name)
        for file in found.usable:
            if (made := _by_its_rule(name, file.spec)) is not None:
                cohorts[name] = made, file.path
    if name not in cohorts:
        hint = close_name(name, cohorts) or "Add its folder to DPSYNTH_DATASETS."
        if found.refused:
            count = len(found.refused)
            files = "1 file here cannot" if count == 1 else f"{count} files here cannot"
            hint += f" {files} be used: dpsynth datasets check says why."
        raise typer.BadParameter(
            f"Expected one of the declared cohorts ({', '.join(sorted(cohorts)) or 'none'}), "
            f"got {name!r}. {hint}"
        )
    spec, path = cohorts[name]
    if to_spend:
        from dpsynth_assets.orchestration.components.refused import require_plan

        require_plan(spec, path)
        _refuse_shared_records(spec, found.usable)
    return spec, path


def find_method(plan: "DatasetPlan", folder: str) -> "PlannedMethod":
    """A method of a plan by its folder.

    Raises:
        typer.BadParameter: It has none of this name.
    """
    found = {each.folder: each for each in plan.methods}
    if folder not in found:
        cohort = plan.terms.cohort
        raise typer.BadParameter(
            f"Expected a method of {cohort} ({', '.join(found)}), got {folder!r}."
        )
    return found[folder]


def public_base(name: str) -> "PublicBase":
    """A declared public base; its documents and models are made here if they have not been.

    Raises:
        ValueError: No dataset file declares it.
    """
    from dpsynth_assets.public_base import PublicBase
    from dpsynth_assets.public_base.making import read_documents

    base = declared_base(name)
    if base is None:
        raise ValueError(f"Expected a declared public base, got {name!r}. Declare it.")
    fields = base.model_dump(mode="json", exclude_unset=True, exclude={"name"})
    return PublicBase(None if base.invents_documents else read_documents(base), name=name, **fields)


def close_name(name: str, known: Collection[str]) -> str:
    """Asks whether a known name was meant; empty where none is like it."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"Did you mean {close[0]!r}?" if close else ""


def _by_its_rule(name: str, spec: PrivateDatasetSpec | PublicDataSpec) -> PrivateDatasetSpec | None:
    """The cohort of a dataset that is not registered yet; None where it has none of this name.

    Raises:
        typer.BadParameter: It will have one, which is not complete yet.
    """
    key = name.removeprefix(f"{spec.name}_")
    if not isinstance(spec, PrivateDatasetSpec) or spec.cohorts is None or key == name:
        return None
    if not spec.cohorts.has_key(key):
        return None
    try:
        return complete_cohort(spec, key)
    except ValueError as problem:
        raise typer.BadParameter(f"{problem}") from None


def _refuse_shared_records(spec: PrivateDatasetSpec, files: Sequence[DatasetFile]) -> None:
    """Refuses a cohort whose records another file reads under an account of its own."""
    mine = [file for file in files if file.spec.name == name_in_file(spec)]
    if problems := shared_record_problems(mine, files):
        raise DatasetFileError(problems)


def budgets(as_json: AsJson = False) -> None:
    """Show the ε spent, the ε left and the rounds left of every cohort.

    Writes the page `budgets.html` next to the audit pages. Exit code 1 if a cohort is overspent,
    the ledger does not verify, or an audit found a disagreement.
    """
    from dpsynth_assets.cli.ledger import ledger_if_any
    from dpsynth_assets.orchestration.assets.privacy_budgets import budgets_now, write_page
    from dpsynth_assets.orchestration.instance import dagster_instance

    book = ledger_if_any()
    with dagster_instance() as instance:
        told = budgets_now(book, instance)
    write_page(told)
    answer(told.to_json(), as_json, lambda: _print_budgets(told), code=1 if told.problems() else 0)


def _print_budgets(told: "Budgets") -> None:
    from dpsynth_assets.orchestration.assets.privacy_budgets import PAGE
    from dpsynth_assets.report.audit_page import BUDGETS

    left_out = {"ε guaranteed", "δ", "guarantee", "privacy unit", "last charge (UTC)"}
    show_table(
        told.cohorts,
        {name: cell for name, cell in BUDGETS.items() if name not in left_out},
        title="Privacy budgets",
        wraps=("cohort",),
        width=140,
    )
    say(*(f"{each.cohort}: {each.guarantee}; unit: {each.unit or '—'}" for each in told.cohorts))
    say(f"Page: {home().reports / PAGE}")
    complain(*told.problems())


def overview() -> None:
    """Prints where this installation is, its cohorts with their budgets, and the next commands.

    Reads declarations, the ledger and names of files; creates nothing.
    """
    from dpsynth_assets.cli.ledger import ledger_if_any

    found = standing(dataset_folders())
    ledger = ledger_if_any()
    rows = [_row(found.cohorts[name][0], ledger) for name in sorted(found.cohorts)]
    say(*(f"{name:>8}: {value}" for name, value in _places()))
    if rows:
        show_table(rows[:MOST_ROWS], {name: itemgetter(name) for name in rows[0]})
    if len(rows) > MOST_ROWS:
        say(f"{len(rows) - MOST_ROWS} more: see `dpsynth budgets`.")
    if found.refused:
        files = len(found.refused)
        say(f"{files} unusable dataset file(s): `dpsynth datasets check` says why.", style="red")
    say(
        "Your own data: dpsynth init NAME --from FILE. Web UI: dpsynth ui.",
        "All commands: dpsynth --help.",
    )


def _places() -> Iterator[tuple[str, str]]:
    """The folders and addresses that commands of this terminal use."""
    root = home_root()
    new = "" if root.exists() else " (does not exist yet)"
    yield "home", f"{root}{new}"
    yield "dagster", os.environ.get("DAGSTER_HOME", str(Home(root).dagster))
    yield "datasets", ", ".join(str(folder) for folder in dataset_folders())


def _row(spec: PrivateDatasetSpec, ledger: "Ledger | None") -> dict[str, Any]:
    """What one cohort has spent and made, by column."""
    stores, budget = Home(home_root()), spec.budget.epsilon  # Looking creates nothing.
    corpora = [*(stores.released / spec.name).glob("*/data")]
    spend = None
    if ledger is not None:  # Before a first charge nothing heavy is imported.
        from dpsynth_assets.methods.dataset_plan import declared_spend

        spend = declared_spend(spec.account, ledger.account(spec.account), spec)
    left = None if spend is None else spend.remaining_epsilon
    charged = spend is not None and spend.dataset
    following = "report" if corpora else "run" if charged else "plan"
    return {
        "cohort": spec.name,
        "ε spent": epsilon_up(0.0 if spend is None else spend.epsilon),
        "ε left": epsilon_down(budget if left is None else left),
        "of": declared(budget),
        "corpora": str(len(corpora)),
        "next": f"dpsynth {following} {spec.name}",
    }
