"""Methods that fine-tune a public model on private records by DP-SGD.

`ctcl` (Tan et al. 2025) and what its tables compare it with: `dp_fine_tuning` (Yue et al. 2023),
`resampled` (Yu et al. 2024) and `downstream_fine_tuning`, which trains the downstream model itself.

Read in this order: `config`, `plan` (what is charged), `private_training` (the paid stage and its
run), `conditions` (what a record's pair is), `generators`, `generation` (stage of a generator
and the methods that release one), `writing` (its rows), `resampled`, `downstream`.
"""

from dpsynth_assets.methods.fine_tuning.downstream import DownstreamFineTuning
from dpsynth_assets.methods.fine_tuning.generation import Ctcl, DpFineTuning
from dpsynth_assets.methods.fine_tuning.resampled import Resampled

__all__ = ["Ctcl", "DownstreamFineTuning", "DpFineTuning", "Resampled"]
