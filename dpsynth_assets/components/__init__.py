"""Dagster components: one YAML file declares a private dataset or a public base."""

from dpsynth_assets.components.private_dataset import PrivateDataset
from dpsynth_assets.components.public_data import PublicData

__all__ = ["PrivateDataset", "PublicData"]
