"""Component types that a dataset file names: `type: dpsynth_assets.components.PublicData`."""

from dpsynth_assets.orchestration.components.declared import Benchmark, PrivateDataset, PublicData

__all__ = ["Benchmark", "PrivateDataset", "PublicData"]
