"""Starting weights of the embedded BART that save a small budget its first third.

Every residual branch starts at zero, so a fresh model is its embeddings; the output bias starts at
the logarithm of each token's public frequency; and in the last decoder layer attention to the
condition starts as a soft copy: a condition token attracts attention as far as it resembles what
is about to be written, and raises its own probability. All but the output bias is then trained.

With tied embeddings the hidden state of the last layer and the embedding of the next token point
the same way, so identity matrices are that copy. Letters: d width, V vocabulary.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpsynth_assets.models.conditional_generator.generator import write_format
from dpsynth_assets.models.conditional_generator.settings import GeneratorTrainingSettings
from dpsynth_assets.models.public_word_pieces import PublicWordPieces

WORD_PIECES = 30_522
PUBLIC_PART, RANDOM_PART = 0.9, 0.45
"""Parts of a token's first embedding: what its word means in public, and what is its own."""
EMBEDDING_NORM = 0.4
COPY_SHARPNESS = 1.0
COPY_STRENGTH = 1.0
UNSEEN_COUNT = 0.5


def write_new_model(settings: GeneratorTrainingSettings, folder: Path) -> None:
    """A BART of the asked size beside its tokenizer: tied embeddings, no dropout of any kind."""
    from transformers import AutoTokenizer, BartConfig, BartForConditionalGeneration

    tokenizer = AutoTokenizer.from_pretrained(folder)
    positions = max(settings.max_condition_tokens, settings.max_document_tokens)
    config = BartConfig(
        vocab_size=len(tokenizer),
        d_model=settings.width,
        encoder_layers=settings.encoder_layers,
        decoder_layers=settings.decoder_layers,
        encoder_attention_heads=settings.heads,
        decoder_attention_heads=settings.heads,
        encoder_ffn_dim=settings.feed_forward,
        decoder_ffn_dim=settings.feed_forward,
        max_position_embeddings=positions,
        dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
        encoder_layerdrop=0.0,
        decoder_layerdrop=0.0,
        init_std=EMBEDDING_NORM * settings.width**-0.5,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        decoder_start_token_id=tokenizer.bos_token_id,
        forced_eos_token_id=None,
    )
    BartForConditionalGeneration(config).save_pretrained(folder)
    write_format(
        folder, settings.max_condition_tokens, settings.max_document_tokens, [tokenizer.bos_token]
    )


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


def set_public_embeddings(weight: Any, tokens: Sequence[str]) -> int:
    """Starts the embeddings of known words from MiniLM's, in place.

    Words that mean alike then start alike, in every spelling: with and without a space before
    them, capitalised or not. A random part of its own keeps such tokens apart.

    Args:
        weight: (V, d) random embeddings.
        tokens: Text of each of the V tokens; a leading space begins a word.

    Returns:
        How many tokens were found among the public word pieces.

    Raises:
        FileNotFoundError: MiniLM's package is not installed.
    """
    import torch

    public = PublicWordPieces(WORD_PIECES)
    rows = {piece: row for row, piece in enumerate(public.pieces)}
    found = [
        (token, rows[piece])
        for token, text in enumerate(tokens)
        for piece in [_word_piece(text)]
        if piece in rows
    ]
    if found:
        places, pieces = (list(column) for column in zip(*found, strict=True))
        known = torch.from_numpy(public.embeddings(weight.shape[1])[pieces]).to(weight)
        with torch.no_grad():
            weight[places] = PUBLIC_PART * weight.std() * known + RANDOM_PART * weight[places]
    return len(found)


def _word_piece(text: str) -> str:
    """The piece that spells a token: a word's beginning as it is, a continuation after `##`."""
    begins = not text[:1].isalpha() or text[:1].isupper()
    word = text.strip().lower()
    return word if begins else f"##{word}"


def log_frequencies(documents: Sequence[Sequence[int]], vocabulary: int) -> np.ndarray:
    """Logarithm of each token's share of all tokens, float32 (V,); unseen ones count one half."""
    seen = np.concatenate([np.asarray(ids, dtype=np.int64) for ids in documents])
    counts = np.bincount(seen, minlength=vocabulary) + UNSEEN_COUNT
    return np.log(counts / counts.sum()).astype(np.float32)


class CopyingAttention:
    """The hand-set attention, to be put back while the rest learns around it.

    Without this the first steps, whose gradients only know how often each token occurs, wipe it out
    before the hidden states say anything that it could match.
    """

    def __init__(self, model: Any) -> None:
        attention = model.model.decoder.layers[-1].encoder_attn
        self._weights = [
            projection.weight
            for projection in (
                attention.q_proj,
                attention.k_proj,
                attention.v_proj,
                attention.out_proj,
            )
        ]
        self._values = [weight.detach().clone() for weight in self._weights]

    def restore(self) -> None:
        """Undoes what the optimizer did to the hand-set weights."""
        for weight, value in zip(self._weights, self._values, strict=True):
            weight.detach().copy_(value)


def _set_copying(attention: Any) -> None:
    """Queries, keys, values and output as multiples of the identity."""
    import torch

    identity = torch.eye(attention.embed_dim)
    attention.q_proj.weight.copy_(COPY_SHARPNESS * identity)
    attention.k_proj.weight.copy_(COPY_SHARPNESS * identity)
    attention.v_proj.weight.copy_(identity)
    attention.out_proj.weight.copy_(COPY_STRENGTH * identity)
