"""Context window of a model, and refusals of prompts and documents that do not fit."""

from collections.abc import Sequence
from typing import Any


def is_exact(model: Any) -> bool:
    """Says whether a row's logits are a function of its own context, bit for bit."""
    from dpsynth_assets.models.exact_decoder.decoder import ExactDecoder

    return isinstance(model, ExactDecoder)


def is_vllm(model: Any) -> bool:
    """Says whether vLLM computes the logits."""
    from dpsynth_assets.models.vllm_decoder.decoder import VllmDecoder

    return isinstance(model, VllmDecoder)


def require_groups(model: Any, groups: Sequence[tuple[int, int]]) -> None:
    """Refuses rows that vLLM has no room for; other decoders take memory as they go.

    Args:
        model: What decodes (`decoding_model`).
        groups: (rows, tokens of each at most) of contexts that are open at a time; public numbers.

    Raises:
        ValueError: In one line.
    """
    if is_vllm(model):
        model.require_groups(groups)


def rows_at_once(model: Any, rows: int, tokens: int) -> int:
    """Cuts a number of rows of so many tokens each to what vLLM has room for; at least one."""
    return min(rows, model.rows_at_once(tokens)) if is_vllm(model) else rows


def attention_limit(model: Any) -> int | None:
    """Reads the most tokens of prompt and document together; None where a model has no bound.

    The smaller of its positions and its sliding window: a row that outgrew the window would read
    other keys than the model was trained to.

    Args:
        model: What decodes (`decoding_model`).
    """
    if is_exact(model):
        return int(model.shape.positions)
    config = model.config
    limits = [getattr(config, "max_position_embeddings", None), _sliding_window(config)]
    if is_vllm(model):
        limits.append(model.most_tokens)
    return min((limit for limit in limits if limit is not None), default=None)


def require_room(
    model: Any,
    columns: int,
    *,
    what: str = "prompt and document",
    remedy: str = "Lower max_example_tokens, examples_per_context or max_document_tokens.",
) -> None:
    """Refuses weights that are not float32 on the CPU, and more tokens than the model attends over.

    Args:
        model: What decodes (`decoding_model`).
        columns: Tokens of the longest row.
        what: Names the row in the message.
        remedy: What its reader may change.

    Raises:
        ValueError: One of both.
    """
    import torch

    if not is_exact(model) and model.device.type == "cpu" and model.dtype != torch.float32:
        raise ValueError(
            f"Expected float32 weights on the CPU, got {model.dtype}: lower precision lets one "
            "record move another's logits. Load the model with dtype=torch.float32."
        )
    limit = attention_limit(model)
    if limit is not None and columns > limit:
        raise ValueError(
            f"Expected {what} within {limit} tokens of attention, got {columns}. {remedy}"
        )


def _sliding_window(config: Any) -> int | None:
    window = getattr(config, "sliding_window", None)
    layers = getattr(config, "layer_types", None)
    if layers is not None and "sliding_attention" not in layers:
        return None
    return window
