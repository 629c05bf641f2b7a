"""CTCL's generator: writes a document for free-text aspects such as keywords and document type.

**Source**: Tan et al. 2025, section 3.1.
"""

from dpsynth_assets.models.conditional_generator.encoding import (
    condition_text,
    prompt_condition,
)
from dpsynth_assets.models.conditional_generator.generator import (
    ConditionalGenerator,
    load_conditional_generator,
    per_example_loss,
)
