"""Fine-tuning of any transformers model on private text by DP-Adam.

Read in this order: `adapters` (what is trained beside frozen weights), `sources` (settings, losses
of single examples, gradients of records here or with workers), `training` (the function to call,
and the state of an unfinished run) and `rehearsals` (on public text: models that cannot be
trained).
"""

from dpsynth_assets.models.fine_tuning.adapters import (
    add_adapters,
    merge_adapters,
    multiply_in_integers,
)
from dpsynth_assets.models.fine_tuning.rehearsals import (
    mean_loss,
    refuse_untrainable,
)
from dpsynth_assets.models.fine_tuning.sources import (
    CausalLoss,
    ExampleLoss,
    FineTuningSettings,
    PartGradients,
    SplitExamples,
    TokenExample,
)
from dpsynth_assets.models.fine_tuning.training import (
    FineTuningFacts,
    fine_tune_privately,
)
