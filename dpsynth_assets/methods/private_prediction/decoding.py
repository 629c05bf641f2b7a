"""What computes the logits of private prompts, and what constrains the texts after them.

Both are declared; plans and charges name them.
"""

from typing import Any

from dpsynth_assets.datasets.engine import EngineSpec
from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.private_prediction.measured_slack import (
    NO_SLACK,
    batch_invariant,
    measured_refusal,
)
from dpsynth_assets.models.decoding import JsonConstraint, decoding_model

DECODER = "decoder"
"""Parameter of a charge that names the decoder, where it is another than transformers."""


def decoder_of(terms: CohortTerms, language_model: Any) -> Any:
    """Opens what decodes for a cohort: nothing but its declared terms decides which.

    **Privacy** Plan and run read the same declaration, so logits are exact wherever no rounding is
    charged.

    Raises:
        ExactDecoderError: The base declares the exact decoder, which does not compute this model.
        VllmDecoderError: The base declares vLLM, which is not installed or cannot load this model.
    """
    return decoding_model(language_model, exactly=terms.decodes_exactly, vllm=_vllm_memory(terms))


def _vllm_memory(terms: CohortTerms) -> EngineSpec | None:
    """Reads what vLLM may use off the dataset's engine if that is vLLM; None: it does not decode.

    It is no part of what is drawn: another size of the cache asks for no other release.
    """
    if not terms.decodes_in_vllm:
        return None
    return terms.engine if terms.engine.kind == "vllm" else EngineSpec(kind="vllm")


def decoder_parameters(terms: CohortTerms) -> dict[str, str]:
    """Parameters that say in plan, charge and label what decodes; none for transformers."""
    if terms.decodes_exactly:
        return {DECODER: "exact"}
    return {DECODER: "vllm"} if terms.decodes_in_vllm else {}


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
