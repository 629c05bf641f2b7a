"""Finding a cohort's declaration by name."""

import difflib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpsynth_assets.datasets import (
    CohortSpec,
    DatasetFile,
    DatasetFileError,
    PrivateDatasetSpec,
    PublicDataSpec,
    complete_cohort,
    dataset_folders,
    standing,
)
from dpsynth_assets.datasets.standing import declared_base, shared_record_problems

if TYPE_CHECKING:
    from dpsynth_assets.methods.dataset_plan import DatasetPlan, PlannedMethod
    from dpsynth_assets.public_base import PublicBase


def cohort_names(incomplete: str) -> list[str]:
    """Names of declared cohorts that begin so, as a shell completes them; files are read alone."""
    known = standing(dataset_folders()).cohorts
    return sorted(name for name in known if name.startswith(incomplete))


CohortName = Annotated[
    str, typer.Argument(help="Name of a declared private dataset.", autocompletion=cohort_names)
]
"""The argument of commands that work on one cohort."""


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
    declared = standing(dataset_folders())
    cohorts = declared.cohorts
    if name not in cohorts:
        declared.require_usable(name)
        for file in declared.usable:
            if (made := _by_its_rule(name, file.spec)) is not None:
                cohorts[name] = made, file.path
    if name not in cohorts:
        hint = close_name(name, cohorts) or "Add its folder to DPSYNTH_DATASETS."
        if declared.refused:
            count = len(declared.refused)
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
        _refuse_shared_records(spec, declared.usable)
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
    from dpsynth_assets.public_base.documents import read_documents

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
    """The cohort of a dataset that nobody has registered yet; None where it has none of this name.

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
    declared = spec.part.dataset if isinstance(spec, CohortSpec) else spec.name
    mine = [
        file
        for file in files
        if isinstance(file.spec, PrivateDatasetSpec) and file.spec.name == declared
    ]
    if problems := shared_record_problems(mine, files):
        raise DatasetFileError(problems)
