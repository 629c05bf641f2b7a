"""Turns a GGUF file of a Llama-shaped model into an ordinary folder of the transformers format.

A GGUF file holds weights (here of 4 and 8 bits, with a scale for every 32 of them), the tokenizer
and the chat template. The folder holds `config.json`, `model.safetensors` in float32, which keeps
every weight exactly, `tokenizer.json` and `chat_template.jinja`: transformers, vLLM and peft open
it, and nothing that reads it needs to know GGUF.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from dpsynth_assets.models.language_model import LanguageModelError

ARCHITECTURE = "llama"
TOKENIZER_KIND, PRE_TOKENIZER = "gpt2", "smollm"
_CONTROL_TOKEN = 3
"""Type number of special tokens in a GGUF file."""
_TENSORS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Names of weights: GGUF's, and transformers' for the same matrix."""


def write_llama_folder(gguf_file: Path, folder: Path) -> None:
    """Writes configuration, weights, tokenizer and chat template into an existing folder.

    Args:
        gguf_file: GGUF file of the architecture `llama` with a byte-level BPE tokenizer.
        folder: Receives the files; about 4 bytes a parameter.

    Raises:
        LanguageModelError: The file is no GGUF file, of another architecture, or lacks a part.
    """
    reader = _open(gguf_file)
    fields = _Fields(reader, gguf_file.name)
    architecture = fields.get("general.architecture")
    if architecture != ARCHITECTURE:
        raise LanguageModelError(
            f"Expected a GGUF file of the architecture {ARCHITECTURE}, got {architecture!r} in "
            f"{gguf_file.name}; take weights of a Llama-shaped model."
        )
    _write_tokenizer(fields, folder)
    heads = int(fields["llama.attention.head_count"])
    groups = int(fields["llama.attention.head_count_kv"])
    weights = _weights(reader.tensors, heads, groups, gguf_file.name)
    _write_config(fields, folder, tied="lm_head.weight" not in weights)
    _write_weights(weights, folder)


class _Fields:
    """Values of a GGUF file by key; a missing one is refused in one line."""

    def __init__(self, reader: Any, file_name: str) -> None:
        self._fields, self._file_name = reader.fields, file_name

    def get(self, key: str, default: Any = None) -> Any:
        field = self._fields.get(key)
        return default if field is None else field.contents()

    def __getitem__(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise LanguageModelError(
                f"Expected {key} in {self._file_name}, found nothing; take a GGUF file that holds "
                "the whole model with its tokenizer."
            )
        return value


def _open(gguf_file: Path) -> Any:
    try:
        from gguf import GGUFReader
    except ImportError:
        raise LanguageModelError(
            "Expected the package gguf, which reads GGUF files, found none; run `pip install gguf`."
        ) from None
    try:
        return GGUFReader(gguf_file)
    except (OSError, ValueError, IndexError) as error:
        raise LanguageModelError(
            f"Expected a GGUF file in {gguf_file}, got: {str(error).splitlines()[0]}. Fetch it "
            "again."
        ) from None


def _weights(
    tensors: Iterable[Any], heads: int, groups: int, file_name: str
) -> dict[str, np.ndarray]:
    """All weights in float32, by transformers' names."""
    from gguf.quants import dequantize

    weights = {}
    for tensor in tensors:
        name = _name_of(tensor.name, file_name)
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        if name.endswith("q_proj.weight"):
            values = _halves_of_rotation(values, heads)
        elif name.endswith("k_proj.weight"):
            values = _halves_of_rotation(values, groups)
        weights[name] = np.ascontiguousarray(values)
    return weights


def _name_of(name: str, file_name: str) -> str:
    parts = name.split(".")
    if len(parts) == 2 and parts[0] in _TENSORS:
        return f"{_TENSORS[parts[0]]}.{parts[1]}"
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _LAYER_TENSORS:
        return f"model.layers.{parts[1]}.{_LAYER_TENSORS[parts[2]]}.{parts[3]}"
    raise LanguageModelError(
        f"Expected the weights of a plain Llama model in {file_name}, got one named {name!r}; "
        "take weights without biases and experts."
    )


def _halves_of_rotation(values: np.ndarray, heads: int) -> np.ndarray:
    """Reorders rows [heads * D, d]: GGUF rotates neighbours, transformers the two halves."""
    rows, width = values.shape
    return values.reshape(heads, rows // heads // 2, 2, width).swapaxes(1, 2).reshape(rows, width)


def _write_config(fields: _Fields, folder: Path, *, tied: bool) -> None:
    from transformers import LlamaConfig

    scaling = fields.get("llama.rope.scaling.type", "none")
    if scaling != "none":
        raise LanguageModelError(
            f"Expected rotary embedding without scaling, got {scaling!r}; take another file."
        )
    LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=len(fields["tokenizer.ggml.tokens"]),
        hidden_size=int(fields["llama.embedding_length"]),
        intermediate_size=int(fields["llama.feed_forward_length"]),
        num_hidden_layers=int(fields["llama.block_count"]),
        num_attention_heads=int(fields["llama.attention.head_count"]),
        num_key_value_heads=int(fields["llama.attention.head_count_kv"]),
        max_position_embeddings=int(fields["llama.context_length"]),
        rms_norm_eps=float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        rope_parameters={
            "rope_type": "default",
            "rope_theta": float(fields.get("llama.rope.freq_base", 10_000.0)),
        },
        bos_token_id=fields.get("tokenizer.ggml.bos_token_id"),
        eos_token_id=fields.get("tokenizer.ggml.eos_token_id"),
        pad_token_id=fields.get("tokenizer.ggml.padding_token_id"),
        tie_word_embeddings=tied,
        dtype="float32",
    ).save_pretrained(folder)


def _write_weights(weights: dict[str, np.ndarray], folder: Path) -> None:
    from safetensors.numpy import save_file

    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _write_tokenizer(fields: _Fields, folder: Path) -> None:
    """Writes the byte-level BPE tokenizer; digits are tokens of their own, as in training."""
    from transformers import PreTrainedTokenizerFast

    kind = fields["tokenizer.ggml.model"], fields.get("tokenizer.ggml.pre")
    if kind != (TOKENIZER_KIND, PRE_TOKENIZER):
        raise LanguageModelError(
            f"Expected a tokenizer of kind {TOKENIZER_KIND}, {PRE_TOKENIZER}, got {kind[0]}, "
            f"{kind[1]}; take the weights as a folder in the transformers format instead."
        )
    tokens = fields["tokenizer.ggml.tokens"]

    def special(key: str) -> str | None:
        index = fields.get(f"tokenizer.ggml.{key}_token_id")
        return None if index is None else tokens[index]

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=_byte_pair_encoding(fields, tokens),
        bos_token=special("bos"),
        eos_token=special("eos"),
        unk_token=special("unknown"),
        pad_token=special("padding"),
        model_max_length=int(fields["llama.context_length"]),
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = fields.get("tokenizer.chat_template")
    tokenizer.save_pretrained(folder)


def _byte_pair_encoding(fields: _Fields, tokens: list[str]) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, fuse_unk=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = fields["tokenizer.ggml.token_type"]
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind == _CONTROL_TOKEN
        ]
    )
    return tokenizer
