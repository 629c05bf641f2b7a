"""One YAML file: a public base (corpus, embedder, clusters, language model) for datasets."""

import dagster as dg

from dpsynth_assets.components.declared import DeclaredComponent
from dpsynth_assets.datasets import PublicDataSpec


class PublicData(DeclaredComponent[PublicDataSpec]):
    """A public base that private datasets build on. Nothing in it reads private data."""

    model = PublicDataSpec

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        """What the UI and `dg list components` show."""
        return dg.ComponentTypeSpec(description=cls.__doc__, tags=["dpsynth"], produces=["asset"])

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:  # noqa: ARG002
        """Assets of the base."""
        from dpsynth_assets.assets.public import public_definitions
        from dpsynth_assets.assets.public_generation import generation_definitions

        return dg.Definitions.merge(
            public_definitions(self.spec), generation_definitions(self.spec)
        )
