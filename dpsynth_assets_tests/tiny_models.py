"""Tiny models with random weights, which tests open: none is trained.

A model writes tokens as often as its documents hold them, in an order that random weights decide:
texts end, are made of words, and follow from what stands before them.
"""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

BEGIN, END, PAD = "<begin>", "<end>", "<pad>"


def write_language_model(
    folder: Path,
    texts: Sequence[str] | None = None,
    *,
    vocabulary: int = 400,
    width: int = 32,
    layers: int = 2,
) -> Path:
    """Writes a Llama with tied embeddings and its tokenizer.

    Args:
        folder: Where.
        texts: Public documents; None: those of the demo's grammar.
        vocabulary: Tokens of the tokenizer.
        width: Of a hidden state.
        layers: Of the decoder.

    Returns:
        The folder.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    texts = texts or letters()
    tokenizer = write_tokenizer(folder, texts, vocabulary)
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        initializer_range=0.5 * width**-0.5,
        **_special_ids(tokenizer),
    )

    def weights() -> Any:
        model = LlamaForCausalLM(config)
        # Every hidden state has the direction (1, ..., 1) in common, since no layer writes there,
        # and a token's embedding has as much of it as the token is frequent.
        embeddings = model.model.embed_tokens.weight
        frequencies = torch.from_numpy(_log_frequencies(tokenizer, texts))
        embeddings -= embeddings.mean(dim=1, keepdim=True)
        embeddings += (frequencies - frequencies.min() + 4.0)[:, None] / width
        for layer in model.model.layers:
            for writes in (layer.self_attn.o_proj, layer.mlp.down_proj):
                writes.weight -= writes.weight.mean(dim=0)
        return model

    return _saved(folder, weights)


def write_generator(
    folder: Path,
    texts: Sequence[str] | None = None,
    *,
    vocabulary: int = 400,
    width: int = 32,
    tokens: int = 64,
) -> Path:
    """Writes a BART that reads aspect lines, and its tokenizer.

    Args:
        folder: Where.
        texts: Public documents; None: those of the demo's grammar.
        vocabulary: Tokens of the tokenizer.
        width: Of a hidden state.
        tokens: Bound on conditions and on documents.

    Returns:
        The folder.
    """
    import torch
    from transformers import BartConfig, BartForConditionalGeneration

    texts = texts or letters()
    tokenizer = write_tokenizer(folder, texts, vocabulary)
    config = BartConfig(
        d_model=width,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=2 * width,
        decoder_ffn_dim=2 * width,
        max_position_embeddings=tokens,
        dropout=0.0,
        init_std=0.4 * width**-0.5,
        tie_word_embeddings=True,
        decoder_start_token_id=tokenizer.bos_token_id,
        forced_eos_token_id=None,
        **_special_ids(tokenizer),
    )

    def weights() -> Any:
        model = BartForConditionalGeneration(config)
        model.final_logits_bias.copy_(torch.from_numpy(_log_frequencies(tokenizer, texts))[None])
        return model

    return _saved(folder, weights)


def random_llama(vocabulary: int, **changes: Any) -> Any:
    """Makes a Llama of one layer with random weights, the same ones each time."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "max_position_embeddings": 512}
    heads = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    settings = {"vocab_size": vocabulary, "initializer_range": 0.2, **sizes, **heads, **changes}
    model = AutoModelForCausalLM.from_config(LlamaConfig(**settings), attn_implementation="sdpa")
    return model.eval()


def write_tokenizer(
    folder: Path, texts: Sequence[str], vocabulary: int = 400
) -> "PreTrainedTokenizerFast":
    """Writes a byte-level BPE of texts, which encodes any text; each digit is a token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[BEGIN, END, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    saved = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=BEGIN, eos_token=END, pad_token=PAD
    )
    saved.save_pretrained(folder)
    return saved


@cache
def letters() -> tuple[str, ...]:
    """Public documents of the demo's grammar."""
    from mailboxes import public_rows

    return tuple(row["text"] for row in public_rows(200, seed=0))


def _saved(folder: Path, weights: Callable[[], Any]) -> Path:
    """Saves a model whose random numbers come from a seed of their own."""
    import torch

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(7)  # not the seed of random starts in the product
        weights().save_pretrained(folder)
    return folder


def _special_ids(tokenizer: "PreTrainedTokenizerFast") -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def _log_frequencies(tokenizer: "PreTrainedTokenizerFast", texts: Sequence[str]) -> np.ndarray:
    """Logarithm of each token's share of all tokens, the end of each text among them: (V,)."""
    ids = [token for text in tokenizer(list(texts))["input_ids"] for token in text]
    counts = np.bincount(ids, minlength=len(tokenizer)).astype(np.float32) + 0.01
    counts[tokenizer.eos_token_id] = len(texts)
    return np.log(counts / counts.sum())


def exact_decoder(shape: Any, table: Any, calibration: Any = (), kernel: Any = None) -> Any:
    """Quantizes a checkpoint and opens it; see `calibrated_table` and `integer_weights`."""
    import torch

    from dpsynth_assets.models.exact_decoder.decoder import ExactDecoder, calibrated_table
    from dpsynth_assets.models.exact_decoder.weights import EMBEDDINGS, integer_weights

    with torch.inference_mode():
        quantized = calibrated_table(shape, table, calibration)
        weights = integer_weights(shape, table[EMBEDDINGS].float(), quantized, kernel)
        return ExactDecoder(shape, weights)
