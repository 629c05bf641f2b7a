"""Public artifacts as asset inputs."""

from collections.abc import Iterable

import dagster as dg

from dpsynth_assets.assets.keys import public_key
from dpsynth_assets.datasets import PrivateDatasetSpec


def public_ins(spec: PrivateDatasetSpec, names: Iterable[str]) -> dict[str, dg.AssetIn]:
    """Makes asset inputs of artifacts of the dataset's public base."""
    return {name: dg.AssetIn(public_key(spec.public_data, name)) for name in sorted(names)}
