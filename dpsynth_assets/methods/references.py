"""Settings of the reference corpora: the public floor and the ceiling without privacy."""

from typing import Any

from dpsynth_assets.methods.dataset_plan import DatasetPlan
from dpsynth_assets.methods.private_prediction.config import MeanUniformConfig

SPARE = 1.1
"""Documents that a reference samples for each row that is asked for: a few are blank."""


def reference_settings(plan: DatasetPlan) -> Any:
    """The references are sampled with the settings of the first method that decodes privately.

    Where none does, they end where the longest rows of the methods do: longer ones would not be
    compared with rows alike, and take as much longer to write.
    """
    if plan.predictions:
        return plan.predictions[0].config
    fields = ("max_new_tokens", "max_document_tokens")
    of_rows = (
        next(
            (getattr(each.config, name, None) for name in fields if hasattr(each.config, name)),
            None,
        )
        for each in plan.corpora
    )
    longest = max((length for length in of_rows if length is not None), default=None)
    settings = MeanUniformConfig()
    if longest is None:
        return settings
    least = min(longest, settings.min_tokens_for_new_document)
    return MeanUniformConfig(max_document_tokens=longest, min_tokens_for_new_document=least)


def examples_shown(plan: DatasetPlan) -> int:
    """Records in a prompt of the ceiling: as many as the most examples that a method shows."""
    return max((each.method.examples_in_prompt for each in plan.methods), default=1)
