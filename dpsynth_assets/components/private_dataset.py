"""One YAML file: a private dataset, from its records to audited synthetic corpora."""

from pathlib import Path

import dagster as dg
from dagster.components.scaffold.scaffold import Scaffolder, ScaffoldRequest, scaffold_with

from dpsynth_assets.components.declared import DeclaredComponent
from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.datasets.template import dataset_template


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

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:  # noqa: ARG002
        """Assets, checks and schedule of the dataset."""
        from dpsynth_assets.components.cohort import declared_definitions

        return declared_definitions(self.spec)
