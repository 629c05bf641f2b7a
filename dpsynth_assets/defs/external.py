"""Datasets and public bases declared outside the package, in folders of DPSYNTH_DATASETS."""

import dagster as dg


@dg.definitions
def external() -> dg.Definitions:
    """Loads every `*.yaml` of the folders that DPSYNTH_DATASETS names."""
    from dpsynth_assets.assets.public import public_definitions
    from dpsynth_assets.assets.public_generation import generation_definitions
    from dpsynth_assets.components.cohort import declared_definitions
    from dpsynth_assets.datasets import PrivateDatasetSpec
    from dpsynth_assets.datasets.files import dataset_folders, load_dataset_files

    parts = []
    for file in load_dataset_files(dataset_folders()[1:]):
        if isinstance(file.spec, PrivateDatasetSpec):
            parts.append(declared_definitions(file.spec))
        else:
            parts += [public_definitions(file.spec), generation_definitions(file.spec)]
    return dg.Definitions.merge(*parts) if parts else dg.Definitions()
