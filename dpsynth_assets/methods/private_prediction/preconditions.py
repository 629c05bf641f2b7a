"""Checks before a charge that public settings and released numbers allow the run."""

import math
from typing import TYPE_CHECKING, Any

from dpsynth_assets.attacks.logit_moves import PassShape
from dpsynth_assets.methods.base import CohortTerms
from dpsynth_assets.methods.inputs import PublicInputs
from dpsynth_assets.methods.private_prediction.config import (
    PrivatePredictionConfig,
)
from dpsynth_assets.methods.private_prediction.decoding import (
    constraint_of,
    decoder_of,
    public_prompt,
    require_at_least_measured,
    require_invariant_kernels,
    require_measured,
    self_tested,
    stated,
)
from dpsynth_assets.models.decoding import (
    Decoder,
    JsonConstraint,
    sample_documents,
)
from dpsynth_assets.models.engines.protocol import Capability, Sampling
from dpsynth_assets.privacy.directed_rounding import rounded_up
from dpsynth_assets.privacy.guarantees import MEASURED_SLACK, SELF_TEST

if TYPE_CHECKING:
    from dpsynth_assets.methods.private_prediction.method import BatchPrediction

_TRIAL_TEXTS = 16
"""Texts that are tried before a charge: none of them is a record only where few would be."""


def charged_decoder(
    config: PrivatePredictionConfig,
    terms: CohortTerms,
    language_model: Any,
    passes: PassShape | None = None,
) -> Decoder:
    """Opens what decodes for a cohort: no caller may draw with rounding that is not charged.

    Raises:
        ValueError: As `check_slack`, or prompts would not stay on this machine.
    """
    decoder = decoder_of(terms, language_model)
    if Capability.PRIVATE_TEXT not in decoder.capabilities:
        raise ValueError(
            f"Expected a decoder that states Capability.PRIVATE_TEXT, got {type(decoder).__name__}."
        )
    check_slack(config, terms, language_model, decoder, passes)
    return decoder


def check_batches(method: "BatchPrediction[Any]", public: PublicInputs) -> None:
    """Refuses what batches cannot be cut from, and prompts that leave no room for a document.

    Args:
        method: The bound method.
        public: Language model, centres and released histogram.
    """
    declared, config, terms = method.declared, method.config, method.terms
    model = public.language_model
    constraint = constraint_of(terms, model)  # Before a prompt is written in the model's tokens.
    passes = method.pass_shape(model)
    decoder = charged_decoder(config, terms, model, passes)
    whole = passes.columns + config.max_document_tokens
    if constraint is not None:
        _require_a_record(constraint, terms, model, decoder, config.max_document_tokens)
    declared.check(public)
    decoder.require_room(whole)
    groups = [(declared.rows_at_hand, whole)] if declared.rows_per_pass else []
    if config.on_exhaustion == "finish_publicly" or method.compares_with_public_prompts:
        prompt = max(len(public_prompt(model, text)) for text in terms.label_texts)
        decoder.require_room(
            prompt + config.max_document_tokens,
            what="public prompt and document",
            remedy="Shorten prompt.public in the dataset file or lower max_document_tokens.",
        )
        groups.append((config.batches_per_forward, prompt + config.max_document_tokens))
    decoder.require_groups(groups)
    _measured(config, terms, decoder, passes)  # Of no more rows than there is room for.


def check_slack(
    config: PrivatePredictionConfig,
    terms: CohortTerms,
    language_model: Any,
    decoder: Decoder,
    passes: PassShape | None = None,
) -> None:
    """Refuses rounding that is not charged, or by less than was measured.

    Args:
        config: The method's settings.
        terms: The cohort's declared terms.
        language_model: The public model.
        decoder: What decodes; nothing is asked of an exact one.
        passes: The largest passes of the plan, before a charge; None: they were tested.

    Raises:
        ValueError: In one line; also where a slack of 0 fails its self-test.
    """
    require_at_least_measured(terms, config.logit_slack)
    if terms.decodes_exactly:  # What is priced decides, not what a package says of itself.
        return
    if config.logit_slack == 0:
        require_invariant_kernels(decoder)
        self_tested(decoder, language_model, passes)


