"""Components: one YAML file declares a private dataset or a public base.

A component is a strict pydantic model read from YAML, with its paths resolved.
"""

from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import dagster as dg
from dagster.components.scaffold.scaffold import Scaffolder, ScaffoldRequest, scaffold_with
from pydantic import BaseModel

from dpsynth_assets.datasets import PrivateDatasetSpec, PublicDataSpec
from dpsynth_assets.datasets.files import render_environment, resolve_paths
from dpsynth_assets.datasets.template import dataset_template
from dpsynth_assets.orchestration.components.planning_problems import require_plan
from dpsynth_assets.orchestration.components.refused import contained

SpecT = TypeVar("SpecT", PrivateDatasetSpec, PublicDataSpec)


class DeclaredComponent(dg.Component, Generic[SpecT]):
    """A component whose attributes are exactly one declaration.

    Dagster's `Resolvable` would widen every field to `T | str`, which turns a violated bound into
    a TypeError without file and line; a plain model keeps pydantic's messages.
    """

    model: type[SpecT]
    spec: SpecT

    def __init__(self, spec: SpecT, file: Path) -> None:
        self.spec, self.file = spec, file

    @classmethod
    def get_model_cls(cls) -> type[BaseModel]:
        """The schema of `attributes:`; `dg check yaml` validates against it."""
        return cls.model

    @classmethod
    def load(cls, attributes: Any, context: dg.ComponentLoadContext) -> Self:
        """Builds the component from its YAML file."""
        values = (
            {} if attributes is None else attributes.model_dump(mode="json", exclude_unset=True)
        )
        spec = cls.model.model_validate(render_environment(values))
        file = Path(context.path) / "defs.yaml"
        return cls(resolve_paths(spec, file), file)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:  # noqa: ARG002
        """What the file declares; where that cannot be planned, an asset that says why."""
        return contained(self.file, lambda: file_definitions(self.spec, self.file))


class DatasetScaffolder(Scaffolder):
    """Writes a filled, commented dataset file instead of an empty one."""

    def scaffold(self, request: ScaffoldRequest) -> None:
        """Writes `defs.yaml` into the folder that `dg scaffold defs` made."""
        target = Path(request.target_path)
        target.mkdir(parents=True, exist_ok=True)
        (target / "defs.yaml").write_text(dataset_template(target.name))


@scaffold_with(DatasetScaffolder)
class PrivateDataset(DeclaredComponent[PrivateDatasetSpec]):
    """Differentially private synthetic text from one private dataset."""

    model = PrivateDatasetSpec

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        """What the UI and `dg list components` show."""
        return dg.ComponentTypeSpec(
            description=cls.__doc__,
            tags=["dpsynth"],
            produces=["asset", "asset_check", "schedule", "sensor", "job"],
        )


class PublicData(DeclaredComponent[PublicDataSpec]):
    """A public base that private datasets build on. Nothing in it reads private data."""

    model = PublicDataSpec

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        """What the UI and `dg list components` show."""
        return dg.ComponentTypeSpec(description=cls.__doc__, tags=["dpsynth"], produces=["asset"])


def file_definitions(spec: PrivateDatasetSpec | PublicDataSpec, file: Path) -> dg.Definitions:
    """Everything that one declaration adds to the asset graph.

    Raises:
        DatasetFileError: Its methods cannot be planned.
    """
    # Imported here: `dg list components` needs neither methods nor accounting.
    if isinstance(spec, PrivateDatasetSpec):
        from dpsynth_assets.orchestration.components.cohort import declared_definitions

        require_plan(spec, file)
        return declared_definitions(spec)
    from dpsynth_assets.orchestration.assets.public import public_definitions
    from dpsynth_assets.orchestration.assets.public_generation import generation_definitions

    return dg.Definitions.merge(public_definitions(spec), generation_definitions(spec))
