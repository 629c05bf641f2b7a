"""Shape and weights of a Llama checkpoint: integer products, and scales beside them."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from dpsynth_assets.models.exact_decoder.attention import WEIGHT_TOTAL, query_limit
from dpsynth_assets.models.exact_decoder.integer_products import (
    KERNELS,
    LIMIT,
    ExactDecoderError,
    IntegerProduct,
    Kernel,
    fastest_kernel,
    quantized_weight,
)

_VOCABULARY_BLOCK = 6144
"""Output channels of the vocabulary that are computed at a time, to stay in the cache."""
_NORMED_STRENGTH, _STRENGTH = 0.7, 0.5
"""Share of the activations' spread that goes into the weights (alpha of SmoothQuant): after a norm
inside a layer, and elsewhere. Chosen on reviews and news, by the divergence from float32."""
_RARE = 0.05
"""Channels count as at least this share of the mean: text read later may use them more."""
_VALUE_MARGIN = 1.1
"""Bound on what rounding to 8 bits adds to the norm of a normalised row."""


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
        return cls(
            layers=config.num_hidden_layers,
            width=config.hidden_size,
            heads=config.num_attention_heads,
            groups=config.num_key_value_heads,
            depth=config.head_dim,
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


Product = TypeVar("Product")
"""What computes products on a kind of device."""


@dataclass(frozen=True)
class Layer(Generic[Product]):
    """One decoder layer.

    Attributes:
        head_limits: (H + 2G,), largest integer of a head.
        head_scales: (H + 2G,), what a head's largest magnitude is multiplied by for its scale.
        scale_limits: (H + 2G,), largest scales: exactness rests on those of values.
        attention_balance: (d,), multiplies the stream before it is rounded; the rest of the norm's
            weights is in the product.
        feed_forward_balance: As above, before the gated product.
        query_key_value: d -> (H + 2G) * D.
        attention_output: H * D -> d.
        gate_and_up: d -> 2h.
        down: h -> d.
    """

    head_limits: torch.Tensor
    head_scales: torch.Tensor
    scale_limits: torch.Tensor
    attention_balance: torch.Tensor
    feed_forward_balance: torch.Tensor
    query_key_value: Product
    attention_output: Product
    gate_and_up: Product
    down: Product


_BALANCES = ("attention_balance", "feed_forward_balance")
_PRODUCTS = ("query_key_value", "attention_output", "gate_and_up", "down")


@dataclass(frozen=True)
class Weights(Generic[Product]):
    """All weights of the decoder.

    Attributes:
        embeddings: (V, d) float32.
        layers: L layers.
        final_norm: (d,), multiplies the stream before it is rounded.
        vocabulary: d -> V in blocks of output channels.
    """

    embeddings: torch.Tensor
    layers: tuple[Layer[Product], ...]
    final_norm: torch.Tensor
    vocabulary: tuple[Product, ...]


EMBEDDINGS, HEAD = "model.embed_tokens.weight", "lm_head.weight"
ATTENTION, FEED_FORWARD, DOWN, FINAL = "attention", "feed_forward", "down", "final"
Magnitudes = Mapping[tuple[int, str], torch.Tensor]
"""Largest magnitude of each input channel, by layer and place; empty before any was observed."""


Table = Mapping[str, torch.Tensor]
"""Quantized weights by name, as they are stored: integers, scales and balances; no embeddings."""


def expect_weights(config: Any, table: Mapping[str, torch.Tensor], file: Path) -> None:
    """Refuses weights that cannot be rounded to integers, or are not of the configured shape.

    Args:
        config: The transformers configuration.
        table: Weights by transformers' names.
        file: Where they were read.

    Raises:
        ExactDecoderError: A weight is absent, of another shape, or not finite.
    """
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        expected = AutoModelForCausalLM.from_config(config).state_dict()
    for name, like in expected.items():
        weight = table.get(name)
        if weight is None and name == HEAD:  # It may be tied to the embeddings.
            continue
        got = "none" if weight is None else tuple(weight.shape)
        if weight is None or got != tuple(like.shape) or not bool(weight.isfinite().all()):
            raise ExactDecoderError(
                f"Expected {name} of shape {tuple(like.shape)} in {file}, all finite, got {got}, "
                "or NaN as a training that diverged leaves it. Restore the file and config.json."
            )


def quantized_table(
    shape: LlamaShape, table: Mapping[str, torch.Tensor], magnitudes: Magnitudes
) -> dict[str, torch.Tensor]:
    """Quantizes a checkpoint.

    Args:
        shape: Numbers of the model.
        table: Weights by transformers' names.
        magnitudes: Of activations, on public text. A channel with large activations and small
            weights loses precision in the weights and costs it in the activations: both are
            balanced (Xiao et al. 2023, SmoothQuant, equation 4).
    """
    head = table.get(HEAD, table[EMBEDDINGS]).float()
    vocabulary, final_norm = _balanced(
        head,
        table["model.norm.weight"].float(),
        magnitudes.get((shape.layers, FINAL)),
        _STRENGTH,
    )
    quantized = {"final_norm": final_norm.clone()}
    quantized |= _product("vocabulary", vocabulary, math.sqrt(shape.width) / LIMIT)
    for index in range(shape.layers):
        own = _quantized_layer(shape, _reader(table, index), index, magnitudes)
        quantized |= {f"layers.{index}.{name}": tensor for name, tensor in own.items()}
    return quantized


def integer_weights(
    shape: LlamaShape, embeddings: torch.Tensor, quantized: Table, kernel: Kernel | None = None
) -> Weights[IntegerProduct]:
    """Lays quantized weights out for products on a processor.

    Args:
        shape: Numbers of the model.
        embeddings: (V, d).
        quantized: What `quantized_table` returned.
        kernel: What computes products; None takes the fastest that is exact.
    """
    product = KERNELS[kernel or fastest_kernel(_shapes(quantized))]
    return laid_out(shape, embeddings, quantized, product, "cpu", _VOCABULARY_BLOCK)


def laid_out(
    shape: LlamaShape,
    embeddings: torch.Tensor,
    quantized: Table,
    product: "Callable[[torch.Tensor, torch.Tensor], Product]",
    device: torch.device | str,
    block: int,
) -> Weights[Product]:
    """Lays quantized weights out for the products of a device.

    Args:
        shape: Numbers of the model.
        embeddings: (V, d).
        quantized: What `quantized_table` returned.
        product: Takes integers (out, in) and scale (out,).
        device: Where all else is copied to.
        block: Output channels of the vocabulary that are computed at a time.
    """

    def number(name: str) -> torch.Tensor:
        return quantized[name].float().to(device)

    def multiply(name: str) -> Product:
        return product(quantized[f"{name}.integers"], quantized[f"{name}.scale"])

    def layer(own: str) -> Layer[Product]:
        parts: dict[str, Any] = {name: multiply(f"{own}.{name}") for name in _PRODUCTS}
        parts |= {name: number(f"{own}.{name}") for name in _BALANCES}
        numbers = _head_numbers(shape, float(quantized[f"{own}.value_unit"]))
        return Layer(*(each.to(device) for each in numbers), **parts)

    whole = (quantized[f"vocabulary.{part}"].split(block) for part in ("integers", "scale"))
    return Weights(
        embeddings=embeddings.float().to(device),
        layers=tuple(layer(f"layers.{index}") for index in range(shape.layers)),
        final_norm=number("final_norm"),
        vocabulary=tuple(map(product, *whole)),
    )


def _shapes(quantized: Table) -> set[tuple[int, int]]:
    """Shapes of the products; the vocabulary's is that of its blocks."""
    integers = [each for name, each in quantized.items() if name.endswith(".integers")]
    return {(min(len(each), _VOCABULARY_BLOCK), each.shape[1]) for each in integers}


