"""What both components share: a strict pydantic model read from YAML, paths resolved."""

from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import dagster as dg
from pydantic import BaseModel

from dpsynth_assets.datasets import PrivateDatasetSpec, PublicDataSpec
from dpsynth_assets.datasets.files import render_environment, resolve_paths

SpecT = TypeVar("SpecT", PrivateDatasetSpec, PublicDataSpec)


class DeclaredComponent(dg.Component, Generic[SpecT]):
    """A component whose attributes are exactly one declaration.

    Dagster's `Resolvable` would widen every field to `T | str`, which turns a violated bound into
    a TypeError without file and line; a plain model keeps pydantic's messages.
    """

    model: type[SpecT]
    spec: SpecT

    def __init__(self, spec: SpecT) -> None:
        self.spec = spec

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
        return cls(resolve_paths(spec, Path(context.path) / "defs.yaml"))
