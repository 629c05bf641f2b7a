"""Finding a cohort's declaration by name."""

import difflib

import typer

from dpsynth_assets.datasets import PrivateDatasetSpec, PublicDataSpec, cohorts_of
from dpsynth_assets.datasets.files import dataset_folders, load_dataset_files


def find_cohort(name: str) -> PrivateDatasetSpec:
    """The declaration of one private dataset.

    Raises:
        typer.BadParameter: If no dataset file declares it.
    """
    specs = [file.spec for file in load_dataset_files(dataset_folders())]
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
    return cohorts[name]