def _product(name: str, weight: torch.Tensor, factor: float) -> dict[str, torch.Tensor]:
    integers, scale = quantized_weight(weight, factor)
    return {f"{name}.integers": integers, f"{name}.scale": scale}


def _reader(table: Mapping[str, torch.Tensor], index: int) -> Callable[[str], torch.Tensor]:
    return lambda name: table[f"model.layers.{index}.{name}.weight"].float()


def _quantized_layer(
    shape: LlamaShape,
    read: Callable[[str], torch.Tensor],
    index: int,
    magnitudes: Magnitudes,
) -> dict[str, torch.Tensor]:
    query_key_value, attention_balance = _balanced(
        torch.cat([read(f"self_attn.{name}_proj") for name in "qkv"]),
        read("input_layernorm"),
        magnitudes.get((index, ATTENTION)),
        _NORMED_STRENGTH,
    )
    up, down = _balanced_down(
        read("mlp.up_proj"), read("mlp.down_proj"), magnitudes.get((index, DOWN))
    )
    gate_and_up, feed_forward_balance = _balanced(
        torch.cat([read("mlp.gate_proj"), up]),
        read("post_attention_layernorm"),
        magnitudes.get((index, FEED_FORWARD)),
        _NORMED_STRENGTH,
    )
    normed = math.sqrt(shape.width) / LIMIT
    unit = _value_unit(shape, read("self_attn.v_proj") * read("input_layernorm"))
    return {
        "attention_balance": attention_balance.clone(),
        "feed_forward_balance": feed_forward_balance.clone(),
        "value_unit": torch.tensor(unit, dtype=torch.float64),
        **_product("query_key_value", query_key_value, normed),
        **_product("attention_output", read("self_attn.o_proj"), 1 / (LIMIT * unit)),
        **_product("gate_and_up", gate_and_up, normed),
        **_product("down", down, 1 / LIMIT),
    }


