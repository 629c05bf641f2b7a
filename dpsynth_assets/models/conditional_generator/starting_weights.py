"""Starting weights of the embedded BART that save a small budget its first third.

Every residual branch starts at zero, so a fresh model is its embeddings; the output bias starts at
the logarithm of each token's public frequency; and in the last decoder layer attention to the
condition starts as a soft copy: a condition token attracts attention as far as it resembles what
is about to be written, and raises its own probability. All but the output bias is then trained.

With tied embeddings the hidden state of the last layer and the embedding of the next token point
the same way, so identity matrices are that copy. Letters: d width, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

COPY_SHARPNESS = 1.0
COPY_STRENGTH = 0.5
UNSEEN_COUNT = 0.5


def set_starting_weights(model: Any, documents: Sequence[Sequence[int]]) -> None:
    """Sets the weights of a fresh `BartForConditionalGeneration` in place.

    Args:
        model: Fresh model with tied embeddings; what is not named above stays random.
        documents: Public documents as token ids, end tokens included.
    """
    import torch

    with torch.no_grad():
        for layer in [*model.model.encoder.layers, *model.model.decoder.layers]:
            layer.self_attn.out_proj.weight.zero_()
            layer.fc2.weight.zero_()
        for layer in model.model.decoder.layers:
            layer.encoder_attn.out_proj.weight.zero_()
        _set_copying(model.model.decoder.layers[-1].encoder_attn)
        frequencies = log_frequencies(documents, model.config.vocab_size)
        model.final_logits_bias.copy_(torch.from_numpy(frequencies)[None])


def log_frequencies(documents: Sequence[Sequence[int]], vocabulary: int) -> np.ndarray:
    """Logarithm of each token's share of all tokens, float32 (V,); unseen ones count one half."""
    seen = np.concatenate([np.asarray(ids, dtype=np.int64) for ids in documents])
    counts = np.bincount(seen, minlength=vocabulary) + UNSEEN_COUNT
    return np.log(counts / counts.sum()).astype(np.float32)


def _set_copying(attention: Any) -> None:
    """Queries, keys, values and output as multiples of the identity."""
    import torch

    identity = torch.eye(attention.embed_dim)
    attention.q_proj.weight.copy_(COPY_SHARPNESS * identity)
    attention.k_proj.weight.copy_(COPY_SHARPNESS * identity)
    attention.v_proj.weight.copy_(identity)
    attention.out_proj.weight.copy_(COPY_STRENGTH * identity)
