"""Fine-tuning of any transformers model on private text by DP-Adam, and its non-private twin.

Read in this order: `settings` (with LoRA adapters), `virtual_tokens` (prompt tuning),
`integer_base` (frozen layers in integers), `losses` (of one example), `sources` (private or plain
gradients), `split` (gradients of records that lie with workers), `reports` (of a run),
`checkpoints`, `training` (the two functions to call), `dry_run` (refuses models that cannot be
trained) and `learning_rate` (chosen on public text).
"""

from dpsynth_assets.models.fine_tuning.checkpoints import CheckpointFolders, kept_learning_rate
from dpsynth_assets.models.fine_tuning.dry_run import refuse_untrainable
from dpsynth_assets.models.fine_tuning.integer_base import multiply_in_integers
from dpsynth_assets.models.fine_tuning.learning_rate import public_learning_rate
from dpsynth_assets.models.fine_tuning.losses import (
    CausalLoss,
    ClassificationLoss,
    ExampleLoss,
    SequenceToSequenceLoss,
    TokenExample,
)
from dpsynth_assets.models.fine_tuning.settings import (
    FineTuningSettings,
    add_adapters,
    merge_adapters,
)
from dpsynth_assets.models.fine_tuning.sources import PlainSampling
from dpsynth_assets.models.fine_tuning.split import PartGradients, SplitExamples
from dpsynth_assets.models.fine_tuning.training import (
    FineTuningFacts,
    fine_tune,
    fine_tune_privately,
)
from dpsynth_assets.models.fine_tuning.virtual_tokens import (
    add_virtual_tokens,
    fold_virtual_tokens,
    reserved_tokens,
    virtual_tokens,
)

__all__ = [
    "CausalLoss",
    "CheckpointFolders",
    "ClassificationLoss",
    "ExampleLoss",
    "FineTuningFacts",
    "FineTuningSettings",
    "PartGradients",
    "PlainSampling",
    "SequenceToSequenceLoss",
    "SplitExamples",
    "TokenExample",
    "add_adapters",
    "add_virtual_tokens",
    "fine_tune",
    "fine_tune_privately",
    "fold_virtual_tokens",
    "kept_learning_rate",
    "merge_adapters",
    "multiply_in_integers",
    "public_learning_rate",
    "refuse_untrainable",
    "reserved_tokens",
    "virtual_tokens",
]
