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
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

LAYER_NORM_EPSILON = 1e-12
INT8_LIMIT = 127


class Int8Linear:
    """y = x Wᵀ + b with int8 weights by output channel and int8 activations by token."""

    def __init__(self, weight: "torch.Tensor", bias: "torch.Tensor") -> None:
        """Quantizes `weight` [out, in] symmetrically, one scale an output channel."""
        import torch

        self.scale = (weight.abs().amax(1) / INT8_LIMIT).clamp_min(1e-12)  # [out]
        self.weight = (weight / self.scale[:, None]).round().to(torch.int8).t()  # [in, out]
        self.bias = bias

    def __call__(self, x: "torch.Tensor") -> "torch.Tensor":
        """Maps float32 [T, in] to float32 [T, out]; row t depends on row t alone."""
        import torch

        largest = x.abs().amax(1, keepdim=True).clamp_min(1e-12)  # [T, 1]
        quantized = (x * (INT8_LIMIT / largest)).round_().to(torch.int8)
        total = torch._int_mm(quantized, self.weight).float()  # exact sums, [T, out]
        return torch.addcmul(self.bias, total.mul_(largest / INT8_LIMIT), self.scale)


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
        linear = Int8Linear if quantize else Float32Linear
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


def int8_is_exact() -> bool:
    """Says whether this machine multiplies int8 matrices by vector instructions without saturation.

    Processors without VNNI may saturate 16-bit intermediate sums, or take a slow path.
    """
    import torch

    if not torch.cpu._is_vnni_supported():
        return False
    left = torch.full((32, 256), INT8_LIMIT, dtype=torch.int8)
    right = torch.full((256, 32), -INT8_LIMIT, dtype=torch.int8)
    return bool((torch._int_mm(left, right) == -256 * INT8_LIMIT**2).all())


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
