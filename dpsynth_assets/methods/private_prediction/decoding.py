"""What computes the logits of private prompts, and what constrains the texts after them.

Both are declared; plans and charges name them.
"""

from typing import Any

from dpsynth_assets.datasets.engine import DEFAULT_DECODER
from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.private_prediction.measured_slack import (
    NO_SLACK,
    batch_invariant,
    measured_refusal,
)
from dpsynth_assets.models.decoding import Decoder, JsonConstraint, open_decoder

DECODER = "decoder"
"""Parameter of a charge that names the decoder, where it is another than transformers."""


def decoder_of(terms: CohortTerms, language_model: Any) -> Decoder:
    """Opens what decodes for a cohort: nothing but its declared terms decides which.

    **Privacy** Plan and run read the same declaration, so logits are exact wherever no rounding is
    charged.

    Raises:
        ExactDecoderError: The base declares the exact decoder, which does not compute this model.
        VllmDecoderError: The base declares vLLM, which is not installed or cannot load this model.
    """
    kind = _kind(terms)
    # Memory that it may use is no part of what is drawn: more of it asks for no other release.
    return open_decoder(kind, language_model, terms.engine if terms.engine.kind == kind else None)


def _kind(terms: CohortTerms) -> str:
    model = terms.language_model
    return DEFAULT_DECODER if model is None else model.decodes_by


def decoder_parameters(terms: CohortTerms) -> dict[str, str]:
    """Parameters that say in plan, charge and label what decodes; none for transformers."""
    kind = _kind(terms)
    return {} if kind == DEFAULT_DECODER else {DECODER: kind}


def constraint_of(terms: CohortTerms, language_model: Any) -> JsonConstraint | None:
    """What constrains the texts of a cohort; None where they are free."""
    if terms.json_schema is None:
        return None
    start = "" if terms.prompts is None else terms.prompts.text_start
    return JsonConstraint(language_model, terms.json_schema, start)


def slack_refusal(terms: CohortTerms, logit_slack: float) -> str | None:
    """Says in one line why rounding may not go uncharged; None where it may, or is charged.

    In vLLM it may where batch-invariant kernels are asked for. That they are at work is tested
    before the charge (`preconditions.check_slack`).
    """
    if terms.language_model is None:
        return None
    exact = terms.decodes_exactly or (terms.decodes_in_vllm and batch_invariant())
    if logit_slack == 0 and not exact:
        return NO_SLACK
    return measured_refusal(terms, logit_slack)