def _head_numbers(shape: LlamaShape, unit: float) -> tuple[torch.Tensor, ...]:
    """Largest integer, factor of the scale and largest scale of each of the H + 2G heads.

    `unit` is what a layer's values are multiplied by.
    """
    limit = query_limit(shape.depth)
    query_scale = 1 / (limit * math.sqrt(shape.depth))
    return (
        _per_head(shape, limit, LIMIT, LIMIT),
        _per_head(shape, query_scale, 1 / LIMIT, unit / LIMIT),
        _per_head(shape, math.inf, math.inf, WEIGHT_TOTAL),
    )


def _per_head(shape: LlamaShape, query: float, key: float, value: float) -> torch.Tensor:
    """One number for each of the (H + 2G) heads of queries, keys and values."""
    return torch.tensor(
        [query] * shape.heads + [key] * shape.groups + [value] * shape.groups, dtype=torch.float32
    )


def _value_unit(shape: LlamaShape, weight: torch.Tensor) -> float:
    """Computes the factor of values by which no scale of theirs exceeds `WEIGHT_TOTAL`.

    A normalised row has length sqrt(d), so no value exceeds that times a weight row's length. The
    margin is for rounding; a scale beyond it is cut, which costs accuracy and never exactness.
    """
    largest = _VALUE_MARGIN * math.sqrt(shape.width) * float(weight.norm(dim=1).max())
    return LIMIT * WEIGHT_TOTAL / max(largest, 1e-30)


def _balanced(
    weight: torch.Tensor,
    norm: torch.Tensor,
    magnitude: torch.Tensor | None,
    strength: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight (out, d) and what the normalised stream is multiplied by (d,): W g = (W') t."""
    if magnitude is None:
        return weight, norm
    with_norm = weight * norm
    share = _share(magnitude, with_norm, strength)
    return with_norm * share, 1 / share


def _balanced_down(
    up: torch.Tensor, down: torch.Tensor, magnitude: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of `up` (h, d) and columns of `down` (d, h), whose product stays the same."""
    if magnitude is None:
        return up, down
    share = _share(magnitude, down, _STRENGTH)
    return up / share[:, None], down * share


def _share(magnitude: torch.Tensor, weight: torch.Tensor, strength: float) -> torch.Tensor:
    """Scale that each input channel's weights (out, in) take on from its activations, (in,)."""
    activations = magnitude.clamp_min(_RARE * float(magnitude.mean()))
    weights = weight.norm(dim=0)
    weights = weights.clamp_min(max(_RARE * float(weights.mean()), 1e-30))
    return activations**strength / weights ** (1 - strength)
