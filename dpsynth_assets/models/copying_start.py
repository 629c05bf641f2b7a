"""Weights that copy from a prompt: one previous-token and one induction head.

The first head of layer 0 attends to the token before, and the first head of layer 1 attends to what
followed earlier occurrences of the current token, and raises its probability. Everything else is
random as usual.

**Source**: the circuit is described in Olsson et al. 2022, "In-context learning and induction
heads"; setting it by hand is ours. Letters: d width, h head width, V vocabulary.
"""

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

EMBEDDING_SCALE = 0.12
CONSTANT_SHARE = 0.7
"""Size of the direction that all embeddings share, in units of their random part."""
PREVIOUS_PEAK = 30.0
MATCH_PEAK = 14.0
MEMORY_SCALE = 1.6
COPY_SCALE = 6.0
SLOW_FREQUENCY = 0.008
"""Rotary frequencies below this, in radians a token, hardly turn within a prompt."""


def start_with_copying(model: Any) -> None:
    """Sets embeddings and the first heads of layers 0 and 1 of a fresh Llama, in place.

    Args:
        model: `LlamaForCausalLM` with tied embeddings and at least two layers; random numbers come
            from torch's default generator, so the caller's seed decides.
    """
    import torch

    config = model.config
    with torch.no_grad():
        shared = torch.ones(config.hidden_size) / config.hidden_size**0.5
        _set_embeddings(model.model.embed_tokens.weight)
        basis = _basis_orthogonal_to(shared)
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        frequencies = _rotary_frequencies(config)
        width = 2 * int((frequencies <= SLOW_FREQUENCY).sum())
        read, write = basis[:, :width], basis[:, width : 2 * width]
        _set_previous_token_head(model.model.layers[0].self_attn, frequencies, shared, read, write)
        _set_induction_head(model.model.layers[1].self_attn, frequencies, basis, width)


def _set_embeddings(weight: "torch.Tensor") -> None:
    """Random embeddings with one constant direction, which a softmax over tokens cannot see."""
    weight.normal_()
    size = EMBEDDING_SCALE * weight.shape[1] ** 0.5
    weight -= weight.mean(dim=1, keepdim=True)
    weight *= size / weight.norm(dim=1, keepdim=True)
    weight += CONSTANT_SHARE * EMBEDDING_SCALE


def _basis_orthogonal_to(shared: "torch.Tensor") -> "torch.Tensor":
    """Random orthonormal columns [d, d - 1], all orthogonal to `shared`."""
    import torch

    columns = torch.cat([shared[:, None], torch.randn(len(shared), len(shared) - 1)], dim=1)
    return torch.linalg.qr(columns)[0][:, 1:]


def _rotary_frequencies(config: Any) -> "torch.Tensor":
    """Radians a token of each rotary pair [h / 2], fast to slow."""
    import torch

    theta = config.rope_parameters["rope_theta"]
    return theta ** (-torch.arange(0, config.head_dim, 2).float() / config.head_dim)


def _set_previous_token_head(
    attention: Any,
    frequencies: "torch.Tensor",
    shared: "torch.Tensor",
    read: "torch.Tensor",
    write: "torch.Tensor",
) -> None:
    """Head 0 attends one token back by phase alone and stores that token's `read` part in `write`.

    With query R(t) a and key R(s) R(1) a, the score is largest where s = t - 1.
    """
    import torch

    half = len(frequencies)
    fast = torch.zeros(half)
    fast[:4] = 1.0
    query = torch.cat([fast, torch.zeros(half)])
    key = torch.cat([fast * frequencies.cos(), fast * frequencies.sin()])
    strength = math.sqrt(PREVIOUS_PEAK * (2 * half) ** 0.5 / fast.sum())
    per_token = CONSTANT_SHARE / math.hypot(1.0, CONSTANT_SHARE) * len(shared) ** 0.5
    head, width = 2 * half, read.shape[1]
    attention.q_proj.weight[:head] = strength * torch.outer(query, shared) / per_token
    attention.k_proj.weight[:head] = strength * torch.outer(key, shared) / per_token
    attention.v_proj.weight[:head] = 0.0
    attention.v_proj.weight[:width] = read.T
    attention.o_proj.weight[:, :width] = MEMORY_SCALE * EMBEDDING_SCALE * _norm() * write
    attention.o_proj.weight[:, :width] *= math.hypot(1.0, CONSTANT_SHARE)


def _set_induction_head(
    attention: Any, frequencies: "torch.Tensor", basis: "torch.Tensor", width: int
) -> None:
    """Head 0 matches the current token with stored previous ones and copies what follows them."""
    import torch

    half = len(frequencies)
    first_slow = half - width // 2
    slow = torch.cat([torch.arange(first_slow, half), torch.arange(half + first_slow, 2 * half)])
    model_width = len(basis)
    stored = MEMORY_SCALE * EMBEDDING_SCALE * _norm()
    residual = math.sqrt((EMBEDDING_SCALE * _norm()) ** 2 + stored**2 * width / model_width)
    token_part, stored_part = EMBEDDING_SCALE / residual, stored / residual
    sharpness = math.sqrt(MATCH_PEAK * (2 * half) ** 0.5 / (width * token_part * stored_part))
    query, key = torch.zeros(2 * half, model_width), torch.zeros(2 * half, model_width)
    query[slow], key[slow] = (
        sharpness * basis[:, :width].T,
        sharpness * basis[:, width : 2 * width].T,
    )
    attention.q_proj.weight[: 2 * half] = query
    attention.k_proj.weight[: 2 * half] = key
    copied = torch.cat([basis[:, :width], basis[:, 2 * width :]], dim=1)[:, : 2 * half]
    columns = copied.shape[1]
    attention.v_proj.weight[: 2 * half] = 0.0
    attention.v_proj.weight[:columns] = copied.T
    attention.o_proj.weight[:, :columns] = COPY_SCALE * EMBEDDING_SCALE * _norm() * copied


def _norm() -> float:
    """Norm of an embedding in units of its random part."""
    return math.hypot(1.0, CONSTANT_SHARE)
