"""Finding a cohort's declaration by name."""

import difflib
from collections.abc import Sequence

import typer

from dpsynth_assets.datasets import (
    CohortSpec,
    DatasetFile,
    DatasetFileError,
    PrivateDatasetSpec,
    PublicDataSpec,
    cohorts_of,
)
from dpsynth_assets.datasets.files import dataset_folders, load_dataset_files
from dpsynth_assets.datasets.shared_records import shared_record_problems


def find_cohort(name: str, *, to_spend: bool = False) -> PrivateDatasetSpec:
    """The declaration of one private dataset.

    Args:
        name: Name of the cohort.
        to_spend: Whether it is to be planned or paid for.

    Raises:
        typer.BadParameter: If no dataset file declares it.
        DatasetFileError: If it is to spend and another file reads its records under an account of
            its own.
    """
    files = load_dataset_files(dataset_folders())
    specs = [file.spec for file in files]
    declared = [spec for spec in specs if isinstance(spec, PrivateDatasetSpec)]
    cohorts = {cohort.name: cohort for spec in declared for cohort in cohorts_of(spec)}
    if name not in cohorts:
        close = difflib.get_close_matches(name, cohorts, n=1)
        hint = f"Did you mean {close[0]!r}?" if close else "Add its folder to DPSYNTH_DATASETS."
        raise typer.BadParameter(
            f"Expected one of the declared cohorts ({', '.join(sorted(cohorts)) or 'none'}), "
            f"got {name!r}. {hint}"
        )
    bases = {spec.name for spec in specs if isinstance(spec, PublicDataSpec)}
    if cohorts[name].public_data not in bases:
        raise typer.BadParameter(
            f"Expected public_data of {name!r} to be one of {', '.join(sorted(bases))}, got "
            f"{cohorts[name].public_data!r}. Declare that public base, or name another."
        )
    if to_spend:
        _refuse_shared_records(cohorts[name], files)
    return cohorts[name]


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
