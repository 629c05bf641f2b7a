"""The component `Benchmark`: methods beside one another on public corpora, as assets."""

from pathlib import Path
from typing import Any, Self

import dagster as dg
from pydantic import BaseModel

from dpsynth_assets.datasets.benchmark_spec import BenchmarkSpec, located, private_sources
from dpsynth_assets.datasets.files import render_environment
from dpsynth_assets.datasets.problems import DatasetFileError
from dpsynth_assets.orchestration.components.refused import contained


class Benchmark(dg.Component):
    """Methods of this project side by side: a partition for each dataset, method, ε and seed."""

    def __init__(self, spec: BenchmarkSpec, file: Path) -> None:
        self.spec, self.file = spec, file

    @classmethod
    def get_model_cls(cls) -> type[BaseModel]:
        """The schema of `attributes:`."""
        return BenchmarkSpec

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        """What the UI and `dg list components` show."""
        return dg.ComponentTypeSpec(description=cls.__doc__, tags=["dpsynth"], produces=["asset"])

    @classmethod
    def load(cls, attributes: Any, context: dg.ComponentLoadContext) -> Self:
        """Builds the component from its YAML file."""
        values = attributes.model_dump(mode="json", exclude_unset=True) if attributes else {}
        spec = BenchmarkSpec.model_validate(render_environment(values))
        file = Path(context.path) / "defs.yaml"
        return cls(located(spec, file), file)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:  # noqa: ARG002
        """Its assets; where it names private records, an asset that says so."""
        return contained(self.file, lambda: benchmark_file_definitions(self.spec, self.file))


def benchmark_file_definitions(spec: BenchmarkSpec, file: Path) -> dg.Definitions:
    """Everything that one benchmark adds to the asset graph.

    Raises:
        DatasetFileError: It names private records.
    """
    from dpsynth_assets.orchestration.assets.benchmark import benchmark_definitions

    problems = private_sources(spec, file)
    if problems:
        raise DatasetFileError(problems)
    return benchmark_definitions(spec)
