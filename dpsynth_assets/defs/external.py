"""Datasets, public bases and benchmarks outside the package, in folders of DPSYNTH_DATASETS."""

from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg


@dg.definitions
def external() -> dg.Definitions:
    """Loads every `*.yaml` of the folders that DPSYNTH_DATASETS names.

    A file that cannot be used is an asset that says why.
    """
    from dpsynth_assets.datasets import dataset_folders, standing
    from dpsynth_assets.datasets.benchmark_spec import BenchmarkFile, benchmark_files
    from dpsynth_assets.orchestration.components.declared import file_definitions
    from dpsynth_assets.orchestration.components.refused import contained, refused_definitions

    own, *folders = dataset_folders()
    found, inside = standing([own, *folders]), own.resolve()
    usable: list[Any] = [file for file in found.usable if not file.path.is_relative_to(inside)]
    refused = {
        path: problems
        for path, problems in found.refused.items()
        if not path.is_relative_to(inside)
    }
    for each in benchmark_files(folders):
        if isinstance(each, BenchmarkFile):
            usable.append(each)
        else:
            place = Path(each.file)
            refused[place] = (*refused.get(place, ()), each)
    return dg.Definitions.merge(
        *(refused_definitions(file, problems) for file, problems in refused.items()),
        *(contained(each.path, partial(file_definitions, each.spec, each.path)) for each in usable),
    )
