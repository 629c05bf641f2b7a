"""CTCL's generator: writes a document for free-text aspects such as keywords and document type.

**Source**: Tan et al. 2025, section 3.1.
"""

from dpsynth_assets.models.conditional_generator.aspects import (
    aspects_from_language_model,
    aspects_text,
    condition_text,
)
from dpsynth_assets.models.conditional_generator.encoding import PairBatch
from dpsynth_assets.models.conditional_generator.generator import (
    ConditionalGenerator,
    load_conditional_generator,
    per_example_loss,
)
from dpsynth_assets.models.conditional_generator.prompted import prompt_condition

__all__ = [
    "ConditionalGenerator",
    "PairBatch",
    "aspects_from_language_model",
    "aspects_text",
    "condition_text",
    "load_conditional_generator",
    "per_example_loss",
    "prompt_condition",
]
