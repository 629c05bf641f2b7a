"""What decodes a language model's prompts: exact integers, or floats of transformers or vLLM."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from dpsynth_assets.models.decoding.context_window import is_exact, is_vllm
from dpsynth_assets.models.decoding.contexts import PackedContexts, PublicContexts

if TYPE_CHECKING:
    import torch

    from dpsynth_assets.datasets.engine import EngineSpec


class Contexts(Protocol):
    """Prompts that were read, each with its own growing document.

    `PackedContexts` runs a transformers model, `ExactContexts` an exact decoder, `VllmContexts` a
    model in vLLM.
    """

    def next_logits(self, tokens: "torch.Tensor", generated: "torch.Tensor") -> "torch.Tensor":
        """Computes logits (R, V) of each row's next token; see `PackedContexts.next_logits`."""

    def keep(self, contexts: "torch.Tensor") -> None:
        """Drops all rows but these."""


def decoding_model(language_model: Any, *, exactly: bool, vllm: "EngineSpec | None" = None) -> Any:
    """Opens what computes a language model's logits: once a process, on first use.

    Args:
        language_model: A `LanguageModel`, or one with prompts of its own.
        exactly: Whether logits are computed in exact integers, as the public base declares.
        vllm: Memory that vLLM may use, where it computes them; None where it does not.

    Returns:
        An `ExactDecoder`, a `VllmDecoder`, or the transformers model.

    Raises:
        ExactDecoderError: The exact decoder does not compute this model.
        VllmDecoderError: vLLM is not installed or cannot load this model.
    """
    if vllm is not None:
        from dpsynth_assets.models.vllm_decoder.opening import opened_decoder as opened_in_vllm

        return opened_in_vllm(language_model, vllm)
    if not exactly:
        return language_model.model
    from dpsynth_assets.models.exact_decoder.opening import opened_decoder

    return opened_decoder(language_model.source, language_model.encode)


def open_contexts(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    prompt_columns: int,
    max_new_tokens: int,
    pad_token_id: int,
    public_prefixes: Sequence[Sequence[int]] = (),
    rows_per_prefill: int = 16,
    public: bool = False,
) -> Contexts:
    """Reads prompts into a cache of keys and values.

    Args:
        model: What decodes (`decoding_model`).
        prompts: R token sequences of 1..P ids.
        prompt_columns: P, a public constant.
        max_new_tokens: The longest document any row will hold.
        pad_token_id: Filler of prompts, where they are padded at all.
        public_prefixes: Public token sequences that prompts may begin with; read once each.
        rows_per_prefill: Rows of one prefill pass, where rounding could follow their number.
        public: Whether prompts and their number are public: passes are then not filled up.

    Raises:
        ValueError: A prompt is empty or longer than P, or P and the document exceed the model's
            attention.
    """
    if is_exact(model):
        from dpsynth_assets.models.exact_decoder.contexts import ExactContexts

        return ExactContexts(
            model,
            prompts,
            prompt_columns=prompt_columns,
            max_new_tokens=max_new_tokens,
            public_prefixes=public_prefixes,
        )
    if is_vllm(model):
        from dpsynth_assets.models.vllm_decoder.contexts import VllmContexts

        return VllmContexts(
            model,
            prompts,
            prompt_columns=prompt_columns,
            max_new_tokens=max_new_tokens,
            public=public,
        )
    kind = PublicContexts if public else PackedContexts
    return kind(
        model,
        prompts,
        prompt_columns=prompt_columns,
        max_new_tokens=max_new_tokens,
        pad_token_id=pad_token_id,
        rows_per_prefill=rows_per_prefill,
        public_prefixes=public_prefixes,
    )
