"""Components: one YAML file declares a private dataset or a public base.

A component is a strict pydantic model read from YAML, with its paths resolved.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import dagster as dg
from dagster.components.scaffold.scaffold import Scaffolder, ScaffoldRequest, scaffold_with
from pydantic import BaseModel

from dpsynth_assets.datasets import PrivateDatasetSpec, PublicDataSpec, standing
from dpsynth_assets.datasets.benchmark_spec import BenchmarkSpec
from dpsynth_assets.datasets.files import render_environment, resolve_paths
from dpsynth_assets.datasets.template import dataset_template
from dpsynth_assets.orchestration.components.refused import (
    contained,
    refused_definitions,
    require_plan,
)

Spec = PrivateDatasetSpec | PublicDataSpec | BenchmarkSpec


class DeclaredComponent(dg.Component):
    """A component whose attributes are exactly one declaration.

    Dagster's `Resolvable` would widen every field to `T | str`, which turns a violated bound into
    a TypeError without file and line; a plain model keeps pydantic's messages.
    """

    model: ClassVar[type[Spec]]
    produces: ClassVar[Sequence[str]] = ("asset",)

    def __init__(self, spec: Spec, file: Path) -> None:
        self.spec, self.file = spec, file

    @classmethod
    def get_model_cls(cls) -> type[BaseModel]:
        """The schema of `attributes:`; `dg check yaml` validates against it."""
        return cls.model

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        """What the UI and `dg list components` show."""
        return dg.ComponentTypeSpec(
            description=cls.__doc__, tags=["dpsynth"], produces=[*cls.produces]
        )

    @classmethod
    def load(cls, attributes: Any, context: dg.ComponentLoadContext) -> Self:
        """Builds the component from its YAML file."""
        values = attributes.model_dump(mode="json", exclude_unset=True) if attributes else {}
        spec, file = cls.model.model_validate(render_environment(values)), Path(context.path)
        file /= "defs.yaml"
        return cls(resolve_paths(spec, file), file)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:  # noqa: ARG002
        """What the file declares; where that cannot be used, an asset that says why."""
        return contained(self.file, lambda: file_definitions(self.spec, self.file))


class DatasetScaffolder(Scaffolder):
    """Writes a filled, commented dataset file instead of an empty one."""

    def scaffold(self, request: ScaffoldRequest) -> None:
        """Writes `defs.yaml` into the folder that `dg scaffold defs` made."""
        target = Path(request.target_path)
        target.mkdir(parents=True, exist_ok=True)
        (target / "defs.yaml").write_text(dataset_template(target.name))


@scaffold_with(DatasetScaffolder)
class PrivateDataset(DeclaredComponent):
    """Differentially private synthetic text from one private dataset."""

    model = PrivateDatasetSpec
    produces = ("asset", "asset_check", "schedule", "sensor", "job")


class PublicData(DeclaredComponent):
    """A public base that private datasets build on. Nothing in it reads private data."""

    model = PublicDataSpec


class Benchmark(DeclaredComponent):
    """Methods side by side on public corpora: `dpsynth benchmark run` makes them, no asset does."""

    model = BenchmarkSpec


def file_definitions(spec: Spec, file: Path) -> dg.Definitions:
    """Everything that one declaration adds to the asset graph; nothing for a benchmark.

    Raises:
        DatasetFileError: Its methods cannot be planned.
    """
    # Imported here: `dg list components` needs neither methods nor accounting.
    if isinstance(spec, PrivateDatasetSpec):
        from dpsynth_assets.orchestration.components.cohort import declared_definitions

        require_plan(spec, file)
        return declared_definitions(spec)
    if isinstance(spec, PublicDataSpec):
        from dpsynth_assets.orchestration.assets import public

        return dg.Definitions.merge(
            public.public_definitions(spec), public.generation_definitions(spec)
        )
    return dg.Definitions()


def definitions_of_files(folders: Sequence[Path]) -> dg.Definitions:
    """Everything that the dataset files of folders declare.

    A file that cannot be used harms itself alone: it is an asset that says why.
    """
    found = standing(folders)
    return dg.Definitions.merge(
        *(refused_definitions(file, problems) for file, problems in found.refused.items()),
        *(
            contained(each.path, partial(file_definitions, each.spec, each.path))
            for each in found.usable
        ),
    )
