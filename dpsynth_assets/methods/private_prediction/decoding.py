"""What computes the logits of private prompts: a base declares it, and plans price by it."""

from typing import Any

from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.models.decoding import decoding_model

DECODER = "decoder"
"""Parameter of a charge that names the decoder, where it is another than transformers."""


def decoder_of(terms: CohortTerms, language_model: Any) -> Any:
    """Opens what decodes for a cohort: nothing but its declared terms decides which.

    **Privacy** Plan and run read the same declaration, so logits are exact wherever no rounding is
    charged.

    Raises:
        ExactDecoderError: The base declares the exact decoder, which does not compute this model.
    """
    return decoding_model(language_model, exactly=terms.decodes_exactly)


def decoder_parameters(terms: CohortTerms) -> dict[str, str]:
    """Parameters that say in plan, charge and label what decodes; none for transformers."""
    return {DECODER: "exact"} if terms.decodes_exactly else {}


def slack_refusal(terms: CohortTerms, logit_slack: float) -> str | None:
    """Says in one line why rounding may not go uncharged; None where it may, or is charged."""
    if logit_slack > 0 or terms.decodes_exactly or terms.language_model is None:
        return None
    return NO_SLACK


NO_SLACK = (
    "Expected logit_slack > 0 with decoder: transformers, whose rounding lets one record move "
    "another's logits, got 0. Drop it for its default, or declare language_model.decoder: exact."
)
