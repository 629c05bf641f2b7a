"""A BERT encoder for CPUs that embeds documents without padding, in 8-bit integers.

Documents lie end to end in one [T, d] tensor, so no padding token is ever computed, and attention
runs once for each run of documents of the same length. Weights are int8 by output channel,
activations int8 by token. Integer sums are exact and every other step reads one token or one
document, so an embedding is a function of its text alone, bit for bit: no record can move another
record's embedding. (PyTorch's dynamic quantization takes one scale for the whole batch and has
neither that property nor its accuracy.)

Shapes: T tokens of a pack, d model width, h feed-forward width.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsynth_assets.models.exact_decoder.integer_products import (
    KERNELS,
    LIMIT,
    Kernel,
    fastest_kernel,
    quantized_rows,
    quantized_weight,
)
from dpsynth_assets.privacy.cpu_threads import run_alone

if TYPE_CHECKING:
    import torch

LAYER_NORM_EPSILON = 1e-12


class Int8Linear:
    """y = x Wᵀ + b with int8 weights by output channel and 8-bit activations by token."""

    def __init__(self, weight: "torch.Tensor", bias: "torch.Tensor", kernel: Kernel) -> None:
        """Quantizes `weight` [out, in] symmetrically, one scale an output channel."""
        self._product = KERNELS[kernel](*quantized_weight(weight, 1 / LIMIT))
        self.bias = bias

    def __call__(self, x: "torch.Tensor") -> "torch.Tensor":
        """Maps float32 [T, in] to float32 [T, out]; row t depends on row t alone."""
        import torch

        rounded, largest = quantized_rows(x)
        return torch.addcmul(self.bias, self._product(rounded), largest)


class Float32Linear:
    """y = x Wᵀ + b in float32."""

    def __init__(self, weight: "torch.Tensor", bias: "torch.Tensor") -> None:
        """Keeps `weight` [out, in] as it is."""
        self.weight, self.bias = weight, bias

    def __call__(self, x: "torch.Tensor") -> "torch.Tensor":
        """Maps float32 [T, in] to float32 [T, out]."""
        import torch

        return torch.nn.functional.linear(x, self.weight, self.bias)


class PackedBert:
    """Sentence embeddings by mean pooling over a BERT encoder, unit length."""

    def __init__(self, folder: Path, *, quantize: bool) -> None:
        """Reads `config.json` and `model.safetensors` of a BERT checkpoint folder."""
        import json

        from safetensors.torch import load_file

        config = json.loads((folder / "config.json").read_text())
        self.dimension = int(config["hidden_size"])
        self.heads = int(config["num_attention_heads"])
        self._weights = load_file(folder / "model.safetensors")
        linear = _int8_linear(self._weights) if quantize else Float32Linear
        self._layers = [
            _layer(self._weights, f"encoder.layer.{index}.", linear)
            for index in range(int(config["num_hidden_layers"]))
        ]

    def embed(self, documents: Sequence[Sequence[int]]) -> "torch.Tensor":
        """Embeds token ids of documents, best sorted by length: float32 [documents, d]."""
        import torch

        with torch.inference_mode():
            lengths = [len(document) for document in documents]
            x = self._embed_tokens(documents, lengths)
            for layer in self._layers:
                x = self._apply(layer, x, lengths)
            means = torch.stack([document.mean(0) for document in x.split(lengths)])
            return torch.nn.functional.normalize(means, dim=1)

    def _embed_tokens(
        self, documents: Sequence[Sequence[int]], lengths: Sequence[int]
    ) -> "torch.Tensor":
        import torch

        words = torch.tensor([token for document in documents for token in document])
        places = torch.cat([torch.arange(length) for length in lengths])
        table = self._weights
        x = table["embeddings.word_embeddings.weight"][words]
        x = x + table["embeddings.position_embeddings.weight"][places]
        x = x + table["embeddings.token_type_embeddings.weight"][0]
        return _normalize(x, _norm(table, "embeddings.LayerNorm"))

    def _apply(
        self, layer: Mapping[str, Any], x: "torch.Tensor", lengths: Sequence[int]
    ) -> "torch.Tensor":
        import torch

        attended = self._attend(layer["query_key_value"](x), lengths)  # [T, d]
        x = _normalize(layer["attention_output"](attended).add_(x), layer["attention_norm"])
        hidden = torch.nn.functional.gelu(layer["up"](x))  # [T, h]
        return _normalize(layer["down"](hidden).add_(x), layer["output_norm"])

    def _attend(self, packed: "torch.Tensor", lengths: Sequence[int]) -> "torch.Tensor":
        import torch

        runs = [(length, len(list(run))) for length, run in groupby(lengths)]
        parts = packed.split([length * count for length, count in runs])
        outputs = []
        for part, (length, count) in zip(parts, runs, strict=True):
            query, key, value = part.view(count, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            attended = torch.nn.functional.scaled_dot_product_attention(query, key, value)
            outputs.append(attended.transpose(1, 2).reshape(count * length, self.dimension))
        return torch.cat(outputs)


def _int8_linear(table: Mapping[str, "torch.Tensor"]) -> Any:
    """`Int8Linear` by the kernel that is fastest here for the shapes of a table's layers."""
    layers = [each for name, each in table.items() if name.startswith("encoder.")]
    shapes = {(each.shape[0], each.shape[1]) for each in layers if each.dim() == 2}
    (kernel,) = run_alone([partial(fastest_kernel, shapes)], 1)
    return partial(Int8Linear, kernel=kernel)


def _layer(table: Mapping[str, "torch.Tensor"], prefix: str, linear: Any) -> dict[str, Any]:
    import torch

    attention = [f"{prefix}attention.self.{name}." for name in ("query", "key", "value")]
    fused = [torch.cat([table[name + kind] for name in attention]) for kind in ("weight", "bias")]

    def read(name: str) -> Any:
        return linear(table[f"{prefix}{name}.weight"], table[f"{prefix}{name}.bias"])

    return {
        "query_key_value": linear(*fused),
        "attention_output": read("attention.output.dense"),
        "attention_norm": _norm(table, f"{prefix}attention.output.LayerNorm"),
        "up": read("intermediate.dense"),
        "down": read("output.dense"),
        "output_norm": _norm(table, f"{prefix}output.LayerNorm"),
    }


def _norm(table: Mapping[str, "torch.Tensor"], name: str) -> "tuple[torch.Tensor, torch.Tensor]":
    return table[f"{name}.weight"], table[f"{name}.bias"]


def _normalize(x: "torch.Tensor", norm: "tuple[torch.Tensor, torch.Tensor]") -> "torch.Tensor":
    import torch

    return torch.nn.functional.layer_norm(x, (x.shape[1],), *norm, LAYER_NORM_EPSILON)
