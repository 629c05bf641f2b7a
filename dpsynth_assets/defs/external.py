"""Datasets, public bases and benchmarks outside the package, in folders of DPSYNTH_DATASETS."""

from functools import partial
from pathlib import Path

import dagster as dg


@dg.definitions
def external() -> dg.Definitions:
    """Loads every `*.yaml` of the folders that DPSYNTH_DATASETS names.

    A file that cannot be used is an asset that says why.
    """
    from dpsynth_assets.datasets import dataset_folders, standing
    from dpsynth_assets.datasets.benchmark_spec import BenchmarkFile, benchmark_files
    from dpsynth_assets.orchestration.components.benchmark import benchmark_file_definitions
    from dpsynth_assets.orchestration.components.declared import file_definitions
    from dpsynth_assets.orchestration.components.refused import contained, refused_by_file

    own, *folders = dataset_folders()
    found = standing([own, *folders])
    parts = [
        contained(file.path, partial(file_definitions, file.spec, file.path))
        for file in found.usable
        if not file.path.is_relative_to(own.resolve())
    ]
    outside = {
        path: problems
        for path, problems in found.refused.items()
        if not path.is_relative_to(own.resolve())
    }
    for each in benchmark_files(folders):
        if isinstance(each, BenchmarkFile):
            build = partial(benchmark_file_definitions, each.spec, each.path)
            parts.append(contained(each.path, build))
        else:
            place = Path(each.file)
            outside[place] = (*outside.get(place, ()), each)
    return dg.Definitions.merge(refused_by_file(outside), *parts)
