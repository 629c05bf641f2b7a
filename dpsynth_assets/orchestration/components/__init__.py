"""Dagster components: one YAML file declares a private dataset or a public base."""

from dpsynth_assets.orchestration.components.declared import Benchmark, PrivateDataset, PublicData

__all__ = ["Benchmark", "PrivateDataset", "PublicData"]