def logits_rest_on(method: "BatchPrediction[Any]", language_model: Any) -> dict[str, Any]:
    """States the self-test of uncharged rounding in vLLM, or what was measured of charged one.

    Returns:
        Nothing of other draws: what they rest on needs no measurement of its own.
    """
    config, terms, passes = method.config, method.terms, method.pass_shape(language_model)
    if terms.decodes_exactly:
        return {}
    decoder = decoder_of(terms, language_model)
    if config.logit_slack == 0 and terms.decodes_in_vllm:
        return {SELF_TEST: stated(self_tested(decoder, language_model, passes))}
    measured = _measured(config, terms, decoder, passes)
    return {} if measured is None else {MEASURED_SLACK: measured}


def _measured(
    config: PrivatePredictionConfig,
    terms: CohortTerms,
    decoder: Decoder,
    passes: PassShape,
) -> dict[str, Any] | None:
    """Takes what was measured of rounding, or refuses it; None in float32 on a processor."""
    import torch

    is_default = decoder.device.type == "cpu" and decoder.dtype == torch.float32
    if terms.decodes_exactly or config.logit_slack == 0 or is_default:
        return None
    measured = require_measured(terms, decoder, passes)
    if "logit_slack" not in config.model_fields_set:
        raise ValueError(
            f"Expected a declared logit_slack for {decoder.dtype} on {decoder.device.type}, got "
            "the default for float32 on a processor. Declare "
            f"{rounded_up(measured['by'], '.3g')}, which was measured, or more."
        )
    return measured


def memory_of_passes(
    method: "BatchPrediction[Any]", model: Any, device: str | None
) -> dict[str, Any]:
    """Counts what a pass of a planned method takes in memory where transformers decodes.

    Args:
        method: The bound method.
        model: Its language model, of which the configuration and the tokenizer are read.
        device: Where it will run, if this machine has such a device; else None.

    Returns:
        Rows and tokens of a pass, bytes of its keys and values and of all it takes, and what fits
        here: bytes beside the weights, rows, and the largest batch; None where it is not known.

    **Privacy** Settings, declared facts and the public model alone.
    """
    import torch

    from dpsynth_assets.models.transformers_decoder import memory

    shape, dtype = method.pass_shape(model), getattr(torch, model.dtype)
    tokens, kind = shape.columns + shape.new_tokens, (device or "cuda").partition(":")[0]

    def taken(rows: int, tokens: int) -> int:
        return memory.peak_bytes(model.config, rows, tokens, 0, dtype, kind)

    room = None if device is None else memory.room_on(torch.device(device), model.weight_bytes)
    fits = None if room is None else memory.rows_within(room, taken, shape.rows, tokens)
    return {
        "rows": shape.rows,
        "tokens": tokens,
        "cache_bytes": memory.cache_bytes(model.config, shape.rows, tokens, dtype, kind),
        "peak_bytes": taken(shape.rows, tokens),
        "passes": method.declared.passes,
        "room_bytes": room,
        "rows_that_fit": fits,
    }


def _require_a_record(
    constraint: JsonConstraint, terms: CohortTerms, model: Any, decoder: Decoder, longest: int
) -> None:
    """Refuses a length, a schema or an end token with which public prompts write no record.

    Stuck and cut texts are paid for and dropped: a run that writes nothing else buys no row.
    """
    labels = [terms.label_texts[each % len(terms.label_texts)] for each in range(_TRIAL_TEXTS)]
    prompts = [public_prompt(model, text) for text in labels]
    if max(map(len, prompts)) + longest > (decoder.attention_limit or math.inf):
        return  # Nothing is written from public prompts that long.
    sampled = sample_documents(
        decoder,
        model,
        prompts,
        Sampling(max_new_tokens=longest),
        texts=[constraint.open() for _ in prompts],
    )
    if not any(constraint.is_followed(model.decode(tokens)) for tokens in sampled):
        raise ValueError(
            f"Expected a record of the schema within max_document_tokens, got none in "
            f"{_TRIAL_TEXTS} texts of the public prompt with {longest} tokens. Raise it, bound the "
            "schema's strings (maxLength, maxItems), or choose another prompt.end."
        )
