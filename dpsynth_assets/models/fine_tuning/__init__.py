"""Fine-tuning of any transformers model on private text by DP-Adam, and its non-private twin.

Read in this order: `settings`, `losses` (what one example costs), `sources` (private or plain
gradients), `reports` (what a run reports, and when), `checkpoints`, `training` (the two functions
to call), `trial` (whether a model can be trained at all), `learning_rate` (chosen on public text)
and `adapters` (LoRA).
"""

from dpsynth_assets.models.fine_tuning.adapters import add_adapters, merge_adapters
from dpsynth_assets.models.fine_tuning.checkpoints import CheckpointFolders, kept_learning_rate
from dpsynth_assets.models.fine_tuning.dry_run import refuse_untrainable
from dpsynth_assets.models.fine_tuning.learning_rate import public_learning_rate
from dpsynth_assets.models.fine_tuning.losses import (
    CausalLoss,
    ClassificationLoss,
    ExampleLoss,
    SequenceToSequenceLoss,
    TokenExample,
)
from dpsynth_assets.models.fine_tuning.settings import FineTuningSettings
from dpsynth_assets.models.fine_tuning.sources import PlainSampling
from dpsynth_assets.models.fine_tuning.training import (
    FineTuningFacts,
    fine_tune,
    fine_tune_privately,
)

__all__ = [
    "CausalLoss",
    "CheckpointFolders",
    "ClassificationLoss",
    "ExampleLoss",
    "FineTuningFacts",
    "FineTuningSettings",
    "PlainSampling",
    "SequenceToSequenceLoss",
    "TokenExample",
    "add_adapters",
    "fine_tune",
    "fine_tune_privately",
    "kept_learning_rate",
    "merge_adapters",
    "public_learning_rate",
    "refuse_untrainable",
]
