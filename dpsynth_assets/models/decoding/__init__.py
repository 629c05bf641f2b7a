"""Packed, key/value-cached decoding over any causal language model of transformers.

Many contexts run as the rows of one forward pass. Each row writes its own cache column, so a
document that ends makes its rows start again from the cached prompt while other rows continue: no
second prefill, no idle rows. Public text that prompts share is read once. On CUDA the decoding
pass is captured as a graph.

Shape letters: R rows, P prompt columns (a public pad length), T new tokens, V vocabulary,
L layers, G key/value heads, H query heads, D head width.
"""

from dpsynth_assets.models.decoding.constraint import ConstrainedText, JsonConstraint
from dpsynth_assets.models.decoding.context_window import (
    attention_limit,
    is_exact,
    is_vllm,
    require_groups,
    require_room,
)
from dpsynth_assets.models.decoding.contexts import PackedContexts, PublicContexts
from dpsynth_assets.models.decoding.opening import (
    Contexts,
    decoding_model,
    open_contexts,
)
from dpsynth_assets.models.decoding.prefixes import public_prefix
from dpsynth_assets.models.decoding.sampling import SamplingRules, sample_documents

__all__ = [
    "ConstrainedText",
    "Contexts",
    "JsonConstraint",
    "PackedContexts",
    "PublicContexts",
    "SamplingRules",
    "attention_limit",
    "decoding_model",
    "is_exact",
    "is_vllm",
    "open_contexts",
    "public_prefix",
    "require_groups",
    "require_room",
    "sample_documents",
]
