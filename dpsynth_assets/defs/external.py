"""Datasets, public bases and benchmarks outside the package, in folders of DPSYNTH_DATASETS."""

from functools import partial
from typing import Any

import dagster as dg


@dg.definitions
def external() -> dg.Definitions:
    """Loads every `*.yaml` of the folders that DPSYNTH_DATASETS names.

    A file that cannot be used is an asset that says why.
    """
    from dpsynth_assets.datasets import dataset_folders, standing
    from dpsynth_assets.datasets.benchmark_spec import BenchmarkSpec, benchmark_files
    from dpsynth_assets.orchestration.components.declared import file_definitions
    from dpsynth_assets.orchestration.components.refused import contained, refused_definitions

    own, *folders = dataset_folders()
    found, inside = standing([own, *folders]), own.resolve()
    usable: list[Any] = [
        (file.spec, file.path) for file in found.usable if not file.path.is_relative_to(inside)
    ]
    refused = {
        path: problems
        for path, problems in found.refused.items()
        if not path.is_relative_to(inside)
    }
    for path, each in benchmark_files(folders):
        if isinstance(each, BenchmarkSpec):
            usable.append((each, path))
        else:
            refused[path] = (*refused.get(path, ()), each)
    return dg.Definitions.merge(
        *(refused_definitions(file, problems) for file, problems in refused.items()),
        *(contained(path, partial(file_definitions, spec, path)) for spec, path in usable),
    )
