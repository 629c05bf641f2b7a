"""Public artifacts as asset inputs, and the GPUs that a stage asks for."""

from collections.abc import Iterable

import dagster as dg

from dpsynth_assets.assets.keys import public_key
from dpsynth_assets.datasets import PrivateDatasetSpec
from dpsynth_assets.methods.dataset_plan import PlannedMethod, PlannedShared


def public_ins(spec: PrivateDatasetSpec, names: Iterable[str]) -> dict[str, dg.AssetIn]:
    """Makes asset inputs of artifacts of the dataset's public base."""
    return {name: dg.AssetIn(public_key(spec.public_data, name)) for name in sorted(names)}


def stage_devices(spec: PrivateDatasetSpec, planned: PlannedMethod | PlannedShared) -> int:
    """Counts the GPUs a stage asks for: as many as share the model, where it runs one."""
    return spec.engine.tensor_parallel_size if planned.method.uses_engine else 1
