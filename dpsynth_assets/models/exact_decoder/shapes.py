"""Shapes of the models that the exact decoder computes, read from a configuration."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any


class ExactDecoderError(ValueError):
    """The exact decoder does not compute this model: expected, got, remedy in one line."""


@dataclass(frozen=True)
class LlamaShape:
    """Numbers of a Llama-shaped model.

    Attributes:
        layers: L.
        width: d.
        heads: H query heads.
        groups: G key/value heads; H is a multiple of G.
        depth: D, width of a head.
        positions: Tokens of prompt and document at most.
        vocabulary: V.
        norm_epsilon: Added to the mean square before its root is taken.
        rotary_base: theta of the rotary embedding.
    """

    layers: int
    width: int
    heads: int
    groups: int
    depth: int
    positions: int
    vocabulary: int
    norm_epsilon: float
    rotary_base: float

    @classmethod
    def of(cls, config: Any) -> "LlamaShape":
        """Reads a transformers configuration.

        Raises:
            ExactDecoderError: It is not a plain Llama model.
        """
        rotary = config.rope_parameters if config.model_type == "llama" else {}
        _require("model type", config.model_type, "llama")
        _require("activation", config.hidden_act, "silu")
        _require("biases", config.attention_bias or config.mlp_bias, False)
        _require("rotary embedding", rotary.get("rope_type", "default"), "default")
        depth = (
            getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        )
        return cls(
            layers=config.num_hidden_layers,
            width=config.hidden_size,
            heads=config.num_attention_heads,
            groups=config.num_key_value_heads,
            depth=depth,
            positions=config.max_position_embeddings,
            vocabulary=config.vocab_size,
            norm_epsilon=config.rms_norm_eps,
            rotary_base=rotary["rope_theta"],
        )


def computes_folder(folder: Path) -> bool:
    """Says whether the exact decoder computes the model of a folder in the transformers format."""
    from transformers import AutoConfig

    try:
        LlamaShape.of(AutoConfig.from_pretrained(folder, local_files_only=True))
    except (ExactDecoderError, OSError, ValueError):
        return False
    return (folder / "model.safetensors").is_file()


def _require(what: str, got: object, expected: object) -> None:
    if got != expected:
        raise ExactDecoderError(
            f"Expected a Llama model with {what} {expected!r}, got {got!r}; use the transformers "
            "engine for it."
        )
